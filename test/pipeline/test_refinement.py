"""Windows with noisy poses and depth, refined by the features of rendered images."""

import dataclasses
import itertools

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after
from support.pipelines import LostSession, to_frame

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.mapping.metric_scale import MapScale
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_odometry import WindowOdometry
from da3_ros.pipeline.window_refinement import WindowRefinement
from da3_ros.refinement import self_calibration, solver_limits
from da3_ros.refinement.features import FeaturesAhead
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import ScaleMeasurement

NOISE = Noise(smooth=0.05, per_frame=0.02, rotation_deg=0.3, translation=0.01)
SIZE, FRAMES = (224, 168), 14


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(42, SIZE, walk="strafe", frames=FRAMES, rate_hz=3)
    return camera, list(camera)


def run(walk, session=None, frames=None, live=False, **values):
    camera, true = walk
    settings = {
        "process_res": max(SIZE), "window.size": 5, "map.voxel_m": 0.02,
        "dense.enabled": False, "map.remove_movers": False, **values,
    }  # fmt: skip
    pipeline = Pipeline(
        config_from_parameters(settings), session or TruthSession(true, noise=NOISE)
    )
    if live:
        pipeline.refinement.skip_when_late()
    results = []
    for f in frames or true:
        results += pipeline.push(to_frame(camera, f))
    return pipeline, results


def odom_error(walk, results):
    poses = np.array([r.T_odom_map @ r.T_map_camera for r in results])
    return trajectory_error(poses, np.array([f.T_room_camera for f in walk[1]]))


@pytest.fixture(scope="module")
def refined(walk):
    return run(walk)


@pytest.fixture(scope="module")
def unrefined(walk):
    return run(walk, **{"refinement.enabled": False})


def test_tracks_take_the_noise_out_of_poses(walk, refined, unrefined):
    assert odom_error(walk, refined[1]) < odom_error(walk, unrefined[1]) / 3


def test_every_window_but_the_first_is_refined(refined):
    pipeline, results = refined
    assert [r.window.refined for r in results] == [False] + [True] * (FRAMES - 1)
    assert pipeline.counters["windows_refined"] == FRAMES - 1
    assert all(r.window.tracks >= 30 for r in results[1:])
    assert all(0 < r.window.reprojection_px < 2 for r in results[1:])


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_features_that_are_detected_ahead_change_nothing(walk, refined, monkeypatch):
    """Those of each window but the first two, and of frames that begin before they are pushed."""
    ready, taken = [], []
    plain = FeaturesAhead.take

    def take(self, image, usable):
        found = plain(self, image, usable)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(FeaturesAhead, "take", take)
    camera, true = walk
    settings = config_from_parameters({
        "process_res": max(SIZE), "window.size": 5, "map.voxel_m": 0.02,
        "dense.enabled": False, "map.remove_movers": False,
    })  # fmt: skip
    pipeline, results = Pipeline(settings, TruthSession(true, noise=NOISE)), []
    for frame in (to_frame(camera, f) for f in true):
        ready.append(pipeline.builder.prepare(frame))
    for this, later in zip(ready, [*ready[1:], None], strict=True):
        if later is not None:
            pipeline.begin(later)
        for *_, features in pipeline.refinement.refiner.ahead._begun:
            features.result()
        results += pipeline.push(this)
    assert len(taken) == FRAMES
    assert sum(taken) >= FRAMES - 2  # whether a window is refined is known from the first one on
    for one, other in zip(refined[1], results, strict=True):
        assert np.array_equal(one.T_map_camera, other.T_map_camera)
        assert np.array_equal(one.depth_m, other.depth_m, equal_nan=True)


def test_nothing_is_detected_ahead_without_refinement(walk, monkeypatch):
    monkeypatch.setattr(FeaturesAhead, "begin", None)
    run(walk, frames=walk[1][:4], **{"refinement.enabled": False})


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_the_same_frames_give_the_same_results(walk, refined):
    for one, other in zip(refined[1], run(walk)[1], strict=True):
        assert np.array_equal(one.T_map_camera, other.T_map_camera)
        assert np.array_equal(one.depth_m, other.depth_m, equal_nan=True)


