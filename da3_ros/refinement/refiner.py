"""Refines windows: features, tracks, bundle adjustment, depth correction.

Poses and lengths are those of ``local``. Not thread-safe.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.poses import nearest_rotation
from da3_ros.geometry.similarity import Similarity
from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.refinement.bundle import NETWORK, PosePriors
from da3_ros.refinement.depth_near_tracks import TrackResiduals, error_near_tracks
from da3_ros.refinement.direct_alignment import WIDTH as ALIGNED_WIDTH
from da3_ros.refinement.direct_alignment import AlignmentImage
from da3_ros.refinement.features import FeatureDetector, Features, FeaturesAhead
from da3_ros.refinement.measured_poses import measured_poses, units_per_metre
from da3_ros.refinement.self_calibration import NO_CHANGE, LengthChange, SelfCalibration
from da3_ros.refinement.sliding_graph import FEWEST_TRACKS, GraphBackup, RefinedViews, SlidingGraph
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.refinement.track_history import TrackHistory, history_of
from da3_ros.refinement.tracked_view import MeasuredPose, TrackedView, tracked_view
from da3_ros.types import Array, FloatImage, Image, View, Window, WindowEstimate

# Returns of a view up to which its depth at them is that of tracks alone. The error that a network
# has at more of them is nearly that which it has at all tracks.
FEW_RETURNS = 24
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
    """A refined window, in the window's own frame and unit, as its estimate before."""

    estimate: WindowEstimate
    T_local_window: Similarity
    views: RefinedViews
    # Of views of earlier windows: pose before and after [4, 4] in local, and factor on depth.
    moved: dict[int, tuple[Array, Array, float]]
    factors: FloatImage  # [new, h, w] on the depth of the new views; the estimate has them
    # The same [h, w] as tracks alone say it: of new views with few returns, by index
    factors_by_tracks: dict[int, FloatImage]
    depth_agrees: bool  # whether the depth of the new views is that of their tracks
    depth_means_something: bool  # whether it has at least something to do with it
    change: LengthChange  # of lengths in local; not 1 with a new focal length
    guessed_focal: bool  # whether the network guesses the focal length of a camera
    by_features: bool  # whether there were tracks of features, and not only of edges

    def scaled(self, depth: FloatImage) -> FloatImage:
        """Returns depth [N, h, w] of the window with the factors on its new views."""
        out = depth.copy()
        out[len(out) - len(self.factors) :] *= self.factors
        return out

    def for_returns(self, depth: FloatImage) -> FloatImage:
        """Returns depth [N, h, w] of the window as returns of range sensors are compared with it:
        that of views with few returns has the factors of tracks alone."""
        out = self.scaled(depth)
        for k, factors in self.factors_by_tracks.items():
            out[k] = depth[k] * factors
        return out


@dataclass(frozen=True)
class TrackSupport:
    """The tracks of a window."""

    count: int
    refined: bool  # whether they were enough
    reprojection_px: float  # RMS error, pixels of the camera image; NaN if not refined


NO_TRACKS = TrackSupport(0, False, float("nan"))


def means_something(error: float, usual: float) -> bool:
    """Returns whether depth has at least something to do with that of its tracks.

    error: as of ``SlidingGraph.depth_error``, NaN unknown. usual: deviation of log depth.
    """
    return error < max(NO_DEPTH_ERROR, USUAL * usual)


