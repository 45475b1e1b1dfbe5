"""Converts network outputs to predictions: arrays on the host in the core's conventions.

Three kinds of networks: multi-view, single-image, and nested, which combines both.
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
    """Convert a window's network output, whose maps belong to the views ``frames``.

    Maps of the other views are NaN.
    metric_depth: a single-image network's depth is metric, for a focal length of 300 pixels.
    """
    if isinstance(out, MonocularOutput):
        return _single_image_prediction(out, window, frames, metric_depth)
    views, size = len(window.views), window.views[0].image.shape[:2]
    inner = out.depth.shape[-2:]
    K = out.intrinsics[0].double().cpu().numpy()
    K[:, 0] *= size[1] / inner[1]
    K[:, 1] *= size[0] / inner[0]
    return Prediction(
        depth=to_all_views(out.depth[0], views, frames, size),
        confidence=to_all_views(out.confidence[0], views, frames, size),
        T_window_camera=camera_to_world(out.extrinsics[0].double().cpu().numpy()),
        K=K,
        sky=None if out.sky is None else to_all_views(out.sky[0], views, frames, size),
        measure=_measure(out),
        descriptor=None if out.appearance is None else out.appearance[0].cpu().numpy(),
        splats=None if out.gaussians is None else out.gaussians[0].cpu().numpy(),
    )


def appearance(prefix: Prefix | NestedPrefix) -> Tensor:
    """Appearance descriptors [1, N, D] of the views: the mean patch features before global
    attention. Views of the same place have similar descriptors."""
    return prefix.tokens[:, :, 1:].float().mean(dim=2)


def focal_px(window: Window, frames: list[int], size: tuple[int, ...]) -> Tensor:
    """Calibrated mean focal lengths [1, M] in pixels of images of ``size`` (height, width).

    NaN for a view without calibration.
    """
    known = known_K(window, size)[frames]
    return torch.from_numpy((known[:, 0, 0] + known[:, 1, 1]) / 2)[None].float()


def known_K(window: Window, size: tuple[int, ...]) -> Array:
    """Calibrated K [N, 3, 3] of all views for images of ``size`` (height, width); NaN: unknown."""
    height, width = window.views[0].image.shape[:2]
    unknown = np.full((3, 3), np.nan)
    found = [unknown if view.K is None else view.K for view in window.views]
    return np.stack([resize_K(K, (width, height), (size[1], size[0])) for K in found])


def _single_image_prediction(
    out: MonocularOutput, window: Window, frames: list[int], metric_depth: bool
) -> Prediction:
    """A prediction without poses or confidence; in metres if depth and focal length allow it."""
    views, size = len(window.views), window.views[0].image.shape[:2]
    depth, measure = out.depth.float().cpu(), None
    if metric_depth:
        focal = focal_px(window, frames, out.depth.shape[-2:])
        in_metres = metric.metric_depth(depth, focal)
        depth = torch.where(focal.isfinite()[..., None, None], in_metres, depth)
        measure = ScaleMeasurement(1.0, float("nan")) if bool(focal.isfinite().all()) else None
    return Prediction(
        depth=to_all_views(depth[0], views, frames, size),
        confidence=np.full((views, *size), np.nan, np.float32),
        T_window_camera=np.full((views, 4, 4), np.nan),
        K=known_K(window, size),
        sky=to_all_views(out.sky[0], views, frames, size),
        measure=measure,
        posed=False,
    )


def _measure(out: Output) -> ScaleMeasurement | None:
    """The measurement of a nested network: 1, as its lengths are in metres; NaN if unknown."""
    if out.scale is None or out.scale_spread is None:
        return None
    known = bool(out.scale.isfinite().all())
    return ScaleMeasurement(1.0 if known else float("nan"), float(out.scale_spread[0]))


def to_all_views(maps: Tensor, views: int, frames: list[int], size: tuple[int, ...]) -> FloatImage:
    """Resize maps [M, h, w] of the views ``frames`` and put them into [N, H, W], else NaN.

    Takes the nearest value: interpolation would mix depths across edges.
    """
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
    """Convert world-to-camera [N, 3, 4] to camera-to-world [N, 4, 4] with orthonormal rotations.

    The only place that inverts the network's convention. Rotations come in fp32; replacing each
    by the nearest orthonormal matrix (SVD) keeps later products from drifting.
    """
    u, _, vt = np.linalg.svd(extrinsics[:, :, :3])
    R_world_camera = np.transpose(u @ vt, (0, 2, 1))
    T = np.tile(np.eye(4), (len(extrinsics), 1, 1))
    T[:, :3, :3] = R_world_camera
    T[:, :3, 3] = -np.einsum("nij,nj->ni", R_world_camera, extrinsics[:, :, 3])
    return T
