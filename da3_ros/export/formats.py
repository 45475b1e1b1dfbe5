"""The formats of exports: one table, with all that is particular to each.

What writes a format is imported when it is needed, so that listing them costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from da3_ros.export.selection import Points, Progress, Selection
    from da3_ros.export.stored_depth import DepthFilters, Readable
    from da3_ros.keyframe_store.store import StoredScene
    from da3_ros.mapping.scene import Scene


class Format:
    """A format; requests name it, or the path does."""

    name = ""
    title = ""  # what is written, for people
    suffixes: tuple[str, ...] = ()  # of its files; the first is usual
    folder = False  # whether it is a folder, of which ``foreign`` knows the files
    live = True  # whether a running node writes it too
    uses_keyframes = False  # whether stored keyframes give it more than the saved scene
    needs_points = True  # whether it has anything of a scene's points
    counted = "points"  # what the number in its result counts
    centred = False  # whether it has images that ``Selection.centred`` crops

    @property
    def endings(self) -> tuple[str, ...]:
        """What names of its files end with."""
        return self.suffixes

    def is_name(self, path: Path) -> bool:
        """True if a path is named as its files are."""
        return path.suffix.lower() in self.suffixes

    def resolve(self, root: str, path: str) -> Path:
        """Returns the requested path inside ``root``, with a suffix. Raises PathError."""
        from da3_ros.export.paths import resolve_inside

        suffix = "" if self.folder else self.suffixes[0]
        return resolve_inside(root, path, suffix, folder=self.folder)

    def path_for_camera(self, path: Path, camera: str) -> Path:
        """Returns the path for a camera with a scene of its own: with the camera's name in it."""
        from da3_ros.export.paths import path_for_camera

        return path_for_camera(path, camera)

    def check(self, path: Path, selection: Selection) -> None:
        """Raises ExportError for a name or a selection that the format does not admit."""
        from da3_ros.export.selection import ExportError

        if selection.centred and not self.centred:
            raise ExportError("--centred is for the images of a COLMAP model: leave it out")

    def check_target(self, path: Path) -> None:
        """Raises ExportError if ``path`` cannot be written: before work of minutes."""
        from da3_ros.export.atomic_files import check_file_target, check_folder_target

        if self.folder:
            check_folder_target(path, self.foreign)
        else:
            check_file_target(path)

    def place(self, path: Path) -> AbstractContextManager[Path]:
        """Yields a temporary file or folder that becomes ``path`` at the end. Raises
        ExportError."""
        from da3_ros.export.atomic_files import atomic_folder, atomic_path

        return atomic_folder(path, self.foreign) if self.folder else atomic_path(path)

    def foreign(self, folder: Path) -> Path | None:
        """Returns a file of a folder that was not written here; None: all were."""
        raise NotImplementedError


# Written of a scene's points and poses ----------------------------------------------------------


class SceneFormat(Format, ABC):
    """A format of points and poses."""

    @abstractmethod
    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        """Writes a scene's poses and its selected points into an empty file or folder.

        ``progress`` may raise. Raises ExportError.
        """

    def write_selected(
        self, scene: Scene, points: Points, path: Path, progress: Progress,
        selection: Selection, keyframes: Sequence[Readable],
    ) -> int:  # fmt: skip
        """As ``write``, for formats of which more can be selected; returns the number of points.

        keyframes: what is stored of the scene's images.
        """
        self.write(scene, points, path, progress)
        return len(points)


class Glb(SceneFormat):
    name, title, suffixes = "glb", "GLB", (".glb",)

    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        from da3_ros.export.glb import write_glb

        write_glb(scene, points, path, progress)

    def write_selected(
        self, scene: Scene, points: Points, path: Path, progress: Progress,
        selection: Selection, keyframes: Sequence[Readable],
    ) -> int:  # fmt: skip
        if not selection.cameras:
            scene = replace(scene, poses=scene.poses.take(slice(0)))
        return super().write_selected(scene, points, path, progress, selection, keyframes)


class Ply(SceneFormat):
    name, title, suffixes = "ply", "PLY", (".ply",)

    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        from da3_ros.export.ply import write_ply

        write_ply(scene, points, path, progress)


