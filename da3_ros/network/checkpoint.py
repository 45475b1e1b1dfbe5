"""Reads official checkpoints, ``config.json`` and ``model.safetensors``, with strict checks.

Class paths in ``config.json`` are never imported: ``model_name`` must be a key of MODELS, and the
numbers must agree with its spec. Weights must be safetensors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from da3_ros.network import hub
from da3_ros.network.build import Network, parts
from da3_ros.network.gaussian_head import LEAST_SCALE, MOST_SCALE
from da3_ros.network.hub import CONFIG, WEIGHTS
from da3_ros.network.specs import MODELS, ModelSpec
from da3_ros.splats.relative import COUNT

log = logging.getLogger(__name__)

# The four ray stacks share one LayerNorm. Official files store it once; others may repeat it.
SHARED_NORM = "head.scratch.output_conv2_aux.0.2"
ALIASES = {
    f"head.scratch.output_conv2_aux.{k}.2.{p}": f"{SHARED_NORM}.{p}"
    for k in (1, 2, 3)
    for p in ("weight", "bias")
}
# Only read into networks that were built with it.
GAUSSIAN_HEADS = ("gs_head.", "da3.gs_head.")


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the text is one line with a remedy."""


def load_checkpoint(network: Network, source: str | Path) -> Path:
    """Load official weights into ``network``; all tensors must exist with the correct shapes.

    source: a folder, a hub name such as ``depth-anything/DA3-SMALL``, or "" for the weights
        shipped with the package, or else the model's files in the local hub cache. Only a hub
        name downloads.

    Returns the folder that was read. Raises CheckpointError.
    """
    folder = find_checkpoint(network.spec, str(source))
    check_config(network.spec, _read_config(folder / CONFIG))
    weights = dict(_read_weights(folder / WEIGHTS))
    _leave_out_gaussians(weights, network)
    _check_aliases(weights, network.spec, folder)
    _check_names_and_shapes(network, weights, folder)
    network.load_state_dict(weights, strict=True)
    return folder


def find_checkpoint(spec: ModelSpec, source: str) -> Path:
    """The folder with the files of ``source`` (see load_checkpoint)."""
    if not source and (shipped := shipped_folder(spec.name)):
        return shipped
    if source and (Path(source).expanduser().is_dir() or not _is_hub_name(source)):
        folder = Path(source).expanduser()
        missing = [n for n in (CONFIG, WEIGHTS) if not (folder / n).is_file()]
        if missing:
            raise CheckpointError(
                f"checkpoint folder {folder} lacks {' and '.join(missing)}: "
                f"give a folder with {CONFIG} and {WEIGHTS}, or a hub name"
            )
        return folder
    if not source and not spec.repo:
        raise CheckpointError(f"{spec.name} has no hub name: give its folder as `checkpoint`")
    return _from_hub(source or spec.repo, spec, download=bool(source))


def shipped_folder(name: str) -> Path | None:
    """The folder of a model's weights in the package; None: not shipped."""
    folder = Path(__file__).parents[1] / "checkpoints" / name
    return folder if (folder / WEIGHTS).is_file() else None


def cached_folder(spec: ModelSpec) -> Path | None:
    """The folder of a model's files in the local hub cache, or None; never downloads."""
    return hub.cached(spec.repo) if spec.repo else None


def check_config(spec: ModelSpec, config: dict[str, Any]) -> None:
    """Raise CheckpointError if config.json does not match ``spec``."""
    name = config.get("model_name")
    if name != spec.name:
        hint = f"set `model` to {name}" if name in MODELS else "use an official checkpoint"
        raise CheckpointError(f"{CONFIG} is for model {name!r}, not {spec.name!r}: {hint}")
    body = config.get("config", {})
    if not isinstance(body, dict):
        raise CheckpointError(
            f"{CONFIG} of {spec.name} contains no 'config' object: download it again"
        )
    for path, expected in _expected_numbers(spec).items():
        node: Any = body
        for key in path.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        if node is not None and _plain(node, expected) != expected:
            raise CheckpointError(
                f"{CONFIG}: {path} is {node}, but {spec.name} has {expected}: "
                "the files belong to another model"
            )