class WindowRefiner:
    """Refines windows; owns the sliding graph of the current chain."""

    def __init__(
        self, limits: SolverLimits, *, direct: bool = True, gyro: GyroTurns | None = None
    ) -> None:
        """direct: whether views with few tracks are aligned by brightness and edges. gyro: how
        the cameras turn; None: unknown."""
        self.direct, self.gyro = direct, gyro or GyroTurns()
        self.detector = FeatureDetector(limits.features, limits.pixels)
        self.ahead = FeaturesAhead(limits.features, limits.pixels)
        self._detected: tuple[Image, NDArray[np.bool_] | None, Features] | None = None
        self.graph = SlidingGraph(limits.tracks, limits.steps)
        self.calibration = SelfCalibration()
        self.guessed = GuessedFocal()
        self.tracks = NO_TRACKS  # of the newest window
        self._before: tuple[GraphBackup, dict[str, tuple[Array, tuple[int, int]]]] | None = (
            None  # of the window
        )

    def features(self, image: CameraImage) -> Features:
        """Returns the features of an image; those of the newest one are kept, since a doubted view
        is compared before it is refined."""
        newest = self._detected
        if newest is None or newest[0] is not image.image or newest[1] is not image.usable:
            found = self.ahead.take(image.image, image.usable)
            if found is None:
                found = self.detector(image.image, image.usable)
            self._detected = newest = image.image, image.usable, found
        return newest[2]

    def copied(self, image: CameraImage) -> WindowRefiner:
        """Returns a copy in which a window can be tried by features alone: it shares nothing that
        changes. The features of the newest image are kept for the window itself."""
        self.features(image)
        out = copy.copy(self)
        out.direct = False
        out.graph, out.calibration = copy.deepcopy((self.graph, self.calibration))
        return out

    def restart(self) -> None:
        """Begins a new chain."""
        self.graph.restart()
        self.tracks = NO_TRACKS

    def calibrated(self, window: Window, estimate: WindowEstimate) -> WindowEstimate:
        """Returns the estimate with the K that all views of a camera without calibration have:
        by tracks, else the median of the network's newest guesses."""
        estimate = self.guessed.steadied(window, estimate, self.calibration.known)
        return self.calibration.calibrated(window, estimate)

    def forget_calibration(self) -> None:
        """Forgets focal lengths: images have another size now."""
        self.calibration = SelfCalibration()

    def undo(self) -> None:
        """Returns to what was known before the newest window."""
        assert self._before is not None
        graph, self.calibration.known = self._before
        self.graph.restore(graph)
        self.graph.age_metre()
        self.tracks = NO_TRACKS

    def end_window(self, units: Mapping[int, float]) -> None:
        """Forgets what no later window needs; see ``SlidingGraph.end_window``."""
        self.graph.end_window(units)
        self._before = None

    def skip(self) -> None:
        """Notes that a window passes as it is; its new views carry no tracks."""
        self.graph.age_metre()
        self.tracks = NO_TRACKS

    def track_history(self, id: int) -> TrackHistory:
        """Returns the tracks of a view of the newest window. Raises KeyError if it has none."""
        return history_of(id, self.graph.views, self.graph.points)

    def take_up(
        self, window: Window, estimate: WindowEstimate, S: Similarity, known: Mapping[int, Array]
    ) -> None:
        """Takes earlier views of a window that ``S`` places in local into the graph, which has
        none. Their poses stay.

        known: poses [4, 4], by id. Without these views, the unit of the first tracks would be that
        of the network's motion.
        """
        ids = [view.id for view in window.views]
        for k, seen in enumerate(window.views[: len(ids) - window.new]):
            if seen.id in known:
                view = self._view(window, k, CameraImage(seen.image, seen.valid), estimate, S)
                self.graph.add(view, ids[:k])
                view.T_local_camera, view.is_known = known[seen.id], True

    def refine(
        self,
        window: Window,
        images: Sequence[CameraImage],
        estimate: WindowEstimate,
        S: Similarity,
    ) -> RefinedWindow | None:
        """Refines a window that ``S`` places in local; None: too few tracks, the window passes as
        it is.

        images: of the new views.
        """
        self.calibration.take_over(self.graph)
        self._before = self.graph.saved(), dict(self.calibration.known)
        count = len(window.views) - window.new
        ids = [view.id for view in window.views]
        # Rounding of single precision must not multiply from window to window.
        S = Similarity(S.scale, nearest_rotation(S.R), S.t)
        before = {i: (v.T_local_camera, v.log_scale) for i, v in self.graph.views.items()}
        usual, found = self.graph.noise.depth, 0
        for k, image in enumerate(images, count):
            view = self._view(window, k, image, estimate, S)
            if view.own_K:
                self.graph.set_guessed_K(view)
            found += self.graph.add(view, ids[:k])
        priors = self._pose_priors(ids, len(images), estimate, S)
        done = self.graph.refine(ids[count:], priors)
        if done is None:
            self.graph.age_metre()
            self.tracks = TrackSupport(found, False, float("nan"))
            for k, id in enumerate(ids[count:], count):  # as they are published
                self.graph.views[id].T_local_camera = S.pose(estimate.T_window_camera[k])
                self.graph.views[id].log_scale = 0.0
            return None
        change = self.calibration.run(self.graph)
        if change is not None:
            self.graph.forget_metre()
            done = self.graph.refine(ids[count:], priors)
            if done is None:
                raise np.linalg.LinAlgError("the newest view lost its tracks with its new K")
            estimate = self.calibration.calibrated(window, estimate)
        shrunk = images[-1].image.shape[1] / self.graph.views[ids[-1]].features.shape[1]
        self.tracks = TrackSupport(done.tracks, True, shrunk * done.reprojection_px)
        moved = {}
        for i, (T, s) in before.items():
            known = self.graph.views.get(i)
            if known is not None and known.T_local_camera is not T:
                moved[i] = T, known.T_local_camera, float(np.exp(known.log_scale - s))
        scale = float(np.median([self.graph.views[i].log_scale for i in ids[count:]]))
        S = Similarity(S.scale * float(np.exp(scale)), S.R, S.t)
        factors = np.stack([
            self._factors(i, estimate.depth[k], S.scale, scale)
            for k, i in enumerate(ids[count:], count)
        ])  # fmt: skip
        by_tracks = {}
        for k in range(count, len(ids)):
            if has_few_returns(window.views[k]):
                of_view = self._by_tracks(ids[k], estimate.depth[k], S.scale, scale)
                if of_view is not None:
                    by_tracks[k] = of_view
        refined = self._refined(window, estimate, S, factors)
        error = self.graph.depth_error(ids[count:])
        agrees = error < max(MAX_DEPTH_ERROR, USUAL * usual)
        return RefinedWindow(
            refined,
            S,
            done,
            moved,
            factors,
            by_tracks,
            agrees,
            means_something(error, usual),
            change or NO_CHANGE,
            any(self._is_guessed(i) for i in done.ids),
            found >= FEWEST_TRACKS,
        )

    def _is_guessed(self, id: int) -> bool:
        view = self.graph.views[id]
        return view.own_K and view.camera not in self.calibration.known

    def _view(
        self, window: Window, k: int, image: CameraImage, estimate: WindowEstimate, S: Similarity
    ) -> TrackedView:
        view, depth = window.views[k], estimate.depth[k]
        T = S.pose(estimate.T_window_camera[k])
        T[:3, :3] = nearest_rotation(T[:3, :3])
        measured = MeasuredPose(
            view.T_prior_camera, view.prior_variance, view.T_rig_camera, view.frameset,
            self.gyro.pose(view.id),
        )  # fmt: skip
        small = None
        if self.direct and image.image.shape[1] >= ALIGNED_WIDTH:  # else edges are too coarse
            small = AlignmentImage.of(image.image, image.usable, np.float32(S.scale) * depth)
        features, self._detected = self.features(image), None  # no image is kept for longer
        return tracked_view(
            view.id, view.camera, features,
            estimate.K[k] if view.K is None else view.K, T, np.float32(S.scale) * depth,
            own_K=view.K is None, measured=measured,
            image=small,
        )  # fmt: skip

    def _pose_priors(
        self, ids: list[int], new: int, estimate: WindowEstimate, S: Similarity
    ) -> PosePriors:
        """Returns the motions from view to view, in the order of views' ids: by the network, and
        by robot, rig and gyro if they know any.

        ids: of the window's views, the last ``new`` of which were not refined before.
        """
        order = np.argsort(ids)
        T = np.array([S.pose(estimate.T_window_camera[k]) for k in order])
        pairs = len(ids) - 1
        step = np.linalg.inv(T[:-1]) @ T[1:] if pairs else np.zeros((0, 4, 4))
        finite = estimate.depth[np.isfinite(estimate.depth)]
        depth = S.scale * float(np.median(finite)) if len(finite) else 1.0
        noise = self.graph.noise.poses
        rotation, position = noise[NETWORK].rotation, noise[NETWORK].position * depth
        network = PosePriors.isotropic(
            np.array(ids)[order[:-1]], np.array(ids)[order[1:]], step,
            np.full(pairs, rotation), np.full(pairs, position), NETWORK,
        )  # fmt: skip
        views = [self.graph.views[i] for i in ids if i in self.graph.views]
        older = [v for i, v in self.graph.views.items() if i not in ids[len(ids) - new :]]
        metre = self.graph.metre
        known = math.isfinite(metre.sigma)
        units = math.exp(metre.log) if known else units_per_metre(older[-RECENT:])
        return PosePriors.joined([network, measured_poses(views, units, noise, depth)])

    def _refined(
        self, window: Window, estimate: WindowEstimate, S: Similarity, factors: FloatImage
    ) -> WindowEstimate:
        """Returns the estimate with the graph's poses, and with corrected depth of new views."""
        back = S.inverse()
        poses, depth = estimate.T_window_camera.copy(), estimate.depth.copy()
        for k, view in enumerate(window.views):
            if view.id in self.graph.views:
                poses[k] = back.pose(self.graph.views[view.id].T_local_camera)
        depth[len(depth) - len(factors) :] *= factors
        return replace(estimate, T_window_camera=poses, depth=depth)

    def _factors(self, id: int, depth: FloatImage, unit: float, log_scale: float) -> FloatImage:
        """Returns the factors [h, w] on a new view's depth: its scale, corrected between tracks.

        log_scale: the part of the scale that ``unit`` contains.
        """
        tracks, aligned = self._residuals(id, depth, unit, log_scale)
        log = correction(tracks, aligned)
        own = np.float32(self.graph.views[id].log_scale - log_scale)
        return np.asarray(np.exp(np.full(depth.shape, own) if log is None else own + log))

    def _by_tracks(
        self, id: int, depth: FloatImage, unit: float, log_scale: float
    ) -> FloatImage | None:
        """Returns the same as tracks alone say it; None of too few tracks."""
        log = error_near_tracks(*self._residuals(id, depth, unit, log_scale))
        own = np.float32(self.graph.views[id].log_scale - log_scale)
        return None if log is None else np.asarray(np.exp(own + log))

    def _residuals(
        self, id: int, depth: FloatImage, unit: float, log_scale: float
    ) -> tuple[TrackResiduals, FloatImage]:
        """Returns the tracks in a new view, and its depth in the unit of theirs."""
        view = self.graph.views[id]
        index, residual, sigma = self.graph.residuals(id)
        tracks = TrackResiduals(
            view.features.pixel[index] * self._shrink(view, depth),
            view.log_depth[index],
            residual,
            sigma,
            self.graph.noise.depth,
        )
        return tracks, depth * np.float32(unit * np.exp(-log_scale))

    def _shrink(self, view: TrackedView, depth: FloatImage) -> Array:
        height, width = view.features.shape
        return np.array([depth.shape[1] / width, depth.shape[0] / height])


