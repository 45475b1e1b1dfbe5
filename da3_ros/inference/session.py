"""One network on one device within a memory budget: windows in; depth, poses, intrinsics out."""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from da3_ros.config import InferenceConfig
from da3_ros.inference.devices import open_device
from da3_ros.inference.planner import (
    GIB,
    SMALLEST,
    UNMEASURED,
    BudgetError,
    Plan,
    Request,
    make_plan,
)
from da3_ros.inference.preprocess import fit_size, normalize
from da3_ros.inference.self_check import SelfCheck
from da3_ros.network import (
    MODELS,
    CheckpointError,
    build_network,
    initialize_randomly,
    load_checkpoint,
)
from da3_ros.network.backbone import Prefix
from da3_ros.network.conditioning import normalize_poses
from da3_ros.network.model import DepthAnything3, Output
from da3_ros.network.precision import channels_last, convert, drop_rays
from da3_ros.rectify import resize_K
from da3_ros.types import Array, FloatImage, Prediction, View, Window

log = logging.getLogger(__name__)

RANDOM = "random"
FREE_SHARE = 0.9  # of the free memory, when no budget is given
CALM = 100  # windows without trouble after which a step that memory forced is taken back


class WindowTooLargeError(MemoryError):
    """Memory ran out with everything done that keeps a window whole: give fewer views."""


@dataclass(frozen=True)
class Relief:
    """What is done about memory that ran out in a window, beyond the plan."""

    text: str
    scale: float = 1.0  # of the image's sides in the network


RELIEFS = (
    Relief("as planned"),
    Relief("smallest pieces, no kept prefixes"),
    Relief("images at 3/4 of their size in the network", 0.75),
    Relief("images at 1/2 of their size in the network", 0.5),
)


