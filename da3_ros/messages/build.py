"""Builds ROS messages from core types, with the message classes of a ``MessageLibrary``.

Replay uses the classes of ``rosbags``, the live node those generated for rclpy. No middleware, no
pipeline, no tensors.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from da3_ros.geometry.poses import T_ROS_MAP, quaternion_from_matrix
from da3_ros.geometry.projection import backproject, ros_K
from da3_ros.navigation.floor_grid import GridPart, OccupancyGrid
from da3_ros.sensors.calibration import pinhole_calibration
from da3_ros.types import Array, Calibration, FloatImage, Image, TrackedFrame, WindowReport

# Message classes, from rclpy or from ``rosbags``.

PACKAGE = "da3_ros"


OWN_MESSAGES = ("FramePose", "Window", "Status")


class MessageLibrary(Protocol):
    """Provides message classes, and values in the form of their large fields."""

    def type(self, name: str) -> Any:
        """Class of ``pkg/msg/Name``; its constructor takes every field as a keyword."""

    def bytes(self, values: np.ndarray[Any, Any]) -> Any:
        """Returns the memory of ``values`` for a ``uint8[]`` field, in one copy."""

    def signed_bytes(self, values: NDArray[np.int8]) -> Any:
        """Returns the memory of ``values`` for an ``int8[]`` field, in one copy."""

    def sequence(self, values: Iterable[float], code: str) -> Any:
        """Returns numbers for an unbounded numeric field; ``code``: type code of module array."""


class RosbagsLibrary:
    """Messages as ``rosbags`` makes them, with da3_ros' own ones; no installed ROS is needed.

    Also serialises them (CDR, little endian) and tells their definitions, for writing bags.
    """

    def __init__(self) -> None:
        self.store = get_typestore(Stores.ROS2_JAZZY)
        for name in OWN_MESSAGES:
            text = _own_definition(name)
            self.store.register(get_types_from_msg(text, f"{PACKAGE}/msg/{name}"))

    def type(self, name: str) -> Any:
        """Class of ``pkg/msg/Name``. Raises KeyError for an unknown one."""
        return self.store.types[name]

    def bytes(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """``values``' memory in C order as uint8 [n]."""
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def signed_bytes(self, values: NDArray[np.int8]) -> NDArray[np.int8]:
        """``values`` in C order as int8 [n]."""
        return np.ascontiguousarray(values, np.int8).reshape(-1)

    def sequence(self, values: Iterable[float], code: str) -> np.ndarray[Any, Any]:
        """Numbers as an array of ``code``'s type."""
        return np.array(list(values), dtype=code)

    def serialize(self, message: Any, name: str) -> memoryview:
        """CDR bytes of a message."""
        return self.store.serialize_cdr(message, name, little_endian=True)

    def definition(self, name: str) -> str:
        """Text of a type with all it contains, as MCAP's ``ros2msg`` schemas want it."""
        return self.store.generate_msgdef(name, ros_version=2)[0]


def _own_definition(name: str) -> str:
    """Text of one of our .msg files: installed inside the package, or at the root of a clone."""
    package = Path(__file__).parents[1]
    for folder in (package / "interfaces" / "msg", package.parent / "msg"):
        file = folder / f"{name}.msg"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(
        f"{name}.msg is in neither {package / 'interfaces' / 'msg'} nor {package.parent / 'msg'}: "
        "the installation is incomplete, install da3_ros again"
    )


_UINT32, _FLOAT32 = 6, 7  # sensor_msgs/PointField
_NAN = float("nan")
UNKNOWN = 1e6  # variance of an unknown pose; filters take 0 and -1 as near certainty
# Of an unknown velocity. RTAB-Map weighs odometry by the covariance of the pose for this value
# alone, and by that of the velocity for all others.
UNKNOWN_VELOCITY = 9999.0


# Parts ------------------------------------------------------------------------------------------


def time(lib: MessageLibrary, stamp_ns: int) -> Any:
    """builtin_interfaces/Time of integer nanoseconds, exact."""
    seconds, nanoseconds = divmod(int(stamp_ns), 1_000_000_000)
    return lib.type("builtin_interfaces/msg/Time")(sec=seconds, nanosec=nanoseconds)


def header(lib: MessageLibrary, stamp_ns: int, frame_id: str) -> Any:
    """std_msgs/Header."""
    return lib.type("std_msgs/msg/Header")(stamp=time(lib, stamp_ns), frame_id=frame_id)


