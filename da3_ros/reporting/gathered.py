"""All that a page shows, read once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from da3_ros.recordings.true_poses import TruePoses, read_true_poses, true_camera
from da3_ros.reporting.advice import Advices, Evidence, advices_of
from da3_ros.reporting.course import poses_of
from da3_ros.reporting.keyframes import (
    ShownKeyframe,
    TrackedFramePicture,
    shown_keyframes,
    tracked_frames,
)
from da3_ros.reporting.plots import MOST_POINTS
from da3_ros.reporting.run_files import KeptScene, Run, read_run
from da3_ros.reporting.timeline import coarser
from da3_ros.reporting.truth import Compared, compared

FEWEST_POINTS = 100  # of a line, however many scenes there are
USUAL_HZ = 10.0  # of a replay without another rate


@dataclass(frozen=True, eq=False)
class ShownScene:
    """A scene of the run, with what is shown of it."""

    kept: KeptScene
    keyframes: list[ShownKeyframe]
    tracked: list[TrackedFramePicture]
    compared: Compared | None  # None: there is no truth, or it is that of another camera
    begin_ns: int  # stamp at which its time begins
    scenes: int  # of the run

    @property
    def is_only(self) -> bool:
        """Whether the run has no other scene."""
        return self.scenes == 1

    @property
    def most_points(self) -> int:
        """How many points a line of a plot may have, so that the page stays small."""
        return max(MOST_POINTS // self.scenes, FEWEST_POINTS)

    @property
    def drawn_timeline(self) -> NDArray[np.void] | None:
        """The timeline in as many bins as plots may have; None: there is none to draw."""
        rows = self.kept.timeline
        return None if rows is None or len(rows) < 2 else coarser(rows, self.most_points)

    @property
    def of(self) -> str:
        """What names the camera in a caption."""
        return f" of {self.kept.camera}" if self.kept.camera and not self.is_only else ""


@dataclass(frozen=True, eq=False)
class Gathered:
    """All that a page shows."""

    run: Run
    scenes: list[ShownScene]
    evidence: Evidence
    advices: Advices
    draws: bool  # whether plots can be drawn


def gathered(
    source: Path, true_poses: Path | None = None, true_name: str | None = None
) -> Gathered:
    """Reads all that is shown of a replay's output folder, or of a saved scene.

    true_poses: as ``read_true_poses`` reads them, of a data set's camera ``true_name``; None: of
    that which the first scene was made of. Raises ReportError, RecordingError.
    """
    run = read_run(source)
    truth = None if true_poses is None else _truth(run, true_poses, true_name)
    resumed = bool(run.report.text("resumed"))
    scenes = [
        ShownScene(
            kept, shown_keyframes(kept, len(run.scenes)), tracked_frames(kept, len(run.scenes)),
            compared(kept, truth, resumed=resumed) if truth is not None and index == 0 else None,
            _begin_ns(kept), len(run.scenes),
        )
        for index, kept in enumerate(run.scenes)
    ]  # fmt: skip
    evidence = Evidence(run, [one for kept in scenes for one in kept.keyframes])
    return Gathered(run, scenes, evidence, advices_of(evidence), _can_draw())


def _truth(run: Run, path: Path, camera: str | None) -> TruePoses:
    """Reads true poses for the camera, and at the rate, that the replay took."""
    recorded = run.report.text("camera").partition(", ")[0]  # of several: the first scene's
    rate_hz = run.report.value("options", "rate_hz")
    known = isinstance(rate_hz, float) and 0 < rate_hz < math.inf
    path = path.expanduser()
    return read_true_poses(
        path, camera or true_camera(path, recorded), rate_hz if known else USUAL_HZ
    )


def _begin_ns(kept: KeptScene) -> int:
    if kept.timeline is not None and len(kept.timeline):
        return int(kept.timeline["first_ns"][0])
    if kept.scene is None or not len(kept.scene.poses):
        return 0
    return int(poses_of(kept.scene)[0].min())


def _can_draw() -> bool:
    try:
        import matplotlib.figure  # noqa: F401 - slow to import
    except Exception:  # one that was built for another NumPy raises various ones
        return False
    return True
