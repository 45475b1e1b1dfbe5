"""Finding the pose in a saved scene: recall and errors of restarts, and false joins.

    python bench/bench_recognition.py restarts --out bench/results/recognition-restarts.json
    python bench/bench_recognition.py elsewhere --out bench/results/recognition-elsewhere.json
    python bench/bench_recognition.py others --out bench/results/recognition-others.json
    python bench/bench_recognition.py cost --out bench/results/recognition-cost.json

``restarts``: a room is walked and its scene is saved; then a camera starts anywhere near that
walk, beside it and turned, in half of the cases backwards, and shows 20 frames. Found: the frame
at which its pose in the map is known. Errors are those of published poses from the truth, in
metres, where the poses of the saved walk fit the truth best.
``elsewhere``: the same with frames of another walk through the room, which see a part of the map
from elsewhere (30 % of the frames or more within 1 m and 40 degrees of a frame of the map), and go
on for 60 frames: errors where the camera is found, and at the end.
``--views 1`` verifies locations by a pair of images instead of three and three. ``--measured``
gives the saved keyframes depth as images have measured it, and not as the network gave it.
``others``: the same with frames of another room, and of look-alikes: rooms with the surfaces of
the saved one, in another size and with other furniture. A hint lets everything be looked at, also
what does not look similar; a look is a window that is verified. None may be joined.
``cost``: times on the thread that runs the network, with up to 10 000 keyframes of a loaded scene.
da3-tiny with its weights, refined, as in the demo; rooms that it was not trained on.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import results_file
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from da3_ros.config import config_from_parameters
from da3_ros.export.recognition_file import append_recognition, load_recognition
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.similarity import IDENTITY, Similarity
from da3_ros.inference import open_networks
from da3_ros.keyframe_store.array_spill import Arrays
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.keyframe_store.store import JOURNAL, StoredScene
from da3_ros.mapping import loop_candidates
from da3_ros.mapping.graph_solution import Node
from da3_ros.mapping.loop_closure import LoopClosure
from da3_ros.mapping.map_table import KeyframeFile, MapTable, OverlapView
from da3_ros.mapping.pose_graph import Edge
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.submap_spill import Submap
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.sensors.calibration import pinhole_calibration
from da3_ros.synthetic import intrinsics
from da3_ros.synthetic.demo_settings import PACE, PARAMETERS, SIZE
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.synthetic.renderer import render_batch
from da3_ros.synthetic.rooms import Room, clearance, make_room, stack_rooms
from da3_ros.synthetic.walks import make_walk
from da3_ros.types import Array, Calibration, Frame, View

FIRST_ROOM = 40  # held out: the weights were trained on others
STEP_NS = round(1e9 / PACE.rate_hz)
LATER_NS = 10**13  # of a second session
WALKS = ("loop", "strafe", "straight")
OTHER_WALKS = ("loop", "handheld", "strafe", "straight")
# Of a walk that sees the map from elsewhere: frames in which the camera should be found; what is
# near a frame of the map, and the least share of such frames.
FIRST_FRAMES, NEAR_M, NEAR_DEG, LEAST_SEEN = 20, 1.0, 40.0, 0.3
ASIDE_M, TURNED_DEG, CLEAR_M = 0.15, 8.0, 0.2
EVERYWHERE = PoseHint.on_map(0.0, 0.0, 1e3)


class Bench:
    """The network, and the camera that sees rooms."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.config = config_from_parameters(PARAMETERS)
        self.session, _ = open_networks(self.config)
        self.K = intrinsics(SIZE, 65.0)
        self.calibration: Calibration = pinhole_calibration(self.K, SIZE)

    def frames(self, room: Room, poses: Array, begin_ns: int) -> Iterator[Frame]:
        """Yields frames of a room, rendered at poses [N, 4, 4]."""
        rooms = stack_rooms([room])
        for i, T in enumerate(poses):
            image = render_batch(rooms, T[None], self.calibration.K, SIZE).image[0].cpu().numpy()
            stamp_ns = begin_ns + i * STEP_NS
            yield Frame(stamp_ns, image, "camera_optical", calibration=self.calibration)

    def map_of(self, room: Room, poses: Array, folder: Path) -> tuple[Path, Similarity]:
        """Walks a room and saves its scene; returns its folder, and the similarity to the truth,
        in metres."""
        pipeline = Pipeline(self.config, self.session)
        if self.options.measured:
            pipeline.store(run_of(folder), None, DiskLimit(), wait=True)
        for frame in self.frames(room, poses, STEP_NS):
            list(pipeline.push(frame))
        list(pipeline.flush())
        pipeline.scene_map.finish_recording()
        save_scene(pipeline.snapshot(), folder)
        ours = np.array([p.T_map_camera for p in pipeline.poses()])
        fit = fit_poses(ours, poses[: len(ours)])
        fitted = np.array([fit.pose(T)[:3, 3] for T in ours])
        self.map_errors = np.linalg.norm(fitted - poses[: len(ours), :3, 3], axis=1)
        return folder, fit

    def resumed(self, folder: Path) -> Pipeline:
        """Returns a pipeline that begins in a saved scene."""
        pipeline, saved = Pipeline(self.config, self.session), load_scene(folder)
        if self.options.measured:
            assert saved.recognition is not None
            saved = replace(saved, recognition=with_measured(saved.recognition, run_of(folder)))
        pipeline.resume(saved)
        return pipeline


