"""The vocabulary that every room shares: frames, windows, predictions, results.

Conventions, used everywhere in the ROS-free core
-------------------------------------------------
* Poses are ``T_target_source``, float64 [4, 4], rotation orthonormal; ``T_world_camera`` maps
  camera to world. Camera axes are OpenCV optical: x right, y down, z forward.
* A name says its coordinate frame, and docs/architecture.md what each one is: ``window``,
  ``segment``, ``vo``, ``scene``, ``world``, ``odom``, ``map``. ``ref`` is the one that the caller
  works in.
* Depth is z-depth along the optical axis, float32, in metres when ``Scale.metric``, else in the
  unit of the first window; NaN where unknown, +Inf for sky (REP-117, REP-118).
* ``K`` is float64 [3, 3] under the *corner* rule: pixel ``i`` covers ``[i, i + 1)``, so the centre
  of the top-left pixel is (0.5, 0.5). ``Calibration`` is the exception: it holds what
  ``sensor_msgs/CameraInfo`` says, where pixel ``i`` is centred on ``i``.
* Images are uint8 RGB [H, W, 3]. Stamps are integer nanoseconds and are never rounded.

Knows NumPy and nothing else of this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64 unless said otherwise
Image = NDArray[np.uint8]
FloatImage = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Calibration:
    """One camera's calibration, field by field as in sensor_msgs/CameraInfo (ROS pixel rule).

    ``width`` and ``height`` are those of the full sensor mode that K, D and P refer to; binning
    and region of interest say how the image at hand was cut from it (0: as the full image).
    """

    width: int
    height: int
    K: Array  # [3, 3]
    distortion_model: str = "plumb_bob"
    D: Array = field(default_factory=lambda: np.zeros(0))  # [0..14]
    R: Array = field(default_factory=lambda: np.eye(3))  # [3, 3] rectifying rotation
    P: Array | None = (
        None  # [3, 4] projection of the rectified image; None: K with zero fourth column
    )
    binning_x: int = 0
    binning_y: int = 0
    roi_x: int = 0
    roi_y: int = 0
    roi_width: int = 0
    roi_height: int = 0
    roi_do_rectify: bool = False


@dataclass(frozen=True, eq=False)
class Ready:
    """What a frame's image becomes for the network."""

    process_res: int  # what it was made for
    image: Image  # [h, w, 3] RGB, rectified, h and w multiples of 14
    full: Image  # [H, W, 3] the same at the camera's size; the frame's own array if it was fine
    K: Array | None  # [3, 3] corner rule, pixels of ``image``; None: the network's own is used
    valid: NDArray[np.bool_] | None  # [h, w] pixels with a source in the camera's image; None: all


@dataclass(frozen=True, eq=False)
class Frame:
    """One camera image as it came in, with what is known about it."""

    stamp_ns: int
    image: Image  # [H, W, 3] RGB
    frame_id: str = "camera_optical"  # optical frame of the input, copied to every output
    camera: str = ""  # name within a rig; empty for a single camera
    calibration: Calibration | None = None
    rectified: bool = False  # True: the image is already rectified, P holds and D is ignored
    # [4, 4] of the robot's own odometry at this stamp, in its world, metres; None: not known
    T_prior_camera: Array | None = None
    T_rig_camera: Array | None = None  # [4, 4] where on the rig it is, metres; None: not known
    ready: Ready | None = None  # what was prepared beforehand; None: nothing


@dataclass(frozen=True, eq=False)
class View:
    """A frame made ready for the network: rectified, resized to multiples of 14."""

    id: int  # unique in a stream; the same frame keeps its id in every window it is in
    stamp_ns: int
    image: Image  # [h, w, 3] RGB
    K: Array | None = (
        None  # [3, 3] corner rule, pixels of ``image``; None: the network's own is used
    )
    frame_id: str = "camera_optical"
    camera: str = ""
    T_prior_camera: Array | None = None  # [4, 4] as in Frame
    T_rig_camera: Array | None = None  # [4, 4] as in Frame
    instant: int = -1  # views of one instant, seen by several cameras, have the same number


@dataclass(frozen=True)
class ScaleMeasurement:
    """A measurement of one window's unit."""

    value: float  # metres per network unit; NaN where it could not be measured
    sigma: float  # relative standard deviation