class Colmap(SceneFormat):
    name, title, suffixes = "colmap", "COLMAP model", (".colmap",)
    folder = uses_keyframes = centred = True

    def foreign(self, folder: Path) -> Path | None:
        from da3_ros.export.colmap import foreign_to_model

        return foreign_to_model(folder)

    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        from da3_ros.export.colmap import write_colmap

        write_colmap(scene, points, path, progress)

    def write_selected(
        self, scene: Scene, points: Points, path: Path, progress: Progress,
        selection: Selection, keyframes: Sequence[Readable],
    ) -> int:  # fmt: skip
        from da3_ros.export.colmap_frames import write_keyframes

        if keyframes:
            return write_keyframes(keyframes, selection, scene, points, path, progress)
        return super().write_selected(scene, points, path, progress, selection, keyframes)


class Tum(SceneFormat):
    name, title, suffixes = "tum", "TUM trajectory", (".tum",)

    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        from da3_ros.export.tum import write_tum

        write_tum(scene, points, path, progress)


class Pgm(SceneFormat):
    """map_server's pair, of which the image is named."""

    name, title, suffixes, counted = "pgm", "map_server's PGM and YAML", (".pgm",), "cells"
    needs_points = False

    def check(self, path: Path, selection: Selection) -> None:
        from da3_ros.export.selection import ExportError, Selection

        super().check(path, selection)
        if selection != Selection(
            cameras=selection.cameras, unconnected=selection.unconnected, crop=selection.crop,
            sh_degree=selection.sh_degree,
        ):  # fmt: skip
            raise ExportError(
                "a grid has no points: leave out --voxel, --min-confidence, "
                "--min-observations and --max-points"
            )

    def check_target(self, path: Path) -> None:
        super().check_target(path)
        super().check_target(path.with_suffix(".yaml"))
        from da3_ros.export.map_server import check_description

        check_description(path.with_suffix(".yaml"))

    def place(self, path: Path) -> AbstractContextManager[Path]:
        from da3_ros.export.map_server import placed_pair

        return placed_pair(path)

    def write(self, scene: Scene, points: Points, path: Path, progress: Progress) -> None:
        from da3_ros.export.map_server import write_map

        write_map(scene, path)

    def write_selected(
        self, scene: Scene, points: Points, path: Path, progress: Progress,
        selection: Selection, keyframes: Sequence[Readable],
    ) -> int:  # fmt: skip
        from da3_ros.export.map_server import write_map

        return write_map(scene, path, selection.crop if any(selection.crop) else ())


# Made from stored keyframes ---------------------------------------------------------------------