def run_of(folder: Path) -> Path:
    """Returns the folder of what the run of a saved scene has stored."""
    return folder.with_name(folder.name + "-run")


@dataclasses.dataclass
class MeasuredFile:
    """A file of saved keyframes, with depth as images have measured it."""

    file: KeyframeFile
    factor: Array  # [h, w] measured depth over the network's

    def arrays(self, index: int) -> tuple[Arrays, NDArray[np.bool_] | None]:
        """Returns the arrays of a keyframe, as ``KeyframeFile``."""
        (image, pixels, depth, confidence), valid = self.file.arrays(index)
        return [image, pixels, depth * self.factor.reshape(-1)[pixels], confidence], valid


def with_measured(recognition: Recognition, run: Path) -> Recognition:
    """Returns what recognises a map, with the measured depth that its run has stored."""
    factors = {}
    with StoredScene.open(run) as stored:
        for key in stored.measured:
            dense, keyframe = stored.load_measured(key), stored.load(key)
            known = np.isfinite(keyframe.depth) & np.isfinite(dense.depth) & (keyframe.depth > 0)
            factor = dense.depth / np.where(known, keyframe.depth, 1)
            factors[stored.frames[key].stamp_ns] = np.where(known, factor, 1)
    keyframes = [
        replace(k, file=MeasuredFile(k.file, factors[k.view.stamp_ns]))
        if k.file is not None and k.view.stamp_ns in factors else k
        for k in recognition.keyframes
    ]  # fmt: skip
    return replace(recognition, keyframes=tuple(keyframes))


def walk_of(room: Room, number: int, frames: int) -> Array:
    """Returns the poses [N, 4, 4] of a walk."""
    return make_walk(room, WALKS[number % len(WALKS)], frames, room.seed, PACE)


def beside(room: Room, poses: Array, rng: np.random.Generator, frames: int) -> Array:
    """Returns the poses [N, 4, 4] of a walk near another one, that begins anywhere on it."""
    for _ in range(1000):
        first = rng.integers(0, len(poses) - frames + 1)
        some = poses[first : first + frames].copy()
        some = some[::-1] if rng.random() < 0.5 else some
        aside = rng.normal(0, ASIDE_M, 3)
        turn = Rotation.from_euler("y", rng.normal(0, TURNED_DEG), degrees=True).as_matrix()
        out = some.copy()
        out[:, :3, 3] += aside
        out[:, :3, :3] = some[:, :3, :3] @ turn
        if clearance(room, out[:, :3, 3]).min() > CLEAR_M:
            return out
    raise ValueError(f"room {room.seed} has no space beside the walk")


def look_alike(room: Room, number: int) -> Room:
    """Returns a room of another size, with other furniture and patterns of the same kind."""
    other = make_room(1000 + 50 * room.seed + number)
    count = len(other.material)
    material = other.material.clone()
    rows = [*range(6), *(6 + i % max(len(room.material) - 6, 1) for i in range(count - 6))]
    appearance = range(15)  # colours, noise, tiles, patches: what is not of the location
    rows = [min(r, len(room.material) - 1) for r in rows]
    material[:, list(appearance)] = room.material[rows][:, list(appearance)]
    return dataclasses.replace(other, material=material, sky=room.sky)