def _vector(lib: MessageLibrary, kind: str, xyz: Iterable[float]) -> Any:
    x, y, z = (float(v) for v in xyz)
    return lib.type(f"geometry_msgs/msg/{kind}")(x=x, y=y, z=z)


def _rotation(lib: MessageLibrary, R: Array) -> Any:
    x, y, z, w = (float(v) for v in quaternion_from_matrix(R))
    return lib.type("geometry_msgs/msg/Quaternion")(x=x, y=y, z=z, w=w)


def pose(lib: MessageLibrary, T: Array) -> Any:
    """geometry_msgs/Pose of ``T_frame_body`` [4, 4]."""
    return lib.type("geometry_msgs/msg/Pose")(
        position=_vector(lib, "Point", T[:3, 3]), orientation=_rotation(lib, T[:3, :3])
    )


def _covariance(values: Array | None) -> Array:
    """Covariance as row-major [36]; None (unknown) becomes a diagonal of UNKNOWN."""
    known = UNKNOWN * np.eye(6) if values is None else values
    return np.asarray(known, np.float64).reshape(36)


# Images -----------------------------------------------------------------------------------------


def image(lib: MessageLibrary, stamp_ns: int, frame_id: str, pixels: NDArray[Any]) -> Any:
    """sensor_msgs/Image: uint8 [H, W, 3] as rgb8, uint8 [H, W] as mono8, uint16 [H, W] as 16UC1,
    float32 [H, W] as 32FC1.

    Depth keeps NaN (unknown) and +Inf (sky), as in REP-117 and REP-118. Raises TypeError for
    other arrays.
    """
    encodings = {
        ("uint8", 3): "rgb8", ("uint8", 2): "mono8", ("uint16", 2): "16UC1",
        ("float32", 2): "32FC1",
    }  # fmt: skip
    encoding = encodings.get((pixels.dtype.name, pixels.ndim))
    if encoding is None:
        raise TypeError(f"no image encoding for {pixels.dtype} with {pixels.ndim} dimensions")
    pixels = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<"))
    return lib.type("sensor_msgs/msg/Image")(
        header=header(lib, stamp_ns, frame_id),
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=pixels.nbytes // pixels.shape[0],
        data=lib.bytes(pixels),
    )


