"""Writes the scene: GLB for viewers, PLY for point tools, COLMAP for splatting, TUM for paths.

Everything is written under a temporary name in the same folder and renamed when complete. All but
GLB are in the ROS map frame (x forward, y left, z up); GLB is in glTF axes (y up). Points are
processed in chunks: the memory of an export does not depend on the size of the scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.atomic_files import size_of
from da3_ros.export.formats import scene_format
from da3_ros.export.selection import (
    ExportError,
    Progress,
    Selection,
    selected,
    silent,
)
from da3_ros.export.stored_depth import Readable
from da3_ros.mapping.scene import REFERENCE, Scene

ALL = Selection()


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    points: int
    bytes: int  # of the file, or of all files in the folder
    components: int = 1  # number of components of the scene
    unconnected: int = 0  # number of components whose pose in the map is unknown
    counted: str = "points"  # what ``points`` counts

    @property
    def text(self) -> str:
        """The result in one line."""
        note = components_note(self.components, self.unconnected)
        return f"{self.points} {self.counted} in {self.path}{note}"


def export_scene(
    scene: Scene,
    path: Path,
    selection: Selection = ALL,
    form: str = "",
    progress: Progress = silent,
    keyframes: Sequence[Readable] = (),
) -> Exported:
    """Writes the ``selection`` of ``scene``.

    ``form`` names a ``SceneFormat``; by default it follows from the path's suffix. ``keyframes``
    are what is stored of the scene's images. ``progress`` may raise, which aborts the export and
    removes its files. Raises ExportError, or JournalError for a damaged keyframe.
    """
    row = scene_format(path, form)
    if _is_empty(scene):
        raise ExportError("the scene is empty: nothing was processed yet")
    scene = scene if selection.unconnected else scene.of_component(REFERENCE)
    if _is_empty(scene):
        raise ExportError(
            "all components of the scene are unconnected: export those too (without "
            "--known-only, or with map.export_guessed: true)"
        )
    with (
        row.place(path) as temporary,
        selected(scene, selection, temporary.parent, progress) as points,
    ):
        shown = [one for one in keyframes if one.component in scene.components]
        count = row.write_selected(scene, points, temporary, progress, selection, shown)
    components = len(scene.components), scene.unconnected
    return Exported(path, count, size_of(path), *components, row.counted)


def _is_empty(scene: Scene) -> bool:
    return not len(scene) and not len(scene.poses)


def components_note(components: int, unconnected: int) -> str:
    """Returns a note on unconnected components of a scene; empty if there are none."""
    if not unconnected:
        return ""
    return f"; {components} component{'s' * (components > 1)}, {unconnected} unconnected"