def restart_rows(bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each restart."""
    options, rows = bench.options, []
    for number, room, poses, folder, fit in saved_rooms(bench):
        rng = np.random.default_rng(number)
        for _ in tqdm(range(options.starts), desc=f"room {room.seed}"):
            truth = beside(room, poses, rng, options.frames)
            rows.append({"room": room.seed, **restart(bench, folder, fit, room, truth)})
    return rows


def elsewhere_rows(bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each restart in another walk of a room."""
    options, rows = bench.options, []
    for number, room, poses, folder, fit in saved_rooms(bench):
        map_error = float(np.median(bench.map_errors))
        others = [w for w in OTHER_WALKS if w != WALKS[number % len(WALKS)]]
        rng = np.random.default_rng(number)
        for walk in tqdm(others, desc=f"room {room.seed}"):
            truth = make_walk(room, walk, options.walk + options.frames, room.seed, PACE)
            starts = [s for s in range(0, options.walk, 5)
                      if seen_share(poses, truth[s : s + FIRST_FRAMES]) >= LEAST_SEEN]  # fmt: skip
            some = rng.permutation(starts)[: options.starts]
            for start in sorted(some.tolist()):
                part = truth[start : start + options.frames]
                row = restart(bench, folder, fit, room, part)
                rows.append(
                    {"room": room.seed, "walk": walk, "start": start, "map_error_m": map_error}
                    | row
                )
    return rows


def seen_share(known: Array, poses: Array) -> float:
    """Returns the share of poses [N, 4, 4] that are near a known one, and look the same way."""
    away = np.linalg.norm(poses[:, None, :3, 3] - known[None, :, :3, 3], axis=-1)
    cosine = np.einsum("ni,mi->nm", poses[:, :3, 2], known[:, :3, 2])
    near = (away < NEAR_M) & (cosine > np.cos(np.radians(NEAR_DEG)))
    return float(near.any(axis=1).mean())


def elsewhere_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns recall within the first frames, and errors at first and at the end."""
    soon = [r for r in rows if (r["found_after_frames"] or math.inf) <= FIRST_FRAMES]
    out: dict[str, Any] = {"restarts": len(rows), "found": len(soon)}
    if not soon:
        return out
    for name in ("first_error_m", "first_error_deg", "error_m", "error_deg", "last_error_m",
                 "last_error_deg", "last_in_sigmas"):  # fmt: skip
        values = np.array([r[name] for r in soon])
        out[name] = {"median": float(np.median(values)), "most": float(np.max(values))}
    out["first_over_10_cm"] = sum(r["first_error_m"] > 0.1 for r in soon)
    out["last_over_10_cm"] = sum(r["last_error_m"] > 0.1 for r in soon)
    return out


def saved_rooms(bench: Bench) -> Iterator[tuple[int, Room, Array, Path, Similarity]]:
    """Yields number, room, walk [N, 4, 4], the folder of the saved scene, and its similarity to
    the truth."""
    with tempfile.TemporaryDirectory() as home:
        for number in range(bench.options.rooms):
            room = make_room(FIRST_ROOM + number)
            poses = walk_of(room, number, bench.options.walk)
            yield number, room, poses, *bench.map_of(room, poses, Path(home) / str(number))


def restart(
    bench: Bench, folder: Path, fit: Similarity, room: Room, truth: Array
) -> dict[str, Any]:
    """Returns when a camera was found, and its errors from then on."""
    pipeline = bench.resumed(folder)
    found, errors, in_sigmas = None, [], []
    for frame in bench.frames(room, truth, LATER_NS):
        for result in pipeline.push(frame):
            index = (result.stamp_ns - LATER_NS) // STEP_NS
            if not pipeline.map.pose_known:
                continue
            found = int(index) + 1 if found is None else found
            T = np.linalg.inv(truth[index]) @ fit.pose(result.T_map_camera)
            angle = np.degrees(Rotation.from_matrix(T[:3, :3]).magnitude())
            errors.append((float(np.linalg.norm(T[:3, 3])), float(angle)))
            covariance = result.covariance_map
            sigma = math.nan
            if covariance is not None:
                sigma = fit.scale * math.sqrt(float(np.trace(covariance[:3, :3])))
            in_sigmas.append(errors[-1][0] / sigma)
    looks = pipeline.loops.refused + pipeline.loops.found
    median = np.median(errors, axis=0) if errors else (np.nan, np.nan)
    return {
        "found_after_frames": found, "looks": looks, "search_s": pipeline.pose_search.seconds,
        "error_m": float(median[0]), "error_deg": float(median[1]),
        **({} if not errors else {
            "first_error_m": errors[0][0], "first_error_deg": errors[0][1],
            "last_error_m": errors[-1][0], "last_error_deg": errors[-1][1],
            "last_in_sigmas": in_sigmas[-1],
        }),
    }  # fmt: skip


def restart_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns recall and medians."""
    found = [row for row in rows if row["found_after_frames"] is not None]
    out: dict[str, Any] = {"restarts": len(rows), "found": len(found)}
    for name in ("found_after_frames", "error_m", "error_deg") if found else ():
        values = [row[name] for row in found]
        out[name] = {"median": float(np.median(values)), "most": float(np.max(values))}
    return out


def other_rows(bench: Bench) -> list[dict[str, Any]]:
    """Returns one row for each pair of a map and another room."""
    options, rows = bench.options, []
    for number, room, _, folder, _ in saved_rooms(bench):
        others = [make_room(FIRST_ROOM + 100 + 10 * number + k) for k in range(options.others)]
        alike = [look_alike(room, k) for k in range(options.others)]
        kinds = ["other"] * len(others) + ["look-alike"] * len(alike)
        for kind, other in tqdm(list(zip(kinds, others + alike, strict=True))):
            walk = walk_of(other, number, options.walk)[: options.frames]
            found = joined(bench, folder, other, walk)
            rows.append({"room": room.seed, "kind": kind, **found})
    return rows


def joined(bench: Bench, folder: Path, room: Room, walk: Array) -> dict[str, Any]:
    """Returns whether frames of another room were joined to a saved scene."""
    pipeline = bench.resumed(folder)
    for frame in bench.frames(room, walk, LATER_NS):
        pipeline.pose_search.narrow(EVERYWHERE)
        list(pipeline.push(frame))
    loops = pipeline.loops
    return {
        "looks": loops.refused + loops.found, "verified": loops.found,
        "joined": pipeline.map.pose_known,
    }  # fmt: skip


def other_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns looks and false joins of each kind."""
    out: dict[str, Any] = {}
    for kind in sorted({row["kind"] for row in rows}):
        some = [row for row in rows if row["kind"] == kind]
        out[kind] = {
            "rooms": len(some),
            "looked_at": sum(row["looks"] > 0 for row in some),
            "looks": sum(row["looks"] for row in some),
            "verified": sum(row["verified"] for row in some),
            "joined": sum(row["joined"] for row in some),
        }
    return out


def cost_rows(bench: Bench) -> list[dict[str, Any]]:
    """Returns times, ms, with maps of several sizes: medians and the most of 50 keyframes."""
    rows = []
    for count in bench.options.keyframes:
        with tempfile.TemporaryDirectory() as home:
            times = times_of(*loaded(count, Path(home) / JOURNAL), count)
        times["all"] = list(np.sum(list(times.values()), axis=0))
        found = {
            name: {"median_ms": float(np.median(t)), "most_ms": float(max(t))}
            for name, t in times.items()
        }
        print(count, {k: round(v["median_ms"], 2) for k, v in found.items()}, flush=True)
        rows.append({"keyframes": count, **found})
    return rows


def times_of(closure: LoopClosure, submaps: MapTable, count: int) -> dict[str, list[float]]:
    """Returns times, ms, of the steps for 50 new keyframes."""
    times: dict[str, list[float]] = {"add": [], "candidate": [], "window": []}
    keyframes, graph = closure.keyframes, closure._graph
    old = keyframes[count // 2]
    for k in range(50):
        submap = count // 16 + 1 + k // 16
        if submap not in submaps.submaps:
            submaps.add_submap(Submap(submap, 0, IDENTITY))
        descriptor = descriptor_of(count + k)
        submaps.set_view(replace(view_of(count + k), submap=submap))
        submaps.share([count + k])
        steps: dict[str, Callable[[], Any]] = {
            "add": functools.partial(closure.add_keyframe, count + k, descriptor),
            "candidate": functools.partial(closure.candidates.next, None),
            "window": lambda: loop_candidates.loop_window(
                keyframes, graph, old, keyframes[-1], 0, 3
            ),
        }
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def descriptor_of(number: int) -> Array:
    """A descriptor [384] of a keyframe; those of neighbours are similar."""
    basis = np.random.default_rng(7).normal(size=(6, 384))
    phase = 2 * np.pi * number / np.array([40.0, 55, 70, 90, 130, 170])
    noise = np.random.default_rng(number).normal(0, 0.3, 384)
    return (np.cos(phase) @ basis + noise).astype(np.float32)


def view_of(number: int) -> OverlapView:
    """A keyframe's view."""
    rng = np.random.default_rng(number)
    image = cv2.resize(rng.integers(0, 255, (42, 56, 3), np.uint8), (224, 168))
    T = np.eye(4)
    T[0, 3] = 0.3 * number
    view = View(number, number * STEP_NS, np.asarray(image), np.eye(3))
    pixels = np.arange(1024)
    return OverlapView(view, np.eye(3), T, pixels, rng.uniform(1, 3, 1024), np.ones(1024))


def loaded(count: int, file: Path) -> tuple[LoopClosure, MapTable]:
    """Loop closure with a loaded map of ``count`` keyframes, and its submaps."""
    last = count // 16
    size = max(1, -(-last // 250))  # submaps of a node
    nodes = [Node(first, min(first + size - 1, last)) for first in range(0, last + 1, size)]
    poses = {
        id: Similarity(1.0, np.eye(3), np.array([0.3 * 16 * id, 0, 0])) for id in range(last + 1)
    }
    edges = [
        Edge(a.first, b.first, poses[a.first].inverse() @ poses[b.first], np.full(3, 0.01))
        for a, b in itertools.pairwise(nodes)
    ]
    keyframes = (
        replace(
            view_of(i).stored(IDENTITY),
            descriptor=descriptor_of(i),
            submap=i // 16,
            typical_depth=2.0,
        )
        for i in range(count)
    )
    known = Recognition(tuple(nodes), tuple(edges), tuple(keyframes), poses)
    with closing(JournalWriter(file)) as journal:
        start = append_recognition(known, journal)
    submaps = MapTable()
    closure = LoopClosure(submaps)
    closure.restore(load_recognition(JournalReader(file), start, poses))
    return closure, submaps


def main() -> None:
    """Runs a part and writes its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("restarts", "elsewhere", "others", "cost"))
    parser.add_argument("--rooms", type=int, default=5, help="saved scenes")
    parser.add_argument("--walk", type=int, default=60, help="frames of a saved walk")
    parser.add_argument("--starts", type=int, default=20, help="restarts per room")
    parser.add_argument("--frames", type=int, help="frames of a restart; default 20, elsewhere 60")
    parser.add_argument("--others", type=int, default=4, help="rooms of each kind per scene")
    parser.add_argument(
        "--views", type=int, default=loop_candidates.VIEWS_PER_SIDE,
        help="views of each side in the window that verifies a location",
    )  # fmt: skip
    parser.add_argument("--measured", action="store_true", help="depth as images measured it")
    parser.add_argument("--keyframes", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.frames is None:
        options.frames = 60 if options.what == "elsewhere" else 20
    logging.getLogger("da3_ros").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    loop_candidates.VIEWS_PER_SIDE = options.views
    bench = Bench(options)
    parts = {"restarts": restart_rows, "elsewhere": elsewhere_rows, "others": other_rows}
    rows = {**parts, "cost": cost_rows}[options.what](bench)
    summaries = {"restarts": restart_summary, "elsewhere": elsewhere_summary}
    summary = {**summaries, "others": other_summary}.get(options.what)
    found = {"rows": rows} if summary is None else {"summary": summary(rows), "rows": rows}
    print(found.get("summary", ""))
    results_file.write(options.out, found, "cpu")


if __name__ == "__main__":
    main()
