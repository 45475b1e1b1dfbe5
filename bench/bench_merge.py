"""How well saved scenes of several sessions become one.

    python bench/bench_merge.py walks --out bench/results/merge-walks.json
    python bench/bench_merge.py others --out bench/results/merge-others.json
    python bench/bench_merge.py kitchen --data DIR --out bench/results/merge-kitchen.json

``walks``: two walks of a room are saved as scenes and merged. Errors are the root mean square of
positions, metres, after one Sim(3) fit to the truth: of the whole merged trajectory, and of each
walk alone by a fit of its own. Scenes have stored keyframes, as a replay's have; each pair is then
merged once more without (``--no-store``: only that).
``others``: scenes of different rooms. A hint lets everything be looked at, also what does not look
similar; a look is a window that is verified. None may be joined.
``kitchen``: a real recording in two halves, with its recorded depth and poses plus noise as the
network (``redkitchen_24`` in the folder of --data).
da3-tiny with its weights, refined, as in the demo; rooms that it was not trained on.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import results_file
import torch
from bench_recognition import (
    EVERYWHERE,
    FIRST_ROOM,
    LATER_NS,
    STEP_NS,
    WALKS,
    Bench,
    beside,
    walk_of,
)
from refinement_recordings import NOISE, WINDOW, depth_camera
from refinement_runs import Walk
from tqdm import tqdm

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene, save_scene, write_scene
from da3_ros.inference.interfaces import Session
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.merging.inputs import open_inputs
from da3_ros.merging.joining import SceneJoiner
from da3_ros.merging.merge import merge
from da3_ros.merging.network import open_loop_network
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.demo_settings import PACE, PARAMETERS
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.synthetic.rooms import Room, make_room
from da3_ros.synthetic.truth import TruthSession
from da3_ros.synthetic.walks import make_walk
from da3_ros.types import Array, Frame, Prediction, Window

KITCHEN = "redkitchen_24"
STORED = ("stored", "not_stored")
KINDS = ("beside", "another walk")
OTHERS = 40  # walks of each other kind that are tried
NEAR_M, NEAR_DEG = 1.0, 40.0


def walk_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yields a row for each pair of walks of a room."""
    options = bench.options
    for number in range(options.rooms):
        room = make_room(FIRST_ROOM + number)
        for pair, walks in enumerate(pairs_of(room, number, options.walk)):
            with tempfile.TemporaryDirectory() as home:
                folders = [
                    saved(bench, room, poses, Path(home) / f"walk{i}", begin_ns(i))
                    for i, poses in enumerate(walks)
                ]
                truth = true_poses(walks)
                alone = [position_error(folder, truth) for folder in folders]
                row = {
                    "room": room.seed, "pair": KINDS[pair], "near": share_near(*walks),
                    "alone_m": alone,
                }  # fmt: skip
                for kind in STORED[options.no_store :]:
                    row[kind] = merged_row(bench, folders, truth, kind == STORED[0], alone)
            print(row, flush=True)
            yield row


def merged_row(
    bench: Bench, folders: Sequence[Path], truth: dict[int, Array], stored: bool,
    alone: Sequence[float],
) -> dict[str, Any]:  # fmt: skip
    """Merges two scenes, with their stored keyframes or after these were left out."""
    if not stored:
        for folder in folders:
            save_scene(load_scene(folder), folder)
    network = open_loop_network(bench.config, bench.session)
    output = folders[0].parent / f"merged_{stored}"
    start = time.perf_counter()
    done = merge(folders, output, bench.config, network)
    seconds = time.perf_counter() - start
    both = position_error(output, truth)
    return {
        "joined": done.is_complete, "loops": sum(done.scenes[0].loops.values()),
        "looks": done.looks, "merged_m": both, "ratio": both / max(alone),
        "ratio_to_mean": both / float(np.mean(alone)), "seconds": seconds,
    }  # fmt: skip


