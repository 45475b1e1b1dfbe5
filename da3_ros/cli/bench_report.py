"""`da3_ros bench`: measures speed and memory of the configured network on this machine.

Session and plan are those of the node; images are random, weights may be. Times include network,
upload and download, but neither messages nor the alignment of windows.
"""

from __future__ import annotations

import json
import logging
import math
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from da3_ros import __version__
from da3_ros.cli.bench_pictures import write_pictures
from da3_ros.cli.bench_stages import stages
from da3_ros.config import NodeConfig, PipelineConfig
from da3_ros.inference import (
    BudgetError,
    DeviceError,
    InferenceSession,
    MetricDepthModel,
    WindowTooLargeError,
    open_networks,
)
from da3_ros.inference.benchmark import WARM_UP, Speed, measure_speed
from da3_ros.inference.loading import precision_text
from da3_ros.inference.planner import GIB
from da3_ros.inference.random_windows import random_windows
from da3_ros.network import MODELS, CheckpointError
from da3_ros.parameter_schema import parameters
from da3_ros.recordings.base import RecordingError
from da3_ros.replay.log_lines import logs_above_bars
from da3_ros.scale_sources import scale_source
from da3_ros.types import WindowEstimate

log = logging.getLogger(__name__)

MIB = 2**20
RANDOM = "random"  # value of `checkpoint`
UNSEEN = 3  # timed windows without a view of an earlier window
PERCENTILES = (50, 95, 99)


class BenchError(RuntimeError):
    """A failed measurement; the text is one line with the remedy."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure, besides the parameters."""

    image: tuple[int, int]  # width, height of the camera
    frames: int  # number of new frames to time
    json: Path | None = None
    stages: bool = False  # whether stages are measured
    pictures: Path | None = None  # folder for pictures of depth; None: none
    shown: Path | None = None  # recording that they show; None: a rendered room


@dataclass(frozen=True)
class OpenedSession:
    """The loaded networks, and the times of loading and warm-up."""

    session: InferenceSession
    metric_model: MetricDepthModel | None
    loading_s: float
    warm_up_s: float  # the node's warm-up before its first frame


def bench(options: BenchOptions, settings: NodeConfig) -> str:
    """Measure, write the JSON file if requested, and return the table.

    Raises BenchError or ConfigError.
    """
    if options.json is not None and not options.json.parent.is_dir():
        raise BenchError(f"--json {options.json}: its folder does not exist")
    if options.shown is not None and not options.shown.exists():  # before minutes of measuring
        raise BenchError(f"--of {options.shown} does not exist")
    config = settings.pipeline
    try:
        opened = _open(config, options)
        report = _measured(config, options, opened)
        if options.stages:
            report["stages"] = _stages(config, options, opened.session)
        if options.pictures is not None:
            report["pictures"] = _pictures(options, config, opened.session)
    except CheckpointError as error:
        raise BenchError(f"{error}. {_without_weights(config)}") from error
    except (DeviceError, BudgetError, WindowTooLargeError) as error:
        raise BenchError(str(error)) from error
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(report, indent=2) + "\n")
        except OSError as error:
            raise BenchError(f"--json {options.json}: {error.strerror}") from error
    return as_text(report)


def _open(config: PipelineConfig, options: BenchOptions) -> OpenedSession:
    start, image = time.perf_counter(), options.image
    session, metric_model = open_networks(config)
    if options.stages and session.loaded.compiler.mode:
        raise BenchError(
            "--stages: the stages of a compiled network cannot be told apart; set compile to off"
        )
    joint = config.window.mode == "joint"
    cameras = max(1, len(config.cameras)) if joint else 1
    try:
        session.memory.fit(image, config.window.size, config.window.new * cameras)
    except ValueError as error:
        raise BenchError(f"--size: {error}") from error
    loaded = time.perf_counter()
    session.warm_up(config.window.size, config.window.new * cameras, image=image)
    return OpenedSession(session, metric_model, loaded - start, time.perf_counter() - loaded)


