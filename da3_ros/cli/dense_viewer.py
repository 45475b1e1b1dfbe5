"""`da3_ros view --dense`: draws the measured depth of stored keyframes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from da3_ros.cli.scene_viewer import check_picture
from da3_ros.drawing.dense_sheet import dense_sheet
from da3_ros.drawing.scene_picture import write_png
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import find_scene
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.keyframe_store.keyframe import Keyframe
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.types import DenseDepth

log = logging.getLogger(__name__)

MOST_SIDE = 2048  # pixels of each of the pictures
ROWS = 6  # keyframes


def _readable(
    stored: StoredScene, keys: Iterable[int]
) -> Iterator[tuple[int, tuple[Keyframe, DenseDepth | None]]]:
    """Yields keyframes, by key, with their measured depth; leaves out damaged ones, with a
    warning."""
    for key in keys:
        try:
            yield key, (stored.load(key), stored.load_measured(key))
        except JournalError as error:
            log.warning("%s: it is left out", error)


def _agreement(stored: StoredScene, rows: Mapping[int, tuple[Keyframe, DenseDepth | None]]) -> str:
    """Returns a text: how much of what was found in keyframes others confirmed; empty if that was
    not stored."""
    known = {key: found for key in rows if (found := stored.found_pixels(key))}
    dense = [rows[key][1] for key in known]
    measured = sum(int(one.measured.sum()) for one in dense if one is not None)
    share = 100 * measured / max(1, sum(known.values()))
    return f", {share:.0f} % of what was found in them confirmed" if known else ""


def view_dense(source: Path, target: Path, size: tuple[int, int], color_map: str) -> str:
    """Write one PNG with keyframes of the scene in ``source``, evenly chosen; returns a text.

    size: that images are fitted into. color_map: colours of depth. Raises SceneFileError or
    ExportError.
    """
    check_picture(target, size, MOST_SIDE)
    scene = SceneFile(find_scene(source))
    if not scene.has_keyframes:
        raise SceneFileError(
            f"{source} has no stored keyframes: give a replay's output, or a scene of map.store"
        )
    try:
        with scene.keyframes() as stored:
            keys = list(stored.measured)
            if not keys:
                raise SceneFileError(
                    f"{source} has no measured depth: it was recorded without dense.enabled, or "
                    "its poses were not refined"
                )
            chosen = np.linspace(0, len(keys) - 1, min(ROWS, len(keys))).round().astype(int)
            found = dict(_readable(stored, [keys[k] for k in chosen]))
            if not found:
                raise SceneFileError(f"{source}: all keyframes that were chosen are damaged")
            rows = list(found.values())
            share = np.mean([dense.measured.mean() for _, dense in rows if dense is not None])
            agreement = _agreement(stored, found)
            total = len(stored.images)
    except JournalError as error:
        raise SceneFileError(str(error)) from error
    with atomic_path(target) as temporary:
        write_png(temporary, dense_sheet(rows, size, color_map))
    return (
        f"{target}: {len(rows)} keyframes, {100 * share:.0f} % of their pixels "
        f"measured{agreement}; {len(keys)} of {total} keyframes have measured depth\n"
    )
