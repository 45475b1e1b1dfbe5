"""Faults of an IMU's mount, units and stamps, by comparing its rotations with a camera's."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import turn_between
from da3_ros.inertial.noise import GRAVITY
from da3_ros.inertial.samples import is_saturated
from da3_ros.types import Array, ImuStretch

# Newest rotations between frames that are compared, and those of them that are also compared
# alone: a mount may slip, and rotations before and after it have none in common.
PAIRS, NEWEST = 150, 30
LEAST_PAIRS = 20
SOLVED_EVERY = 10  # rotations
SHIFTS_S = np.arange(-0.2, 0.2001, 0.01)  # time offsets that are tried
LEAST_TURN = 0.1  # RMS of the camera's rate, rad/s
EXPLAINED = 0.5  # least share of the camera's rotation that a sound IMU measures
WRONG_ANGLE = math.radians(5)
PERIOD_S = 0.1  # least time of a rotation that is compared: poses have errors
PLANAR = 0.1  # share of the rotation about a second axis, below which it shows but one axis
SURE = 25.0  # in residuals' variances
# Rate that a network may bend the way by, rad/s: it does not average out, and looks like a little
# of a wrong mount, or of a time offset, for as long as the camera turns alike.
BENDS = 0.002
MOST_SATURATED = 0.05  # share of the stretches
MOST_OFFSET_SIGMA_S = 0.01
LATE_S = 0.04  # time offset that is named: the scale suffers from 50 ms
DEGREES = math.degrees(1)
# Axes of a body (x ahead, y left, z up) in optical axes.
R_OPTICAL_BODY = np.array([[0.0, -1.0, 0.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])


@dataclass(frozen=True)
class TimeOffset:
    """By how much the stamps of an IMU are later than those of the camera."""

    seconds: float
    sigma: float


@dataclass(frozen=True, eq=False)
class _Match:
    """The rotation and the time offset with which both rates agree best."""

    R: Array  # [3, 3] that the rates of the IMU are turned by
    explained: float  # share of the camera's rotation
    stated: float  # the same with the stated mount
    likeness: float  # correlation of both, whatever the IMU's unit
    gain: float  # rates of the camera over those of the IMU
    noise: float  # of both: by as much as one of the mount's three angles explains by chance
    varies: bool  # whether the camera's rate does, so that no bias of the gyro looks like it
    offset: TimeOffset
    products: Array  # [3, 3] sums of the camera's rates times those of the IMU
    squares: tuple[float, float]  # sums of the squares of both

    def explained_by(self, R: Array) -> float:
        """Returns the share that is explained if the rates of the IMU are turned by ``R``."""
        total, own = self.squares
        return 1 - (total + own - 2 * float((R * self.products).sum())) / total


class MountCheck:
    """Compares rotation rates of the newest frames; 10 ms of one core every tenth frame.

    ``fault``: what is wrong, in one line with the remedy, or an empty text. It stays until as many
    rotations as are compared show none, and fit the stated mount better than one that was named,
    since few rotations show each mount. ``time_offset_s``: None until the motion shows
    it to 10 ms.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets all, as of another camera: its mount is another one."""
        self.fault = ""
        self.time_offset_s: TimeOffset | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets all motion, after a time jump or in another frame."""
        # Of each frame: both stamps, the camera's rate [3] and the stretch.
        self._pairs: deque[tuple[ImuStretch, Array]] = deque(maxlen=PAIRS)
        self._last: tuple[int, Array] | None = None
        self._since: list[ImuStretch] = []  # that follow each other, up to the newest frame
        self._begin = np.eye(3)  # rotation of the camera where they begin
        self._new = 0
        self._sound = 0  # rotations since those that showed a fault
        self._named: Array | None = None  # [3, 3] the mount's error, if that is the fault

    def add(self, stamp_ns: int, stretch: ImuStretch | None, R_local_camera: Array) -> None:
        """Adds a frame with its rotation [3, 3], and the stretch since the camera's last frame.

        A stretch that does not begin at the last frame that was added, or None, is a gap.
        """
        last, self._last = self._last, (stamp_ns, R_local_camera)
        if last is None or stretch is None or stretch.stamps_ns[0] != last[0]:
            self._since = []
            return
        if not self._since:
            self._begin = last[1]
        self._since.append(stretch)
        seconds = (stamp_ns - int(self._since[0].stamps_ns[0])) / 1e9
        if seconds < PERIOD_S - 1e-3:
            return
        turn = Rotation.from_matrix(self._begin.T @ R_local_camera).as_rotvec()
        self._pairs.append((_joined(self._since), turn / seconds))
        self._since = []
        self._new += 1
        if self._new >= SOLVED_EVERY and len(self._pairs) >= LEAST_PAIRS:
            self._solve()
            self._new = 0

    @property
    def late(self) -> str:
        """By how much the stamps are wrong, in one line with the remedy, or an empty text."""
        found = self.time_offset_s
        if found is None or abs(found.seconds) < LATE_S:
            return ""
        side = "later" if found.seconds > 0 else "earlier"
        return (
            f"its stamps are {1e3 * abs(found.seconds):.0f} ms {side} than those of the images: "
            f"subtract {found.seconds:.3f} from imu.time_offset_s"
        )

    def _solve(self) -> None:
        pairs = list(self._pairs)
        match, newest = _match(pairs), _match(pairs[-NEWEST:])
        faults = [_fault(one) for one in (newest, match) if one is not None]
        found = [(self._sample_fault(), None), *faults]
        text, wrong = next((one for one in found if one[0]), ("", None))
        if text:
            self.fault, self._named, self._sound = text, wrong, 0
        elif self.fault and self._is_refuted(match, newest):
            self.fault = ""
        # Rotations that fit no mount, as before and after a slip, look late.
        if match is not None and not self.fault and match.offset.sigma < MOST_OFFSET_SIGMA_S:
            self.time_offset_s = match.offset

    def _is_refuted(self, match: _Match | None, newest: _Match | None) -> bool:
        """Whether as many rotations as are compared, in which no fault is seen, contradict the one
        that was named."""
        # A camera that stands, or turns evenly, shows nothing.
        self._sound += self._new if newest is not None and newest.varies else 0
        if self._sound < PAIRS or self._named is None:
            return self._sound >= PAIRS
        return match is not None and (
            match.stated - match.explained_by(self._named) > SURE * match.noise
        )

    def _sample_fault(self) -> str:
        """Returns what is wrong with ranges and units of the samples, or an empty text."""
        saturated = np.mean([is_saturated(s) for s, _ in self._pairs])
        if saturated > MOST_SATURATED:
            return (
                f"the IMU is at the limit of its range in {100 * saturated:.0f} % of the frames: "
                "set a larger range in its driver, or damp vibrations"
            )
        force = np.mean([s.acceleration.mean(axis=0) for s, _ in self._pairs], axis=0)
        lengths = [float(np.linalg.norm(s.acceleration.mean(axis=0))) for s, _ in self._pairs]
        length = float(np.median(lengths))
        if 0.7 < length < 1.3:
            return "the IMU's accelerations are in g: sensor_msgs/Imu has m/s^2"
        if max(length, float(np.linalg.norm(force))) < GRAVITY / 2:
            return (
                f"the IMU measures {length:.1f} m/s^2 where gravity is {GRAVITY}: publish "
                "accelerations with gravity, in m/s^2"
            )
        return ""


