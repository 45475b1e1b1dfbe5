"""Placing a window by the frames it shares, against exact similarities."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.alignment import WindowAligner, block_medians, half_sample_mode, robust_mean
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.map_table import OverlapView
from da3_ros.pipeline.window_odometry import REFUSALS
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Prediction, Scale, View, Window, WindowReport

SIZE = (84, 70)
FULL = Noise(0.01, 0.01, 0.003, 0.1, 0.005)
REPORT = WindowReport(0, 0, (0,), 1, True, 0.0, 1.0, 1.0)


WALKS = ["handheld", "still", "loop", "straight", "spot"]


@pytest.fixture(scope="module", params=long_after(1, WALKS))
def frames(request):
    camera = SyntheticCamera(seed=3, size=SIZE, walk=request.param, frames=40, supersample=False)
    return [camera[i] for i in (0, 12, 24, 36)]


def window_of(frames):
    return Window(0, tuple(View(i, f.stamp_ns, f.image, f.K) for i, f in enumerate(frames)), 1)


def predicted(frames, noise=None, seed=0) -> Prediction:
    return TruthSession(frames, seed=seed, noise=noise).infer(window_of(frames))


def overlap_views_of(prediction, frames, T_local_window=None):
    """Overlap views of the frames with depth of ``prediction``, placed by ``T_local_window``."""
    at = T_local_window or Similarity(1.0, np.eye(3), np.zeros(3))
    return [
        OverlapView.of(
            view,
            LocalFrame(
                view.id, view.stamp_ns, "", "", view.image,
                prediction.depth[i] * np.float32(at.scale), prediction.confidence[i], view.K,
                at.pose(prediction.T_window_camera[i]), Scale(), REPORT,
            ),
        )
        for i, view in enumerate(window_of(frames).views)
    ]  # fmt: skip


def known(frames, noise=None, seed=100):
    """Overlap views in the room's own frame and metres, with noise."""
    prediction = predicted(frames, noise, seed)
    return overlap_views_of(prediction, frames, true_place(frames, noise, seed))


def true_place(frames, noise, seed) -> Similarity:
    """The similarity that a session of this seed disturbs the room by, inverted."""
    exact = predicted(frames, None, seed)
    scale = float(np.nanmedian(frames[0].depth / exact.depth[0]))
    return Similarity.between(frames[0].T_room_camera, exact.T_window_camera[0], scale)


def off(fit, truth, about):
    """Errors [7] of a fit: log scale, rotation (rad), place of ``about`` (metres)."""
    turn = Rotation.from_matrix(fit.R @ truth.R.T).as_rotvec()
    return np.array(
        [np.log(fit.scale / truth.scale), *turn, *(fit.points(about) - truth.points(about))]
    )


@pytest.mark.parametrize("count", [1, 2, 4])
def test_exact_windows_are_placed_exactly_whatever_the_motion(frames, count):
    some = frames[:count]
    found = WindowAligner().align(known(some), predicted(some), range(count))
    assert found.accepted
    assert found.inliers == 1
    error = off(found.T_local_window, true_place(some, None, 0), found.pivot)
    assert np.abs(error).max() < 2e-5


@pytest.mark.parametrize(
    ("noise", "scale", "degrees", "metres"),
    [
        (Noise(independent=0.01), 0.001, 0.001, 0.002),
        (FULL, 0.02, 0.3, 0.05),
        (dataclasses.replace(FULL, outliers=0.4), 0.02, 0.3, 0.05),
        (dataclasses.replace(FULL, lies=0.1), 0.02, 0.3, 0.05),
    ],
)
def test_noise_outliers_and_lies_move_a_window_little(frames, noise, scale, degrees, metres):
    for seed in range(5):
        found = WindowAligner().align(
            known(frames, FULL), predicted(frames, noise, seed), range(4)
        )
        if noise.independent and not noise.smooth:
            found = WindowAligner().align(known(frames), predicted(frames, noise, seed), range(4))
        assert found.accepted
        error = np.abs(off(found.T_local_window, true_place(frames, None, seed), found.pivot))
        assert error[0] < scale
        assert np.degrees(error[1:4]).max() < degrees
        assert error[4:].max() < metres


def test_a_known_scale_is_kept_and_leaves_a_rigid_fit(frames):
    true = true_place(frames, None, 0)
    found = WindowAligner().align(
        known(frames, FULL), predicted(frames, FULL), range(4), (true.scale, 0)
    )
    assert found.T_local_window.scale == pytest.approx(true.scale, rel=1e-5)


def test_frames_without_depth_still_give_their_poses(frames):
    prediction = predicted(frames)
    depth = prediction.depth.copy()
    depth[1:] = np.nan
    blind = dataclasses.replace(prediction, depth=depth)
    found = WindowAligner().align(known(frames), blind, range(4))
    assert np.abs(off(found.T_local_window, true_place(frames, None, 0), found.pivot)).max() < 1e-4


