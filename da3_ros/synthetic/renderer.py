"""Renders rooms: exact z-depth at pixel centres and anti-aliased images, many cameras at once.

Each camera has its own room. Pixels are processed in chunks that fit into a CPU core's cache (or
fill a GPU); on CPU the chunks are distributed to torch's number of threads. Rays are
``(x, y, 1)`` in the camera frame, so that distances along them are z-depths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from da3_ros.sensors.calibration import CalibrationError
from da3_ros.sensors.distortion import pixel_rays
from da3_ros.synthetic.rooms import COLUMN, OTHER_AXES, Room, RoomBatch, stack_rooms
from da3_ros.synthetic.texture import octaves, patches, tiles, value_noise
from da3_ros.types import Calibration

Size = tuple[int, int]  # width, height
SKY = -1  # surface number of pixels that see the sky through a window
CPU_CHUNK = 1 << 16  # pixels; temporary images of this size fit into the cores' caches
GPU_CHUNK = 1 << 22
_CODES = 128  # number of face codes, stored in the low bits of a distance
_FAR = 1e9
_SUBPIXELS = ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25), (0.25, 0.25))


@dataclass(frozen=True, eq=False)
class Rendering:
    """Images of N cameras; tensors on the rooms' device."""

    image: Tensor  # [N, H, W, 3] uint8 RGB
    depth: Tensor  # [N, H, W] float32 z-depth in metres at pixel centres, +Inf for sky
    surface: Tensor  # [N, H, W] int16: 6 * block + face as in rooms.py, SKY for sky


def render(
    room: Room,
    T_room_camera: Tensor | np.ndarray,
    K: Tensor | np.ndarray,
    size: Size,
    *,
    supersample: bool = False,
    calibration: Calibration | None = None,
    device: torch.device | str = "cpu",
) -> Rendering:
    """Render one room from N poses [N, 4, 4]; everything else as in ``render_batch``."""
    rooms = stack_rooms([room], device)
    return render_batch(
        rooms, T_room_camera, K, size, supersample=supersample, calibration=calibration
    )


def render_batch(
    rooms: RoomBatch | Sequence[Room],
    T_room_camera: Tensor | np.ndarray,
    K: Tensor | np.ndarray,
    size: Size,
    *,
    room_index: Tensor | Sequence[int] | None = None,
    supersample: bool = False,
    calibration: Calibration | None = None,
) -> Rendering:
    """Render N cameras, each in its own room, on the rooms' device.

    Args:
        rooms: S rooms; a RoomBatch determines the device.
        T_room_camera: [N, 4, 4] camera to room, OpenCV optical axes, metres.
        K: [3, 3] or [N, 3, 3], corner rule (pixel i covers [i, i + 1)).
        size: (width, height) in pixels.
        room_index: [N] room of each camera; default: camera i in room i, or all in the only room.
        supersample: 2x2 rays for pixels at geometric edges; textures are always anti-aliased, and
            depth is always that of the pixel centre.
        calibration: of a distorting lens, for all cameras; its K and size (with binning and roi)
            replace ``K`` and must match ``size``.

    Raises:
        ValueError: inconsistent shapes.
        CalibrationError: a lens model that cannot be inverted for the whole image.
    """
    batch = rooms if isinstance(rooms, RoomBatch) else stack_rooms(rooms)
    with torch.inference_mode():
        poses = torch.as_tensor(T_room_camera, dtype=torch.float64, device=batch.yaw.device)
        poses = poses.reshape(-1, 4, 4)
        index = _room_index(room_index, len(poses), len(batch)).to(batch.yaw.device)
        rays = _make_rays(K, size, len(poses), calibration, batch.yaw.device)
        return _Renderer(batch, poses, index, rays, size).run(supersample)


def _room_index(index: Tensor | Sequence[int] | None, cameras: int, rooms: int) -> Tensor:
    if index is not None:
        index = torch.as_tensor(index, dtype=torch.long)
    elif rooms == 1:
        index = torch.zeros(cameras, dtype=torch.long)
    else:
        index = torch.arange(cameras)
    if index.shape != (cameras,) or int(index.max()) >= rooms:
        raise ValueError(f"room_index is {index}: must be {cameras} numbers below {rooms}")
    return index