def compressed_image(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, rgb: Image, codec: str = "jpeg",
    quality: int = 95,
) -> Any:  # fmt: skip
    """sensor_msgs/CompressedImage of RGB uint8 [H, W, 3], with image_transport's format text.

    codec: jpeg or png. quality: JPEG quality, 1 to 100.
    """
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if codec == "jpeg" else []
    suffix = {"jpeg": ".jpg", "png": ".png"}[codec]
    _, data = cv2.imencode(suffix, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
    return lib.type("sensor_msgs/msg/CompressedImage")(
        header=header(lib, stamp_ns, frame_id),
        format=f"rgb8; {codec} compressed bgr8",
        data=lib.bytes(data),
    )


def millimetres(depth_m: FloatImage) -> NDArray[np.uint16]:
    """Returns depth as OpenNI has it: millimetres, 0 where unknown, sky, or beyond 65.535 m."""
    with np.errstate(invalid="ignore"):
        depth = np.rint(depth_m * np.float32(1000))
        depth[~((depth > 0) & (depth <= 65535))] = 0
    return depth.astype(np.uint16)


# compressed_depth_image_transport: inverse depth in 16 bits, quantum d^2 / (q (q + 1)) at depth d.
QUANTIZATION = 100.0
FARTHEST = 100.0  # metres; what is farther is unknown


def compressed_depth(lib: MessageLibrary, stamp_ns: int, frame_id: str, depth: FloatImage) -> Any:
    """sensor_msgs/CompressedImage of 32FC1 depth [H, W] as image_transport's ``compressedDepth``.

    Depth d (metres) is exact to about d^2 / 20000; unknown, sky, less than .16 m and more than
    100 m become unknown. The layout is that of compressed_depth_image_transport: an int32 and two
    float32 (A, B) before a PNG of round(A / d + B), 0 for unknown.
    """
    a = QUANTIZATION * (QUANTIZATION + 1)
    b = 1 - a / FARTHEST
    with np.errstate(invalid="ignore", divide="ignore"):
        inverse = np.rint(a / depth + b)
        inverse[~((depth > 0) & (depth <= FARTHEST) & (inverse <= 65535))] = 0
    # Fast: the pixels vary too much for more effort to pay.
    _, data = cv2.imencode(".png", inverse.astype(np.uint16), [cv2.IMWRITE_PNG_COMPRESSION, 1])
    header_bytes = struct.pack("<iff", 0, a, b)
    return lib.type("sensor_msgs/msg/CompressedImage")(
        header=header(lib, stamp_ns, frame_id),
        format="32FC1; compressedDepth png",
        data=lib.bytes(np.frombuffer(header_bytes + data.tobytes(), np.uint8)),
    )


def camera_info(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, K: Array, width: int, height: int
) -> Any:
    """sensor_msgs/CameraInfo of a rectified image from K [3, 3] under the corner rule.

    The message follows the ROS rule (cx - 0.5, cy - 0.5): no distortion, R = I, P = [K | 0].
    """
    return calibration_message(lib, stamp_ns, frame_id, pinhole_calibration(K, (width, height)))


def calibration_message(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, calibration: Calibration
) -> Any:
    """sensor_msgs/CameraInfo with the fields of ``calibration``."""
    c = calibration
    P = np.hstack([c.K, np.zeros((3, 1))]) if c.P is None else c.P
    return lib.type("sensor_msgs/msg/CameraInfo")(
        header=header(lib, stamp_ns, frame_id),
        height=int(c.height),
        width=int(c.width),
        distortion_model=c.distortion_model,
        d=lib.sequence(np.asarray(c.D, np.float64).reshape(-1).tolist(), "d"),
        k=np.array(c.K, np.float64).reshape(9),
        r=np.array(c.R, np.float64).reshape(9),
        p=np.array(P, np.float64).reshape(12),
        binning_x=int(c.binning_x),
        binning_y=int(c.binning_y),
        roi=lib.type("sensor_msgs/msg/RegionOfInterest")(
            x_offset=int(c.roi_x),
            y_offset=int(c.roi_y),
            height=int(c.roi_height),
            width=int(c.roi_width),
            do_rectify=bool(c.roi_do_rectify),
        ),
    )


# Clouds -----------------------------------------------------------------------------------------


def depth_cloud(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, depth: FloatImage, K: Array, rgb: Image
) -> Any:
    """sensor_msgs/PointCloud2, organised [H, W], in the camera's optical frame.

    Exactly the back-projection of ``depth`` float32 [H, W] with K (corner rule). NaN where depth
    is not finite; sky too, since points must be finite. rgb: uint8 [H, W, 3].
    """
    rays = _rays(depth.shape, *np.asarray(K, np.float64).ravel().tolist())
    with np.errstate(invalid="ignore"):
        z = depth + depth * np.float32(0)  # NaN where depth is infinite, unchanged elsewhere
        planes = (rays[0] * z, rays[1] * z, z)
    return _cloud(lib, stamp_ns, frame_id, planes, rgb, dense=False)


@functools.lru_cache(maxsize=4)  # one entry per camera: a calibrated one has a constant K
def _rays(shape: tuple[int, int], *K: float) -> tuple[FloatImage, FloatImage]:
    """x and y of each pixel's point at depth 1, float32 [H, W]."""
    points = backproject(np.ones(shape, np.float32), np.array(K).reshape(3, 3))
    return np.ascontiguousarray(points[..., 0]), np.ascontiguousarray(points[..., 1])


def point_cloud(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, points: FloatImage, rgb: Image
) -> Any:
    """sensor_msgs/PointCloud2, unorganised, of finite points [N, 3] and colours uint8 [N, 3]."""
    x, y, z = np.asarray(points, np.float32).T
    return _cloud(lib, stamp_ns, frame_id, (x[None], y[None], z[None]), rgb[None], dense=True)


def xyz_cloud(lib: MessageLibrary, stamp_ns: int, frame_id: str, points: FloatImage) -> Any:
    """sensor_msgs/PointCloud2, unorganised, of finite points [N, 3] without colours."""
    packed = np.ascontiguousarray(points, "<f4")
    return _fields_cloud(lib, stamp_ns, frame_id, packed, dict.fromkeys("xyz", _FLOAT32))


def timed_cloud(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, points: FloatImage, offsets_ns: Array
) -> Any:
    """sensor_msgs/PointCloud2, unorganised, of finite points [N, 3] with their times after the
    stamp [N], as LiDAR drivers send: field ``t``, uint32."""
    kind = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("t", "<u4")])
    packed = np.zeros(len(points), kind)
    packed["x"], packed["y"], packed["z"] = np.asarray(points, np.float32).T
    packed["t"] = offsets_ns
    fields = dict.fromkeys("xyz", _FLOAT32) | {"t": _UINT32}
    return _fields_cloud(lib, stamp_ns, frame_id, packed.view(np.uint8), fields)


