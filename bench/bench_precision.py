"""Errors by reduced precision, against exact fp32 and against the truth, on rendered rooms.

    python bench/bench_precision.py                      # cpu: bfloat16, float16, int8
    python bench/bench_precision.py --device cuda        # TF32 (fp32 runs in it) and 16 bits

The trained da3-tiny runs on windows of eight views of walks through rooms that it was not trained
on. `depth`: |log(depth / exact depth)| per pixel, median and 95th percentile. `rotation` and
`place`: error of the newest camera's rotation in degrees and of its position in per cent of the
median depth, in the worst window. `abs_rel`: AbsRel against the room's true depth after one scale
per window. The first row is exact fp32 itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import results_file
import torch
from scipy.spatial.transform import Rotation

from da3_ros.inference import InferenceConfig, InferenceSession, open_device
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Prediction, View, Window

SIZE, WALKS, VIEWS = (224, 168), ("loop", "straight", "handheld"), 8
ON_CPU = ("off", "bfloat16", "float16", "int8")
ON_CUDA = ("off", "bfloat16", "float16")


def windows(rooms: int) -> list[tuple[Window, np.ndarray]]:
    """Returns a window per room with its true depth [N, h, w], metres."""
    found = []
    for room in range(rooms):
        camera = SyntheticCamera(
            seed=500 + room, size=SIZE, walk=WALKS[room % 3], frames=3 * VIEWS
        )
        frames = list(camera)[::3]
        views = tuple(View(i, f.stamp_ns, f.image) for i, f in enumerate(frames))
        found.append((Window(room, views, VIEWS), np.stack([f.depth for f in frames])))
    return found


def predictions(device: str, precision: str, given: list[Window]) -> tuple[str, list[Prediction]]:
    """Returns the precision that a session uses after its own check, and its predictions."""
    config = InferenceConfig(
        "da3-tiny",
        "",
        device,
        "torch",
        mixed_precision=precision,
        process_res=SIZE[0],
        compile="off",
    )
    session = InferenceSession(config)
    return session.status().precision, [session.infer(window) for window in given]


def exact(device: str, given: list[Window]) -> list[Prediction]:
    """Returns the predictions in fp32 without TF32."""
    config = InferenceConfig(
        "da3-tiny", "", device, "torch", mixed_precision="off", process_res=SIZE[0]
    )
    session = InferenceSession(config)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return [session.infer(window) for window in given]


def row(
    name: str, ran: str, found: list[Prediction], right: list[Prediction], truth: list
) -> dict:
    """Returns a row of the table: errors of ``found`` against ``right`` and ``truth``."""
    logs, turns, places, errors = [], [], [], []
    for ours, theirs, true in zip(found, right, truth, strict=True):
        logs.append(np.abs(np.log(ours.depth / theirs.depth)).ravel())
        between = ours.T_window_camera[-1, :3, :3].T @ theirs.T_window_camera[-1, :3, :3]
        turns.append(np.degrees(Rotation.from_matrix(between).magnitude()))
        moved = ours.T_window_camera[-1, :3, 3] - theirs.T_window_camera[-1, :3, 3]
        places.append(100 * np.linalg.norm(moved) / np.median(theirs.depth))
        known = np.isfinite(true) & (true > 0)
        ratio = np.median(true[known] / ours.depth[known])
        errors.append(np.mean(np.abs(ratio * ours.depth[known] - true[known]) / true[known]))
    all_logs = np.concatenate(logs)
    return {
        "mixed_precision": name, "ran": ran,
        "depth_median_percent": round(100 * float(np.median(all_logs)), 4),
        "depth_p95_percent": round(100 * float(np.percentile(all_logs, 95)), 4),
        "rotation_deg": round(float(max(turns)), 4),
        "place_percent": round(float(max(places)), 4),
        "abs_rel": round(float(np.mean(errors)), 4),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument("--rooms", type=int, default=6, help="one window each")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    pairs = windows(options.rooms)
    given, truth = [w for w, _ in pairs], [t for _, t in pairs]
    right = exact(options.device, given)
    rows = [row("exact fp32", "float32", right, right, truth)]
    for precision in ON_CUDA if options.device == "cuda" else ON_CPU:
        ran, found = predictions(options.device, precision, given)
        rows.append(row(precision, ran, found, right, truth))
    print("  ".join(rows[0]))
    for found in rows:
        print("  ".join(f"{value!s:>{len(key)}}" for key, value in found.items()))
    result = {"device": options.device, "rooms": options.rooms, "rows": rows}
    results_file.write(options.out, result, open_device(options.device).name())


if __name__ == "__main__":
    main()
