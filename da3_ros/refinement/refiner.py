"""Refines windows: features, tracks, bundle adjustment, depth correction.

Poses and lengths are those of ``local``. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import nearest_rotation
from da3_ros.geometry.similarity import Similarity
from da3_ros.refinement.depth_correction import TrackResiduals, correction
from da3_ros.refinement.features import FeatureDetector
from da3_ros.refinement.guessed_focal import GuessedFocal
from da3_ros.refinement.measured_poses import measured_poses, units_per_metre
from da3_ros.refinement.relative_poses import NETWORK, ROBOT, PosePriors
from da3_ros.refinement.self_calibration import NO_CHANGE, LengthChange, SelfCalibration
from da3_ros.refinement.sliding_graph import RefinedViews, SavedGraph, SlidingGraph
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.track_trails import Trails, trails_of
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView, tracked_view
from da3_ros.types import Array, FloatImage, Image, Prediction, Window

RECENT = 20  # views whose distances give the unit
# Of log depth against tracks, robust: with more than the first, depth is doubtful, with more than
# the second, meaningless; but not if it is less than a factor on what is usual for the network.
MAX_DEPTH_ERROR, NO_DEPTH_ERROR, USUAL = 0.25, 0.6, 2.0


@dataclass(frozen=True, eq=False)
class CameraImage:
    """The rectified image of a new view, at the camera's size."""

    image: Image  # [H, W, 3]
    usable: NDArray[np.bool_] | None  # [H, W] pixels that may carry a feature; None: all


@dataclass(frozen=True, eq=False)
class RefinedWindow:
    """A refined window, in the window's own world and unit, as the network's prediction was."""

    prediction: Prediction
    T_local_window: Similarity
    views: RefinedViews
    # Of views of earlier windows: pose before and after [4, 4] in local, and factor on depth.
    moved: dict[int, tuple[Array, Array, float]]
    factors: FloatImage  # [new, h, w] on the depth of the new views; the prediction has them
    depth_agrees: bool  # whether the depth of the new views is that of their tracks
    depth_means_something: bool  # whether it has at least something to do with it
    change: LengthChange  # of lengths in local; not 1 with a new focal length
    guessed_focal: bool  # whether the network guesses the focal length of a camera

    def scaled(self, depth: FloatImage) -> FloatImage:
        """Returns depth [N, h, w] of the window with the factors on its new views."""
        out = depth.copy()
        out[len(out) - len(self.factors) :] *= self.factors
        return out


@dataclass(frozen=True)
class Tracks:
    """The tracks of a window."""

    count: int
    refined: bool  # whether they were enough
    reprojection_px: float  # RMS error, pixels of the camera image; NaN if not refined


NO_TRACKS = Tracks(0, False, float("nan"))