def test_bare_images_pass_as_without(walk, unrefined):
    frames = [dataclasses.replace(f, image=np.full_like(f.image, 90)) for f in walk[1]]
    pipeline, results = run(walk, frames=frames, hold_when_blind=False)
    for one, other in zip(results, unrefined[1], strict=True):
        assert np.array_equal(one.T_map_camera, other.T_map_camera)
        assert np.array_equal(one.depth_m, other.depth_m, equal_nan=True)
    assert pipeline.counters["windows_few_tracks"] == FRAMES - 1
    assert results[-1].window.tracks == 0


def test_frames_that_repeat_exactly_stand_still(walk):
    still = [dataclasses.replace(f, image=walk[1][0].image) for f in walk[1]]
    truth = [
        dataclasses.replace(f, depth=walk[1][0].depth, T_room_camera=walk[1][0].T_room_camera)
        for f in walk[1]
    ]
    _, results = run(walk, TruthSession(truth, noise=NOISE), still)
    positions = np.array([r.T_map_camera[:3, 3] for r in results])
    depth = float(np.nanmedian(results[0].depth_m))
    assert np.abs(positions - positions[0]).max() < 0.01 * depth


@pytest.mark.long
def test_windows_without_time_for_tracks_do_not_count_as_windows_without(walk):
    """A refused window moves nothing where most windows have tracks: those that were looked at."""
    pipeline, _ = run(walk, live=True, **{"refinement.max_ms": 0.01})
    assert pipeline.counters["refinement_skipped"] > FRAMES / 2
    looked_at = FRAMES - pipeline.counters["refinement_skipped"]
    assert len(pipeline._steps.blind.sight._refined) == looked_at


def test_a_broken_refinement_costs_no_frame(walk, monkeypatch, caplog):
    from da3_ros.refinement import refiner

    def broken(*_):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(refiner.SlidingGraph, "refine", broken)
    pipeline, results = run(walk)
    assert len(results) == FRAMES
    assert pipeline.counters["refinement_failed"] == FRAMES
    assert "window 3 is not refined: LinAlgError" in caplog.text


def test_odometry_never_jumps_when_older_poses_are_refined(refined):
    """The step between two published poses is the step of their refined ones."""
    _, results = refined
    odom = [r.T_odom_map @ r.T_map_camera for r in results]
    steps = np.array([np.linalg.norm(b[:3, 3] - a[:3, 3]) for a, b in itertools.pairwise(odom)])
    assert steps.max() < 4 * np.median(steps)
    assert any(not np.array_equal(r.T_odom_map, np.eye(4)) for r in results)


class JumpingUnits(TruthSession):
    """The new view of some windows has another unit than the rest of its window."""

    def infer(self, window):
        prediction = super().infer(window)
        if window.id not in (6, 9):
            return prediction
        depth = prediction.depth.copy()
        depth[-1] *= 3.0 if window.id == 6 else 0.3
        return dataclasses.replace(prediction, depth=depth)


@pytest.mark.long
def test_tracks_bridge_a_view_in_another_unit(walk, refined):
    _, results = run(walk, JumpingUnits(walk[1], noise=NOISE))
    unit = np.array(
        [np.nanmedian(r.depth_m / f.depth) for r, f in zip(results, walk[1], strict=True)]
    )
    assert np.abs(np.log(unit[[6, 9]] / np.median(unit))).max() < 0.1
    assert odom_error(walk, results) < 2 * odom_error(walk, refined[1]) + 0.01


def test_wrong_depth_is_not_accepted_for_its_tracks(walk):
    """Depth of the torn windows is noise: it says nothing of where the camera is."""
    pipeline, results = run(walk, LostSession(walk[1], {7, 8}))
    assert [r.id for r in results if r.blind == "refused"] == [7, 8]
    assert pipeline.counters["windows_refused"] == 2
    assert np.isnan(results[7].depth_m).all()
    assert results[-1].window.refined


def test_live_windows_pass_as_they_are_while_time_is_short(walk, monkeypatch):
    monkeypatch.setattr(solver_limits, "measured_ms", lambda _: 50.0)
    late = {"refinement.max_ms": 0.01}  # no machine keeps that
    pipeline, results = run(walk, live=True, **late)
    assert len(results) == FRAMES
    assert all(np.isfinite(r.T_map_camera).all() for r in results)
    count = pipeline.counters
    assert count["refinement_skipped"] >= FRAMES // 2
    assert count["refinement_skipped"] + count["windows_refined"] <= FRAMES


