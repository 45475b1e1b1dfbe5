"""The points of a scene's feature tracks, to be drawn instead of the map's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.track_sheet import track_colors
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.colmap_frames import tracked_points
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import find_scene
from da3_ros.export.stored_depth import DepthFilters, readable_keyframes
from da3_ros.keyframe_store.journal import JournalError


def with_track_points(drawing: Drawing, source: Path) -> Drawing:
    """Returns a drawing of the scene in ``source`` with the points of the tracks that its stored
    keyframes have, coloured by their reprojection error.

    Raises SceneFileError, and ExportError if all keyframes are damaged.
    """
    scene = SceneFile(find_scene(source))
    if not scene.has_keyframes:
        raise SceneFileError(
            f"{source} has no stored keyframes: give a replay's output, or a scene of map.store"
        )
    try:
        with scene.keyframes() as stored:
            tracked = tracked_points(readable_keyframes(stored, DepthFilters()))
    except JournalError as error:
        raise SceneFileError(str(error)) from error
    if not len(tracked):
        raise SceneFileError(f"{source} has no feature tracks: its windows were not refined")
    points = tracked.xyz.astype(np.float32)
    return dataclasses.replace(drawing, points=points, rgb=track_colors(tracked.error_px))