def test_no_depth_in_common_is_no_fit(frames):
    prediction = predicted(frames)
    nothing = dataclasses.replace(prediction, depth=np.full_like(prediction.depth, np.nan))
    assert WindowAligner().align(known(frames), nothing, range(4)) is None


@pytest.mark.parametrize("kind", ["depth", "poses", "one frame's scale"])
def test_windows_that_contradict_the_scene_are_refused(frames, kind):
    prediction = predicted(frames)
    rng = np.random.default_rng(0)
    depth, poses = prediction.depth.copy(), prediction.T_window_camera.copy()
    if kind == "depth":
        depth *= np.exp(rng.uniform(-1.5, 1.5, depth.shape)).astype(np.float32)
    elif kind == "poses":
        poses[:, :3, :3] = Rotation.random(4, random_state=1).as_matrix()
        poses[:, :3, 3] *= 3
    else:
        depth[2] *= 1.8
    broken = dataclasses.replace(prediction, depth=depth, T_window_camera=poses)
    found = WindowAligner().align(known(frames), broken, range(4))
    assert not found.accepted
    assert found.reason


def test_one_frame_with_a_wrong_pose_does_not_move_the_others(frames):
    aligner, overlap_views = WindowAligner(), known(frames, FULL)
    for seed in range(10):
        aligner.align(overlap_views, predicted(frames, FULL, seed), range(4))
    prediction = predicted(frames, FULL, 20)
    poses = prediction.T_window_camera.copy()
    poses[2, :3, :3] = poses[2, :3, :3] @ Rotation.from_rotvec([0, 0.1, 0]).as_matrix()
    found = aligner.align(
        overlap_views, dataclasses.replace(prediction, T_window_camera=poses), range(4)
    )
    error = off(found.T_local_window, true_place(frames, None, 20), found.pivot)
    assert np.degrees(np.abs(error[1:4])).max() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise",
    long_after(1, [FULL, Noise(0.02, 0.02, 0.01, 0.5, 0.02), Noise(0.01, 0.03, 0.0, 0.02, 0.001)]),
    ids=["stated", "large", "other mixture"],
)
def test_covariance_is_consistent_under_correlated_noise(frames, noise):
    """NEES over degrees of freedom is one on average; 0.5 to 2 is asked for."""
    aligner, nees = WindowAligner(), []
    for seed in range(60):
        found = aligner.align(
            known(frames, noise, 1000 + seed), predicted(frames, noise, seed), range(4)
        )
        error = off(found.T_local_window, true_place(frames, None, seed), found.pivot)
        nees.append(error @ np.linalg.solve(found.covariance, error) / 7)
    assert 0.5 < np.mean(nees[20:]) < 2


def test_densest_part_withstands_outliers_of_one_sign():
    rng = np.random.default_rng(0)
    x = np.concatenate((rng.normal(0, 0.01, 1000), rng.uniform(0, 2, 1500)))
    assert abs(half_sample_mode(x)) < 0.02
    assert abs(robust_mean(x, np.ones(len(x)))) < 0.003


def test_pixels_that_are_sure_of_nonsense_do_not_decide():
    rng = np.random.default_rng(0)
    x = np.concatenate((rng.normal(0, 0.01, 900), rng.normal(0.3, 0.01, 100)))
    sure = np.concatenate((np.full(900, 2.0), np.full(100, 1000.0)))
    assert abs(robust_mean(x, sure)) < 0.002


# The gate ----------------------------------------------------------------------------------------

HONEST = {
    "exact": Noise(),
    "stated": FULL,
    "large": Noise(0.02, 0.04, 0.03, 1.0, 0.03),
    "per frame": Noise(0.01, 0.01, 0.08, 0.5, 0.02),
    "smooth": Noise(0.01, 0.08, 0.01, 0.5, 0.02),
    "turns": Noise(0.01, 0.02, 0.01, 3.0, 0.02),
    "outliers": dataclasses.replace(FULL, outliers=0.4),
    "lies": dataclasses.replace(FULL, lies=0.1),
}


def in_unit(prediction, unit):
    """The same in another unit of the network."""
    poses = prediction.T_window_camera.copy()
    poses[:, :3, 3] *= unit
    depth = prediction.depth * np.float32(unit)
    return dataclasses.replace(prediction, depth=depth, T_window_camera=poses)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HONEST)
