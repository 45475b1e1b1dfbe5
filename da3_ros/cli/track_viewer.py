"""`da3_ros view --tracks`: draws the feature tracks of a replay."""

from __future__ import annotations

from pathlib import Path

from da3_ros.cli.scene_viewer import check_picture
from da3_ros.drawing.scene_picture import write_png
from da3_ros.drawing.track_sheet import draw_tracks
from da3_ros.drawing.tracks_file import load_tracks
from da3_ros.export.atomic_files import atomic_path

MOST_SIDE = 2048  # pixels of each of the pictures


def view_tracks(source: Path, target: Path, size: tuple[int, int]) -> str:
    """Write one PNG with the frames and tracks in ``source``; returns a text.

    source: a replay's output folder, or its tracks.npz. size: that images are fitted into.

    Raises SceneFileError or ExportError.
    """
    check_picture(target, size, MOST_SIDE)
    frames = load_tracks(source)
    with atomic_path(target) as temporary:
        write_png(temporary, draw_tracks(frames, size))
    mean = sum(len(frame.track_history) for frame in frames) / len(frames)
    return f"{target}: {len(frames)} frames, {mean:.0f} tracks a frame\n"
