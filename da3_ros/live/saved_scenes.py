"""Saved scenes in which a node goes on: by the service, or from its start (``map.load``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.paths import PathError, path_for_camera, resolve_inside
from da3_ros.export.scene_file import load_scene
from da3_ros.export.scene_folder import find_scene
from da3_ros.mapping.submaps import Snapshot
from da3_ros.parameter_schema import ConfigError

log = logging.getLogger(__name__)


def load_scenes(path: Path, names: Sequence[str]) -> dict[str, Snapshot]:
    """Returns the saved scene in a folder, for the first of the named scenes; and those beside it
    with the names of further cameras, if there are.

    Raises SceneFileError.
    """
    folder = find_scene(path)
    first, *others = names
    paths = {name: path_for_camera(folder, name) for name in others}
    there = {first: folder} | {name: path for name, path in paths.items() if path.is_dir()}
    return {name: load_scene(path) for name, path in there.items()}


def scenes_at_start(config: NodeConfig, names: Sequence[str]) -> dict[str, Snapshot]:
    """Returns the scenes that ``map.load`` names; none, if it is empty.

    Raises ConfigError if they cannot be loaded.
    """
    wanted = config.pipeline.map.load
    if not wanted:
        return {}
    try:
        return load_scenes(resolve_inside(config.export_dir, wanted, folder=True), names)
    except (OSError, PathError, SceneFileError) as error:
        raise ConfigError(f"map.load is {wanted!r}: {error}") from error
