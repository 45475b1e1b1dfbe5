"""Overlap of the network with the preparation of frames and the publication of messages.

    python bench/bench_overlap.py --out bench/results/overlap.json
    python bench/bench_overlap.py --device cuda --trace trace.json      # for Perfetto, megabytes

Live: the node's stream with its two threads receives rendered images at a camera's rate, without
middleware; messages are built and serialised. Replay: the same images from a bag, as `da3_ros
replay` reads them. The summary has begin and end of every span and, for each kind of work outside
the network, the share of its time in which a window ran. On one core the overlap saves no time; it
is the work that a second core, or a GPU, runs in parallel.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import results_file
import torch

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import InferenceSession
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.scene_stream import RawFrame
from da3_ros.live.stream import Stream
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_builder import WindowBuilder
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera

PARALLEL = ("publish", "prepare", "next frame")  # work that can run during a window


class Host:
    """Stands in for the node: serialises messages and counts their bytes."""

    def __init__(self, library: RosbagsLibrary) -> None:
        self.library = library
        self.bytes = 0

    def publish(self, published: Any) -> None:
        _, kind, message = published
        self.bytes += len(self.library.serialize(message, kind))

    def has_subscribers(self, topic: str) -> bool:
        return True

    def now_ns(self) -> int:
        return time.time_ns()

    def warn(self, text: str, every_s: float = 0.0) -> None:
        logging.warning(text)

    def stopping(self) -> bool:
        return False


class Spans:
    """Records begin and end of each call of the wrapped methods, milliseconds since the start."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.rows: list[dict] = []

    def wrap(self, owner: Any, name: str, label: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*args, **kwargs):
            begin = time.perf_counter()
            with torch.profiler.record_function(f"da3 {label}"):
                try:
                    return plain(*args, **kwargs)
                finally:
                    self.add(label, begin)

        setattr(owner, name, timed)

    def add(self, label: str, begin: float) -> None:
        ends = (begin - self.start, time.perf_counter() - self.start)
        row = {"span": label, "thread": threading.current_thread().name}
        row |= {k: round(1000 * v, 1) for k, v in zip(("begin_ms", "end_ms"), ends, strict=True)}
        self.rows.append(row)


def overlapped(rows: list[dict]) -> dict[str, float]:
    """Returns the share of time in which a window ran, for each kind of work in ``PARALLEL``."""
    busy = [(r["begin_ms"], r["end_ms"]) for r in rows if r["span"] == "window"]
    shares = {}
    for label in PARALLEL:
        total = shared = 0.0
        for row in (r for r in rows if r["span"] == label):
            begin, end = row["begin_ms"], row["end_ms"]
            total += end - begin
            shared += sum(max(0.0, min(end, b) - max(begin, a)) for a, b in busy)
        if total:
            shares[label] = round(shared / total, 3)
    return shares


def settings(options: argparse.Namespace) -> dict:
    """Returns the parameters of the live run and the replay."""
    return {
        "model": options.model, "checkpoint": "random", "device": options.device,
        "backend": options.backend,
        "process_res": options.process_res, "window.size": options.window,
        "window.new": options.new,
    }  # fmt: skip


