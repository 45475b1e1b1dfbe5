"""`make demo`: runs the synthetic camera and the node as two processes connected by DDS.

Prints what was received and its errors against the exact room, and writes the scene, the
trajectory and a picture to look at first.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile

from da3_ros.config import DepthConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.scene_picture import render_scene, write_png
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.mapping.scene import Scene, SubmapCloud
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.messages.decode import decode, stamp_ns
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.srv import ExportScene
from da3_ros.synthetic import Room, make_room
from da3_ros.synthetic.demo_settings import FRAMES, PACE, PARAMETERS, RATE_HZ, SEED, SIZE, WALK
from da3_ros.synthetic.evaluation import (
    FramePair,
    constant_baseline,
    depth_errors,
    measure,
    trajectory_error,
)
from da3_ros.types import Array

IMAGE = "/demo/image_raw"
WAITING = "dense_waiting"  # of /diagnostics
TIMEOUT_S = 180.0
PORT = 8080  # of the viewer; the node takes another one if it is in use
VIEWER_S = 30.0  # longest wait for the viewer's address
QUIET_S = 5.0  # without a message for so long, missing ones count as lost
LOST_S = 15.0  # the same for images that the node has not received
STOP_S = 10.0  # longest wait for camera and node to end when asked to
MEASURE_S = 30.0  # longest wait for the depth of the last keyframes, which the node measures
SCENE_FILES = ("scene.glb", "scene.ply", "trajectory.tum")
PICTURE = "demo.png"  # the scene, and image, depth and confidence of a few frames
DEFAULTS = tuple(f"{name}:={value}" for name, value in PARAMETERS.items())
TOPICS = {
    "depth": ("/da3/depth/image", "sensor_msgs/msg/Image"),
    "rgb": ("/da3/rgb/image", "sensor_msgs/msg/Image"),
    "confidence": ("/da3/confidence/image", "sensor_msgs/msg/Image"),
    "info": ("/da3/depth/camera_info", "sensor_msgs/msg/CameraInfo"),
    "points": ("/da3/points", "sensor_msgs/msg/PointCloud2"),
    "pose": ("/da3/pose", "geometry_msgs/msg/PoseWithCovarianceStamped"),
    "true_depth": ("/synthetic_camera/truth/depth/image", "sensor_msgs/msg/Image"),
    "true_pose": ("/synthetic_camera/truth/pose", "geometry_msgs/msg/PoseStamped"),
}


class DemoError(RuntimeError):
    """The demonstration failed; the text is one line, besides the processes' own output."""