class InferenceSession:
    """Holds one loaded network. Not thread-safe: one worker owns it.

    Raises CheckpointError, DeviceError or ValueError at construction, each with one line.
    """

    def __init__(self, config: InferenceConfig) -> None:
        self.config = config
        self.on = open_device(config.device, config.performance_mode)
        self.device = self.on.device
        spec = MODELS[config.model]
        self.license = spec.license
        if not spec.commercial:
            log.warning("%s: weights under %s, no commercial use", spec.name, spec.license)
        self._free_at_start = self.on.free()
        self.budget = self._budget(config.memory_budget_gb)
        self.precision = self.on.precision(config.mixed_precision)
        self.attention = self.on.attention(self.precision)
        self.compile_mode = self.on.compile_mode(config.compile)
        self.network = self._make_network()
        self._wanted = self.precision  # what a plan may leave only for want of memory
        self.plan: Plan | None = None
        self.pinned = False  # a plan that was given stays
        self.relief = 0  # index into RELIEFS
        self.peak = 0  # bytes, the most that was measured
        self._calm = 0
        self._factor = UNMEASURED
        self._measured = False
        self._request: Request | None = None
        self._kept: OrderedDict[int, tuple[weakref.ref[View], Prefix]] = OrderedDict()

    @property
    def precision_name(self) -> str:
        """The type of matrix products, as in the plan."""
        return str(self.precision).removeprefix("torch.")

    # The plan

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
        )
        if self.pinned and self.plan is not None:
            return self.plan
        if request != self._request or self.plan is None:
            self._request = request
            self._adopt(make_plan(self.on, request, self.budget, self._factor))
        assert self.plan is not None
        return self.plan

    def use_plan(self, plan: Plan) -> None:
        """Run as ``plan`` says, whatever memory is free: two runs with one plan are equal."""
        if plan.model != self.config.model:
            raise ValueError(f"the plan is for {plan.model}, not {self.config.model}")
        self.pinned = True
        self._adopt(plan)

    def set_budget(self, memory_budget_gb: float) -> None:
        """Take a new budget, 0 for 90 % of what was free at the start, and plan anew.

        Raises BudgetError, and keeps the old one, when nothing fits.
        """
        budget = self._budget(memory_budget_gb)
        plan = self.plan
        if self._request is not None and not self.pinned:
            plan = make_plan(self.on, self._request, budget, self._factor)
        self.budget, self.relief = budget, 0
        if plan is not None:
            self._adopt(plan)

    def _budget(self, gigabytes: float) -> int:
        if not gigabytes:
            return int(FREE_SHARE * self._free_at_start)
        budget = int(gigabytes * GIB)
        if budget > self._free_at_start:
            log.warning(
                "memory_budget_gb is %.2f, but only %.2f GiB are free on %s",
                gigabytes,
                self._free_at_start / GIB,
                self.on.name(),
            )
        return budget

    def _spare(self) -> torch.dtype | None:
        """A smaller type that the budget may force: only where `mixed_precision` is auto."""
        auto = self.config.mixed_precision == "auto" and self._wanted == torch.float32
        return torch.bfloat16 if auto and self.on.can(torch.bfloat16) else None

    def _adopt(self, plan: Plan) -> None:
        if plan.dtype != self.precision:
            self._change_precision(plan.dtype)
        for text in plan.reduced:
            log.warning("the memory budget allows only %s", text)
        self.plan = plan
        self._set_pieces()
        self.on.cap(self.budget)

    def _change_precision(self, dtype: torch.dtype) -> None:
        """Convert the network; what 16 bits have lost is read from the file again."""
        if self.precision != torch.float32:
            network = _load(self.config)
            drop_rays(network)
            self.network = self._on_device(network)
        convert(self.network, dtype)
        self.precision, self.attention = dtype, self.on.attention(dtype)
        self._kept.clear()
        self._compiled.clear()

    def _set_pieces(self) -> None:
        if self.relief:
            self.network.set_chunks(SMALLEST)
        else:
            self.network.set_chunks(self.plan.chunks if self.plan else self.on.chunks())

    # Inference

    def infer(self, window: Window) -> Prediction:
        """Run the views of ``window`` together; all must have one size, multiples of 14.

        The first view is the reference, whose camera is close to the window's world frame. Poses
        and depth share one unknown unit. Where memory runs out the same window is run again with
        less of it; raises WindowTooLargeError when only fewer views can help.
        """
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

    @torch.inference_mode()
    def prefetch(self, view: View) -> None:
        """Run what sees a view alone while it waits for its window; on a GPU this does not block.

        Only saves time: without it, or where memory is short, ``infer`` does the same.
        """
        if self.plan is None or self.relief or self._kept_prefix(view) is not None:
            return
        try:
            height, width = view.image.shape[:2]
            encoded = self._encode([view], (height, width))
            own = Prefix(encoded.tokens[0], encoded.descriptor[0])
            self._keep([view], {id(view): own}, self.plan.window)
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
        before = self.on.in_use()
        self.on.reset_peak()
        views, size = window.views, window.views[0].image.shape[:2]
        inner = self._inner_size(size)
        prefix = self._prefixes(views, inner)
        frames = sorted(range(len(views)) if window.wanted is None else window.wanted)
        out = self._decode(prefix, inner, frames, self._camera_tokens(window, inner))
        del prefix
        prediction = to_prediction(out, len(views), frames, size)
        self._measure(before)
        return prediction

    def _inner_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        scale = RELIEFS[self.relief].scale
        if scale == 1:
            return size[0], size[1]
        width, height = fit_size(size[1], size[0], round(max(size) * scale))[-1]
        return height, width

    def _camera_tokens(self, window: Window, size: tuple[int, int]) -> Tensor | None:
        """What the camera encoder makes of known poses and intrinsics; None without poses."""
        if window.T_prior_camera is None:
            return None
        T = torch.from_numpy(np.asarray(window.T_prior_camera, np.float64))[None]
        extrinsics = normalize_poses(T).extrinsics.to(self.device)
        given = [view.K for view in window.views]
        if any(K is None for K in given):
            raise ValueError("known poses need the intrinsics of every view")
        height, width = window.views[0].image.shape[:2]
        K = np.stack([resize_K(K, (width, height), size[::-1]) for K in given if K is not None])
        tokens: Tensor = self.network.cam_enc(
            extrinsics, torch.from_numpy(K)[None].float().to(self.device), size
        )
        return tokens

    def _decode(
        self,
        prefix: Prefix,
        size: tuple[int, int],
        frames: list[int],
        camera_tokens: Tensor | None,
    ) -> Output:
        out: Output = self._call(
            "decode", prefix, size, camera_tokens, ref_view="first", frames=frames
        )
        return out

    def _prefixes(self, views: tuple[View, ...], size: tuple[int, int]) -> Prefix:
        """Prefixes [1, N, ...] of all views; only views not seen before are computed."""
        missing = [view for view in views if self._kept_prefix(view) is None]
        fresh: dict[int, Prefix] = {}
        if missing:
            encoded = self._encode(missing, size)
            fresh = {
                id(view): Prefix(encoded.tokens[i], encoded.descriptor[i])
                for i, view in enumerate(missing)
            }
            self._keep(missing, fresh, len(views))
        parts = [fresh.get(id(view)) or self._kept_prefix(view) for view in views]
        tokens, descriptors = zip(*(p for p in parts if p is not None), strict=True)
        # A copy: the fusing blocks overwrite their input.
        stacked = (
            torch.stack([x.to(self.device) for x in xs])[None] for xs in (tokens, descriptors)
        )
        return Prefix(*stacked)

    def _encode(self, views: list[View], size: tuple[int, int]) -> Prefix:
        images = torch.from_numpy(np.stack([_resized(view.image, size) for view in views]))
        if self.device.type == "cuda":
            images = images.pin_memory()  # else the copy waits for the device
        batch = normalize(images.to(self.device, non_blocking=True))[None]
        prefix: Prefix = self._call("encode", batch)
        return Prefix(prefix.tokens[0], prefix.descriptor[0])

    def _keep(self, views: list[View], fresh: dict[int, Prefix], window: int) -> None:
        """Keep what later windows will ask for again; the longest unused leaves first."""
        if self.relief:
            return
        host = self.plan is not None and self.plan.prefix_on_host
        for view in views:
            prefix = fresh[id(view)]
            # Frames of one batch share its storage: each is kept on its own, so each can leave.
            own = (x.cpu() if host else x.clone() for x in prefix)
            self._kept[id(view)] = (weakref.ref(view), Prefix(*own))
        while len(self._kept) > max(window, self.plan.window if self.plan else 0):
            self._kept.popitem(last=False)

    def _kept_prefix(self, view: View) -> Prefix | None:
        entry = self._kept.get(id(view))
        if entry is None or entry[0]() is not view:  # an address may be used again
            self._kept.pop(id(view), None)
            return None
        self._kept.move_to_end(id(view))
        return entry[1]

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """``encode`` or ``decode`` of the network, compiled where that was chosen and works."""
        plain = getattr(self.network, name)
        if not self.compile_mode or self.relief:  # what memory forced waits for no compiler
            return plain(*args, **kwargs)
        if name not in self._compiled:
            # Static shapes: a window has one size for hours, and its first ones are few.
            self._compiled[name] = torch.compile(
                plain, fullgraph=True, dynamic=False, mode=self.compile_mode
            )
        try:
            return self._compiled[name](*args, **kwargs)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException  # slow to import

            if not isinstance(error, TorchDynamoException) or self.on.is_out_of_memory(error):
                raise
            first = str(error).strip().splitlines()[0]
            log.warning("torch.compile does not work here (%s): running uncompiled", first)
            self.compile_mode = ""
        return plain(*args, **kwargs)

    # Memory

    def _measure(self, before: int) -> None:
        """Note the peak of a pass; the first at full window size corrects the prediction."""
        plan = self.plan
        taken = self.on.taken(before, self._persistent())
        self.peak = max(self.peak, taken)
        if plan is None or self.pinned or self.relief:
            return
        if taken > plan.budget and len(self._kept) >= plan.window:
            log.warning(
                "a window took %.2f GiB of a budget of %.2f", taken / GIB, plan.budget / GIB
            )
            self._replan(taken)
        elif not self._measured and len(self._kept) >= plan.window:
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
            self._adopt(make_plan(self.on, self._request, self.budget, self._factor))
        except BudgetError as error:  # the window is done, and the next may do as well
            log.warning("%s; the old plan stays", error)

    def _persistent(self) -> int:
        plan = self.plan
        kept = sum(p.tokens.nbytes for _, p in self._kept.values())
        return (plan.weights + plan.fixed if plan else 0) + kept

    def _step_down(self, window: Window) -> None:
        """After memory ran out: one relief more, for the same window."""
        self._kept.clear()
        self.on.release()
        self._calm = 0
        if self.relief + 1 >= len(RELIEFS):
            raise WindowTooLargeError(
                f"out of memory with {len(window.views)} views at the smallest size: lower "
                "window.size or process_res, or raise memory_budget_gb"
            )
        self.relief += 1
        self._set_pieces()
        log.warning("out of memory: window %d again, %s", window.id, RELIEFS[self.relief].text)

    def _after_calm(self) -> None:
        self._calm += 1
        if self.relief and self._calm >= CALM:
            self.relief -= 1
            self._calm = 0
            self._kept.clear()
            self._set_pieces()
            log.info("memory has been calm: now %s", RELIEFS[self.relief].text)

    # Loading

    def _make_network(self) -> DepthAnything3:
        """Load in fp32, check the fast path against it, keep only that on the device."""
        self._compiled: dict[str, Any] = {}
        network = _load(self.config)
        drop_rays(network)
        if self.precision == torch.float32:
            return self._on_device(network)
        check = SelfCheck(network)
        convert(network, self.precision)
        network = self._on_device(network)
        fault = check.fault(network)
        if not fault:
            return network
        log.warning(
            "%s in %s is not close to fp32 here (%s): running in fp32",
            self.config.model,
            str(self.precision).removeprefix("torch."),
            fault,
        )
        self.precision = torch.float32
        network = _load(self.config)
        drop_rays(network)
        return self._on_device(network)

    def _on_device(self, network: DepthAnything3) -> DepthAnything3:
        if self.device.type != "cpu":
            channels_last(network)
        moved: DepthAnything3 = network.to(self.device)
        return moved


