"""Data types shared by all rooms: frames, windows, predictions, results.

Conventions, used everywhere in the ROS-free core
-------------------------------------------------
* Poses are ``T_target_source``, float64 [4, 4], rotation orthonormal; ``T_map_camera`` maps
  camera to map. Camera axes are OpenCV optical: x right, y down, z forward.
* A name says its coordinate frame, and docs/architecture.md what each one is: ``window``,
  ``submap``, ``local`` (odometry's), ``map``, ``odom``.
* Inside, the map has the optical axes of its first camera; ``T_ros_map`` maps it to the axes that
  ROS publishes (REP-103, level with the robot), and a name with ``ros`` is in those.
* Depth is z-depth along the optical axis, float32, in metres when ``Scale.metric``, else in the
  unit of the first window; NaN where unknown, +Inf for sky (REP-117, REP-118).
* ``K`` is float64 [3, 3] under the *corner* rule: pixel ``i`` covers ``[i, i + 1)``, so the centre
  of the top-left pixel is (0.5, 0.5). Exception: ``Calibration`` holds the values of
  ``sensor_msgs/CameraInfo``, where pixel ``i`` is centred on ``i`` (the *ROS* rule).
* Images are uint8 RGB [H, W, 3]. Stamps are integer nanoseconds and are never rounded.

Imports nothing from this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64 unless stated otherwise
Image = NDArray[np.uint8]
FloatImage = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Calibration:
    """One camera's calibration, field by field as in sensor_msgs/CameraInfo (ROS pixel rule).

    K, D and P refer to the full sensor mode of ``width`` x ``height``; binning and region of
    interest define the part of it that the image shows (0: all of it).
    """

    width: int
    height: int
    K: Array  # [3, 3]
    distortion_model: str = "plumb_bob"
    D: Array = field(default_factory=lambda: np.zeros(0))  # [0..14]
    R: Array = field(default_factory=lambda: np.eye(3))  # [3, 3] rectifying rotation
    # [3, 4] projection of the rectified image; None: K with a zero fourth column
    P: Array | None = None
    binning_x: int = 0
    binning_y: int = 0
    roi_x: int = 0
    roi_y: int = 0
    roi_width: int = 0
    roi_height: int = 0
    roi_do_rectify: bool = False


UPPER_BOUND, LOWER_BOUND = "upper_bound_resize", "lower_bound_resize"
RESIZE_METHODS = (UPPER_BOUND, LOWER_BOUND)


@dataclass(frozen=True)
class ResizeRule:
    """The size of camera images in the network: the parameters of these names."""

    process_res: int  # pixels of the longest side; of the shortest one with LOWER_BOUND
    process_res_method: str = UPPER_BOUND


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """A frame's image, prepared for the network."""

    rule: ResizeRule  # for which it was prepared
    image: Image  # [h, w, 3] RGB, rectified, h and w multiples of 14
    full: Image  # [H, W, 3] rectified, at the camera's size; the frame's array if unchanged
    K: Array | None  # [3, 3] corner rule, pixels of ``image``; None: the network's own is used
    # [h, w] pixels that have a source in the camera's image and do not show the robot itself
    # (parameter `mask`); None: all
    valid: NDArray[np.bool_] | None
    full_valid: NDArray[np.bool_] | None = None  # [H, W] the same for ``full``
    lenses: int = 0  # calibrations that tracks had corrected until then


@dataclass(frozen=True, eq=False)
class SlamPath:
    """The whole trajectory of another SLAM, as it corrected it at one time."""

    number: int  # differs between two paths of a stream
    stamp_ns: int  # time of the correction
    stamps_ns: Array  # int64 [N], ascending
    T_slam_base: Array  # [N, 4, 4] poses of the robot's base in the map of the other SLAM, metres


@dataclass(frozen=True, eq=False)
class SlamPose:
    """What another SLAM says at the stamp of a frame; None: unknown."""

    T_slam_prior: Array | None = None  # [4, 4] pose of the prior's frame in its map
    path: SlamPath | None = None  # its newest path
    T_base_camera: Array | None = None  # [4, 4] mount of the camera on the base of the path


