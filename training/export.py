"""Exports a run's averaged weights into the package: ``python -m training.export --run DIR``.

Writes ``config.json`` and ``model.safetensors`` in the official layout, in float16, into the
folder that ``load_checkpoint`` reads by default.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from da3_ros.network import MODELS, build_network, load_checkpoint, save_checkpoint
from da3_ros.network.model import DepthAnything3
from training.train import read_state

SHIPPED = Path(__file__).parents[1] / "da3_ros" / "checkpoints" / "da3-tiny"


def averaged_network(run: Path, name: str = "da3-tiny") -> DepthAnything3:
    """Returns the network with the averaged weights of the run in folder ``run``, in eval mode.

    Raises FileNotFoundError if there is no run, OverflowError for weights beyond float16.
    """
    weights = read_state(run)["ema"]
    limit = torch.finfo(torch.float16).max
    beyond = [k for k, v in weights.items() if not (v.abs() < limit).all()]
    if beyond:
        raise OverflowError(f"float16 cannot hold {', '.join(beyond[:3])}")
    network = build_network(name)
    network.load_state_dict(weights)
    return network.eval()


def mean_with(network: DepthAnything3, folder: Path) -> None:
    """Replaces the weights of ``network`` by the mean with those of a checkpoint, in place.

    The mean of a run's weights and of those it was started from is often better than either.
    """
    other = build_network(network.spec.name)
    load_checkpoint(other, str(folder))
    mean = {
        name: (ours + theirs) / 2
        for (name, ours), theirs in zip(
            network.state_dict().items(), other.state_dict().values(), strict=True
        )
    }
    network.load_state_dict(mean)


def main(argv: list[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the run's state")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="default: in the package")
    parser.add_argument("--model", choices=sorted(MODELS), default="da3-tiny")
    parser.add_argument(
        "--mean-with", type=Path, help="checkpoint folder; the mean with its weights is written"
    )
    args = parser.parse_args(argv)
    network = averaged_network(args.run, args.model)
    if args.mean_with is not None:
        mean_with(network, args.mean_with)
    folder = save_checkpoint(network, args.to, dtype=torch.float16)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"{folder}: {size:.1f} MB")


if __name__ == "__main__":
    main()
