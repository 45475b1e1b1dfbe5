"""Soak test: memory, open files and time per frame of the node over many frames.

Four parts, the last three on a node of their own: malformed messages through the decoder,
malformed images through the node, tiny frames through the network, frames while inference is
switched off. Growth of memory and of time per frame is the slope of the second half (``growth``).
The exit code is 1 if a part grew, the node died, or malformed images were dropped without being
decoded. ``python bench/soak_node.py --frames 500`` runs a shorter part of the network.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_srvs.srv import SetBool

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
import results_file
from growth import measure_growth
from support.fuzz import Fuzzer, try_decoder

from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.decode import stamp_ns
from da3_ros.ros.rclpy_library import RclpyLibrary

PARAMETERS = (
    "model:=da3-tiny", "checkpoint:=random", "process_res:=28", "window.size:=3",
    "camera_info_timeout_s:=0.0", "map.max_points:=20000", "scale.source:=fixed",
    "max_image_hz:=0.0", "hold_when_blind:=false",  # images are noise
)  # fmt: skip
SIDE = 28
SAMPLES = 60  # measurements of the process per part; growth is that of the second half
# Frames between two looks at memory; a measurement is the largest of its looks. Where image sizes
# alternate, the engine of one size is in memory, or none while the next one is loaded.
LOOK = 10
GROWTH, GROWTH_FILES = 0.05, 2  # tolerated growth per part: share of memory or time; open files
WARM_UP = 200  # frames before the first measurement: what the node loads at its first need
UNSEEN = 0.02  # share of malformed images that may be dropped without being decoded
LIB = RclpyLibrary()


class Rig(Node):
    """Starts a node process, publishes images to it and subscribes to its results."""

    def __init__(self) -> None:
        super().__init__("soak")
        command = [sys.executable, "-m", "da3_ros.ros.node", "--ros-args", "--log-level", "error"]
        command += [part for p in PARAMETERS for part in ("-p", p)]
        self.process = subprocess.Popen(
            [*command, "-r", "image:=/soak/image"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        reliable = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.images = self.create_publisher(
            LIB.type("sensor_msgs/msg/Image"), "/soak/image", reliable
        )
        self.status: Any = None
        self.newest = 0
        for topic, kind in (("depth/image", "Image"), ("points", "PointCloud2")):
            self.create_subscription(
                LIB.type(f"sensor_msgs/msg/{kind}"), f"/da3/{topic}", self._on_result, 10
            )
        self.create_subscription(
            LIB.type("da3_ros/msg/Status"), "/da3/status", self._on_status, latched
        )
        self.enable = self.create_client(SetBool, "/da3/enable")
        self.until(lambda: self.images.get_subscription_count() and self.status, 60)
        self.pause(2.0)  # until the node's subscription has become reliable like our publisher
        self.stamp = time.time_ns()
        self.pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)

    def _on_result(self, message: Any) -> None:
        self.newest = max(self.newest, stamp_ns(message.header.stamp))

    def _on_status(self, message: Any) -> None:
        self.status = message

    def until(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None:
                raise RuntimeError("the node has died")
            if time.monotonic() > end:
                return False
            rclpy.spin_once(self, timeout_sec=0.02)
        return True

    def pause(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def show(self) -> int:
        """Publishes the next frame and returns its stamp, ns."""
        self.stamp += 10_000_000
        self.images.publish(build.image(LIB, self.stamp, "optical", self.pixels))
        return self.stamp

    def held(self) -> tuple[int, float, int]:
        """Returns frames processed, the process's anonymous memory (MB), and its open files."""
        folder = Path(f"/proc/{self.process.pid}")
        line = next(x for x in (folder / "status").read_text().splitlines() if "RssAnon" in x)
        megabytes = int(line.split()[1]) / 1024
        files = len(list((folder / "fd").iterdir()))
        return int(self.status.frames_processed), megabytes, files

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)
        self.destroy_node()


def network(rig: Rig, n: int) -> None:
    """Publishes a frame and waits until its result has arrived, at most 10 s."""
    stamp = rig.show()
    rig.until(lambda: rig.newest >= stamp, 10)


def switched_off(rig: Rig, n: int) -> None:
    """Publishes a frame while inference is switched off."""
    rig.show()
    time.sleep(0.001)
    if n % 50 == 0:
        rclpy.spin_once(rig, timeout_sec=0.0)