class WindowRefiner:
    """Refines windows; owns the sliding graph of the current segment."""

    def __init__(self, limits: SolverLimits) -> None:
        self.detector = FeatureDetector(limits.features, limits.pixels)
        self.graph = SlidingGraph(limits.tracks, limits.steps)
        self.calibration = SelfCalibration()
        self.guessed = GuessedFocal()
        self.tracks = NO_TRACKS  # of the newest window
        self._before: tuple[SavedGraph, dict[str, tuple[Array, tuple[int, int]]]] | None = (
            None  # of the window
        )

    def restart(self) -> None:
        """Begins a new segment."""
        self.graph.restart()
        self.tracks = NO_TRACKS

    def calibrated(self, window: Window, prediction: Prediction) -> Prediction:
        """Returns the prediction with the K that all views of a camera without calibration have:
        by tracks, else the median of the network's newest guesses."""
        prediction = self.guessed.steadied(window, prediction, self.calibration.known)
        return self.calibration.calibrated(window, prediction)

    def forget_calibration(self) -> None:
        """Forgets focal lengths: images have another size now."""
        self.calibration = SelfCalibration()

    def undo(self) -> None:
        """Returns to what was known before the newest window."""
        assert self._before is not None
        graph, self.calibration.known = self._before
        self.graph.restore(graph)
        self.tracks = NO_TRACKS

    def end_window(self, units: Mapping[int, float]) -> None:
        """Forgets what no later window needs; see ``SlidingGraph.end_window``."""
        self.graph.end_window(units)
        self._before = None

    def skip(self) -> None:
        """Notes that a window passes as it is; its new views carry no tracks."""
        self.tracks = NO_TRACKS

    def trails(self, id: int) -> Trails:
        """Returns the trails of a view of the newest window. Raises KeyError if it has none."""
        return trails_of(id, self.graph.views, self.graph.points)

    def refine(
        self, window: Window, images: Sequence[CameraImage], prediction: Prediction, S: Similarity
    ) -> RefinedWindow | None:
        """Refines a window that ``S`` places in local; None: too few tracks, the window passes as
        it is.

        images: of the new views.
        """
        self._before = self.graph.saved(), dict(self.calibration.known)
        count = len(window.views) - window.new
        ids = [view.id for view in window.views]
        # Rounding of single precision must not multiply from window to window.
        S = Similarity(S.scale, nearest_rotation(S.R), S.t)
        before = {i: (v.T_local_camera, v.log_scale) for i, v in self.graph.views.items()}
        usual, found = self.graph.noise.depth, 0
        for k, image in enumerate(images, count):
            view = self._view(window, k, image, prediction, S)
            if view.own_K:
                self.graph.set_guessed_K(view)
            found += self.graph.add(view, ids[:k])
        priors = self._pose_priors(ids, len(images), prediction, S)
        done = self.graph.refine(ids[count:], priors)
        if done is None:
            self.tracks = Tracks(found, False, float("nan"))
            for k, id in enumerate(ids[count:], count):  # as they are published
                self.graph.views[id].T_local_camera = S.pose(prediction.T_window_camera[k])
                self.graph.views[id].log_scale = 0.0
            return None
        change = self.calibration.run(self.graph)
        if change is not None:
            done = self.graph.refine(ids[count:], priors)
            if done is None:
                raise np.linalg.LinAlgError("the newest view lost its tracks with its new K")
            prediction = self.calibration.calibrated(window, prediction)
        shrunk = images[-1].image.shape[1] / self.graph.views[ids[-1]].features.shape[1]
        self.tracks = Tracks(done.tracks, True, shrunk * done.reprojection_px)
        moved = {}
        for i, (T, s) in before.items():
            known = self.graph.views.get(i)
            if known is not None and known.T_local_camera is not T:
                moved[i] = T, known.T_local_camera, float(np.exp(known.log_scale - s))
        scale = float(np.median([self.graph.views[i].log_scale for i in ids[count:]]))
        S = Similarity(S.scale * float(np.exp(scale)), S.R, S.t)
        factors = np.stack([
            self._factors(i, prediction.depth[k], S.scale, scale)
            for k, i in enumerate(ids[count:], count)
        ])  # fmt: skip
        refined = self._refined(window, prediction, S, factors)
        error = self.graph.depth_error(ids[count:])
        agrees = error < max(MAX_DEPTH_ERROR, USUAL * usual)
        means_something = error < max(NO_DEPTH_ERROR, USUAL * usual)
        return RefinedWindow(
            refined,
            S,
            done,
            moved,
            factors,
            agrees,
            means_something,
            change or NO_CHANGE,
            any(self._is_guessed(i) for i in done.ids),
        )

    def _is_guessed(self, id: int) -> bool:
        view = self.graph.views[id]
        return view.own_K and view.camera not in self.calibration.known

    def _view(
        self, window: Window, k: int, image: CameraImage, prediction: Prediction, S: Similarity
    ) -> TrackedView:
        view, depth = window.views[k], prediction.depth[k]
        T = S.pose(prediction.T_window_camera[k])
        T[:3, :3] = nearest_rotation(T[:3, :3])
        measured = MeasuredPose(
            view.T_prior_camera, view.prior_variance, view.T_rig_camera, view.instant
        )
        return tracked_view(
            view.id, view.camera, self.detector(image.image, image.usable),
            prediction.K[k] if view.K is None else view.K, T, np.float32(S.scale) * depth,
            own_K=view.K is None, measured=measured,
        )  # fmt: skip

    def _pose_priors(
        self, ids: list[int], new: int, prediction: Prediction, S: Similarity
    ) -> PosePriors:
        """Returns the motions from view to view, in the order of views' ids: by the network, and
        by robot and rig if they know any.

        ids: of the window's views, the last ``new`` of which were not refined before.
        """
        order = np.argsort(ids)
        T = np.array([S.pose(prediction.T_window_camera[k]) for k in order])
        pairs = len(ids) - 1
        step = np.linalg.inv(T[:-1]) @ T[1:] if pairs else np.zeros((0, 4, 4))
        known = prediction.depth[np.isfinite(prediction.depth)]
        depth = S.scale * float(np.median(known)) if len(known) else 1.0
        noise = self.graph.noise.poses
        rotation, place = noise[NETWORK].rotation, noise[NETWORK].place * depth
        network = PosePriors.isotropic(
            np.array(ids)[order[:-1]], np.array(ids)[order[1:]], step,
            np.full(pairs, rotation), np.full(pairs, place), NETWORK,
        )  # fmt: skip
        views = [self.graph.views[i] for i in ids if i in self.graph.views]
        older = [v for i, v in self.graph.views.items() if i not in ids[len(ids) - new :]]
        units = units_per_metre(older[-RECENT:])
        return PosePriors.joined([network, measured_poses(views, units, noise[ROBOT], depth)])

    def _refined(
        self, window: Window, prediction: Prediction, S: Similarity, factors: FloatImage
    ) -> Prediction:
        """Returns the prediction with the graph's poses, and with corrected depth of new views."""
        back = S.inverse()
        poses, depth = prediction.T_window_camera.copy(), prediction.depth.copy()
        for k, view in enumerate(window.views):
            if view.id in self.graph.views:
                poses[k] = back.pose(self.graph.views[view.id].T_local_camera)
        depth[len(depth) - len(factors) :] *= factors
        return replace(prediction, T_window_camera=poses, depth=depth)

    def _factors(self, id: int, depth: FloatImage, unit: float, log_scale: float) -> FloatImage:
        """Returns the factors [h, w] on a new view's depth: its scale, corrected between tracks.

        log_scale: the part of the scale that ``unit`` contains.
        """
        view = self.graph.views[id]
        index, residual, sigma = self.graph.residuals(id)
        tracks = TrackResiduals(
            view.features.pixel[index] * self._shrink(view, depth),
            view.log_depth[index],
            residual,
            sigma,
            self.graph.noise.depth,
        )
        aligned = depth * np.float32(unit * np.exp(-log_scale))
        log = correction(tracks, aligned)
        own = np.float32(view.log_scale - log_scale)
        return np.asarray(np.exp(np.full(depth.shape, own) if log is None else own + log))

    def _shrink(self, view: TrackedView, depth: FloatImage) -> Array:
        height, width = view.features.shape
        return np.array([depth.shape[1] / width, depth.shape[0] / height])
