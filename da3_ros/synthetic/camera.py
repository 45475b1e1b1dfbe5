"""A camera that walks through a rendered room: frames with exact depth, pose and intrinsics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from da3_ros.geometry.projection import corner_K
from da3_ros.sensors.calibration import pinhole_calibration
from da3_ros.sensors.camera_models import is_distorted
from da3_ros.synthetic.renderer import render_batch
from da3_ros.synthetic.rooms import make_room, stack_rooms, without_texture
from da3_ros.synthetic.walks import Pace, make_walk
from da3_ros.types import Array, Calibration, FloatImage, Image

START_NS = 1_700_000_000_000_000_000
_BATCH = 4  # frames per rendering call


@dataclass(frozen=True, eq=False)
class SyntheticFrame:
    """A frame with its truth. In a distorted image each pixel has the depth along its own ray."""

    stamp_ns: int
    image: Image  # [H, W, 3] RGB
    depth: FloatImage  # [H, W] z-depth in metres, +Inf for sky
    T_room_camera: Array  # [4, 4] z up, metres
    K: Array  # [3, 3] corner rule; of the undistorted image if there is distortion


def intrinsics(size: tuple[int, int], fov_deg: float) -> Array:
    """K float64 [3, 3] (corner rule) for square pixels and a horizontal field of view."""
    focal = size[0] / 2.0 / np.tan(np.radians(fov_deg) / 2.0)
    return np.array([[focal, 0.0, size[0] / 2.0], [0.0, focal, size[1] / 2.0], [0.0, 0.0, 1.0]])


class SyntheticCamera:
    """Frames of a walk through the room ``seed``; each iteration gives the same frames.

    Args:
        seed: random seed of room, walk and noise.
        size: (width, height).
        fov_deg: horizontal field of view.
        walk: see ``make_walk``.
        frames, rate_hz: number of frames and frame rate.
        noise_sigma: standard deviation of additive noise, in grey levels of 255.
        exposure_drift: largest relative change of brightness along the walk, 0.2 for 20 %.
        distortion_model, D: lens distortion, ROS names and order; empty D: a pinhole camera.
        pace: speed limits; its rate is replaced by ``rate_hz``.
        device: torch device for rendering.
        mount: [4, 4] pose of this camera relative to the walk's poses, for cameras on a rig.
        plain: whether surfaces have no texture, see ``without_texture``; the walk is the same.
    """

    def __init__(
        self,
        seed: int,
        size: tuple[int, int] = (640, 480),
        fov_deg: float = 65.0,
        walk: str = "loop",
        frames: int = 100,
        rate_hz: float = 10.0,
        noise_sigma: float = 0.0,
        exposure_drift: float = 0.0,
        *,
        distortion_model: str = "plumb_bob",
        D: Sequence[float] = (),
        pace: Pace | None = None,
        supersample: bool = True,
        device: str = "cpu",
        start_ns: int = START_NS,
        mount: Array | None = None,
        plain: bool = False,
    ) -> None:
        self.seed, self.size, self.rate_hz = seed, size, rate_hz
        self.noise_sigma, self.exposure_drift = noise_sigma, exposure_drift
        self.supersample, self.start_ns = supersample, start_ns
        pace = pace or Pace()
        pace = Pace(rate_hz, pace.max_speed_m_s, pace.max_turn_deg_s)
        self.room = make_room(seed)
        self.T_room_camera = make_walk(self.room, walk, frames, seed, pace)
        if mount is not None:
            self.T_room_camera = self.T_room_camera @ mount
        self.calibration = _calibration(size, fov_deg, distortion_model, D)
        self.K = corner_K(self.calibration.K)
        if plain:
            self.room = without_texture(self.room)
        self._rooms = stack_rooms([self.room], device)

    def __len__(self) -> int:
        return len(self.T_room_camera)

    def __iter__(self) -> Iterator[SyntheticFrame]:
        for first in range(0, len(self), _BATCH):
            yield from self._render(range(first, min(first + _BATCH, len(self))))

    def __getitem__(self, index: int) -> SyntheticFrame:
        if not 0 <= index < len(self):
            raise IndexError(f"frame {index} of {len(self)}")
        return self._render(range(index, index + 1))[0]

    def _render(self, frames: range) -> list[SyntheticFrame]:
        poses = self.T_room_camera[frames.start : frames.stop]
        seen = render_batch(
            self._rooms,
            poses,
            self.K,
            self.size,
            supersample=self.supersample,
            calibration=self.calibration if is_distorted(self.calibration) else None,
        )
        images, depths = seen.image.cpu().numpy(), seen.depth.cpu().numpy()
        return [
            SyntheticFrame(
                stamp_ns=self.start_ns + round(i * 1e9 / self.rate_hz),
                image=self._expose(images[k], i),
                depth=depths[k],
                T_room_camera=poses[k].copy(),
                K=self.K.copy(),
            )
            for k, i in enumerate(frames)
        ]

    def _expose(self, image: Image, index: int) -> Image:
        """Apply exposure changes and sensor noise to an image."""
        if not self.noise_sigma and not self.exposure_drift:
            return image
        rng = np.random.default_rng([self.seed, index, 0x5E])
        swing = np.sin(2.0 * np.pi * index / max(len(self), 2) * 1.5 + self.seed)
        exposed = image.astype(np.float32) * np.float32(1.0 + self.exposure_drift * swing)
        if self.noise_sigma:
            exposed += self.noise_sigma * rng.standard_normal(image.shape, dtype=np.float32)
        return exposed.round().clip(0, 255).astype(np.uint8)


def _calibration(
    size: tuple[int, int], fov_deg: float, distortion_model: str, D: Sequence[float]
) -> Calibration:
    pinhole = pinhole_calibration(intrinsics(size, fov_deg), size)
    given = Calibration(
        width=size[0],
        height=size[1],
        K=pinhole.K,
        distortion_model=distortion_model,
        D=np.array(D, np.float64),
        P=pinhole.P,
    )
    return given if is_distorted(given) else pinhole
