"""Runs one network on one device in a memory budget: windows in; depth, poses, intrinsics out."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from da3_ros.backends.compiled import CHECKS
from da3_ros.config import InferenceConfig
from da3_ros.derived.measuring import MeasuringLoad
from da3_ros.geometry.projection import resize_K
from da3_ros.inference.devices import open_device
from da3_ros.inference.feature_cache import CachePolicy, Download, FeatureCache, Prefix
from da3_ros.inference.interfaces import Running, Session, SessionStatus
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.loading import int8_weight_bits
from da3_ros.inference.memory_governor import MemoryGovernor
from da3_ros.inference.planner import GIB, CompanionModel, Request
from da3_ros.inference.preprocess import normalize, resize_to, scaled_size
from da3_ros.inference.random_windows import usual_window
from da3_ros.network import MODELS, ModelSpec, metric
from da3_ros.network.backbone import Prefix as BackbonePrefix
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.nested import NestedPrefix, to_metres
from da3_ros.network.stages import PREPARE, StageCall
from da3_ros.types import Array, FloatImage, Image, Prediction, ScaleMeasurement, Window

log = logging.getLogger(__name__)


GUESS = (4, 3)  # width and height of a camera's images before the first


class InferenceSession(Session):
    """Runs windows through one loaded network. Not thread-safe: one worker owns it.

    ``loaded`` owns the network, ``memory`` the budget and the plan, ``feature_cache`` the image
    features that later windows use again.
    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    memory: MemoryGovernor

    def __init__(
        self,
        config: InferenceConfig,
        *,
        poses: bool = True,
        streams: int = 1,
        companion: CompanionModel | None = None,
        wait_for_engine: bool = True,
        gaussians: bool = False,
        measuring: MeasuringLoad | None = None,
    ) -> None:
        """``poses``: windows may have known poses; if False, the camera encoder is dropped.

        ``streams``: number of cameras whose windows alternate, each sharing its own frames.
        ``companion``: another network, already loaded, that shares the budget.
        ``wait_for_engine``: on a CPU, the first window waits for the network's OpenVINO engine;
        if False, windows run on torch until it is ready.
        ``gaussians``: new views also get a Gaussian per pixel; `backend` must be torch.
        ``measuring``: of keyframes' depth beside the windows, whose memory the plan counts;
        None: there is none.
        """
        self.config, self._poses = config, poses
        self.hardware = open_device(config.device, config.performance_mode)
        self.spec = MODELS[config.model]
        _announce(self.spec)
        self._free_at_start = self.hardware.free() + (companion.weights if companion else 0)
        self.loaded = LoadedNetwork(
            config, self.hardware, poses=poses, streams=streams,
            wait_for_engine=wait_for_engine, gaussians=gaussians,
        )  # fmt: skip
        self._base_request = Request(
            config.model, self.loaded.preferred_precision, None, config.process_res,
            window=0, new=0, poses=poses, streams=streams, companion=companion,
            backend=self.loaded.preferred_backend, gaussians=gaussians, measuring=measuring,
            process_res_method=config.process_res_method,
        )  # fmt: skip
        self.renew()

    def renew(self) -> None:
        """Forgets all windows, plans and measurements: the session is as after construction, and
        the network stays loaded."""
        self.loaded.begin_stream()
        self.on_window_running = None
        self.feature_cache = FeatureCache()
        self.memory = MemoryGovernor(
            self.loaded, self.feature_cache, self._base_request, self.config.memory_budget_gb,
            self._free_at_start,
        )  # fmt: skip
        self._encoder = ImageEncoder(self.loaded, self.feature_cache)
        self._decoder = WindowDecoder(self.loaded, poses=self._poses)
        self._waited_s: deque[float] = deque(maxlen=5)  # waits for the newest windows' results

    @property
    def takes_poses(self) -> bool:
        """Whether windows may have known poses."""
        return self._poses and self.spec.multi_view

    def status(self) -> SessionStatus:
        """The current device, precision and memory."""
        plan = self.memory.plan
        return SessionStatus(
            device=str(self.hardware.device),
            precision=str(self.loaded.precision).removeprefix("torch."),
            int8_weight_bits=int8_weight_bits(self.loaded.precision),
            attention=self.loaded.attention,
            backend=self.loaded.backend.name,
            backend_since=self.loaded.backend_since,
            memory_budget_gb=self.memory.budget / GIB,
            memory_plan_gb=plan.predicted / GIB if plan else math.nan,
            memory_peak_gb=self.memory.meter.peak / GIB,
            degraded=self.memory.degraded,
        )

    def stage_calls(self) -> list[StageCall]:
        """The methods that run the stages of a window on the backend of the newest one."""
        return [StageCall(PREPARE, self._encoder, "encode"), *self.loaded.backend.stage_calls()]

    # Memory --------------------------------------------------------------------------------------

    def plan_ahead(self, window: int, new: int) -> None:
        """As ``Session.plan_ahead``; for images of 4:3, until a camera has sent one."""
        self.memory.fit(GUESS, window, new, guess=True)
        self.memory.requests.note_guess()

    # Windows -------------------------------------------------------------------------------------

    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all have one size, multiples of 14 pixels.

        The first view is the reference: its camera is close to the window's frame. Poses
        and depth share one unknown unit. If memory runs out, the same window runs again with the
        next fallback. Raises WindowTooLargeError if only fewer views would help.
        """
        start = time.perf_counter()
        views = len(window.views)
        self.memory.fit_as_is(window.views[0].image.shape[:2], views, window.new)
        while True:
            try:
                prediction = self._run(window)
                break
            except Exception as error:
                if not self.hardware.is_out_of_memory(error):
                    raise
            # Outside `except`: the error's frames hold the tensors.
            self.memory.apply_fallback(window.id, views)
        self.memory.note_success()
        return replace(prediction, inference_s=time.perf_counter() - start)

    def prefetch(self, image: Image) -> None:
        """Run the per-image layers for a view before its window is complete.

        On a GPU this is queued behind the running window and does not block.

        Only saves time: without it, or if memory is short, ``infer`` does the same work.
        """
        plan = self.memory.plan
        policy = None if plan is None else self.memory.cache_policy(plan.window)
        if policy is None:
            return
        try:
            with torch.inference_mode():
                self._encoder.begin(image, policy)
        except Exception as error:
            if not self.hardware.is_out_of_memory(error):
                raise
            self.hardware.release()

    def warm_up(
        self,
        window: int,
        new: int,
        *,
        image: tuple[int, int] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[Window, Prediction] | None:
        """Plan for images with the aspect ratio of ``image`` and run that plan's usual window.

        None: no camera has sent an image yet; 4:3 is a guess, for which no engine is built.
        Returns and raises as ``Session.warm_up``.
        """
        plan = self.memory.fit(image or GUESS, window, new, guess=image is None)
        given = usual_window(plan, poses=self.takes_poses)
        done = None
        compiler = self.loaded.compiler
        for _ in range(CHECKS.get(compiler.mode, 1)):
            if stopping():
                return None
            done = given, self.rehearse(given)
            if not compiler.mode:
                break  # only the compiler needs more than one window
        return done

    def rehearse(self, window: Window) -> Prediction:
        """Run a window outside any stream: it is not cached or measured, and no hook is called.

        Its first view counts as seen before, like most views of a stream. New shapes are
        compiled at their first call. Raises as ``infer``.
        """
        hook, self.on_window_running = self.on_window_running, None
        self.loaded.compiler.at_once = True
        try:
            with self.memory.rehearsing():
                self.prefetch(window.views[0].image)
                return self.infer(window)
        finally:
            self.on_window_running = hook
            self.loaded.compiler.at_once = False
            self._waited_s.clear()

    @torch.inference_mode()
    def _run(self, window: Window) -> Prediction:
        images, size = [view.image for view in window.views], window.views[0].image.shape[:2]
        inner = scaled_size(size, self.memory.fallback.current.scale)
        self.loaded.begin_window(inner, window.id)
        self.memory.meter.begin()
        prefix = self._encoder.prefixes(images, inner, self.memory.cache_policy(len(images)))
        frames = sorted(range(len(images)) if window.wanted is None else window.wanted)
        download = Download(self._decoder.answer(window, prefix, inner, frames))
        del prefix
        out = self._wait_for(download)
        prediction = to_prediction(out, window, frames, metric_depth=self.spec.metric)
        self.memory.measure(len(images))
        return prediction

    def _wait_for(self, download: Download[Any]) -> Any:
        """Wait for the results; calls ``on_window_running`` before the wait."""
        begun = time.perf_counter()
        if self.on_window_running is not None and download.queued:
            # The shortest recent wait, so that the hook returns early rather than late.
            usual = min(self._waited_s, default=0.0)
            self.on_window_running(Running(download.done, begun + usual))
        out = download.wait()
        self._waited_s.append(time.perf_counter() - begun)
        return out


def _announce(spec: ModelSpec) -> None:
    """Warn about a non-commercial licence and about missing outputs of single-image networks."""
    if not spec.commercial:
        log.warning("%s: weights under %s, no commercial use", spec.name, spec.license)
    if not spec.multi_view:
        unit = "in metres with a camera_info" if spec.metric else "in an unknown unit"
        log.warning(
            "%s is a single-image network: it gives depth (%s) and sky, but no confidence and no "
            "poses, so no odometry and no map", spec.name, unit
        )  # fmt: skip


# Converts network outputs to predictions: arrays on the host in the core's conventions.
#
# Three kinds of networks: multi-view, single-image, and nested, which combines both.


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
        T_window_camera=camera_to_window(out.extrinsics[0].double().cpu().numpy()),
        K=K,
        sky=None if out.sky is None else to_all_views(out.sky[0], views, frames, size),
        measure=_measure(out),
        descriptor=None if out.appearance is None else out.appearance[0].cpu().numpy(),
        splats=None if out.gaussians is None else out.gaussians[0].cpu().numpy(),
    )


def appearance(prefix: BackbonePrefix | NestedPrefix) -> Tensor:
    """Appearance descriptors [1, N, D] of the views: the mean patch features before global
    attention. Views of the same location have similar descriptors."""
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


def camera_to_window(extrinsics: Array) -> Array:
    """Convert extrinsics [N, 3, 4] to camera-to-window [N, 4, 4] with orthonormal rotations.

    The only place that inverts the network's convention. Rotations come in fp32; replacing each
    by the nearest orthonormal matrix (SVD) keeps later products from drifting.
    """
    u, _, vt = np.linalg.svd(extrinsics[:, :, :3])
    R_window_camera = np.transpose(u @ vt, (0, 2, 1))
    T = np.tile(np.eye(4), (len(extrinsics), 1, 1))
    T[:, :3, :3] = R_window_camera
    T[:, :3, 3] = -np.einsum("nij,nj->ni", R_window_camera, extrinsics[:, :, 3])
    return T


# Encodes images with the network's per-image layers; images seen before come from the cache.


class ImageEncoder:
    """Computes prefixes of images [h, w, 3]. Owns nothing: ``cache`` holds the prefixes."""

    def __init__(self, network: LoadedNetwork, cache: FeatureCache) -> None:
        self._network, self._cache = network, cache

    def begin(self, image: Image, policy: CachePolicy) -> None:
        """Cache the prefix of an image at its own size, before its window is complete."""
        if self._cache.get(image) is None:
            height, width = image.shape[:2]
            self._keep([image], self.encode([image], (height, width)), policy)

    def prefixes(
        self, images: Sequence[Image], size: tuple[int, int], policy: CachePolicy | None
    ) -> Prefix:
        """Prefixes [1, N, ...] of all images; only those not in the cache are computed.

        size: (height, width) in the network. policy: None caches nothing.
        """
        missing = [image for image in images if self._cache.get(image) is None]
        fresh: dict[int, Prefix] = {}
        if missing:
            fresh = self.encode(missing, size)
            if policy is not None:
                self._keep(missing, fresh, policy)
        parts = [fresh.get(id(image)) or self._cache.get(image) for image in images]
        stacked = (
            torch.stack([self._network.upload(x) for x in xs])[None]
            for xs in zip(*parts, strict=True)
        )
        make: Any = type(parts[0])
        return make(*stacked)

    def encode(self, images: Sequence[Image], size: tuple[int, int]) -> dict[int, Prefix]:
        """Compute the prefix of each image; keys are the arrays' ``id()``."""
        pixels = torch.from_numpy(np.stack([resize_to(image, size) for image in images]))
        batch = normalize(self._network.upload(pixels))[None]
        prefix: Prefix = self._network.encode(batch)
        parts = (type(prefix)(*(x[0, i] for x in prefix)) for i in range(len(images)))
        return {id(image): part for image, part in zip(images, parts, strict=True)}

    def _keep(
        self, images: Sequence[Image], fresh: dict[int, Prefix], policy: CachePolicy
    ) -> None:
        """Cache the prefixes that later windows use again, within the policy's limit."""
        for image in images:
            self._cache.put(image, fresh[id(image)], on_host=policy.on_host)
        self._cache.bound(policy.most)


