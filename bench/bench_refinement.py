#!/usr/bin/env python3
"""What the refinement by feature tracks changes: every table has it off and on, in one run.

    python bench/bench_refinement.py rooms --rooms 13 --out FILE
    python bench/bench_refinement.py drift --frames 500 --out FILE
    python bench/bench_refinement.py recordings --data DIR --runs 20 --out FILE
    python bench/bench_refinement.py focal --data DIR --out FILE
    python bench/bench_refinement.py lens --out FILE
    python bench/bench_refinement.py faults --out FILE
    python bench/bench_refinement.py detectors --data DIR --out FILE
    python bench/bench_refinement.py cost --out FILE
    python bench/bench_refinement.py ahead --out FILE

rooms: da3-tiny in rendered rooms that it was not trained on, with the demo's settings. ATE after a
Sim(3) fit, AbsRel after one scale, median distance of the cloud's points to the room's surfaces
(aligned by the path), mean rotation error from frame to frame of ``~/odom``.
drift: exact windows with noise that is common to neighbouring pixels and grows along each window.
recordings: kitti_stereo_10 and redkitchen_24 in DIR, with their depth and poses plus noise as the
network, and with da3-tiny.
focal: without camera_info, errors of the focal length and whether tracks determine it.
lens: camera_infos that do not fit the images, with and without the correction by keyframes.
faults: images or matches with a fault; "worse" names errors that grow by more than 5 % and 5 mm,
0.05 degrees or 0.005 of scale.
detectors: right matches, their spread over the image, and milliseconds on one thread. In rooms a
match is right within 2 pixels of the truth, in recordings within 1 pixel of an epipolar geometry.
cost: milliseconds of features, matching and solving, and their share of a window of da3-small.
ahead: time from frame to frame with the detection of features beside the network and beside the
refinement, and without. The network is a device that is waited for (--wait-ms, 14: da3-base on an
H200); both pipelines take turns.

Where means are compared, "ratio" is off over on: more than 1 is better with refinement.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arguments
import bench_covariance
import numpy as np
import refinement_detectors
import refinement_faults
import refinement_focal
import refinement_lens
import refinement_recordings
import results_file
from refinement_runs import (
    CORRELATED,
    WALKS,
    as_walk,
    compared,
    room_camera,
    room_seeds,
    rotation_error_deg,
    tracked,
)

from da3_ros.config import config_from_parameters
from da3_ros.inference import open_networks
from da3_ros.inference.random_windows import slide
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.demo_settings import FRAMES, PARAMETERS, SEED, SIZE
from da3_ros.synthetic.evaluation import FramePair, measure, trajectory_error
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, Prediction, Window

ROOM_ERRORS = ("ate_m", "abs_rel", "cloud_m", "cloud_by_depth_m", "rotation_deg")
MOVING = WALKS[:3]
DEFAULTS: dict[str, dict[str, Any]] = {
    "rooms": {"rooms": 13, "process_res": PARAMETERS["process_res"]},
    "drift": {"frames": 500, "runs": 3, "size": (252, 196), "walks": MOVING},
    "recordings": {"runs": 20},
    "focal": {"rooms": 3},
    "lens": {"rooms": 3, "walks": MOVING},
    "faults": {"rooms": 3, "walks": MOVING},
    "detectors": {"rooms": 3, "frames": 12},
    "cost": {},
    "ahead": {},
}
USUAL: dict[str, Any] = {"frames": FRAMES, "size": SIZE, "walks": WALKS, "rooms": 1, "runs": 1}


def room_row(walk: str, seed: int, refine: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the errors in one room."""
    camera = room_camera(walk, seed, options.size, options.frames)
    frames = list(camera)
    values = PARAMETERS | {"backend": options.backend, "refinement.enabled": refine}
    values |= {"process_res": options.process_res}
    pipeline, results = tracked(values, as_walk(walk, camera, frames).frames)
    true = {f.stamp_ns: f for f in frames}
    poses = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    results = [r for r in results if r.stamp_ns in poses]  # others are where nobody knows
    pairs = [
        FramePair(r.depth_m, poses[r.stamp_ns], true[r.stamp_ns].depth,
                  true[r.stamp_ns].T_room_camera)
        for r in results
    ]  # fmt: skip
    found = measure(camera.room, pairs, pipeline.map.cloud().xyz)
    odom = np.array([r.T_odom_map @ r.T_map_camera for r in results])
    rotation = rotation_error_deg(odom, np.array([p.T_room_camera for p in pairs]))
    return {
        "walk": walk, "room": seed, "refined": refine, "path_m": found.path_m,
        "ate_m": found.ate_m, "abs_rel": found.depth.abs_rel, "cloud_m": found.cloud.median_m,
        "cloud_by_depth_m": found.cloud_by_depth.median_m, "rotation_deg": rotation,
        "windows_refined": pipeline.counters["windows_refined"], "posed": len(results),
    }  # fmt: skip


def room_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room, and refinement off and on."""
    for walk in options.walks:
        for seed in room_seeds(options.rooms):
            for refine in (False, True):
                yield room_row(walk, seed, refine, options)


def room_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means per walk, off and on, and over all walks with a way."""
    moving = [r | {"walk": "moving"} for r in rows if r["walk"] != "spot"]
    return compared(rows + moving, ("walk",), ROOM_ERRORS)


