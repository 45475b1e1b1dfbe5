"""Runs a network that `da3_ros export-network` wrote, and compares it with PyTorch's results.

    python example.py [onnxruntime|openvino]

Needs NumPy and one of the two runtimes; without a name it takes one that is installed and reads
the files. Exit code 1: results or files differ. Licence of this file: Apache-2.0.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Array = Any  # of NumPy, float32


class ExportedNetwork:
    """The parts of an export. ``parts[name](x)`` returns a part's outputs by name."""

    def __init__(self, folder: Path, runtime: str = "") -> None:
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text())
        parts = self.manifest["parts"]
        files = [folder / part["file"] for part in parts.values()]
        runtime = runtime or default_runtime(files[0])
        self.parts = {
            name: open_part(file, [x["name"] for x in part["outputs"]], runtime)
            for (name, part), file in zip(parts.items(), files, strict=True)
        }

    def normalized(self, image: Array) -> Array:
        """uint8 RGB [H, W, 3] of the exported size -> [3, H, W]."""
        mean, std = (np.float32(self.manifest["images"][k]) for k in ("mean", "std"))
        return np.ascontiguousarray(((image / np.float32(255) - mean) / std).transpose(2, 0, 1))

    def window(self, images: Array, strategy: str = "saddle_balanced") -> dict[str, Array]:
        """Normalised images [N, 3, H, W] -> depth, confidence, extrinsics, intrinsics [N, ...].

        Views keep their order; the world is the camera of the reference view. On a stream keep
        each image's tokens: only new images need `encode`.
        """
        encoded = self.one_by_one("encode", images)
        first = reference_view(encoded["descriptor"], strategy)
        order = [first, *(i for i in range(len(images)) if i != first)]
        outputs = self.parts["decode"](encoded["tokens"][order])
        return {name: x[np.argsort(order)] for name, x in outputs.items()}

    def one_by_one(self, name: str, images: Array) -> dict[str, Array]:
        """Run a part of one image for each of [N, ...]."""
        found = [self.parts[name](image[None]) for image in images]
        return {key: np.concatenate([x[key] for x in found]) for key in found[0]}

    def differences(self) -> list[tuple[str, float, float]]:
        """Name, difference from PyTorch and largest allowed difference of each output."""
        golden = np.load(self.folder / "golden.npz", allow_pickle=False)
        found = []
        for name, part in self.manifest["parts"].items():
            x = golden[part["inputs"][0]["golden"]]
            single = part["inputs"][0]["shape"][0] == 1
            outputs = self.one_by_one(name, x) if single else self.parts[name](x)
            for output in part["outputs"]:
                value = difference(outputs[output["name"]], golden[output["golden"]])
                found.append((f"{name}.{output['name']}", value, output["largest_difference"]))
        return found

    def changed_files(self) -> list[str]:
        """Files that are not as they were written."""
        files = self.manifest["files"]
        return [name for name, digest in files.items() if sha256(self.folder / name) != digest]


def reference_view(descriptors: Array, strategy: str) -> int:
    """Which of N views with descriptors [N, D] the network takes as its reference."""
    c, n = descriptors.astype(np.float32), len(descriptors)
    if strategy == "first" or n < 3:
        return 0
    if strategy == "middle":
        return n // 2
    norm = np.linalg.norm(c, axis=1)
    u = c / norm[:, None]
    similarity = u @ u.T
    if strategy == "saddle_sim_range":  # the most distinct view
        other = similarity - np.eye(n, dtype=np.float32)
        return int((other.max(axis=1) - other.min(axis=1)).argmax())
    if strategy != "saddle_balanced":  # the most typical view
        raise ValueError(f"unknown strategy {strategy!r}")
    mean = (similarity.sum(axis=1) - 1) / (n - 1)
    measures = np.stack((mean, norm, u.var(axis=1, ddof=1)))
    low, high = measures.min(axis=1, keepdims=True), measures.max(axis=1, keepdims=True)
    scaled = (measures - low) / (high - low + np.float32(1e-8))
    return int(np.abs(scaled - 0.5).sum(axis=0).argmin())


def metres_per_unit(depth: Array, confidence: Array, metres: Array, sky: Array) -> float:
    """Scale of a window from the metric network's depth in metres; all are [N, H, W]. NaN: none.

    metres: output depth of `image`, times the focal length in pixels, divided by 300.
    """
    seen = (sky < 0.3) & np.isfinite(metres)
    if seen.sum() <= 10:
        return float("nan")
    good = seen & (confidence >= np.median(confidence[seen])) & (metres > 0.01) & (depth > 0.001)
    m, d = metres[good].astype(float), depth[good].astype(float)
    return float((m * d).sum() / (d * d).sum()) if len(m) > 10 else float("nan")


def difference(found: Array, expected: Array) -> float:
    """99th percentile of the relative difference: to each value if all are positive (depth,
    confidence), else to the largest.
    """
    if found.shape != expected.shape or (np.isnan(found) != np.isnan(expected)).any():
        return float("inf")
    found, expected = np.nan_to_num(found).astype(float), np.nan_to_num(expected).astype(float)
    scale = expected if expected.min() > 0 else max(np.abs(expected).max(), 1e-12)
    return float(np.percentile(np.abs(found - expected) / scale, 99))


def default_runtime(file: Path) -> str:
    """A runtime that is installed and reads the file."""
    wanted = ["onnxruntime"] * (file.suffix == ".onnx") + ["openvino"]
    return next((name for name in wanted if find_spec(name)), wanted[0])


def open_part(file: Path, outputs: list[str], runtime: str) -> Callable[[Array], dict[str, Array]]:
    """A function of a part's input that returns its ``outputs`` by name."""
    if runtime == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        return lambda x: dict(zip(outputs, session.run(outputs, {given.name: x}), strict=True))
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # report nothing
    import openvino

    program = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(x: Array) -> dict[str, Array]:
        found = program([x])
        return {name: found[i].copy() for i, name in enumerate(outputs)}

    return run


def sha256(file: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def main() -> int:
    """Print the differences; returns the exit code."""
    if sys.argv[1:] not in ([], ["onnxruntime"], ["openvino"]):
        print(__doc__)
        return 2
    network = ExportedNetwork(Path(__file__).parent, *sys.argv[1:2])
    changed, wrong = network.changed_files(), []
    for name, value, bound in network.differences():
        print(f"{name:20} differs by {value:.1e} (at most {bound:.0e})")
        wrong += [] if value <= bound else [name]
    if changed or wrong:
        print("CHANGED FILES:" if changed else "WRONG RESULTS:", *(changed or wrong))
        return 1
    print("the results are PyTorch's")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
