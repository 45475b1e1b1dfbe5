"""Milliseconds per frame of all stages except the network, from an input to published messages.

Each stage runs separately, many times, on a rendered room; messages are published over the
middleware to subscriptions of this process. "join" (alignment) and "map" are measured in the
pipeline, on exact windows of a walk at the same size. In the live node one thread runs the stages
from decoding to the map, another one builds and publishes messages; the table has both sums and
the sum of all. Results are comparable only on the same machine; use `taskset -c 0` for one core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import results_file
from rclpy.node import Node
from rclpy.qos import QoSProfile

from da3_ros.config import DepthConfig, config_from_parameters
from da3_ros.inference import resize_for_network
from da3_ros.mapping.depth_filter import filter_depth
from da3_ros.messages import build
from da3_ros.messages.decode import decode
from da3_ros.messages.outputs import FRAME_TOPICS, Outputs
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, Scale, TrackedFrame, WindowReport

FIRST = ("decode", "rectify", "resize", "join", "filter", "map")  # stages before publishing
COUNTED = (*FIRST, "median confidence of the frame")  # in the sums, besides build and publish


def repeated(work: Callable[[], Any], count: int) -> float:
    """Returns the median duration of ``work`` over ``count`` calls, milliseconds."""
    work()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def incoming(lib: RclpyLibrary, size: tuple[int, int]) -> tuple[Any, Any]:
    """Returns the calibration of a camera with distortion, and an image message of it."""
    camera = SyntheticCamera(
        seed=1, size=size, walk="straight", frames=2, D=(-0.1, 0.01, 0.0, 0.0, 0.0)
    )
    frame = camera[0]
    return camera.calibration, build.image(lib, frame.stamp_ns, "optical", frame.image)


def tracked(image: Any, K: Any) -> TrackedFrame:
    """Returns a tracked frame with a smooth depth ramp and an edge, as the pipeline makes it."""
    height, width = image.shape[:2]
    depth = np.linspace(1, 4, width, dtype=np.float32) * np.ones((height, 1), np.float32)
    depth[:, width // 2 :] += 1
    report = WindowReport(0, 1, (0,), 1, True, 0.0, 1.0, 1.0, T_map_camera=np.eye(4)[None])
    return TrackedFrame(
        id=0, stamp_ns=1, frame_id="optical", camera="", image=image, depth_m=depth,
        confidence=np.ones_like(depth), K=K, T_map_camera=np.eye(4), keyframe=True,
        scale=Scale(), window=report,
    )  # fmt: skip


def measure(size: tuple[int, int], process_res: int, count: int) -> dict[str, float]:
    """Returns milliseconds by stage; ``size``: (width, height) of the camera's image."""
    lib = RclpyLibrary()
    calibration, message = incoming(lib, size)
    raw, rectifier = decode(message), Rectifier()
    times = {"decode": repeated(lambda: decode(message), count)}
    times["rectify"] = repeated(lambda: rectifier(raw, calibration, False), count)
    done = rectifier(raw, calibration, False)
    times["resize"] = repeated(lambda: resize_for_network(done.image, done.K, process_res), count)
    image, K = resize_for_network(done.image, done.K, process_res)
    out = tracked(image, K)
    config = DepthConfig()
    times["filter"] = repeated(lambda: filter_depth(out.depth_m, out.confidence, config), count)
    times |= _publishing(lib, out, count)
    return times | _scene(image.shape[1::-1], max(12, min(count, 40)))


