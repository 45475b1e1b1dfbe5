"""Measured depth in rendered rooms, against their exact depth and surfaces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from bench_surface import measured as mesh_errors
from bench_surface import seen_room
from dense_scenes import (
    OffAndOn,
    depth_errors,
    fit_way,
    means,
    off_and_on,
    ratios,
    recorded,
    save_pictures,
    shape_errors,
)
from refinement_faults import FAULTS, OTHER_ROOM, wrong_matches
from refinement_runs import as_walk, room_camera

from da3_ros.export.derived import derived_scene
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.export.surface import fused_surface
from da3_ros.geometry.similarity import Similarity
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame, distance_to_surface
from da3_ros.synthetic.demo_settings import PARAMETERS
from da3_ros.synthetic.evaluation import resize_nearest

POINT_M = 0.02  # edge of the voxels of an exported cloud


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per room and walk, off and on in it."""
    for seed in options.seeds:
        for walk in options.walks:
            camera = room_camera(walk, seed, options.size, options.frames)
            frames = list(camera)
            values = PARAMETERS | {
                "process_res": options.process_res, "backend": options.backend,
            }  # fmt: skip
            name = f"{seed}-{walk}"
            given = as_walk(name, camera, frames).frames
            with recorded(given, values, options.keep, name) as folder, off_and_on(folder) as both:
                found = room_errors(both, camera, frames, options, name)
                yield {"room": seed, "walk": walk} | found


def by_walk(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the means over rooms of each walk and of all, and errors off over on."""
    groups = {
        w: [r for r in found if r["walk"] == w] for w in dict.fromkeys(r["walk"] for r in found)
    }
    out = []
    for name, rows in (groups | {"all": list(found)}).items():
        mean = means(rows)
        out.append({"walk": name, "rooms": len(rows)} | mean | ratios(mean))
    return out


def room_errors(
    both: OffAndOn, camera: SyntheticCamera, frames: list[SyntheticFrame],
    options: argparse.Namespace, name: str,
) -> dict[str, Any]:  # fmt: skip
    """Returns the errors of depth, cloud and mesh of a stored walk."""
    by_stamp = {f.stamp_ns: f for f in frames}
    T_room_ros, way_m = fit_way(both.stored, {f.stamp_ns: f.T_room_camera for f in frames})
    truth = {
        one.key: resize_nearest(by_stamp[one.stamp_ns].depth, one.network.shape)
        for one in both.keyframes
    }
    errors = means([depth_errors(one, truth[one.key], T_room_ros.scale) for one in both.keyframes])
    errors |= shape_errors(both.keyframes, truth, T_room_ros.scale)
    if options.pictures:
        save_pictures(options.pictures, name, both.keyframes, truth, T_room_ros.scale)
    stamps = {one.stamp_ns for one in both.keyframes}
    seen = seen_room([f for f in frames if f.stamp_ns in stamps], options.voxel)
    row = {"keyframes": len(both.keyframes), "way_error_m": way_m} | errors
    for way in ("off", "on"):
        found = surfaces(both, way == "off", T_room_ros, camera, seen, options.voxel)
        row |= {f"{k}_{way}": v for k, v in found.items()}
    return row | {"seconds": both.seconds}


FAULTED = "none", "hand", "mover", "exposure", "10 % wrong matches"


def fault_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per room, walk and fault of images or matches (``refinement_faults``): depth of
    what is seen, off and on. Where a hand covers the lens there is no truth."""
    for seed in options.seeds:
        for walk in options.walks:
            camera = room_camera(walk, seed, options.size, options.frames)
            others = list(room_camera(walk, seed + OTHER_ROOM, options.size, options.frames))
            for fault in FAULTED:
                faulty = FAULTS[fault](list(camera), others)
                by_stamp = {f.stamp_ns: f for f in faulty.frames}
                given = as_walk(fault, camera, faulty.frames).frames
                values = PARAMETERS | {
                    "process_res": options.process_res, "backend": options.backend,
                }  # fmt: skip
                with (
                    wrong_matches(faulty.wrong_matches, 0),
                    recorded(given, values, None, "scene") as folder,
                    off_and_on(folder) as both,
                ):
                    T, way_m = fit_way(
                        both.stored, {f.stamp_ns: f.T_room_camera for f in faulty.frames}
                    )
                    found = means([
                        depth_errors(one, resize_nearest(
                            by_stamp[one.stamp_ns].depth, one.network.shape
                        ), T.scale) for one in both.keyframes
                    ])  # fmt: skip
                    yield {
                        "room": seed,
                        "walk": walk,
                        "fault": fault,
                        "way_error_m": way_m,
                    } | found


def by_fault(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the means over rooms and walks of each fault, and errors off over on."""
    out = []
    for fault in dict.fromkeys(r["fault"] for r in found):
        mean = means([r for r in found if r["fault"] == fault])
        out.append({"fault": fault} | mean | ratios(mean))
    return out


def surfaces(
    both: OffAndOn, network: bool, T_room_ros: Similarity, camera: SyntheticCamera, seen: Any,
    voxel: float,
) -> dict[str, float]:  # fmt: skip
    """Returns errors of the exported cloud and mesh of a scene; network: by its depth alone."""
    stored = both.stored
    filters = DepthFilters(voxel=POINT_M / T_room_ros.scale, network=network)
    points = derived_scene(stored, readable_keyframes(stored, filters), filters).cloud().xyz
    off = distance_to_surface(camera.room, T_room_ros.points(points))
    mesh = fused_surface(stored, DepthFilters(voxel=voxel / T_room_ros.scale, network=network))
    found = {"points": float(len(points)), "cloud_median_m": float(np.median(off)),
             "cloud_p95_m": float(np.percentile(off, 95))}  # fmt: skip
    if len(mesh.faces):
        errors = mesh_errors(mesh, T_room_ros, camera.room, seen, voxel)
        found |= {"chamfer_voxels": errors["chamfer_voxels"], "covered": errors["covered"]}
    return found
