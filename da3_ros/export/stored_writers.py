"""What writes each kind of file that is made from stored keyframes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from da3_ros.export.selection import Progress, Selection
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.stored_formats import MESH, SPLAT, StoredFormat
from da3_ros.export.stored_mesh import ExportedMesh, export_mesh
from da3_ros.export.stored_splats import ExportedSplats, export_splats
from da3_ros.keyframe_store.store import StoredScene

StoredExported = ExportedMesh | ExportedSplats
Writer = Callable[[StoredScene, Path, Selection, DepthFilters, Progress], StoredExported]
WRITERS: dict[StoredFormat, Writer] = {MESH: export_mesh, SPLAT: export_splats}