def has_few_returns(view: View) -> bool:
    """Whether range sensors have hit so few places that an error of the network there counts."""
    if view.returns is None:
        return False
    return 0 < len(view.returns.points) + len(view.returns.cones) <= FEW_RETURNS


# A smooth correction of a view's depth between its tracks.
#
# The residuals of tracks (logarithm of a track's depth less that of the predicted one) are
# averaged over neighbours in the image and in depth, so that nothing is averaged across depth
# edges. Tracks decide by cross-validation whether, and by how much, the correction lowers the
# error of tracks that it was not made from.

WIDTH = 0.08  # of the kernel, standard deviation over the image's width
LOG_DEPTH = 0.1  # of the kernel, standard deviation of the logarithm of depth
SUPPORT = 2.0  # shrinks the correction where fewer typical tracks than this are near
FOLDS = 4
FEWEST = 24  # tracks
OUTLIER = 3.0  # robust standard deviations from the neighbours' mean
MIN_GAIN = 0.05  # share by which the error of held-out tracks must fall
MAX_LOG = 0.4  # largest correction
CELLS = 2.0  # cells of the grid per standard deviation of the kernel


def correction(tracks: TrackResiduals, depth: FloatImage) -> FloatImage | None:
    """Returns the logarithm [h, w] to add to that of ``depth`` [h, w], 0 where depth is unknown.

    None if tracks do not support a correction.
    """
    known = np.isfinite(tracks.residual) & np.isfinite(tracks.log_depth)
    if known.sum() < FEWEST:
        return None
    at = _coordinates(tracks, depth.shape)[known]
    residual = tracks.residual[known]
    # A track that knows its depth no better than the network does adds little.
    weight = 1 / (1 + (tracks.sigma[known] / tracks.depth_sigma) ** 2)
    near = _kernel(at, at)
    np.fill_diagonal(near, 0.0)
    good = _inliers(near, residual, weight)
    if good.sum() < FEWEST:
        return None
    at, residual, weight, near = at[good], residual[good], weight[good], near[np.ix_(good, good)]
    common = float(weight @ residual) / (float(weight.sum()) + SUPPORT)
    residual = residual - common
    share = _supported_share(near, residual, weight)
    if share <= 0:
        return np.full(depth.shape, common, np.float32)
    return _on_image(at, residual, weight, share, depth) + np.float32(common)