def _fields_cloud(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, packed: NDArray[Any], fields: dict[str, int]
) -> Any:
    """sensor_msgs/PointCloud2, unorganised, of finite points. packed: [N, ...] little-endian.
    fields: types of four bytes each, by name, in the order in which they are packed."""
    field, step = lib.type("sensor_msgs/msg/PointField"), 4 * len(fields)
    return lib.type("sensor_msgs/msg/PointCloud2")(
        header=header(lib, stamp_ns, frame_id),
        height=1,
        width=packed.nbytes // step,
        fields=[
            field(name=name, offset=4 * i, datatype=kind, count=1)
            for i, (name, kind) in enumerate(fields.items())
        ],
        is_bigendian=False,
        point_step=step,
        row_step=packed.nbytes,
        data=lib.bytes(packed),
        is_dense=True,
    )


def range_message(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, distance: float, half_angle: float
) -> Any:
    """sensor_msgs/Range of an infrared sensor with a cone of 2 ``half_angle`` rad."""
    return lib.type("sensor_msgs/msg/Range")(
        header=header(lib, stamp_ns, frame_id),
        radiation_type=1,
        field_of_view=2 * half_angle,
        min_range=0.05,
        max_range=20.0,
        range=distance,
        variance=0.0,
    )


def laser_scan(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, ranges: FloatImage, range_max: float
) -> Any:
    """sensor_msgs/LaserScan of a full turn at one time: beam i at angle 2 pi (i / N - 1/2)."""
    step = 2 * np.pi / len(ranges)
    return lib.type("sensor_msgs/msg/LaserScan")(
        header=header(lib, stamp_ns, frame_id),
        angle_min=-float(np.pi),
        angle_max=float(np.pi - step),
        angle_increment=float(step),
        time_increment=0.0,
        scan_time=0.0,
        range_min=0.01,
        range_max=float(range_max),
        ranges=lib.sequence(ranges.tolist(), "f"),
        intensities=lib.sequence((), "f"),
    )


def _cloud(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, planes: tuple[FloatImage, ...], rgb: Image,
    dense: bool,
) -> Any:  # fmt: skip
    """PointCloud2 of x, y, z [H, W] and colours [H, W, 3]; a point is x y z rgb, float32."""
    height, width = rgb.shape[:2]
    packed = np.zeros((height, width, 4), "<f4")
    if packed.size:
        # The float's bytes hold 0x00RRGGBB, as PCL and RViz read the field "rgb".
        color = cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGRA).view("<u4")[..., 0]
        cv2.merge((*planes, (color & 0xFFFFFF).view("<f4")), packed)
    field = lib.type("sensor_msgs/msg/PointField")
    names = ("x", "y", "z", "rgb")
    return lib.type("sensor_msgs/msg/PointCloud2")(
        header=header(lib, stamp_ns, frame_id),
        height=height,
        width=width,
        fields=[
            field(name=name, offset=4 * i, datatype=_FLOAT32, count=1)
            for i, name in enumerate(names)
        ],
        is_bigendian=False,
        point_step=16,
        row_step=16 * width,
        data=lib.bytes(packed),
        is_dense=dense,
    )


# Poses ------------------------------------------------------------------------------------------


def pose_stamped(lib: MessageLibrary, stamp_ns: int, frame_id: str, T: Array) -> Any:
    """geometry_msgs/PoseStamped of ``T_frame_body`` [4, 4]."""
    return lib.type("geometry_msgs/msg/PoseStamped")(
        header=header(lib, stamp_ns, frame_id), pose=pose(lib, T)
    )


