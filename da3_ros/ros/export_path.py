"""Where a service may read and write: under one configured folder, nowhere else. No middleware."""

from __future__ import annotations

from pathlib import Path


class PathError(ValueError):
    """A path that is not allowed; one line that names it and the folder."""


def resolve_inside(root: str, path: str, suffix: str = "", *, folder: bool = False) -> Path:
    """``path``, relative to ``root`` or absolute inside it, with ``suffix`` if it has none.

    Links are followed before the check, so that none leads outside. What is there already must be
    a file, or a folder if one is asked for. Raises PathError.
    """
    home = Path(root).expanduser().resolve()
    if not path or "\0" in path:
        raise PathError(f"no path given: name a {_kind(folder)} under export_dir ({home})")
    target = Path(path).expanduser()
    if suffix and target.suffix.lower() != suffix:
        target = target.with_name(target.name + suffix)
    target = (home / target).resolve()
    if home not in target.parents:
        raise PathError(f"{path} leaves export_dir ({home}): give a path inside it")
    if target.exists() and target.is_dir() != folder:
        raise PathError(f"{target} is a {_kind(target.is_dir())}: name a {_kind(folder)}")
    return target


def beside(path: Path, camera: str) -> Path:
    """The path of a camera that has a scene of its own beside the first camera's."""
    return path.with_name(f"{path.stem}_{camera.replace('/', '_')}{path.suffix}")


def _kind(folder: bool) -> str:
    return "folder" if folder else "file"
