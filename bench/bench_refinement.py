#!/usr/bin/env python3
"""What the refinement by feature tracks changes: every table has it off and on, in one run.

    python bench/bench_refinement.py rooms --rooms 13 --out FILE
    python bench/bench_refinement.py drift --frames 500 --out FILE
    python bench/bench_refinement.py cost --out FILE

rooms: da3-tiny in rendered rooms that it was not trained on, with the demo's settings. ATE after a
Sim(3) fit, AbsRel after one scale, median distance of the cloud's points to the room's surfaces
(aligned by the path), mean rotation error from frame to frame of ``~/odom``.
drift: exact windows with noise that is common to neighbouring pixels and grows along each window.
cost: milliseconds of features, matching and solving, and their share of a window of da3-small.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import arguments
import bench_covariance
import numpy as np
import results_file

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.inference.random_windows import slide
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.demo_settings import FRAMES, PACE, PARAMETERS, RATE_HZ, SEED, SIZE
from da3_ros.synthetic.evaluation import FramePair, measure, trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, TrackedFrame

WALKS = ("loop", "strafe", "straight", "spot")
FIRST_ROOM = 100  # rooms of smaller seeds than the training's are held out
CORRELATED = Noise(
    independent=0.01, smooth=0.05, per_frame=0.02, rotation_deg=0.2, translation=0.005,
    bend_deg=0.5, bend=0.01,
)  # fmt: skip


def tracked(
    values: dict[str, Any], camera: SyntheticCamera, frames: Sequence[Any], session: Any = None
) -> tuple[Pipeline, list[TrackedFrame]]:
    """Runs frames through a new pipeline; returns it and the tracked frames."""
    config = config_from_parameters(values)
    pipeline = Pipeline(config, *(open_networks(config) if session is None else (session,)))
    out: list[TrackedFrame] = []
    for f in frames:
        out += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    return pipeline, out + list(pipeline.flush())


def rotation_error_deg(poses: Array, true: Array) -> float:
    """Returns the mean rotation error from frame to frame, degrees."""

    def steps(T: Array) -> Array:
        return np.array([(invert_pose(a) @ b)[:3, :3] for a, b in itertools.pairwise(T)])

    cosine = (np.einsum("nij,nij->n", steps(poses), steps(true)) - 1) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).mean())


def room_row(walk: str, seed: int, refine: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the errors in one room."""
    camera = SyntheticCamera(
        seed, options.size, walk=walk, frames=options.frames, rate_hz=RATE_HZ, pace=PACE
    )
    frames = list(camera)
    values = PARAMETERS | {"backend": options.backend, "refinement.enabled": refine}
    values |= {"process_res": options.process_res}
    pipeline, results = tracked(values, camera, frames)
    true = {f.stamp_ns: f for f in frames}
    poses = {p.stamp_ns: p.T_world_camera for p in pipeline.poses()}
    pairs = [
        FramePair(r.depth_m, poses[r.stamp_ns], true[r.stamp_ns].depth,
                  true[r.stamp_ns].T_world_camera)
        for r in results
    ]  # fmt: skip
    found = measure(camera.room, pairs, pipeline.map.cloud().xyz)
    odom = np.array([r.T_odom_world @ r.T_world_camera for r in results])
    rotation = rotation_error_deg(odom, np.array([p.T_room_camera for p in pairs]))
    return {
        "walk": walk, "room": seed, "refined": refine, "path_m": found.path_m,
        "ate_m": found.ate_m, "abs_rel": found.depth.abs_rel, "cloud_m": found.cloud.median_m,
        "cloud_by_depth_m": found.cloud_by_depth.median_m, "rotation_deg": rotation,
        "windows_refined": pipeline.counters["windows_refined"],
    }  # fmt: skip


def room_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room, and refinement off and on."""
    rooms = [SEED, *range(FIRST_ROOM, FIRST_ROOM + options.rooms - 1)]
    for walk in options.walks:
        for seed in rooms:
            for refine in (False, True):
                yield room_row(walk, seed, refine, options)


def room_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means per walk, off and on, and over all walks with a way."""
    table = []
    keys = ("ate_m", "abs_rel", "cloud_m", "cloud_by_depth_m", "rotation_deg")
    walks = list(dict.fromkeys(r["walk"] for r in rows))
    moving = [w for w in walks if w != "spot"]
    for name, some in [(w, [w]) for w in walks] + ([("moving", moving)] if moving else []):
        for refine in (False, True):
            chosen = [r for r in rows if r["walk"] in some and r["refined"] == refine]
            means = {k: float(np.mean([r[k] for r in chosen])) for k in keys}
            table.append({"walk": name, "refined": refine} | means)
        off, on = table[-2:]
        table.append({"walk": name, "refined": "ratio"} | {k: off[k] / on[k] for k in keys})
    return table