def pose_with_covariance(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, T: Array, covariance: Array | None = None
) -> Any:
    """geometry_msgs/PoseWithCovarianceStamped of ``T_frame_body`` [4, 4].

    covariance: [6, 6] (REP-103); None: unknown.
    """
    return lib.type("geometry_msgs/msg/PoseWithCovarianceStamped")(
        header=header(lib, stamp_ns, frame_id), pose=_pose_covariance(lib, T, covariance)
    )


def _pose_covariance(lib: MessageLibrary, T: Array, covariance: Array | None) -> Any:
    return lib.type("geometry_msgs/msg/PoseWithCovariance")(
        pose=pose(lib, T), covariance=_covariance(covariance)
    )


def odometry(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, child_frame_id: str, T: Array,
    covariance: Array | None = None,
) -> Any:  # fmt: skip
    """nav_msgs/Odometry of ``T_frame_child`` [4, 4]; covariance [6, 6], None: unknown.

    Velocities are unknown: zero with a diagonal of UNKNOWN_VELOCITY.
    """
    still = np.zeros(3)
    motion = lib.type("geometry_msgs/msg/Twist")(
        linear=_vector(lib, "Vector3", still), angular=_vector(lib, "Vector3", still)
    )
    return lib.type("nav_msgs/msg/Odometry")(
        header=header(lib, stamp_ns, frame_id),
        child_frame_id=child_frame_id,
        pose=_pose_covariance(lib, T, covariance),
        twist=lib.type("geometry_msgs/msg/TwistWithCovariance")(
            twist=motion, covariance=_covariance(UNKNOWN_VELOCITY * np.eye(6))
        ),
    )


def imu(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, gyro: Array, acceleration: Array
) -> Any:
    """sensor_msgs/Imu of one sample: rad/s and m/s^2, [3] each, and no orientation."""
    unknown = np.zeros(9)
    none = unknown.copy()
    none[0] = -1.0  # sensor_msgs/Imu: not measured
    return lib.type("sensor_msgs/msg/Imu")(
        header=header(lib, stamp_ns, frame_id),
        orientation=_rotation(lib, np.eye(3)),
        orientation_covariance=none,
        angular_velocity=_vector(lib, "Vector3", gyro),
        angular_velocity_covariance=unknown,
        linear_acceleration=_vector(lib, "Vector3", acceleration),
        linear_acceleration_covariance=unknown,
    )


def path(
    lib: MessageLibrary, stamp_ns: int, frame_id: str, poses: Sequence[tuple[int, Array]]
) -> Any:
    """nav_msgs/Path of (stamp_ns, ``T_frame_body``) pairs; ``stamp_ns``: stamp of the path."""
    return lib.type("nav_msgs/msg/Path")(
        header=header(lib, stamp_ns, frame_id),
        poses=[pose_stamped(lib, stamp, frame_id, T) for stamp, T in poses],
    )


def occupancy_grid(lib: MessageLibrary, stamp_ns: int, frame_id: str, grid: OccupancyGrid) -> Any:
    """nav_msgs/OccupancyGrid, REP-103: row 0 is at the smallest y of ``frame_id``."""
    height, width = grid.cells.shape
    T = np.eye(4)
    T[:2, 3] = grid.origin
    info = lib.type("nav_msgs/msg/MapMetaData")(
        map_load_time=time(lib, stamp_ns), resolution=float(np.float32(grid.resolution)),
        width=width, height=height, origin=pose(lib, T),
    )  # fmt: skip
    return lib.type("nav_msgs/msg/OccupancyGrid")(
        header=header(lib, stamp_ns, frame_id), info=info, data=lib.signed_bytes(grid.cells)
    )


def occupancy_update(lib: MessageLibrary, stamp_ns: int, frame_id: str, part: GridPart) -> Any:
    """map_msgs/OccupancyGridUpdate: a rectangle of the last grid."""
    height, width = part.cells.shape
    return lib.type("map_msgs/msg/OccupancyGridUpdate")(
        header=header(lib, stamp_ns, frame_id), x=part.x, y=part.y, width=width, height=height,
        data=lib.signed_bytes(part.cells),
    )  # fmt: skip


def tf(lib: MessageLibrary, transforms: Iterable[tuple[int, str, str, Array]]) -> Any:
    """tf2_msgs/TFMessage of (stamp_ns, parent, child, ``T_parent_child``)."""
    transform = lib.type("geometry_msgs/msg/Transform")
    stamped = lib.type("geometry_msgs/msg/TransformStamped")
    return lib.type("tf2_msgs/msg/TFMessage")(
        transforms=[
            stamped(
                header=header(lib, stamp_ns, parent),
                child_frame_id=child,
                transform=transform(
                    translation=_vector(lib, "Vector3", T[:3, 3]),
                    rotation=_rotation(lib, T[:3, :3]),
                ),
            )
            for stamp_ns, parent, child, T in transforms
        ]
    )


