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

    metric: bool  # whether the truth is in metres
    errors: dict[str, TrajectoryErrors] = field(default_factory=dict)  # by what was compared
    stamps_ns: dict[str, Array] = field(default_factory=dict)  # [N] int64 of these poses
    truth: TruePoses | None = None
    problems: list[str] = field(default_factory=list)

    def true_lines(self, begin_ns: int) -> list[Line]:
        """Returns the true path, fitted to the map, within the time of the compared poses."""
        errors = self.errors.get(MAP)
        if errors is None or self.truth is None:
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


def compared(kept: KeptScene, truth: TruePoses) -> Compared:
    """Returns the errors of the poses of a scene's map, and of those in its trajectory file."""
    out = Compared(truth.metric, truth=truth)
    if kept.scene is None:
        out.problems.append("There are no poses to compare.")
        return out
    stamps, poses, component = poses_of(kept.scene)
    own = component == REFERENCE
    if not own.all():
        out.problems.append(
            f"{int((~own).sum())} poses of components without a known pose are left out."
        )
    _compare(out, MAP, stamps[own], poses[own], kept, truth)
    if kept.trajectory is not None and kept.trajectory.stat().st_size <= MAX_BYTES:
        stamps, poses = read_trajectory(kept.trajectory)
        if len(stamps):
            _compare(out, FILE, stamps, poses, kept, truth)
    return out


def _compare(
    out: Compared, name: str, stamps: Array, poses: Array, kept: KeptScene, truth: TruePoses
) -> None:
    found = [truth.at(int(stamp)) for stamp in stamps]
    known = np.array([T is not None for T in found], bool)
    true = np.array([T for T in found if T is not None]).reshape(-1, 4, 4)
    try:
        errors = trajectory_errors(poses[known], true, metric=kept.metric and truth.metric)
    except ValueError as error:
        out.problems.append(f"{name}: {error}.")
        return
    out.errors[name] = errors
    out.stamps_ns[name] = np.asarray(stamps[known])


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
