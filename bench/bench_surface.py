#!/usr/bin/env python3
"""Surfaces of rendered rooms against the exact room, and dynamic points that leave.

Usage: bench_surface.py [rooms] [movers] [--rooms N] [--walks ...] [--networks ...] [...]

``rooms``: Chamfer distance, coverage, time and peak memory of our surface; of Open3D's TSDF on the
same keyframes too, where Open3D is installed. ``movers``: points and vertices that a box leaves
which crossed the view, without and with their removal, and what the room lost. Networks: ``exact``
(the truth), ``noisy`` (with noise as of a network), ``da3-tiny`` (refined).
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import results_file
from arguments import size
from refinement_runs import one_thread, room_seeds
from scipy.spatial import cKDTree

from da3_ros.config import config_from_parameters
from da3_ros.export.derived import derived_scene
from da3_ros.export.mesh import Mesh
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.export.surface import FEWEST, NEAR_VOXELS, fused_surface
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject, project, ros_K
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import open_networks
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame, distance_to_surface
from da3_ros.synthetic.demo_settings import PACE, PARAMETERS, RATE_HZ
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.synthetic.moving_box import Crossing, crossing
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Array, Frame

NOISES = {"exact": Noise(), "noisy": Noise(independent=0.01, smooth=0.02)}
SAMPLES = 60_000  # points of a mesh that are compared
MARGIN = 0.05  # relative depth by which a keyframe truly looks through


def stored_walk(
    frames: Sequence[SyntheticFrame], camera: SyntheticCamera, network: str, options: Any,
    folder: Path, *, remove_movers: bool = True,
) -> tuple[Similarity, Pipeline]:  # fmt: skip
    """Runs a pipeline that stores keyframes; returns the pose of its map in the room, and
    itself."""
    exact = network in NOISES
    values = PARAMETERS | {
        "process_res": options.process_res, "backend": options.backend, "loop.enabled": False,
        "refinement.enabled": not exact, "map.voxel_m": options.voxel,
        "map.remove_movers": remove_movers,
    }  # fmt: skip
    config = config_from_parameters(values)
    session = TruthSession(frames, noise=NOISES[network]) if exact else open_networks(config)[0]
    pipeline = Pipeline(config, session)
    recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
    pipeline.scene_map.record(KeyframeRecording(recorder))
    given = [Frame(f.stamp_ns, f.image, calibration=camera.calibration) for f in frames]
    results = [r for f in given for r in pipeline.push(f)] + list(pipeline.flush())
    pipeline.scene_map.finish_recording()
    truth = {f.stamp_ns: f for f in frames}
    poses = np.array([r.T_map_camera for r in results])
    true = np.array([truth[r.stamp_ns].T_room_camera for r in results])
    T_map_ros = Similarity.from_pose(invert_pose(pipeline.scene_map.T_ros_map))
    return fit_poses(poses, true) @ T_map_ros, pipeline


def seen_room(frames: Sequence[SyntheticFrame], voxel: float) -> Array:
    """Returns points [N, 3] of the room that at least two frames saw, one per cell."""
    cells: Counter[tuple[int, ...]] = Counter()
    points: dict[tuple[int, ...], Array] = {}
    for f in frames:
        xyz = backproject(f.depth, f.K).reshape(-1, 3)
        xyz = xyz[np.isfinite(xyz).all(axis=1)].astype(np.float64)
        xyz = xyz @ f.T_room_camera[:3, :3].T + f.T_room_camera[:3, 3]
        index, first = np.unique(np.floor(xyz / voxel).astype(int), axis=0, return_index=True)
        for cell, point in zip(map(tuple, index.tolist()), xyz[first], strict=True):
            cells[cell] += 1
            points.setdefault(cell, point)
    return np.array([p for cell, p in points.items() if cells[cell] >= 2])


def sampled(mesh: Mesh) -> Array:
    """Returns points [SAMPLES, 3], evenly spread over a mesh."""
    rng = np.random.default_rng(0)
    a, b, c = (mesh.vertices[mesh.faces[:, k]].astype(np.float64) for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    chosen = rng.choice(len(area), SAMPLES, p=area / area.sum())
    u, v = rng.random((2, SAMPLES, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    return np.asarray(a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen])


def measured(
    mesh: Mesh, T_room_ros: Similarity, room: Any, seen: Array, edge: float
) -> dict[str, Any]:
    """Returns errors of a mesh; ``edge`` of its voxels in metres."""
    points = T_room_ros.points(sampled(mesh))
    off = distance_to_surface(room, points)
    missed = cKDTree(points).query(seen)[0]
    return {
        "voxel_m": edge, "to_room_m": float(off.mean()), "to_mesh_m": float(missed.mean()),
        "chamfer_voxels": float((off.mean() + missed.mean()) / 2 / edge),
        "covered": float((missed < 1.5 * edge).mean()),
        "off_p99_voxels": float(np.quantile(off, 0.99) / edge), "triangles": len(mesh.faces),
    }  # fmt: skip


def costs(work: Callable[[], Mesh]) -> tuple[Mesh, dict[str, float]]:
    """Returns a mesh, the seconds, and the peak of memory above what was held before, MiB."""
    ctypes.CDLL(None).malloc_trim(0)  # else freed memory would be used again, unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (Linux)
    before, start = memory("VmRSS"), time.perf_counter()
    mesh = work()
    return mesh, {
        "seconds": time.perf_counter() - start, "peak_mb": memory("VmHWM") - before,
    }  # fmt: skip


def memory(name: str) -> float:
    """Returns a figure of this process's memory, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def open3d_surface(stored: StoredScene, filters: DepthFilters) -> Mesh:
    """Fuses the same keyframes by Open3D's voxel block grid. Raises ImportError without it."""
    import open3d as o3d  # type: ignore[import-not-found]

    core, kinds = o3d.core, ("tsdf", "weight", "color")
    grid = o3d.t.geometry.VoxelBlockGrid(
        kinds, (core.float32,) * 3, ((1), (1), (3)), filters.voxel, 16, 4000
    )
    for one in readable_keyframes(stored, filters):
        keyframe = one.load()
        depth = np.nan_to_num(one.depth_of(keyframe)).astype(np.float32)
        image = cv2.resize(keyframe.image, depth.shape[::-1]).astype(np.float32) / 255
        K = core.Tensor(ros_K(keyframe.pose.K), core.float64)
        T = core.Tensor(invert_pose(one.T_ros_camera), core.float64)
        planes = [o3d.t.geometry.Image(core.Tensor(a)) for a in (depth, image)]
        blocks = grid.compute_unique_block_coordinates(planes[0], K, T, 1.0, 1e3, NEAR_VOXELS)
        grid.integrate(blocks, *planes, K, T, 1.0, 1e3, NEAR_VOXELS)
    found = grid.extract_triangle_mesh(float(FEWEST))
    vertices = found.vertex.positions.numpy().astype(np.float32)
    faces = found.triangle.indices.numpy().astype(np.int64)
    return Mesh(vertices, faces, np.zeros(vertices.shape, np.uint8))