class StoredExported(Protocol):
    """The result of an export of stored keyframes."""

    @property
    def points(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def keyframes(self) -> int:
        """Number of keyframes that are stored."""

    @property
    def text(self) -> str:
        """The result in one line."""


class StoredFormat(Format, ABC):
    """A format that is made from the depth of stored keyframes."""

    @abstractmethod
    def write(
        self, stored: StoredScene, path: Path, selection: Selection,
        filters: DepthFilters | None, progress: Progress,
    ) -> StoredExported:  # fmt: skip
        """Writes ``path``, atomically.

        filters: of the depth; None: no other than the usual ones were asked for. ``progress`` may
        raise, which ends the work without a file. Raises ExportError.
        """


class Npz(StoredFormat):
    name, title, suffixes = "npz", "NPZ", (".npz",)
    folder, live = True, False

    def check(self, path: Path, selection: Selection) -> None:
        from da3_ros.export.selection import ExportError, Selection

        if selection != Selection(min_confidence=selection.min_confidence):
            raise ExportError(
                "NPZ files have no points: leave out --voxel, --crop, --min-observations, "
                "--max-points, --no-cameras and --known-only"
            )

    def foreign(self, folder: Path) -> Path | None:
        from da3_ros.export.npz_frames import foreign_to_npz_frames

        return foreign_to_npz_frames(folder)

    def write(
        self, stored: StoredScene, path: Path, selection: Selection,
        filters: DepthFilters | None, progress: Progress,
    ) -> StoredExported:  # fmt: skip
        from da3_ros.export.npz_frames import export_npz_frames

        return export_npz_frames(stored, path, filters, progress)


class NamedFormat(StoredFormat):
    """One whose files have its name before their suffix: room.mesh.glb."""

    @property
    def endings(self) -> tuple[str, ...]:
        return tuple(f".{self.name}{suffix}" for suffix in self.suffixes)

    def is_name(self, path: Path) -> bool:
        return path.stem.lower().endswith(f".{self.name}")

    def check_name(self, path: Path) -> None:
        """Raises ExportError for a name with another suffix."""
        from da3_ros.export.selection import ExportError

        if path.suffix.lower() not in self.suffixes:
            known = ", ".join(f"NAME{ending}" for ending in self.endings)
            raise ExportError(f"{path}: unknown {self.name} format, name it {known}")

    def check(self, path: Path, selection: Selection) -> None:
        self.check_name(path)
        super().check(path, selection)

    def resolve(self, root: str, path: str) -> Path:
        from da3_ros.export.paths import resolve_inside

        return resolve_inside(root, self.named(path))

    def named(self, path: str) -> str:
        """Returns a requested name, with an ending if it has no suffix."""
        name = Path(path).name
        if Path(path).suffix or name in ("", ".."):
            return path
        return str(Path(path).with_name(f"{name}{self.endings[0]}"))

    def path_for_camera(self, path: Path, camera: str) -> Path:
        if not self.is_name(path):
            return super().path_for_camera(path, camera)
        stem = path.with_name(path.stem[: -len(self.name) - 1] + path.suffix)
        named = super().path_for_camera(stem, camera)
        return named.with_name(f"{named.stem}.{self.name}{path.suffix}")


class MeshFormat(NamedFormat):
    name, title, suffixes = "mesh", "mesh", (".glb", ".ply", ".obj")

    def write(
        self, stored: StoredScene, path: Path, selection: Selection,
        filters: DepthFilters | None, progress: Progress,
    ) -> StoredExported:  # fmt: skip
        from da3_ros.export.stored_depth import DepthFilters
        from da3_ros.export.stored_mesh import export_mesh

        return export_mesh(stored, path, selection, filters or DepthFilters(), progress)


class SplatFormat(NamedFormat):
    name, title, suffixes = "splat", "splats", (".ply", ".glb")

    def write(
        self, stored: StoredScene, path: Path, selection: Selection,
        filters: DepthFilters | None, progress: Progress,
    ) -> StoredExported:  # fmt: skip
        from da3_ros.export.stored_depth import DepthFilters
        from da3_ros.export.stored_splats import export_splats

        return export_splats(stored, path, selection, filters or DepthFilters(), progress)


# The table --------------------------------------------------------------------------------------

GLB, MESH, SPLAT = Glb(), MeshFormat(), SplatFormat()
# By name. Of several whose files are named as a path is, the last one is meant: room.mesh.glb.
FORMATS: dict[str, Format] = {
    f.name: f for f in (GLB, Ply(), Colmap(), Tum(), Pgm(), Npz(), MESH, SPLAT)
}  # fmt: skip


def find_format(path: Path, asked: str = "", *, live: bool = False) -> Format:
    """Returns the format that is asked for, or that of a path's name.

    live: one that a running node writes. Raises ExportError.
    """
    word = _word(asked)
    rows = [f for f in FORMATS.values() if f.live or not live]
    fits = [f for f in rows if (f.name == word if word else f.is_name(path))]
    return fits[-1] if fits else scene_format(path, asked)


def scene_format(path: Path, asked: str = "") -> SceneFormat:
    """Returns the format of points and poses that is asked for, or that of a path's name. Raises
    ExportError."""
    from da3_ros.export.selection import ExportError

    rows = {f.name: f for f in FORMATS.values() if isinstance(f, SceneFormat)}
    if (word := _word(asked)) in rows:
        return rows[word]
    if word:
        raise ExportError(f"unknown format {asked!r}: one of {', '.join(rows)}, or empty")
    fits = [f for f in rows.values() if f.is_name(path)]
    if not fits:
        known = ", ".join(f.suffixes[0] for f in rows.values())
        raise ExportError(f"{path}: unknown format, the suffix must be {known}")
    return fits[-1]


def _word(asked: str) -> str:
    return asked.lower().lstrip(".")