def test_honest_windows_pass_whatever_their_unit(frames, kind):
    aligner, noise, rng = WindowAligner(), HONEST[kind], np.random.default_rng(0)
    for seed in range(12):
        window = predicted(frames, noise, seed)
        window = in_unit(window, float(np.exp(rng.uniform(np.log(0.1), np.log(10)))))
        found = aligner.align(known(frames, noise, 100 + seed), window, range(4))
        assert found.accepted, found.reason


def test_units_a_hundredfold_apart_follow_each_other(frames):
    aligner = WindowAligner()
    for unit in (0.1, 10.0, 0.1):
        assert aligner.align(known(frames), in_unit(predicted(frames), unit), range(4)).accepted


def broken(prediction, kind, factor, other):
    """A window of which one half is wrong."""
    depth, poses = prediction.depth.copy(), prediction.T_window_camera.copy()
    half = depth.shape[2] // 2
    if kind == "left half":
        depth[:, :, :half] *= factor
    elif kind == "upper half":
        depth[:, : depth.shape[1] // 2] *= factor
    elif kind == "turned views":
        turn = Rotation.from_rotvec([0, np.log(factor), 0]).as_matrix()
        poses[2:, :3, :3] = poses[2:, :3, :3] @ turn
    elif kind == "moved views":
        poses[2:, :3, 3] += np.log(factor) * np.nanmedian(depth)
    else:  # two scenes glued: the images' right halves and the later views are of another room
        depth[2:] = other.depth[2:] * np.nanmedian(depth) / np.nanmedian(other.depth)
        depth[:, :, half:] = depth[:, :, half:][::-1, ::-1]
        poses[2:] = other.T_window_camera[2:]
    return dataclasses.replace(prediction, depth=depth, T_window_camera=poses)


@pytest.mark.slow
@pytest.mark.parametrize("factor", long_after(1, [0.7, 1.4]))
@pytest.mark.parametrize(
    "kind", long_after(3, ["left half", "turned views", "glued", "upper half", "moved views"])
)
def test_windows_with_a_broken_half_are_refused(frames, kind, factor):
    """Half of what is shared agrees very well: only what is left over shows it."""
    aligner = WindowAligner()
    for seed in range(8):
        aligner.align(known(frames, FULL, 100 + seed), predicted(frames, FULL, seed), range(4))
    other = predicted(frames[::-1], FULL, 40)
    for seed in range(8, 12):
        window = broken(predicted(frames, FULL, seed), kind, factor, other)
        found = aligner.align(known(frames, FULL, 100 + seed), window, range(4))
        assert not found.accepted
        assert found.reason
    fine = aligner.align(known(frames, FULL), predicted(frames, FULL, 30), range(4))
    assert fine.accepted


@pytest.mark.slow
def test_a_network_with_large_noise_is_not_refused_for_good(frames):
    """What is usual is learned; what is broken on top of it is still refused."""
    wild, aligner, passed = Noise(0.05, 0.15, 0.05, 3.0, 0.05), WindowAligner(), []
    for seed in range(40):
        found = aligner.align(
            known(frames, wild, 100 + seed), predicted(frames, wild, seed), range(4)
        )
        passed.append(found.accepted)
    assert np.mean(passed[10:]) > 0.9
    window = broken(predicted(frames, wild, 50), "left half", 3.0, None)
    assert not aligner.align(known(frames, wild, 150), window, range(4)).accepted


ROWS, COLUMNS = 56, 70
LENS = np.array([[60.0, 0, 35], [0, 60.0, 28], [0, 0, 1]])
WALL = np.full((ROWS, COLUMNS), 1.0)
SLOPE = WALL * np.linspace(0.9, 1.1, ROWS)[:, None]
ROUGH = Noise(0.01, 0.02, 0.01, 0.5, 0.02)


def looks(*views):
    """Frames of one scene: (depth, place, yaw in degrees) of each."""
    frames = []
    for n, (depth, place, yaw) in enumerate(views):
        T = np.eye(4)
        T[:3, :3] = Rotation.from_euler("y", yaw, degrees=True).as_matrix()
        T[:3, 3] = place
        frames.append(Truth(n, depth.astype(np.float32), T, LENS))
    return frames


def window_of_truth(frames):
    black = np.zeros((ROWS, COLUMNS, 3), np.uint8)
    return Window(0, tuple(View(i, f.stamp_ns, black, LENS) for i, f in enumerate(frames)), 1)


def joined(aligner, frames, noise, seed, change=None):
    """A window of the truth, joined to the scene's views of another one."""
    fits = []
    for number in (1000 + seed, 5000 + seed):
        session = TruthSession(frames, seed=number, noise=noise)
        fits.append((session.infer(window_of_truth(frames)), session))
    (scene, session), (window, _) = fits
    back = np.linalg.inv(session.T_window_room)
    overlap_views = []
    for i, view in enumerate(window_of_truth(frames).views):
        pixels = np.arange(ROWS * COLUMNS)
        depth = scene.depth[i].reshape(-1).astype(float) / session.unit
        T = scene.T_window_camera[i].copy()
        T[:3, 3] /= session.unit
        sure = scene.confidence[i].reshape(-1)
        overlap_views.append(OverlapView(view, LENS, back @ T, pixels, depth, sure))
    return aligner.align(overlap_views, change(window) if change else window, range(len(frames)))


def mixed(near, far, each):
    """``each`` views of something near, as many of something far, in turns."""
    views = []
    for k in range(each):
        views += [(near * SLOPE, (0, 0, 0.1 * k), 0), (far * SLOPE, (0.2, 0, 0.1 * k), 90)]
    return looks(*views)


MIXED = {
    "0.5 and 20 m, two views": (mixed(0.5, 20, 1), ROUGH),
    "0.5 and 20 m, four views": (mixed(0.5, 20, 2), ROUGH),
    "0.3 and 8 m, two views": (mixed(0.3, 8, 1), FULL),
    "0.3 and 8 m, four views": (mixed(0.3, 8, 2), FULL),
    "one depth, two views": (looks((SLOPE, (0, 0, 0), 0), (SLOPE, (0.1, 0, 0), 0)), ROUGH),
    "a wall, two views": (looks((WALL, (0, 0, 0), 0), (WALL, (0.1, 0, 0), 0)), ROUGH),
    "a wall, four views": (looks(*((WALL, (0.1 * k, 0, 0), 0) for k in range(4))), ROUGH),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", long_after(2, MIXED))
def test_near_views_are_no_worse_for_what_is_far(kind):
    """A place is as sure as the whole scene is large, however near one camera looks."""
    frames, noise = MIXED[kind]
    aligner, refused = WindowAligner(), []
    for seed in range(40):
        found = joined(aligner, frames, noise, seed)
        refused += [] if found.accepted else [found.reason]
    assert len(refused) <= 2, refused


def moved_views(indices, by, blind=True):
    """Other places of some views, by so many depths, whose depth may be unknown."""

    def change(window):
        depth, poses = window.depth.copy(), window.T_window_camera.copy()
        signs = np.where(np.arange(len(indices)) % 2, -1.0, 1.0)
        poses[list(indices), 0, 3] += by * np.nanmedian(depth) * signs
        if blind:
            depth[list(indices)] = np.nan
        return dataclasses.replace(window, depth=depth, T_window_camera=poses)

    return change


WALKED = looks(*((SLOPE, (0.1 * k, 0, 0), 0) for k in range(4)))


def test_cameras_that_moved_are_refused_without_any_depth():
    """Of two views only the poses are known, and these are wrong; no block shows it."""
    aligner = WindowAligner()
    for seed in range(8):
        joined(aligner, WALKED, FULL, seed)
    found = joined(aligner, WALKED, FULL, 8, moved_views((1, 3), 0.6))
    assert not found.accepted
    assert "shared cameras" in found.reason


@pytest.mark.parametrize("blind", [True, False])
def test_one_camera_that_moved_does_not_refuse_the_others(blind):
    aligner = WindowAligner()
    for seed in range(8):
        joined(aligner, WALKED, FULL, seed)
    found = joined(aligner, WALKED, FULL, 8, moved_views((3,), 0.6, blind))
    assert found.accepted, found.reason


@pytest.mark.slow
def test_what_was_learned_is_doubted_before_a_chain_ends():
    """A network that becomes worse is unusual four times, and then it is what is usual."""
    aligner, noise = WindowAligner(), Noise(0.01, 0.02, 0.01, 5.0, 0.02)
    for seed in range(60):
        assert joined(aligner, WALKED, Noise(0.005), seed).accepted
    assert aligner.tolerances.block_tolerance < 0.13
    passed = [joined(aligner, WALKED, noise, 100 + seed).accepted for seed in range(30)]
    assert not all(passed[:4])
    longest = max(len(run) for run in "".join("fp"[p] for p in passed).split("p"))
    assert longest < REFUSALS


def test_a_unit_that_jumps_ten_thousandfold_is_refused(frames):
    aligner = WindowAligner()
    assert aligner.align(known(frames), predicted(frames), range(4)).accepted
    found = aligner.align(known(frames), in_unit(predicted(frames), 1e4), range(4))
    assert not found.accepted
    assert "the scale jumps" in found.reason


def test_medians_of_blocks_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=(16, 24))
    found = block_medians(np.arange(values.size), values.shape, values.ravel())
    blocks = values.reshape(4, 4, 4, 6).swapaxes(1, 2).reshape(16, -1)
    np.testing.assert_array_equal(found, np.sort(blocks, axis=1)[:, 12])
