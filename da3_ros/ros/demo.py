"""`make demo`: synthetic camera and node as two processes over DDS, an export, and the truth.

Prints what was received and how it compares with the exact room, and writes the scene, the
trajectory and two pictures.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile

from da3_ros.config import DepthConfig
from da3_ros.contact_sheet import ContactSheet
from da3_ros.geometry import matrix_from_quaternion
from da3_ros.mapping.alignment import fit_similarity
from da3_ros.mapping.export import Scene
from da3_ros.mapping.picture import render_scene, write_png
from da3_ros.mapping.trajectory import Pose
from da3_ros.mapping.voxel_map import PointCloud
from da3_ros.ros.decode import decode, stamp_ns
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.srv import ExportScene
from da3_ros.types import Array

IMAGE = "/demo/image_raw"
CAMERA_RATE_HZ = 2.5  # slow enough that a CPU keeps up: the demo wants to show every frame
TIMEOUT_S = 180.0
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
    """The demonstration did not come to its end; one line, and the processes' own words."""


class Audience(Node):
    """Keeps what the camera and the node publish, by topic and stamp."""

    def __init__(self) -> None:
        super().__init__("demo")
        library = RclpyLibrary()
        self.got: dict[str, dict[int, Any]] = {name: {} for name in TOPICS}
        self.status: Any = None
        for name, (topic, kind) in TOPICS.items():
            self.create_subscription(library.type(kind), topic, self._keep(name), 50)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(
            library.type("da3_ros/msg/Status"), "/da3/status", self._on_status, latched
        )
        self.export = self.create_client(ExportScene, "/da3/export_scene")

    def _keep(self, name: str) -> Callable[[Any], None]:
        return lambda message: self.got[name].update({stamp_ns(message.header.stamp): message})

    def _on_status(self, message: Any) -> None:
        self.status = message

    def until(self, condition: Callable[[], bool], what: str, alive: Callable[[], None]) -> None:
        """Serve until ``condition`` holds. Raises DemoError when a process ends or time is up."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            alive()
            if time.monotonic() > end:
                raise DemoError(f"{what} did not happen within {TIMEOUT_S:.0f} s")
            rclpy.spin_once(self, timeout_sec=0.05)


def run(output: Path, frames: int, seed: int, parameters: list[str]) -> str:
    """Run the demonstration; returns the text to print. Raises DemoError."""
    output.mkdir(parents=True, exist_ok=True)
    camera = _start(
        "da3_ros.ros.synthetic_camera",
        ["-r", f"image_raw:={IMAGE}"],
        ["wait_for_subscribers:=1", f"frames:={frames}", f"seed:={seed}", "walk:=strafe",
         "width:=504", "height:=378", f"rate_hz:={CAMERA_RATE_HZ}", "max_speed_m_s:=0.4"],
    )  # fmt: skip
    node = _start(
        "da3_ros.ros.node",
        ["-r", f"image:={IMAGE}"],
        [f"export_dir:={output.resolve()}", *parameters],
    )
    note = ""
    if any(p.replace(" ", "") == "checkpoint:=random" for p in parameters):
        note = "random weights: depth and path mean nothing, this run shows that the way is open\n"
    try:
        return _watch(output, frames, (camera, node)) + note
    finally:
        for process in (camera, node):
            process.send_signal(signal.SIGINT)
        for process in (camera, node):
            process.wait(10)


def _watch(output: Path, frames: int, processes: tuple[subprocess.Popen[bytes], ...]) -> str:
    audience = Audience()

    def alive() -> None:
        for process in processes:
            if process.poll() is not None:
                raise DemoError(f"{process.args[2]} ended by itself")  # type: ignore[index]

    start = time.monotonic()
    audience.until(lambda: bool(audience.got["depth"]), "the first depth image", alive)
    first = time.monotonic() - start
    audience.until(lambda: _all_done(audience, frames), "the last frame", alive)
    for name in ("scene.glb", "scene.ply", "trajectory.tum"):
        _export(audience, name, alive)
    status = audience.status
    drops = dict(zip(status.drop_causes, status.drop_counts, strict=True))
    lines = [
        f"first depth after {first:.1f} s; {status.frames_processed} of {frames} frames processed"
        f" ({status.model} on {status.device}), dropped: {drops or 'none'}",
        f"latency from stamp to publication: median {status.latency_median_s:.2f} s, "
        f"95 % within {status.latency_p95_s:.2f} s; {status.output_hz:.1f} frames/s",
        *compare(audience.got),
    ]
    _pictures(output, audience.got)
    audience.destroy_node()
    names = ("scene.glb", "scene.ply", "trajectory.tum", "contact_sheet.png", "cloud.png")
    return "\n".join(lines + [f"  {output / name}" for name in names]) + "\n"


def _all_done(audience: Audience, frames: int) -> bool:
    """Every frame was either processed and has arrived here, or is counted as dropped."""
    status = audience.status
    if status is None or status.frames_received < frames:
        return False
    done = status.frames_processed + sum(status.drop_counts)
    return bool(done >= frames and len(audience.got["depth"]) >= status.frames_processed)


def _export(audience: Audience, name: str, alive: Callable[[], None]) -> None:
    audience.until(audience.export.service_is_ready, "the export service", alive)
    future = audience.export.call_async(ExportScene.Request(path=name, include_cameras=True))
    audience.until(future.done, f"the export of {name}", alive)
    if not future.result().success:
        raise DemoError(future.result().message)


def compare(got: dict[str, dict[int, Any]]) -> list[str]:
    """How depth and path compare with the truth, after fitting one scale (no unit is known)."""
    stamps = sorted(got["depth"].keys() & got["true_depth"].keys())
    ours = [_depth(got["depth"][s]) for s in stamps]
    true = [_resized(_depth(got["true_depth"][s]), o.shape) for s, o in zip(stamps, ours)]  # noqa: B905
    known = [np.isfinite(o) & np.isfinite(t) for o, t in zip(ours, true)]  # noqa: B905
    ratio = np.concatenate([(t / o)[k] for o, t, k in zip(ours, true, known)])  # noqa: B905
    scale = float(np.median(ratio))
    error = np.abs(scale / ratio - 1)
    share = float(np.mean(np.maximum(ratio / scale, scale / ratio) < 1.25))
    lines = [
        f"depth against the truth over {len(stamps)} frames, one scale fitted: "
        f"AbsRel {error.mean():.3f}, within a factor of 1.25: {100 * share:.0f} %"
    ]
    return lines + _compare_paths(got)


def _compare_paths(got: dict[str, dict[int, Any]]) -> list[str]:
    stamps = sorted(got["pose"].keys() & got["true_pose"].keys())
    ours = np.array([_matrix(got["pose"][s].pose.pose)[:3, 3] for s in stamps])
    true = np.array([_matrix(got["true_pose"][s].pose)[:3, 3] for s in stamps])
    length = float(np.linalg.norm(np.diff(true, axis=0), axis=1).sum())
    fit = fit_similarity(ours, true, np.ones(len(ours)), on_a_line=True)
    if fit is None:
        return [f"path of {length:.2f} m: ours has no shape to compare"]
    rmse = float(np.sqrt(np.mean(np.sum((fit.points(ours) - true) ** 2, axis=1))))
    return [f"path of {length:.2f} m, after a similarity fit: RMSE {rmse:.3f} m"]


def _pictures(output: Path, got: dict[str, dict[int, Any]]) -> None:
    import trimesh

    sheet = ContactSheet(DepthConfig(), metric=False)
    poses = []
    needed = ("depth", "rgb", "confidence", "info", "pose")
    stamps = sorted(set.intersection(*(set(got[name]) for name in needed)))
    for stamp in stamps:
        depth = _depth(got["depth"][stamp])
        sheet.add(decode(got["rgb"][stamp]), depth, _depth(got["confidence"][stamp]))
        T = _matrix(got["pose"][stamp].pose.pose)
        K = np.array(got["info"][stamp].k).reshape(3, 3)
        poses.append(Pose(stamp, T, K, (depth.shape[1], depth.shape[0]), len(poses) % 3 == 0))
    write_png(output / "contact_sheet.png", sheet.picture())
    ply = trimesh.load(output / "scene.ply")
    count = len(ply.vertices)
    cloud = PointCloud(
        np.asarray(ply.vertices, np.float32), np.asarray(ply.colors)[:, :3],
        np.ones(count, np.float32), np.ones(count, np.int32),
    )  # fmt: skip
    write_png(output / "cloud.png", render_scene(Scene(cloud, poses, np.eye(4))))


def _depth(message: Any) -> Any:
    values = np.frombuffer(message.data, "<f4").reshape(message.height, message.width)
    return values


def _resized(depth: Any, shape: tuple[int, int]) -> Any:
    """Nearest pixel: averages across a depth edge would be depths that nothing has."""
    rows = (np.arange(shape[0]) + 0.5) * depth.shape[0] // shape[0]
    columns = (np.arange(shape[1]) + 0.5) * depth.shape[1] // shape[1]
    return depth[rows.astype(int)][:, columns.astype(int)]


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
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("-p", "--param", action="append", default=[], metavar="NAME:=VALUE")
    options = parser.parse_args(arguments)
    # A domain of its own: a robot on the same network is neither heard nor disturbed.
    os.environ.setdefault("ROS_DOMAIN_ID", str(10 + os.getpid() % 90))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    rclpy.init(args=[])
    try:
        sys.stdout.write(run(options.output, options.frames, options.seed, options.param))
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        rclpy.try_shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