def to_prediction(out: Output, views: int, frames: list[int], size: tuple[int, ...]) -> Prediction:
    """Network output of one scene to host arrays of ``size``, poses turned camera-to-world.

    Maps of views that were not asked for are NaN.
    """
    inner = out.depth.shape[-2:]
    K = out.intrinsics[0].double().cpu().numpy()
    K[:, 0] *= size[1] / inner[1]
    K[:, 1] *= size[0] / inner[0]
    return Prediction(
        depth=_spread(out.depth[0], views, frames, size),
        confidence=_spread(out.confidence[0], views, frames, size),
        T_window_camera=camera_to_world(out.extrinsics[0].double().cpu().numpy()),
        K=K,
    )


def _spread(maps: Tensor, views: int, frames: list[int], size: tuple[int, ...]) -> FloatImage:
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


def _resized(image: Array, size: tuple[int, int]) -> Array:
    if image.shape[:2] == size:
        return image
    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA))


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


def _load(config: InferenceConfig) -> DepthAnything3:
    network = build_network(config.model)
    if not isinstance(network, DepthAnything3):
        raise CheckpointError(
            f"{config.model} is no any-view model: "
            "set `model` to da3-small, da3-base, da3-large or da3-giant"
        )
    if config.checkpoint == RANDOM:
        log.warning("checkpoint `random`: %s gives numbers without meaning", config.model)
        initialize_randomly(network)
    else:
        folder = load_checkpoint(network, config.checkpoint)
        log.info("%s loaded from %s", config.model, folder)
    network.requires_grad_(False)
    return network
