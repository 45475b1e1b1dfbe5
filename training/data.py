"""Training data: a pool of rendered clips, and windows of views drawn from it.

Rooms are rendered once into a pool on the training device. Each window is drawn from the pool with
its own views, order, mirroring, crop, exposure and noise. This module does not depend on the
network. Poses are T_room_camera or T_window_camera, K follows the corner rule,
depth is z-depth, +Inf for sky.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from multiprocessing import get_context

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor
from tqdm import tqdm

from da3_ros.inference.preprocess import MEAN, STD
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.specs import PATCH
from da3_ros.synthetic import (
    Pace,
    Room,
    intrinsics,
    make_room,
    make_walk,
    render_batch,
    stack_rooms,
)
from da3_ros.types import Array

WALKS = ("straight", "strafe", "spot", "handheld", "loop")
FOV_DEG = (45.0, 80.0)
# All smaller seeds are held out, so that rooms of the demo and of tests are never trained on.
FIRST_TRAINING_SEED = 10_000_000
NARROW = 1.8  # rooms this much longer than wide are never trained on
VISIBLE = 0.05  # relative depth difference up to which two views see the same surface
# Weight of a frame in draw_frames: base weight plus baseline, up to this baseline (mean depths).
_LEAST_GAIN, _ENOUGH_PARALLAX = 0.05, 0.4
_SHARE_GRID = 8  # points per side that measure the overlap of two views


# Clips ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Clip:
    """A short walk through one room with one field of view."""

    room: Room
    T_room_camera: Array  # [F, 4, 4]
    fov_deg: float


def is_narrow(room: Room) -> bool:
    """Returns whether a room is long and narrow: such rooms are held out of all training."""
    return bool(max(room.size[:2]) > NARROW * min(room.size[:2]))


def make_clips(seed: int, *, narrow: bool, clips: int, frames: int) -> list[Clip]:
    """Returns clips through the room of ``seed``.

    Returns none if the room is not of the wanted kind (``narrow``) or has no free place.
    """
    room = make_room(seed)
    if is_narrow(room) != narrow:
        return []
    rng = np.random.default_rng([seed, 0xC11B])
    made = []
    for _ in range(clips):
        # From nearly still to steps of half a metre and 25 degrees between frames.
        pace = Pace(1.0, float(rng.uniform(0.03, 0.5)), float(rng.uniform(2.0, 25.0)))
        kind, walk_seed = WALKS[rng.integers(len(WALKS))], int(rng.integers(2**31))
        try:
            poses = make_walk(room, kind, frames, walk_seed, pace)
        except ValueError:  # no free place: the caller uses another room
            return []
        made.append(Clip(room, _glance(poses, rng), float(rng.uniform(*FOV_DEG))))
    return made


def _glance(T_room_camera: Array, rng: np.random.Generator) -> Array:
    """Rotates the camera at random in every frame, in two clips of three; poses [F, 4, 4].

    In a walk rotation is slow and correlated with translation. Without this, the network could
    infer one from the other.
    """
    if rng.random() < 1 / 3:
        return T_room_camera
    size = np.radians(rng.uniform(0.0, 12.0)) * np.array([0.5, 1.0, 0.3])  # pitch, yaw, roll
    rotations = Rotation.from_rotvec(size * rng.uniform(-1, 1, (len(T_room_camera), 3)))
    out = T_room_camera.copy()
    out[:, :3, :3] = out[:, :3, :3] @ rotations.as_matrix()
    return out


def draw_clips(
    first_seed: int,
    rooms: int,
    *,
    narrow: bool = False,
    clips: int = 2,
    frames: int = 12,
    workers: int = 0,
) -> list[Clip]:
    """Returns clips of the first ``rooms`` rooms of the wanted kind from ``first_seed`` on.

    workers: number of processes that make rooms; the result does not depend on it.
    """
    work = partial(make_clips, narrow=narrow, clips=clips, frames=frames)
    if not workers:
        made = (found for found in map(work, count(first_seed)) if found)
        return [clip for found in islice(made, rooms) for clip in found]
    gathered: list[list[Clip]] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for start in count(first_seed, rooms):
            gathered += [c for c in pool.map(work, range(start, start + rooms), chunksize=8) if c]
            if len(gathered) >= rooms:
                break
    return [clip for found in gathered[:rooms] for clip in found]


# Pool -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """Rendered clips on one device: C clips of F frames."""

    images: Tensor  # [C, F, H, W, 3] uint8 RGB
    depth: Tensor  # [C, F, H, W] float16 metres, +Inf for sky
    T_room_camera: Tensor  # [C, F, 4, 4] float32
    K: Tensor  # [C, 3, 3] float32
    share: Tensor  # [C, F, F] share of frame i's surface points that frame j sees
    apart: Tensor  # [C, F, F] distance of cameras i and j, in mean depths of frame i

    def __len__(self) -> int:
        return len(self.images)

    @property
    def device(self) -> torch.device:
        """Returns the device of the tensors."""
        return self.images.device


def render_pool(
    clips: Sequence[Clip],
    size: tuple[int, int],
    device: torch.device | str = "cpu",
    *,
    supersample: bool = False,
    group: int = 32,
    progress: bool = False,
) -> Pool:
    """Renders clips at ``size`` (height, width), ``group`` of them at a time."""
    C, F, (H, W) = len(clips), len(clips[0].T_room_camera), size
    K = np.stack([intrinsics((W, H), clip.fov_deg) for clip in clips])
    poses = np.stack([clip.T_room_camera for clip in clips])
    images = torch.empty(C, F, H, W, 3, dtype=torch.uint8, device=device)
    depth = torch.empty(C, F, H, W, dtype=torch.float16, device=device)
    share, apart = (torch.empty(C, F, F, device=device) for _ in range(2))
    T = torch.from_numpy(poses.astype(np.float32)).to(device)
    K_all = torch.from_numpy(K.astype(np.float32)).to(device)
    for first in tqdm(range(0, C, group), "rendering", disable=not progress, leave=False):
        part = slice(first, min(first + group, C))
        n = part.stop - first
        out = render_batch(
            stack_rooms([clip.room for clip in clips[part]], device),
            poses[part].reshape(-1, 4, 4),
            torch.from_numpy(K[part]).to(device).repeat_interleave(F, 0),
            (W, H),
            room_index=torch.arange(n).repeat_interleave(F),
            supersample=supersample,
        )
        images[part] = out.image.view(n, F, H, W, 3)
        depth[part] = out.depth.view(n, F, H, W)
        share[part] = view_overlap(depth[part].float(), T[part], K_all[part, None])
        apart[part] = torch.cdist(T[part, :, :3, 3], T[part, :, :3, 3])
        apart[part] /= _mean_depth(depth[part].float())[..., None]
    return Pool(images, depth, T, K_all, share, apart)


def _mean_depth(depth: Tensor) -> Tensor:
    """Returns the mean [...] of the finite depth (not sky) in [..., H, W]."""
    known = depth.isfinite()
    return torch.where(known, depth, 0.0).sum((-2, -1)) / known.sum((-2, -1)).clamp_min(1)


# Reprojection -----------------------------------------------------------------------------------


def backproject(depth: Tensor, K: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Returns camera points [..., M, 3] of pixels (u, v) [M] (corner rule), z-depth [..., M]."""
    x = (u - K[..., 0, 2, None]) / K[..., 0, 0, None]
    y = (v - K[..., 1, 2, None]) / K[..., 1, 1, None]
    return torch.stack((x * depth, y * depth, depth), dim=-1)