def _match(pairs: list[tuple[ImuStretch, Array]]) -> _Match | None:
    """Compares the rates of pairs at all time offsets; None if the camera hardly turns."""
    measured, inside = _shifted_rates([stretch for stretch, _ in pairs])
    seen = np.array([rate for _, rate in pairs])[inside]
    count = len(seen)
    if count < LEAST_PAIRS:
        return None
    if _rms(seen) < LEAST_TURN:
        return None
    seen = seen - seen.mean(axis=0)
    measured = measured - measured.mean(axis=1, keepdims=True)  # without the gyro's bias
    products = np.einsum("ni,snj->sij", seen, measured)
    U, S, V = np.linalg.svd(products)
    sign = np.sign(np.linalg.det(U @ V))
    common = S[:, 0] + S[:, 1] + sign * S[:, 2]
    total, own = float((seen**2).sum()), (measured**2).sum(axis=(1, 2))
    rest = total + own - 2 * common
    best = int(np.argmin(rest))
    R = U[best] @ np.diag([1.0, 1.0, sign[best]]) @ V[best]
    if S[best, 1] < PLANAR * S[best, 0]:  # about the one axis nobody knows
        R = turn_between(V[best][0], U[best][:, 0])
    stated = float(total + own[best] - 2 * np.trace(products[best]))
    noise = float(rest[best]) / (3 * count - 6) + count * BENDS**2 / 3
    return _Match(
        R, 1 - float(rest[best]) / total, 1 - stated / total,
        float(common[best]) / math.sqrt(total * max(own[best], 1e-12)),
        float(common[best]) / max(own[best], 1e-12), noise / total, _rms(seen) > LEAST_TURN,
        _offset(rest, best, noise), products[best], (total, float(own[best])),
    )  # fmt: skip


