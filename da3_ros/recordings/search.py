"""Finds the recordings below a folder."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from da3_ros.recordings.bag_files import COMPRESSED, is_storage
from da3_ros.recordings.folder import IMAGE_SUFFIXES, image_files
from da3_ros.recordings.layouts import layout_of
from da3_ros.recordings.video import VIDEO_SUFFIXES

log = logging.getLogger(__name__)

FEWEST_IMAGES = 2  # of a folder of images: one picture beside other files is none


def find_recordings(folder: Path, skip: Callable[[Path], bool]) -> Iterator[Path]:
    """Yields bags, videos, data sets and folders of images below ``folder``, in order; a
    recording's own folder is not searched, nor one that ``skip`` names. What cannot be read is
    left out with a warning.
    """
    return _found(folder, skip, set())


def _found(folder: Path, skip: Callable[[Path], bool], seen: set[Path]) -> Iterator[Path]:
    """``seen``: folders that were searched already, so that a link to one of them ends."""
    if folder.resolve() in seen:
        return
    seen.add(folder.resolve())
    try:
        inner = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        log.warning("%s is left out: %s", folder, error)
        return
    _warn_of_images(folder, inner)
    for path in inner:
        try:
            kind = "skip" if path.is_dir() and skip(path) else _kind(path)
        except OSError as error:
            log.warning("%s is left out: %s", path, error)
            continue
        if kind == "recording":
            yield path
        elif kind == "folder":
            yield from _found(path, skip, seen)


def _warn_of_images(folder: Path, inner: Sequence[Path]) -> None:
    """Says that images beside folders or recordings are taken for none."""
    suffixed = [p for p in inner if p.suffix.lower() in IMAGE_SUFFIXES]
    if len(suffixed) >= FEWEST_IMAGES:
        log.warning(
            "%s: %d images beside other folders or recordings are left out: give them a folder of "
            "their own", folder, len(suffixed),
        )  # fmt: skip


def _kind(path: Path) -> str:
    if is_recording(path):
        return "recording"
    return "folder" if path.is_dir() else "other"


def is_recording(path: Path) -> bool:
    """Whether a path is one bag, one video, one data set or one folder of images, rather than a
    folder of recordings.

    Bag files in a folder without metadata.yaml are a recording each, unless their names are those
    of one bag's parts: the folder's with a number.
    """
    if not path.is_dir():
        return _is_single(path)
    if (path / "metadata.yaml").exists():
        return True
    inner = list(path.iterdir())
    bags = [name_of(p) for p in inner if p.is_file() and is_storage(p)]
    if bags:
        part = re.compile(re.escape(name_of(path)) + r"_\d+")
        return all(part.fullmatch(name) for name in bags)
    if layout_of(path) is not None:
        return True
    if any(p.is_dir() or _is_single(p) for p in inner):
        return False
    return len(image_files(path)) >= FEWEST_IMAGES


def name_of(path: Path) -> str:
    """Returns the name of a recording without the suffixes of its file."""
    if path.is_dir():
        return Path(os.path.abspath(path)).name
    name = path.name
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).stem


def _is_single(path: Path) -> bool:
    """Whether a file is a recording by itself."""
    return path.is_file() and (is_storage(path) or path.suffix.lower() in VIDEO_SUFFIXES)