@dataclass(frozen=True, eq=False)
class Window:
    """Views that pass the network together: shared ones first (anchor first), new ones last."""

    id: int
    views: tuple[View, ...]
    new: int  # how many views at the end have not been delivered yet
    wanted: tuple[int, ...] | None = None  # views whose depth is needed; None: of all
    # [N, 4, 4] the robot's own poses of all views, metres, for the network; None: it gets none
    T_prior_camera: Array | None = None


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the network says of a window, in that window's own world and unit.

    The world is about the first view's camera; depth and translations share one unknown unit.
    Maps of views that the window did not want are NaN. A network that sees each image alone says
    nothing of poses, confidence and K (NaN, K as calibrated), and each depth has its own unit.
    """

    depth: FloatImage  # [N, h, w] z-depth
    confidence: FloatImage  # [N, h, w] from 1 upwards, larger is better, uncalibrated
    T_window_camera: Array  # [N, 4, 4]
    K: Array  # [N, 3, 3] corner rule, pixels of the processed image
    sky: FloatImage | None = None  # [N, h, w], from a sky branch; NaN: not predicted
    inference_s: float = 0.0
    measure: ScaleMeasurement | None = (
        None  # of the window's unit, where a metric model looked at it
    )
    posed: bool = True  # False: each view was seen alone
    descriptor: FloatImage | None = None  # [N, D] alike for views that look alike


@dataclass(frozen=True)
class MotionError:
    """What a network may be off by in the same way in every window, between two cameras.

    Standard deviations of the length of the error: per rotation between them, per way between them
    over the depth, and at the least (rad; places follow by the depth).
    """

    rotation: float = 0.0
    way: float = 0.0
    least: float = 0.0


@dataclass(frozen=True)
class Scale:
    """How network units relate to metres, and who says so."""

    source: str = "none"  # none | fixed | metric_model | odometry | rig
    value: float = float("nan")  # metres per unit of the scene; NaN if unknown
    sigma: float = float("nan")  # relative standard deviation; NaN if unknown

    @property
    def metric(self) -> bool:
        """Whether published lengths are metres."""
        return self.source != "none"


@dataclass(frozen=True, eq=False)
class WindowReport:
    """What happened to one window on its way into the scene."""

    id: int
    stamp_ns: int  # of the newest frame
    view_ids: tuple[int, ...]  # of all its views, the new ones last
    new_frames: int
    aligned: bool  # False: the fit was refused and motion was extrapolated
    alignment_rms: float  # segment units, over the inliers; NaN for the first window
    alignment_inliers: float  # share 0..1; NaN for the first window
    unit: float  # segment units per network unit of this window
    scale: Scale = field(default_factory=Scale)
    loop_closed: bool = False
    segment: int = 0  # windows of one are joined; what lies between two segments is guessed
    focal_ratio: float = float("nan")  # the network's focal length over the calibrated one
    inference_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, eq=False)
class TrackedFrame:
    """A processed frame, delivered once, in stamp order; in the scene's one world frame."""

    id: int
    stamp_ns: int
    frame_id: str
    camera: str
    image: Image  # [h, w, 3] RGB, rectified, at the depth's size
    depth_m: FloatImage  # [h, w] z-depth, NaN unknown, +Inf sky; metres only if scale.metric
    confidence: FloatImage  # [h, w]
    K: Array  # [3, 3] corner rule, pixels of ``depth_m``
    T_world_camera: Array  # [4, 4]
    keyframe: bool
    scale: Scale
    window: WindowReport
    # [4, 4] corrections of the world that odometry, which never jumps, does not take part in
    T_odom_world: Array = field(default_factory=lambda: np.eye(4))
    leads: bool = True  # of several cameras the first one that saw this instant
    # [6, 6] of (place, rotation about fixed axes) in the world's axes, published units; None: not
    # known. In odometry since it began, and in the map.
    covariance_odom: Array | None = None
    covariance_map: Array | None = None

    @property
    def posed(self) -> bool:
        """Whether anybody knows where the camera was; K may be unknown (NaN) too where not."""
        return bool(np.isfinite(self.T_world_camera).all())
