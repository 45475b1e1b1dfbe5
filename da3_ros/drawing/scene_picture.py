"""Pictures of a scene as a whole, from its sides and from above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from da3_ros.drawing.scene_drawing import Drawing, drawing_of
from da3_ros.drawing.scene_renderer import BACKGROUND, SceneRenderer
from da3_ros.drawing.viewpoint import SIDES, fitted
from da3_ros.mapping.scene import Scene
from da3_ros.types import Image

LARGEST_PX = 6  # side of the square of a point


def render_scene(scene: Scene, size: tuple[int, int] = (960, 720)) -> Image:
    """Returns a scene from above and behind the first camera, RGB [H, W, 3]."""
    return render(drawing_of(scene), size)[0]


def render(
    drawing: Drawing, size: tuple[int, int] = (960, 720), sides: Sequence[str] = ("behind",)
) -> list[Image]:
    """Returns a picture RGB [H, W, 3] of (width, height) ``size`` from each side.

    sides: keys of SIDES.
    """
    renderer = SceneRenderer(drawing, LARGEST_PX)
    if not len(renderer.everything):
        return [np.full((size[1], size[0], 3), BACKGROUND, np.uint8)] * len(sides)
    return [
        renderer.picture(fitted(renderer.everything, drawing.heading(), *SIDES[side], size))
        for side in sides
    ]


def write_png(path: Path, image: Image) -> None:
    """Write RGB [H, W, 3] as PNG. Raises OSError."""
    _, data = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    path.write_bytes(data.tobytes())