# Decodes windows: prefixes and known poses of the views in, the network's output out.


class WindowDecoder:
    """Runs the network's window layers. Warns once about an estimated focal length."""

    def __init__(self, network: LoadedNetwork, *, poses: bool) -> None:
        """``poses``: windows may have known poses."""
        self._network, self._poses = network, poses
        self._warned = False

    def answer(
        self, window: Window, prefix: Prefix, size: tuple[int, int], frames: list[int]
    ) -> Output | MonocularOutput:
        """The network's output for the views ``frames``, on the device; nested: in metres.

        prefix: [1, N, ...] of all views. size: (height, width) of the images in the network.
        """
        module = self._network.module
        tokens = self._camera_tokens(window, size)
        chosen = self._index(frames, window)
        if isinstance(module, MonocularDepth):
            return module.decode(prefix, chosen)  # only selects maps
        out = self._network.decode(prefix, size, tokens, chosen, self._images(window, size))
        out = out._replace(appearance=appearance(prefix))
        if out.gaussians is not None:
            out = out._replace(gaussians=out.gaussians.half())
        return self._in_metres(out, window, prefix, size, frames)

    def _images(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """Normalised images [1, G, 3, H, W] of the new views, which get Gaussians; None: no
        Gaussians. A loop's window has no new views; images that were made smaller for want of
        memory get none."""
        new = [view.image for view in window.views[len(window.views) - window.new :]]
        if not self._network.gaussians or not new or new[0].shape[:2] != size:
            return None
        return normalize(self._network.upload(torch.from_numpy(np.stack(new))))[None]

    def _in_metres(
        self,
        out: Output,
        window: Window,
        prefix: Prefix,
        size: tuple[int, int],
        frames: list[int],
    ) -> Output:
        """Scale a nested network's output with its metric part; others are returned unchanged."""
        if not isinstance(prefix, NestedPrefix):
            return out
        focal = focal_px(window, frames, size)
        if not self._warned and not bool(focal.isfinite().all()):
            self._warned = True
            log.warning("metric scale uses an estimated focal length: publish a camera_info")
        focal = focal.to(self._network.hardware.device)
        guessed = metric.focal_length(out.intrinsics)[:, frames]
        canonical = MonocularOutput(prefix.depth[:, frames], prefix.sky[:, frames])
        # Sky is not filled here: a parameter decides about it later.
        return to_metres(
            out, canonical, torch.where(focal.isfinite(), focal, guessed), fill_sky=False
        )

    def _camera_tokens(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """The camera encoder's tokens for known poses and intrinsics; None without poses."""
        if window.T_prior_camera is None:
            return None
        if not self._poses:
            raise ValueError("this session was opened with poses=False: windows cannot have poses")
        device = self._network.hardware.device
        T = torch.from_numpy(np.asarray(window.T_prior_camera, np.float64))[None]
        extrinsics = normalize_poses(T).extrinsics.to(device)
        K = known_K(window, size)
        if np.isnan(K).any():
            raise ValueError("known poses need the intrinsics of every view")
        intrinsics = torch.from_numpy(K)[None].float().to(device)
        return self._network.module.camera_tokens(extrinsics, intrinsics, size)

    def _index(self, frames: list[int], window: Window) -> Tensor | None:
        """Indices of the wanted views on the device; None: all views."""
        if len(frames) == len(window.views):
            return None
        return self._network.upload(torch.tensor(frames))
