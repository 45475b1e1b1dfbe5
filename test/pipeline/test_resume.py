"""A recording in two parts, the scene saved in between, is one scene."""

import numpy as np
import pytest
from support.pipelines import LostSession, odometry_of, settings, to_frame

from da3_ros.export.scene_file import SceneFileError, load_scene, save_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, distance_to_surface
from da3_ros.synthetic.truth import TruthSession

METRIC = {"scale.source": "odometry", "map.voxel_m": 0.03}


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="straight", frames=60)
    return camera, list(camera)


def run(walk, pipeline, begin, end):
    camera, frames = walk
    priors = list(odometry_of(camera, frames, noise_m=0.002))
    done = []
    for i in range(begin, end):
        frame = to_frame(camera, frames[i], T_prior_camera=priors[i])
        done += list(pipeline.push(frame))
    return done + list(pipeline.flush())


@pytest.mark.slow
def test_a_walk_in_two_parts_is_one_scene_in_metres(walk, tmp_path):
    camera, frames = walk
    first = Pipeline(settings(**METRIC), TruthSession(frames))
    run(walk, first, 0, 35)
    save_scene(first.snapshot(), tmp_path / "scene")
    second = Pipeline(settings(**METRIC), TruthSession(frames, seed=7))
    said = second.resume(load_scene(tmp_path / "scene"))
    assert "where the saved one ended" in said
    before = len(second.map)
    # The last frame again: the new chain begins at its pose.
    again = run(walk, second, 34, 60)
    assert len(second.map) > before
    T = frames[0].T_room_camera
    points = second.map.cloud().xyz @ T[:3, :3].T + T[:3, 3]
    assert np.percentile(np.asarray(distance_to_surface(camera.room, points)), 95) < 0.1
    true = {f.stamp_ns: (invert_pose(T) @ f.T_room_camera)[:3, 3] for f in frames}
    for pose in second.poses():
        np.testing.assert_allclose(pose.T_map_camera[:3, 3], true[pose.stamp_ns], atol=0.1)
    metric = [r for r in again if r.scale.metric]
    assert len(second.poses()) == len(first.poses()) + len(metric) > 40
    assert {s.chain for s in second.map.submaps.values()} == {0, 1}


def test_a_resumed_scene_lies_in_the_map_where_it_lay(walk, tmp_path):
    first = Pipeline(settings(), TruthSession(walk[1]))
    run(walk, first, 0, 6)
    T = np.eye(4)
    T[:3, 3] = 1.0, 2.0, 3.0
    first.scene_map.place_map(T, is_level=True)
    save_scene(first.snapshot(), tmp_path / "scene")
    second = Pipeline(settings(), TruthSession(walk[1]))
    second.resume(load_scene(tmp_path / "scene"))
    np.testing.assert_array_equal(second.scene_map.T_ros_map, T)
    np.testing.assert_array_equal(second.scene().T_ros_map, T)
    assert second.scene_map.map_placed
    assert second.scene_map.is_level


def test_a_scene_of_unknown_unit_goes_on_from_its_last_pose(walk, tmp_path):
    frames = walk[1]
    first = Pipeline(settings(), TruthSession(frames))
    run(walk, first, 0, 10)
    second = Pipeline(settings(), TruthSession(frames))
    second.resume(first.snapshot())
    (begin,) = run(walk, second, 9, 10)
    end = list(first.poses())[-1].T_map_camera
    np.testing.assert_allclose(begin.T_map_camera, end, atol=1e-6)
    assert not begin.scale.metric


@pytest.mark.slow
def test_a_scene_without_metres_is_refused_where_wanted(walk):
    frames = walk[1]
    first = Pipeline(settings(), TruthSession(frames))
    run(walk, first, 0, 5)
    second = Pipeline(settings(**METRIC), TruthSession(frames))
    run(walk, second, 0, 40)
    points = len(second.map)
    with pytest.raises(SceneFileError, match=r"not in metres, but scale\.source is odometry"):
        second.resume(first.snapshot())
    assert len(second.map) == points
    assert second.scale.known


@pytest.mark.slow
def test_a_metric_scene_and_non_metric_windows_are_reported(walk):
    frames = walk[1]
    first = Pipeline(settings(**METRIC), TruthSession(frames))
    run(walk, first, 0, 35)
    assert first.snapshot().metric
    second = Pipeline(settings(), TruthSession(frames))
    assert "unit of new windows is a guess" in second.resume(first.snapshot())
    assert len(second.map) == len(first.map)
    run(walk, second, 35, 37)
    assert len(second.map) > len(first.map)
    assert len(second.poses()) == len(first.poses()) + 2


def test_a_fixed_factor_is_for_the_first_window_after_a_load(walk):
    """Not the unit of the last window before: that is of another window."""
    frames = walk[1]
    first = Pipeline(settings(**METRIC), TruthSession(frames))
    run(walk, first, 0, 35)
    session = TruthSession(frames, seed=7)
    unit = float(np.exp(np.random.default_rng(7).normal(0, 0.5)))  # of that session's first window
    values = {"scale.source": "fixed", "scale.factor": 1 / unit}
    second = Pipeline(settings(**values), session)
    second.resume(first.snapshot())
    results = run(walk, second, 34, 38)
    assert all(r.scale.metric for r in results)
    for r, f in zip(results, frames[34:38], strict=True):
        assert np.nanmedian(r.depth_m / f.depth) == pytest.approx(1, rel=0.01)


def chains_of(pipeline, results):
    """Of each window of the results: the chain in its report, and in the submap of its frames."""
    rows = pipeline.map.table.path.poses().rows
    submap = dict(zip(rows["stamp_ns"].tolist(), rows["submap"].tolist(), strict=True))
    own = [r for r in results if r.stamp_ns in submap]
    return {(r.window.chain, pipeline.map.submaps[submap[r.stamp_ns]].chain) for r in own}


def test_windows_and_submaps_number_chains_alike_after_a_lost_track(walk):
    frames = walk[1]
    first = Pipeline(settings(hold_when_blind=False), LostSession(frames, set(range(8, 16))))
    found = chains_of(first, run(walk, first, 0, 24))
    assert found == {(0, 0), (1, 1), (2, 2)}
    second = Pipeline(settings(), TruthSession(frames))
    second.resume(first.snapshot())
    assert chains_of(second, run(walk, second, 24, 30)) == {(3, 3)}
    second.resume(first.snapshot())  # its numbers are not used again
    assert chains_of(second, run(walk, second, 24, 30)) == {(4, 4)}


def test_windows_and_submaps_number_chains_alike_after_one_without_metres(walk):
    """Its windows have been published with their number, and have no place in the map."""
    camera, frames = walk
    pipeline = Pipeline(settings(**METRIC), TruthSession(frames))
    blind = [r for f in frames[:12] for r in pipeline.push(to_frame(camera, f))]
    results = run(walk, pipeline, 0, 16)
    assert {r.window.chain for r in blind} == {0}
    assert chains_of(pipeline, results) == {(1, 1)}
    assert pipeline.snapshot().chain == 1
    pipeline.reset()
    assert chains_of(pipeline, run(walk, pipeline, 0, 10)) == {(2, 2)}
