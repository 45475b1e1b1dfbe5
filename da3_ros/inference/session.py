"""Runs one network on one device in a memory budget: windows in; depth, poses, intrinsics out."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from da3_ros.backends.compiled import CHECKS
from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import open_device
from da3_ros.inference.download import Download
from da3_ros.inference.feature_cache import FeatureCache
from da3_ros.inference.image_encoder import ImageEncoder
from da3_ros.inference.interfaces import Running, Session, SessionStatus
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.loading import int8_weight_bits
from da3_ros.inference.memory_governor import MemoryGovernor
from da3_ros.inference.planner import GIB, CompanionModel, Plan, Request
from da3_ros.inference.prediction import to_prediction
from da3_ros.inference.preprocess import scaled_size
from da3_ros.inference.random_windows import usual_window
from da3_ros.inference.window_decoder import WindowDecoder
from da3_ros.network import MODELS, ModelSpec
from da3_ros.types import Image, Prediction, Window

log = logging.getLogger(__name__)

GUESS = (4, 3)  # width and height of a camera's images before the first


class InferenceSession(Session):
    """Runs windows through one loaded network. Not thread-safe: one worker owns it.

    ``loaded`` owns the network, ``memory`` the budget and the plan, ``feature_cache`` the image
    features that later windows use again.
    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(
        self,
        config: InferenceConfig,
        *,
        poses: bool = True,
        streams: int = 1,
        companion: CompanionModel | None = None,
        wait_for_engine: bool = True,
        gaussians: bool = False,
    ) -> None:
        """``poses``: windows may have known poses; if False, the camera encoder is dropped.

        ``streams``: number of cameras whose windows alternate, each sharing its own frames.
        ``companion``: another network, already loaded, that shares the budget.
        ``wait_for_engine``: on a CPU, the first window waits for the network's OpenVINO engine;
        if False, windows run on torch until it is ready.
        ``gaussians``: new views also get a Gaussian per pixel; `backend` must be torch.
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
            backend=self.loaded.preferred_backend, gaussians=gaussians,
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
    def device(self) -> torch.device:
        """The torch device of the network."""
        return self.hardware.device

    @property
    def network(self) -> nn.Module:
        """The network's module."""
        return self.loaded.module

    @property
    def takes_poses(self) -> bool:
        """Whether windows may have known poses."""
        return self._poses and self.spec.multi_view

    @property
    def compile_mode(self) -> str:
        """The mode of torch.compile; "" if the network is not compiled."""
        return self.loaded.compile_mode

    def status(self) -> SessionStatus:
        """The current device, precision and memory."""
        plan = self.plan
        return SessionStatus(
            device=str(self.device),
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

    # Memory --------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The memory plan in force; None before ``fit``, ``use_plan`` or the first window."""
        return self.memory.plan

    def plan_ahead(self, window: int, new: int) -> None:
        """As ``Session.plan_ahead``; for images of 4:3, until a camera has sent one."""
        self.memory.fit(GUESS, window, new, guess=True)
        self.memory.requests.note_guess()

    def fit(self, image: tuple[int, int], window: int, new: int) -> Plan:
        """As ``MemoryGovernor.fit``."""
        return self.memory.fit(image, window, new)

    def use_plan(self, plan: Plan) -> None:
        """As ``MemoryGovernor.use_plan``."""
        self.memory.use_plan(plan)

    def check_budget(self, memory_budget_gb: float) -> None:
        """As ``MemoryGovernor.check_budget``; any thread may call it, even during a window."""
        self.memory.check_budget(memory_budget_gb)

    def set_budget(self, memory_budget_gb: float) -> None:
        """As ``MemoryGovernor.set_budget``."""
        self.memory.set_budget(memory_budget_gb)

    def undone_if_refused(self) -> AbstractContextManager[None]:
        """As ``MemoryGovernor.undone_if_refused``."""
        return self.memory.undone_if_refused()

    # Windows -------------------------------------------------------------------------------------

    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all have one size, multiples of 14 pixels.

        The first view is the reference: its camera is close to the window's world frame. Poses
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
        plan = self.plan
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
        for _ in range(CHECKS.get(self.compile_mode, 1)):
            if stopping():
                return None
            done = given, self.rehearse(given)
            if not self.compile_mode:
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
