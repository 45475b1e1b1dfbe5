"""Newcomers from outside the package: a camera model, a format, a backend, a topic, a source of
metres and a layout of data sets."""

from typing import Any

import numpy as np
from torch import Tensor

from da3_ros.backends import BACKENDS
from da3_ros.backends.interface import Backend, OneBackend, Opening, Runtime
from da3_ros.export.formats import FORMATS, SceneFormat
from da3_ros.messages.outputs import FRAME_TOPICS, FrameTopic
from da3_ros.network.model import Output
from da3_ros.recordings.layouts import LAYOUTS
from da3_ros.recordings.layouts.layout import ImageList, Layout, ListedImage
from da3_ros.recordings.layouts.text_rows import seconds_to_ns
from da3_ros.scale_sources import SCALE_SOURCES
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.sensors.camera_models import CAMERA_MODELS, CameraModel
from da3_ros.types import ScaleMeasurement

FLOAT = "std_msgs/msg/Float32"


class FieldOfView(CameraModel):
    """Devernay and Faugeras 2001: r' = atan(2 r tan(w / 2)) / w, with D = [w]."""

    coefficients = (1,)

    def distort(self, K, D, rays):
        radius = np.hypot(*rays.T).clip(1e-9)
        bent = np.arctan(2 * radius * np.tan(D[0] / 2)) / D[0]
        return rays * (bent / radius)[:, None] * np.diag(K)[:2] + K[:2, 2]


class Xyz(SceneFormat):
    """A line of text per point."""

    name, title, suffixes = "xyz", "XYZ text", (".xyz",)

    def write(self, scene, points, path, progress):
        rows = (row for chunk in points.chunks(progress) for row in chunk["xyz"].tolist())
        path.write_text("".join(f"{x:.3f} {y:.3f} {z:.3f}\n" for x, y, z in rows))


class ToyBackend(Backend):
    """The network in PyTorch, with all depth doubled."""

    name = "toy"

    def __init__(self, module: Any) -> None:
        self._module = module

    def encode(self, images: Tensor) -> Any:
        return self._module.encode(images)

    def decode(
        self, prefix: Any, size: tuple[int, int], camera_tokens: Tensor | None,
        frames: Tensor | None,
    ) -> Output:  # fmt: skip
        out = self._module.decode(prefix, size, camera_tokens, ref_view="first", frames=frames)
        return out._replace(depth=2 * out.depth)


class ToyRuntime(Runtime):
    def open(self, opening: Opening) -> OneBackend:
        return OneBackend(lambda: ToyBackend(opening.module))


class Spacing(ScaleSource):
    """The cameras of each frameset are 0.3 m apart."""

    def measure(self, window, estimate, by_prior):
        framesets = np.array([view.frameset for view in window.views])
        first, second = np.nonzero(np.triu(framesets[:, None] == framesets, 1))
        centres = estimate.T_window_camera[:, :3, 3]
        lengths = np.linalg.norm(centres[second] - centres[first], axis=1)
        return ScaleMeasurement(0.3 / float(np.median(lengths)), 0.02) if len(lengths) else None


class Diary(Layout):
    """Lines of ``seconds file x y z`` in diary.txt; the camera never turns."""

    title = "diary"

    def matches(self, folder):
        return (folder / "diary.txt").is_file()

    def cameras(self, folder):
        return ["eye"]

    def _rows(self, folder):
        return [line.split() for line in (folder / "diary.txt").read_text().splitlines()]

    def images(self, folder, camera, rate_hz):
        found = [ListedImage(seconds_to_ns(s), folder / f) for s, f, *_ in self._rows(folder)]
        return ImageList(sorted(found, key=lambda one: one.stamp_ns), "none is written")

    def poses(self, folder, camera, rate_hz):
        for s, _, *position in self._rows(folder):
            T = np.eye(4)
            T[:3, 3] = [float(v) for v in position]
            yield seconds_to_ns(s), T


NEAREST = FrameTopic(
    type=FLOAT, text="the nearest depth", depth=5,
    build=lambda context, frame: context.lib.type(FLOAT)(data=float(np.nanmin(frame.depth_m))),
)  # fmt: skip
# What somebody has to say to add them: a row each.
ROWS = (
    (CAMERA_MODELS, "fov", FieldOfView()),
    (FORMATS, "xyz", Xyz()),
    (BACKENDS, "toy", ToyRuntime),
    (FRAME_TOPICS, "nearest", NEAREST),
    (SCALE_SOURCES, "spacing", Spacing),
    (LAYOUTS, "diary", Diary()),
)
