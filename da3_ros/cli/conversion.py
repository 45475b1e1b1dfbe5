"""`da3_ros export`: converts a saved scene for viewers, point cloud tools or splatting tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from da3_ros.export.export import Selection, export_scene
from da3_ros.export.scene_file import check_outside_scenes, find_scene, load_scene
from da3_ros.export.selection import Progress


def convert(source: Path, target: Path, selection: Selection, form: str = "") -> str:
    """Export the scene folder, or replay's output folder, ``source``; returns a text.

    Raises SceneFileError or ExportError.
    """
    check_outside_scenes(target)
    scene = load_scene(find_scene(source)).scene()
    with _bar() as progress:
        done = export_scene(scene, target, selection, form, progress)
    return f"{done.text} ({done.bytes / 1e6:.1f} MB)\n"


@contextmanager
def _bar() -> Iterator[Progress]:
    with tqdm(
        total=1.0, disable=not sys.stderr.isatty(), bar_format="{desc}: {percentage:3.0f}%|{bar}|"
    ) as bar:

        def progress(step: str, share: float) -> None:
            bar.set_description(step, refresh=False)
            bar.n = share
            bar.refresh()

        yield progress
