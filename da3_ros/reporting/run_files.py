"""Reads what a replay, or a node that saved its scene, has left, as far as it is there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from da3_ros.export.began_in import MEASURED
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import scene_file, scene_name
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.mapping.scene import Scene
from da3_ros.reporting.figures import Figures, ReportError
from da3_ros.reporting.timeline import NAME as TIMELINE
from da3_ros.reporting.timeline import TimelineError, read_timeline

REPORT = "report.json"
TIMELINES = "timelines"  # in ``MEASURED``, by the names of their files
SCENE, TRACKS, TRAJECTORY = "scene", "tracks.npz", "trajectory.tum"


@dataclass(frozen=True, eq=False)
class KeptScene:
    """One scene of a run: of all cameras, or of one with windows of its own."""

    camera: str  # as in the names of its files; empty: the only scene, or the first camera's
    scene: Scene | None = None  # without points; None: there are no poses
    metric: bool = False  # whether its lengths are metres
    stored: SceneFile | None = None  # has keyframes; None: none are stored
    timeline: NDArray[np.void] | None = None  # [B] of ``timeline.ROW``; None: not kept
    tracks: Path | None = None  # file of tracks; None: no window was refined
    trajectory: Path | None = None  # trajectory file; None: not written

    @property
    def unit(self) -> str:
        """The unit of its lengths."""
        return "m" if self.metric else "units"


@dataclass(frozen=True, eq=False)
class Run:
    """All that is known of a run."""

    name: str
    report: Figures  # of report.json; empty: of a saved scene alone
    measured: Figures
    scenes: list[KeptScene]
    problems: list[str] = field(default_factory=list)  # what cannot be read, and why


def read_run(path: Path) -> Run:
    """Reads the output folder of a replay, or the folder of a saved scene.

    Raises ReportError if there is neither.
    """
    if not path.is_dir():
        raise ReportError(f"{path} is no folder: give a replay's output, or a saved scene")
    problems: list[str] = []
    report, measured = (_figures(path / name, problems) for name in (REPORT, MEASURED))
    if scene_file(path) is not None:
        scenes = [_scene(path, "", path, measured, problems)]
    else:
        scenes = [
            _scene(path, suffix, _with_suffix(path, SCENE, suffix), measured, problems)
            for suffix in _suffixes(path, report)
        ]
    if not scenes and not report:
        detail = f" ({'; '.join(problems)})" if problems else ""
        raise ReportError(
            f"{path} holds neither a scene nor a {REPORT}{detail}: give the output folder of a "
            "replay, or a saved scene"
        )
    first = report.value("parameters", "cameras")
    if len(scenes) > 1 and isinstance(first, list) and first:
        scenes[0] = replace(scenes[0], camera=str(first[0]))
    return Run(report.text("input") or scene_name(path), report, measured, scenes, problems)


def _figures(path: Path, problems: list[str]) -> Figures:
    try:
        return Figures.read(path)
    except FileNotFoundError:
        pass
    except (OSError, ReportError) as error:
        problems.append(str(error))
    return Figures({})


def _suffixes(path: Path, report: Figures) -> list[str]:
    """Returns what the names of files of a run's scenes end with, the first scene's first.

    Others that the report does not list are those of an earlier run in the same folder.
    """
    scenes = [f.name[len(SCENE) :] for f in path.glob(f"{SCENE}*") if f.is_dir()]
    stem, ending = TIMELINE.split(".")
    lines = [f.name[len(stem) : -len(ending) - 1] for f in path.glob(f"{stem}*.{ending}")]
    found = sorted({suffix for suffix in scenes + lines if not suffix or suffix[0] == "_"})
    if report.value("scenes") is None:  # a replay that did not end
        return found
    return [suffix for suffix in found if suffix in report.texts("scenes")]


def _with_suffix(folder: Path, name: str, suffix: str) -> Path:
    path = folder / name
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")


def _scene(
    folder: Path, suffix: str, scene_folder: Path, measured: Figures, problems: list[str]
) -> KeptScene:
    scene, metric, stored = _saved(scene_folder, problems)
    tracks, trajectory = (_with_suffix(folder, name, suffix) for name in (TRACKS, TRAJECTORY))
    return KeptScene(
        suffix[1:], scene, metric, stored,
        _timeline(_with_suffix(folder, TIMELINE, suffix), measured, problems),
        tracks if tracks.is_file() else None, trajectory if trajectory.is_file() else None,
    )  # fmt: skip


def _saved(folder: Path, problems: list[str]) -> tuple[Scene | None, bool, SceneFile | None]:
    """Returns a saved scene, whether it is in metres, and the file if it has keyframes."""
    if scene_file(folder) is None:
        return None, False, None
    try:
        file = SceneFile(folder)
        stored = file if file.has_keyframes else None
        if not file.is_saved:
            problems.append(
                f"the scene in {folder}: its run did not end, only keyframes are there"
            )
            return None, False, stored
        return file.saved.scene(), file.saved.metric, stored
    except (SceneFileError, JournalError) as error:
        problems.append(str(error))
        return None, False, None


def _timeline(path: Path, measured: Figures, problems: list[str]) -> NDArray[np.void] | None:
    try:
        return read_timeline(path, measured.mapping(TIMELINES, path.name))
    except FileNotFoundError:
        return None
    except (OSError, TimelineError) as error:
        problems.append(str(error))
        return None