@dataclass(frozen=True, eq=False)
class GlobalPose:
    """Where the robot was, by a tag, GNSS or a dock: in the map as it is published."""

    stamp_ns: int
    T_ros_base: Array  # [4, 4] of the robot's base, metres
    # [6, 6] of position, m^2, and rotation about fixed axes, rad^2, in the axes of the map; what
    # is unknown has a variance of ``UNKNOWN_M2`` or ``UNKNOWN_RAD2``
    covariance: Array
    T_base_camera: Array  # [4, 4] mount of the camera, metres


UNKNOWN_M2, UNKNOWN_RAD2 = 1e8, 1e4


@dataclass(frozen=True)
class ImuNoise:
    """Standard deviations of an IMU's errors, of each axis.

    The defaults are a consumer chip's. Noise and walk are those published with the calibration of
    a phone's chip, BMI160 (data set TUM VI, arXiv 1804.06120); the offsets are those of the data
    sheet of BMI088: 1 degree/s and 20 mg.
    """

    gyro: float = 1.6e-4  # white noise, rad/s per root Hz
    gyro_walk: float = 2.2e-5  # of the bias, rad/s per root s
    gyro_bias: float = 0.0175  # of the constant offset, rad/s
    acceleration: float = 2.8e-3  # white noise, m/s^2 per root Hz
    acceleration_walk: float = 8.6e-4  # of the bias, m/s^2 per root s
    acceleration_bias: float = 0.196  # of the constant offset, m/s^2


@dataclass(frozen=True, eq=False)
class ImuStretch:
    """What an IMU measured from a camera's last frame to this one.

    Both vectors are in the optical axes of the camera; the IMU's own noise and biases are in them.
    """

    stamps_ns: Array  # int64 [N], ascending, N >= 2; first and last are those of the two frames
    gyro: Array  # [N, 3] rad/s
    acceleration: Array  # [N, 3] m/s^2, specific force: 9.8 upwards at rest
    t_camera_imu: Array  # [3] position of the IMU in the camera's frame, metres
    noise: ImuNoise = ImuNoise()  # of its samples, as its calibration says


@dataclass(frozen=True, eq=False)
class RangeCone:
    """A distance that a sensor with a cone measured: that of the nearest surface in it."""

    origin: Array  # [3] of the sensor, camera's optical axes, metres
    axis: Array  # [3] of the cone, unit vector in the same axes
    half_angle: float  # rad
    range_m: float


@dataclass(frozen=True, eq=False)
class RangeReturns:
    """What range sensors measured around a frame, as seen from the camera at its stamp."""

    points: FloatImage  # [N, 3] camera's optical axes, metres
    cones: tuple[RangeCone, ...] = ()


@dataclass(frozen=True, eq=False)
class Frame:
    """One camera image as received, with its calibration and poses."""

    stamp_ns: int
    image: Image  # [H, W, 3] RGB
    frame_id: str = "camera_optical"  # optical frame of the input, copied to every output
    camera: str = ""  # name within a rig; empty for a single camera
    calibration: Calibration | None = None
    rectified: bool = False  # True: the image is already rectified, P holds and D is ignored
    # [4, 4] camera pose at this stamp from the robot, in the prior's frame, metres; None: unknown
    T_prior_camera: Array | None = None
    # [6] variances of that pose's position, m^2, and rotation, rad^2, in the axes of the prior's
    # frame, as the robot states them; None: unknown
    prior_variance: Array | None = None
    T_rig_camera: Array | None = None  # [4, 4] pose on the rig, metres; None: unknown
    # [4, 4] camera in a level frame of the robot (z up), metres; None: unknown
    T_level_camera: Array | None = None
    ready: PreparedImage | None = None  # the prepared image; None: not prepared yet
    slam: SlamPose | None = None  # of another SLAM that the map follows; None: unknown
    imu: ImuStretch | None = None  # since the camera's last frame; None: none, or with a gap
    returns: RangeReturns | None = None  # of range sensors, around the stamp; None: none
    anchors: tuple[GlobalPose, ...] = ()  # that have come since the camera's last frame


@dataclass(frozen=True, eq=False)
class View:
    """A frame prepared for the network: rectified, resized to multiples of 14."""

    id: int  # unique in a stream; a frame has the same id in all its windows
    stamp_ns: int
    image: Image  # [h, w, 3] RGB
    # [3, 3] corner rule, pixels of ``image``; None: the network's own is used
    K: Array | None = None
    frame_id: str = "camera_optical"
    camera: str = ""
    T_prior_camera: Array | None = None  # [4, 4] as in Frame
    T_rig_camera: Array | None = None  # [4, 4] as in Frame
    frameset: int = -1  # equal for views of one frameset
    valid: NDArray[np.bool_] | None = None  # [h, w] as in PreparedImage
    prior_variance: Array | None = None  # [6] as in Frame
    slam: SlamPose | None = None  # as in Frame
    T_level_camera: Array | None = None  # [4, 4] as in Frame
    imu: ImuStretch | None = None  # as in Frame
    returns: RangeReturns | None = None  # as in Frame; None in overlap views
    anchors: tuple[GlobalPose, ...] = ()  # as in Frame