def make_camera(options: argparse.Namespace) -> SyntheticCamera:
    """Returns a camera on a walk through a room."""
    return SyntheticCamera(
        seed=1, size=(options.process_res, options.process_res * 3 // 4), walk="loop",
        frames=options.frames,
    )  # fmt: skip


def open_stream(options: argparse.Namespace) -> tuple[Stream, Host]:
    """Returns the node's stream without a node, and its host."""
    library = RosbagsLibrary()
    host = Host(library)
    config = config_from_parameters(settings(options) | {"tf.publish": "none"}, NodeConfig)
    return Stream(config, library, host, TransformTree()), host


def images(options: argparse.Namespace, library: RosbagsLibrary) -> list[RawFrame]:
    """Returns rendered images as raw frames with messages, as a subscriber receives them."""
    camera, found = make_camera(options), []
    for frame in camera:
        message = build.image(library, frame.stamp_ns, "camera", frame.image)
        known = (camera.calibration, True, "image")
        found.append(RawFrame(frame.stamp_ns, message, "camera", *known))
    return found


@contextlib.contextmanager
def follow(session: Any, spans: Spans):
    """Records the spans of the session and of all pipelines while the context is open."""
    plain = WindowBuilder.prepare, Pipeline.begin
    spans.wrap(session._encoder, "encode", "prefix")
    spans.wrap(session._decoder, "answer", "queue window")
    spans.wrap(session, "infer", "window")
    spans.wrap(WindowBuilder, "prepare", "prepare")
    spans.wrap(Pipeline, "begin", "next frame")
    try:
        yield
    finally:
        WindowBuilder.prepare, Pipeline.begin = plain


def run_live(options: argparse.Namespace) -> dict:
    """Runs the stream and returns its summary; warm-up windows are not recorded."""
    stream, host = open_stream(options)
    stream.publisher = Publisher(lambda error: logging.error("publishing failed", exc_info=error))
    waiting, spans = images(options, host.library), Spans()
    session = stream.session
    spans.wrap(stream._chooser, "_decode", "read image")
    spans.wrap(stream, "_publish", "publish")
    warm = options.window + options.new
    for count, pending in enumerate(waiting[:warm]):
        stream.put(pending)
        if (count + 1) % options.new == 0:
            stream.step()
    stream.publisher.drain()
    spans.rows, spans.start = [], time.perf_counter()
    before = stream.frame_counts.processed

    def send_images() -> None:
        for pending in waiting[warm:]:
            time.sleep(1 / options.rate)
            stream.put(pending)

    camera = threading.Thread(target=send_images, name="camera")
    with follow(session, spans), profiler(options) as profile:
        camera.start()
        while camera.is_alive() or stream.step():
            if not stream.step():
                time.sleep(0.001)
        stream.publisher.drain()
    if profile is not None:
        profile.export_chrome_trace(str(options.trace))
    return summary(session, spans) | {
        "frames": stream.frame_counts.processed - before,
        "rate": options.rate,
    }


def run_replay(options: argparse.Namespace) -> dict:
    """Replays a bag of the same images and returns the summary, including the first windows."""
    values = settings(options)
    session = InferenceSession(config_from_parameters(values, NodeConfig).pipeline.inference)
    spans = Spans()
    with tempfile.TemporaryDirectory() as folder:
        bag = Path(folder) / "bag"
        write_synthetic_bag(bag, make_camera(options))
        spans.start = time.perf_counter()
        chosen = ReplayOptions(bag, Path(folder) / "out")
        with follow(session, spans):
            done = replay(chosen, config_from_parameters(values, NodeConfig), session)
    return summary(session, spans) | {"frames": done.counts["processed"]}


def summary(session: Any, spans: Spans) -> dict:
    """Returns device, threads, overlap and spans of a run."""
    rows = sorted(spans.rows, key=lambda r: r["begin_ms"])
    return {
        "device": str(session.hardware.device), "threads": torch.get_num_threads(),
        "overlapped": overlapped(rows), "spans": rows,
    }  # fmt: skip


@contextlib.contextmanager
def profiler(options: argparse.Namespace):
    """Yields torch's profiler if a trace is to be written, else None."""
    if options.trace is None:
        yield None
        return
    with torch.profiler.profile() as profile:  # CPU, and a GPU if there is one
        yield profile


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="da3-small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto", choices=("auto", "torch", "openvino"))
    parser.add_argument("--process-res", type=int, default=280)
    parser.add_argument("--window", type=int, default=8, help="views per window")
    parser.add_argument("--new", type=int, default=2, help="new views per window")
    parser.add_argument("--frames", type=int, default=18)
    parser.add_argument("--rate", type=float, default=30.0, help="of the camera, Hz")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trace", type=Path, help="write the profiler's full trace here")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    result = {"model": options.model}
    for name, part in (("live", run_live), ("replay", run_replay)):
        result[name] = part(options)
        print(f"{name:15} {'thread':12} {'begin_ms':>9} {'end_ms':>9}")
        for row in result[name]["spans"]:
            times = f"{row['begin_ms']:9.1f} {row['end_ms']:9.1f}"
            print(f"{row['span']:15} {row['thread']:12} {times}")
        for label, share in result[name]["overlapped"].items():
            print(f"{name}: {share:.0%} of the time of {label} was during a window")
    results_file.write(options.out, result, result["live"]["device"])


if __name__ == "__main__":
    main()
