"""A run's poses held against the true ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.mapping.scene import REFERENCE
from da3_ros.recordings.true_poses import TruePoses
from da3_ros.reporting.course import poses_of
from da3_ros.reporting.plots import SERIES, Line
from da3_ros.reporting.run_files import TRAJECTORY, KeptScene
from da3_ros.reporting.trajectory_errors import TrajectoryErrors, trajectory_errors
from da3_ros.types import Array

MAP, FILE = "Poses of the map, with all corrections", f"Poses in {TRAJECTORY}"
MAX_BYTES = 1 << 26  # of a trajectory file that is compared
COLUMNS = 8


@dataclass(frozen=True, eq=False)
class Compared:
    """Errors of a scene's trajectories, and the true path in the map."""

    truth: TruePoses
    errors: dict[str, TrajectoryErrors] = field(default_factory=dict)  # by what was compared
    stamps_ns: dict[str, Array] = field(default_factory=dict)  # [N] int64 of these poses
    problems: list[str] = field(default_factory=list)

    @property
    def unmet(self) -> str:
        """Why nothing could be compared, in a line; empty: something was."""
        if self.errors or not self.problems:
            return ""
        return next((one for one in self.problems if one.startswith(MAP)), self.problems[0])

    def true_lines(self, begin_ns: int) -> list[Line]:
        """Returns the true path, fitted to the map, within the time of the compared poses."""
        errors = self.errors.get(MAP)
        if errors is None:
            return []
        stamps, T = self.truth.stamps_ns, self.truth.T_truth_camera
        compared = self.stamps_ns[MAP]
        during = (stamps >= compared.min()) & (stamps <= compared.max())
        fit = (errors.se3 or errors.sim3).T_truth_map
        points = fit.inverse().points(T[during, :3, 3])
        seconds = (stamps[during] - begin_ns) / 1e9
        return [Line("true path", points, seconds, SERIES[-1], dashed=True)]

    def error_lines(self) -> list[tuple[str, Array, Array]]:
        """Returns name, seconds and errors of each compared trajectory."""
        out = []
        for name, errors in self.errors.items():
            stamps = self.stamps_ns[name]
            fit = errors.se3 or errors.sim3
            out.append((name, (stamps - stamps.min()) / 1e9, fit.error_m))
        return out


def compared(kept: KeptScene, truth: TruePoses, *, resumed: bool = False) -> Compared:
    """Returns the errors of the poses of a scene's map, and of those in its trajectory file.

    resumed: whether the scene began with another recording, whose poses are then left out.
    """
    out = Compared(truth)
    if kept.scene is None:
        out.problems.append("There are no poses to compare.")
        return out
    stamps, poses, component = poses_of(kept.scene)
    own = component == REFERENCE
    if not own.all():
        out.problems.append(
            f"{int((~own).sum())} poses of components without a known pose are left out."
        )
    if resumed:  # over all components: the new recording may be in one of its own
        own &= _of_newest_recording(stamps, kept)
        if not own.any():
            out.problems.append("No pose of the new recording is known in the map.")
            return out
    _compare(out, MAP, stamps[own], poses[own], kept)
    if kept.trajectory is None:
        return out
    if kept.trajectory.stat().st_size > MAX_BYTES:
        out.problems.append(
            f"{kept.trajectory.name} is not compared: it is larger than {MAX_BYTES >> 20} MiB."
        )
        return out
    stamps, poses = read_trajectory(kept.trajectory)
    newest = _of_newest_recording(stamps, kept) if resumed else np.ones(len(stamps), bool)
    if newest.any():
        _compare(out, FILE, stamps[newest], poses[newest], kept)
    return out


def _compare(out: Compared, name: str, stamps: Array, poses: Array, kept: KeptScene) -> None:
    known, true = out.truth.at(stamps)
    try:
        errors = trajectory_errors(poses[known], true, metric=kept.metric and out.truth.metric)
    except ValueError as error:
        out.problems.append(f"{name}: {error}. {_times(stamps, out.truth)}")
        return
    out.errors[name] = errors
    out.stamps_ns[name] = np.asarray(stamps[known])


def _of_newest_recording(stamps: Array, kept: KeptScene) -> Array:
    """Returns which poses [N] bool a resumed replay has added: those after the last step back in
    time, since its timeline begins."""
    newest: Array = np.ones(len(stamps), bool)
    back = np.flatnonzero(np.diff(stamps) < 0)
    if len(back):
        newest[: back[-1] + 1] = False
    if kept.timeline is not None and len(kept.timeline):
        newest &= stamps >= kept.timeline["first_ns"].min()
    return newest


def _times(stamps: Array, truth: TruePoses) -> str:
    """Returns when there are poses and true ones, and what to do if these do not meet."""
    if not len(stamps):
        return "There are no poses."
    ours, true = (
        f"{times.min() / 1e9:.3f} to {times.max() / 1e9:.3f} s"
        for times in (np.asarray(stamps), truth.stamps_ns)
    )
    return (
        f"Stamps of the poses: {ours}; of {len(truth.stamps_ns)} true poses ({truth.source}): "
        f"{true}. Give the true poses of this recording, in the clock of its stamps."
    )


def read_trajectory(path: Path) -> tuple[Array, Array]:
    """Returns stamps [N] int64, ns, and poses T_ros_camera [N, 4, 4] of the first component in a
    file that a replay wrote. Lines that cannot be read are left out."""
    stamps, rows = [], []
    with path.open(errors="replace") as file:
        for line in file:
            if line.startswith("#"):  # another component
                break
            words = line.split()
            seconds, _, fraction = words[0].partition(".") if words else ("", "", "")
            try:
                numbers = [float(word) for word in words[1:]]
                stamp = int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))
            except ValueError:
                continue
            if len(words) == COLUMNS and np.isfinite(numbers).all() and any(numbers[3:]):
                stamps.append(stamp)
                rows.append(numbers)
    table = np.array(rows).reshape(-1, COLUMNS - 1)
    poses = np.tile(np.eye(4), (len(table), 1, 1))
    poses[:, :3, 3] = table[:, :3]
    if len(table):
        poses[:, :3, :3] = Rotation.from_quat(table[:, 3:]).as_matrix()
    return np.array(stamps, np.int64), poses
