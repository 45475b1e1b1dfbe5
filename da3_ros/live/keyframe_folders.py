"""Where a node stores keyframes: a new folder for each run, under ``map.store``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.export.paths import PathError, path_for_camera, resolve_inside
from da3_ros.keyframe_store.array_spill import ArraySpill
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.recorder import FULL
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)


def record_keyframes(pipelines: Mapping[str, Pipeline], config: NodeConfig) -> None:
    """Stores the keyframes of all pipelines from now on, if ``map.store`` names a folder.

    Frames do not wait for the disk. Raises ConfigError if the folder cannot be used.
    """
    limits = config.pipeline.map
    if config.pipeline.splats.enabled and not limits.store:
        raise ConfigError(
            "splats.enabled is true, but map.store is empty: set it to a folder below export_dir, "
            "where keyframes and their Gaussians are stored"
        )
    if not limits.store:
        return
    if not limits.enabled:
        log.warning("map.store: no keyframes are stored, because map.enabled is false")
        return
    try:
        folder = _new_folder(resolve_inside(config.export_dir, limits.store, folder=True))
        limit = DiskLimit(round(1e9 * limits.disk_gb))
        for i, (name, pipeline) in enumerate(pipelines.items()):
            path = path_for_camera(folder, name) if i else folder
            pipeline.store(path, _spill(folder, limit), limit, wait=False)
    except (OSError, PathError) as error:
        raise ConfigError(f"map.store is {limits.store!r}: {error}") from error
    log.info("keyframes are stored in %s", folder)


def _new_folder(parent: Path) -> Path:
    """Makes and returns the next numbered folder in ``parent``; on a full disk the recorder makes
    it later. Raises OSError."""
    with _unless_full():
        parent.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = [int(p.name) for p in parent.glob("*") if p.name.isdecimal()]
        folder = parent / f"{max(numbers, default=0) + 1:06d}"
        try:
            with _unless_full():
                folder.mkdir()
        except FileExistsError:  # another node made it meanwhile
            continue
        return folder


def _spill(folder: Path, limit: DiskLimit) -> ArraySpill | None:
    """Returns where the map's points go that memory cannot hold; None: the disk is full."""
    with _unless_full():
        return ArraySpill(folder, limit=limit, background=True)
    return None


@contextlib.contextmanager
def _unless_full() -> Iterator[None]:
    """Ignores that a disk is full, which may end later: the recorder warns."""
    try:
        yield
    except FileNotFoundError:  # a folder that could not be made
        pass
    except OSError as error:
        if error.errno not in FULL:
            raise
