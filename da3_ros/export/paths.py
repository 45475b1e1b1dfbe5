"""Paths that services may read and write: inside one configured folder only. No middleware."""

from __future__ import annotations

from pathlib import Path


class PathError(ValueError):
    """A forbidden path; one line that names it and the folder."""


def resolve_inside(root: str, path: str, suffix: str = "", *, folder: bool = False) -> Path:
    """Returns ``path``, relative to ``root`` or absolute inside it, with ``suffix`` if it has
    none.

    Links are followed before the check, so that none points outside. An existing path must be a
    file, or with ``folder`` a folder. Raises PathError.
    """
    try:
        home = Path(root).expanduser().resolve()
        path.encode()  # a name with a lone surrogate could not be sent back
        return _inside(home, path, suffix, folder)
    except PathError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # too long, no such user, a cycle of links
        raise PathError(f"{_short(path)!a} in export_dir ({root}): {error}") from error


def _inside(home: Path, path: str, suffix: str, folder: bool) -> Path:
    target = Path(path).expanduser()
    if not path or "\0" in path or (target.name in ("", "..") and suffix):
        raise PathError(f"no name given: name a {_kind(folder)} under export_dir ({home})")
    if suffix and target.suffix.lower() != suffix:
        target = target.with_name(target.name + suffix)
    target = (home / target).resolve()
    if home not in target.parents:
        raise PathError(f"{path} is outside export_dir ({home}): give a path inside it")
    if target.exists() and target.is_dir() != folder:
        raise PathError(f"{target} is a {_kind(target.is_dir())}: name a {_kind(folder)}")
    if not _is_text(str(target)):
        raise PathError(f"{path} resolves to {str(target)!a}, which is not UTF-8: name another")
    return target


def path_for_camera(path: Path, camera: str) -> Path:
    """Returns the path for a camera with a scene of its own: with the camera's name appended."""
    return path.with_name(f"{path.stem}_{camera.replace('/', '_')}{path.suffix}")


def _is_text(name: str) -> bool:
    """True if a name is UTF-8 and can be sent; other bytes of Linux names are lone surrogates."""
    return name == name.encode(errors="replace").decode()


def _kind(folder: bool) -> str:
    return "folder" if folder else "file"


def _short(path: str, most: int = 60) -> str:
    return path if len(path) <= most else f"{path[:most]}..."