@dataclass(frozen=True, eq=False)
class Projections:
    """Positions of points of every view in every view: [B, N from, M, N to]."""

    u: Tensor  # pixels, corner rule
    v: Tensor
    visible: Tensor  # inside the image, in front of the camera, and not hidden


def project_between_views(
    depth: Tensor, T: Tensor, K: Tensor, rows: Tensor, columns: Tensor
) -> Projections:
    """Projects pixels (rows, columns) [M] of each of N views into all views, with occlusion.

    depth [B, N, H, W], T [B, N, 4, 4] from the cameras, K [B, 1 or N, 3, 3].
    """
    B, N, H, W = depth.shape
    K = K.expand(B, N, 3, 3)
    d = depth[:, :, rows, columns]  # [B, N, M]
    known = d.isfinite()
    points = backproject(torch.where(known, d, 1.0), K, columns + 0.5, rows + 0.5)
    points = points @ T[..., :3, :3].transpose(-1, -2) + T[:, :, None, :3, 3]
    R, t = T[:, :, :3, :3], T[:, :, :3, 3]  # of the views that are projected into
    in_view = points[:, :, :, None] - t[:, None, None]  # [B, N, M, N, 3]
    in_view = torch.einsum("bimjc,bjcd->bimjd", in_view, R)
    z = in_view[..., 2].clamp_min(1e-3)
    f, c = torch.diagonal(K, dim1=-2, dim2=-1)[..., :2], K[..., :2, 2]  # [B, N, 2]
    uv = in_view[..., :2] / z[..., None] * f[:, None, None] + c[:, None, None]
    u, v = uv.unbind(-1)
    inside = (u >= 0) & (u < W) & (v >= 0) & (v < H) & (in_view[..., 2] > 1e-3)
    flat = v.clamp(0, H - 1).long() * W + u.clamp(0, W - 1).long()  # [B, N, M, N]
    looked = depth.flatten(2)[:, None, None].expand(-1, *flat.shape[1:3], -1, -1)
    surface = looked.gather(-1, flat[..., None])[..., 0]
    agrees = (surface - z).abs() < VISIBLE * z
    return Projections(u, v, inside & agrees & known[..., None])


