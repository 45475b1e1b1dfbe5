"""What a network answers, as arrays on the host in the core's conventions.

Three kinds of networks answer: any-view ones, single-image ones, and nested ones, which are both.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from da3_ros.geometry.projection import resize_K
from da3_ros.network import metric
from da3_ros.network.backbone import Prefix
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularOutput
from da3_ros.network.nested import NestedPrefix
from da3_ros.types import Array, FloatImage, Prediction, ScaleMeasurement, Window


def to_prediction(
    out: Output | MonocularOutput, window: Window, frames: list[int], *, metric_depth: bool = False
) -> Prediction:
    """Network output of one scene, whose maps are of ``frames``, as a prediction.

    Maps of views that were not asked for are NaN.
    metric_depth: a single-image network's depth is metric, for a focal length of 300 pixels.
    """
    if isinstance(out, MonocularOutput):
        return _each_alone(out, window, frames, metric_depth)
    views, size = len(window.views), window.views[0].image.shape[:2]
    inner = out.depth.shape[-2:]
    K = out.intrinsics[0].double().cpu().numpy()
    K[:, 0] *= size[1] / inner[1]
    K[:, 1] *= size[0] / inner[0]
    return Prediction(
        depth=spread(out.depth[0], views, frames, size),
        confidence=spread(out.confidence[0], views, frames, size),
        T_window_camera=camera_to_world(out.extrinsics[0].double().cpu().numpy()),
        K=K,
        sky=None if out.sky is None else spread(out.sky[0], views, frames, size),
        measure=_measure(out),
        descriptor=None if out.appearance is None else out.appearance[0].cpu().numpy(),
    )


def appearance(prefix: Prefix | NestedPrefix) -> Tensor:
    """What each view looks like [1, N, D], alike for views that see the same: the mean of its
    patches' features before views are mixed."""
    return prefix.tokens[:, :, 1:].float().mean(dim=2)


def focal_px(window: Window, frames: list[int], size: tuple[int, ...]) -> Tensor:
    """Calibrated mean focal lengths [1, M] in pixels of images of ``size`` (height, width).

    NaN for a view whose calibration is not known.
    """
    known = known_K(window, size)[frames]
    return torch.from_numpy((known[:, 0, 0] + known[:, 1, 1]) / 2)[None].float()


def known_K(window: Window, size: tuple[int, ...]) -> Array:
    """Calibrated K [N, 3, 3] of all views for images of ``size`` (height, width); NaN: unknown."""
    height, width = window.views[0].image.shape[:2]
    unknown = np.full((3, 3), np.nan)
    found = [unknown if view.K is None else view.K for view in window.views]
    return np.stack([resize_K(K, (width, height), (size[1], size[0])) for K in found])


def _each_alone(
    out: MonocularOutput, window: Window, frames: list[int], metric_depth: bool
) -> Prediction:
    """Depth without poses or confidence; in metres where that and the focal length are known."""
    views, size = len(window.views), window.views[0].image.shape[:2]
    depth, measure = out.depth.float().cpu(), None
    if metric_depth:
        focal = focal_px(window, frames, out.depth.shape[-2:])
        in_metres = metric.metric_depth(depth, focal)
        depth = torch.where(focal.isfinite()[..., None, None], in_metres, depth)
        measure = ScaleMeasurement(1.0, float("nan")) if bool(focal.isfinite().all()) else None
    return Prediction(
        depth=spread(depth[0], views, frames, size),
        confidence=np.full((views, *size), np.nan, np.float32),
        T_window_camera=np.full((views, 4, 4), np.nan),
        K=known_K(window, size),
        sky=spread(out.sky[0], views, frames, size),
        measure=measure,
        posed=False,
    )


def _measure(out: Output) -> ScaleMeasurement | None:
    """Of a nested network, whose lengths are in metres already where it could tell."""
    if out.scale is None or out.scale_spread is None:
        return None
    known = bool(out.scale.isfinite().all())
    return ScaleMeasurement(1.0 if known else float("nan"), float(out.scale_spread[0]))


def spread(maps: Tensor, views: int, frames: list[int], size: tuple[int, ...]) -> FloatImage:
    """Maps [M, h, w] of some frames to [N, H, W]; the nearest value, never one across an edge."""
    done = maps.float().cpu().numpy()
    if done.shape[1:] != tuple(size[:2]):
        shape = (size[1], size[0])
        done = np.stack(
            [cv2.resize(m, shape, interpolation=cv2.INTER_NEAREST_EXACT) for m in done]
        )
    if len(frames) == views:
        return np.asarray(done, dtype=np.float32)
    out = np.full((views, *done.shape[1:]), np.nan, np.float32)
    out[frames] = done
    return out


def camera_to_world(extrinsics: Array) -> Array:
    """World-to-camera [N, 3, 4] to camera-to-world [N, 4, 4], rotations made exactly orthonormal.

    The one place where the network's convention is inverted. Rotations come in fp32; the nearest
    orthonormal matrix (SVD) keeps later products from drifting.
    """
    u, _, vt = np.linalg.svd(extrinsics[:, :, :3])
    R_world_camera = np.transpose(u @ vt, (0, 2, 1))
    T = np.tile(np.eye(4), (len(extrinsics), 1, 1))
    T[:, :3, :3] = R_world_camera
    T[:, :3, 3] = -np.einsum("nij,nj->ni", R_world_camera, extrinsics[:, :, 3])
    return T