def _coordinates(tracks: TrackResiduals, shape: tuple[int, ...]) -> Array:
    """Returns coordinates [M, 3] in standard deviations of the kernel."""
    width = WIDTH * max(shape)
    return np.column_stack((tracks.pixel / width, tracks.log_depth / LOG_DEPTH))


def _kernel(a: Array, b: Array) -> Array:
    square = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0)))


def _mean(near: Array, residual: Array, weight: Array) -> Array:
    """Returns the shrunk mean residuals [R] for kernel values [R, M]."""
    return np.asarray(near @ (weight * residual) / (near @ weight + SUPPORT))


def _inliers(near: Array, residual: Array, weight: Array) -> Array:
    """Returns the tracks [M] whose residual is like that of their neighbours."""
    limit = OUTLIER * 1.4826 * np.median(np.abs(residual - np.median(residual)))
    clipped = np.clip(residual, -limit, limit)
    off = np.abs(residual - _mean(near, clipped, weight))
    return np.asarray(off <= OUTLIER * 1.4826 * np.median(off) + 1e-9)


def _supported_share(near: Array, residual: Array, weight: Array) -> float:
    """Returns the factor 0..1 at which the correction fits held-out tracks best; 0: none."""
    fold = np.arange(len(residual)) % FOLDS
    predicted = np.zeros(len(residual))
    for k in range(FOLDS):
        out, rest = fold == k, fold != k
        predicted[out] = _mean(near[np.ix_(out, rest)], residual[rest], weight[rest])
    power = float(weight @ predicted**2)
    if power <= 0:
        return 0.0
    share = min(max(float(weight @ (predicted * residual)) / power, 0.0), 1.0)
    before, after = np.abs(residual), np.abs(residual - share * predicted)
    return share if float(weight @ after) < (1 - MIN_GAIN) * float(weight @ before) else 0.0