def _stages(
    config: PipelineConfig, options: BenchOptions, session: InferenceSession
) -> dict[str, list[dict[str, Any]]]:
    """Returns name, milliseconds and MiB of each stage, and of exports."""
    window, exports = stages(session, config, options.image)
    return {
        kind: [{"name": s.name, "ms": 1e3 * s.seconds, "mib": s.memory / MIB} for s in found]
        for kind, found in (("window", window), ("export", exports))
    }


def _pictures(
    options: BenchOptions, config: PipelineConfig, session: InferenceSession
) -> list[str]:
    """Returns the paths of the pictures."""
    assert options.pictures is not None
    if config.inference.checkpoint == RANDOM:
        log.warning("--pictures: the weights are random, so the depth means nothing")
    try:
        paths = write_pictures(options.pictures, session, config, options.image, options.shown)
    except (RecordingError, ValueError) as error:
        raise BenchError(f"--pictures: {error}") from error
    except OSError as error:
        raise BenchError(f"--pictures {options.pictures}: {error.strerror}") from error
    return [str(path) for path in paths]


def _without_weights(config: PipelineConfig) -> str:
    metric = scale_source(config.scale.source).needs_metric_model
    also = " -p scale.metric_checkpoint:=random" if metric else ""
    return f"Speed does not depend on weights: -p checkpoint:=random{also} measures without them"


def _measured(
    config: PipelineConfig, options: BenchOptions, opened: OpenedSession
) -> dict[str, Any]:
    """Returns the content of table and file."""
    session = opened.session
    assert session.memory.plan is not None
    # A single-image network sees no earlier frames.
    views = None if session.spec.multi_view else session.memory.plan.new
    windows = max(1, math.ceil(options.frames / session.memory.plan.new))
    progress = tqdm(
        total=WARM_UP + windows + UNSEEN, unit="window", desc="bench",
        disable=not sys.stderr.isatty(),
    )  # fmt: skip
    with logs_above_bars(), progress:
        speed = measure_speed(
            session, windows, views=views, unseen=UNSEEN, on_window=progress.update
        )
        metric_s = _metric_model_s(opened, speed)
    return _machine(session) | _what_ran(config, options, session, speed) | {
        "milliseconds": _times(speed, opened, metric_s),
        "frames_per_s": _rate(config, speed, metric_s),
        "window_ms": [1e3 * s for s in speed.window_s],
        "memory_gib": {
            "peak": session.status().memory_peak_gb,
            "planned": speed.planned.predicted / GIB,
            "planned_after_measuring": (session.memory.plan or speed.planned).predicted / GIB,
            "budget": session.status().memory_budget_gb,
        },
    }  # fmt: skip


def _metric_model_s(opened: OpenedSession, speed: Speed) -> float | None:
    """Returns the seconds that the metric model takes per window; None if it is not used."""
    session, metric_model = opened.session, opened.metric_model
    if metric_model is None or session.memory.plan is None:
        return None
    seconds = []
    for window in random_windows(session.memory.plan, speed.views, speed.new, 1 + UNSEEN):
        estimate = WindowEstimate.of(session.infer(window))
        start = time.perf_counter()
        metric_model.measure(window, estimate)
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[UNSEEN // 2]


def _rate(config: PipelineConfig, speed: Speed, metric_s: float | None) -> float:
    """Returns the new frames per second, including the metric model's share."""
    return speed.new / (speed.percentile(50) + (metric_s or 0.0) / config.scale.metric_every)


def _machine(session: InferenceSession) -> dict[str, Any]:
    return {
        "da3_ros": __version__,
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": session.hardware.name(),
        },
    }


def _what_ran(
    config: PipelineConfig, options: BenchOptions, session: InferenceSession, speed: Speed
) -> dict[str, Any]:
    plan, status = session.memory.plan or speed.planned, session.status()
    return {
        "model": config.inference.model,
        "checkpoint": config.inference.checkpoint,
        "backend": status.backend,
        "precision": status.precision,
        "int8_weight_bits": status.int8_weight_bits,
        "attention": status.attention,
        "compile": session.loaded.compiler.mode or "off",
        "image": list(options.image),
        "network_image": [plan.width, plan.height],
        "views": speed.views,
        "new": speed.new,
        "cameras": list(config.cameras),
        "metric_every": config.scale.metric_every,
        "parameters": {p.name: p.value for p in parameters(config)},
        "reduced": [*plan.reduced, *_fallback(session)],
    }