def save_checkpoint(
    network: Network, folder: str | Path, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` in the official layout to ``folder``."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{k}": v.to(dtype).contiguous() for k, v in network.state_dict().items()}
    metadata = {f"model.{a}": f"model.{kept}" for a, kept in aliases(network.spec).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", **metadata})
    text = json.dumps(
        {"model_name": network.spec.name, "config": make_config(network.spec)}, indent=2
    )
    (folder / CONFIG).write_text(text)
    return folder


def make_config(spec: ModelSpec) -> dict[str, Any]:
    """The ``config`` object of config.json, without class paths."""
    config: dict[str, Any] = {}
    for path, value in _expected_numbers(spec).items():
        *nodes, last = path.split(".")
        node = config
        for name in nodes:
            node = node.setdefault(name, {})
        node[last] = value
    return config


def aliases(spec: ModelSpec) -> dict[str, str]:
    """Map from names under which a file of ``spec`` may repeat a tensor to the tensor's name."""
    if not spec.multi_view:
        return {}
    prefix = "da3." if spec.metric_branch else ""
    return {prefix + alias: prefix + kept for alias, kept in ALIASES.items()}


@torch.no_grad()
def initialize_randomly(network: Network, seed: int = 0) -> None:
    """Fill all parameters from ``seed``, for tests and timing: outputs are valid but meaningless.

    Depth is positive, poses are near the identity, fields of view near 60 degrees.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(p: Tensor, std: float, mean: float = 0.0) -> None:
        p.copy_(torch.randn(p.shape, generator=generator) * std + mean)

    # The Gaussian head last: the others are the same with and without it.
    for name, p in sorted(network.named_parameters(), key=lambda item: _is_gaussian(item[0])):
        if name.endswith("gamma"):
            normal(p, 0.1, 0.3)
        elif p.ndim == 1:
            is_norm = name.endswith("weight")
            normal(p, 0.05, 1.0 if is_norm else 0.0)
        elif "token" in name or "pos_embed" in name:
            normal(p, 0.3)
        else:
            normal(p, (0.64 / p[0].numel()) ** 0.5)
    for part in parts(network):
        if part.spec.multi_view:
            _plausible_cameras(part.get_submodule("cam_dec"))


def _plausible_cameras(decoder: nn.Module) -> None:
    """Make the decoder give poses near the identity and fields of view near 60 degrees."""
    for layer, bias in (("fc_t", 0.0), ("fc_qvec", (0.0, 0.0, 0.0, 1.0)), ("fc_fov.0", 1.1)):
        decoder.get_parameter(f"{layer}.weight").mul_(0.02)
        decoder.get_parameter(f"{layer}.bias").copy_(torch.tensor(bias))


def _from_hub(repo: str, spec: ModelSpec, *, download: bool) -> Path:
    folder = hub.cached(repo)
    if folder is not None:
        return folder
    why = "is not in the local hub cache"
    cause: hub.HubError | None = None
    if download:
        try:
            return hub.fetch(repo)
        except hub.HubError as error:
            why, cause = f"could not be downloaded: {error}", error
    raise CheckpointError(f"{repo} {why}: {remedies(spec)}") from cause


def remedies(spec: ModelSpec) -> str:
    """Text that tells how to get a model's missing weights."""
    return (
        f"run `da3_ros models --get {spec.name}` on a machine with internet (`--to FOLDER` puts "
        "the files where they can be copied from), or set `checkpoint` to a folder with "
        f"{CONFIG} and {WEIGHTS}, {_for_trying()}"
    )


def _for_trying() -> str:
    if shipped_folder("da3-tiny"):
        return "or try the shipped model with `model: da3-tiny`"
    return "or run with random weights, whose output is meaningless: `checkpoint: random`"


def _is_hub_name(source: str) -> bool:
    """Whether ``name`` has the form ``owner/name`` and cannot be a path."""
    parts = source.split("/")
    return len(parts) == 2 and all(parts) and not source.startswith((".", "~", "/"))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): download it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object: download it again")
    return config


def _read_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Read tensors by name, without the leading ``model.``."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for stored in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                yield stored.removeprefix("model."), file.get_tensor(stored)
    except (SafetensorError, OSError, struct.error) as error:
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}): download it again"
        ) from error


def _is_gaussian(name: str) -> bool:
    return name.startswith(GAUSSIAN_HEADS)


def _leave_out_gaussians(weights: dict[str, Tensor], network: Network) -> None:
    if any(_is_gaussian(name) for name, _ in network.named_parameters()):
        return
    names = [name for name in weights if _is_gaussian(name)]
    for name in names:
        del weights[name]
    if names:
        text = "%s: the Gaussian head is not loaded (%d tensors): splats.enabled is false"
        log.info(text, network.spec.name, len(names))


def _check_aliases(weights: dict[str, Tensor], spec: ModelSpec, folder: Path) -> None:
    """Remove repeated copies of the shared norm. Raises CheckpointError if they differ from it."""
    for alias, kept in aliases(spec).items():
        copy = weights.pop(alias, None)
        if copy is not None and not torch.equal(copy, weights.get(kept, torch.empty(0))):
            raise CheckpointError(f"{folder}: {alias} differs from {kept}, but must be equal")


def _check_names_and_shapes(network: Network, weights: dict[str, Tensor], folder: Path) -> None:
    """Raise CheckpointError with the names of missing, unknown or wrongly shaped tensors."""
    ours = {name: tuple(p.shape) for name, p in network.state_dict().items()}
    theirs = {name: tuple(t.shape) for name, t in weights.items()}
    problems = (
        ("lacks", sorted(ours.keys() - theirs.keys())),
        ("has unknown", sorted(theirs.keys() - ours.keys())),
        ("has the wrong shape for", sorted(n for n in ours if theirs.get(n, ours[n]) != ours[n])),
    )
    for what, names in problems:
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            raise CheckpointError(
                f"{folder / WEIGHTS} {what} {shown}: it is not a checkpoint of {network.spec.name}"
            )


def _expected_numbers(spec: ModelSpec) -> dict[str, Any]:
    """The numbers of config.json that identify the network, by their path in the file."""
    if spec.metric_branch is not None:
        any_view = replace(spec, metric_branch=None)
        branches = (("anyview", any_view), ("metric", spec.metric_branch))
        return {f"{b}.{k}": v for b, s in branches for k, v in _expected_numbers(s).items()}
    many, D = spec.multi_view, spec.width
    start = spec.alt_start if many else -1
    numbers = {
        "net.name": spec.backbone,
        "net.out_layers": list(spec.taps),
        "net.alt_start": start,
        "net.qknorm_start": start,
        "net.rope_start": start,
        "net.cat_token": many,
        "head.dim_in": 2 * D if many else D,
        "head.output_dim": 2 if many else 1,
        "head.features": spec.features,
        "head.out_channels": list(spec.channels),
    }
    if spec.gaussians:
        numbers |= {
            "gs_head.dim_in": 2 * D,
            "gs_head.output_dim": COUNT,
            "gs_head.features": spec.features,
            "gs_head.out_channels": list(spec.channels),
            "gs_adapter.sh_degree": 2,
            "gs_adapter.pred_color": False,
            "gs_adapter.pred_offset_depth": True,
            "gs_adapter.pred_offset_xy": True,
            "gs_adapter.gaussian_scale_min": LEAST_SCALE,
            "gs_adapter.gaussian_scale_max": MOST_SCALE,
        }
    return numbers | ({"cam_enc.dim_out": D, "cam_dec.dim_in": 2 * D} if many else {})


def _plain(value: Any, expected: Any) -> Any:
    if isinstance(value, str) and isinstance(expected, float):  # YAML 1.1 takes 1e-5 for a word
        with contextlib.suppress(ValueError):
            return float(value)
    return list(value) if isinstance(value, tuple) else value