class MessageRecorder(Node):
    """Stores the messages of camera and node by topic and stamp."""

    def __init__(self) -> None:
        super().__init__("demo")
        library = RclpyLibrary()
        self.got: dict[str, dict[int, Any]] = {name: {} for name in TOPICS}
        self.status: Any = None
        self.rate_hz = 0.0  # highest one: it falls while the last keyframes are measured
        self.viewer = ""  # its address, or why there is none; empty: unknown
        self.waiting: int | None = None  # keyframes whose depth is being measured; None: unknown
        self.received_s = time.monotonic()
        self._subscriptions_of_results = [
            self.create_subscription(library.type(kind), topic, self._keep(name), 50)
            for name, (topic, kind) in TOPICS.items()
        ]
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(
            library.type("da3_ros/msg/Status"), "/da3/status", self._on_status, latched
        )
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self.export: Any = self.create_client(ExportScene, "/da3/export_scene")

    def is_connected(self) -> bool:
        """Whether camera and node publish to all subscriptions of this recorder."""
        return all(s.get_publisher_count() for s in self._subscriptions_of_results)

    def start_camera(self) -> None:
        """Subscribe to the image, which the camera waits for; images themselves are ignored."""
        kind = RclpyLibrary().type("sensor_msgs/msg/Image")
        self.create_subscription(kind, IMAGE, lambda message: None, 1)

    def _keep(self, name: str) -> Callable[[Any], None]:
        def keep(message: Any) -> None:
            self.received_s = time.monotonic()
            self.got[name][stamp_ns(message.header.stamp)] = message

        return keep

    def _on_status(self, message: Any) -> None:
        self.status = message
        self.rate_hz = max(self.rate_hz, message.output_hz)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        values = {one.key: one.value for status in message.status for one in status.values}
        if WAITING in values or values.get("dense") == "off":
            self.waiting = int(values.get(WAITING, 0))
        self.viewer = values.get("viewer", "viewer.port is 0")

    def wait_for_depth(self, alive: Callable[[], None]) -> None:
        """Spin until the depth of the last keyframes is measured, for ``MEASURE_S`` at most."""
        self.waiting, end = None, time.monotonic() + MEASURE_S
        self.spin_until(
            lambda: self.waiting == 0 or time.monotonic() > end, "the measuring of depth", alive
        )

    def wait_for_viewer(self, alive: Callable[[], None]) -> None:
        """Spin until the viewer has an address, or has failed, for ``VIEWER_S`` at most."""
        self.viewer, end = "", time.monotonic() + VIEWER_S
        self.spin_until(lambda: bool(self.viewer) or time.monotonic() > end, "the viewer", alive)

    def spin_until(
        self, condition: Callable[[], bool], what: str, alive: Callable[[], None]
    ) -> None:
        """Spin until ``condition`` holds.

        Raises DemoError when a process ends, or after ``TIMEOUT_S`` without any message.
        """
        begun = time.monotonic()
        while not condition():
            alive()
            if time.monotonic() - max(begun, self.received_s) > TIMEOUT_S:
                raise DemoError(f"{what} did not happen: no message for {TIMEOUT_S:.0f} s")
            rclpy.spin_once(self, timeout_sec=0.05)


def run(
    output: Path, frames: int, seed: int, parameters: list[str], *, stay: bool = False
) -> None:
    """Run the demonstration and print its results. Raises DemoError.

    stay: whether camera and node go on until an interruption.
    """
    output.mkdir(parents=True, exist_ok=True)
    recorder = MessageRecorder()  # created before the processes, so that it misses no message
    camera = _start(
        "da3_ros.ros.synthetic_camera",
        ["-r", f"image_raw:={IMAGE}"],
        ["wait_for_subscribers:=2", f"frames:={frames}", f"buffer_frames:={frames}",
         f"seed:={seed}", f"walk:={WALK}", f"width:={SIZE[0]}", f"height:={SIZE[1]}",
         f"rate_hz:={RATE_HZ}", f"max_speed_m_s:={PACE.max_speed_m_s}",
         f"max_turn_deg_s:={PACE.max_turn_deg_s}", *_pace(parameters)],
    )  # fmt: skip
    node = _start(
        "da3_ros.ros.node",
        ["-r", f"image:={IMAGE}"],
        # A later value wins: the user's parameters come last.
        [f"export_dir:={output.resolve()}", *DEFAULTS, *parameters],
    )
    note = ""
    if any(p.replace(" ", "") == "checkpoint:=random" for p in parameters):
        note = "random weights: depth and path have no meaning, only the data flow is tested\n"
    alive = partial(_check_alive, recorder, (camera, node))
    try:
        text = _watch(recorder, output, frames, make_room(seed), alive)
        sys.stdout.write(
            f"{text}{note}written to {output}: {', '.join((*SCENE_FILES, PICTURE))}\n"
        )
        if stay:
            recorder.wait_for_viewer(alive)
        sys.stdout.write(_to_open(recorder.viewer if stay else None, output / PICTURE))
        sys.stdout.flush()
        if stay and recorder.viewer.startswith("http"):
            # Not `node.wait()`: where SIGINT is ignored (`nohup make demo &`), and for SIGTERM,
            # only rclpy hears of the signal.
            while rclpy.ok() and node.poll() is None:
                time.sleep(0.2)
    finally:
        recorder.destroy_node()
        _stop((camera, node))


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _to_open(viewer: str | None, picture: Path) -> str:
    """Returns the last lines: what to open.

    viewer: the page's address, or why there is none; empty: unknown; None: none is wanted.
    """
    if viewer is None:
        return f"\nopen {picture}\n"
    if viewer.startswith("http"):
        return f"\nopen {viewer} until Ctrl-C\n"
    return f"\nthere is no viewer ({viewer or 'it does not start'}): open {picture}\n"


