"""A surface from stored keyframes: a truncated signed distance field (TSDF), block by block.

A voxel keeps the mean distance along the rays of all keyframes to the surface they saw, weighted
by confidence and by 1 / depth squared, cut off behind the surface by the uncertainty of depth
(Curless and Levoy 1996). Blocks exist near surfaces only; a scene is fused cube by cube, so that
memory does not grow with it. Marching cubes are those of scikit-image.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from da3_ros.export.cross_views import CrossViews
from da3_ros.export.mesh import Mesh
from da3_ros.export.selection import ExportError, Progress, portion, silent
from da3_ros.export.stored_depth import DepthFilters, Readable, by_component, readable_keyframes
from da3_ros.geometry.projection import backproject
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.mapping.scene import REFERENCE
from da3_ros.types import Array, FloatImage, Image

BLOCK = 16  # voxels along an edge of a block
CUBE = 12  # blocks along an edge of a cube that is fused at once
NEAR_VOXELS = 3.0  # least distance behind a surface that is fused, voxels
DEPTH_SIGMA = 0.005, 0.05  # least and largest relative standard deviation of depth
UNKNOWN_SIGMA = 0.02  # that of a keyframe that no other one overlaps
SIGMAS = 3.0  # of them are fused
FEWEST = 2  # looks at a voxel that make surface
CACHED = 48  # keyframes that are kept decoded
WELD = 1024.0  # steps of a voxel in which vertices are one
FINDING = 0.1  # share of the time that finding blocks takes, about
MAX_CUBES = 20_000  # more would take days
MAX_TRIANGLES = 20_000_000  # of a component; 3 GB of memory while they are welded
Blocks = NDArray[np.int64]  # [N, 3] indices


def marching_cubes() -> Callable[..., Any]:
    """Returns scikit-image's function. Raises ExportError with the remedy if it is missing."""
    try:
        from skimage.measure import marching_cubes as found
    except ImportError as error:
        raise ExportError(
            "a mesh needs scikit-image: pip install 'da3_ros[mesh]' or pip install scikit-image"
        ) from error
    return found


def fused_surface(
    stored: StoredScene,
    filters: DepthFilters,
    progress: Progress = silent,
    *,
    crop: Sequence[float] = (0.0,) * 6,
    unconnected: bool = True,
) -> Mesh:
    """Returns the surface of stored keyframes; ``filters.voxel`` is the edge of its voxels.

    crop: box in the map frame, min x y z, max x y z; zeros: none. unconnected: whether
    unconnected components are in it; components are never fused with each other. ``progress`` may
    raise, which ends the work. Raises ExportError.
    """
    extract = marching_cubes()
    filters.check()
    components = by_component(readable_keyframes(stored, filters, progress))
    chosen = [
        ones for component, ones in components.items() if unconnected or component == REFERENCE
    ]
    found = []
    for done, ones in enumerate(chosen):
        step = portion(progress, done / len(chosen), (done + 1) / len(chosen))
        found.append(_fused(_Looks(ones, filters.voxel), filters.voxel, crop, extract, step))
    return _cropped(_concatenated(found), crop)


def _fused(
    looks: _Looks, voxel: float, crop: Sequence[float], extract: Callable[..., Any],
    progress: Progress,
) -> Mesh:  # fmt: skip
    of_cube = _cubes(looks, voxel, crop, progress)
    parts, triangles = [], 0
    share = (1 - FINDING) / max(1, len(of_cube))
    for done, cube in enumerate(sorted(of_cube)):
        nearby = {i for offset in np.ndindex(2, 2, 2)
                  for i in of_cube.get(tuple(np.add(cube, offset).tolist()), [])}  # fmt: skip
        volume = _Volume(np.array(cube), voxel)
        for index in sorted(nearby):
            progress("fusing", FINDING + done * share)  # often, since it may end the work
            volume.add(*looks[index])
        step = portion(progress, FINDING + (done + 0.5) * share, FINDING + (done + 1) * share)
        parts.append(volume.surface(extract, step))
        triangles += len(parts[-1].faces)
        if triangles > MAX_TRIANGLES:
            raise _too_fine(voxel, f"over {MAX_TRIANGLES} triangles")
    return _welded(_concatenated(parts), voxel)


