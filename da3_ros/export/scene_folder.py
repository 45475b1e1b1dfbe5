"""The folder of a saved scene: whether there is one, its name, and what may be written there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from da3_ros.export import old_scenes
from da3_ros.export.atomic_files import check_folder_target, files_in
from da3_ros.export.saved_records import holds_saved
from da3_ros.export.selection import ExportError
from da3_ros.keyframe_store.store import JOURNAL

NAMES = re.compile(rf"{re.escape(JOURNAL)}|{old_scenes.NAMES}")  # of files in the folder
MAX_ORIGIN = 100  # characters of a name that is made from a folder's


def check_scene_target(path: Path) -> None:
    """Raises ExportError if no scene can be written to ``path``, as ``save_scene`` would; makes
    nothing."""
    check_outside_scenes(path)
    check_folder_target(path, foreign_to_scene)


def find_scene(path: Path) -> Path:
    """Returns the scene's folder: ``path``, or ``scene`` in it, as in a replay's output."""
    inner = path / "scene"
    return inner if scene_file(path) is None and os.path.isdir(inner) else path


def scene_file(folder: Path) -> Path | None:
    """Returns the file that makes a folder that of a scene, or of stored keyframes; None: there is
    none."""
    names = (JOURNAL, old_scenes.SCENE, old_scenes.KEYFRAMES)
    # os.path returns False for impossible names and does not raise.
    return next((folder / name for name in names if os.path.lexists(folder / name)), None)


def scene_name(path: Path) -> str:
    """Returns the name of a scene: that of its folder, or of the replay's output that it is in."""
    real = Path(os.path.realpath(path))
    name = real.parent.name if real.name == "scene" else real.name
    return "".join(c if c.isprintable() else "_" for c in name)[:MAX_ORIGIN] or "scene"


def is_scene(folder: Path) -> bool:
    """True if a folder holds a scene, of any version, and nothing else."""
    return _is_saved(folder) and foreign_to_scene(folder) is None


def foreign_to_scene(folder: Path) -> Path | None:
    """Returns a file of a folder that is no part of a saved scene; None: there is none."""
    saved, files = _is_saved(folder), files_in(folder)
    other = (f for f in files if not NAMES.fullmatch(f.relative_to(folder).as_posix()))
    return next(other, None if saved or not files else files[0])


def check_outside_scenes(path: Path) -> None:
    """Raises ExportError if ``path`` is inside a saved scene.

    A scene with other files in its folder could not be replaced later; replacing a scene would
    delete them.
    """
    for folder in Path(os.path.realpath(path)).parents:  # does not raise for a cycle of links
        if _is_saved(folder):
            raise ExportError(
                f"{path} is inside the saved scene {folder}, where no other files may be: name a "
                f"path outside, such as {folder.with_name(f'{folder.name}_{path.name}')}"
            )


def _is_saved(folder: Path) -> bool:
    """Whether a folder has a saved scene, of any version."""
    try:
        return old_scenes.is_old_scene(folder) or holds_saved(folder)
    except (OSError, ValueError, RuntimeError):
        return False
