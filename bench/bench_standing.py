#!/usr/bin/env python
"""What drifts while a robot stands: a walk through a room with ten minutes' stand in its middle.

    python bench/bench_standing.py [--frames 600] [--out results.json]

Exact windows with noise of their own, or those of da3-tiny; images with noise; with and without
refinement; with and without the held pose. Prints how far and by which angle the pose moves while
the robot stands, by how much the scene's unit differs after the stand, keyframes that the stand
made, and the time per frame.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import results_file
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame

SIZE, RATE_HZ, DRIVE = (224, 168), 1.0, 20
GOOD = Noise(independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.2, translation=0.003)
SETTINGS = {
    "model": "da3-tiny", "process_res": SIZE[0], "dense.enabled": False, "map.remove_movers": False
}  # fmt: skip


def seen(room: int, frames: int) -> tuple[SyntheticCamera, list]:
    """Returns a camera and its frames: a walk that stands for ``frames`` in its middle."""
    way = SyntheticCamera(room, SIZE, walk="loop", frames=2 * DRIVE, rate_hz=4.0).T_room_camera
    camera = SyntheticCamera(room, SIZE, walk="loop", frames=2, rate_hz=RATE_HZ, noise_sigma=2.0)
    stand = np.repeat(way[DRIVE - 1 : DRIVE], frames, axis=0)
    camera.T_room_camera = np.concatenate((way[:DRIVE], stand, way[DRIVE:]))
    return camera, list(camera)


def measure(room: int, frames: int, *, exact: bool, refined: bool, held: bool) -> dict:
    """Returns what has drifted in one run."""
    camera, true = seen(room, frames)
    values = {**SETTINGS, "refinement.enabled": refined}
    session = TruthSession(true, seed=1, noise=GOOD) if exact else None
    pipeline = Pipeline(config_from_parameters(values), session)
    if not held:
        pipeline._steps.standing.holds = lambda new: False  # as before there were held poses
    start, out = time.perf_counter(), []
    for f in true:
        out += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    seconds = time.perf_counter() - start
    stand = out[DRIVE + 2 : DRIVE + frames]
    relative = [invert_pose(stand[0].T_map_camera) @ r.T_map_camera for r in stand]
    depth = float(np.nanmedian(stand[0].depth_m))
    lengths = [
        [np.linalg.norm(b - a) for a, b in itertools.pairwise(p)]
        for p in (
            [r.T_map_camera[:3, 3] for r in out], [f.T_room_camera[:3, 3] for f in true]
        )
    ]  # fmt: skip
    units = [sum(lengths[0][part]) / sum(lengths[1][part]) for part in (
        slice(0, DRIVE - 1), slice(DRIVE + frames, None)
    )]  # fmt: skip
    return {
        "room": room, "windows": "exact with noise" if exact else "da3-tiny",
        "refined": refined, "held": held,
        "position_of_depth": max(float(np.linalg.norm(T[:3, 3])) for T in relative) / depth,
        "rotation_deg": max(
            float(np.degrees(Rotation.from_matrix(T[:3, :3]).magnitude())) for T in relative
        ),
        "unit_change": units[1] / units[0] - 1,
        "keyframes": sum(r.keyframe for r in stand), "seconds_per_frame": seconds / len(out),
    }  # fmt: skip


def main() -> None:
    """Runs all variants and prints a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=600, help="frames of the stand, at 1 Hz")
    parser.add_argument("--rooms", type=int, nargs="+", default=[3])
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    rows = []
    print("| windows | refinement | held | position | rotation | unit | keyframes | s/frame |")
    for room in options.rooms:
        for exact in (True, False):
            for refined in (False, True):
                for held in (False, True):
                    row = measure(room, options.frames, exact=exact, refined=refined, held=held)
                    rows.append(row)
                    print(
                        f"| {row['windows']} | {'on' if refined else 'off'} | "
                        f"{'yes' if held else 'no'} | {100 * row['position_of_depth']:.2f} % | "
                        f"{row['rotation_deg']:.2f} | {100 * row['unit_change']:+.1f} % | "
                        f"{row['keyframes']} | {row['seconds_per_frame']:.3f} |",
                        flush=True,
                    )
    results_file.write(options.out, {"rows": rows}, "cpu")


if __name__ == "__main__":
    main()
