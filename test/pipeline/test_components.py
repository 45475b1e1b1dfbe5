"""After a jump back or lost tracking a scene goes on in a component of its own, unconnected."""

import dataclasses

import numpy as np
import pytest
import trimesh
from support.pipelines import LostSession, settings, to_frame

from da3_ros.cli import main
from da3_ros.export.export import Selection, export_scene
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import ScaleMeasurement

FIXED = {"scale.source": "fixed"}


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=5, size=(140, 112), walk="straight", frames=10)
    return camera, list(camera)


def run(walk, pipeline, order):
    camera, frames = walk
    out = [r for i in order for r in pipeline.push(to_frame(camera, frames[i]))]
    return out + list(pipeline.flush())


@pytest.fixture(scope="module")
def looped(walk):
    """A recording that is played twice."""
    pipeline = Pipeline(settings(**{"map.voxel_m": 0.03}), TruthSession(walk[1]))
    return pipeline, run(walk, pipeline, [*range(10), *range(10)])


def test_a_fixed_factor_holds_for_its_chain_alone(walk, caplog):
    """Each chain has a unit of its own: after a jump the new one is unknown."""
    frames = walk[1]
    session = TruthSession(frames)
    factor = 1 / np.exp(np.random.default_rng(0).normal(0, 0.5))
    values = FIXED | {"scale.factor": float(factor)}
    pipeline = Pipeline(settings(**values), session)
    order = [*range(10), *range(10), *range(10)]
    results = run(walk, pipeline, order)
    ratios = [
        np.nanmedian(r.depth_m / frames[i].depth) for i, r in zip(order, results, strict=True)
    ]
    np.testing.assert_allclose(ratios[:10], 1, rtol=0.01)
    assert [r.scale.metric for r in results] == [True] * 10 + [False] * 20
    assert all(np.isnan(r.scale.value) for r in results[10:])
    assert max(abs(np.log(r)) for r in ratios[10:]) > 0.1  # and it would have been wrong
    assert "holds for the first chain only" in caplog.text
    # The scene stays in metres: what is not metric is not in it.
    assert pipeline.snapshot().metric
    assert len(pipeline.poses()) == 10


def test_a_fixed_factor_is_given_anew_by_a_reset(walk):
    pipeline = Pipeline(settings(**FIXED), TruthSession(walk[1]))
    run(walk, pipeline, [*range(8), *range(8)])
    assert not pipeline.scale.scale.metric
    pipeline.reset()
    results = run(walk, pipeline, range(5))
    assert all(r.scale.metric for r in results)


@pytest.mark.parametrize("source", ["none", "fixed"])
def test_five_refusals_end_what_was_known(walk, source):
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="straight", frames=16)
    frames = list(camera)
    session = LostSession(frames, set(range(4, 9)))
    pipeline = Pipeline(settings(**{"scale.source": source}), session)
    results = run((camera, frames), pipeline, range(16))
    lost = [r for r in results if r.window.chain == 1]
    assert lost
    assert not any(r.scale.metric for r in lost)
    assert all(r.covariance_map is None and r.covariance_odom is None for r in lost)
    assert not pipeline.map.pose_known
    before = [r for r in results if r.window.chain == 0 and r.window.aligned]
    assert all(r.covariance_map is not None for r in before)


def test_frames_of_a_refused_window_have_no_covariance(walk):
    pipeline = Pipeline(settings(), LostSession(walk[1], {3}))
    results = run(walk, pipeline, range(8))
    known = [r.covariance_odom is not None and r.covariance_map is not None for r in results]
    assert known == [True, True, True, False, True, True, True, True]