# Rays -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rays:
    """Ray directions (x, y, 1) of pixels: from K, or from a table for a distorting lens."""

    K: Tensor  # [N, 3, 3] float64
    width: int
    table: Tensor | None = None  # [6, H * W] float64: x, y, dx/du, dy/du, dx/dv, dy/dv

    def at(
        self, cameras: slice, pixels: Tensor, offset: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x, y [C, P] float64 and the size of a pixel [C, 1 or P] float32 in the plane z = 1.

        ``pixels`` [1 or C, P] are flat indices; ``offset`` is from the pixel's centre.
        """
        if self.table is None:
            K = self.K[cameras]
            v = pixels.div(self.width, rounding_mode="floor")
            u = pixels - v * self.width
            y = (v.double() + (0.5 + offset[1]) - K[:, 1, 2:]) / K[:, 1, 1, None]
            x = (u.double() + (0.5 + offset[0]) - K[:, 0, 2:] - K[:, 0, 1, None] * y) / K[:, 0, :1]
            return x, y, (1.0 / torch.minimum(K[:, 0, :1], K[:, 1, 1, None])).float()
        x, y, xu, yu, xv, yv = self.table[:, pixels]
        x, y = x + offset[0] * xu + offset[1] * xv, y + offset[0] * yu + offset[1] * yv
        count = len(self.K[cameras])
        pixel = torch.maximum(torch.hypot(xu, yu), torch.hypot(xv, yv)).float()
        return x.expand(count, -1), y.expand(count, -1), pixel.expand(count, -1)


def _make_rays(
    K: Tensor | np.ndarray,
    size: Size,
    cameras: int,
    calibration: Calibration | None,
    device: torch.device,
) -> _Rays:
    K = torch.as_tensor(K, dtype=torch.float64, device=device)
    if K.shape[-2:] != (3, 3) or K.ndim > 3 or (K.ndim == 3 and len(K) not in (1, cameras)):
        raise ValueError(f"K must be [3, 3] or [{cameras}, 3, 3], got {list(K.shape)}")
    K = K.expand(cameras, 3, 3)
    if calibration is None:
        return _Rays(K, size[0])
    rays = pixel_rays(calibration)
    if rays.shape[:2] != (size[1], size[0]):
        raise ValueError(f"calibration is for {rays.shape[1::-1]} pixels, but size is {size}")
    if not np.isfinite(rays).all():
        raise CalibrationError(
            f"{calibration.distortion_model} with these coefficients cannot be inverted for the "
            "whole image: use smaller coefficients or a smaller field of view"
        )
    across, down = np.gradient(rays, axis=1), np.gradient(rays, axis=0)
    table = np.concatenate([rays, across, down], -1).reshape(-1, 6).T
    return _Rays(K, size[0], torch.from_numpy(np.ascontiguousarray(table)).to(device))


# Geometry ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Faces:
    """Faces that rays of a chunk can hit: three faces of K boxes per camera, and six walls.

    L = 3 K + 6 faces: code ``3 k + axis`` is the face of box k towards the camera, code
    ``3 K + 2 axis + side`` a wall.
    """

    slab: Tensor  # [C, K, 3, 5] float32: ray coefficients (3) and both ends of each box's extents
    wall: Tensor  # [C, 3, 5] float32: the same for the room
    exact: Tensor  # [C, 4, L] float64: z = first / (second x + third y + fourth)
    plane: (
        Tensor  # [C, 9, L] float32: u and v as origin + z (a x + b y + c); distance to the camera
    )
    material: Tensor  # [C, columns, L] float32
    seed: Tensor  # [C, L] int32
    number: Tensor  # [C, L] int16, 6 * block + face


class _Renderer:
    """State of one call: all values per camera that do not depend on the pixel."""

    def __init__(
        self, rooms: RoomBatch, poses: Tensor, room_index: Tensor, rays: _Rays, size: Size
    ) -> None:
        self.rooms, self.rays, self.size = rooms, rays, size
        self.room_index = room_index
        self.device = rooms.yaw.device
        self.rotation = poses[:, :3, :3]
        centre, self.half = rooms.centre[room_index], rooms.half[room_index]  # [N, B, 3]
        yaw = rooms.yaw[room_index]
        c, s, o = yaw.cos(), yaw.sin(), torch.zeros_like(yaw)
        local = torch.stack([c, s, o, -s, c, o, o, o, o + 1], -1).reshape(*yaw.shape, 3, 3)
        self.origin = (local @ (poses[:, None, :3, 3] - centre)[..., None])[..., 0]  # [N, B, 3]
        self.to_local = local @ self.rotation[:, None]  # [N, B, 3, 3]
        signs = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=self.device)
        corner = torch.cartesian_prod(signs, signs, signs)  # [8, 3]
        in_block = self.half[:, :, None] * corner - self.origin[:, :, None]  # [N, B, 8, 3]
        self.corners = in_block @ self.to_local  # camera frame: rows times the inverse's transpose
        windows = rooms.material[:, :6, COLUMN["window_hu"]] > 0.0
        self.has_window = bool(windows.any())

    # Chunks

    def run(self, supersample: bool) -> Rendering:
        n, (w, h) = len(self.rotation), self.size
        out = Rendering(
            torch.empty(n, h * w, 3, dtype=torch.uint8, device=self.device),
            torch.empty(n, h * w, dtype=torch.float32, device=self.device),
            torch.empty(n, h * w, dtype=torch.int16, device=self.device),
        )
        self._for_each_chunk(h * w, lambda cameras, part: self._base(out, cameras, part))
        if supersample:
            edges, valid = self._edges(out.surface)
            if edges.shape[1]:
                self._for_each_chunk(
                    edges.shape[1], lambda c, p: self._refine(out, edges[c, p], valid[c, p], c)
                )
        return Rendering(
            out.image.view(n, h, w, 3), out.depth.view(n, h, w), out.surface.view(n, h, w)
        )

    def _chunks(self, pixels: int) -> Iterator[tuple[slice, slice]]:
        """Slices (cameras, pixels) of at most a chunk's size."""
        chunk = CPU_CHUNK if self.device.type == "cpu" else GPU_CHUNK
        together = max(1, chunk // pixels)
        parts = -(-pixels // chunk)
        step = -(-pixels // parts)
        for first in range(0, len(self.rotation), together):
            for start in range(0, pixels, step):
                yield slice(first, first + together), slice(start, min(start + step, pixels))

    def _for_each_chunk(self, pixels: int, work: Callable[[slice, slice], None]) -> None:
        def run(chunk: tuple[slice, slice]) -> None:
            with torch.inference_mode():  # applies to one thread only
                work(*chunk)

        chunks = list(self._chunks(pixels))
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        if threads == 1 or len(chunks) == 1:
            for chunk in chunks:
                run(chunk)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, chunks))

    def _base(self, out: Rendering, cameras: slice, part: slice) -> None:
        pixels = torch.arange(part.start, part.stop, device=self.device)[None]
        colour, depth, surface = self._trace(cameras, *self.rays.at(cameras, pixels))
        out.depth[cameras, part] = depth
        out.surface[cameras, part] = surface
        _write(out.image[cameras, part], colour)

    # Anti-aliasing of geometric edges

    def _edges(self, surface: Tensor) -> tuple[Tensor, Tensor]:
        """Flat indices [N, E] of pixels next to another surface, and the mask of valid ones."""
        (w, h), n = self.size, len(surface)
        s = surface.view(n, h, w)
        edge = torch.zeros_like(s, dtype=torch.bool)
        across, down = s[:, :, 1:] != s[:, :, :-1], s[:, 1:] != s[:, :-1]
        edge[:, :, 1:] |= across
        edge[:, :, :-1] |= across
        edge[:, 1:] |= down
        edge[:, :-1] |= down
        edge = edge.view(n, -1)
        count = int(edge.sum(1).max())
        order = torch.argsort(edge.byte(), dim=1, descending=True, stable=True)[:, :count]
        return order, edge.gather(1, order)

    def _refine(self, out: Rendering, pixels: Tensor, valid: Tensor, cameras: slice) -> None:
        """Replace the colour of some pixels [C, E] by the mean of four rays."""
        total: list[Tensor] = []
        for offset in _SUBPIXELS:
            colour, _, _ = self._trace(cameras, *self.rays.at(cameras, pixels, offset), subpixel=2)
            total = colour if not total else [a + b for a, b in zip(total, colour, strict=True)]
        mean = torch.empty(*pixels.shape, 3, dtype=torch.uint8, device=self.device)
        _write(mean, [t * 0.25 for t in total])
        image = out.image[cameras]
        index = pixels[..., None].expand(-1, -1, 3)
        mean = torch.where(valid[..., None], mean, image.gather(1, index))
        image.scatter_(1, index, mean)

    # Faces in reach of a chunk

    def _faces(self, cameras: slice, x: Tensor, y: Tensor) -> _Faces:
        boxes = self._visible(cameras, x, y)  # [C, K] block numbers
        origin, half = self.origin[cameras], self.half[cameras]
        to_local = self.to_local[cameras]
        block = boxes[..., None, None].expand(-1, -1, 3, 3)
        box_o, box_h = origin.gather(1, block[..., 0]), half.gather(1, block[..., 0])
        box_L = to_local.gather(1, block)
        c, k = boxes.shape
        side = (box_o > 0.0).long()  # the side towards the camera, if any
        number = 6 * boxes[..., None] + 2 * torch.arange(3, device=self.device) + side
        walls = torch.arange(6, device=self.device).expand(c, 6)
        number = torch.cat([number.reshape(c, 3 * k), walls], 1)  # [C, L]
        exact, plane = self._planes(cameras, number)
        room = self.room_index[cameras, None]
        return _Faces(
            slab=_slab(box_L, box_o, box_h),
            wall=_slab(to_local[:, 0], origin[:, 0], half[:, 0]),
            exact=exact,
            plane=plane,
            material=self.rooms.material[room, number].transpose(1, 2).contiguous(),
            seed=self.rooms.texture_seed[room, number],
            number=number.short(),
        )

    def _visible(self, cameras: slice, x: Tensor, y: Tensor) -> Tensor:
        """Blocks [C, K] that the chunk's pyramid of rays may hit, padded with other blocks."""
        X, Y, Z = self.corners[cameras, 1:].unbind(-1)  # [C, B, 8]
        x0, x1, y0, y1 = (t[:, None, None] for t in (*x.aminmax(dim=1), *y.aminmax(dim=1)))
        beside = ((X - x0 * Z) < 0.0).all(-1) | ((X - x1 * Z) > 0.0).all(-1)
        over = ((Y - y0 * Z) < 0.0).all(-1) | ((Y - y1 * Z) > 0.0).all(-1)
        outside = beside | over | (Z <= 0.0).all(-1)
        if not outside.shape[1]:
            return outside.long()
        count = int((~outside).sum(1).max())
        most = (_CODES - 6) // 3
        if count > most:
            raise ValueError(f"{count} boxes in one view, at most {most} can be rendered")
        return outside.byte().argsort(dim=1, stable=True)[:, :count] + 1

    def _planes(self, cameras: slice, number: Tensor) -> tuple[Tensor, Tensor]:
        """``exact`` and ``plane`` of _Faces for face numbers [C, L]."""
        block, axis, side = number // 6, number % 6 // 2, number % 2
        row = torch.arange(len(number), device=self.device)[:, None]
        origin, half = self.origin[cameras], self.half[cameras]
        to_local = self.to_local[cameras]
        gap = half[row, block, axis] * (2 * side - 1) - origin[row, block, axis]
        exact = torch.cat([gap[..., None], to_local[row, block, axis]], -1)
        columns = []
        others = torch.tensor(OTHER_AXES, device=self.device)[axis]
        for other in others.unbind(-1):
            columns += [origin[row, block, other][..., None], to_local[row, block, other]]
        plane = torch.cat([*columns, gap[..., None].abs()], -1)
        return exact.transpose(1, 2).contiguous(), plane.float().transpose(1, 2).contiguous()

    # Pixels

    def _trace(
        self, cameras: slice, x64: Tensor, y64: Tensor, pixel: Tensor, subpixel: int = 1
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Display colours in [0, 1] (three of [C, P]), z-depth and surface number [C, P]."""
        faces = self._faces(cameras, x64, y64)
        x, y = x64.float(), y64.float()
        code = _nearest(faces, x, y)
        # The face is known, so double precision costs only six operations.
        gap, a, b, c = faces.exact.gather(2, code[:, None].expand(-1, 4, -1)).unbind(1)
        depth = (gap / (a * x64 + b * y64 + c)).float()
        pick = _Picker(faces, code)
        u, v, foot = _surface_point(pick, x, y, depth, pixel / subpixel)
        colour, sky = _shade(pick, u, v, foot, self.has_window)
        surface = faces.number.gather(1, code)
        if sky is not None:
            behind = self._sky(cameras, x, y)
            colour = [torch.lerp(near, far, sky) for near, far in zip(colour, behind, strict=True)]
            depth = depth / (1.0 - sky)  # +Inf where sky is 1
            surface = surface - (surface + 1) * sky.short()
        return colour, depth, surface

    def _sky(self, cameras: slice, x: Tensor, y: Tensor) -> list[Tensor]:
        """Colours of a hazy sky with clouds; they depend only on the ray's direction."""
        R = self.rotation[cameras].float()
        d = [R[:, i, :1] * x + R[:, i, 1:2] * y + R[:, i, 2:] for i in range(3)]
        length = torch.rsqrt(x * x + y * y + 1.0)
        up = (d[2] * length).clamp_(min=0.0)
        flat = 2.5 / (d[2].abs() + 0.4 / length)
        p, q = d[0] * flat, d[1] * flat
        cloud = value_noise(p, q, 11).add_(value_noise(p * 2.3, q * 2.3, 12), alpha=0.6)
        cloud = (cloud.add_(0.1) * 1.2).clamp_(0.0, 0.8)
        height = (up * 1.6).clamp_(max=1.0)
        sky = self.rooms.sky[self.room_index[cameras]]  # [C, 2, 3]
        colours = []
        for i in range(3):
            clear = torch.lerp(sky[:, 0, i, None], sky[:, 1, i, None], height)
            colours.append(torch.lerp(clear, torch.full_like(clear, 0.95), cloud).sqrt_())
        return colours


def _slab(to_local: Tensor, origin: Tensor, half: Tensor) -> Tensor:
    """[..., 3, 5] float32: ray coefficients and both ends of the extent, for each axis."""
    ends = torch.stack([-half - origin, half - origin], -1)
    return torch.cat([to_local, ends], -1).float()


def _crossings(slab: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Depths [C, P] at which rays cross the two ends of one axis; slab is [C, 5]."""
    a, b, c, low, high = (slab[:, i, None] for i in range(5))
    # Never exactly zero: an infinite depth could not carry a code.
    inverse = torch.addcmul(c, x, a).add_(y * b).add_(1e-20).reciprocal_()
    return inverse * low, inverse * high


def _coded(depth: Tensor, code: int) -> Tensor:
    """Depth with a face code in its lowest bits (a relative change below 2e-5)."""
    bits = depth.view(torch.int32)
    return bits.bitwise_and_(-_CODES).bitwise_or_(code).view(torch.float32)


def _nearest(faces: _Faces, x: Tensor, y: Tensor) -> Tensor:
    """Codes [C, P] int64 of the first faces that rays hit.

    The low bits of a depth hold the face's code, so that one minimum finds both.
    """
    boxes = faces.slab.shape[1]
    best = torch.full_like(x, _FAR)
    for axis in range(3):
        for side, depth in enumerate(_crossings(faces.wall[:, axis], x, y)):
            # Walls behind the camera have negative depth: moved to the far end.
            ahead = depth + (-depth).clamp_(min=0.0).mul_(_FAR)
            torch.minimum(best, _coded(ahead, 3 * boxes + 2 * axis + side), out=best)
    for k in range(boxes):
        nears, fars = [], []
        for axis in range(3):
            one, two = _crossings(faces.slab[:, k, axis], x, y)
            nears.append(_coded(torch.minimum(one, two), 3 * k + axis))
            fars.append(torch.maximum(one, two))
        enter = torch.maximum(torch.maximum(nears[0], nears[1]), nears[2])
        leave = torch.minimum(torch.minimum(fars[0], fars[1]), fars[2])
        # A miss (exit before entry, or behind the camera) is moved away; a hit keeps its bits.
        miss = torch.maximum(enter - leave, -enter).clamp_(min=0.0)
        torch.minimum(best, enter.add_(miss, alpha=_FAR), out=best)
    return best.view(torch.int32).bitwise_and(_CODES - 1).long()


class _Picker:
    """Looks up properties of the face that each pixel hits."""

    def __init__(self, faces: _Faces, code: Tensor) -> None:
        self.faces, self.code = faces, code

    def plane(self) -> tuple[Tensor, ...]:
        index = self.code[:, None].expand(-1, self.faces.plane.shape[1], -1)
        return self.faces.plane.gather(2, index).unbind(1)

    def seed(self) -> Tensor:
        return self.faces.seed.gather(1, self.code)

    def columns(self, first: str, count: int) -> tuple[Tensor, ...]:
        """``count`` consecutive material columns [C, P] from ``first`` on."""
        start = COLUMN[first]
        table = self.faces.material[:, start : start + count]
        return table.gather(2, self.code[:, None].expand(-1, count, -1)).unbind(1)

    def used(self, column: str) -> bool:
        """Whether any face has this column above zero; always True on GPU, to avoid a sync."""
        on_gpu = self.code.device.type != "cpu"
        return on_gpu or bool((self.faces.material[:, COLUMN[column]] > 0.0).any())


def _surface_point(
    pick: _Picker, x: Tensor, y: Tensor, depth: Tensor, pixel: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Face coordinates u and v, and the largest length in metres that a pixel covers.

    The footprint is an ellipse stretched along the view; its long axis limits the detail.
    """
    uo, ua, ub, uc, vo, va, vb, vc, gap = pick.plane()
    u = torch.addcmul(uo, depth, (ua * x).add_(uc).addcmul_(ub, y))
    v = torch.addcmul(vo, depth, (va * x).add_(vc).addcmul_(vb, y))
    facing = depth * pixel
    # |ray| / |ray . normal| = depth |ray| / gap, as the ray meets the plane at that depth
    stretch = (x * x).addcmul_(y, y).add_(1.0).sqrt_().mul_(depth).div_(gap)
    return u, v, facing * stretch


def _shade(
    pick: _Picker, u: Tensor, v: Tensor, foot: Tensor, windows: bool
) -> tuple[list[Tensor], Tensor | None]:
    """Display colours of surfaces (square root of linear light), and the mask of sky pixels."""
    colour = _albedo(pick, u, v, foot)
    sky = None
    if windows:
        wu, wv, hu, hv = pick.columns("window_u", 4)
        outside = torch.maximum((u - wu).abs_().sub_(hu), (v - wv).abs_().sub_(hv))
        sky = (outside * -_FAR).clamp_(0.0, 1.0).ceil_()
        frame = ((0.05 - outside) / foot).add_(0.5).clamp_(0.0, 1.0)
        colour = [torch.lerp(c, torch.full_like(c, 0.75), frame) for c in colour]
    light = _light(pick, u, v)
    # 1 - exp(-x) compresses highlights like film: bright surfaces keep their texture.
    return [(c * light).neg_().expm1_().neg_().clamp_(min=0.0).sqrt_() for c in colour], sky


def _albedo(pick: _Picker, u: Tensor, v: Tensor, foot: Tensor) -> list[Tensor]:
    """Linear colours: base colour, tiles, patches, and noise on all of them."""
    seed = pick.seed()
    colour = list(pick.columns("red", 3))
    if pick.used("tile_tone"):
        frequency, strength, joint_tone = pick.columns("tile_frequency", 3)
        tone, joint = tiles(u, v, foot, frequency, seed)
        change = (tone * strength).sub_(joint_tone * joint).add_(1.0)
        colour = [c * change for c in colour]
    if pick.used("patch_share"):
        frequency, share, strength = pick.columns("patch_frequency", 3)
        for turn, scale in ((0.37, 1.0), (1.9, 2.6)):
            c, s = float(np.cos(turn)), float(np.sin(turn))
            p, q = (u * c).add_(v, alpha=s), (v * c).sub_(u, alpha=s)
            cover, patch = patches(p, q, foot, frequency * scale, share, seed + int(scale * 1e6))
            cover = cover * strength
            colour = [torch.lerp(a, b * b, cover) for a, b in zip(colour, patch, strict=True)]
    frequency, gain = pick.columns("frequency", 2)
    on_cpu = u.device.type == "cpu"
    finest = float((foot * frequency).min()) if on_cpu else 0.0
    even, odd = octaves(u, v, foot, frequency, gain, seed, finest)
    directions = pick.columns("even_r", 6)
    for i in range(3):
        change = (even * directions[i]).addcmul_(odd, directions[3 + i]).add_(1.0)
        colour[i] = colour[i] * change.clamp_(min=0.08)
    return colour


def _light(pick: _Picker, u: Tensor, v: Tensor) -> Tensor:
    """Ambient light, darker near corners, plus two lamps (Lambert, with fall-off)."""
    cu, hu, cv, hv, strength = pick.columns("corner_u", 5)
    near = ((u - cu).abs_().sub_(hu) * 4.0).exp_() + ((v - cv).abs_().sub_(hv) * 4.0).exp_()
    (light,) = pick.columns("ambient", 1)
    for name in ("light0_u", "light1_u"):
        lu, lv, above = pick.columns(name, 3)
        squared = torch.addcmul(above * above, u - lu, u - lu).addcmul_(v - lv, v - lv).add_(0.05)
        light = light + above * squared.rsqrt() / (squared * 0.12).add_(1.0)
    return light * (1.0 - strength * near)


def _write(image: Tensor, colour: list[Tensor]) -> None:
    """Store display colours [0, 1] as bytes into image [C, P, 3]."""
    for i, channel in enumerate(colour):
        image[..., i] = (channel * 255.0).add_(0.5).clamp_(0.0, 255.0)