@pytest.mark.long
def test_tracks_follow_the_surfaces_of_the_room(walk, refined):
    """Where the true depth at a feature lies in the frame before, its track was."""
    camera, true = walk
    K = camera.calibration.K
    pipeline = Pipeline(refined[0].config, TruthSession(true, noise=NOISE))
    errors = []
    for f in true:
        for result in pipeline.push(to_frame(camera, f)):
            if not result.window.refined:
                continue
            history = pipeline.refinement.refiner.track_history(result.id)
            before = true[result.id - 1]
            pixel, was = (history.position[:, -k] * SIZE for k in (1, 2))
            assert np.isfinite(was).all(axis=1).sum() > 30
            row, column = pixel.astype(int).T[::-1]
            ray = np.column_stack((pixel, np.ones(len(pixel)))) @ np.linalg.inv(K).T
            X = (f.depth[row, column, None] * ray) @ f.T_room_camera[:3, :3].T
            X += f.T_room_camera[:3, 3] - before.T_room_camera[:3, 3]
            x = X @ before.T_room_camera[:3, :3] @ K.T
            errors.append(np.linalg.norm(x[:, :2] / x[:, 2:] - was, axis=1))
            assert np.nanmedian(history.error_px) < 1
    assert len(errors) == FRAMES - 1
    assert np.nanmedian(np.concatenate(errors)) < 0.5


class LongFocal(TruthSession):
    """Takes the focal length for 1.2 times as long as it is."""

    def infer(self, window):
        found = super().infer(window)
        found.K[:, [0, 1], [0, 1]] *= 1.2
        return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "source"), long_after(1, [("loop", "tracks"), ("strafe", "network")])
)
def test_without_camera_info_tracks_determine_the_focal_length_of_a_turning_camera(way, source):
    camera = SyntheticCamera(42, SIZE, walk=way, frames=17, rate_hz=3)
    true = list(camera)
    values = {
        "process_res": max(SIZE),
        "window.size": 5,
        "map.enabled": False,
        "dense.enabled": False,
    }
    pipeline = Pipeline(config_from_parameters(values), LongFocal(true, noise=NOISE))
    results = []
    for f in true:
        results += pipeline.push(to_frame(camera, f, calibration=None))
    assert pipeline.refinement.focal_sources == {"": source}
    ratio = [r.K[0, 0] / f.K[0, 0] for r, f in zip(results, true, strict=True)]
    assert ratio[0] == pytest.approx(1.2)
    assert ratio[-1] == pytest.approx(1.0 if source == "tracks" else 1.2, abs=0.03)
    assert len(set(np.round(ratio, 6))) == (2 if source == "tracks" else 1)
    stated = np.array([r.covariance_odom[3:, 3:] for r in results])
    off = [
        Rotation.from_matrix(
            (r.T_odom_map @ r.T_map_camera)[:3, :3].T
            @ (invert_pose(true[0].T_room_camera) @ f.T_room_camera)[:3, :3]
        ).magnitude()
        for r, f in zip(results, true, strict=True)
    ]
    sigma = np.sqrt(np.trace(stated, axis1=1, axis2=2))
    assert (np.array(off[1:]) < 2 * sigma[1:]).all()


