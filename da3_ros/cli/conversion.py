"""`da3_ros export`: converts a saved scene for viewers, point cloud tools or splatting tools."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from da3_ros.cli.progress_bar import progress_bar
from da3_ros.export.began_in import began_in
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.derived import derived_scene
from da3_ros.export.export import Selection, export_scene
from da3_ros.export.formats import FORMATS, StoredFormat, find_format
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import check_outside_scenes, find_scene
from da3_ros.export.selection import ExportError
from da3_ros.export.stored_depth import DepthFilters, Readable, readable_keyframes
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.scene import Scene

log = logging.getLogger(__name__)


def convert(
    source: Path, target: Path, selection: Selection, filters: DepthFilters, form: str = "",
    *, derive: bool = False,
) -> str:  # fmt: skip
    """Export the scene folder, or replay's output folder, ``source``; returns a text.

    filters: of the depth of stored keyframes. Where not all are stored, as in scenes of
    ``~/save_scene``, the saved points are selected from; derive: that would not be what was asked
    for. Raises SceneFileError, ExportError or JournalError.
    """
    selection.check()
    filters.check()
    check_outside_scenes(target)
    folder = find_scene(source)
    row = find_format(target, form)
    row.check(target, selection)
    row.check_target(target)
    # Saved points are averaged and filtered already: stored depth knows more.
    anew = derive or selection.voxel > 0 or selection.min_confidence > 0
    scene_file = SceneFile(folder)
    saved = scene_file.is_saved
    if not row.needs_points:
        return _exported(scene_file.saved.scene(), target, selection, row.name)
    from_depth = isinstance(row, StoredFormat) or derive
    if not scene_file.has_keyframes:
        if from_depth:
            raise ExportError(
                f"{folder} has no stored keyframes (it is not from a replay or map.store): leave "
                f"out --format {_stored_formats()}, --max-depth, --confidence-percentile, "
                "--edge-filter, --remove-movers, --measure-depth, --network-depth, --centred"
            )
        return _exported(scene_file.load().scene(), target, selection, row.name)
    with scene_file.keyframes() as stored, progress_bar() as progress:
        if saved and not _has_all(stored, scene_file):
            if not from_depth:  # the saved points know more
                if anew:
                    log.warning(
                        "%s: not all of its keyframes are stored%s; its points are filtered",
                        folder, _where_others_are(folder),
                    )  # fmt: skip
                return _exported(scene_file.load().scene(), target, selection, row.name)
            log.warning(
                "%s: not all of its keyframes are stored%s; the others are left out",
                folder, _where_others_are(folder),
            )  # fmt: skip
        if isinstance(row, StoredFormat):
            done = row.write(stored, target, selection, filters if anew else None, progress)
            return f"{done.text} ({done.bytes / 1e6:.1f} MB)\n"
        if saved and not anew and not row.uses_keyframes:
            return _exported(scene_file.load().scene(), target, selection, row.name)
        keyframes = readable_keyframes(stored, filters, progress)
        scene = derived_scene(stored, keyframes, filters, progress)
        return _exported(scene, target, selection, row.name, keyframes)


def _stored_formats() -> str:
    """Returns the names of formats that need stored keyframes."""
    *names, last = (f.name for f in FORMATS.values() if isinstance(f, StoredFormat))
    return f"{', '.join(names)} or {last}"


def _has_all(stored: StoredScene, scene: SceneFile) -> bool:
    """Whether all keyframes of the saved scene are stored: not those of a resumed one, nor after
    the disk was full."""
    return int(scene.poses().rows["keyframe"].sum()) <= len(stored.images)


def _where_others_are(folder: Path) -> str:
    """Returns where the keyframes are that a replay in a saved scene has not stored: with that
    scene; empty if it did not begin in one."""
    scenes = list(began_in(folder))
    if not scenes:
        return ""
    there = [str(scene) for scene in scenes if _has_keyframes(find_scene(scene))]
    if not there:
        return f" (the scene that it began in, {scenes[0]}, has none either, or is gone)"
    return f" (those of the scene that it began in are in {' and '.join(there)}: export that too)"


def _has_keyframes(folder: Path) -> bool:
    try:
        return SceneFile(folder).has_keyframes
    except SceneFileError:
        return False


def _exported(
    scene: Scene, target: Path, selection: Selection, form: str, keyframes: Sequence[Readable] = ()
) -> str:
    with progress_bar() as progress:
        done = export_scene(scene, target, selection, form, progress, keyframes)
    return f"{done.text} ({done.bytes / 1e6:.1f} MB)\n"