def _check_alive(recorder: MessageRecorder, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Raises DemoError if camera or node have ended, or the node is idle."""
    for process in processes:
        if process.poll() is not None:
            raise DemoError(f"a process ended by itself: {process.args!r}")
    status = recorder.status
    if status is not None and status.state == "unconfigured" and status.last_error:
        raise DemoError(status.last_error)  # the node keeps running, but idle


def _watch(
    recorder: MessageRecorder,
    output: Path,
    frames: int,
    room: Room,
    alive: Callable[[], None],
) -> str:
    recorder.spin_until(recorder.is_connected, "the connection of camera and node", alive)
    recorder.start_camera()
    start = time.monotonic()
    recorder.spin_until(lambda: bool(recorder.got["depth"]), "the first depth image", alive)
    first = time.monotonic() - start
    recorder.spin_until(lambda: _all_done(recorder, frames), "the last frame", alive)
    recorder.wait_for_depth(alive)
    for name in SCENE_FILES:
        _export(recorder, name, alive)
    status = recorder.status
    drops = dict(zip(status.drop_causes, status.drop_counts, strict=True))
    if lost := frames - status.frames_received:
        drops["not_received"] = lost
    lines = [
        f"first depth after {first:.1f} s; {status.frames_processed} of {frames} frames processed"
        f" ({status.model} on {status.device}), dropped: {drops or 'none'}",
        f"latency from stamp to publication: median {status.latency_median_s:.2f} s, "
        f"95 % within {status.latency_p95_s:.2f} s; {recorder.rate_hz:.1f} frames/s",
    ]
    if missing := status.frames_processed - len(recorder.got["depth"]):
        lines.append(f"results of {missing} processed frames were not received")
    cloud = _read_cloud(output / "scene.ply")
    _write_picture(output / PICTURE, recorder.got, cloud)
    return "\n".join(lines) + "\n" + compare(recorder.got, room, cloud.xyz)


def _pace(parameters: list[str]) -> list[str]:
    """The camera waits for each result, also while the node warms up, if each frame has one."""
    paced = not any(p.strip().startswith("window.new") for p in parameters)
    return ["pace_topic:=/da3/depth/camera_info"] if paced else []


def _all_done(recorder: MessageRecorder, frames: int) -> bool:
    """True if every frame was either processed and received here, or counted as dropped."""
    status = recorder.status
    if status is None:
        return False
    # The camera waits for subscribers, but on a busy machine they may discover it a moment later.
    quiet_s = time.monotonic() - recorder.received_s
    expected = frames if quiet_s < LOST_S else status.frames_received
    done = status.frames_processed + sum(status.drop_counts)
    if done < max(expected, status.frames_received):
        return False
    return quiet_s > QUIET_S or len(recorder.got["depth"]) >= status.frames_processed


def _export(recorder: MessageRecorder, name: str, alive: Callable[[], None]) -> None:
    recorder.spin_until(recorder.export.service_is_ready, "the export service", alive)
    future: Any = recorder.export.call_async(ExportScene.Request(path=name, include_cameras=True))
    recorder.spin_until(future.done, f"the export of {name}", alive)
    if not future.result().success:
        raise DemoError(future.result().message)


def compare(got: dict[str, dict[int, Any]], room: Room, cloud: Array) -> str:
    """Returns a text: errors of the messages and the cloud [M, 3] against the exact room."""
    needed = ("depth", "pose", "true_depth", "true_pose")
    stamps = sorted(set.intersection(*(set(got[name]) for name in needed)))
    pairs = [
        FramePair(
            _depth(got["depth"][s]),
            _matrix(got["pose"][s].pose.pose),
            _depth(got["true_depth"][s]),
            _matrix(got["true_pose"][s].pose),
        )
        for s in stamps
    ]
    blind = constant_baseline(pairs)
    still, true = (np.array([getattr(p, f"T_{n}_camera") for p in blind]) for n in ("map", "room"))
    return (
        "errors against the exact room (its seed was not in the training data):\n"
        + measure(room, pairs, cloud).text()
        + f"baseline of constant depth and no motion: AbsRel {depth_errors(blind).abs_rel:.3f}, "
        + f"ATE {trajectory_error(still, true):.3f} m\n"
    )


def _write_picture(path: Path, got: dict[str, dict[int, Any]], cloud: PointCloud) -> None:
    sheet = ContactSheet(DepthConfig(), metric=False)
    poses: list[Pose] = []
    needed = ("depth", "rgb", "confidence", "info", "pose")
    stamps = sorted(set.intersection(*(set(got[name]) for name in needed)))
    for stamp in stamps:
        depth = _depth(got["depth"][stamp])
        sheet.add(decode(got["rgb"][stamp]), depth, _depth(got["confidence"][stamp]))
        T = _matrix(got["pose"][stamp].pose.pose)
        K = np.array(got["info"][stamp].k).reshape(3, 3)
        poses.append(Pose(stamp, T, K, (depth.shape[1], depth.shape[0]), len(poses) % 3 == 0))
    frames = sheet.picture()
    width = frames.shape[1]
    scene = Scene((SubmapCloud(cloud),), Poses.of(poses), np.eye(4))
    write_png(path, np.concatenate([render_scene(scene, (width, width * 2 // 3)), frames]))


def _read_cloud(path: Path) -> PointCloud:
    """Reads the exported points, in the map frame; the file holds no observation counts."""
    import trimesh

    ply: Any = trimesh.load(path)
    count = len(ply.vertices)
    return PointCloud(
        np.asarray(ply.vertices, np.float32), np.asarray(ply.colors)[:, :3],
        np.ones(count, np.float32), np.ones(count, np.int32),
    )  # fmt: skip


def _depth(message: Any) -> Any:
    values = np.frombuffer(message.data, "<f4").reshape(message.height, message.width)
    return values


def _matrix(pose: Any) -> Array:
    T = np.eye(4)
    q = pose.orientation
    T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    T[:3, 3] = pose.position.x, pose.position.y, pose.position.z
    return T


def _start(module: str, remaps: list[str], parameters: list[str]) -> subprocess.Popen[bytes]:
    arguments = [part for p in parameters for part in ("-p", p)]
    return subprocess.Popen([sys.executable, "-m", module, "--ros-args", *remaps, *arguments])


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo_out"))
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--seed", type=int, default=SEED, help="seed of room and walk")
    parser.add_argument(
        "--viewer", action="store_true",
        help="show it in a browser too, until Ctrl-C (needs viser)",
    )  # fmt: skip
    parser.add_argument("-p", "--param", action="append", default=[], metavar="NAME:=VALUE")
    options = parser.parse_args(arguments)
    if find_spec("evo") is None:  # checked before the run, not after it
        sys.stderr.write("demo: evo is missing, `make setup` or `pip install --no-deps evo`\n")
        return 1
    # A separate domain, so that the demo and a robot on the same network do not interact.
    os.environ.setdefault("ROS_DOMAIN_ID", str(10 + os.getpid() % 90))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    rclpy.init(args=[])
    try:
        parameters = [*([f"viewer.port:={PORT}"] if options.viewer else []), *options.param]
        run(options.output, options.frames, options.seed, parameters, stay=options.viewer)
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except (KeyboardInterrupt, ExternalShutdownException):  # Ctrl-C, or `kill`
        return 130
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