class TimedCall:
    """Calls ``work`` and adds up the time of the calls in ``ms``, milliseconds."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work, self.ms = work, 0.0

    def __call__(self, *arguments: Any, **values: Any) -> Any:
        """Calls ``work``."""
        start = time.perf_counter()
        try:
            return self.work(*arguments, **values)
        finally:
            self.ms += 1e3 * (time.perf_counter() - start)


def _scene(size: tuple[int, int], frames: int) -> dict[str, float]:
    """Returns milliseconds per frame along a walk: alignment, and map with loop closure."""
    camera = SyntheticCamera(seed=1, size=size, walk="straight", frames=frames)
    seen = list(camera)
    noise = Noise(0.01, 0.01, 0.003, 0.1, 0.005)
    settings = config_from_parameters({"process_res": max(size)})
    pipeline = Pipeline(settings, TruthSession(seen, noise=noise))
    join, grow = TimedCall(pipeline.odometry.place), TimedCall(pipeline.scene_map.add_frame)
    pipeline.odometry.place, pipeline.scene_map.add_frame = join, grow  # type: ignore[method-assign]
    aligned, mapped, keyframes = [], [], []
    for frame in seen:
        join.ms = grow.ms = 0.0
        pushed = Frame(frame.stamp_ns, frame.image, calibration=camera.calibration)
        for result in list(pipeline.push(pushed))[-1:]:
            aligned.append(join.ms)
            mapped.append(grow.ms)
            keyframes += [grow.ms] if result.keyframe else []
    begun = len(aligned) // 4  # first frames, while the window is not full, do not count
    return {
        "join": statistics.median(aligned[begun:]),
        "map": statistics.mean(mapped[begun:]),  # a mean, because only keyframes have a cost
        "map, a keyframe": statistics.median(keyframes),
    }


def _publishing(lib: RclpyLibrary, frame: TrackedFrame, count: int) -> dict[str, float]:
    """Returns milliseconds to build and to publish each topic, each with one subscription."""
    node = Node("bench")
    outputs = Outputs(lib, config_from_parameters({"window.size": 4}))
    publishers = {}
    kinds = {topic: row.type for topic, row in FRAME_TOPICS.items() if not row.of_scene}
    for topic, kind in kinds.items():
        name = topic if topic.startswith("/") else f"~/{topic}"
        publishers[topic] = node.create_publisher(lib.type(kind), name, QoSProfile(depth=1))
        node.create_subscription(lib.type(kind), name, lambda m: None, QoSProfile(depth=1))
    while any(p.get_subscription_count() == 0 for p in publishers.values()):
        time.sleep(0.05)
    quiet = Outputs(lib, config_from_parameters({"window.size": 4}), tf=lambda frame: [])
    base = repeated(lambda: list(quiet.frame(frame, lambda topic: False)), count)
    times = {"median confidence of the frame": base}
    for topic, publisher in publishers.items():

        def make(topic: str = topic) -> Any:
            built = (outputs if topic == "/tf" else quiet).frame(frame, lambda t: t == topic)
            return next((message for t, _, message in built if t == topic), None)

        if make() is None:
            continue  # of the robot's floor, which this frame does not know

        times[f"build {topic}"] = max(0.0, repeated(make, count) - base)
        message = make()
        times[f"publish {topic}"] = repeated(lambda p=publisher, m=message: p.publish(m), count)
    node.destroy_node()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="640x480", metavar="WxH", help="of the camera's image")
    parser.add_argument("--process-res", type=int, default=504)
    parser.add_argument("--count", type=int, default=50, help="runs of each stage")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    rclpy.init(args=[])
    times = measure((width, height), options.process_res, options.count)
    rclpy.try_shutdown()
    counted = {
        n: t for n, t in times.items() if n in COUNTED or n.startswith(("build", "publish"))
    }
    live = {n: t for n, t in counted.items() if n not in FIRST}
    times["live: the network's thread"] = sum(t for n, t in counted.items() if n in FIRST)
    times["live: the publishing thread"] = sum(live.values())
    times["live: building all messages"] = sum(
        t for n, t in live.items() if not n.startswith("publish")
    )
    times["all but network"] = sum(counted.values())
    times["all but network, join and map"] = times["all but network"] - sum(
        counted[n] for n in ("join", "map")
    )
    light = ("depth/image", "depth/camera_info", "points", "pose", "/tf")
    times["the same, depth, cloud, pose, tf only"] = sum(
        t for n, t in counted.items() if n in COUNTED or n.partition(" ")[2] in light
    )
    for name, value in times.items():
        sys.stdout.write(f"{name:<40}{value:8.2f} ms\n")
    results_file.write(options.out, times, "cpu")


if __name__ == "__main__":
    main()