def _shifted_rates(stretches: list[ImuStretch]) -> tuple[Array, Array]:
    """Returns mean rates [S, N, 3] of the gyro in the times of frames, shifted by all offsets, and
    which [M] of the frames have samples for all."""
    begin = int(stretches[0].stamps_ns[0])
    stamps, angle, offset = [], [], np.zeros(3)
    for s in stretches:
        times = (s.stamps_ns - begin) / 1e9
        steps = np.diff(times)[:, None] * (s.gyro[:-1] + s.gyro[1:]) / 2
        sums = offset + np.concatenate((np.zeros((1, 3)), np.cumsum(steps, axis=0)))
        stamps.append(times)
        angle.append(sums)
        offset = sums[-1]
    t, sums = np.concatenate(stamps), np.concatenate(angle)
    ends = np.array([(s.stamps_ns[0] - begin, s.stamps_ns[-1] - begin) for s in stretches])
    ends = ends / 1e9
    # Nothing is known of the time beyond a gap.
    gaps = np.flatnonzero(ends[1:, 0] > ends[:-1, 1])
    run = np.searchsorted(gaps, np.arange(len(ends)))
    runs = np.concatenate(([0], gaps + 1)), np.concatenate((gaps, [len(ends) - 1]))
    first, last = ends[runs[0][run], 0], ends[runs[1][run], 1]
    inside = (ends[:, 0] + SHIFTS_S[0] >= first) & (ends[:, 1] + SHIFTS_S[-1] <= last)
    ends = ends[inside]
    at = ends[None] + SHIFTS_S[:, None, None]
    turned = np.stack([np.interp(at, t, axis) for axis in sums.T], axis=-1)
    return (turned[:, :, 1] - turned[:, :, 0]) / (ends[:, 1] - ends[:, 0])[None, :, None], inside


def _joined(stretches: list[ImuStretch]) -> ImuStretch:
    """Returns stretches that follow each other as one."""
    if len(stretches) == 1:
        return stretches[0]
    kept = [slice(0 if k == 0 else 1, None) for k in range(len(stretches))]
    parts = list(zip(stretches, kept, strict=True))
    return ImuStretch(
        np.concatenate([s.stamps_ns[k] for s, k in parts]),
        np.concatenate([s.gyro[k] for s, k in parts]),
        np.concatenate([s.acceleration[k] for s, k in parts]),
        stretches[0].t_camera_imu,
        stretches[0].noise,
    )


def _rms(rates: Array) -> float:
    """Returns the root mean square of rates [N, 3]."""
    return math.sqrt(float((rates**2).sum(axis=1).mean()))


def _offset(rest: Array, best: int, noise: float) -> TimeOffset:
    """Returns the time offset of the least residual [S], by a parabola; unknown at an end.

    noise: variance of a residual.
    """
    if best in (0, len(rest) - 1):
        return TimeOffset(math.nan, math.inf)
    a, b, c = rest[best - 1], rest[best], rest[best + 1]
    bend = max(float(a - 2 * b + c), 1e-12)
    step = float(SHIFTS_S[1] - SHIFTS_S[0])
    sigma = step * math.sqrt(2 * noise / bend)
    return TimeOffset(float(SHIFTS_S[best]) + step * float(a - c) / (2 * bend), sigma)


def _fault(match: _Match) -> tuple[str, Array | None]:
    """Returns what a match says of mount and units, or an empty text; of a wrong mount also the
    rotation [3, 3] that it is wrong by."""
    if match.likeness > EXPLAINED and match.gain < 2 / DEGREES:
        return "the IMU's rates are in degrees per second: sensor_msgs/Imu has rad/s", None
    if match.explained < EXPLAINED and not match.varies:
        return "", None
    if match.explained < EXPLAINED:
        return (
            "the gyro measures other rotations than the camera sees: check that the IMU is fixed "
            "to the camera, and its stamps"
        ), None
    wrong = Rotation.from_matrix(match.R)
    unsure = match.explained - match.stated < SURE * match.noise
    if wrong.magnitude() < WRONG_ANGLE or unsure:
        return "", None
    if (wrong.inv() * Rotation.from_matrix(R_OPTICAL_BODY)).magnitude() < WRONG_ANGLE:
        return (
            "the IMU's axes are those of a body (x ahead, z up), but its mount says optical axes: "
            "correct the transform from the optical frame to the IMU's frame_id"
        ), match.R
    axis = wrong.as_rotvec() / wrong.magnitude()
    return (
        f"the IMU is turned by {math.degrees(wrong.magnitude()):.0f} degrees from its stated "
        f"mount (about x {axis[0]:.1f}, y {axis[1]:.1f}, z {axis[2]:.1f} of the optical frame): "
        "correct the transform from the optical frame to the IMU's frame_id"
    ), match.R
