"""The report of a replay, and the measurements."""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from da3_ros import __version__
from da3_ros.config import NodeConfig
from da3_ros.network import MODELS
from da3_ros.parameter_schema import parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import Recording
from da3_ros.replay.results import ReplayOptions, ReplayScene, ReplaySummary
from da3_ros.reporting.timeline import MEASURED_SUMS
from da3_ros.types import Scale

# Parameters of the live node only, and one that results do not depend on.
NOT_REPORTED = ("export_dir", "autostart", "cache_dir")


def write_report(
    options: ReplayOptions,
    settings: NodeConfig,
    scenes: dict[str, ReplayScene],
    missing: Mapping[str, int],
    recording: Recording,
    folder: Path,
) -> ReplaySummary:
    """Write report.json: what was done, identical for repeated runs.

    missing: numbers of frames without what the annotator should have added, by name of a count.
    """
    pipeline = next(iter(scenes.values())).pipeline
    counts: dict[str, int] = {}
    for part in (*(scene.pipeline.counters for scene in scenes.values()), recording.counters):
        counts.update({name: counts.get(name, 0) + count for name, count in part.items()})
    counts.update({name: count for name, count in missing.items() if count})
    scene = pipeline.scene()
    report = {
        "da3_ros": __version__,
        "input": options.name,
        "recording": recording.describe().splitlines(),
        "camera": recording.camera,
        "options": options.of_results(),
        "resumed": None if options.resume is None else options.resume.name,
        "parameters": {
            p.name: p.value for p in parameters(settings) if p.name not in NOT_REPORTED
        },
        "backend": pipeline.session.status().backend,
        "int8_weight_bits": pipeline.session.status().int8_weight_bits,
        "license": MODELS[pipeline.config.inference.model].license,
        "plan": _plan(pipeline),
        "counts": dict(sorted(counts.items())),
        "stopped_at": recording.stopped_at,
        "bad_images": recording.bad_images,
        "refinement": _refinement(scenes),
        "dense": _dense(scenes),
        "loops": _loops(scenes),
        "map_points": len(pipeline.map),
        "path_length": _path_length(pipeline),
        "metric": pipeline.scale.known or pipeline.scale.scale.metric,
        "scale": _scale(pipeline.scale.scale),
        "scenes": [one.results.suffix for one in scenes.values()],
        "parts": len(scene.components),
        "parts_guessed": scene.unconnected,
    }
    write_json(folder / "report.json", report)
    return ReplaySummary(
        options.output, counts=counts, stopped_at=recording.stopped_at,
        bad_images=list(recording.bad_images),
    )  # fmt: skip


def _scale(scale: Scale) -> dict[str, Any]:
    """Returns the last window's scale; unknown values become null."""
    numbers = {"metres_per_unit": scale.value, "sigma": scale.sigma}
    return {"source": scale.source} | {
        name: value if np.isfinite(value) else None for name, value in numbers.items()
    }


def _refinement(scenes: dict[str, ReplayScene]) -> dict[str, Any]:
    """Returns the number of refined windows, means over them, null without any, where the focal
    length of each camera is from, and the corrections of camera_infos."""
    results = [scene.results for scene in scenes.values()]
    windows = sum(one.refined for one in results)
    sums = {
        "tracks": sum(one.tracks for one in results),
        "reprojection_px": sum(one.reprojection_px for one in results),
    }
    means = {name: value / windows if windows else None for name, value in sums.items()}
    sources: dict[str, str] = {}
    for scene in scenes.values():
        sources |= scene.pipeline.refinement.focal_sources
    lenses = {
        camera: [one.as_report() for one in found]
        for scene in scenes.values()
        for camera, found in sorted(scene.pipeline.refinement.lenses.items())
    }
    return {"windows": windows} | means | {"focal_source": sources, "lenses": lenses}


def _loops(scenes: dict[str, ReplayScene]) -> dict[str, int]:
    """Returns how many pairs of keyframes were looked at for a loop, how many windows verified
    one, how often loops have corrected the map, and how many joins they have undone."""
    all_loops = [scene.pipeline.loops for scene in scenes.values()]
    return {
        "looked_at": sum(loops.looked_at for loops in all_loops),
        "verified": sum(loops.found for loops in all_loops),
        "closed": sum(loops.closed for loops in all_loops),
        "joins_undone": sum(loops.undone for loops in all_loops),
    }


def _dense(scenes: dict[str, ReplayScene]) -> dict[str, Any]:
    """Returns how many keyframes have measured depth, the share of their pixels, and of those in
    which a search found depth, how many neighbours confirmed."""
    found = [scene.pipeline.scene_map.dense.so_far for scene in scenes.values()]
    measured = sum(one.measured_pixels for one in found)
    return {
        "keyframes": sum(one.keyframes for one in found),
        "keyframes_measured": sum(one.measured for one in found),
        "share_measured": measured / max(1, sum(one.pixels for one in found)),
        "agreement": measured / max(1, sum(one.found_pixels for one in found)),
    }


def _plan(pipeline: Pipeline) -> dict[str, Any] | None:
    """Returns the plan without budget and measurements, which differ from run to run."""
    plan, limits = pipeline.session.memory.plan, pipeline.refinement.limits
    if plan is None:
        return None
    return plan.repeatable() | {"refinement": dataclasses.asdict(limits)}


def measure_run(
    summary: ReplaySummary, scenes: dict[str, ReplayScene], start: float
) -> dict[str, float]:
    """Returns times and memory of this run."""
    windows = sum(scene.results.windows for scene in scenes.values())
    inference_s = sum(scene.results.inference_s for scene in scenes.values())
    dense = [scene.pipeline.scene_map.dense.so_far for scene in scenes.values()]
    measured = sum(one.keyframes for one in dense)
    bins = [scene.results.timeline.rows for scene in scenes.values()]
    wall = time.perf_counter() - start
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "wall_s": wall,
        "frames_per_s": summary.counts["processed"] / wall,
        "inference_s_per_window": inference_s / max(windows, 1),
        **{name: sum(float(rows[name].sum()) for rows in bins) for name in MEASURED_SUMS},
        "dense_s": sum(one.seconds for one in dense),
        "dense_s_per_keyframe": sum(one.seconds for one in dense) / max(measured, 1),
        "peak_rss_mb": peak_kb / (2**20 if sys.platform == "darwin" else 2**10),
        "map_mb": sum(scene.pipeline.map.nbytes for scene in scenes.values()) / 2**20,
    }


def measured_timelines(scenes: dict[str, ReplayScene]) -> dict[str, Any]:
    """Returns times and memory along this run, by the name of the file that has the rest."""
    results = [scene.results for scene in scenes.values()]
    return {one.timeline_path.name: one.timeline.measured() for one in results}


def write_measured(path: Path, content: dict[str, Any]) -> None:
    """Write measured.json: a line for each entry, since timelines are long."""
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON."""
    path.write_text(json.dumps(content, indent=2) + "\n")


def _path_length(pipeline: Pipeline) -> float:
    """Returns the length of the leading camera's path, summed over the components of the scene."""
    scene = pipeline.scene()
    paths = (scene.of_component(id).poses.leading().rows["T"][:, :, 3] for id in scene.components)
    return sum(float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum()) for path in paths)
