#!/usr/bin/env python3
"""Obstacles and free space in rendered rooms: missed and false cells of Nav2's costmap, and time.

The costmap is the model of Nav2's code in test/support/costmap.py with the parameters that
`da3_ros nav2-config` writes. Transforms are exact, so that errors are those of depth alone. Of a
network there are two rows more: with each frame's own scale known, and the grid of the map, by its
own poses and the depth that its keyframes have in the end.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import arguments
import numpy as np
import results_file
from scipy.spatial.transform import Rotation

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from support.driving import Driven, DrivenRoom, drive, robots_frames, total
from support.solids import K, Solid, camera_at, depth_of, in_level

from da3_ros.config import ObstacleConfig, PipelineConfig, config_from_parameters
from da3_ros.inference.factory import open_networks
from da3_ros.inference.interfaces import Session
from da3_ros.navigation.sighting import floor_height, sight
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.demo_settings import PACE, RATE_HZ
from da3_ros.synthetic.evaluation import resize_nearest
from da3_ros.synthetic.odometry import base_below
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame, TrackedFrame

NOISES = {
    "exact": Noise(), "pixels 2 %": Noise(independent=0.02), "smooth 2 %": Noise(smooth=0.02),
    "frames 2 %": Noise(per_frame=0.02),
}  # fmt: skip
SCALED, GRID = "network, frames scaled", "network, grid"


def settings(options: argparse.Namespace, model: str) -> PipelineConfig:
    """Returns the parameters of a run; ``model``: truth, or a network."""
    values: dict[str, Any] = {
        "model": "da3-tiny", "window.size": 6, "process_res": options.process_res,
        "scale.source": "odometry",
    }  # fmt: skip
    if model == "truth":
        values |= {"checkpoint": "random", "refinement.enabled": False, "dense.enabled": False,
                   "scale.source": "fixed", "hold_when_blind": False}  # fmt: skip
    return config_from_parameters({**values, **dict(options.parameters)})


def with_known_scale(
    config: PipelineConfig, session: Session, given: Sequence[Frame],
    truth: Sequence[SyntheticFrame],
) -> PipelineConfig:  # fmt: skip
    """Returns the parameters with the true metres per unit of exact windows, which keep the unit
    of the first."""
    true, logs = {f.stamp_ns: f.depth for f in truth}, list[float]()
    pipeline = Pipeline(config, session)
    for frame in given:
        for one in pipeline.push(frame):
            exact = resize_nearest(true[one.stamp_ns], one.depth_m.shape)
            logs.append(float(np.nanmedian(np.log(exact / one.depth_m)[np.isfinite(exact)])))
        if logs:
            break
    factor = float(np.exp(np.median(logs)))
    return replace(config, scale=replace(config.scale, factor=factor))


def tilted(pitch_deg: float) -> Array:
    """Returns the pose [4, 4] of a camera that looks down by an angle, on a level one."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("x", -pitch_deg, degrees=True).as_matrix()
    return T


def open_network(config: PipelineConfig) -> Session:
    """Opens the network of a configuration."""
    return open_networks(config)[0]