def drift_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and seed, off and on: errors of a long walk of noisy windows."""
    for walk in options.walks:
        camera = SyntheticCamera(3, options.size, walk=walk, frames=options.frames)
        frames = list(camera)
        true = np.array([f.T_room_camera for f in frames])
        for seed in range(options.runs):
            for refine in (False, True):
                session = TruthSession(frames, seed=seed, noise=CORRELATED)
                values = {
                    "model": "da3-tiny", "loop.enabled": False, "map.enabled": False,
                    "refinement.enabled": refine, "process_res": max(options.size),
                }  # fmt: skip
                _, results = tracked(values, as_walk(walk, camera, frames).frames, session)
                scale = [
                    np.nanmedian(f.depth / r.depth_m) for r, f in zip(results, frames, strict=True)
                ]
                unit = float(np.exp(np.random.default_rng(seed).normal(0, 0.5)))
                error = bench_covariance.errors(results, frames, unit)
                poses = np.array([r.T_odom_map @ r.T_map_camera for r in results])
                yield {
                    "walk": walk, "seed": seed, "refined": refine,
                    "ate_m": trajectory_error(poses, true),
                    "scale_drift": float(np.std(np.log(scale))),
                    "nees": float(bench_covariance.nees(results, error)[5:].mean()),
                    "rotation_deg": rotation_error_deg(poses, true),
                }  # fmt: skip


def cost_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields milliseconds of the refinement per new frame, and of a window of the network."""
    camera = room_camera("loop", SEED, options.size, options.frames)
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
    pipeline.refinement.begin = lambda images: None  # type: ignore[method-assign]  # one by one
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
    session.memory.fit(options.network_size, 8, 1)
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


class WaitingSession(TruthSession):
    """The truth after so many milliseconds in which this process has nothing to do, as while a
    window runs on a GPU."""

    wait_ms, begin = 0.0, staticmethod(lambda: None)

    def infer(self, window: Window) -> Prediction:
        """As ``TruthSession``; ``begin`` is called while the window runs."""
        found = super().infer(window)
        end = time.perf_counter() + self.wait_ms / 1e3
        self.begin()
        time.sleep(max(0.0, end - time.perf_counter()))
        return found


def ahead_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the time of a frame with features that are detected ahead, and without."""
    camera = room_camera("loop", SEED, options.size, options.frames)
    true, times = list(camera), dict[str, list[float]]()
    given = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in true]
    runs = {}
    for name in ("off", "on"):
        session = WaitingSession(true)
        session.wait_ms = options.wait_ms
        values = PARAMETERS | {"window.size": 8, "dense.enabled": False}
        pipeline = Pipeline(config_from_parameters(values), session)
        if name == "off":
            pipeline.refinement.begin = lambda images: None  # type: ignore[method-assign]
        ready = [pipeline.builder.prepare(frame) for frame in given]
        runs[name], times[name] = (session, pipeline, ready), []
    for i in range(len(given)):
        for name, (session, pipeline, ready) in runs.items():
            session.begin = lambda p=pipeline, r=ready[i + 1 : i + 2]: [p.begin(f) for f in r]
            start = time.perf_counter()
            list(pipeline.push(ready[i]))
            times[name].append(1e3 * (time.perf_counter() - start))
    median = {name: float(np.median(found[8:])) for name, found in times.items()}
    yield {"wait_ms": options.wait_ms, "off_ms": median["off"], "on_ms": median["on"],
           "times": median["off"] / median["on"]}  # fmt: skip


TABLES = {
    "rooms": (room_rows, room_table),
    "drift": (drift_rows, None),
    "recordings": (refinement_recordings.rows, refinement_recordings.table),
    "focal": (refinement_focal.rows, refinement_focal.table),
    "lens": (refinement_lens.rows, refinement_lens.table),
    "faults": (refinement_faults.rows, refinement_faults.table),
    "detectors": (refinement_detectors.rows, refinement_detectors.table),
    "cost": (cost_rows, None),
    "ahead": (ahead_rows, None),
}


def parsed() -> argparse.Namespace:
    """Returns the options; each table has its own defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    detectors = tuple(refinement_detectors.detectors(1))
    faults = tuple(refinement_faults.FAULTS)
    networks = ("truth", "da3-tiny")
    parser.add_argument("table", choices=tuple(TABLES))
    parser.add_argument("--walks", nargs="+", choices=WALKS)
    parser.add_argument("--rooms", type=int)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--runs", type=int, help="seeds of noise (drift, recordings, faults)")
    parser.add_argument("--size", type=arguments.size, help="camera image, WxH")
    parser.add_argument("--data", type=Path, help="folder with the real recordings")
    parser.add_argument("--networks", nargs="+", choices=networks, default=networks)
    parser.add_argument("--factors", nargs="+", type=float, default=(0.85, 0.93, 1.1, 1.2),
                        help="errors of the predicted focal length (focal)")  # fmt: skip
    parser.add_argument("--faults", nargs="+", choices=faults, default=faults)
    parser.add_argument("--detectors", nargs="+", choices=detectors, default=detectors)
    parser.add_argument("--features", type=int, default=400, help="per image (detectors)")
    parser.add_argument("--process-res", type=int, help="size of the network's images")
    parser.add_argument("--wait-ms", type=float, default=14.0, help="of a window (ahead)")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--model", default="da3-small", help="network to compare with (cost)")
    parser.add_argument("--network-size", type=arguments.size, default=(504, 378))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name, value in (USUAL | DEFAULTS[options.table]).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> int:
    """Prints the table, and writes JSON."""
    options = parsed()
    make, summary = TABLES[options.table]
    rows = []
    for row in make(options):
        rows.append(row)
        _print(row)
    found: dict[str, Any] = {"rows": rows}
    if summary is not None:
        print()
        found["table"] = summary(rows)
        for row in found["table"]:
            _print(row)
    results_file.write(options.out, found, "cpu")
    return 0


def _print(row: dict[str, Any]) -> None:
    print("  ".join(f"{k} {_text(v)}" for k, v in row.items() if v != ""), flush=True)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