@dataclass(frozen=True)
class ScaleMeasurement:
    """A measurement of one window's unit."""

    value: float  # metres per network unit; NaN: could not be measured
    sigma: float  # relative standard deviation


@dataclass(frozen=True, eq=False)
class Window:
    """Views that pass the network together: overlap views first, new views last.

    The first view is the reference view of the network.
    """

    id: int
    views: tuple[View, ...]
    new: int  # number of new views, at the end
    wanted: tuple[int, ...] | None = None  # indices of views whose depth is needed; None: all
    # [N, 4, 4] the robot's own camera poses, metres, as network input; None: no known poses
    T_prior_camera: Array | None = None


@dataclass(frozen=True, eq=False)
class Prediction:
    """The network's output for a window, in the window's own frame and unit.

    The frame is close to the first view's camera; depth and translations share one unknown unit.
    Maps of unwanted views are NaN. With a single-image network, poses and confidence are NaN, K
    is the calibrated one, and each depth map has its own unit.
    """

    depth: FloatImage  # [N, h, w] z-depth
    confidence: FloatImage  # [N, h, w] from 1 upwards, larger is better, uncalibrated
    T_window_camera: Array  # [N, 4, 4]
    K: Array  # [N, 3, 3] corner rule, pixels of the processed image
    sky: FloatImage | None = None  # [N, h, w], from a sky branch; NaN: not predicted
    inference_s: float = 0.0
    measure: ScaleMeasurement | None = None  # of the window's unit; None: not measured
    posed: bool = True  # False: no poses, from a single-image network
    descriptor: FloatImage | None = None  # [N, D], similar for views with similar appearance
    # [G, 38, h, w] float16, of the last G views: ``splats.relative.CHANNELS``; None: not predicted
    splats: NDArray[np.float16] | None = None


@dataclass(frozen=True, eq=False)
class WindowEstimate:
    """The geometry of a window as it counts, in the window's own frame and unit.

    First that of the network's prediction, which never changes. Calibration, a metric model, a
    scale source, a prior and tracks each return another estimate.
    """

    depth: FloatImage  # [N, h, w] z-depth; NaN where a view is not valid, once that is removed
    confidence: FloatImage  # [N, h, w] as in ``Prediction``
    T_window_camera: Array  # [N, 4, 4]
    K: Array  # [N, 3, 3] corner rule, pixels of the processed image
    sky: FloatImage | None = None  # [N, h, w], from a sky branch; NaN: not predicted
    # Of the window's unit by a metric network; None: not measured.
    measure: ScaleMeasurement | None = None
    # Of that unit by each source of metres, in the order of `scale.source`; None: not measured.
    measures: tuple[ScaleMeasurement | None, ...] = ()

    @classmethod
    def of(cls, prediction: Prediction) -> WindowEstimate:
        """Returns the prediction's geometry; shares its arrays."""
        p = prediction
        return cls(p.depth, p.confidence, p.T_window_camera, p.K, p.sky, p.measure)


@dataclass(frozen=True, eq=False)
class RefinedLoop:
    """A window of two visits of one location, with poses by tracks."""

    estimate: WindowEstimate
    # [3] of scale, rotation, rad^2, and position, network units^2: of the second visit's first
    # view, relative to the window's first view
    variance: Array


@dataclass(frozen=True, eq=False)
class PlacedView:
    """Where tracks place a view among others, whose poses in local are known."""

    T_local_camera: Array  # [4, 4]
    log_scale: float  # of its true over its predicted depth, both in local
    # [3] mean standard deviations: log scale; of an axis, rotation, rad, and position, units of
    # local
    sigma: Array
    tracks: int  # that it shares with the others


