#!/usr/bin/env python3
"""Obstacles and free space in rendered rooms: missed and false cells of Nav2's costmap, and time.

The costmap is the model of Nav2's code in test/support/costmap.py with the parameters that
`da3_ros nav2-config` writes. Transforms are exact, so that errors are those of depth alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import arguments
import numpy as np
import results_file
from refinement_runs import room_camera

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

from support.driving import DrivenRoom, drive, robots_frames, total

from da3_ros.config import PipelineConfig, config_from_parameters
from da3_ros.inference.factory import open_networks
from da3_ros.inference.interfaces import Session
from da3_ros.navigation.sighting import floor_height, sight
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.evaluation import resize_nearest
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame

NOISES = {
    "exact": Noise(), "pixels 2 %": Noise(independent=0.02), "smooth 2 %": Noise(smooth=0.02),
    "frames 2 %": Noise(per_frame=0.02),
}  # fmt: skip


def settings(options: argparse.Namespace, model: str) -> PipelineConfig:
    """Returns the parameters of a run; ``model``: truth, or a network."""
    values: dict[str, Any] = {
        "model": "da3-tiny", "window.size": 6, "process_res": options.process_res,
        "scale.source": "fixed",
    }  # fmt: skip
    if model == "truth":
        values |= {"checkpoint": "random", "refinement.enabled": False, "dense.enabled": False,
                   "hold_when_blind": False}  # fmt: skip
    return config_from_parameters({**values, **dict(options.parameters)})


def with_known_scale(
    config: PipelineConfig, session: Session, given: Sequence[Frame],
    truth: Sequence[SyntheticFrame],
) -> PipelineConfig:  # fmt: skip
    """Returns the parameters with the true metres per unit of a way, measured by a first run."""
    true, logs = {f.stamp_ns: f.depth for f in truth}, []
    pipeline = Pipeline(config, session)
    for frame in given:
        for one in pipeline.push(frame):
            exact = resize_nearest(true[one.stamp_ns], one.depth_m.shape)
            logs.append(np.nanmedian(np.log(exact / one.depth_m)[np.isfinite(exact)]))
    factor = float(np.exp(np.median(logs)))
    return replace(config, scale=replace(config.scale, factor=factor))


def open_network(config: PipelineConfig) -> Session:
    """Opens the network of a configuration."""
    return open_networks(config)[0]


def driven(options: argparse.Namespace, model: str, noise: Noise | None) -> dict[str, Any]:
    """Returns a row: the shares over all rooms and walks."""
    config, found = settings(options, model), []
    for walk in options.walks:
        for seed in options.seeds:
            camera = room_camera(walk, seed, options.size, options.frames)
            frames = list(camera)
            given = list(robots_frames(camera, frames))
            if model == "truth":
                open_session = partial(TruthSession, frames, noise=noise)
            else:
                open_session = partial(open_network, config)
            known = with_known_scale(config, open_session(), given, frames)
            room = DrivenRoom(camera.room, known, float(frames[0].T_room_camera[2, 3]))
            found.append(drive(room, Pipeline(known, open_session()), given, frames))
            if options.verbose:
                results_file.show({"walk": walk, "room": seed} | found[-1].shares())
    both = total(found)
    return {"rooms": len(found), "seen": both.seen, "marked": both.marked} | both.shares()


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--walks", nargs="+", default=["loop", "straight", "spot"])
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--size", type=arguments.size, default=(252, 189), metavar="WxH")
    parser.add_argument("--process-res", type=int, default=252)
    parser.add_argument("--set", dest="parameters", nargs=2, action="append", default=[],
                        metavar=("NAME", "VALUE"), help="another parameter")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="a line per walk")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for name, noise in NOISES.items() if options.model == "truth" else (("network", None),):
        rows.append({"depth": name} | driven(options, options.model, noise))
        results_file.show(rows[-1])
    times = timed((504, 378))
    results_file.show(times)
    results_file.write(options.output, {"rows": rows, "time": times}, "cpu")


if __name__ == "__main__":
    main()
