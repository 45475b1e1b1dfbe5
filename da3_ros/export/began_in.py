"""The saved scenes in which a replay began: its keyframes do not include theirs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from da3_ros.export.scene_folder import find_scene

MEASURED, BEGAN_IN = "measured.json", "began_in"  # beside a replay's scene; what differs by run


def began_in(scene: Path) -> Iterator[Path]:
    """Yields the scene in which the replay of a scene folder began, the one in which that one's
    replay began, and so on, as far as they are known. They may be gone."""
    seen = {find_scene(scene).resolve()}  # a replay may have replaced the scene in which it began
    while (found := _resumed(scene)) is not None and find_scene(found).resolve() not in seen:
        seen.add(find_scene(found).resolve())
        yield found
        scene = found


def _resumed(scene: Path) -> Path | None:
    """``scene``: a scene folder or a replay's output folder."""
    for folder in (scene, scene.parent):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return Path(json.loads((folder / MEASURED).read_text())[BEGAN_IN])
    return None
