"""Walls with painted textures seen by a few cameras, parts of them replaced by what deceives."""

import functools
from dataclasses import replace

import cv2
import numpy as np

from da3_ros.derived.dense_depth import choose_neighbours, confirmed_depth, search_depth
from da3_ros.derived.plane_sweep import SweepView

SIZE = (168, 126)
K = np.array([[150.0, 0, 84], [0, 150, 63], [0, 0, 1]])
WALL_M = 3.0


def poses(count=5, step=0.2):
    """Cameras beside each other that look at the wall, none of them quite level."""
    out = np.tile(np.eye(4), (count, 1, 1))
    for i, T in enumerate(out):
        T[:3, 3] = step * (i - count // 2), 0.06 * (-1) ** i, 0.05 * np.sin(2 * i)
        angles = np.array([0.01 * (-1) ** i, -0.02 * (i - count // 2), 0.0])
        T[:3, :3] = cv2.Rodrigues(angles)[0]
    return out


def rays(T, samples=1):
    """Directions [3, h, w] in the room of the pixels of a camera."""
    v, u = np.mgrid[0 : SIZE[1] * samples, 0 : SIZE[0] * samples]
    pixels = np.stack([(u + 0.5) / samples, (v + 0.5) / samples, np.ones(u.shape)])
    return np.einsum("ij,jhw->ihw", T[:3, :3] @ np.linalg.inv(K), pixels)


def seen(T, paint, distance=WALL_M, samples=3):
    """The image [h, w] of a wall painted by paint(x, y), metres."""
    ray = rays(T, samples)
    x, y = T[:2, 3, None, None] + (distance - T[2, 3]) / ray[2] * ray[:2]
    return cv2.resize(paint(x, y).astype(np.float32), SIZE, interpolation=cv2.INTER_AREA)


def depth_of(T, distance=WALL_M):
    return ((distance - T[2, 3]) / rays(T)[2]).astype(np.float32)


@functools.cache
def texture(seed, pixels=512):
    """Structure of all sizes [pixels, pixels]; not to be changed."""
    rng = np.random.default_rng(seed)
    out = np.zeros((pixels, pixels), np.float32)
    for cells, strength in ((16, 1.0), (64, 1.0), (160, 1.0), (300, 0.7)):
        noise = rng.standard_normal((cells, cells)).astype(np.float32)
        out += strength * cv2.resize(noise, (pixels, pixels), interpolation=cv2.INTER_CUBIC)
    found = np.clip(0.5 + 0.16 * out / out.std(), 0, 1)
    found.setflags(write=False)
    return found


def painted(seed=0, metres=4.0):
    image = texture(seed)

    def paint(x, y):
        u, v = ((np.asarray(w) / metres + 0.5) * len(image) for w in (x, y))
        return cv2.remap(
            image, u.astype(np.float32), v.astype(np.float32), cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_WRAP,
        )  # fmt: skip

    return paint


def board(T):
    """The pixels [h, w] of a part of the wall."""
    return seen(T, lambda x, y: (np.abs(x) < 0.75) & (np.abs(y) < 0.65)) > 0.5


def wrong(depth, seed, amount=0.08):
    """Depth that is off smoothly."""
    noise = np.random.default_rng(seed).standard_normal(depth.shape).astype(np.float32)
    noise = cv2.GaussianBlur(noise, (0, 0), 25)
    return (depth * np.exp(amount * noise / noise.std())).astype(np.float32)


def scene(part=None, seed=0, cameras=None):
    """Views, true depth, wrong depth and masks; part(i, T) -> image and mask replaces pixels."""
    rng = np.random.default_rng(seed)
    views, truth, masks = [], [], []
    for i, T in enumerate(poses() if cameras is None else cameras):
        image, mask = seen(T, painted(seed)), np.zeros(SIZE[::-1], bool)
        if part:
            other, mask = part(i, T)
            image = np.where(mask, other, image)
        image = np.clip(image + rng.standard_normal(image.shape) / 255, 0, 1)
        views.append(SweepView((np.round(image * 255) / 255).astype(np.float32), K, T))
        truth.append(depth_of(T))
        masks.append(mask)
    return views, truth, [wrong(d, i) for i, d in enumerate(truth)], masks


def with_images(views, change):
    """The views with images change(i, image)."""
    return [replace(v, grey=change(i, v.grey).astype(np.float32)) for i, v in enumerate(views)]


def all_others(views):
    return [[j for j in range(len(views)) if j != k] for k in range(len(views))]


def neighbours(views, depths):
    T, Ks = np.array([v.T_frame_camera for v in views]), np.array([v.K for v in views])
    medians, shapes = [float(np.median(d)) for d in depths], [d.shape for d in depths]
    cameras = [""] * len(views)
    return [choose_neighbours(T, Ks, medians, shapes, cameras, k) for k in range(len(views))]


def measured(views, given, near=None):
    """The measured depth of views, by index; of neighbours as chosen, if not given."""
    near = near or neighbours(views, given)
    found = {
        k: search_depth(views[k], [views[j] for j in others], given[k])
        for k, others in enumerate(near) if len(others) > 1
    }  # fmt: skip
    return {
        k: confirmed_depth(views[k], given[k], own, {
            n: (views[j], found[j]) for n, j in enumerate(near[k]) if j in found
        }) for k, own in found.items()
    }  # fmt: skip


def inner(mask, pixels=6):
    """The pixels of a mask whose windows are in it."""
    return cv2.erode(mask.astype(np.uint8), np.ones((2 * pixels + 1,) * 2)) > 0
