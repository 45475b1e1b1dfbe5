#!/usr/bin/env python3
"""Cost of stored keyframes: per frame, per keyframe on the disk, and of exports.

Usage: bench_keyframes.py [--frames N] [--process-res N] [--camera W H] [--rate HZ] [...]

Every frame is a keyframe of a rendered room, with noise as of a network. "frame" is what storing
adds on the thread that runs the network; "encode and write" is on the thread of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import results_file

from da3_ros.config import config_from_parameters
from da3_ros.export.derived import derived_scene
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import JOURNAL, StoredScene, StoreWriter
from da3_ros.pipeline.delivery import PlacedWindow
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame

NOISE = Noise(independent=0.01, smooth=0.03)


@contextlib.contextmanager
def timing(owner: Any, name: str) -> Iterator[list[float]]:
    """Yields a list that gets the seconds of each call of a method."""
    times: list[float] = []
    real = getattr(owner, name)

    def measured(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = real(*arguments)
        times.append(time.perf_counter() - start)
        return result

    with mock.patch.object(owner, name, measured):
        yield times


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Runs a pipeline that stores, and returns milliseconds and kilobytes."""
    camera = SyntheticCamera(
        seed=3, size=tuple(options.camera), walk="loop", frames=options.frames, rate_hz=3.0
    )
    frames = list(camera)
    values = {
        "process_res": options.process_res, "window.size": 4, "refinement.enabled": False,
        "keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(values), TruthSession(frames, noise=NOISE))
    counters: Counter[str] = Counter()
    recorder = KeyframeRecorder(folder, counters=counters, wait=False)
    recording = KeyframeRecording(recorder)
    pipeline.scene_map.record(recording)
    with (
        timing(recording, "add_frame") as on_frame,
        timing(PlacedWindow, "unfiltered_depth") as before,
    ):
        for f in frames:
            for _ in pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)):
                time.sleep(1 / options.rate)
    pipeline.scene_map.finish_recording()
    with StoredScene.open(folder) as stored:
        writer = StoreWriter(folder / "again")
        with timing(writer, "add_keyframe") as on_thread:
            for key in stored.images:
                writer.add_keyframe(stored.load(key))
        writer.journal.close()
        start = time.perf_counter()
        derived_scene(stored, readable_keyframes(stored, DepthFilters()), DepthFilters())
        export = (time.perf_counter() - start) / len(stored.images)
        start = time.perf_counter()
        StoredScene.open(folder).reader.close()
        opening = time.perf_counter() - start
        size = (folder / JOURNAL).stat().st_size / len(stored.images)
    return {
        "keyframes": counters["keyframes_stored"],
        "frame ms": 1e3 * float(np.median(on_frame) + np.median(before)),
        "frame ms, 95 %": 1e3 * float(np.percentile(np.add(on_frame, before), 95)),
        "encode and write ms": 1e3 * float(np.median(on_thread)),
        "kB per keyframe": size / 1e3,
        "export ms per keyframe": 1e3 * export,
        "open ms per keyframe": 1e3 * opening / counters["keyframes_stored"],
    }


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures, and writes them with ``--out``. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--camera", type=int, nargs=2, default=(1280, 720), metavar=("W", "H"))
    parser.add_argument("--rate", type=float, default=10.0, help="frames per second")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    print("  ".join(f"{name} {value:.2f}" for name, value in found.items()))
    results_file.write(options.out, found, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