@pytest.mark.long
def test_metres_and_odometry_go_on_when_a_focal_length_is_found(monkeypatch):
    """Positions get another unit than depth; both go on from where they were."""
    camera = SyntheticCamera(42, SIZE, walk="loop", frames=26, rate_hz=5)
    true, found = list(camera), []
    real = MapScale.change_unit

    def noted(self, *, depth, motion):
        if motion != 1.0:
            found.append((depth, motion, self._submaps.metres))
        real(self, depth=depth, motion=motion)
        if motion != 1.0:
            assert self._submaps.metres == found[-1][2]

    monkeypatch.setattr(MapScale, "change_unit", noted)
    values = {"process_res": max(SIZE), "window.size": 5, "map.enabled": False,
              "dense.enabled": False,
              "scale.source": "metric_model"}  # fmt: skip
    session = LongFocal(true, noise=NOISE)
    pipeline = Pipeline(config_from_parameters(values), session, ExactMetres(true))
    results = []
    for f in true:
        results += pipeline.push(to_frame(camera, f, calibration=None))
    ((depth, motion, _),) = found
    assert depth == pytest.approx(1.0, abs=0.05)
    assert abs(motion - depth) > 0.02
    at = next(i for i, r in enumerate(results) if abs(r.K[0, 0] / true[i].K[0, 0] - 1) < 0.05)
    odom = np.array([(r.T_odom_map @ r.T_map_camera)[:3, 3] for r in results])
    way = np.array([f.T_room_camera[:3, 3] for f in true])
    steps = np.linalg.norm(np.diff(odom, axis=0), axis=1)
    ratio = steps / np.linalg.norm(np.diff(way, axis=0), axis=1)
    assert ratio[at - 1 :] == pytest.approx(1.0, abs=0.15)  # also the step to the new length
    assert ratio[at + 4 :] == pytest.approx(1.0, abs=0.03)  # measured anew
    sizes = [np.nanmedian(r.depth_m / f.depth) for r, f in zip(results, true, strict=True)]
    assert np.array(sizes[at + 4 :]) == pytest.approx(1.0, abs=0.03)
    held = [r.scale.sigma for r in results[at : at + 2]]
    assert min(held) > abs(np.log(sizes[at]))  # and says so until then


@pytest.mark.long
def test_refined_poses_are_stored_in_the_unit_that_a_new_focal_length_gives(monkeypatch):
    """Where their submaps are in odometry depends on its unit."""
    camera = SyntheticCamera(42, SIZE, walk="loop", frames=20, rate_hz=5)
    true, newest, off, changes = list(camera), [], [], []
    values = {"process_res": max(SIZE), "window.size": 5, "map.enabled": False,
              "dense.enabled": False,
              "scale.source": "metric_model"}  # fmt: skip
    pipeline = Pipeline(
        config_from_parameters(values), LongFocal(true, noise=NOISE), ExactMetres(true)
    )
    apply, end = WindowOdometry.apply_refinement, WindowOdometry.finish_window

    def applied(self, refined):
        newest.append(refined)
        return apply(self, refined)

    def ended(self):
        refined, table = newest[-1] if newest else None, pipeline.map.table
        for id, (_, T, _) in (refined.moved if refined else {}).items():
            if id in table.shared:
                off.append(np.abs(table.view(id).T_local_camera - T).max())
        end(self)

    unit = MapScale.change_unit
    monkeypatch.setattr(WindowOdometry, "apply_refinement", applied)
    monkeypatch.setattr(WindowOdometry, "finish_window", ended)
    monkeypatch.setattr(
        MapScale, "change_unit", lambda s, **by: (changes.append(by["depth"]), unit(s, **by))
    )
    for f in true:
        list(pipeline.push(to_frame(camera, f, calibration=None)))
    assert max(abs(depth - 1) for depth in changes) > 1e-4  # there was a new unit
    assert len(off) > 20
    assert max(off) < 1e-9


class ExactMetres:
    """Measures metres per unit of a window, from the exact depth."""

    def __init__(self, frames):
        self.depth = {f.stamp_ns: f.depth for f in frames}

    def measure(self, window, prediction):
        true = self.depth[window.views[-1].stamp_ns]
        value = float(np.nanmedian(true / prediction.depth[-1]))
        return dataclasses.replace(prediction, measure=ScaleMeasurement(value, 0.02))


def test_a_camera_info_is_where_the_focal_length_is_from(refined):
    assert refined[0].refinement.focal_sources == {"": "camera_info"}


@pytest.mark.long
def test_a_refused_window_costs_no_tracks(walk):
    """Later windows go on with the graph as it was before."""
    _, results = run(walk, LostSession(walk[1], {7}))
    assert [r.window.refined for r in results[8:]] == [True] * (FRAMES - 8)
    assert results[8].window.tracks > 100


def test_a_failure_after_the_graph_has_changed_leaves_it_as_it_was(walk, monkeypatch):
    from da3_ros.refinement.refiner import WindowRefiner

    real, calls = WindowRefiner._refined, []

    def broken(self, window, *rest):
        calls.append(window.id)
        if window.id == 7:
            raise KeyError(7)
        return real(self, window, *rest)

    monkeypatch.setattr(WindowRefiner, "_refined", broken)
    pipeline, results = run(walk)
    assert pipeline.counters["refinement_failed"] == 1
    assert [r.window.refined for r in results[6:]] == [True, False] + [True] * (FRAMES - 8)
    assert odom_error(walk, results) < 0.03


