"""The manifest of an exported network: all that a program needs to know beside the files.

Nothing in it depends on the machine that wrote it: no paths, no names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from da3_ros import __version__
from da3_ros.backends.engine_folder import RANDOM, sha256
from da3_ros.backends.network_parts import Part
from da3_ros.network import ModelSpec
from da3_ros.network.checkpoint import WEIGHTS, find_checkpoint
from da3_ros.network.hub import PINS
from da3_ros.network.metric import CANONICAL_FOCAL_PX, SKY_THRESHOLD
from da3_ros.network.specs import MEAN, STD

FORMAT = 1
# Largest differences from PyTorch in fp32, see export_example.difference.
BOUNDS = {"tokens": 1e-4, "descriptor": 1e-4, "depth": 1e-5, "sky": 1e-4}
OTHER_BOUND = 1e-5
CONVENTIONS = {
    "tokens": "of one view; goes into decode, the reference view first",
    "descriptor": "of one view; the reference view is chosen by it",
    "depth": "z-depth, in one unknown unit per window",
    "confidence": "from 1 upwards",
    "extrinsics": "world-to-camera [R | t], OpenCV axes (x right, y down, z forward), t in the "
    "unit of depth; the world is that of the first given view",
    "intrinsics": "K in pixels of the exported size; pixel i covers [i, i + 1)",
    "sky": f"from 0 upwards; sky is at least {SKY_THRESHOLD}",
}
IMAGE_DEPTH = "z-depth, in an unknown unit of each image"
METRIC_DEPTH = f"z-depth; metres = depth * focal length in pixels / {CANONICAL_FOCAL_PX:g}"


def weights_facts(spec: ModelSpec, checkpoint: str) -> dict[str, str]:
    """Origin and SHA-256 of the weights of ``checkpoint`` (as the parameter), without a path.

    Raises CheckpointError.
    """
    if checkpoint == RANDOM:
        return {"source": "random: without meaning, for tests", "sha256": ""}
    digest = sha256(find_checkpoint(spec, checkpoint) / WEIGHTS)
    source = next(
        (
            f"{repo}, revision {p.revision}"
            for repo, p in PINS.items()
            if p.weights_sha256 == digest
        ),
        "a folder" if checkpoint else "the package da3_ros",
    )
    return {"source": source, "file": WEIGHTS, "sha256": digest}


def manifest(
    spec: ModelSpec,
    size: tuple[int, int],
    parts: dict[str, Part],
    files: dict[str, str],
    digests: dict[str, str],
) -> dict[str, Any]:
    """The manifest without weights and versions of writers.

    size: (H, W). files: name of each part's file. digests: SHA-256 of every file.
    """
    found: dict[str, Any] = {
        "format": FORMAT,
        "model": spec.name,
        "hub_name": spec.repo,
        "licence": spec.license,
        "commercial_use": spec.commercial,
        "size": {"width": size[1], "height": size[0]},
        "images": {
            "layout": "RGB [N, 3, H, W], float32: (value / 255 - mean) / std",
            "mean": MEAN,
            "std": STD,
        },
        "parts": {name: _part(name, part, files[name], spec) for name, part in parts.items()},
        "files": digests,
        "versions": {"da3_ros": __version__, "torch": torch.__version__},
    }
    if spec.multi_view:
        found["views"] = len(parts["decode"].inputs["tokens"])
        found["reference_view"] = "the first of the given order; see reference_view in example.py"
    return found


@torch.no_grad()
def _part(name: str, part: Part, file: str, spec: ModelSpec) -> dict[str, Any]:
    outputs = zip(part.outputs, part.module(*part.inputs.values()), strict=True)
    prefix = "image." if name == "image" else ""
    return {
        "file": file,
        "inputs": [
            {"name": n, "dtype": "float32", "shape": list(x.shape), "golden": n}
            for n, x in part.inputs.items()
        ],
        "outputs": [
            {
                "name": n,
                "dtype": "float32",
                "shape": list(x.shape),
                "meaning": _meaning(name, n, spec),
                "golden": prefix + n,
                "largest_difference": BOUNDS.get(n, OTHER_BOUND),
            }
            for n, x in outputs
        ],
    }


def _meaning(part: str, output: str, spec: ModelSpec) -> str:
    if (part, output) == ("image", "depth"):
        return METRIC_DEPTH if spec.metric else IMAGE_DEPTH
    return CONVENTIONS[output]


def file_digests(files: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of files, by their names."""
    return {file.name: sha256(file) for file in sorted(files)}
