"""One network on one device within a memory budget: windows in; depth, poses, intrinsics out."""

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

from da3_ros.config import InferenceConfig
from da3_ros.inference.compiled import CHECKS
from da3_ros.inference.devices import open_device
from da3_ros.inference.download import Download
from da3_ros.inference.image_encoder import ImageEncoder
from da3_ros.inference.interfaces import Running, Session, SessionStatus
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.memory_governor import MemoryGovernor
from da3_ros.inference.planner import GIB, CompanionModel, Plan, Request
from da3_ros.inference.prediction import to_prediction
from da3_ros.inference.prefix_cache import KeptPrefixes
from da3_ros.inference.preprocess import smaller
from da3_ros.inference.random_windows import usual_window
from da3_ros.inference.window_decoder import WindowDecoder
from da3_ros.network import MODELS, ModelSpec
from da3_ros.types import Image, Prediction, Window

log = logging.getLogger(__name__)


class InferenceSession(Session):
    """Runs windows through one loaded network. Not thread-safe: one worker owns it.

    ``loaded`` owns the network, ``memory`` budget and plan, ``kept`` what later windows use again.
    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(
        self,
        config: InferenceConfig,
        *,
        poses: bool = True,
        streams: int = 1,
        beside: CompanionModel | None = None,
    ) -> None:
        """``poses``: windows may bring known poses; without, what reads them is not kept.

        ``streams``: windows of so many cameras come in turns, each sharing its own frames.
        ``beside``: another network, loaded already, that the same budget is for.
        """
        self.config, self._poses = config, poses
        self.on = open_device(config.device, config.performance_mode)
        self.spec = MODELS[config.model]
        _announce(self.spec)
        free = self.on.free() + (beside.weights if beside else 0)
        self.loaded = LoadedNetwork(config, self.on, poses=poses, streams=streams)
        self.kept = KeptPrefixes()
        wish = Request(
            config.model, self.loaded.wanted, None, config.process_res, window=0, new=0,
            poses=poses, streams=streams, beside=beside,
        )  # fmt: skip
        self.memory = MemoryGovernor(self.loaded, self.kept, wish, config.memory_budget_gb, free)
        self._encoder = ImageEncoder(self.loaded, self.kept)
        self._decoder = WindowDecoder(self.loaded, poses=poses)
        self._waited_s: deque[float] = deque(maxlen=5)  # for the newest windows' results

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.on.device

    @property
    def network(self) -> nn.Module:
        """The network's module."""
        return self.loaded.module

    @property
    def takes_poses(self) -> bool:
        """Whether windows may bring known poses."""
        return self._poses and self.spec.multi_view

    @property
    def compile_mode(self) -> str:
        """How the network is compiled, "" where it is not."""
        return self.loaded.compile_mode

    def status(self) -> SessionStatus:
        """What runs where, now."""
        plan = self.plan
        return SessionStatus(
            device=str(self.device),
            precision=str(self.loaded.precision).removeprefix("torch."),
            attention=self.loaded.attention,
            memory_budget_gb=self.memory.budget / GIB,
            memory_plan_gb=plan.predicted / GIB if plan else math.nan,
            memory_peak_gb=self.memory.meter.peak / GIB,
            degraded=self.memory.degraded,
        )

    # Memory --------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """What runs in the memory budget; None before ``fit``, ``use_plan`` or a window."""
        return self.memory.plan

    def fit(self, image: tuple[int, int], window: int, new: int) -> Plan:
        """As ``MemoryGovernor.fit``."""
        return self.memory.fit(image, window, new)

    def use_plan(self, plan: Plan) -> None:
        """As ``MemoryGovernor.use_plan``."""
        self.memory.use_plan(plan)

    def check_budget(self, memory_budget_gb: float) -> None:
        """As ``MemoryGovernor.check_budget``; any thread may ask, while a window runs too."""
        self.memory.check_budget(memory_budget_gb)

    def set_budget(self, memory_budget_gb: float) -> None:
        """As ``MemoryGovernor.set_budget``."""
        self.memory.set_budget(memory_budget_gb)

    def undone_if_refused(self) -> AbstractContextManager[None]:
        """As ``MemoryGovernor.undone_if_refused``."""
        return self.memory.undone_if_refused()

    # Windows -------------------------------------------------------------------------------------

    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all must have one size, multiples of 14.

        The first view is the reference, whose camera is close to the window's world frame. Poses
        and depth share one unknown unit. Where memory runs out the same window is run again with
        less of it; raises WindowTooLargeError when only fewer views can help.
        """
        return self._infer(window)

    def prefetch(self, image: Image) -> None:
        """Run what sees a view's image alone while it waits for its window.

        On a GPU this queues behind the running window and does not wait.

        Only saves time: without it, or where memory is short, ``infer`` does the same.
        """
        plan = self.plan
        rule = None if plan is None else self.memory.keep_rule(plan.window)
        if rule is None:
            return
        try:
            with torch.inference_mode():
                self._encoder.begin(image, rule)
        except Exception as error:
            if not self.on.is_out_of_memory(error):
                raise
            self.on.release()

    def warm_up(
        self,
        window: int,
        new: int,
        *,
        image: tuple[int, int] = (4, 3),
        stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[Window, Prediction] | None:
        """Plan for images of the shape of ``image`` and run the usual window of that plan.

        Without a camera's image yet its shape is a guess. Returns and raises as ``Session``.
        """
        given = usual_window(self.fit(image, window, new), poses=self.takes_poses)
        done = None
        for _ in range(CHECKS.get(self.compile_mode, 1)):
            if stopping():
                return None
            done = given, self.rehearse(given)
            if not self.compile_mode:
                break  # the further ones are for the compiler
        return done

    def rehearse(self, window: Window) -> Prediction:
        """Run a window that is of no stream: nothing of it is kept, measured or waited beside.

        Its first view counts as seen before, as most views of a stream are. What is compiled at
        all is compiled at once. Raises as ``infer``.
        """
        hook, self.on_window_running = self.on_window_running, None
        self.loaded.compiler.at_once = True
        try:
            with self.memory.rehearsing():
                self.prefetch(window.views[0].image)
                return self._infer(window)
        finally:
            self.on_window_running = hook
            self.loaded.compiler.at_once = False
            self._waited_s.clear()

    def _infer(self, window: Window) -> Prediction:
        start = time.perf_counter()
        views = len(window.views)
        self.memory.fit_as_is(window.views[0].image.shape[:2], views, window.new)
        while True:
            try:
                prediction = self._run(window)
                break
            except Exception as error:
                if not self.on.is_out_of_memory(error):
                    raise
            # Outside `except`: the error's frames hold the tensors.
            self.memory.step_down(window.id, views)
        self.memory.note_calm()
        return replace(prediction, inference_s=time.perf_counter() - start)

    @torch.inference_mode()
    def _run(self, window: Window) -> Prediction:
        self.loaded.begin_window()
        self.memory.meter.begin()
        images, size = [view.image for view in window.views], window.views[0].image.shape[:2]
        inner = smaller(size, self.memory.fallback.current.scale)
        prefix = self._encoder.prefixes(images, inner, self.memory.keep_rule(len(images)))
        frames = sorted(range(len(images)) if window.wanted is None else window.wanted)
        download = Download(self._decoder.answer(window, prefix, inner, frames))
        del prefix
        out = self._wait_for(download)
        prediction = to_prediction(out, window, frames, metric_depth=self.spec.metric)
        self.memory.measure(len(images))
        return prediction

    def _wait_for(self, download: Download[Any]) -> Any:
        """The results; others may use the time until they are there."""
        begun = time.perf_counter()
        if self.on_window_running is not None and download.queued:
            # The shortest of the newest: who counts on it is early rather than late.
            usual = min(self._waited_s, default=0.0)
            self.on_window_running(Running(download.done, begun + usual))
        out = download.wait()
        self._waited_s.append(time.perf_counter() - begun)
        return out


def _announce(spec: ModelSpec) -> None:
    """Warn of a non-commercial licence and of what a single-image network does not give."""
    if not spec.commercial:
        log.warning("%s: weights under %s, no commercial use", spec.name, spec.license)
    if not spec.multi_view:
        unit = "in metres with a camera_info" if spec.metric else "in a unit of its own"
        log.warning(
            "%s sees each image alone: depth (%s) and sky; no poses, so no odometry and no "
            "map, and no confidence", spec.name, unit
        )  # fmt: skip