@dataclass(frozen=True)
class MotionError:
    """Systematic error of a network's relative pose of two cameras: the same in every window.

    Standard deviations of the error's length (rad for rotation; times the depth for position).
    """

    rotation: float = 0.0  # per radian of rotation between the cameras
    distance: float = 0.0  # per distance between the cameras over the depth
    least: float = 0.0  # the smallest error of any pair

    def plus(self, other: MotionError, share: float) -> MotionError:
        """Returns the error with a share of another one added."""
        return MotionError(
            self.rotation + share * other.rotation,
            self.distance + share * other.distance,
            self.least + share * other.least,
        )


@dataclass(frozen=True)
class Scale:
    """Metres per unit of the scene, with source and uncertainty."""

    # Value of scale.source, of a list those that count; map: of a loaded map.
    source: str = "none"
    value: float = float("nan")  # metres per map unit; NaN if unknown
    sigma: float = float("nan")  # relative standard deviation; NaN if unknown

    @property
    def metric(self) -> bool:
        """Whether published lengths are metres."""
        return self.source != "none"


@dataclass(frozen=True, eq=False)
class WindowReport:
    """Results of aligning one window to the scene."""

    id: int
    stamp_ns: int  # of the newest frame
    view_ids: tuple[int, ...]  # ids of all views, new ones last
    new_frames: int
    aligned: bool  # False: the fit was rejected and the motion extrapolated
    alignment_rms: float  # units of odometry, over the inliers; NaN for the first window
    alignment_inliers: float  # share 0..1; NaN for the first window
    unit: float  # units of odometry per network unit of this window
    scale: Scale = field(default_factory=Scale)
    loop_closed: bool = False
    chain: int = 0  # windows of a chain are aligned to each other, and not to those of another one
    focal_ratio: float = float("nan")  # the network's focal length over the calibrated one
    refined: bool = False  # whether feature tracks determine the new poses
    tracks: int = 0  # feature tracks of the refinement, or those found if they were too few
    reprojection_px: float = float("nan")  # RMS error of the tracks, pixels of the camera image
    refinement_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0
    # [N, 4, 4] poses of all views in the map as this window leaves it, published units; NaN: the
    # map holds the view no longer. Empty: no view has a pose.
    T_map_camera: Array = field(default_factory=lambda: np.zeros((0, 4, 4)))


@dataclass(frozen=True, eq=False)
class DenseDepth:
    """Depth of a keyframe, measured by the images of its neighbours where they decide it, and by
    returns of range sensors."""

    depth: FloatImage  # [h, w] z-depth; NaN and +Inf as the network's
    sigma: FloatImage  # [h, w] relative standard deviation; NaN where the depth is not finite
    measured: NDArray[np.bool_]  # [h, w]; elsewhere the network's depth, corrected


@dataclass(frozen=True, eq=False)
class TrackedFrame:
    """A processed frame, delivered once, in stamp order."""

    id: int
    stamp_ns: int
    frame_id: str
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth_m: FloatImage  # [h, w] z-depth, NaN unknown, +Inf sky; metres only if scale.metric
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth_m``
    T_map_camera: Array  # [4, 4]
    keyframe: bool
    scale: Scale
    window: WindowReport
    # [4, 4] map to odom: removes scale and loop corrections, so that odometry stays continuous
    T_odom_map: Array = field(default_factory=lambda: np.eye(4))
    is_reference: bool = True  # whether it is the first of its frameset; True with one camera
    # [6, 6] of (position, rotation about fixed axes) in the map's axes, published units; None:
    # unknown. Odometry: accumulated since its start; map: relative to the map.
    covariance_odom: Array | None = None
    covariance_map: Array | None = None
    # [4, 4] camera in a level frame (z up): of the robot's base, in metres, or of the floor below
    # the camera, in published units, with z NaN if its height is unknown; None: unknown
    T_level_camera: Array | None = None
    # Why the image shows nothing, or was not placed (``image_check.CAUSES``, ``lost``): no depth,
    # and the pose is held, NaN before the first placed frame. Empty: it was processed.
    blind: str = ""

    @property
    def ends_window(self) -> bool:
        """Whether it is the last new frame of its window."""
        return self.window.view_ids[-1:] == (self.id,)

    @property
    def height_known(self) -> bool:
        """Whether the height of the camera over the floor is known."""
        return self.T_level_camera is not None and bool(np.isfinite(self.T_level_camera[2, 3]))

    @property
    def posed(self) -> bool:
        """Whether the camera pose is known; if not, K may be unknown (NaN) too."""
        return bool(np.isfinite(self.T_map_camera).all())