def view_overlap(depth: Tensor, T: Tensor, K: Tensor) -> Tensor:
    """Returns the share [B, N, N] of view i's surface points that are visible in view j.

    The points are a coarse grid of pixels. depth [B, N, H, W], T [B, N, 4, 4] from the cameras,
    K [B, 1 or N, 3, 3].
    """
    H, W = depth.shape[-2:]
    steps = (torch.arange(_SHARE_GRID, device=depth.device) + 0.5) / _SHARE_GRID
    rows, columns = torch.meshgrid((steps * H).long(), (steps * W).long(), indexing="ij")
    rows, columns = rows.flatten(), columns.flatten()
    seen = torch.stack([  # clip by clip: all pairs of views of all clips take much memory
        project_between_views(d[None], t[None], k[None], rows, columns)
        .visible[0].float().sum(1)
        for d, t, k in zip(depth, T, K.expand(len(depth), -1, 3, 3), strict=True)
    ])  # fmt: skip
    known = depth[:, :, rows, columns].isfinite().sum(-1)
    return seen / known.clamp_min(1)[..., None]


# Windows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """A shape of batches: views per window and image size in pixels."""

    views: int
    height: int
    width: int

    def __post_init__(self) -> None:
        if self.height % PATCH or self.width % PATCH:
            raise ValueError(f"{self.width}x{self.height} is not a multiple of {PATCH}")

    def windows(self, tokens: int) -> int:
        """Returns the number of windows with about ``tokens`` patches together, at least one."""
        return max(1, round(tokens / (self.views * self.height * self.width / PATCH**2)))


@dataclass(frozen=True, eq=False)
class Batch:
    """B windows of N views. Lengths are in scene units of ``scale_m`` metres.

    The unit is the mean distance of the reference view's surface points from its camera. The truth
    is divided by it, as in the DA3 paper (section 3); the network's output is not normalised.
    """

    images: Tensor  # [B, N, 3, H, W] float32, ImageNet-normalised
    depth: Tensor  # [B, N, H, W] float32, +Inf for sky
    T_window_camera: Tensor  # [B, N, 4, 4] float32, the first view is the reference
    K: Tensor  # [B, N, 3, 3] float32
    scale_m: Tensor  # [B]

    @property
    def size(self) -> tuple[int, int]:
        """Returns (H, W)."""
        return self.depth.shape[-2], self.depth.shape[-1]

    def views(self, keep: slice) -> Batch:
        """Returns the same windows with the views ``keep``; reference and unit do not change."""
        return replace(
            self,
            images=self.images[:, keep],
            depth=self.depth[:, keep],
            T_window_camera=self.T_window_camera[:, keep],
            K=self.K[:, keep],
        )


