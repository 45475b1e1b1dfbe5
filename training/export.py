"""Ship a run's averaged weights: ``python -m training.export --run DIR``.

Writes ``config.json`` and ``model.safetensors`` in the official layout, in float16, where
``load_checkpoint`` finds them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from da3_ros.network import MODELS, build_network, save_checkpoint
from da3_ros.network.model import DepthAnything3
from training.train import read_state

SHIPPED = Path(__file__).parents[1] / "da3_ros" / "checkpoints" / "da3-tiny"


def averaged_network(run: Path, name: str = "da3-tiny") -> DepthAnything3:
    """The network with the averaged weights of the run in folder ``run``, in eval mode.

    Raises FileNotFoundError where there is no run, OverflowError for weights beyond float16.
    """
    weights = read_state(run)["ema"]
    limit = torch.finfo(torch.float16).max
    beyond = [k for k, v in weights.items() if not (v.abs() < limit).all()]
    if beyond:
        raise OverflowError(f"float16 cannot hold {', '.join(beyond[:3])}")
    network = build_network(name)
    network.load_state_dict(weights)
    return network.eval()


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder of the run's state")
    parser.add_argument("--to", type=Path, default=SHIPPED, help="default: what the package ships")
    parser.add_argument("--model", choices=sorted(MODELS), default="da3-tiny")
    args = parser.parse_args(argv)
    folder = save_checkpoint(averaged_network(args.run, args.model), args.to, dtype=torch.float16)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"{folder}: {size:.1f} MB")


if __name__ == "__main__":
    main()
