"""`da3_ros view --tracks`: draws the feature tracks of a replay."""

from __future__ import annotations

from pathlib import Path

from da3_ros.drawing.scene_picture import write_png
from da3_ros.drawing.track_sheet import draw_tracks
from da3_ros.drawing.tracks_file import load_tracks
from da3_ros.export.atomic_files import atomic_path
from da3_ros.export.export import ExportError

MOST_SIDE = 2048  # pixels of each of the pictures


def view_tracks(source: Path, target: Path, size: tuple[int, int]) -> str:
    """Write one PNG with the frames and tracks in ``source``; returns a text.

    source: a replay's output folder, or its tracks.npz. size: that images are fitted into.

    Raises SceneFileError or ExportError.
    """
    if target.suffix.lower() != ".png":
        raise ExportError(f"--output {target}: must end with .png")
    if max(size) > MOST_SIDE:
        raise ExportError(f"--size {size[0]}x{size[1]}: at most {MOST_SIDE} pixels a side")
    frames = load_tracks(source)
    with atomic_path(target) as temporary:
        write_png(temporary, draw_tracks(frames, size))
    mean = sum(len(frame.trails) for frame in frames) / len(frames)
    return f"{target}: {len(frames)} frames, {mean:.0f} tracks a frame\n"
