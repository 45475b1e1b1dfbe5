"""One network on one device within a memory budget: windows in; depth, poses, intrinsics out."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from da3_ros.config import InferenceConfig
from da3_ros.inference.compiled import CHECKS, Compiler
from da3_ros.inference.devices import DeviceError, open_device
from da3_ros.inference.download import Download
from da3_ros.inference.interfaces import Running, Session, SessionStatus
from da3_ros.inference.loading import load_checked, load_network
from da3_ros.inference.memory_governor import CALM, FREE_SHARE, OOM_FALLBACKS, WindowTooLargeError
from da3_ros.inference.planner import (
    GIB,
    SMALLEST,
    UNMEASURED,
    BudgetError,
    CompanionModel,
    Plan,
    Request,
    check_fits,
    kept_views,
    least_memory,
    make_plan,
    needs_spare,
)
from da3_ros.inference.prediction import appearance, focal_px, known_K, to_prediction
from da3_ros.inference.prefix_cache import KeptPrefixes, Prefix
from da3_ros.inference.preprocess import normalize, smaller, to_size
from da3_ros.inference.random_windows import usual_window
from da3_ros.inference.self_check import pose_fault
from da3_ros.network import MODELS, Network, metric
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import Output
from da3_ros.network.monocular import MonocularDepth, MonocularOutput
from da3_ros.network.nested import NestedPrefix, to_metres
from da3_ros.network.precision import drop_camera_encoder, drop_rays
from da3_ros.types import Image, Prediction, Window

log = logging.getLogger(__name__)

MOST_PLANS = 16  # that are kept at a time: of cameras whose images have different shapes


class InferenceSession(Session):
    """Holds one loaded network. Not thread-safe: one worker owns it.

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
        self.config = config
        self._poses, self._streams, self._beside = poses, streams, beside
        self.on = open_device(config.device, config.performance_mode)
        self.device = self.on.device
        self.spec = MODELS[config.model]
        self.license = self.spec.license
        self._warned = False
        self._announce()
        self._free_at_start = self.on.free() + (beside.weights if beside else 0)
        self.budget = self._budget(config.memory_budget_gb, warn=True)
        wanted = self.on.precision(config.mixed_precision)
        self.on.attention(wanted)  # raises before anything is loaded
        self.compiler = Compiler(
            self._compile_mode(wanted), self.on.is_out_of_memory, streams=streams, fault=pose_fault
        )
        self.network, self.precision = load_checked(self._load, self.on, wanted)
        self.attention = self.on.attention(self.precision)
        self._trusts_less = self.precision == wanted  # no 16 bits were found wrong here
        self._wanted = self.precision  # what a plan may leave only for want of memory
        self._plan: Plan | None = None
        self.pinned = False  # a plan that was given stays
        self.over_budget = ""  # why a window that took more than the budget changed nothing
        self.relief = 0  # index into RELIEFS
        self.peak = 0  # bytes, the most that was measured
        self._calm = 0
        self._factor = UNMEASURED
        self._measured = False
        self._clean = False  # whether the next window's peak is its own, not an earlier plan's
        self._compiling = False  # whether this window's time and memory are the compiler's
        self._rehearsing = False
        self._chunks = self.on.chunks()
        self._asked: tuple[Request, ...] = ()  # by the cameras in turns, the newest first
        self._guessed = False  # whether that is of a rehearsal, not of a camera
        self._plans: dict[Request, Plan] = {}  # of this budget, by what was asked for
        self._kept = KeptPrefixes()
        self._device_s: deque[float] = deque(maxlen=5)  # how long we waited for the newest windows

    @property
    def takes_poses(self) -> bool:
        """Whether windows may bring known poses."""
        return self._poses and self.spec.multi_view

    @property
    def compile_mode(self) -> str:
        """How the network is compiled, "" where it is not."""
        return self.compiler.mode

    def _compile_mode(self, precision: torch.dtype) -> str:
        mode = self.on.compile_mode(self.config.compile)
        if mode and precision == torch.int8:
            raise DeviceError("torch.compile does not know our int8: set compile to off")
        return mode

    def status(self) -> SessionStatus:
        """What runs where, now."""
        plan = self.plan
        degraded: tuple[str, ...] = ()
        if plan is not None:
            relief = f"out of memory before, {self.relief} steps down" if self.relief else ""
            degraded = (*plan.reduced, *filter(None, (relief, self.over_budget)))
        return SessionStatus(
            device=str(self.device),
            precision=str(self.precision).removeprefix("torch."),
            attention=self.attention,
            memory_budget_gb=self.budget / GIB,
            memory_plan_gb=plan.predicted / GIB if plan else math.nan,
            memory_peak_gb=self.peak / GIB,
            degraded=degraded,
        )

    # The plan

    @property
    def plan(self) -> Plan | None:
        """What runs in the memory budget; None before ``fit``, ``use_plan`` or a window."""
        return self._plan

    @property
    def _request(self) -> Request | None:
        return self._asked[0] if self._asked else None

    def fit(self, image: tuple[int, int], window: int, new: int) -> Plan:
        """Plan for camera images of (width, height) and windows of ``window`` views, ``new`` new.

        Raises BudgetError when nothing fits.
        """
        request = Request(
            self.config.model,
            self._wanted,
            self._spare(),
            self.config.process_res,
            window,
            new,
            image,
            self._poses,
            self._streams,
            self._beside,
        )
        if self.pinned and self.plan is not None:
            return self.plan
        self._note(request)
        known = self._plans.get(request)
        if known is not None and known.dtype == self.precision:
            if known is not self.plan:  # cameras in turns: nothing of the other one's is let go
                self._plan = known
                self._set_pieces()
            return known
        self._adopt(self._make(request, self.budget))
        assert self.plan is not None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        request = self._asked[0]  # without a spare precision, where that was wrong
        self._plans[request] = self.plan
        least_memory(self.on, request)  # found now, so that ``check_budget`` takes no time
        return self.plan

    def _note(self, request: Request) -> None:
        """What is asked for now, and what other cameras asked for, as far as it still holds."""
        before = () if self._guessed else self._asked
        self._guessed = False
        others = [r for r in before if r != request and replace(r, image=request.image) == request]
        self._asked = (request, *others)[: self._streams]  # other threads read it: made anew
        if self.precision != self._wanted and set(before) - set(self._asked):
            self._plans.clear()  # what needed the spare precision may be gone

    def use_plan(self, plan: Plan) -> None:
        """Run as ``plan`` says, whatever memory is free: two runs with one plan are equal."""
        if plan.model != self.config.model:
            raise ValueError(f"the plan is for {plan.model}, not {self.config.model}")
        if not self.on.can(plan.dtype):
            raise DeviceError(
                f"the plan's precision {plan.precision} is not usable on {self.device}"
            )
        self.pinned = True
        self._take(plan)

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new budget, 0 for 90 % of what was free at the start, and plan anew.

        Raises BudgetError, and changes nothing, when nothing fits for the images of one camera.
        """
        budget = self._budget(memory_budget_gb, warn=True)
        self._check(budget)
        plan = self._planned(budget)
        with self.undone_if_refused():
            self.budget, self.relief = budget, 0
            if plan is not None:
                self._take(plan)
                self._check(budget)  # 16 bits that a plan wants may be wrong here

    def check_budget(self, memory_budget_gb: float) -> None:
        """Raise BudgetError if nothing fits into this budget; changes nothing.

        Any thread may ask, while a window runs too. No plan is made, which may take seconds.
        """
        self._check(self._budget(memory_budget_gb))

    @contextmanager
    def undone_if_refused(self) -> Iterator[None]:
        """After a BudgetError the budget, if it was set within, and its plans are the old ones."""
        budget, relief, plan, plans = self.budget, self.relief, self.plan, dict(self._plans)
        over_budget = self.over_budget
        try:
            yield
        except BudgetError:
            self.budget, self.relief = budget, relief
            if plan is not None:
                self._adopt(plan)
            self._plan, self._plans, self.over_budget = plan, plans, over_budget
            raise

    def _check(self, budget: int) -> None:
        """Raise BudgetError if a camera's images do not fit, of those that need most."""
        if self._asked and not self.pinned:
            most = max(self._asked, key=lambda r: least_memory(self.on, r, self._factor))
            check_fits(self.on, most, budget, self._factor)

    def _planned(self, budget: int) -> Plan | None:
        """What a budget in bytes allows; None before anything was asked for."""
        request = self._request
        if request is None or self.pinned:
            return self.plan
        return self._make(request, budget)

    def _make(self, request: Request, budget: int) -> Plan:
        """A plan, in the spare precision while another camera needs it: there is one network."""
        others = (r for r in self._asked if r != request)
        needed = any(needs_spare(self.on, r, budget, self._factor) for r in others)
        spare = request.spare_precision if needed else None
        return make_plan(self.on, request, budget, self._factor, spare)

    def _budget(self, gigabytes: float, *, warn: bool = False) -> int:
        if not gigabytes:
            return int(FREE_SHARE * self._free_at_start)
        budget = int(gigabytes * GIB)
        if warn and budget > self._free_at_start:
            log.warning(
                "memory_budget_gb is %.2f, but only %.2f GiB are free on %s",
                gigabytes,
                self._free_at_start / GIB,
                self.on.name(),
            )
        return budget

    def _spare(self) -> torch.dtype | None:
        """A smaller type that the budget may force: only where `mixed_precision` is auto, and not
        after 16 bits were found wrong here."""
        auto = self.config.mixed_precision == "auto" and self._wanted == torch.float32
        allowed = auto and self._trusts_less and self.on.can(torch.bfloat16)
        return torch.bfloat16 if allowed else None

    def _take(self, plan: Plan) -> None:
        """``_adopt`` a plan of another budget or measure: those made before hold no more."""
        self._adopt(plan)
        self._plans.clear()
        if self._request is not None and self.plan is not None:
            self._plans[self._request] = self.plan

    def _adopt(self, plan: Plan) -> None:
        """Run as ``plan`` says from now on; where its precision is wrong here, as one without it.

        Raises BudgetError or DeviceError, and keeps the plan before, where there is none.
        """
        if plan.dtype != self.precision and not self._change_precision(plan.dtype):
            return self._adopt_without_spare(plan)
        before, self._plan = self._plan, plan
        if before is None or before.reduced != plan.reduced:
            for text in plan.reduced:
                log.warning("the memory budget allows only %s", text)
        if before is None or (before.width, before.height) != (plan.width, plan.height):
            self._kept.clear()
        if before is not None and before.repeatable() != plan.repeatable():
            self.compiler.release()
        self.over_budget = ""
        self._set_pieces()
        self._let_go()
        self.on.cap(self.budget)
        return None

    def _adopt_without_spare(self, plan: Plan) -> None:
        if self.pinned or self._request is None:
            raise DeviceError(f"the plan's precision {plan.precision} is not close to fp32 here")
        self._trusts_less = False
        self._asked = tuple(replace(r, spare_precision=None) for r in self._asked)
        self._adopt(self._make(self._asked[0], self.budget))

    def _change_precision(self, dtype: torch.dtype) -> bool:
        """Convert the network; what 16 bits have lost is read from the file again.

        False, and fp32, where ``dtype`` is not close to it.
        """
        loaded = self.network if self.precision == torch.float32 else None
        self.network, self.precision = load_checked(self._load, self.on, dtype, loaded)
        self.attention = self.on.attention(self.precision)
        self._kept.clear()
        self.compiler.forget()
        return self.precision == dtype

    def _let_go(self) -> None:
        """What earlier windows left in the allocator must not count as the next one's."""
        self.on.release()
        self._clean = True

    def _set_pieces(self) -> None:
        planned = self.plan.chunks if self.plan else self.on.chunks()
        self._chunks = SMALLEST if self.relief else planned
        self.network.set_chunks(self._chunks)

    # Inference

    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all must have one size, multiples of 14.

        The first view is the reference, whose camera is close to the window's world frame. Poses
        and depth share one unknown unit. Where memory runs out the same window is run again with
        less of it; raises WindowTooLargeError when only fewer views can help.
        """
        return self._infer(window)

    def _infer(self, window: Window) -> Prediction:
        start = time.perf_counter()
        self._plan_for(window)
        while True:
            try:
                prediction = self._run(window)
                break
            except Exception as error:
                if not self.on.is_out_of_memory(error):
                    raise
            self._step_down(window)  # outside `except`: the error's frames hold the tensors
        self._after_calm()
        return replace(prediction, inference_s=time.perf_counter() - start)

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
        self._rehearsing = self.compiler.at_once = True
        relief = self.relief
        try:
            self.prefetch(window.views[0].image)
            return self._infer(window)
        finally:
            self.on_window_running, self._calm = hook, 0
            self._rehearsing = self.compiler.at_once = False
            self.relief = relief  # what a start's crowd took is there again when frames come
            self._set_pieces()
            self._kept.clear()
            self._device_s.clear()
            self._guessed = True

    @torch.inference_mode()
    def prefetch(self, image: Image) -> None:
        """Run what sees a view's image alone while it waits for its window.

        On a GPU this queues behind the running window and does not wait.

        Only saves time: without it, or where memory is short, ``infer`` does the same.
        """
        if self.plan is None or self.relief or self._kept.get(image) is not None:
            return
        try:
            height, width = image.shape[:2]
            self._keep([image], self._encode([image], (height, width)), self.plan.window)
        except Exception as error:
            if not self.on.is_out_of_memory(error):
                raise
            self.on.release()

    def _plan_for(self, window: Window) -> None:
        """A plan for callers that did not ask for one: the window is taken as it is."""
        if self.plan is None:
            height, width = window.views[0].image.shape[:2]
            self.config = replace(self.config, process_res=max(width, height))
            self.fit((width, height), max(2, len(window.views)), window.new)

    @torch.inference_mode()
    def _run(self, window: Window) -> Prediction:
        self._compiling = False
        if self._clean:  # of what other networks in this process left since, too
            self.on.release()
        before = self.on.in_use()
        self.on.reset_peak()
        images, size = [view.image for view in window.views], window.views[0].image.shape[:2]
        inner = smaller(size, OOM_FALLBACKS[self.relief].scale)
        prefix = self._prefixes(images, inner)
        frames = sorted(range(len(images)) if window.wanted is None else window.wanted)
        download = Download(self._answer(window, prefix, inner, frames))
        del prefix
        out = self._wait_for(download)
        prediction = to_prediction(out, window, frames, metric_depth=self.spec.metric)
        self._measure(before, len(images))
        return prediction

    def _wait_for(self, download: Download[Any]) -> Any:
        """The results; others may use the time until they are there."""
        begun = time.perf_counter()
        if self.on_window_running is not None and download.queued:
            # The shortest of the newest: who counts on it is early rather than late.
            usual = min(self._device_s, default=0.0)
            self.on_window_running(Running(download.done, begun + usual))
        out = download.wait()
        self._device_s.append(time.perf_counter() - begun)
        return out

    def _camera_tokens(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """What the camera encoder makes of known poses and intrinsics; None without poses."""
        if window.T_prior_camera is None:
            return None
        if not self._poses:
            raise ValueError("this session was opened for windows without known poses")
        T = torch.from_numpy(np.asarray(window.T_prior_camera, np.float64))[None]
        extrinsics = normalize_poses(T).extrinsics.to(self.device)
        K = known_K(window, size)
        if np.isnan(K).any():
            raise ValueError("known poses need the intrinsics of every view")
        intrinsics = torch.from_numpy(K)[None].float().to(self.device)
        return self.network.camera_tokens(extrinsics, intrinsics, size)

    def _answer(
        self, window: Window, prefix: Prefix, size: tuple[int, int], frames: list[int]
    ) -> Output | MonocularOutput:
        """What the network says of ``frames``, images of ``size``; nested: in metres."""
        tokens = self._camera_tokens(window, size)
        if isinstance(self.network, MonocularDepth):
            return self.network.decode(prefix, self._index(frames, window))  # only picks maps
        chosen = self._index(frames, window)
        out: Output = self._call("decode", prefix, size, tokens, ref_view="first", frames=chosen)
        out = out._replace(appearance=appearance(prefix))
        if not isinstance(prefix, NestedPrefix):
            return out
        focal = focal_px(window, frames, size)
        if not self._warned and not bool(focal.isfinite().all()):
            self._warned = True
            log.warning("metres by a focal length that was guessed: publish a camera_info")
        focal, guessed = focal.to(self.device), metric.focal_length(out.intrinsics)[:, frames]
        canonical = MonocularOutput(prefix.depth[:, frames], prefix.sky[:, frames])
        # Sky stays as it is here: what becomes of it is for the user to say.
        return to_metres(
            out, canonical, torch.where(focal.isfinite(), focal, guessed), fill_sky=False
        )

    def _index(self, frames: list[int], window: Window) -> Tensor | None:
        """Wanted frames as the network takes them; None: all."""
        if len(frames) == len(window.views):
            return None
        return self._upload(torch.tensor(frames))

    def _prefixes(self, images: list[Image], size: tuple[int, int]) -> Prefix:
        """Prefixes [1, N, ...] of all images; only those not seen before are computed."""
        missing = [image for image in images if self._kept.get(image) is None]
        fresh: dict[int, Prefix] = {}
        if missing:
            fresh = self._encode(missing, size)
            self._keep(missing, fresh, len(images))
        parts = [fresh.get(id(image)) or self._kept.get(image) for image in images]
        stacked = (
            torch.stack([self._upload(x) for x in xs])[None] for xs in zip(*parts, strict=True)
        )
        make: Any = type(parts[0])
        return make(*stacked)

    def _encode(self, images: list[Image], size: tuple[int, int]) -> dict[int, Prefix]:
        """What the network makes of each image alone, by the array's ``id()``."""
        pixels = torch.from_numpy(np.stack([to_size(image, size) for image in images]))
        batch = normalize(self._upload(pixels))[None]
        prefix: Prefix = self._call("encode", batch)
        parts = (type(prefix)(*(x[0, i] for x in prefix)) for i in range(len(images)))
        return {id(image): part for image, part in zip(images, parts, strict=True)}

    def _upload(self, x: Tensor) -> Tensor:
        """A tensor on the device. On CUDA the copy is queued; only there is that safe."""
        if self.device.type != "cuda" or x.is_cuda:
            return x.to(self.device)
        return x.pin_memory().to(self.device, non_blocking=True)  # pageable memory would wait

    def _keep(self, images: list[Image], fresh: dict[int, Prefix], window: int) -> None:
        """Keep what later windows will ask for again; the longest unused leaves first."""
        if self.relief:
            return
        plan = self.plan
        for image in images:
            on_host = plan is not None and plan.prefix_on_host
            self._kept.put(image, fresh[id(image)], on_host=on_host)
        room = max(window, kept_views(plan.window, plan.new)) if plan is not None else window
        self._kept.bound(self._streams * room)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """``encode`` or ``decode`` of the network, compiled where that was chosen and works."""
        plain = getattr(self.network, name)
        if not self.compile_mode or self.relief:  # what memory forced waits for no compiler
            return plain(*args, **kwargs)
        out = self.compiler.call(plain, self.precision, self._chunks, *args, **kwargs)
        self._compiling |= self.compiler.at_work
        return out

    # Memory

    def _measure(self, before: int, views: int) -> None:
        """Note the peak of a pass; the first at full window size corrects the prediction."""
        clean, self._clean = self._clean, False
        if self._compiling or self._rehearsing:
            return
        plan = self.plan
        taken = self.on.taken(before, self._persistent())
        self.peak = max(self.peak, taken)
        if plan is None or self.pinned or self.relief or views < plan.window:
            return
        over = taken > plan.budget
        if (over or not self._measured) and not clean:
            self._let_go()  # and look at the next one
        elif over or not self._measured:
            if over:
                log.warning(
                    "a window took %.2f GiB of a budget of %.2f", taken / GIB, plan.budget / GIB
                )
            self._replan(taken)

    def _replan(self, taken: int) -> None:
        plan = self.plan
        assert plan is not None
        self._measured = True
        activations = max(1, taken - (plan.predicted - plan.activations))
        self._factor = min(4.0, max(1.0, self._factor * activations / plan.activations))
        if self._request is None:
            return
        try:
            self._take(self._make(self._request, self.budget))
        except BudgetError as error:  # the window is done, and the next may do as well
            self.over_budget = f"{error}; the old plan stays"
            log.warning("%s", self.over_budget)

    def _persistent(self) -> int:
        plan = self.plan
        return (plan.weights + plan.fixed if plan else 0) + self._kept.nbytes

    def _step_down(self, window: Window) -> None:
        """After memory ran out: one relief more, for the same window."""
        self._kept.clear()
        self.compiler.release()
        self.on.release()
        self._calm = 0
        if self.relief + 1 >= len(OOM_FALLBACKS):
            raise WindowTooLargeError(
                f"out of memory with {len(window.views)} views at the smallest size: lower "
                "window.size or process_res, or raise memory_budget_gb"
            )
        self.relief += 1
        self._set_pieces()
        log.warning(
            "out of memory: window %d again, %s", window.id, OOM_FALLBACKS[self.relief].text
        )

    def _after_calm(self) -> None:
        self._calm += 1
        if self.relief and self._calm >= CALM:
            self.relief -= 1
            self._calm = 0
            self._kept.clear()
            self._set_pieces()
            log.info("memory has been calm: now %s", OOM_FALLBACKS[self.relief].text)

    # Loading

    def _announce(self) -> None:
        """Warn of a non-commercial licence and of what a single-image network does not give."""
        spec = self.spec
        if not spec.commercial:
            log.warning("%s: weights under %s, no commercial use", spec.name, spec.license)
        if not spec.multi_view:
            unit = "in metres with a camera_info" if spec.metric else "in a unit of its own"
            log.warning(
                "%s sees each image alone: depth (%s) and sky; no poses, so no odometry and no "
                "map, and no confidence", spec.name, unit
            )  # fmt: skip

    def _load(self) -> Network:
        network = load_network(self.config.model, self.config.checkpoint)
        drop_rays(network)
        if not self._poses:
            drop_camera_encoder(network)
        return network