# Our own ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WindowView:
    """What messages of windows say of a view, but its pose: that is the map's."""

    stamp_ns: int
    frame_id: str
    camera: str
    K: Array  # [3, 3] corner rule, pixels of the published depth
    keyframe: bool
    confidence: float  # median; NaN if unknown

    @staticmethod
    def from_frame(frame: TrackedFrame) -> WindowView:
        """Returns what later windows say of a frame."""
        finite = frame.confidence[np.isfinite(frame.confidence)]
        confidence = float(np.median(finite)) if finite.size else _NAN
        return WindowView(
            frame.stamp_ns, frame.frame_id, frame.camera, frame.K, frame.keyframe, confidence
        )


def frame_pose(lib: MessageLibrary, view: WindowView, T_ros_camera: Array) -> Any:
    """da3_ros/FramePose: its pose [4, 4], k of the published depth (ROS pixel rule, as in its
    camera_info) and the median confidence (NaN if unknown)."""
    return lib.type(f"{PACKAGE}/msg/FramePose")(
        header=header(lib, view.stamp_ns, view.frame_id),
        camera=view.camera,
        pose=pose(lib, T_ros_camera),
        k=ros_K(view.K).reshape(9),
        keyframe=bool(view.keyframe),
        confidence=view.confidence,
    )


def window(
    lib: MessageLibrary, report: WindowReport, views: Sequence[tuple[WindowView, Array]],
    map_frame: str = "map", T_ros_map: Array = T_ROS_MAP,
) -> Any:  # fmt: skip
    """da3_ros/Window; ``scale`` is metres per network unit of this window, NaN if unknown.

    views: those to be listed, each with its ``T_map_camera`` [4, 4].
    """
    return lib.type(f"{PACKAGE}/msg/Window")(
        header=header(lib, report.stamp_ns, map_frame),
        id=int(report.id),
        frames=[frame_pose(lib, view, T_ros_map @ T) for view, T in views],
        new_frames=int(report.new_frames),
        scale_source=report.scale.source,
        scale=float(report.scale.value * report.unit),
        scale_sigma=float(report.scale.sigma),
        aligned=bool(report.aligned),
        alignment_rms=float(report.alignment_rms),
        alignment_inliers=float(report.alignment_inliers),
        loop_closed=bool(report.loop_closed),
        inference_s=float(report.inference_s),
        total_s=float(report.total_s),
    )


_STATUS: dict[str, Any] = {
    **dict.fromkeys(
        ("state", "model", "license", "device", "precision", "attention", "last_error"), ""
    ),
    **dict.fromkeys(("window_size", "frames_received", "frames_processed", "map_points"), 0),
    **dict.fromkeys(
        (
            *("memory_budget_gb", "memory_plan_gb", "memory_peak_gb", "input_hz", "output_hz"),
            *("latency_median_s", "latency_p95_s", "scale", "scale_sigma", "map_memory_mb"),
        ),
        _NAN,
    ),
    "scale_source": "none",
}


def status(
    lib: MessageLibrary, stamp_ns: int, *, process_size: tuple[int, int] = (0, 0),
    degraded: Sequence[str] = (), drops: Mapping[str, int] | None = None, **fields: Any,
) -> Any:  # fmt: skip
    """da3_ros/Status; fields that are not given are NaN, 0 or empty. drops: images by cause.

    Raises TypeError for an unknown field.
    """
    if unknown := sorted(fields.keys() - _STATUS.keys()):
        raise TypeError(f"Status has no field {unknown[0]!r}")
    counts = dict(sorted((drops or {}).items()))
    values = {name: type(default)(fields.get(name, default)) for name, default in _STATUS.items()}
    return lib.type(f"{PACKAGE}/msg/Status")(
        header=header(lib, stamp_ns, ""),
        degraded=list(degraded),
        process_size=np.array(process_size, np.uint32),
        drop_causes=list(counts),
        drop_counts=lib.sequence(counts.values(), "Q"),
        **values,
    )
