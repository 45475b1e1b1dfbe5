"""Names of the files that are made from stored keyframes: NAME.mesh.glb, NAME.splat.ply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from da3_ros.export.paths import path_for_camera
from da3_ros.export.selection import ExportError


@dataclass(frozen=True)
class StoredFormat:
    """A kind of files: a word between name and suffix, and the suffixes; the first is usual."""

    word: str
    suffixes: tuple[str, ...]

    def is_name(self, path: Path) -> bool:
        """True for names such as room.mesh.glb."""
        return path.stem.lower().endswith(f".{self.word}")

    def check_name(self, path: Path) -> None:
        """Raises ExportError for a name whose suffix is none of this kind."""
        if path.suffix.lower() not in self.suffixes:
            known = ", ".join(f"NAME.{self.word}{s}" for s in self.suffixes)
            raise ExportError(f"{path}: unknown {self.word} format, name it {known}")

    def named(self, path: str) -> str:
        """Returns a requested name, with a suffix if it has none."""
        name = Path(path).name
        if Path(path).suffix or name in ("", ".."):
            return path
        return str(Path(path).with_name(f"{name}.{self.word}{self.suffixes[0]}"))

    def path_for_camera(self, path: Path, camera: str) -> Path:
        """Returns the path for a camera with a scene of its own: with the camera's name in it."""
        if not self.is_name(path):
            return path_for_camera(path, camera)
        stem = path.with_name(path.stem[: -len(self.word) - 1] + path.suffix)
        named = path_for_camera(stem, camera)
        return named.with_name(f"{named.stem}.{self.word}{path.suffix}")


MESH = StoredFormat("mesh", (".glb", ".ply", ".obj"))
SPLAT = StoredFormat("splat", (".ply", ".glb"))
STORED_FORMATS = (MESH, SPLAT)


def stored_format(path: Path, asked: str) -> StoredFormat | None:
    """Returns the kind that is asked for by its word, or else by a name; None: another format."""
    if asked:
        return next((f for f in STORED_FORMATS if f.word == asked), None)
    return next((f for f in STORED_FORMATS if f.is_name(path)), None)
