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
    try:
        home = Path(root).expanduser().resolve()
        path.encode()  # a name with half a character could not be sent back
        return _inside(home, path, suffix, folder)
    except PathError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a circle
        raise PathError(f"{_short(path)!a} in export_dir ({root}): {error}") from error


def _inside(home: Path, path: str, suffix: str, folder: bool) -> Path:
    target = Path(path).expanduser()
    if not path or "\0" in path or (target.name in ("", "..") and suffix):
        raise PathError(f"no name given: name a {_kind(folder)} under export_dir ({home})")
    if suffix and target.suffix.lower() != suffix:
        target = target.with_name(target.name + suffix)
    target = (home / target).resolve()
    if home not in target.parents:
        raise PathError(f"{path} leaves export_dir ({home}): give a path inside it")
    if target.exists() and target.is_dir() != folder:
        raise PathError(f"{target} is a {_kind(target.is_dir())}: name a {_kind(folder)}")
    if not _is_text(str(target)):
        raise PathError(f"{path} leads to {str(target)!a}, a name that is no UTF-8: name another")
    return target


def beside(path: Path, camera: str) -> Path:
    """The path of a camera that has a scene of its own beside the first camera's."""
    return path.with_name(f"{path.stem}_{camera.replace('/', '_')}{path.suffix}")


def _is_text(name: str) -> bool:
    """Whether a name can be sent: what Linux allows beyond UTF-8 comes as half characters."""
    return name == name.encode(errors="replace").decode()


def _kind(folder: bool) -> str:
    return "folder" if folder else "file"


def _short(path: str, most: int = 60) -> str:
    return path if len(path) <= most else f"{path[:most]}..."
