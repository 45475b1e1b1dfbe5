"""The pipeline on exact windows of rendered rooms; its rules for stamps, sizes and bad input."""

import dataclasses
import types

import numpy as np
import pytest
from support.cases import long_after
from support.pipelines import SIZE, LostSession, settings, to_frame

from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.projection import backproject
from da3_ros.inference import WindowTooLargeError
from da3_ros.inference.interfaces import Memory
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import ResizeRule


@pytest.fixture(scope="module", params=long_after(2, ["spot", "loop", "straight"]))
def walk(request):
    camera = SyntheticCamera(seed=3, size=SIZE, walk=request.param, frames=16)
    return camera, list(camera)


@pytest.fixture(scope="module")
def short():
    camera = SyntheticCamera(seed=5, size=SIZE, walk="straight", frames=8)
    return camera, list(camera)


def run(camera, frames, config, session=None):
    pipeline = Pipeline(config, session or TruthSession(frames))
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    return pipeline, results + list(pipeline.flush())


@pytest.mark.parametrize("new", [1, 3])
def test_windows_in_random_units_and_frames_become_one_scene(walk, new):
    camera, frames = walk
    _, results = run(camera, frames, settings(**{"window.new": new}))
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames]
    first = invert_pose(frames[0].T_room_camera)
    unit = np.nanmedian(results[0].depth_m / frames[0].depth)
    for result, frame in zip(results, frames, strict=True):
        expected = first @ frame.T_room_camera
        np.testing.assert_allclose(result.T_map_camera[:3, :3], expected[:3, :3], atol=2e-4)
        np.testing.assert_allclose(result.T_map_camera[:3, 3] / unit, expected[:3, 3], atol=2e-3)
        ratio = result.depth_m / frame.depth / unit
        assert np.nanmax(np.abs(ratio - 1)) < 2e-3


def test_reports_hold_what_happened(walk):
    camera, frames = walk
    _, results = run(camera, frames, settings())
    last = results[-1].window
    assert last.aligned
    assert last.alignment_inliers > 0.99
    assert len(last.view_ids) == 5
    assert last.view_ids[-1] == results[-1].id
    assert last.new_frames == 1
    assert np.isnan(results[0].window.alignment_rms)


def test_unknown_scale_is_never_metric_and_a_fixed_one_is(short):
    camera, frames = short
    _, unknown = run(camera, frames, settings())
    assert not unknown[0].scale.metric
    assert np.isnan(unknown[0].scale.value)
    values = {"scale.source": "fixed", "scale.factor": 2.5}
    _, fixed = run(camera, frames, settings(**values))
    assert fixed[-1].scale.metric
    np.testing.assert_allclose(fixed[-1].depth_m, 2.5 * unknown[-1].depth_m, rtol=1e-4)
    np.testing.assert_allclose(
        fixed[-1].T_map_camera[:3, 3], 2.5 * unknown[-1].T_map_camera[:3, 3], rtol=1e-4
    )


def test_map_lies_on_the_rooms_surfaces(short):
    camera, frames = short
    # The first window's unit is random: make it metres, so that the room can judge.
    session = TruthSession(frames)
    factor = 1 / np.exp(np.random.default_rng(0).normal(0, 0.5))
    values = {"scale.source": "fixed", "scale.factor": float(factor), "map.voxel_m": 0.03}
    pipeline, _ = run(camera, frames, settings(**values), session)
    T = frames[0].T_room_camera
    points = pipeline.map.cloud().xyz @ T[:3, :3].T + T[:3, 3]
    from da3_ros.synthetic import distance_to_surface

    distance = np.asarray(distance_to_surface(camera.room, points))
    assert len(points) > 1000
    assert np.percentile(distance, 95) < 0.03


def test_camera_points_reproject_to_their_pixels(short):
    camera, frames = short
    _, results = run(camera, frames, settings())
    r = results[2]
    points = backproject(r.depth_m, r.K)
    pixels = points / points[..., 2:] @ r.K.T
    rows, columns = np.indices(r.depth_m.shape)
    known = np.isfinite(r.depth_m)
    np.testing.assert_allclose(pixels[known][:, 0], columns[known] + 0.5, atol=1e-3)
    np.testing.assert_allclose(pixels[known][:, 1], rows[known] + 0.5, atol=1e-3)