def _on_image(
    at: Array, residual: Array, weight: Array, share: float, depth: FloatImage
) -> FloatImage:
    """Returns the correction on the image, by interpolation in a grid of column, row and log
    depth."""
    height, width = depth.shape
    known = np.isfinite(depth) & (depth > 0)
    log_depth = np.log(np.where(known, depth, 1.0), dtype=np.float32) / np.float32(LOG_DEPTH)
    step = 1 / CELLS
    edge = WIDTH * max(depth.shape)
    low = at[:, 2].min() - 3.0
    columns = np.arange(0, width / edge + step, step)
    rows = np.arange(0, height / edge + step, step)
    layers = np.arange(low, at[:, 2].max() + 3.0 + step, step)
    kx, ky, kd = (
        _kernel(g[:, None], at[:, i : i + 1]) for i, g in enumerate((columns, rows, layers))
    )
    both = (ky[:, None] * kx[None]).reshape(-1, len(at))
    total = both @ (weight[:, None] * kd.T)
    mean = both @ ((weight * residual)[:, None] * kd.T) / (total + SUPPORT)
    grid = mean.reshape(len(rows), len(columns), len(layers))
    row, column = ((np.arange(n) + 0.5)[:, None] / edge / step for n in (height, width))
    out = interpolated(grid, row, column.T, (log_depth - np.float32(low)) / np.float32(step))
    out = np.clip(np.float32(share) * out, -MAX_LOG, MAX_LOG)
    return np.where(known, out, np.float32(0.0))


