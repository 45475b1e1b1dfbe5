#!/usr/bin/env python3
"""Quality beside memory and speed, by image size, backend, precision and window.

    python bench/bench_quality.py --out bench/results/quality.json
    python bench/bench_quality.py --sizes 224 --precisions off --backends torch --rooms 1

With the weights that ship (da3-tiny), in rendered rooms of other seeds than training's: AbsRel of
the published depth after one scale for the run, and the error of the path after the best Sim(3),
without refinement and with it (``abs_rel_refined``, ``ate_refined_m``). Speed: new frames per
second of the network in the node's sliding window. Memory: peak of the network. Each setting has a
process of its own. Rows of models whose weights are not here have the memory that the planner
predicts (``planned_gib``), and no errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import child
import numpy as np
import results_file
from refinement_runs import tracked
from tqdm import tqdm

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference.benchmark import measure_speed
from da3_ros.inference.devices import open_device
from da3_ros.inference.planner import GIB
from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.synthetic.evaluation import FramePair, depth_errors, trajectory_error
from da3_ros.types import Frame

FIRST_ROOM, RATE_HZ, FRAMES, SIZE = 104, 6.0, 36, (504, 378)
PACE = Pace(RATE_HZ, 0.3, 15.0)
WALKS = ("loop", "handheld", "straight")
WINDOWS = 12  # timed
SHIPS = "da3-tiny"
OTHERS = ("da3-small", "da3-base", "da3-large")  # whose memory is predicted


def values_of(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the parameters of a setting."""
    return {
        "model": options.model, "process_res": options.process_res, "device": options.device,
        "window.size": options.views, "mixed_precision": options.precision,
        "backend": options.backend, "dense.enabled": False, "map.enabled": False,
    }  # fmt: skip


def opened(options: argparse.Namespace) -> InferenceSession:
    """Returns a session of a setting."""
    weights = "" if options.model == SHIPS else "random"
    config = InferenceConfig(
        options.model, weights, options.device, options.backend,
        process_res=options.process_res, mixed_precision=options.precision,
    )  # fmt: skip
    return InferenceSession(config, poses=False)


def one(options: argparse.Namespace) -> dict[str, Any]:
    """Measures a setting; returns its row."""
    session = opened(options)
    plan = session.memory.fit(SIZE, options.views, 1)
    row = {
        "model": options.model, "process_res": options.process_res,
        "size": f"{plan.width}x{plan.height}", "views": options.views,
        "planned_gib": plan.predicted / GIB,
    }  # fmt: skip
    if options.model != SHIPS:
        return row | {"precision": plan.precision, "backend": plan.backend}
    speed = measure_speed(session, WINDOWS, views=options.views)
    status = session.status()
    row |= {
        "precision": status.precision, "backend": status.backend,
        "frames_per_s": speed.frames_per_s, "peak_gib": status.memory_peak_gb,
    }  # fmt: skip
    found = [of_room(session, room, options) for room in range(options.rooms)]
    return row | {name: float(np.mean([f[name] for f in found])) for name in found[0]}


def of_room(session: InferenceSession, room: int, options: argparse.Namespace) -> dict[str, float]:
    """Returns the errors in a room, without and with refinement, and the length of the way."""
    camera = SyntheticCamera(
        FIRST_ROOM + room, SIZE, walk=WALKS[room % len(WALKS)], frames=options.frames,
        rate_hz=RATE_HZ, pace=PACE,
    )  # fmt: skip
    truth = {f.stamp_ns: f for f in camera}
    given = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in truth.values()]
    T_room = np.array([f.T_room_camera for f in truth.values()])
    way = float(np.linalg.norm(np.diff(T_room[:, :3, 3], axis=0), axis=1).sum())
    row = {"way_m": way}
    for refined in (False, True):
        session.renew()
        values = values_of(options) | {"refinement.enabled": refined}
        pipeline, results = tracked(values, given, session)
        final = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
        pairs = [
            FramePair(r.depth_m, final[r.stamp_ns], truth[r.stamp_ns].depth,
                      truth[r.stamp_ns].T_room_camera)
            for r in results if r.stamp_ns in final
        ]  # fmt: skip
        end = "_refined" if refined else ""
        T = np.array([p.T_map_camera for p in pairs])
        true = np.array([p.T_room_camera for p in pairs])
        row[f"abs_rel{end}"] = depth_errors(pairs).abs_rel
        row[f"ate{end}_m"] = trajectory_error(T, true)
        row[f"posed{end}"] = len(pairs) / len(given)
    return row


def spawned(options: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """``one`` in a process of its own; ``changes`` replace options."""
    values = vars(options) | changes
    command = [sys.executable, __file__, "--one"]
    for name in ("model", "process_res", "views", "precision", "backend", "device", "rooms",
                 "frames"):  # fmt: skip
        command += [f"--{name.replace('_', '-')}", str(values[name])]
    done = child.run(command, stderr=subprocess.PIPE)
    if done.returncode:
        text = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {**changes, "refused": text}
    return json.loads(done.stdout.splitlines()[-1])


def settings(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns what each row changes: sizes, then precisions and windows at the middle size."""
    usual, backends = options.views, options.backends
    middle = options.sizes[len(options.sizes) // 2]
    first, *others = options.precisions
    base = {"precision": first, "backend": backends[-1]}
    shapes = [(res, first) for res in options.sizes] + [(middle, p) for p in others]
    found = [
        {"process_res": res, "precision": precision, "backend": backend, "views": usual}
        for (res, precision), backend in itertools.product(shapes, backends)
    ]
    found += [{"process_res": middle, "views": n, **base} for n in options.windows if n != usual]
    found += [
        {"model": model, "process_res": res, "views": usual, **base}
        for model, res in itertools.product(options.others, options.sizes)
    ]
    return found


def main() -> None:
    """Runs all settings; prints and writes their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=SHIPS)
    parser.add_argument("--others", nargs="*", default=OTHERS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[112, 168, 224, 336, 504])
    parser.add_argument("--precisions", nargs="+", default=["auto", "off", "bfloat16", "int8"])
    parser.add_argument("--backends", nargs="+", default=["torch", "openvino"])
    parser.add_argument("--windows", nargs="*", type=int, default=[4, 16])
    parser.add_argument("--process-res", type=int, default=224)
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--precision", default="off")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rooms", type=int, default=2)
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.one:
        print(json.dumps(one(options)))
        return
    rows = []
    setting = {"rooms": options.rooms, "frames": options.frames, "image": list(SIZE)}
    device = open_device(options.device).name()
    for changes in tqdm(settings(options), unit="setting"):
        rows.append(spawned(options, **changes))
        results_file.show(rows[-1])
        results_file.write(options.out, {"setting": setting, "rows": rows}, device)


if __name__ == "__main__":
    main()
