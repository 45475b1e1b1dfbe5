"""Cost of the viewer for a live stream at 30 Hz, and for its own process, by number of pages.

    python bench/bench_viewer.py --out viewer.json

The stream is the node's, without DDS: exact windows of a rendered room in place of the network,
since no network keeps up with 30 Hz here. Variants, alternating: no viewer; a viewer that nobody
looks at; one page; ten pages; one page that does not read; one page that comes and goes twice a
second. Counted: frames lost, milliseconds of the worker per frame that the viewer takes, processor
time of this process and of the viewer's, bytes to the viewer and to a page.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import results_file
import viser
from websockets.sync.client import connect

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.live.publish_thread import Publisher
from da3_ros.live.scene_stream import RawFrame
from da3_ros.live.stream import Stream
from da3_ros.live.worker import Worker
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

RATE_HZ = 30.0
VARIANTS = ("none", "unwatched", "one", "ten", "stuck", "restless")


class Page:
    """What a browser does: connects, says where it looks from, and reads what comes."""

    def __init__(self, port: int, *, reads: bool = True) -> None:
        self.bytes = 0
        self._socket = connect(
            f"ws://127.0.0.1:{port}", subprotocols=[f"viser-v{viser.__version__}"],
            origin=f"http://127.0.0.1:{port}", max_size=None, max_queue=4,
        )  # fmt: skip
        self._socket.send(msgspec.msgpack.encode({
            "type": "ViewerCameraMessage", "wxyz": (1.0, 0.0, 0.0, 0.0),
            "position": (3.0, 3.0, 3.0), "fov": 1.0, "near": 0.01, "far": 1000.0,
            "image_height": 600, "image_width": 800, "look_at": (0.0, 0.0, 0.0),
            "up_direction": (0.0, 0.0, 1.0),
        }))  # fmt: skip
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._socket:
                self.bytes += len(message)
        except Exception:  # it is closed
            return

    def close(self) -> None:
        self._socket.close()


class Host:
    """The node's part: nobody subscribes to anything but depth and points."""

    def publish(self, published):
        pass

    def has_subscribers(self, topic):
        return topic in ("depth/image", "points")

    def now_ns(self):
        return time.time_ns()

    def warn(self, text, every_s=0.0):
        print("  warning:", text, flush=True)

    def stopping(self):
        return False


def pages_of(variant: str, port: int, stop: threading.Event) -> list[Page]:
    """Opens the pages of a variant; those that it returns stay open."""
    if variant == "restless":
        threading.Thread(target=_restless, args=(port, stop), daemon=True).start()
        return []
    count = {"one": 1, "ten": 10, "stuck": 1}.get(variant, 0)
    return [Page(port, reads=variant != "stuck") for _ in range(count)]


def _restless(port: int, stop: threading.Event) -> None:
    while not stop.is_set():
        page = Page(port)
        stop.wait(0.25)
        page.close()
        stop.wait(0.25)


def cpu_of(pid: int) -> float:
    """Returns the processor time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def run(variant: str, frames: list, camera: SyntheticCamera, res: int) -> dict[str, float]:
    """Runs the stream once; returns what was measured."""
    values = {
        "process_res": res, "window.size": 5, "window.new": 2, "refinement.enabled": False,
        "loop.enabled": False, "hold_when_blind": False, "tf.publish": "none", "max_late_s": 0.5,
        "mixed_precision": "off", "viewer.port": 0 if variant == "none" else free_port(),
    }  # fmt: skip
    lib, host = RosbagsLibrary(), Host()
    config = config_from_parameters(values, NodeConfig)
    stream = Stream(config, lib, host, TransformTree(), TruthSession(frames))
    worker = Worker(stream.step, lambda error: print("  error:", repr(error)))
    stream.publisher = Publisher(lambda error: print("  error:", repr(error)))
    spent, stop, pages = [], threading.Event(), []
    if stream.view is not None:
        show = stream.view.show

        def timed(*arguments):
            start = time.perf_counter()
            show(*arguments)
            spent.append(1e3 * (time.perf_counter() - start))

        stream.view.show = timed
        while not stream.view.feed.url:
            time.sleep(0.02)
        pages = pages_of(variant, int(stream.view.feed.url.rpartition(":")[2]), stop)
        time.sleep(0.5)
    child = None if stream.view is None else stream.view.feed._process._child.pid
    used, childs = time.process_time(), 0.0 if child is None else cpu_of(child)
    begin = time.monotonic()
    for n, frame in enumerate(frames):
        time.sleep(max(0.0, begin + n / RATE_HZ - time.monotonic()))
        message = build.image(lib, frame.stamp_ns, "camera", frame.image)
        stream.put(RawFrame(frame.stamp_ns, message, "camera", camera.calibration, True, "image"))
        worker.notify()
    time.sleep(0.5)
    wall = time.monotonic() - begin
    used = time.process_time() - used
    childs = 0.0 if child is None else cpu_of(child) - childs
    lost = sum(stream.frame_counts.drop_counts().values())
    sent = 0 if stream.view is None else stream.view.feed.sent_bytes
    stop.set()
    worker.stop(5.0)
    stream.publisher.stop(5.0)
    received = [page.bytes for page in pages]
    for page in pages:
        page.close()
    stream.close()
    return {
        "frames": len(frames), "lost": lost, "processed": stream.frame_counts.processed,
        "points": len(stream.pipeline.map),
        "worker_ms_mean": statistics.fmean(spent) if spent else 0.0,
        "worker_ms_p95": float(np.percentile(spent, 95)) if spent else 0.0,
        "worker_ms_max": max(spent, default=0.0),
        "cpu_percent": 100 * used / wall, "viewer_cpu_percent": 100 * childs / wall,
        "sent_mb_per_s": sent / wall / 1e6,
        "page_mb_per_s": statistics.fmean(received) / wall / 1e6 if received else 0.0,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=450)
    parser.add_argument("--res", type=int, default=252, help="longest side in the network, pixels")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    width = options.res
    camera = SyntheticCamera(
        frames=options.frames, size=(width, 3 * width // 4), seed=1, rate_hz=RATE_HZ
    )
    frames = list(camera)
    rows: dict[str, list[dict[str, float]]] = {variant: [] for variant in options.variants}
    for _ in range(options.rounds):
        for variant in options.variants:
            rows[variant].append(run(variant, frames, camera, options.res))
            print(variant, {k: round(v, 2) for k, v in rows[variant][-1].items()}, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    means = {v: {k: statistics.fmean(r[k] for r in many) for k in many[0]}
             for v, many in rows.items()}  # fmt: skip
    print(f"{'pages':10} lost  worker ms/frame (p95, max)  CPU %  viewer's CPU %  MB/s  MB/s page")
    for variant, row in means.items():
        print(
            f"{variant:10} {row['lost']:4.1f}  {row['worker_ms_mean']:6.2f} "
            f"({row['worker_ms_p95']:5.2f}, {row['worker_ms_max']:6.2f})      "
            f"{row['cpu_percent']:5.0f}  {row['viewer_cpu_percent']:8.0f}        "
            f"{row['sent_mb_per_s']:5.1f}  {row['page_mb_per_s']:5.1f}"
        )
    results_file.write(options.out, {"rows": means, "peak_rss_mb": peak}, "cpu")


if __name__ == "__main__":
    main()