def draw_frames(
    pool: Pool,
    clip: Tensor,
    views: int,
    low: float,
    generator: torch.Generator,
    *,
    parallax: bool = False,
) -> Tensor:
    """Returns frame numbers [B, N] of random windows of the clips [B], in random order.

    low: smallest share of a view's image that overlaps with another view of the window; if a clip
    has no such frame left, frames with the largest overlap are preferred. parallax: prefer views
    with a large baseline. Most pairs of frames have little parallax, and distance cannot be
    learned from those.
    """
    B, F = len(clip), pool.share.shape[-1]
    if views > F:
        raise ValueError(f"a window of {views} views needs clips of as many frames, not {F}")
    draw = {"generator": generator, "device": pool.device}
    frames = torch.randint(F, (B, 1), **draw)
    mutual = torch.minimum(pool.share, pool.share.mT)[clip]  # [B, F, F]
    apart = pool.apart[clip]
    for _ in range(views - 1):
        chosen = torch.zeros(B, F, dtype=torch.bool, device=pool.device)
        chosen.scatter_(1, frames, True)
        near = mutual.gather(1, frames[..., None].expand(-1, -1, F)).amax(1)  # [B, F]
        gain = torch.ones_like(near)
        if parallax:
            nearest = apart.gather(1, frames[..., None].expand(-1, -1, F)).amin(1)
            gain = _LEAST_GAIN + nearest.clamp_max(_ENOUGH_PARALLAX)
        weight = torch.where(near >= low, gain, 1e-6 * (near + 1e-3) ** 2)
        weight = weight.masked_fill(chosen, 0.0)
        frames = torch.cat((frames, torch.multinomial(weight, 1, generator=generator)), 1)
    order = torch.rand(frames.shape, **draw).argsort(1)
    return frames.gather(1, order)


def draw_batch(
    pool: Pool, bucket: Bucket, windows: int, low: float, generator: torch.Generator
) -> Batch:
    """Returns random windows with all augmentations; ``low``: see ``draw_frames``."""
    clip = torch.randint(len(pool), (windows,), generator=generator, device=pool.device)
    frames = draw_frames(pool, clip, bucket.views, low, generator, parallax=True)
    images, depth, T, K = crop(*take(pool, clip, frames), bucket.height, bucket.width)
    flip = torch.rand(windows, generator=generator, device=pool.device) < 0.5
    images, depth, T, K = mirror(images, depth, T, K, flip)
    return make_batch(expose(images, generator), depth, T, K)