def _cubes(
    looks: _Looks, voxel: float, crop: Sequence[float], progress: Progress
) -> dict[tuple[int, ...], list[int]]:
    """Returns the looks that see each cube of the crop. Raises ExportError for too many."""
    of_cube: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index in range(len(looks)):
        progress("finding blocks", FINDING * index / len(looks))
        for cube in np.unique(looks[index][1] // CUBE, axis=0).tolist():
            if _touches(cube, voxel, crop):
                of_cube[tuple(cube)].append(index)
        if len(of_cube) > MAX_CUBES:
            raise _too_fine(voxel, f"over {MAX_CUBES} cubes of {CUBE * BLOCK * voxel:.2g}")
    return of_cube


def _touches(cube: Sequence[int], voxel: float, crop: Sequence[float]) -> bool:
    """Whether a cube and a box overlap, or are a voxel apart: cells at the upper faces of a cube
    need voxels of the next ones."""
    if not any(crop):
        return True
    edge = CUBE * BLOCK * voxel
    return all(
        crop[k] <= (index + 1) * edge and index * edge - voxel <= crop[k + 3]
        for k, index in enumerate(cube)
    )


def _too_fine(voxel: float, why: str) -> ExportError:
    return ExportError(
        f"voxel is {voxel:g}: too fine for this scene ({why}); use a larger one, or a crop"
    )


@dataclass(frozen=True, eq=False)
class _Look:
    """A keyframe as fusion needs it, in the map frame and the scene's unit."""

    T_ros_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule
    depth: FloatImage  # [h, w] NaN: no surface
    weight: FloatImage  # [h, w]
    image: Image  # [h, w, 3]
    sigma: float  # relative standard deviation of depth

    def reach(self, depth: FloatImage, voxel: float) -> FloatImage:
        """Returns how far behind a surface at ``depth`` it may still be, units of the scene."""
        return np.maximum(np.float32(NEAR_VOXELS * voxel), np.float32(SIGMAS * self.sigma) * depth)


class _Looks:
    """The looks of all stored keyframes; keeps the newest ones decoded."""

    def __init__(self, keyframes: Sequence[Readable], voxel: float) -> None:
        self._readable, self._voxel = keyframes, voxel
        self._judges = CrossViews(keyframes)
        self._decoded: OrderedDict[int, tuple[_Look, Blocks]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readable)

    def __getitem__(self, index: int) -> tuple[_Look, Blocks]:
        """Returns a look, and the blocks near the surface that it sees."""
        if index not in self._decoded:
            look = _look(self._readable[index], self._judges)
            self._decoded[index] = look, _near_surface(look, self._voxel)
            if len(self._decoded) > CACHED:
                self._decoded.popitem(last=False)
        self._decoded.move_to_end(index)
        return self._decoded[index]


def _look(keyframe: Readable, judges: CrossViews) -> _Look:
    found = keyframe.load()
    judged = judges.judge(keyframe, found)
    confidence, depth = found.confidence, judged.depth
    known = np.isfinite(depth)
    typical = float(np.median(confidence[known])) if known.any() else 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.clip(confidence / max(typical, 1e-6), 0.1, 10) / depth**2
    image = cv2.resize(found.image, depth.shape[::-1], interpolation=cv2.INTER_AREA)
    sigma = UNKNOWN_SIGMA if math.isnan(judged.sigma) else judged.sigma
    return _Look(
        keyframe.T_ros_camera, found.pose.K, depth, weight.astype(np.float32),
        np.asarray(image, np.uint8), float(np.clip(sigma, *DEPTH_SIGMA)),
    )  # fmt: skip


def _near_surface(look: _Look, voxel: float) -> Blocks:
    """Returns the blocks within the reach of the surface that a keyframe sees."""
    known = look.depth[np.isfinite(look.depth)]
    if not len(known):
        return np.zeros((0, 3), np.int64)
    pixel = float(np.quantile(known, 0.9)) / min(look.K[0, 0], look.K[1, 1])  # its size there
    stride = int(np.clip(BLOCK * voxel / (2 * pixel), 1, 8))
    points = backproject(look.depth, look.K)[::stride, ::stride].reshape(-1, 3)
    points = points[np.isfinite(points[:, 2])]
    reach = look.reach(points[:, 2], voxel)
    steps = int(min(np.ceil(reach.max(initial=0.0) / (BLOCK * voxel)), 8)) + 1
    around = np.concatenate([
        points * (1 + share * reach / points[:, 2])[:, None]
        for share in np.linspace(-1, 1, 2 * steps + 1)
    ])  # fmt: skip
    T = look.T_ros_camera
    xyz = around @ T[:3, :3].T + T[:3, 3]
    return np.unique(np.floor(xyz / (BLOCK * voxel)).astype(np.int64), axis=0)


class _Volume:
    """The blocks of one cube, and of the layer behind its upper faces."""

    def __init__(self, cube: Blocks, voxel: float) -> None:
        self._first, self._voxel = cube * CUBE, voxel
        self._slots: dict[tuple[int, int, int], int] = {}
        shape = (0, BLOCK, BLOCK, BLOCK)
        self._distance = np.zeros(shape, np.float32)
        self._weight = np.zeros(shape, np.float32)
        self._looks = np.zeros(shape, np.float32)
        self._rgb = np.zeros((*shape, 3), np.float32)
        steps = np.arange(BLOCK)
        self._inner = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1)

    def add(self, look: _Look, blocks: Blocks) -> None:
        """Adds what a keyframe sees of its blocks."""
        inside = ((blocks >= self._first) & (blocks <= self._first + CUBE)).all(axis=1)
        for start in range(0, int(inside.sum()), 64):
            self._add(look, blocks[inside][start : start + 64])

    def _add(self, look: _Look, blocks: Blocks) -> None:
        slots = self._reserve(blocks)
        T = look.T_ros_camera.astype(np.float32)
        lattice = (blocks[:, None, None, None] * BLOCK + self._inner) * self._voxel
        xyz = (lattice.astype(np.float32).reshape(-1, 3) - T[:3, 3]) @ T[:3, :3]
        z = xyz[:, 2]
        with np.errstate(invalid="ignore", divide="ignore"):
            u = np.floor(look.K[0, 0] * xyz[:, 0] / z + look.K[0, 2])
            v = np.floor(look.K[1, 1] * xyz[:, 1] / z + look.K[1, 2])
        height, width = look.depth.shape
        at = np.flatnonzero((z > 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height))
        row, column = v[at].astype(int), u[at].astype(int)
        depth = look.depth[row, column]
        with np.errstate(invalid="ignore"):
            reach = look.reach(depth, self._voxel)
            seen = depth - z[at] > -reach
        at, row, column, reach = at[seen], row[seen], column[seen], reach[seen]
        distance = np.clip(depth[seen] - z[at], -reach, reach)
        behind = np.clip(1 + distance / reach, 0.0, 1.0)  # less and less behind the surface
        weight = look.weight[row, column] * np.where(distance < 0, behind, 1.0)
        flat = np.repeat(slots, BLOCK**3)[at] * BLOCK**3 + at % BLOCK**3
        old = self._weight.reshape(-1)[flat]
        share = weight / np.maximum(old + weight, 1e-12)
        for array, new in ((self._distance, distance), (self._rgb, look.image[row, column])):
            values = array.reshape(-1, *array.shape[4:])
            step = share if new.ndim == 1 else share[:, None]
            values[flat] += step * (new - values[flat])
        self._weight.reshape(-1)[flat] = old + weight
        self._looks.reshape(-1)[flat] += 1

    def surface(self, extract: Callable[..., Any], progress: Progress) -> Mesh:
        """Returns the triangles of the cube's own cells."""
        own = [b for b in sorted(self._slots) if (np.array(b) < self._first + CUBE).all()]
        found = []
        for done, block in enumerate(own):
            progress("extracting", done / len(own))
            found.append(self._of_block(block, extract))
        return _concatenated([mesh for mesh in found if mesh is not None])

    def _of_block(self, block: tuple[int, int, int], extract: Callable[..., Any]) -> Mesh | None:
        size = BLOCK + 1
        distance = np.ones((size, size, size), np.float32)
        looks = np.zeros((size, size, size), np.float32)
        rgb = np.zeros((size, size, size, 3), np.float32)
        for offset in np.ndindex(2, 2, 2):
            slot = self._slots.get(tuple(np.add(block, offset).tolist()))
            if slot is None:
                continue
            there = tuple(slice(BLOCK, None) if o else slice(BLOCK) for o in offset)
            own = tuple(slice(1) if o else slice(None) for o in offset)
            distance[there], looks[there] = self._distance[slot][own], self._looks[slot][own]
            rgb[there] = self._rgb[slot][own]
        known = looks >= FEWEST
        if not known.any() or not distance[known].min() <= 0 < distance[known].max():
            return None
        distance[~known] = np.abs(distance).max()
        vertices, faces, *_ = extract(distance, 0.0)
        low = np.floor(vertices).astype(int)
        high = np.minimum(np.ceil(vertices).astype(int), BLOCK)
        ends = tuple(low.T), tuple(high.T)
        faces = faces[(known[ends[0]] & known[ends[1]])[faces].all(axis=1)]
        if not len(faces):
            return None
        used, faces = np.unique(faces, return_inverse=True)
        colour = (rgb[ends[0]] + rgb[ends[1]])[used] / 2
        xyz = (vertices[used] + np.multiply(block, BLOCK)) * self._voxel
        return Mesh(
            xyz.astype(np.float32), faces.reshape(-1, 3).astype(np.int64),
            np.clip(np.rint(colour), 0, 255).astype(np.uint8),
        )  # fmt: skip

    def _reserve(self, blocks: Blocks) -> NDArray[np.int64]:
        """Returns the slots of blocks; new ones begin empty."""
        keys = [tuple(b) for b in blocks.tolist()]
        for key in keys:
            self._slots.setdefault(key, len(self._slots))
        missing = len(self._slots) - len(self._weight)
        if missing > 0:
            more = max(missing, len(self._weight) // 2, 64)
            self._distance, self._weight, self._looks, self._rgb = (
                np.concatenate((array, np.zeros((more, *array.shape[1:]), np.float32)))
                for array in (self._distance, self._weight, self._looks, self._rgb)
            )
        return np.array([self._slots[key] for key in keys])


def _welded(mesh: Mesh, voxel: float) -> Mesh:
    """Returns the mesh with vertices at one position welded."""
    grid = np.rint(mesh.vertices.astype(np.float64) * (WELD / voxel)).astype(np.int64)
    _, first, same = np.unique(grid, axis=0, return_index=True, return_inverse=True)
    welded = same.reshape(-1)[mesh.faces]
    a, b, c = welded.T
    welded = welded[(a != b) & (b != c) & (c != a)]
    return Mesh(mesh.vertices[first], welded, mesh.rgb[first])


def _cropped(mesh: Mesh, crop: Sequence[float]) -> Mesh:
    """Returns the triangles inside the box."""
    if not any(crop):
        return mesh
    low, high = np.array(crop[:3]), np.array(crop[3:])
    inside = np.all((mesh.vertices >= low) & (mesh.vertices <= high), axis=1)
    faces = mesh.faces[np.take(inside, mesh.faces).all(axis=1)]
    used, again = np.unique(faces, return_inverse=True)
    return Mesh(mesh.vertices[used], again.reshape(-1, 3), mesh.rgb[used])


def _concatenated(parts: Sequence[Mesh]) -> Mesh:
    starts = np.cumsum([0, *(len(p.vertices) for p in parts)])
    return Mesh(
        np.concatenate([np.zeros((0, 3), np.float32), *(p.vertices for p in parts)]),
        np.concatenate([np.zeros((0, 3), np.int64),
                        *(p.faces + s for p, s in zip(parts, starts, strict=False))]),
        np.concatenate([np.zeros((0, 3), np.uint8), *(p.rgb for p in parts)]),
    )  # fmt: skip