def test_a_standing_camera_has_every_depth_and_one_keyframe():
    camera = SyntheticCamera(seed=4, size=SIZE, walk="still", frames=6)
    frames = list(camera)
    pipeline, results = run(camera, frames, settings(hold_when_blind=False))
    assert len(results) == 6
    assert [r.keyframe for r in results] == [True] + [False] * 5
    assert all(np.isfinite(r.depth_m).mean() > 0.5 for r in results)
    assert pipeline.map.cloud().count.max() < 40


def test_late_and_repeated_stamps_are_dropped_and_counted(short):
    camera, frames = short
    pipeline = Pipeline(settings(), TruthSession(frames))
    order = [0, 1, 2, 1, 2, 3]
    results = [r for i in order for r in pipeline.push(to_frame(camera, frames[i]))]
    assert [r.stamp_ns for r in results] == [frames[i].stamp_ns for i in range(4)]
    assert pipeline.counters["dropped_late"] == 2
    assert pipeline.counters["received"] == 6


def test_a_time_jump_resets_odometry_once_and_keeps_the_map(short, caplog):
    camera, frames = short
    pipeline = Pipeline(settings(max_late_s=0.3), TruthSession(frames))
    for f in frames:
        list(pipeline.push(to_frame(camera, f)))
    points = len(pipeline.map)
    again = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    assert len(again) == len(frames)
    assert pipeline.counters["time_jumps"] == 1
    assert caplog.text.count("jump back") == 1
    np.testing.assert_allclose(again[0].T_map_camera, np.eye(4), atol=1e-9)
    assert not again[0].window.aligned  # where it lies in the map is assumed, not measured
    assert len(pipeline.map) >= points


def test_a_new_resolution_starts_a_new_window_without_loss(short, caplog):
    camera, frames = short
    other = SyntheticCamera(seed=5, size=(140, 84), walk="straight", frames=8)
    mixed = frames[:4] + list(other)[4:]
    pipeline = Pipeline(settings(**{"window.new": 3}), TruthSession(mixed))
    results = []
    for f in mixed:
        owner = camera if f.image.shape[0] == 112 else other
        results += list(pipeline.push(to_frame(owner, f)))
    results += list(pipeline.flush())
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in mixed]
    assert "image size" in caplog.text


def test_calibration_of_another_size_drops_the_frame(short, caplog):
    camera, frames = short
    wrong = dataclasses.replace(camera.calibration, width=999)
    pipeline = Pipeline(settings(), TruthSession(frames))
    assert not list(pipeline.push(to_frame(camera, frames[0], calibration=wrong)))
    assert list(pipeline.push(to_frame(camera, frames[1])))
    assert pipeline.counters["dropped_bad_input"] == 1
    assert "camera_info" in caplog.text


def test_without_calibration_the_networks_intrinsics_are_used(short):
    camera, frames = short
    pipeline = Pipeline(settings(), TruthSession(frames))
    (result,) = pipeline.push(to_frame(camera, frames[0], calibration=None))
    np.testing.assert_allclose(result.K, frames[0].K)


@pytest.mark.slow
def test_a_long_stream_holds_a_bounded_number_of_frames(short):
    camera, frames = short
    session = TruthSession(frames)
    pipeline = Pipeline(settings(), session)
    for step in range(60):
        f = dataclasses.replace(frames[step % 2], stamp_ns=10**9 * (step + 1))
        session.add_frame(f)
        list(pipeline.push(to_frame(camera, f)))
    assert len(pipeline.odometry.overlap_views._newest) == 4
    assert len(pipeline.builder._pending) == 0


def test_reset_forgets_the_scene(short):
    camera, frames = short
    pipeline, _ = run(camera, frames, settings())
    pipeline.reset()
    assert len(pipeline.map) == 0
    (result,) = pipeline.push(to_frame(camera, frames[0]))
    np.testing.assert_allclose(result.T_map_camera, np.eye(4), atol=1e-9)


def test_a_standing_camera_sees_what_moves_before_it():
    camera = SyntheticCamera(seed=4, size=SIZE, walk="still", frames=6)
    frames = list(camera)
    moved = []
    for i, f in enumerate(frames):
        depth = f.depth.copy()
        depth[40:70, 10 + 20 * i : 30 + 20 * i] = 0.8  # a person walks by
        moved.append(dataclasses.replace(f, depth=depth))
    _, results = run(camera, moved, settings(hold_when_blind=False))
    unit = float(np.nanmedian(results[0].depth_m / moved[0].depth))
    for i, result in enumerate(results):
        inside = result.depth_m[45:65, 14 + 20 * i : 26 + 20 * i] / unit
        np.testing.assert_allclose(inside, 0.8, rtol=0.02)


