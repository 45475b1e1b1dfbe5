"""Follows another SLAM: when it corrects the prior's frame, the submaps move along.

The other SLAM gives poses of the camera at stamps: by jumps of a transform (``tf``), which are
spread over the path travelled, or as its whole path, sent again and again (``path``). Each submap
is placed where these poses put it, by the mean over its frames. No ROS.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.following import (
    OwnPoses,
    SubmapPoses,
    completed,
    correction_to,
    kept,
    largest_move,
    measured_poses_of,
)
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.scene import REFERENCE
from da3_ros.mapping.slam_poses import PoseTable, chords, interpolated, jump_size, spread_jump
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.trajectory import Poses
from da3_ros.pipeline.line_kinds import kind_of
from da3_ros.types import Array, SlamPath, SlamPose, View

log = logging.getLogger(__name__)

JUMP_M, JUMP_RAD = 0.05, math.radians(0.5)  # smaller jumps of a transform are collected
MOVE_M, MOVE_RAD = 0.01, math.radians(0.1)  # the map does not move for less
STAY_M, STAY_RAD = 0.002, math.radians(0.02)  # a submap stays when others move: fewer are stored
FEWEST = {"tf": 6, "path": 1}  # poses that place a submap: odometry is noisy, a path is smooth
ANEW = (
    "the path begins anew, as if the other SLAM had been reset: the map stays as it is; call "
    "~/reset to begin a map in its new frame"
)
# A path and the prior are one way if the sums of their chords differ by less than this ratio. Over
# chords of a metre, the noise of a robot that stands adds nothing.
CHORD_M, MAX_RATIO = 1.0, 1.3
MOST_COMPARED = 2000  # poses of a path, evenly spaced
STRETCHES = 64  # jumps that are remembered as spots where the path was right


@dataclass(frozen=True, eq=False)
class _Before:
    """The transform, the poses and where the path was right, before a jump."""

    T_slam_prior: Array
    poses: Array
    right_at: tuple[int, ...]

    def is_again(self, T_slam_prior: Array, camera: Array) -> bool:
        """Whether a transform is the old one, seen by a camera at ``camera``."""
        metres, turn = jump_size(T_slam_prior @ invert_pose(self.T_slam_prior), camera)
        return metres <= JUMP_M and turn <= JUMP_RAD


class MapFollowing:
    """Poses of another SLAM, and the poses of submaps by them. Not thread-safe."""

    def __init__(self, kind: str) -> None:
        """kind: tf, path, or none, as the parameter ``pose_prior.corrections``."""
        self.kind, self.enabled = kind, kind != "none"
        self.count = 0  # corrections that were followed
        self.metres = math.nan  # the farthest move of a submap at the last one; NaN: none yet
        self.restart()

    def restart(self, *, loaded: bool = False) -> None:
        """Begins a new scene, or a loaded one."""
        self._joined = False  # whether the map lies where the other SLAM has its own
        self.loaded = loaded  # whether the pose in a loaded scene must be found first
        self._begun = loaded
        self._poses = PoseTable()  # tf: T_slam_camera; path: T_base_camera
        self._priors = PoseTable()  # path: T_prior_camera
        self._T_slam_prior: Array | None = None  # that ``_poses`` has taken over
        self._before: _Before | None = None  # the last jump, which the next one may withdraw
        self._right_at: deque[int] = deque(maxlen=STRETCHES)  # stamps
        self._path: SlamPath | None = None
        self._path_ended = False  # whether a time jump came after it
        self._refused = -1  # number of a path that was refused
        self._scale = math.nan  # metres per map unit at the last placement
        self.forget_submaps()

    def forget_submaps(self) -> None:
        """Takes over that the map is empty; its pose stays known."""
        self._placed: set[int] = set()
        self._due = True
        self._told = ""

    def begin(self, view: View) -> Array | None:
        """Returns the pose [4, 4] of a new scene's first camera in the other SLAM's map, which
        is that of its frame; None: unknown, or not its first frame."""
        first, self._begun = not self._begun, True
        if first and self._T_slam_prior is not None and view.T_prior_camera is not None:
            self._joined, self._due = True, False
            return self._T_slam_prior @ view.T_prior_camera
        return None

    def add(self, view: View) -> None:
        """Adds what the other SLAM says at a view of the leading camera, in stamp order."""
        slam = view.slam
        if slam is None:
            return
        if len(self._poses) and view.stamp_ns <= self._poses.stamps[-1]:  # a time jump
            self._poses.clear()
            self._priors.clear()
            self._right_at.clear()
            self._path_ended = self._path is not None
        if self.kind == "path":
            self._add_path(view, slam)
        elif slam.T_slam_prior is not None and view.T_prior_camera is not None:
            self._add_transform(view.stamp_ns, slam.T_slam_prior, view.T_prior_camera)

    def _add_transform(self, stamp_ns: int, T_slam_prior: Array, T_prior_camera: Array) -> None:
        if self._T_slam_prior is None or not len(self._poses):
            self._T_slam_prior = T_slam_prior
            self._right_at.append(stamp_ns)
            self._before = None
        camera = (self._T_slam_prior @ T_prior_camera)[:3, 3]
        J = T_slam_prior @ invert_pose(self._T_slam_prior)
        metres, turn = jump_size(J, camera)
        if metres > JUMP_M or turn > JUMP_RAD:
            self._jump(stamp_ns, self._T_slam_prior, T_slam_prior, camera)
        self._poses.add(stamp_ns, self._T_slam_prior @ T_prior_camera)

    def _jump(self, stamp_ns: int, old: Array, new: Array, camera: Array) -> None:
        """Takes over a jump of the transform, ``T_slam_prior``, seen by a camera at ``camera``."""
        J = new @ invert_pose(old)
        metres, turn = jump_size(J, camera)
        last, self._before = self._before, None
        if last is not None and last.is_again(new, camera):
            count = len(last.poses)
            self._poses.poses[:count] = last.poses
            self._poses.poses[count:] = J @ self._poses.poses[count:]
            self._right_at = deque(last.right_at, maxlen=STRETCHES)
            log.info("another SLAM withdraws its correction of %.3f m", metres)
        else:
            self._before = _Before(old, self._poses.poses.copy(), tuple(self._right_at))
            begins = np.searchsorted(self._poses.stamps, list(self._right_at))
            begins = np.unique(np.minimum(begins, len(self._poses) - 1))
            self._poses.poses[:], is_drift = spread_jump(self._poses.poses, begins.tolist(), J)
            how = "is spread over the path" if is_drift else "is no drift: the map moves as one"
            log.info(
                "another SLAM corrects the prior by %.3f m, %.2f degrees: this %s",
                metres, math.degrees(turn), how,
            )  # fmt: skip
            if is_drift:  # the path is right up to here; else it moved as one, as it was
                self._right_at.append(stamp_ns)
        self._T_slam_prior, self._due = new, True

    def _add_path(self, view: View, slam: SlamPose) -> None:
        if slam.T_base_camera is not None:
            self._poses.add(view.stamp_ns, slam.T_base_camera)
            if view.T_prior_camera is not None:
                self._priors.add(view.stamp_ns, view.T_prior_camera)
        path, last = slam.path, self._path
        known = (None if last is None else last.number, self._refused)
        if path is None or path.number in known:
            return
        reason = ANEW if self._path_ended else _why_not(path, last) or self._other_way(path)
        if reason:
            self._refused = path.number
            self._tell(reason)
            return
        if last is not None and path.stamps_ns[0] > last.stamps_ns[0]:
            self._tell("the path begins later than before: what is older stays where it is")
        self._path, self._due = path, True

    def _other_way(self, path: SlamPath) -> str:
        """Returns why a path is not that of the prior's camera in metres; empty if it may be."""
        if not len(self._priors):
            return ""
        first, last = self._priors.stamps[[0, -1]]
        both = (path.stamps_ns >= first) & (path.stamps_ns <= last)
        stamps = path.stamps_ns[both]
        some = np.unique(np.linspace(0, len(stamps) - 1, MOST_COMPARED).astype(int))[: len(stamps)]
        stamps, both = stamps[some], np.flatnonzero(both)[some]
        mounts = interpolated(self._poses.stamps, self._poses.poses, stamps)
        priors = interpolated(self._priors.stamps, self._priors.poses, stamps)
        theirs, ours = chords(path.T_slam_base[both] @ mounts, priors, CHORD_M)
        if ours < MAX_RATIO * theirs < MAX_RATIO**2 * ours or theirs == ours == 0.0:
            return ""
        return (
            f"the path is {theirs:.2f} m long where the prior is {ours:.2f} m: it is not used; it "
            "must be in metres, and of the body whose poses the prior has"
        )

    def _tell(self, text: str) -> None:
        """Logs a line, once until there is another one, whatever its numbers."""
        kind = kind_of(text)
        if kind != self._told:
            log.warning("pose_prior.corrections: %s", text)
        self._told = kind

    def correction(
        self, submaps: Mapping[int, Submap], poses: Callable[[], Poses], camera: str,
        scale: float | None, T_map_local: Similarity, T_ros_map: Array,
    ) -> Correction | None:  # fmt: skip
        """Returns the correction that places the submaps where the other SLAM has them; None if
        they lie there.

        poses: in the frames of their submaps. camera: the leading one. scale: metres per map unit;
        None: unknown. T_map_local: the frame of odometry. T_ros_map: in the map of the other
        SLAM, with which ours coincides in the axes of ROS.
        """
        if not submaps or not self._is_due(submaps, scale):
            return None
        if scale is None:
            self._tell("they wait until the scale is known: lengths must be metres")
            return None
        before = {id: _rigid(s.T_map_submap, scale) for id, s in submaps.items()}
        chain = {id: s.chain for id, s in submaps.items()}
        component = {id: s.component for id, s in submaps.items()}
        measured = self._measured(submaps, poses(), camera, scale, before, chain)
        if not measured or not self._join(measured, component):
            return None
        to_map = invert_pose(T_ros_map)
        measured = {id: to_map @ T for id, T in measured.items()}
        after = completed(measured, before, chain, component, self._placed)
        after = kept(before, after, STAY_M, STAY_RAD)
        self._placed = (self._placed & set(submaps)) | set(measured)
        self._scale, self._due = scale, False
        ties = tuple((-1, id) for id in measured if component[id] != REFERENCE)
        metres, turn = largest_move(before, after)
        if metres < MOVE_M and turn < MOVE_RAD and not ties:
            return None
        self.count, self.metres = self.count + 1, metres
        now = {id: _in_scene(after[id], s.T_map_submap.scale, scale) for id, s in submaps.items()}
        was = {id: s.T_map_submap for id, s in submaps.items()}
        return correction_to(was, now, T_map_local, ties)

    def _is_due(self, submaps: Mapping[int, Submap], scale: float | None) -> bool:
        """Whether submaps may lie elsewhere than the other SLAM has them."""
        newest = submaps[max(submaps)]
        far = float(np.linalg.norm(newest.T_map_submap.t))
        grown = scale is not None and abs(scale - self._scale) * far > JUMP_M
        unplaced = newest.component != REFERENCE and newest.id not in self._placed
        return (self._due or grown or unplaced) and len(self._slam_poses()[0]) > 0

    def _measured(
        self, submaps: Mapping[int, Submap], poses: Poses, camera: str, scale: float,
        before: SubmapPoses, chain: Mapping[int, int],
    ) -> SubmapPoses:  # fmt: skip
        """Returns ``T_slam_submap`` of the submaps that poses of the other SLAM belong to."""
        if camera not in poses.cameras or not len(self._poses):
            return {}
        lengths = {id: s.T_map_submap.scale * scale for id, s in submaps.items()}
        rows = poses.rows[poses.rows["camera"] == poses.cameras.index(camera)]
        own = OwnPoses.of(rows, lengths)
        stamps, T_slam_camera = self._slam_poses()
        found, submap, T_submap_camera = own.at(stamps, before, chain)
        if self.kind == "path" and len(stamps) and not len(found):
            self._tell(
                f"the path (stamps to {stamps[-1] / 1e9:.3f} s) has no pose at the time of a "
                "frame in the map: its stamps must be of the cameras' clock"
            )
        return measured_poses_of(submap, T_slam_camera[found], T_submap_camera, FEWEST[self.kind])

    def _slam_poses(self) -> tuple[Array, Array]:
        """Returns the stamps [N] and poses ``T_slam_camera`` [N, 4, 4] of the other SLAM."""
        if self.kind == "tf":
            return self._poses.stamps, self._poses.poses
        # After a jump back its stamps would be those of other frames.
        if self._path is None or self._path_ended or not len(self._poses):
            return np.zeros(0, np.int64), np.zeros((0, 4, 4))
        stamps = self._path.stamps_ns
        mounts = interpolated(self._poses.stamps, self._poses.poses, stamps)
        return stamps, self._path.T_slam_base @ mounts

    def _join(self, measured: SubmapPoses, component: Mapping[int, int]) -> bool:
        """Returns whether the map can be moved to that of the other SLAM: its own pose must be
        known, or all of it be unconnected."""
        unconnected = REFERENCE not in component.values()
        if not self._joined and not unconnected and REFERENCE not in map(component.get, measured):
            self._tell("they wait until the pose in the map is known")
            return False
        self._joined, self.loaded = True, False
        return True


def _why_not(path: SlamPath, last: SlamPath | None) -> str:
    """Returns why a path cannot be followed after another one; empty if it can."""
    if last is None:
        return ""
    if path.stamps_ns[0] > last.stamps_ns[-1]:
        return ANEW
    if path.stamps_ns[-1] < last.stamps_ns[-1]:
        return "a path ends earlier than the one before it: it is not used"
    return ""


def _rigid(S: Similarity, scale: float) -> Array:
    """Returns the pose [4, 4] of a submap in the map, metres; scale: metres per map unit."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = S.R, scale * S.t
    return T


def _in_scene(T_map_submap: Array, size: float, scale: float) -> Similarity:
    """Returns the pose of a submap in map units; size: its scale."""
    return Similarity(size, T_map_submap[:3, :3], T_map_submap[:3, 3] / scale)