class Torn(TruthSession):
    """Sees two halves of a picture in two units, once."""

    def infer(self, window):
        found = super().infer(window)
        if window.id == 6:
            found.depth[:, :, : found.depth.shape[2] // 2] *= 2
        return found


class Measuring(Torn):
    """Knows how many metres its unit has, as a nested model does."""

    def infer(self, window):
        found = super().infer(window)
        return dataclasses.replace(found, measure=ScaleMeasurement(1 / self.unit, 0.01))


@pytest.mark.parametrize(
    ("source", "session", "shown"),
    [
        ("none", Torn, True),  # in network units, and reported so
        ("fixed", Torn, False),
        ("metric_model", Measuring, True),
    ],
)
def test_depth_in_a_guessed_unit_is_not_published_in_metres(walk, source, session, shown):
    """A window that does not fit has a unit of its own: only a measurement gives it."""
    pipeline = Pipeline(settings(**{"scale.source": source}), session(walk[1]))
    results = run(walk, pipeline, range(10))
    known = [bool(np.isfinite(r.depth_m).any()) for r in results]
    assert [r.window.aligned for r in results] == [i != 6 for i in range(10)]
    assert known == [shown or i != 6 for i in range(10)]


def test_after_a_jump_the_pose_in_the_map_is_unknown_and_odometry_begins(looped):
    pipeline, results = looped
    assert not pipeline.map.pose_known
    assert all(r.covariance_map is None for r in results[10:])
    assert all(r.covariance_odom is not None for r in results[10:])
    assert all(r.covariance_map is not None for r in results[:10])


def test_points_of_two_components_never_mix(looped, tmp_path):
    """Both components lie at the origin: averaged together they would be one heap."""
    pipeline, _ = looped
    scene = pipeline.scene()
    assert scene.components == (0, 1)
    assert scene.unconnected == 1
    alone = [
        export_scene(scene.of_component(p), tmp_path / f"{p}.ply", Selection(voxel=0.2)).points
        for p in scene.components
    ]
    both = export_scene(scene, tmp_path / "both.ply", Selection(voxel=0.2))
    assert both.points == sum(alone)


def test_only_the_component_at_hand_is_shown(looped):
    pipeline, _ = looped
    shown = pipeline.map.view.thinned(10**6, np.eye(4))
    assert {one.component for one in shown.clouds} == {1}
    assert len(pipeline.path()) == 10
    assert len(pipeline.poses()) == 20


@pytest.mark.parametrize("form", ["ply", "glb", "tum", "colmap"])
def test_exports_name_unconnected_components_and_can_leave_them_out(looped, form, tmp_path):
    pipeline, _ = looped
    save_scene(pipeline.snapshot(), tmp_path / "scene")
    scene = load_scene(tmp_path / "scene").scene()
    assert scene.unconnected == 1
    done = export_scene(scene, tmp_path / f"all.{form}", form=form)
    assert done.text.endswith("; 2 components, 1 unconnected")
    known = export_scene(scene, tmp_path / f"known.{form}", Selection(unconnected=False), form)
    assert "unconnected" not in known.text.replace(str(known.path), "")
    if form == "tum":
        lines = done.path.read_text().splitlines()
        assert [x for x in lines if x[0] == "#"] == ["# component 1 of the scene, unconnected"]
        assert np.loadtxt(done.path).shape == (20, 8)
        assert np.loadtxt(known.path).shape == (10, 8)
    elif form == "glb":
        assert b'"parts_guessed":1' in done.path.read_bytes()
        assert b"parts_guessed" not in known.path.read_bytes()
    elif form == "ply":
        assert b"comment components 2, of which 1 unconnected" in done.path.read_bytes()
    assert known.points == scene.of_component(0).cloud().xyz.shape[0] < done.points


def test_the_path_in_a_glb_does_not_join_components(looped, tmp_path):
    pipeline, _ = looped
    done = export_scene(pipeline.scene(), tmp_path / "s.glb")
    path = trimesh.load(done.path).geometry["path"]
    assert len(path.vertices) == 2 * (9 + 9)  # lines between neighbours of one component


def test_the_command_leaves_unconnected_components_out(looped, tmp_path, capsys):
    save_scene(looped[0].snapshot(), tmp_path / "scene")
    for flags in ([], ["--known-only"]):
        out = tmp_path / f"out{len(flags)}.ply"
        assert main(["export", str(tmp_path / "scene"), str(out), *flags]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "2 components, 1 unconnected" in said[0]
    assert "unconnected" not in said[1]


def test_a_scene_of_unconnected_components_alone_is_not_called_empty(looped, tmp_path, capsys):
    snapshot = looped[0].snapshot()
    submaps = tuple(s for s in snapshot.submaps if s.component)
    rows = np.isin(snapshot.poses.rows["submap"], [s.id for s in submaps])
    poses = dataclasses.replace(snapshot.poses, rows=snapshot.poses.rows[rows])
    save_scene(dataclasses.replace(snapshot, submaps=submaps, poses=poses), tmp_path / "scene")
    command = ["export", str(tmp_path / "scene"), str(tmp_path / "out.ply")]
    assert main([*command, "--known-only"]) != 0
    said = capsys.readouterr().err
    assert "all components of the scene are unconnected" in said
    assert "without --known-only" in said
    assert main(command) == 0


def test_a_resumed_scene_goes_on_in_an_unconnected_component(looped, walk, tmp_path):
    save_scene(looped[0].snapshot(), tmp_path / "scene")
    pipeline = Pipeline(settings(), TruthSession(walk[1]))
    pipeline.resume(load_scene(tmp_path / "scene"))
    shown = pipeline.map.view.thinned(10**6, np.eye(4))
    assert {one.component for one in shown.clouds} == {1}  # until more comes
    results = run(walk, pipeline, range(5))
    assert pipeline.scene().components == (0, 1, 2)
    assert results[0].covariance_map is None
    save_scene(pipeline.snapshot(), tmp_path / "scene")
    assert sorted({s.component for s in load_scene(tmp_path / "scene").submaps}) == [0, 1, 2]
    assert len(load_scene(tmp_path / "scene").scene().components) == 3


def test_odometry_of_a_component_is_right_within_it(looped, walk):
    _, results = looped
    frames = walk[1]
    first = results[10].T_odom_map @ results[10].T_map_camera
    unit = np.nanmedian(results[10].depth_m / frames[0].depth)
    for r, frame in zip(results[10:], frames, strict=True):
        moved = invert_pose(first) @ r.T_odom_map @ r.T_map_camera
        true = invert_pose(frames[0].T_room_camera) @ frame.T_room_camera
        np.testing.assert_allclose(moved[:3, 3] / unit, true[:3, 3], atol=2e-3)


@pytest.mark.slow
def test_lost_before_the_scale_is_known_the_pose_is_unknown(walk):
    """The old scene leaves the map, but the map's frame does not begin anew."""
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="straight", frames=16)
    frames = list(camera)
    session = LostSession(frames, set(range(4, 9)))
    pipeline = Pipeline(settings(**{"scale.source": "odometry"}), session)
    results = run((camera, frames), pipeline, range(16))
    assert results[-1].window.chain == 1
    assert not pipeline.map.pose_known
    assert results[-1].covariance_map is None


def test_components_are_joined_by_submaps_that_have_left_the_map(looped, walk):
    pipeline = Pipeline(settings(**{"map.voxel_m": 0.03}), TruthSession(walk[1]))
    run(walk, pipeline, [*range(10), *range(10)])
    store = pipeline.map
    newest = max(store.submaps)
    store.submaps.remove(min(store.submaps))
    assert not store.pose_known
    store.merge_components([(0, newest)])
    assert store.pose_known


def test_a_loaded_scene_begins_odometry(looped, walk, tmp_path):
    save_scene(looped[0].snapshot(), tmp_path / "scene")
    pipeline = Pipeline(settings(), TruthSession(walk[1]))
    pipeline.resume(load_scene(tmp_path / "scene"))
    results = run(walk, pipeline, range(5))
    assert all(r.covariance_odom is not None for r in results)