def test_the_floor_of_a_level_camera_lies_flat_in_the_map():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="spot", frames=10)
    frames = list(camera)
    pipeline, _ = run(camera, frames, settings(**{"map.voxel_m": 0.05}))
    scene = pipeline.scene()
    T = frames[0].T_room_camera
    tilt = T[:3, :3].T @ [0, 0, 1]  # the room's up in the first camera
    points = scene.map_points()
    from da3_ros.geometry.poses import T_ROS_MAP

    up = T_ROS_MAP[:3, :3] @ tilt
    heights = points @ up
    lowest = heights < np.percentile(heights, 1) + 0.05
    normal = np.linalg.svd(points[lowest] - points[lowest].mean(axis=0))[2][2]
    assert abs(normal @ up) > 0.999
    assert up[2] > 0.9  # a camera held about level has its map about level


class BrokenSession(TruthSession):
    """Breaks the prediction of one window."""

    def __init__(self, frames, field, value, at=2):
        super().__init__(frames)
        self.field, self.value, self.at = field, value, at

    def infer(self, window):
        prediction = super().infer(window)
        if window.id == self.at:
            broken = np.full_like(getattr(prediction, self.field), self.value)
            return dataclasses.replace(prediction, **{self.field: broken})
        return prediction


@pytest.mark.parametrize(("field", "value"), [("T_window_camera", np.nan), ("K", 1e9)])
def test_a_senseless_prediction_is_dropped_and_frames_go_on(short, caplog, field, value):
    camera, frames = short
    pipeline = Pipeline(settings(), BrokenSession(frames, field, value))
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f, calibration=None))]
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames[:2] + frames[3:]]
    assert pipeline.counters["dropped_unusable"] == 1
    assert "window 2 dropped" in caplog.text
    assert all(np.isfinite(r.T_map_camera).all() for r in results)


def test_depth_that_is_no_number_refuses_the_join(short):
    """Depth that is no number is unknown and refuses the join."""
    camera, frames = short
    pipeline = Pipeline(settings(), BrokenSession(frames, "depth", np.nan))
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    assert np.isnan(results[2].depth_m).all()
    assert not results[2].window.aligned
    assert results[3].window.aligned


class CrampedSession(TruthSession):
    """Has memory for so many views only."""

    def __init__(self, frames, most):
        super().__init__(frames)
        self.most, self.tried = most, []

    def infer(self, window):
        self.tried.append(len(window.views))
        if len(window.views) > self.most:
            raise WindowTooLargeError("too many")
        return super().infer(window)


def test_without_memory_a_window_has_fewer_shared_views(short, caplog):
    camera, frames = short
    session = CrampedSession(frames, 3)
    pipeline = Pipeline(settings(), session)
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames]
    assert session.tried[3:5] == [4, 2]  # three shared and one new; then the newest shared only
    assert "again with 1 overlap views" in caplog.text
    assert all(r.window.aligned for r in results)


def test_without_memory_for_two_views_frames_are_counted_out(short, caplog):
    camera, frames = short
    pipeline = Pipeline(settings(), CrampedSession(frames, 1))
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    assert len(results) == 1
    assert pipeline.counters["dropped_out_of_memory"] == len(frames) - 1
    assert "dropped: too many" in caplog.text


class Limited(Memory):
    """Allows windows of three views of half the size."""

    def fit(self, image, window, new):
        return types.SimpleNamespace(rule=ResizeRule(70), window=3, new=new)


class LimitedSession(TruthSession):
    memory = Limited()


def test_what_the_budget_allows_is_what_runs(short):
    camera, frames = short
    pipeline = Pipeline(settings(), LimitedSession(frames))
    windows = []
    infer = pipeline.session.infer
    pipeline.session.infer = lambda w: windows.append(w) or infer(w)
    for f in frames[:5]:
        list(pipeline.push(to_frame(camera, f)))
    assert [len(w.views) for w in windows] == [1, 2, 3, 3, 3]
    assert {w.views[0].image.shape for w in windows} == {(56, 70, 3)}
    assert pipeline.builder.window_size == 3
    assert windows[-1].wanted == (0, 1, 2)


