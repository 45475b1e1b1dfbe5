"""The Gaussian head of giant and nested models: a 3D Gaussian for each pixel (arXiv 2511.10647).

Its output is made relative to pixel, depth and camera (``splats/relative.py``). The formulas
are in ``docs/gaussian_head.md``.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from da3_ros.network.camera import quaternion_from_matrix
from da3_ros.network.head import PlainScratch, PositionedPyramid, enlarge
from da3_ros.network.specs import ModelSpec
from da3_ros.splats.relative import COUNT, SH

LEAST_SCALE, MOST_SCALE = 1e-5, 30.0  # of a Gaussian, tenths of a pixel
# Factors of the coefficients of degree 1 and 2, as in training.
DAMPING = (1.0, *(0.1 * 0.25,) * 3, *(0.1 * 0.25**2,) * 5)


class GaussianHead(PositionedPyramid):
    """A DPT head without token norm, into which the images are added at full size."""

    scratch: PlainScratch

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        half = spec.features // 2
        self.scratch = PlainScratch(spec.features, spec.channels, COUNT)
        widths = (3, half // 4, half // 2, half)
        self.images_merger = nn.Sequential()
        for a, b in itertools.pairwise(widths):
            self.images_merger.extend((nn.Conv2d(a, b, 3, padding=1), nn.GELU()))

    def decode(
        self, projected: list[Tensor], images: Tensor, depth: Tensor, R: Tensor, chunk: int
    ) -> Tensor:
        """Returns relative Gaussians [F, 38, H, W], made of ``chunk`` frames at a time.

        projected: taps 4 x [F, P, c_k]. images: normalised [F, 3, H, W]. depth: [F, H, W]. R:
        [F, 3, 3] rotations from the window to the cameras.
        """
        parts = []
        for i in range(0, len(images), chunk):
            some = slice(i, i + chunk)
            raw = self._frames([t[some] for t in projected], images[some])
            parts.append(relative_gaussians(raw, depth[some], R[some]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _frames(self, projected: list[Tensor], images: Tensor) -> Tensor:
        size = (images.shape[-2], images.shape[-1])
        x = self.scratch.output_conv1(self._refine(self._pyramid(projected, size), ""))
        x = enlarge(x, size) + self.images_merger(images.to(x.dtype))
        last = self.scratch.output_conv2
        out: Tensor = last[2](last[:2](self._with_uv(x, size)).float())
        return out


def relative_gaussians(raw: Tensor, depth: Tensor, R_camera_window: Tensor) -> Tensor:
    """Converts the head's channels [..., 38, H, W] to relative Gaussians, of the same shape,
    channels as in ``splats.relative.CHANNELS``.

    depth: [..., H, W]. R_camera_window: [..., 3, 3], of the frame in which the network gives
    poses.
    """
    offset, scale, rotation, sh, shift, opacity = raw.split((2, 3, 4, 3 * SH, 1, 1), dim=-3)
    least, most = 0.1 * LEAST_SCALE, 0.1 * MOST_SCALE
    damping = torch.tensor(DAMPING, device=raw.device).repeat(3)[:, None, None]
    return torch.cat(
        (
            offset,
            shift / depth.unsqueeze(-3),
            least + (most - least) * scale.sigmoid(),
            _in_camera(rotation.movedim(-3, -1), R_camera_window).movedim(-1, -3),
            opacity.sigmoid(),
            sh * damping,
        ),
        dim=-3,
    )


def _in_camera(raw: Tensor, R_camera_window: Tensor) -> Tensor:
    """Converts the head's quaternions x, y, z, w [..., H, W, 4] to rotations to the camera's
    axes, quaternions w, x, y, z.

    The reference turns them into its window with the components out of order: it reads (w, x, y,
    z) as (x, y, z, w) when it multiplies, and the product as (w, x, y, z) again, which is right
    only for the reference camera. Its weights were trained with that, so it is repeated here.
    """
    q_window_camera = quaternion_from_matrix(R_camera_window.mT)[..., None, None, :]
    mistaken = _product(q_window_camera, F.normalize(raw, dim=-1, eps=1e-8).roll(1, dims=-1))
    inverse = q_window_camera * q_window_camera.new_tensor((-1.0, -1.0, -1.0, 1.0))
    return _product(inverse, mistaken.roll(-1, dims=-1)).roll(1, dims=-1)


def _product(p: Tensor, q: Tensor) -> Tensor:
    """The rotation ``q`` followed by ``p``, quaternions x, y, z, w."""
    (px, py, pz, pw), (x, y, z, w) = p.unbind(-1), q.unbind(-1)
    return torch.stack(
        (
            pw * x + px * w + py * z - pz * y,
            pw * y - px * z + py * w + pz * x,
            pw * z + px * y - py * x + pz * w,
            pw * w - px * x - py * y - pz * z,
        ),
        dim=-1,
    )