def take(pool: Pool, clip: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the frames [B, N] of the clips [B] from the pool.

    These are: images [B, N, H, W, 3] in 0..1, depth [B, N, H, W] in metres,
    T_room_camera [B, N, 4, 4], K [B, N, 3, 3].
    """
    at = (clip[:, None], frames)
    K = pool.K[clip][:, None].expand(-1, frames.shape[1], 3, 3)
    return pool.images[at].float() / 255, pool.depth[at].float(), pool.T_room_camera[at], K


def crop(
    images: Tensor, depth: Tensor, T: Tensor, K: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Crops views to their centre, so that the principal point remains in the centre."""
    top, left = (depth.shape[-2] - height) // 2, (depth.shape[-1] - width) // 2
    if min(top, left) < 0:
        raise ValueError(f"views of {list(depth.shape[-2:])} are too small for {height}x{width}")
    rows, columns = slice(top, top + height), slice(left, left + width)
    K = K.clone()
    K[..., 0, 2] -= left
    K[..., 1, 2] -= top
    return images[:, :, rows, columns], depth[:, :, rows, columns], T, K


def mirror(
    images: Tensor, depth: Tensor, T: Tensor, K: Tensor, flip: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mirrors rooms, cameras and images left to right in the windows where ``flip`` [B].

    With S the reflection of x, a pose T becomes S T S, which is rigid again.
    """
    S = torch.diag(torch.tensor([-1.0, 1.0, 1.0, 1.0], device=T.device))
    mirrored_K = K.clone()
    mirrored_K[..., 0, 2] = depth.shape[-1] - K[..., 0, 2]
    choices = (
        (images.flip(3), images),
        (depth.flip(3), depth),
        (S @ T @ S, T),
        (mirrored_K, K),
    )
    images, depth, T, K = (
        torch.where(flip.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in choices
    )
    return images, depth, T, K


def expose(images: Tensor, generator: torch.Generator) -> Tensor:
    """Applies random exposure, white balance, gamma and noise to images [B, N, H, W, 3] in 0..1.

    Parts of exposure and gamma differ between the views of a window.
    """
    B, N = images.shape[:2]

    def spread(shape: tuple[int, ...], amount: float) -> Tensor:
        value = 2 * torch.rand(shape, generator=generator, device=images.device) - 1
        return amount * value

    gain = spread((B, 1, 1, 1, 1), 0.35) + spread((B, N, 1, 1, 1), 0.12)
    tint = spread((B, 1, 1, 1, 3), 0.08)
    gamma = spread((B, 1, 1, 1, 1), 0.25) + spread((B, N, 1, 1, 1), 0.05)
    images = (images * (gain + tint).exp()).clamp(1e-3, 1) ** gamma.exp()
    sigma = torch.rand((B, 1, 1, 1, 1), generator=generator, device=images.device) * (6 / 255)
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return (images + sigma * noise).clamp(0, 1)


def make_batch(images: Tensor, depth: Tensor, T_room_camera: Tensor, K: Tensor) -> Batch:
    """Returns a batch: normalised images, and the truth relative to the first view in scene units.

    images [B, N, H, W, 3] in 0..1; depth [B, N, H, W] and T_room_camera [B, N, 4, 4] in metres.
    """
    mean, std = images.new_tensor(MEAN), images.new_tensor(STD)
    images = ((images - mean) / std).movedim(-1, 2).contiguous()
    T = torch.linalg.inv(T_room_camera[:, :1].double()) @ T_room_camera.double()
    scale = scene_scale(depth[:, 0], K[:, 0])
    T = T.float()
    T[..., :3, 3] /= scale[:, None, None]
    return Batch(images, depth / scale[:, None, None, None], T, K, scale)


def scene_scale(depth: Tensor, K: Tensor) -> Tensor:
    """Returns the mean distance [B] of the surface points of depth [B, H, W] from the camera."""
    H, W = depth.shape[-2:]
    v, u = torch.meshgrid(
        torch.arange(H, device=depth.device) + 0.5,
        torch.arange(W, device=depth.device) + 0.5,
        indexing="ij",
    )
    known = depth.isfinite().flatten(1)
    d = torch.where(known, depth.flatten(1), 0.0)
    distance = backproject(d, K, u.flatten(), v.flatten()).norm(dim=-1)
    return distance.sum(1) / known.sum(1).clamp_min(1)


# Known poses ------------------------------------------------------------------------------------


def noisy_poses(batch: Batch, rotation_deg: float, translation: float, seed: int) -> Tensor:
    """Returns T_window_camera [B, N, 4, 4] in metres with noise like that of odometry.

    Each window has its own noise level, uniform up to ``rotation_deg`` of rotation and up to
    ``translation`` times the distance from the reference; the reference itself is exact.
    """
    B, N = batch.depth.shape[:2]
    g = torch.Generator(batch.depth.device).manual_seed(seed)
    draw = {"generator": g, "device": batch.depth.device}
    T = batch.T_window_camera.clone()
    T[..., :3, 3] *= batch.scale_m[:, None, None]
    angle = torch.rand(B, 1, 1, **draw) * np.radians(rotation_deg) / 3**0.5
    axis = torch.randn(B, N, 3, **draw) * angle
    away = T[..., :3, 3].norm(dim=-1, keepdim=True)
    error = torch.rand(B, 1, 1, **draw) * translation / 3**0.5
    shift = torch.randn(B, N, 3, **draw) * error * away
    axis[:, 0], shift[:, 0] = 0, 0
    skew = torch.zeros(B, N, 3, 3, device=T.device)
    skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0] = axis.unbind(-1)
    skew = skew - skew.transpose(-1, -2)
    T[..., :3, :3] = T[..., :3, :3] @ torch.linalg.matrix_exp(skew)
    T[..., :3, 3] += shift
    return T


def conditioning_extrinsics(T_window_camera: Tensor) -> Tensor:
    """Returns extrinsics [B, N, 4, 4] for the camera encoder, as inference computes it."""
    return normalize_poses(T_window_camera).extrinsics
