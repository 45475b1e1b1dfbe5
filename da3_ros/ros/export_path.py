"""Where a service may write: under one configured folder, and nowhere else. No middleware."""

from __future__ import annotations

from pathlib import Path


class PathError(ValueError):
    """A path that is not allowed; one line that names it and the folder."""


def resolve_inside(root: str, path: str, suffix: str = "") -> Path:
    """``path``, relative to ``root`` or absolute inside it, with ``suffix`` if it has none.

    Links are followed before the check, so that none leads outside. Raises PathError.
    """
    folder = Path(root).expanduser().resolve()
    if not path or "\0" in path:
        raise PathError(f"no path given: name a file under export_dir ({folder})")
    target = Path(path).expanduser()
    if suffix and target.suffix.lower() != suffix:
        target = target.with_name(target.name + suffix)
    target = (folder / target).resolve()
    if folder not in target.parents:
        raise PathError(f"{path} leaves export_dir ({folder}): give a path inside it")
    if target.is_dir():
        raise PathError(f"{target} is a folder: name a file")
    return target