class Malformed:
    """Publishes one malformed image per call, at the rate at which the node decodes them.

    ``pause_s`` is the initial pause between images. It becomes longer when images are dropped
    because the node is busy, and otherwise slowly shorter.
    """

    def __init__(self, pause_s: float) -> None:
        self.fuzzer, self.pause_s = Fuzzer(LIB, 5, "optical"), pause_s
        self.seen = (0, 0)

    def __call__(self, rig: Rig, n: int) -> None:
        rig.images.publish(self.fuzzer.image(self.fuzzer.stamp()))
        rig.pause(self.pause_s)
        received, busy = int(rig.status.frames_received), drops(rig.status).get("busy", 0)
        if received > self.seen[0]:
            self.pause_s *= 1.5 if busy > self.seen[1] else 0.995
            self.seen = (received, busy)


def drops(status: Any) -> dict[str, int]:
    """Returns the number of dropped frames by cause."""
    return dict(zip(status.drop_causes, map(int, status.drop_counts), strict=True))


def run(name: str, step: Callable[[Rig, int], None], count: int, enabled: bool) -> dict[str, Any]:
    """Runs ``count`` steps on a new node, and returns its counts, memory and times."""
    rig = Rig()
    try:
        rig.enable.wait_for_service()
        done = rig.enable.call_async(SetBool.Request(data=enabled))
        rig.until(done.done, 10)
        for n in range(WARM_UP if enabled else 0):
            network(rig, n)
        begin, seen, each_ms = time.monotonic(), [], []
        for part in np.array_split(np.arange(count), SAMPLES):
            start, most = time.monotonic(), 0.0
            for n in part:
                step(rig, int(n))
                if n % LOOK == 0:
                    most = max(most, rig.held()[1])
            each_ms.append(1e3 * (time.monotonic() - start) / max(1, len(part)))
            rig.pause(0.1)
            frames, megabytes, files = rig.held()
            seen.append((frames, max(most, megabytes), files))
        rig.pause(2.5)
        status = rig.status
    finally:
        rig.close()
    return {
        "part": name,
        "sent": count,
        "received": int(status.frames_received),
        "processed": int(status.frames_processed),
        "drops": drops(status),
        "seconds": round(time.monotonic() - begin),
        "processed_and_mb": [[frames, round(megabytes, 1)] for frames, megabytes, _ in seen],
        "ms_per_frame": [round(ms, 3) for ms in each_ms],
        **verdict(
            [mb for _, mb, _ in seen],
            each_ms,
            [files for *_, files in seen],
            paced=isinstance(step, Malformed),
        ),
        "unseen": drops(status).get("busy", 0) / count,
    }


def verdict(
    megabytes: Sequence[float], each_ms: Sequence[float], files: Sequence[int], *, paced: bool
) -> dict[str, Any]:
    """Returns growth of memory and time, open files gained, and whether the part is flat.

    paced: the pause between images is part of the time, which then says nothing.
    """
    memory, pace = measure_growth(megabytes, GROWTH), measure_growth(each_ms, GROWTH)
    opened = files[-1] - files[len(files) // 2]
    return {
        "memory": dataclasses.asdict(memory),
        "time": dataclasses.asdict(pace),
        "files_in_the_second_half": opened,
        # Other load makes times uncertain: time fails only if the lower bound exceeds GROWTH.
        "flat": memory.flat and (paced or pace.low <= GROWTH) and opened <= GROWTH_FILES,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decoder", type=int, default=10_000, help="messages through the decoder")
    parser.add_argument("--malformed", type=int, default=10_000, help="images through the node")
    parser.add_argument(
        "--pause", type=float, default=0.1, help="initial pause between malformed images, s"
    )
    parser.add_argument("--frames", type=int, default=10_000, help="through the network")
    parser.add_argument("--off", type=int, default=100_000, help="while switched off")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []

    def report(result: dict[str, Any]) -> None:
        results.append(result)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()

    if options.decoder:
        report({"part": "decoder", **try_decoder(RosbagsLibrary(), 6, options.decoder)})
    rclpy.init(args=[])
    for name, step, count, enabled in (
        ("malformed", Malformed(options.pause), options.malformed, True),
        ("frames", network, options.frames, True),
        ("off", switched_off, options.off, False),
    ):
        if count:
            report(run(name, step, count, enabled))
            if name == "malformed" and results[-1]["unseen"] > UNSEEN:
                results[-1]["flat"] = False  # too few images reached the decoder
    rclpy.try_shutdown()
    results_file.write(options.out, {"results": results}, "cpu")
    return 0 if all(r.get("flat", True) for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