def interpolated(grid: Array, row: Array, column: Array, layer: FloatImage) -> FloatImage:
    """Returns the values [h, w] of a grid [R, C, L] between its points, in single precision.

    row [h, 1], column [1, w] and layer [h, w]: positions in steps of the grid; those outside count
    as at its border. Four times as fast as SciPy's ``map_coordinates``.
    """
    index: NDArray[np.int32] = np.zeros((1, 1), np.int32)
    parts: list[FloatImage] = []
    for size, at in zip(grid.shape, (row, column, layer), strict=True):
        at = np.clip(at.astype(np.float32), 0, size - 1)
        first = np.minimum(at.astype(np.int32), max(size - 2, 0))
        index = index * np.int32(size) + first
        parts.append(at - first.astype(np.float32))
    values = np.ascontiguousarray(grid, np.float32).ravel()

    def between(axis: int, at: NDArray[np.int32]) -> FloatImage:
        if axis == len(parts):
            return values.take(at, mode="clip")
        stride = np.int32(np.prod(grid.shape[axis + 1 :]))
        a, b = between(axis + 1, at), between(axis + 1, at + stride)
        return np.asarray(a + parts[axis] * (b - a))

    return between(0, index)


# The network's own guesses of the focal lengths of cameras without calibration, steadied.

KEPT = 100  # newest guesses of a camera: of a minute, as what it sees changes


class GuessedFocal:
    """Medians of the newest guesses, so that all views of a graph have nearly one focal length.

    Pixels of the camera are square: networks guess fx and fy apart, and may be 2.5 times off.
    """

    def __init__(self) -> None:
        # By camera and image size: focal lengths (geometric mean of fx and fy), pixels of the
        # network's image.
        self._guesses: dict[tuple[str, int, int], deque[float]] = {}
        # Its pixels' width over height, where the camera's are square.
        self._stretch: dict[tuple[str, int, int], float] = {}

    def note_size(self, view: View, full: tuple[int, ...]) -> None:
        """Notes the shape (H, W, ...) of the camera image that a view was made of."""
        height, width = view.image.shape[:2]
        self._stretch[view.camera, height, width] = (width / full[1]) / (height / full[0])

    def steadied(
        self, window: Window, estimate: WindowEstimate, known: Container[str]
    ) -> WindowEstimate:
        """Returns the estimate with steadied focal lengths of views without calibration.

        known: cameras whose focal length is not a guess.
        """
        guessed = [view.K is None and view.camera not in known for view in window.views]
        if not any(guessed):
            return estimate
        K, count = estimate.K.copy(), len(window.views) - window.new
        for k, view in enumerate(window.views):
            if guessed[k]:
                key = view.camera, *view.image.shape[:2]
                kept = self._guesses.setdefault(key, deque(maxlen=KEPT))
                square = float(K[k, 0, 0] * K[k, 1, 1])
                if k >= count and 0 < square < math.inf:  # NaN: an impossible field of view
                    kept.append(math.sqrt(square))
                if kept:
                    focal, stretch = float(np.median(kept)), self._stretch.get(key, 1.0)
                    K[k, 0, 0], K[k, 1, 1] = focal * stretch**0.5, focal / stretch**0.5
        return replace(estimate, K=K)