def test_trajectory_takes_over_the_poses_that_later_windows_refine(walk, refined):
    """What is exported is better than what could be published at the time."""
    pipeline, results = refined
    stamps = [r.stamp_ns for r in results]
    final = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    changed = [np.abs(final[r.stamp_ns] - r.T_map_camera).max() > 1e-9 for r in results]
    assert sum(changed[1:-4]) > FRAMES // 2
    true = np.array([f.T_room_camera for f in walk[1]])
    late = trajectory_error(np.array([final[s] for s in stamps]), true)
    assert late < 1.05 * trajectory_error(np.array([r.T_map_camera for r in results]), true)


def test_tracks_make_poses_more_certain(refined, unrefined):
    last = refined[1][-1], unrefined[1][-1]
    stated = [np.sqrt(np.trace(r.covariance_odom[3:, 3:])) for r in last]
    assert 0 < stated[0] < stated[1] / 1.5


@pytest.mark.long
def test_covariances_stay_sane_after_windows_without_tracks(walk, monkeypatch):
    """New views then share tracks with each other, and with no older view."""
    real = WindowRefinement.run

    def skipping(self, window, *rest):
        self._limit.limit_s, self._limit._behind = (
            (1e-9, 1.0) if 3 <= window.id < 9 else (0.0, 0.0)
        )
        return real(self, window, *rest)

    monkeypatch.setattr(WindowRefinement, "run", skipping)
    pipeline, results = run(walk)
    assert pipeline.counters["refinement_skipped"] == 6
    assert results[-1].window.refined
    stated = np.array([r.covariance_odom for r in results])
    rotation, position = (
        np.sqrt(np.trace(p, axis1=1, axis2=2)) for p in (stated[:, 3:, 3:], stated[:, :3, :3])
    )
    assert np.degrees(rotation.max()) < 5
    assert position.max() < 0.2


class OtherShape(TruthSession):
    """The depth of some windows is that of another place: wrong, but not noise."""

    def infer(self, window):
        prediction = super().infer(window)
        if window.id not in (8, 9):
            return prediction
        ramp = np.linspace(0.6, 1.6, prediction.depth.shape[2], dtype=np.float32)
        return dataclasses.replace(prediction, depth=prediction.depth * ramp)


@pytest.mark.long
def test_depth_that_contradicts_scene_and_tracks_makes_no_keyframe(walk):
    """Its pose is known by the tracks, so that the camera is not lost."""
    every = {"keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0}
    _, results = run(walk, OtherShape(walk[1], noise=NOISE), **every)
    assert all(r.window.aligned for r in results)
    assert odom_error(walk, results) < 0.05
    assert [r.id for r in results if not r.keyframe] == [8, 9]


def test_windows_at_the_priors_own_poses_are_not_refined(walk):
    camera, true = walk
    settings = {
        "process_res": max(SIZE), "window.size": 5, "pose_prior.source": "odometry",
        "pose_prior.output": "prior", "dense.enabled": False,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(settings), TruthSession(true, noise=NOISE))
    for f in true:
        list(pipeline.push(to_frame(camera, f, T_prior_camera=f.T_room_camera)))
    assert pipeline.counters["processed"] == FRAMES
    assert not pipeline.counters["windows_refined"]


@pytest.mark.long
def test_views_that_a_new_focal_length_leaves_behind_end_nothing(walk, monkeypatch):
    """More views share tracks than get new poses with a new focal length."""
    camera, true = walk
    monkeypatch.setattr(self_calibration, "MOVED_VIEWS", 5)
    monkeypatch.setattr(self_calibration, "determined_factor", lambda *_: 1.01)
    values = {"process_res": max(SIZE), "window.size": 8, "dense.enabled": False}
    config = config_from_parameters(values)
    pipeline = Pipeline(config, TruthSession(true, noise=NOISE))
    pipeline.refinement.refiner.calibration._next = 10
    results = [r for f in true for r in pipeline.push(to_frame(camera, f, calibration=None))]
    assert len(results) == FRAMES
    assert not pipeline.counters["refinement_failed"]
    assert pipeline.refinement.focal_sources == {"": "tracks"}
    assert results[-1].window.refined