def rooms(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room, network and way of fusing."""
    for walk, seed, camera in cameras(options):
        frames = list(camera)
        for network in options.networks:
            with tempfile.TemporaryDirectory() as folder:
                T_room_ros, _ = stored_walk(frames, camera, network, options, Path(folder))
                with StoredScene.open(Path(folder)) as stored:
                    yield from fused(stored, T_room_ros, camera, frames, options, {
                        "walk": walk, "room": seed, "network": network,
                    })  # fmt: skip


def fused(
    stored: StoredScene, T_room_ros: Similarity, camera: SyntheticCamera,
    frames: Sequence[SyntheticFrame], options: Any, row: dict[str, Any],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yields our row, and Open3D's where it is installed."""
    stamps = {stored.frames[key].stamp_ns for key in stored.images}
    seen = seen_room([f for f in frames if f.stamp_ns in stamps], options.voxel)
    filters = DepthFilters(voxel=options.voxel / T_room_ros.scale)
    ways = {"ours": lambda: fused_surface(stored, filters)}
    try:
        open3d_surface(stored, replace(filters, voxel=10 * filters.voxel))
        ways["open3d"] = lambda: open3d_surface(stored, filters)
    except ImportError:
        pass
    for name, work in ways.items():
        mesh, cost = costs(work)
        errors = measured(mesh, T_room_ros, camera.room, seen, options.voxel)
        yield row | {"by": name, "keyframes": len(stamps)} | errors | cost


def dynamic_points(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room and network: what a moving box leaves without and with
    removal."""
    for walk, seed, camera in cameras(options):
        count = len(camera)
        crossed = crossing(camera, count // 6, count // 2, 2.0)
        for network in options.networks:
            found = {}
            with tempfile.TemporaryDirectory() as folder:
                for remove in (False, True):
                    target = Path(folder) / str(remove)
                    T_room_ros, pipeline = stored_walk(
                        crossed.frames, camera, network, options, target, remove_movers=remove
                    )
                    found["map", remove] = T_room_ros.points(pipeline.scene().cloud().xyz)
                with StoredScene.open(target) as stored:
                    stamps = {stored.frames[key].stamp_ns for key in stored.images}
                    for remove in (False, True):
                        filters = DepthFilters(
                            options.voxel / T_room_ros.scale, remove_movers=remove
                        )
                        points = (
                            derived_scene(stored, readable_keyframes(stored, filters), filters)
                            .cloud()
                            .xyz
                        )
                        mesh = fused_surface(stored, filters)
                        found["export", remove] = T_room_ros.points(points)
                        found["surface", remove] = T_room_ros.points(mesh.vertices)
            later = [f for f in crossed.frames[count // 2 + 1 :] if f.stamp_ns in stamps]
            seen = seen_room([f for f in camera if f.stamp_ns in stamps], options.voxel)
            for what in ("map", "export", "surface"):
                yield {"walk": walk, "room": seed, "network": network, "what": what} | left(
                    found[what, False], found[what, True], crossed, later, seen, options, network
                )


def left(
    before: Array, after: Array, crossed: Crossing, later: Sequence[SyntheticFrame], seen: Array,
    options: Any, network: str,
) -> dict[str, Any]:  # fmt: skip
    """Returns numbers of ghost points, and of those that two later keyframes truly look through;
    the share of cells with points of the room that are lost; and the share of the room's ``seen``
    surface that had a point near it and has none now."""
    near = 1.5 * options.voxel if network in NOISES else 5 * options.voxel
    row: dict[str, Any] = {}
    cells, met = [], []
    for name, points in (("before", before), ("after", after)):
        off = distance_to_surface(crossed.room, points)
        ghost = points[(off > near) & (crossed.distance_to_box(points) < near)]
        through = sum((truly_through(f, ghost) for f in later), np.zeros(len(ghost), int))
        row[f"ghosts_{name}"] = len(ghost)
        row[f"seen_through_{name}"] = int((through >= 2).sum())
        cells.append(set(map(tuple, np.floor(points[off < near] / (2 * options.voxel)).tolist())))
        met.append(cKDTree(points).query(seen, distance_upper_bound=near)[0] < near)
    row["room_lost"] = 1 - len(cells[0] & cells[1]) / max(1, len(cells[0]))
    row["surface_lost"] = float((met[0] & ~met[1]).sum() / max(1, met[0].sum()))
    return row


def truly_through(frame: SyntheticFrame, points: Array) -> Array:
    """Returns the mask [M] of points of the room before what a frame truly saw."""
    T = invert_pose(frame.T_room_camera)
    inside = points @ T[:3, :3].T + T[:3, 3]
    height, width = frame.depth.shape
    pixels = np.nan_to_num(project(inside, frame.K), nan=-1)
    seen = np.flatnonzero(((pixels >= 0) & (pixels < (width, height))).all(axis=1))
    column, row = pixels[seen].astype(int).T
    depth = frame.depth[row, column]
    out = np.zeros(len(points), bool)
    out[seen] = np.isfinite(depth) & (depth > (1 + MARGIN) * inside[seen, 2])
    return out


def cameras(options: argparse.Namespace) -> Iterator[tuple[str, int, SyntheticCamera]]:
    """Yields walks through rooms."""
    for walk in options.walks:
        for seed in room_seeds(options.rooms):
            yield (
                walk,
                seed,
                SyntheticCamera(
                    seed,
                    options.size,
                    walk=walk,
                    frames=options.frames,
                    rate_hz=RATE_HZ,
                    pace=PACE,
                ),
            )


TABLES = {"rooms": rooms, "movers": dynamic_points}


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures, and writes them with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--rooms", type=int, default=3)
    parser.add_argument("--walks", nargs="+", default=["loop", "strafe", "handheld"])
    parser.add_argument("--networks", nargs="+", default=["exact"])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--size", type=size, default=(280, 210), metavar="WxH")
    parser.add_argument("--process-res", type=int, default=280)
    parser.add_argument("--voxel", type=float, default=0.03)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"{', '.join(sorted(unknown))}: must be {' or '.join(TABLES)}")
    one_thread()
    found: dict[str, Any] = {name: [] for name in options.tables}
    for name, rows in found.items():
        for row in TABLES[name](options):
            rows.append(row)
            print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                            for k, v in row.items()), flush=True)  # fmt: skip
    results_file.write(options.out, found, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