def with_own_scale(frame: TrackedFrame, true: SyntheticFrame) -> TrackedFrame:
    """Returns a frame whose depth has the true scale as a whole."""
    exact = resize_nearest(true.depth, frame.depth_m.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(exact / frame.depth_m)
    factor = np.float32(np.exp(np.median(logs[np.isfinite(logs)])))
    return replace(frame, depth_m=frame.depth_m * factor)


def driven(
    options: argparse.Namespace, model: str, name: str, noise: Noise | None
) -> list[dict[str, Any]]:
    """Returns rows: the shares over all rooms and walks, by a name of the errors of depth."""
    config, found = settings(options, model), defaultdict[str, list[Driven]](list)
    for walk in options.walks:
        for seed in options.seeds:
            camera = SyntheticCamera(
                seed, options.size, walk=walk, frames=options.frames, rate_hz=RATE_HZ, pace=PACE,
                mount=tilted(options.pitch),
            )  # fmt: skip
            frames = list(camera)
            given = [
                replace(frame, T_prior_camera=one.T_room_camera)  # exact odometry
                for frame, one in zip(robots_frames(camera, frames), frames, strict=True)
            ]
            if model == "truth":
                open_session = partial(TruthSession, frames, noise=noise)
                known = with_known_scale(config, open_session(), given, frames)
            else:
                open_session, known = partial(open_network, config), config
            height_m = float(frames[0].T_room_camera[2, 3])
            room, pipeline = (
                DrivenRoom(camera.room, known, height_m),
                Pipeline(known, open_session()),
            )
            found[name].append(drive(room, pipeline, given, frames))
            if model != "truth":
                found[GRID].append(of_grid(room, pipeline, frames[0]))
                again = DrivenRoom(camera.room, known, height_m)
                scaled = Pipeline(known, open_session())
                found[SCALED].append(drive(again, scaled, given, frames, change=with_own_scale))
            if options.verbose:
                for what, ways in found.items():
                    results_file.show({"walk": walk, "room": seed, "depth": what}
                                      | ways[-1].shares())  # fmt: skip
    return [row_of(what, ways) for what, ways in found.items()]


def of_grid(room: DrivenRoom, pipeline: Pipeline, first: SyntheticFrame) -> Driven:
    """Returns the counts of the grid of a way's map, which begins at the base below the first
    camera."""
    list(pipeline.flush())
    pipeline.scene_map.finish_depth()
    grid = pipeline.scene_map.occupancy(finished=True)
    assert grid is not None
    return room.result_of(grid, base_below(first.T_room_camera))


def row_of(name: str, ways: Sequence[Driven]) -> dict[str, Any]:
    """Returns the shares over all ways."""
    both = total(ways)
    counts = {"rooms": len(ways), "seen": both.seen, "marked": both.marked}
    return {"depth": name} | counts | both.shares()


THINGS = {  # at distance x: lowest and highest corner, metres
    "box, 5 cm high": lambda x: Solid((x, -0.2, 0), (x + 0.2, 0.2, 0.05)),
    "box, 10 cm high": lambda x: Solid((x, -0.2, 0), (x + 0.2, 0.2, 0.10)),
    "box, 15 cm high": lambda x: Solid((x, -0.2, 0), (x + 0.2, 0.2, 0.15)),
    "box, 20 cm high": lambda x: Solid((x, -0.2, 0), (x + 0.2, 0.2, 0.20)),
    "leg, 0.5 cm wide": lambda x: Solid((x, 0, 0), (x + 0.005, 0.005, 0.7)),
    "leg, 1 cm wide": lambda x: Solid((x, 0, 0), (x + 0.01, 0.01, 0.7)),
    "leg, 2 cm wide": lambda x: Solid((x, 0, 0), (x + 0.02, 0.02, 0.7)),
    "leg, 3 cm wide": lambda x: Solid((x, 0, 0), (x + 0.03, 0.03, 0.7)),
    "table top at 70 cm": lambda x: Solid((x, -0.5, 0.68), (x + 0.6, 0.5, 0.72)),
}  # fmt: skip
RAMPS_DEG = (3, 5, 8, 10, 15)  # that begin at 1 m
CAMERAS = {"0.3 m, level": camera_at(0.3), "1 m, 15 degrees down": camera_at(1.0, 15.0)}
TIMES = 5  # noisy depths of each thing
FEWEST = 3  # points that make it seen


def things() -> list[dict[str, Any]]:
    """Returns from where to where, metres, things on a floor are marked, with noise of 2 %."""
    rows = []
    for camera, T in CAMERAS.items():
        for name, solid in THINGS.items():
            seen = [x for x in np.arange(0.5, 3.95, 0.1) if _always_marked(T, solid(x), x)]
            rows.append({"camera": camera, "thing": name, "seen_m": _ends(seen)})
        for tilt in RAMPS_DEG:
            marks = _marks(T, Solid((1.0, -2, -0.01), (4, 2, 0), tilt_deg=tilt), 0)
            seen = [float(np.percentile(marks[:, 0], 1)), 4.0] if len(marks) > FEWEST else []
            name = f"ramp of {tilt} degrees from 1 m"
            rows.append({"camera": camera, "thing": name, "seen_m": _ends(seen)})
    return rows


def _always_marked(T: Array, solid: Solid, x: float) -> bool:
    marks = (_marks(T, solid, seed) for seed in range(TIMES))
    return all((np.abs(points[:, 0] - x) < 0.4).sum() >= FEWEST for points in marks)


def _marks(T: Array, solid: Solid, seed: int) -> Array:
    depth = depth_of(T, [solid])
    depth = depth * np.exp(0.02 * np.random.default_rng(seed).normal(size=depth.shape))
    return in_level(sight(depth.astype(np.float32), K, T, ObstacleConfig()).marks, T)


def _ends(seen: Sequence[float]) -> list[float]:
    return [round(float(x), 1) for x in (min(seen), max(seen))] if seen else []


def timed(size: tuple[int, int]) -> dict[str, Any]:
    """Returns the time of judging a frame of a size, ms."""
    camera = SyntheticCamera(1, size, frames=2)
    frame, config = camera[0], PipelineConfig()
    T = next(robots_frames(camera, [frame])).T_level_camera
    assert T is not None
    depth, out = frame.depth.astype(np.float32), []
    for _ in range(50):
        begin = time.perf_counter()
        sight(depth, frame.K, T, config.obstacles, floor_height(config))
        out.append(1e3 * (time.perf_counter() - begin))
    return {"size": f"{size[0]}x{size[1]}", "median_ms": float(np.median(out)),
            "largest_ms": float(max(out))}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="truth", choices=("truth", "da3-tiny"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102])
    parser.add_argument("--walks", nargs="+", default=["loop", "straight"])
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--pitch", type=float, default=20.0,
                        help="of the camera, downwards, degrees: a level one loses low things "
                        "that leave its view")  # fmt: skip
    parser.add_argument("--size", type=arguments.size, default=(504, 378), metavar="WxH")
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--set", dest="parameters", nargs=2, action="append", default=[],
                        metavar=("NAME", "VALUE"), help="another parameter")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="a line per walk")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, noise in NOISES.items() if options.model == "truth" else (("network", None),):
        made = driven(options, options.model, name, noise)
        rows += made
        for row in made:
            results_file.show(row)
    found: dict[str, Any] = {"rows": rows}
    if options.model == "truth":
        found |= {"time": timed((504, 378)), "things": things()}
        for row in (found["time"], *found["things"]):
            results_file.show(row)
    results_file.write(options.output, found, "cpu")


if __name__ == "__main__":
    main()
