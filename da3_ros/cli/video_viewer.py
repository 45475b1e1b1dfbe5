"""`da3_ros view --video`: a video of a scene, along the path of its camera or around it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from da3_ros.cli.progress_bar import progress_bar
from da3_ros.cli.scene_viewer import Shown, described, read_shown
from da3_ros.drawing.camera_motion import Shot, along_path, orbit
from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.scene_renderer import SceneRenderer
from da3_ros.drawing.video_writer import SUFFIX, check_encoder, video_writer
from da3_ros.export.atomic_files import atomic_path, check_file_target
from da3_ros.export.export import ExportError
from da3_ros.parameter_schema import ConfigError

MOST_SIDE, MOST_RATE, MOST_SECONDS = 4096, 120, 3600.0
MOST_POINTS = 500_000  # more would double the time for details that move
LARGEST_PX = 32  # side of the square of a point: the viewpoint passes close to points


@dataclass(frozen=True)
class VideoOptions:
    """How a scene is shown in a video."""

    size: tuple[int, int]  # width and height, pixels
    seconds: float
    rate: int  # pictures per second
    orbit: bool  # around the scene, not along the path
    shown: Shown

    def __post_init__(self) -> None:
        """Raises ConfigError if no video can be like that."""
        width, height = self.size
        if width % 2 or height % 2 or max(self.size) > MOST_SIDE:
            raise ConfigError(
                f"--size {width}x{height}: a video needs even sides of at most {MOST_SIDE} pixels"
            )
        if not 1 <= self.rate <= MOST_RATE:
            raise ConfigError(f"--fps {self.rate}: give 1 to {MOST_RATE}")
        if not 1.0 / self.rate <= self.seconds <= MOST_SECONDS:
            raise ConfigError(
                f"--seconds {self.seconds:g}: give {1 / self.rate:.2g} to {MOST_SECONDS:g}"
            )


def view_video(source: Path, target: Path, options: VideoOptions) -> str:
    """Write a video of the scene in ``source``; returns a text.

    Raises SceneFileError or ExportError.
    """
    if target.suffix.lower() != SUFFIX:
        raise ExportError(f"--video {target}: must end with {SUFFIX}")
    check_file_target(target)
    check_encoder()
    drawing = read_shown(source, options.shown)
    if not len(drawing.faces):
        drawing = drawing.take(np.arange(0, len(drawing.points), _stride(drawing)))
    renderer = SceneRenderer(drawing, LARGEST_PX, supersampling=1)
    count = round(options.seconds * options.rate)
    shots = _shots(source, renderer, options, count)
    number = 0
    with (
        atomic_path(target) as temporary,
        video_writer(temporary, Fraction(options.rate)) as video,
        progress_bar() as progress,
    ):
        for number, shot in enumerate(shots, 1):
            video.add(renderer.picture(shot.viewpoint, shot.lines))
            progress("video", min(1.0, number / count))
    return f"{target}: {number / options.rate:.1f} s, {described(drawing)}\n"


def _stride(drawing: Drawing) -> int:
    return max(1, -(-len(drawing.points) // MOST_POINTS))


def _shots(
    source: Path, renderer: SceneRenderer, options: VideoOptions, count: int
) -> Iterator[Shot]:
    """Returns the viewpoints. Raises ExportError if there is no path to follow."""
    drawing = renderer.drawing
    if options.orbit:
        return orbit(renderer.everything, drawing.heading(), options.size, count)
    if not drawing.chains:
        raise ExportError(f"{source} has no path with poses: give a scene folder, or --orbit")
    shots = along_path(drawing, options.size, count, options.rate)
    first = next(shots, None)
    if first is None:
        raise ExportError(f"{source}: the camera stood still: give --orbit")
    return itertools.chain([first], shots)