def drift_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and seed, off and on: errors of a long walk of noisy windows."""
    for walk in options.walks:
        camera = SyntheticCamera(3, options.size, walk=walk, frames=options.frames)
        frames = list(camera)
        true = np.array([f.T_world_camera for f in frames])
        for seed in range(options.runs):
            for refine in (False, True):
                session = TruthSession(frames, seed=seed, noise=CORRELATED)
                values = {
                    "model": "da3-tiny", "loop.enabled": False, "map.enabled": False,
                    "refinement.enabled": refine, "process_res": max(options.size),
                }  # fmt: skip
                _, results = tracked(values, camera, frames, session)
                scale = [
                    np.nanmedian(f.depth / r.depth_m) for r, f in zip(results, frames, strict=True)
                ]
                unit = float(np.exp(np.random.default_rng(seed).normal(0, 0.5)))
                error = bench_covariance.errors(results, frames, unit)
                poses = np.array([r.T_odom_world @ r.T_world_camera for r in results])
                yield {
                    "walk": walk, "seed": seed, "refined": refine,
                    "ate_m": trajectory_error(poses, true),
                    "scale_drift": float(np.std(np.log(scale))),
                    "nees": float(bench_covariance.nees(results, error)[5:].mean()),
                    "rotation_deg": rotation_error_deg(poses, true),
                }  # fmt: skip


def cost_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields milliseconds of the refinement per new frame, and of a window of the network."""
    camera = SyntheticCamera(
        SEED, options.size, walk="loop", frames=options.frames, rate_hz=RATE_HZ, pace=PACE
    )
    frames = list(camera)
    values = PARAMETERS | {"backend": options.backend, "window.size": 8}
    pipeline = Pipeline(config_from_parameters(values), TruthSession(frames))
    refiner = pipeline._steps.refinement.refiner
    times: dict[str, list[float]] = {"features": [], "matching": [], "solving": [], "all": []}

    def timed(owner: Any, name: str, key: str) -> None:
        real = getattr(owner, name)

        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            done = real(*arguments)
            times[key].append(1e3 * (time.perf_counter() - start))
            return done

        setattr(owner, name, run)

    timed(refiner, "detector", "features")
    timed(refiner.graph, "add", "matching")
    timed(refiner.graph, "refine", "solving")
    timed(refiner, "refine", "all")
    for f in frames:
        list(pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)))
    config = config_from_parameters({
        "model": options.model, "process_res": options.network_size[0],
        "backend": options.backend, "checkpoint": "random",
    })  # fmt: skip
    session, _ = open_networks(config)
    session.fit(options.network_size, 8, 1)
    network = []
    start = time.perf_counter()
    for _ in slide(session, 8, 1, 5):
        network.append(1e3 * (time.perf_counter() - start))
        start = time.perf_counter()
    del network[0]  # computes all views
    full = {key: float(np.median(found[8:])) for key, found in times.items()}
    yield full | {
        "network": float(np.median(network)), "share": full["all"] / float(np.median(network)),
        "tracks": refiner.tracks.count,
    }  # fmt: skip


def main() -> int:
    """Prints the table, and writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=("rooms", "drift", "cost"))
    parser.add_argument("--walks", nargs="+", choices=WALKS, default=None)
    parser.add_argument("--rooms", type=int, default=13)
    parser.add_argument("--frames", type=int, default=None)
    parser.add_argument("--runs", type=int, default=3, help="seeds of noise (drift)")
    parser.add_argument("--size", type=arguments.size, default=None, help="camera image, WxH")
    parser.add_argument("--process-res", type=int, default=PARAMETERS["process_res"])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--model", default="da3-small", help="network to compare with (cost)")
    parser.add_argument("--network-size", type=arguments.size, default=(504, 378))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.walks is None:
        options.walks = list(WALKS if options.table == "rooms" else WALKS[:3])
    if options.frames is None:
        options.frames = 500 if options.table == "drift" else FRAMES
    if options.size is None:
        options.size = (252, 196) if options.table == "drift" else SIZE
    rows = []
    make = {"rooms": room_rows, "drift": drift_rows, "cost": cost_rows}[options.table]
    for row in make(options):
        rows.append(row)
        print("  ".join(f"{k} {_text(v)}" for k, v in row.items()), flush=True)
    found: dict[str, Any] = {"rows": rows}
    if options.table == "rooms":
        found["table"] = room_table(rows)
        for row in found["table"]:
            print("  ".join(f"{k} {_text(v)}" for k, v in row.items()))
    results_file.write(options.out, found, "cpu")
    return 0


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
