"""`da3_ros export`: converts a saved scene for viewers, point cloud tools or splatting tools."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from da3_ros.cli.progress_bar import progress_bar
from da3_ros.export.atomic_files import atomic_folder, check_file_target, check_folder_target
from da3_ros.export.began_in import began_in
from da3_ros.export.colmap import foreign_to_model
from da3_ros.export.derived import derived_scene
from da3_ros.export.export import Selection, export_scene, format_of, size_of
from da3_ros.export.npz_frames import foreign_to_npz_frames, write_npz_frames
from da3_ros.export.scene_file import check_outside_scenes, find_scene, load_poses, load_scene
from da3_ros.export.selection import ExportError
from da3_ros.export.stored_depth import DepthFilters, Readable, readable_keyframes
from da3_ros.export.stored_formats import stored_format
from da3_ros.export.stored_writers import WRITERS
from da3_ros.keyframe_store.store import JOURNAL, StoredScene
from da3_ros.mapping.scene import Scene

NPZ = "npz"
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
    stored_form = stored_format(target, form)
    frames = stored_form is None and (form or target.suffix[1:].lower()) == NPZ
    if stored_form is not None:
        stored_form.check_name(target)
    elif frames:
        _check_npz(selection)
    else:
        form = format_of(target, form)
    if selection.centred and form != "colmap":
        raise ExportError("--centred is for the images of a COLMAP model: leave it out")
    _check_target(target, NPZ if frames else form)
    # Saved points are averaged and filtered already: stored depth knows more.
    anew = derive or selection.voxel > 0 or selection.min_confidence > 0
    saved = (folder / "scene.json").exists()
    if not (folder / JOURNAL).exists():
        if frames or stored_form or derive:
            raise ExportError(
                f"{folder} has no stored keyframes (it is not from a replay or map.store): leave "
                "out --format npz, mesh or splat, --max-depth, --confidence-percentile, "
                "--edge-filter, --remove-movers, --centred"
            )
        return _exported(load_scene(folder).scene(), target, selection, form)
    with StoredScene.open(folder) as stored, progress_bar() as progress:
        if saved and not _has_all(stored, folder):
            if not (frames or stored_form or derive):  # the saved points know more
                if anew:
                    log.warning(
                        "%s: not all of its keyframes are stored%s; its points are filtered",
                        folder, _where_others_are(folder),
                    )  # fmt: skip
                return _exported(load_scene(folder).scene(), target, selection, form)
            log.warning(
                "%s: not all of its keyframes are stored%s; the others are left out",
                folder, _where_others_are(folder),
            )  # fmt: skip
        if stored_form is not None:
            done = WRITERS[stored_form](stored, target, selection, filters, progress)
            return f"{done.text} ({done.bytes / 1e6:.1f} MB)\n"
        if frames:
            with atomic_folder(target, foreign_to_npz_frames) as temporary:
                asked = filters if anew else None
                count = write_npz_frames(stored, asked, temporary, progress)
            return f"{count} keyframes in {target} ({size_of(target) / 1e6:.1f} MB)\n"
        if saved and not anew and form != "colmap":
            return _exported(load_scene(folder).scene(), target, selection, form)
        keyframes = readable_keyframes(stored, filters, progress)
        scene = derived_scene(stored, keyframes, filters, progress)
        return _exported(scene, target, selection, form, keyframes)


def _has_all(stored: StoredScene, folder: Path) -> bool:
    """Whether all keyframes of the saved scene are stored: not those of a resumed one, nor after
    the disk was full."""
    return int(load_poses(folder).rows["keyframe"].sum()) <= len(stored.images)


def _where_others_are(folder: Path) -> str:
    """Returns where the keyframes are that a replay in a saved scene has not stored: with that
    scene; empty if it did not begin in one."""
    scenes = list(began_in(folder))
    if not scenes:
        return ""
    there = [str(scene) for scene in scenes if (find_scene(scene) / JOURNAL).exists()]
    if not there:
        return f" (the scene that it began in, {scenes[0]}, has none either, or is gone)"
    return f" (those of the scene that it began in are in {' and '.join(there)}: export that too)"


def _check_target(target: Path, form: str) -> None:
    """Raises ExportError if the output cannot be written: before work of minutes."""
    if form == NPZ:
        check_folder_target(target, foreign_to_npz_frames)
    elif form == "colmap":
        check_folder_target(target, foreign_to_model)
    else:
        check_file_target(target)


def _check_npz(selection: Selection) -> None:
    """Raises ExportError for a choice of points, which NPZ files do not have."""
    if selection != Selection(min_confidence=selection.min_confidence):
        raise ExportError(
            "NPZ files have no points: leave out --voxel, --crop, --min-observations, "
            "--max-points, --no-cameras and --known-only"
        )


def _exported(
    scene: Scene, target: Path, selection: Selection, form: str, keyframes: Sequence[Readable] = ()
) -> str:
    with progress_bar() as progress:
        done = export_scene(scene, target, selection, form, progress, keyframes)
    return f"{done.text} ({done.bytes / 1e6:.1f} MB)\n"