def test_a_refused_window_is_flagged_and_changes_no_scene(short):
    camera, frames = short
    pipeline, results = run(camera, frames, settings(), LostSession(frames, {3}))
    clean, _ = run(camera, [*frames[:3], *frames[4:]], settings(), TruthSession(frames))
    assert [r.window.aligned for r in results] == [True] * 3 + [False] + [True] * 4
    assert not results[3].keyframe
    assert results[-1].window.chain == 0
    assert all(3 not in r.window.view_ids for r in results[4:])
    assert len(pipeline.map) == pytest.approx(len(clean.map), rel=0.3)
    last = invert_pose(frames[0].T_room_camera) @ frames[-1].T_room_camera
    np.testing.assert_allclose(results[-1].T_map_camera[:3, :3], last[:3, :3], atol=1e-3)


@pytest.mark.parametrize("new", [1, 4])
def test_only_the_window_whose_half_is_broken_is_refused(walk, new):
    camera, frames = walk

    class Broken(TruthSession):
        def infer(self, window):
            found = super().infer(window)
            if window.id == 12 // new:
                found.depth[:, :, : found.depth.shape[2] // 2] *= 1.4
            return found

    noise = Noise(0.01, 0.02, 0.02, 0.5, 0.02)
    values = settings(**{"window.size": 8, "window.new": new})
    _, results = run(camera, frames, values, Broken(frames, noise=noise))
    assert {r.window.id for r in results if not r.window.aligned} == {12 // new}


def test_after_refusals_a_new_chain_starts_where_motion_was(walk, caplog):
    camera, frames = walk
    session = LostSession(frames, set(range(4, 9)))
    _, results = run(camera, frames, settings(), session)
    assert [r.window.chain for r in results] == [0] * 9 + [1] * 7
    assert [r.window.aligned for r in results] == [True] * 4 + [False] * 6 + [True] * 6
    assert "a new chain begins" in caplog.text
    np.testing.assert_allclose(results[9].T_map_camera, results[8].T_map_camera, atol=1e-9)


def test_the_disagreement_about_the_focal_length_is_reported(short):
    camera, frames = short
    _, results = run(camera, frames[:3], settings())
    assert results[-1].window.focal_ratio == pytest.approx(1)
    pipeline = Pipeline(settings(), TruthSession(frames))
    (alone,) = pipeline.push(to_frame(camera, frames[0], calibration=None))
    assert np.isnan(alone.window.focal_ratio)


def test_windows_share_keyframes_first_and_newest_views_last(walk):
    camera, frames = walk
    _, results = run(camera, frames, settings(**{"keyframe.rotation_deg": 2.0}))
    keyframes = {r.id for r in results if r.keyframe}
    for r in results[6:]:
        *shared, new = r.window.view_ids
        assert shared[-1] == new - 1
        assert len(set(shared)) == 4
        assert set(shared) - set(range(new - 4, new)) <= keyframes


def test_new_limits_for_keyframes_take_effect_at_once(short):
    camera, frames = short
    pipeline = Pipeline(settings(**{"keyframe.parallax": 10.0}), TruthSession(frames))
    first = [r for f in frames[:4] for r in pipeline.push(to_frame(camera, f))]
    pipeline.reconfigure(settings(**{"keyframe.parallax": 0.0}))
    then = [r for f in frames[4:] for r in pipeline.push(to_frame(camera, f))]
    assert [r.keyframe for r in first] == [True, False, False, False]
    assert all(r.keyframe for r in then)


@pytest.mark.long
def test_keyframes_that_are_near_only_by_drift_cost_one_window():
    """Else the same keyframes would be shared again and again, until the track is lost."""
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=40)
    frames = list(camera)
    pipeline = Pipeline(settings(), TruthSession(frames))
    for f in frames[:30]:
        list(pipeline.push(to_frame(camera, f)))
    held, table = pipeline.odometry.overlap_views, pipeline.map.table
    old = [table.view(k.id) for k in held._keyframes[:2]]
    assert len(held._keyframes) > 4
    drift = held.newest.T_local_camera @ invert_pose(old[0].T_local_camera)
    for one in old:
        table.set_view(dataclasses.replace(one, T_local_camera=drift @ one.T_local_camera))
    rest = [r for f in frames[30:] for r in pipeline.push(to_frame(camera, f))]
    assert sum(not r.window.aligned for r in rest) == 1
    assert not {a.view.id for a in old} & {a.view.id for a in held.all()}
    assert rest[-1].window.chain == 0
    assert len(held._keyframes) > 2