def pairs_of(room: Room, number: int, frames: int) -> Iterator[tuple[Array, Array]]:
    """Yields two pairs of walks [N, 4, 4] of a room: the second one beside the first, forth or
    back; and one of another kind, of many the one that sees most of what the first saw."""
    first = walk_of(room, number, frames)
    yield first, beside(room, first, np.random.default_rng(number), frames * 2 // 3)
    kinds = [kind for kind in WALKS if kind != WALKS[number % len(WALKS)]]
    others = [
        make_walk(room, kind, frames, seed, PACE) for kind in kinds for seed in range(OTHERS)
    ]
    yield first, max(others, key=lambda other: share_near(first, other))


def share_near(first: Array, second: Array) -> float:
    """Returns the share of cameras of a walk that have one of another near, turned alike."""
    away = np.linalg.norm(first[:, None, :3, 3] - second[None, :, :3, 3], axis=2)
    alike = np.einsum("nij,mij->nm", first[:, :3, :3], second[:, :3, :3])
    near = (away < NEAR_M) & (alike > 1 + 2 * np.cos(np.radians(NEAR_DEG)))
    return float(near.any(axis=0).mean())


def begin_ns(number: int) -> int:
    """Stamp of the first frame of a session."""
    return STEP_NS + number * LATER_NS


def saved(bench: Bench, room: Room, poses: Array, folder: Path, begin: int) -> Path:
    """Walks a room and saves its scene, with stored keyframes."""
    return save_walk(
        Pipeline(bench.config, bench.session), bench.frames(room, poses, begin), folder
    )


def save_walk(pipeline: Pipeline, frames: Iterable[Frame], folder: Path) -> Path:
    """Saves the scene of frames, with stored keyframes."""
    recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    for frame in frames:
        list(pipeline.push(frame))
    list(pipeline.flush())
    if not pipeline.scene_map.finish_recording(60.0):
        raise RuntimeError("keyframes were not stored in time")
    write_scene(pipeline.snapshot(), folder)
    return folder


def true_poses(walks: Sequence[Array]) -> dict[int, Array]:
    """Returns the true poses of all sessions by their stamps."""
    return {
        begin_ns(i) + k * STEP_NS: T for i, poses in enumerate(walks) for k, T in enumerate(poses)
    }


def position_error(folder: Path, truth: dict[int, Array]) -> float:
    """Returns the root mean square error of the positions of a saved scene, after a Sim(3) fit."""
    poses = list(load_scene(folder).scene().poses)
    ours = np.array([p.T_map_camera for p in poses])
    true = np.array([truth[p.stamp_ns] for p in poses])
    off = fit_poses(ours, true).points(ours[:, :3, 3]) - true[:, :3, 3]
    return float(np.sqrt((off**2).sum(axis=1).mean()))


def walk_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns medians and most of pairs that were joined, with stored keyframes and without."""
    out: dict[str, Any] = {"pairs": len(rows)}
    for kind in STORED:
        found = [row[kind] for row in rows if kind in row and row[kind]["joined"]]
        out[kind] = {"joined": len(found)}
        if found:
            ratio = [one["ratio"] for one in found]
            out[kind] |= {
                "within_1.2": sum(one <= 1.2 for one in ratio),
                "ratio": {"median": float(np.median(ratio)), "most": float(np.max(ratio))},
                "ratio_to_mean": float(np.median([one["ratio_to_mean"] for one in found])),
                "merged_m": float(np.median([one["merged_m"] for one in found])),
            }
    return out


def other_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yields a row for each pair of different rooms."""
    options = bench.options
    network = open_loop_network(bench.config, bench.session)
    count = next(n for n in itertools.count(2) if math.comb(n, 2) >= options.others)
    with tempfile.TemporaryDirectory() as home:
        scenes = {}
        for number in range(count):
            room = make_room(FIRST_ROOM + number)
            walk = walk_of(room, number, options.walk)
            folder = Path(home) / str(room.seed)
            scenes[room.seed] = saved(bench, room, walk, folder, begin_ns(number))
        pairs = list(itertools.combinations(scenes, 2))[: options.others]
        for seeds in tqdm(pairs):
            folders = [scenes[seed] for seed in seeds]
            joiner = SceneJoiner(open_inputs(folders), network, hint=EVERYWHERE)
            found = joiner.join()
            row = {"rooms": seeds, "looks": found.looks, "loops": len(found.loops),
                   "verified": joiner.loop_closure.found}  # fmt: skip
            print(row, flush=True)
            yield row


def other_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns looks and false joins."""
    return {
        "pairs": len(rows),
        "looked_at": sum(row["looks"] > 0 for row in rows),
        "looks": sum(row["looks"] for row in rows),
        "verified": sum(row["verified"] for row in rows),
        "joined": sum(row["loops"] > 0 for row in rows),
    }


class RecordedDepth(TruthSession):
    """Recorded depth and poses with noise, and the descriptors of a network."""

    def __init__(self, walk: Walk, seed: int, network: Session) -> None:
        super().__init__(walk.truth, seed=seed, noise=NOISE)
        self.network = network

    def infer(self, window: Window) -> Prediction:
        """Predicts a window."""
        descriptor = self.network.infer(window).descriptor
        return dataclasses.replace(super().infer(window), descriptor=descriptor)


def kitchen_rows(bench: Bench) -> Iterator[dict[str, Any]]:
    """Yields a row for each seed of the noise."""
    options = bench.options
    if options.data is None or not (options.data / KITCHEN).is_dir():
        print(f"skipped: no {KITCHEN} in the folder of --data: {options.data}")
        return
    walk = depth_camera(options.data / KITCHEN)
    half = len(walk.frames) // 2
    truth = {f.stamp_ns: f.T_room_camera for f in walk.truth}
    config = config_from_parameters(PARAMETERS | {"window.size": WINDOW})
    for seed in range(options.seeds):
        session = RecordedDepth(walk, seed, bench.session)
        network = open_loop_network(config, session)
        with tempfile.TemporaryDirectory() as home:
            folders = [
                save_walk(Pipeline(config, session), frames, Path(home) / f"half{i}")
                for i, frames in enumerate((walk.frames[:half], walk.frames[half:]))
            ]
            if options.no_store:
                for folder in folders:
                    save_scene(load_scene(folder), folder)
            done = merge(folders, Path(home) / "merged", config, network)
            alone = [position_error(folder, truth) for folder in folders]
            row = {
                "seed": seed, "frames": len(walk.frames), "joined": done.is_complete,
                "loops": sum(done.scenes[0].loops.values()), "looks": done.looks,
                "alone_m": alone,
                "merged_m": position_error(Path(home) / "merged", truth),
            }  # fmt: skip
        print(row, flush=True)
        yield row


def kitchen_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns how many were joined, and the median error of these."""
    found = [row["merged_m"] for row in rows if row["joined"]]
    return {"runs": len(rows), "joined": len(found),
            "merged_m": float(np.median(found)) if found else None}  # fmt: skip


def main() -> None:
    """Runs a part and writes its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("walks", "others", "kitchen"))
    parser.add_argument("--rooms", type=int, default=5, help="rooms that are walked")
    parser.add_argument("--walk", type=int, default=60, help="frames of a walk")
    parser.add_argument("--no-store", action="store_true", help="scenes without stored keyframes")
    parser.add_argument("--others", type=int, default=20, help="pairs of different rooms")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the noise")
    parser.add_argument("--data", type=Path, help=f"folder with {KITCHEN}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("da3_ros").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    parts = {
        "walks": (walk_rows, walk_summary), "others": (other_rows, other_summary),
        "kitchen": (kitchen_rows, kitchen_summary),
    }  # fmt: skip
    rows_of, summary_of = parts[options.what]
    rows = list(rows_of(Bench(options)))
    if rows:
        found = {"summary": summary_of(rows), "rows": rows}
        print(found["summary"])
        results_file.write(options.out, found, "cpu")


if __name__ == "__main__":
    main()
