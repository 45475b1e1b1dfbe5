"""Writes a bag of a rendered room: the images of one or several cameras, and the exact truth.

Topics: `/camera/image_raw`, `/camera/camera_info`, `/truth/depth/image` and `/truth/odom` (frame
`map`: the room, z up, metres). With several cameras their names replace `camera` and are added
to the truth (`/truth/front/odom`); `/tf_static` holds the transforms from the first camera to the
others. On request `/tf` holds the true poses of the first camera; `/imu` what an IMU on it
measures, `/lidar/points` the sweeps of a LiDAR on it, and `/range` the distances of a range
finder, with their mounts in `/tf_static`; `/global_pose` where it is, once a second, as tags say.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.global_pose import POSE
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.range_sensors import RenderedRanges, mount
from da3_ros.types import ImuNoise

CAMERA, TRUTH, MAP_FRAME, OPTICAL_FRAME = "/camera", "/truth", "map", "camera_optical"
IMU_TOPIC, IMU_FRAME, IMU_RATE_HZ = "/imu", "imu_link", 200.0
# The IMU on the first camera: x where that looks, z up, 3 cm to its right and 5 cm behind it.
T_CAMERA_IMU = np.array(
    [[0.0, -1.0, 0.0, 0.03], [0.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, -0.05], [0.0, 0.0, 0.0, 1.0]]
)
IMAGE, INFO = "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"
TF = "tf2_msgs/msg/TFMessage"
CLOUD, RANGE_TYPE = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Range"
LIDAR, RANGE = "/lidar", "/range"  # topics, and without / the frames of the sensors
MOUNTS = {LIDAR: mount(0.0, -0.1, -0.05), RANGE: mount(0.03, 0.02, 0.0)}
HALF_ANGLE = math.radians(2.0)  # of the range finder's cone
GLOBAL_POSE, GLOBAL_POSE_NS = "/global_pose", 10**9  # topic and least time between two poses
# Standard deviations of a global pose, of each axis: a tag from a few metres.
POSITION_M, ROTATION_RAD = 0.02, math.radians(0.5)


def write_synthetic_bag(
    path: Path,
    camera: SyntheticCamera | Mapping[str, SyntheticCamera],
    *,
    storage: str = "mcap",
    replace: bool = False,
    tf: bool = False,
    imu: bool = False,
    lidar_hz: float = 0.0,
    range_hz: float = 0.0,
    global_pose: bool = False,
) -> str:
    """Write all frames of a camera, or of several by name, to the bag folder ``path``.

    Returns a one-line summary. ``replace``: remove an existing bag. ``tf``: also write the true
    poses to /tf. ``imu``: also write what an IMU with the noise and the biases of a consumer chip
    measures. ``lidar_hz``, ``range_hz``: messages per second of a LiDAR and of a range finder on
    the first camera; 0: none. ``global_pose``: also write the first camera's pose in the map once
    a second, with noise and its covariance. Raises RecordingError if ``path`` exists (with
    ``replace``: as anything but a bag).
    """
    start = time.perf_counter()
    if replace and (path / "metadata.yaml").is_file():
        shutil.rmtree(path)
    rig = camera if isinstance(camera, Mapping) else {"": camera}
    writers = [_CameraWriter(name, one) for name, one in rig.items()]
    framesets = zip(*rig.values(), strict=True)
    count = len(next(iter(rig.values())))
    first = next(iter(rig.values()))
    sensors = _SensorWriter(first, writers[0].frame, lidar_hz, range_hz)
    lib = RosbagsLibrary()
    imu_writer = _ImuWriter(lib, writers[0]) if imu else None
    pose_writer = _GlobalPoseWriter(lib, first) if global_pose else None
    with BagFolderWriter(path, lib, storage) as bag:
        for frames in tqdm(
            framesets, desc="render", unit="frame", total=count, disable=not sys.stderr.isatty()
        ):
            if imu_writer is not None:
                imu_writer.write(bag, frames[0].stamp_ns)
            for number, (writer, frame) in enumerate(zip(writers, frames, strict=True)):
                writer.write(bag, lib, frame, write_tf=tf and number == 0)
            sensors.write_until(bag, lib, frames[0].stamp_ns)
            if pose_writer is not None:
                pose_writer.write(bag, frames[0])
            _write_rig_transforms(bag, lib, writers, frames)
        if imu_writer is not None:
            imu_writer.write(bag, 2**62)
    seconds = time.perf_counter() - start
    rate = count / seconds
    return f"{path}: {count} frames in {seconds:.1f} s ({rate:.1f} frames/s)\n"


class _CameraWriter:
    """Writes the topics of one camera of a rig."""

    def __init__(self, name: str, camera: SyntheticCamera) -> None:
        self.camera = camera
        self.topic = f"/{name}" if name else CAMERA
        self.truth = f"{TRUTH}/{name}" if name else TRUTH
        self.frame = f"{name}_optical" if name else OPTICAL_FRAME

    def write(
        self, bag: BagFolderWriter, lib: RosbagsLibrary, frame: SyntheticFrame, *, write_tf: bool
    ) -> None:
        """Write one frame and its truth; ``write_tf``: also its true pose to /tf."""
        stamp, T, optical = frame.stamp_ns, frame.T_room_camera, self.frame
        info = build.calibration_message(lib, stamp, optical, self.camera.calibration)
        odom = build.odometry(lib, stamp, MAP_FRAME, optical, T)
        bag.write(f"{self.topic}/camera_info", INFO, info, stamp)
        image = build.image(lib, stamp, optical, frame.image)
        bag.write(f"{self.topic}/image_raw", IMAGE, image, stamp)
        depth = build.image(lib, stamp, optical, frame.depth)
        bag.write(f"{self.truth}/depth/image", IMAGE, depth, stamp)
        bag.write(f"{self.truth}/odom", "nav_msgs/msg/Odometry", odom, stamp)
        if write_tf:
            bag.write("/tf", TF, build.tf(lib, [(stamp, MAP_FRAME, optical, T)]), stamp)


class _ImuWriter:
    """Writes what an IMU on a camera measures, and its mount."""

    def __init__(self, lib: RosbagsLibrary, first: _CameraWriter) -> None:
        camera = first.camera
        steps = np.arange(len(camera)) * 1e9 / camera.rate_hz
        samples = imu_samples(
            camera.T_room_camera, camera.start_ns + np.round(steps).astype(np.int64),
            T_camera_imu=T_CAMERA_IMU, noise=ImuNoise(), rate_hz=IMU_RATE_HZ, seed=camera.seed,
        )  # fmt: skip
        self._lib, self._optical = lib, first.frame
        self._rows = list(
            zip(samples.stamps_ns.tolist(), samples.gyro, samples.acceleration, strict=True)
        )
        self._written = 0

    def write(self, bag: BagFolderWriter, stamp_ns: int) -> None:
        """Write all samples up to a stamp, the mount with the first ones."""
        if not self._written:
            first_ns = self._rows[0][0]
            mount = [(first_ns, self._optical, IMU_FRAME, T_CAMERA_IMU)]
            bag.write("/tf_static", TF, build.tf(self._lib, mount), first_ns)
        while self._written < len(self._rows) and self._rows[self._written][0] <= stamp_ns:
            stamp, gyro, acceleration = self._rows[self._written]
            message = build.imu(self._lib, stamp, IMU_FRAME, gyro, acceleration)
            bag.write(IMU_TOPIC, "sensor_msgs/msg/Imu", message, stamp)
            self._written += 1


class _GlobalPoseWriter:
    """Writes where a camera is in the map, now and then."""

    def __init__(self, lib: RosbagsLibrary, camera: SyntheticCamera) -> None:
        self._lib, self._rng = lib, np.random.default_rng(camera.seed)
        self._next_ns = camera.start_ns
        self._covariance = np.diag([POSITION_M**2] * 3 + [ROTATION_RAD**2] * 3)

    def write(self, bag: BagFolderWriter, frame: SyntheticFrame) -> None:
        """Write the pose of a frame, if it is time for one."""
        if frame.stamp_ns < self._next_ns:
            return
        self._next_ns = frame.stamp_ns + GLOBAL_POSE_NS
        turn = Rotation.from_rotvec(ROTATION_RAD * self._rng.normal(size=3)).as_matrix()
        T = frame.T_room_camera.copy()
        T[:3, :3] = turn @ T[:3, :3]
        T[:3, 3] += POSITION_M * self._rng.normal(size=3)
        message = build.pose_with_covariance(
            self._lib, frame.stamp_ns, MAP_FRAME, T, self._covariance
        )
        bag.write(GLOBAL_POSE, POSE, message, frame.stamp_ns)


class _SensorWriter:
    """Writes what range sensors on the first camera measure, between its images."""

    def __init__(
        self, camera: SyntheticCamera, frame: str, lidar_hz: float, range_hz: float
    ) -> None:
        """frame: the camera's."""
        self._start_ns, self._frame = camera.start_ns, frame
        self._sensors = RenderedRanges(camera)
        self._next = {
            kind: (round(0.3e9 / hz), round(1e9 / hz))  # not at the images' stamps
            for kind, hz in ((LIDAR, lidar_hz), (RANGE, range_hz)) if hz > 0
        }  # fmt: skip
        self._begun = False

    def write_until(self, bag: BagFolderWriter, lib: RosbagsLibrary, stamp_ns: int) -> None:
        """Write the messages that end before a stamp, and with the first image the mounts."""
        if not self._begun and self._next:
            edges = [(stamp_ns, self._frame, kind.strip("/"), MOUNTS[kind]) for kind in self._next]
            bag.write("/tf_static", TF, build.tf(lib, edges), stamp_ns)
        self._begun = True
        for kind, (next_ns, period_ns) in self._next.items():
            while self._start_ns + next_ns + period_ns <= stamp_ns:
                self._write(bag, lib, kind, next_ns, period_ns)
                next_ns += period_ns
            self._next[kind] = next_ns, period_ns

    def _write(
        self, bag: BagFolderWriter, lib: RosbagsLibrary, kind: str, at_ns: int, period_ns: int
    ) -> None:
        stamp, seconds, frame = self._start_ns + at_ns, at_ns / 1e9, kind.strip("/")
        if kind == LIDAR:
            points, offsets = self._sensors.sweep(MOUNTS[kind], seconds, period_ns / 1e9)
            times = np.rint(1e9 * offsets).astype(np.int64)
            cloud = build.timed_cloud(lib, stamp, frame, points, times)
            bag.write(f"{kind}/points", CLOUD, cloud, stamp + period_ns)  # sent when it has ended
        else:
            distance = self._sensors.distance(MOUNTS[kind], seconds, HALF_ANGLE)
            message = build.range_message(lib, stamp, frame, distance, HALF_ANGLE)
            bag.write(kind, RANGE_TYPE, message, stamp)


def _write_rig_transforms(
    bag: BagFolderWriter,
    lib: RosbagsLibrary,
    writers: Sequence[_CameraWriter],
    frames: Sequence[SyntheticFrame],
) -> None:
    """Write the rig's static transforms, with the first frames only."""
    first = writers[0]
    stamp = frames[0].stamp_ns
    if len(writers) == 1 or stamp != first.camera.start_ns:
        return
    back = invert_pose(frames[0].T_room_camera)
    edges = [
        (stamp, first.frame, writer.frame, back @ frame.T_room_camera)
        for writer, frame in zip(writers[1:], frames[1:], strict=True)
    ]
    bag.write("/tf_static", TF, build.tf(lib, edges), stamp)