def _fallback(session: InferenceSession) -> list[str]:
    fallback = session.memory.fallback
    return [f"out of memory: {fallback.current.text}"] if fallback.level else []


def _times(speed: Speed, opened: OpenedSession, metric_s: float | None) -> dict[str, Any]:
    """Returns milliseconds. ``new_frame`` is a frame's share of its window, not its latency."""
    window = {f"p{q}": 1e3 * speed.percentile(q) for q in PERCENTILES}
    unseen = sorted(speed.unseen_s)
    return {
        "new_frame": {name: value / speed.new for name, value in window.items()},
        "window": window,
        "window_of_unseen_views": 1e3 * unseen[len(unseen) // 2],
        "metric_look": None if metric_s is None else 1e3 * metric_s,
        "loading": 1e3 * opened.loading_s,
        "warm_up": 1e3 * opened.warm_up_s,
        "first_window": 1e3 * speed.first_s,
    }


def as_text(report: dict[str, Any]) -> str:
    """Returns the table of a report."""
    ms, memory = report["milliseconds"], report["memory_gib"]
    license = MODELS[report["model"]].license
    checkpoint = report["checkpoint"] or "as found by name"
    compiled = report["compile"]
    precision = precision_text(report["precision"], report["int8_weight_bits"])
    size, inner = ("x".join(map(str, report[k])) for k in ("image", "network_image"))
    rows = [
        ("model", f"{report['model']}, weights: {checkpoint} ({license})"),
        ("device", report["machine"]["device"]),
        ("backend, precision", f"{report['backend']}, {precision}"),
        ("attention, compile", f"{report['attention']}, {compiled}"),
        ("images", f"{size}, {inner} in the network"),
        ("window", f"{report['views']} views, {report['new']} of them new"),
        ("reduced for memory", ", ".join(report["reduced"]) or "nothing"),
        ("windows timed", f"{len(report['window_ms'])}"),
        ("", ""),
        ("cold start", f"{(ms['loading'] + ms['warm_up']) / 1e3:.2f} s: "
         f"loading {ms['loading'] / 1e3:.2f}, warm-up {ms['warm_up'] / 1e3:.2f}; then the first "
         f"window {ms['first_window'] / 1e3:.2f}"),
        ("", "".join(f"{f'p{q}':>10}" for q in PERCENTILES)),
        ("per new frame, ms", _cells(ms["new_frame"])),
        ("window, ms", _cells(ms["window"])),
        ("window, all views new", f"{ms['window_of_unseen_views']:10.1f}"),
    ]  # fmt: skip
    if ms["metric_look"] is not None:
        every = report["metric_every"]
        rows.append(("metric model, ms", f"{ms['metric_look']:10.1f}  every {every} windows"))
    rows += [
        ("frames per second", f"{report['frames_per_s']:10.2f}"),
        ("memory, GiB", f"peak {memory['peak']:.2f}; planned {memory['planned']:.2f}, then "
         f"{memory['planned_after_measuring']:.2f} by measuring; budget {memory['budget']:.2f}"),
    ]  # fmt: skip
    rows += _stage_rows(report.get("stages"))
    rows += [("picture", path) for path in report.get("pictures", [])]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{text}".rstrip() for name, text in rows) + "\n"


def _stage_rows(found: dict[str, list[dict[str, Any]]] | None) -> list[tuple[str, str]]:
    """Returns lines of the stages, with a title of their columns."""
    if found is None:
        return []
    title = f"{'ms':>10}{'MiB':>10}  above weights and kept prefixes, at the stage's peak"
    stage_rows = [
        (row["name"], f"{row['ms']:10.1f}{row['mib']:10.1f}")
        for row in (*found["window"], *found["export"])
    ]
    return [("", ""), ("stages of a window", title), *stage_rows]


def _cells(values: dict[str, float]) -> str:
    return "".join(f"{values[f'p{q}']:10.1f}" for q in PERCENTILES)
