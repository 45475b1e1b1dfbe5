"""What runs at the same time in a live stream: windows on the device, messages on their way out.

    python bench/bench_overlap.py --out bench/results/overlap.json
    python bench/bench_overlap.py --device cuda --trace trace.json      # for Perfetto, megabytes

The node's own stream, with its two threads, gets rendered images without a middleware; messages
are made and serialised. The summary holds begin and end of every span. ``overlapped`` is the share
of the time spent on messages in which a window or a prefix ran. With one core that saves nothing:
it shows what a second core, or a card, does meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import torch

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.ros import messages as build
from da3_ros.ros.lane import Pending
from da3_ros.ros.messages import RosbagsLibrary
from da3_ros.ros.publisher import Publisher
from da3_ros.ros.stream import Stream
from da3_ros.synthetic import SyntheticCamera
from da3_ros.transforms import TransformTree

DEVICE = ("prefix", "decode")  # spans in which the device is given work, or waited for


class Host:
    """Takes messages as the middleware does: as bytes."""

    def __init__(self, library: RosbagsLibrary) -> None:
        self.library = library
        self.bytes = 0

    def publish(self, published: Any) -> None:
        _, kind, message = published
        self.bytes += len(self.library.serialize(message, kind))

    def wanted(self, topic: str) -> bool:
        return True

    def now_ns(self) -> int:
        return time.time_ns()

    def warn(self, text: str, every_s: float = 0.0) -> None:
        logging.warning(text)

    def stopping(self) -> bool:
        return False


class Spans:
    """Begin and end of what is wrapped, milliseconds since the start."""

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


def overlapped(rows: list[dict]) -> float:
    """Share of publishing time in which the device had work."""
    busy = [(r["begin_ms"], r["end_ms"]) for r in rows if r["span"] in DEVICE]
    total = shared = 0.0
    for row in (r for r in rows if r["span"] == "publish"):
        total += row["end_ms"] - row["begin_ms"]
        shared += sum(max(0.0, min(row["end_ms"], b) - max(row["begin_ms"], a)) for a, b in busy)
    return shared / total if total else float("nan")


def open_stream(options: argparse.Namespace) -> tuple[Stream, Host]:
    """The node's stream without a node."""
    values = {
        "model": options.model, "checkpoint": "random", "device": options.device,
        "process_res": options.process_res, "window.size": options.window,
        "window.new": options.new, "tf.publish": "none",
    }  # fmt: skip
    library = RosbagsLibrary()
    host = Host(library)
    config = config_from_parameters(values, NodeConfig)
    return Stream(config, library, host, TransformTree()), host


def images(options: argparse.Namespace, library: RosbagsLibrary) -> list[Pending]:
    """Rendered images as they come off the wire."""
    camera = SyntheticCamera(
        seed=1, size=(options.process_res, options.process_res * 3 // 4), walk="loop",
        frames=options.frames,
    )  # fmt: skip
    found = []
    for frame in camera:
        message = build.image(library, frame.stamp_ns, "camera", frame.image)
        known = (camera.calibration, True, "image")
        found.append(Pending(frame.stamp_ns, message, "camera", *known))
    return found


def run(options: argparse.Namespace) -> dict:
    """Run the stream; warm-up windows are left out of the spans."""
    stream, host = open_stream(options)
    stream.publisher = Publisher(lambda error: logging.error("publishing failed", exc_info=error))
    waiting, spans = images(options, host.library), Spans()
    session = stream.pipeline.session
    for owner, name, label in (
        (session, "_encode", "prefix"), (session, "_answer", "decode"),
        (session, "infer", "window"), (stream, "_decode", "read image"),
        (stream, "_publish", "publish"),
    ):  # fmt: skip
        spans.wrap(owner, name, label)
    warm = options.window + options.new
    with profiler(options) as profile:
        for count, pending in enumerate(waiting):
            if count == warm:
                stream.publisher.drain()
                spans.rows, spans.start = [], time.perf_counter()
            stream.put(pending)
            if (count + 1) % options.new == 0:
                stream.step()
        stream.publisher.drain()
    if profile is not None:
        profile.export_chrome_trace(str(options.trace))
    return {
        "command": "python bench/bench_overlap.py", "device": str(session.device),
        "model": options.model, "threads": torch.get_num_threads(),
        "frames": len(waiting) - warm, "overlapped": round(overlapped(spans.rows), 3),
        "spans": sorted(spans.rows, key=lambda r: r["begin_ms"]),
    }  # fmt: skip


@contextlib.contextmanager
def profiler(options: argparse.Namespace):
    """torch's profiler where a trace is wanted, else nothing."""
    if options.trace is None:
        yield None
        return
    with torch.profiler.profile() as profile:  # CPU, and the card where there is one
        yield profile


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="da3-small")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--process-res", type=int, default=280)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--new", type=int, default=2)
    parser.add_argument("--frames", type=int, default=18)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trace", type=Path, help="write the profiler's full trace here")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    result = run(options)
    print(f"{'span':12} {'thread':12} {'begin_ms':>9} {'end_ms':>9}")
    for row in result["spans"]:
        print(f"{row['span']:12} {row['thread']:12} {row['begin_ms']:9.1f} {row['end_ms']:9.1f}")
    print(
        f"messages were made while the device had work for {result['overlapped']:.0%} of the time"
    )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
