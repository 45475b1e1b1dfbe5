"""Scenes of several sessions become one: exact networks, each session with a unit and start."""

import dataclasses
import shutil
from collections import Counter

import numpy as np
import pytest
from support.cases import long_after
from support.journals import changed_in, changed_rows, rewritten
from support.ring import CALM, SIZE, DescribedTruth, shifted, walked
from support.sessions import LATER, METRIC, SETTINGS, MetricModel

from da3_ros.cli import main
from da3_ros.cli.merge import text_of
from da3_ros.config import config_from_parameters
from da3_ros.export.export import ExportError
from da3_ros.export.recognition_file import RecognitionFile
from da3_ros.export.saved_records import SavedRecords
from da3_ros.export.scene_file import SceneFileError, load_scene, save_scene, write_scene
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import FRAME, JOURNAL, KINDS, StoredScene
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.merging.inputs import Copy, InputScene, MergeError, open_inputs, open_without_copies
from da3_ros.merging.joining import LoopNetwork, SceneJoiner
from da3_ros.merging.merge import MergeSummary, merge
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.types import Calibration, Frame, GlobalPose, RefinedLoop


class NamedTruth(DescribedTruth):
    """The truth of cameras by name."""

    def __init__(self, by_camera, seed=0):
        truth = [f for frames in by_camera.values() for f in frames]
        super().__init__(truth, seed, noise=CALM)
        self._several = True
        self._frames = {(c, f.stamp_ns): f for c, fs in by_camera.items() for f in fs}


def config(**values):
    return config_from_parameters({**SETTINGS, **values})


def session_of(truth, number):
    """The same frames in another session."""
    return [dataclasses.replace(f, stamp_ns=f.stamp_ns + number * LATER) for f in truth]


def walk(truth, folder, seed=0, metric=False, store=False):
    """Walks and saves a scene; returns its folder. store: with its keyframes."""
    values = METRIC if metric else {}
    session = NamedTruth({"": truth}, seed)
    pipeline = Pipeline(config(**values), session, MetricModel(session) if metric else None)
    if store:
        recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
        pipeline.scene_map.record(KeyframeRecording(recorder))
    black, K = np.zeros((*SIZE[::-1], 3), np.uint8), truth[0].K.copy()
    K[:2, 2] -= 0.5
    for f in truth:
        frame = Frame(f.stamp_ns, black, calibration=Calibration(*SIZE, K))
        list(pipeline.push(frame))
    list(pipeline.flush())
    assert pipeline.scene_map.finish_recording(60)
    write_scene(pipeline.snapshot(), folder)
    return folder


def network_of(truth, seed=9):
    by_camera = truth if isinstance(truth, dict) else {"": truth}
    return LoopNetwork(config(), NamedTruth(by_camera, seed), None)


def merged(folders, output, truth, **values):
    summary = merge(folders, output, config(**values), network_of(truth))
    return summary, load_scene(output)


def trajectory_error(scene, truth):
    """Root mean square error of all positions after a Sim(3) fit, metres, and its scale."""
    true = {f.stamp_ns: f.T_room_camera for f in truth}
    poses = list(scene.scene().poses)
    ours = np.array([p.T_map_camera for p in poses])
    theirs = np.array([true[p.stamp_ns] for p in poses])
    S = fit_poses(ours, theirs)
    off = S.points(ours[:, :3, 3]) - theirs[:, :3, 3]
    return float(np.sqrt((off**2).sum(axis=1).mean())), S.scale


@pytest.fixture(scope="module")
def ring():
    return walked(100, 0.6)


@pytest.fixture(scope="module")
def second(ring):
    return session_of(ring[30:70], 1)


@pytest.fixture(scope="module")
def elsewhere():
    """A walk of another place that looks the same."""
    return [
        dataclasses.replace(f, T_room_camera=shifted(f, np.array([60.0, 0, 0])))
        for f in session_of(walked(30, 0.2, seed=5), 2)
    ]


@pytest.fixture(scope="module")
def folders(ring, second, elsewhere, tmp_path_factory):
    """Makes saved scenes by name, each once."""
    home, there = tmp_path_factory.mktemp("scenes"), {}
    walks = {"monday": ring[:60], "tuesday": second, "elsewhere": elsewhere,
             "begin": ring[:30], "end": session_of(ring[65:95], 3), "sameday": ring[30:70],
             "middle": session_of(ring[15:80], 4)}  # fmt: skip

    def folder(name, metric=False, store=False):
        key = f"{name}{'_metric' * metric}{'_stored' * store}"
        if key not in there:
            seed = sorted(walks).index(name)
            there[key] = walk(walks[name], home / key / name, seed, metric, store)
        return there[key]

    return folder


def submap_poses(scene):
    """Poses of submaps by their ids."""
    return {s.id: s.T_map_submap for s in scene.submaps}


def box_in_map(scene, component):
    points = scene.scene().of_component(component).map_points()
    return points.min(axis=0), points.max(axis=0)


def test_two_walks_of_one_place_become_one(folders, ring, second, tmp_path):
    truth = [*ring, *second]
    given = [folders("monday"), folders("tuesday")]
    summary, scene = merged(given, tmp_path / "out", truth)
    assert summary.is_complete
    assert summary.scenes[1].loops["monday"] > 1
    assert {s.component for s in scene.submaps} == {0}
    error, _ = trajectory_error(scene, truth)
    own = [trajectory_error(load_scene(one), truth)[0] for one in given]
    assert error < 1.2 * max(own) + 0.03
    assert len(scene.poses) == 100
    assert len(scene.poses.leading()) == 100
    # The reference stays where it was, in its unit.
    first, before = min(submap_poses(scene)), submap_poses(load_scene(given[0]))
    np.testing.assert_allclose(submap_poses(scene)[first].t, before[first].t, atol=1e-9)
    assert submap_poses(scene)[first].scale == pytest.approx(before[first].scale)
    assert not scene.metric
    assert [s.origin for s in scene.submaps].count("monday") == len(before)
    assert {s.origin for s in scene.submaps} == {"monday", "tuesday"}


@pytest.mark.long
def test_cameras_of_windows_align_scenes(folders, ring, second, tmp_path):
    """Depth that is too large by some share of one scene does not change that scene's size."""
    truth, errors = [*ring, *second], []
    given = [folders("monday"), folders("tuesday")]
    for refine in (None, lambda window, split, exact: RefinedLoop(exact, np.zeros(3))):
        network = dataclasses.replace(wrong_depth(truth, second), refine=refine)
        merge(given, tmp_path / "out", config(), network)
        scene = load_scene(tmp_path / "out")
        errors.append(trajectory_error(scene, truth)[0])
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 0.05


def wrong_depth(truth, second):
    """A network whose depth of the second session is 8 % too large, and whose poses are exact."""
    stamps = {f.stamp_ns for f in second}

    class WrongDepth(NamedTruth):
        def infer(self, window):
            exact = super().infer(window)
            factors = [1.08 if v.stamp_ns in stamps else 1.0 for v in window.views]
            depth = exact.depth * np.array(factors, np.float32)[:, None, None]
            return dataclasses.replace(exact, depth=depth)

    return LoopNetwork(config(), WrongDepth({"": truth}, 9), None)


def anchored(folder, to, camera=""):
    """A copy of a scene with a global pose at its last frame; returns its folder."""
    scene = load_scene(folder)
    row = scene.poses.rows[-1]
    stamp, submap = int(row["stamp_ns"]), int(row["submap"])
    given = GlobalPose(stamp, np.eye(4), np.eye(6), np.eye(4))
    held = HeldAnchor(given, submap, (stamp, camera), np.eye(4))
    save_scene(dataclasses.replace(scene, anchors=(held,)), to)
    return to


def test_global_poses_of_the_first_scene_hold_the_merged_one(folders, ring, second, tmp_path):
    """Those of the other may be in the frame of another site."""
    given = [anchored(folders(name), tmp_path / name) for name in ("monday", "tuesday")]
    _, scene = merged(given, tmp_path / "out", [*ring, *second])
    (held,) = scene.anchors
    assert held.frame == (ring[59].stamp_ns, "")
    rows = scene.poses.rows
    (row,) = rows[rows["stamp_ns"] == held.frame[0]]
    assert row["submap"] == held.submap


def test_anchors_get_the_new_ids_and_names_of_their_scene(folders, tmp_path):
    folder = anchored(folders("tuesday"), tmp_path / "tuesday")
    saved = load_scene(folder)
    one = InputScene("b", None, saved, first_submap=7, cameras={"": "b"})
    (held,) = one.anchors()
    assert held.submap == saved.anchors[0].submap + 7
    assert held.frame == (saved.anchors[0].frame[0], "b")
    assert held.submap in {s.id for s in one.submaps}


def test_points_move_with_their_scene(folders, ring, second, tmp_path):
    """What both walks see is one surface: most points of one have one of the other near them."""
    truth = [*ring, *second]
    _, scene = merged([folders("monday"), folders("tuesday")], tmp_path / "out", truth)
    _, scale = trajectory_error(scene, truth)
    clouds = {}
    for s in scene.submaps:
        clouds.setdefault(s.origin, []).append(s.T_map_submap.points(s.cloud.xyz))
    one, other = (np.concatenate(clouds[name]) for name in ("monday", "tuesday"))
    rng = np.random.default_rng(0)
    some = other[rng.choice(len(other), 500, replace=False)]
    away = [np.linalg.norm(one - p, axis=1).min() * scale for p in some]
    assert np.median(away) < 0.15


def test_other_places_stay_apart_beside_the_first(folders, ring, elsewhere, tmp_path):
    truth = [*ring, *elsewhere]
    given = [folders("monday"), folders("elsewhere")]
    summary, scene = merged(given, tmp_path / "out", truth)
    assert not summary.is_complete
    assert summary.scenes[1].unconnected == 1
    assert not summary.scenes[1].loops
    unconnected = max(s.component for s in scene.submaps)
    assert {s.component for s in scene.submaps} == {0, unconnected}
    (low, high), (other_low, other_high) = (
        box_in_map(scene, component) for component in (0, unconnected)
    )
    assert (low > other_high).any() or (other_low > high).any()
    assert {s.origin for s in scene.submaps if s.component} == {"elsewhere"}
    # The component has its own shape still.
    assert trajectory_error_of_component(scene, unconnected, elsewhere) == pytest.approx(
        trajectory_error(load_scene(given[1]), elsewhere)[0]
    )


def trajectory_error_of_component(scene, component, truth):
    ids = [s.id for s in scene.submaps if s.component == component]
    poses = scene.poses.take(np.isin(scene.poses.rows["submap"], ids))
    return trajectory_error(dataclasses.replace(scene, poses=poses), truth)[0]


@pytest.mark.long
def test_two_scenes_meet_beside_a_last_one_that_met_none(
    folders, ring, second, elsewhere, tmp_path
):
    """The graph's newest submap is of the last scene, which no loop connects to the others."""
    paths = [folders(n, metric=True) for n in ("monday", "tuesday", "elsewhere")]
    truth = [*ring[:60], *second, *elsewhere]
    _, scene = merged(paths, tmp_path / "all", truth)
    assert len({s.component for s in scene.submaps}) == 2
    joined = scene.scene().of_component(0)
    true = {f.stamp_ns: f.T_room_camera for f in truth}
    poses = list(joined.poses)
    assert {p.stamp_ns for p in poses} == {f.stamp_ns for f in [*ring[:60], *second]}
    ours = np.array([p.T_map_camera for p in poses])
    theirs = np.array([true[p.stamp_ns] for p in poses])
    off = fit_poses(ours, theirs).points(ours[:, :3, 3]) - theirs[:, :3, 3]
    assert np.sqrt((off**2).sum(axis=1).mean()) < 0.3


def test_what_looks_the_same_is_looked_at_and_not_joined(folders, ring, elsewhere, tmp_path):
    network = network_of([*ring, *elsewhere])
    inputs = open_inputs([folders("monday"), folders("elsewhere")])
    joined = SceneJoiner(inputs, network, hint=PoseHint.on_map(0.0, 0.0, 1e4)).join()
    assert joined.looks > 5
    assert not joined.loops
    assert len(joined.groups) == 2


@pytest.mark.parametrize("swapped", long_after(1, [False, True]))
def test_metres_of_one_are_those_of_all(folders, ring, second, tmp_path, swapped):
    truth = [*ring, *second]
    given = [folders("monday"), folders("tuesday", metric=True)]
    summary, scene = merged(given[::-1] if swapped else given, tmp_path / "out", truth)
    assert scene.metric
    assert summary.scenes[0].name == "tuesday"  # the metric one is the reference
    assert {s.component for s in scene.submaps} == {0}
    _, scale = trajectory_error(scene, truth)
    assert scale == pytest.approx(1.0, abs=0.05)
    before = load_scene(given[1])
    for id, pose in submap_poses(before).items():
        assert submap_poses(scene)[id].scale == pytest.approx(pose.scale, rel=1e-9)
    np.testing.assert_array_equal(scene.T_ros_map, before.T_ros_map)


@pytest.mark.long
def test_two_metric_scenes_keep_their_scales(folders, ring, second, tmp_path):
    given = [folders("monday", metric=True), folders("tuesday", metric=True)]
    _, scene = merged(given, tmp_path / "out", [*ring, *second])
    assert {s.component for s in scene.submaps} == {0}
    before = [s.T_map_submap.scale for one in given for s in load_scene(one).submaps]
    np.testing.assert_allclose([s.T_map_submap.scale for s in scene.submaps], before)


@pytest.mark.long
def test_a_scene_without_metres_that_met_none_is_left_out(folders, ring, elsewhere, tmp_path):
    given = [folders("monday", metric=True), folders("elsewhere")]
    summary, scene = merged(given, tmp_path / "out", [*ring, *elsewhere])
    assert not summary.is_complete
    assert summary.scenes[1].left_out == 1
    assert {s.origin for s in scene.submaps} == {"monday"}
    assert len(scene.poses) == 60
    assert all(k.submap < 10 for k in scene.recognition.keyframes)


@pytest.mark.long
def test_two_scenes_meet_through_a_third(folders, ring, tmp_path):
    truth = [*ring, *session_of(ring, 3), *session_of(ring, 4)]
    ends = [folders("begin"), folders("end")]
    summary, _ = merged(ends, tmp_path / "two", truth)
    assert not summary.is_complete
    summary, scene = merged([*ends, folders("middle")], tmp_path / "three", truth)
    assert summary.is_complete
    assert {s.component for s in scene.submaps} == {0}
    assert "end" not in summary.scenes[0].loops
    assert trajectory_error(scene, truth)[0] < 0.3
    # And one after the other: the result is merged again, and has all origins.
    summary, scene = merged([tmp_path / "two", folders("middle")], tmp_path / "again", truth)
    assert summary.is_complete
    assert {s.origin for s in scene.submaps} == {"begin", "end", "middle"}
    assert trajectory_error(scene, truth)[0] < 0.3


@pytest.mark.long
def test_equal_stamps_of_two_robots_are_kept_apart(folders, ring, tmp_path):
    truth = {"": ring, "sameday": ring}
    network = network_of(truth)
    output = tmp_path / "out"
    summary = merge([folders("monday"), folders("sameday")], output, config(), network)
    scene = load_scene(output)
    assert summary.is_complete
    assert scene.poses.cameras == ("", "sameday")
    shots = [(p.camera, p.stamp_ns) for p in scene.poses]
    assert len(set(shots)) == len(shots) == 100
    assert len(scene.poses.leading()) == 100
    images = scene.scene().images
    assert len(images) == sum(len(s.images) for s in scene.submaps)
    assert {camera for camera, _ in images} == {"", "sameday"}
    views = [k.view for k in scene.recognition.keyframes]
    assert {view.camera for view in views} == {"", "sameday"}
    assert trajectory_error(scene, ring)[0] < 0.3


@pytest.mark.long
def test_the_camera_is_found_in_a_merged_scene(folders, ring, second, tmp_path):
    truth = [*ring, *second]
    merged([folders("monday"), folders("tuesday")], tmp_path / "out", truth)
    third = session_of(ring[35:65], 7)
    pipeline = Pipeline(config(), NamedTruth({"": [*truth, *third]}, 5))
    pipeline.resume(load_scene(tmp_path / "out"))
    black, K = np.zeros((*SIZE[::-1], 3), np.uint8), ring[0].K.copy()
    K[:2, 2] -= 0.5
    for f in third:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=Calibration(*SIZE, K))))
    assert pipeline.map.pose_known
    origins = {s.origin for s in pipeline.snapshot().submaps}
    assert origins == {"monday", "tuesday", ""}


@pytest.mark.long
def test_stored_keyframes_are_those_of_the_merged_scene(folders, ring, second, tmp_path):
    truth = [*ring, *second]
    given = [folders("monday", store=True), folders("tuesday", store=True)]
    _, scene = merged(given, tmp_path / "out", truth)
    with StoredScene.open(tmp_path / "out") as stored:
        counts = []
        for one in given:
            with StoredScene.open(one) as before:
                counts.append((len(before.frames), len(before.images)))
        assert len(stored.frames) == sum(frames for frames, _ in counts)
        assert len(stored.images) == sum(images for _, images in counts)
        for id, pose in submap_poses(scene).items():
            np.testing.assert_array_equal(stored.submaps[id].T_map_submap.t, pose.t)
        poses = {p.stamp_ns: p.T_map_camera for p in scene.scene().poses}
        _, scale = trajectory_error(scene, truth)
        true = {f.stamp_ns: f for f in truth}
        for key in stored.images:
            keyframe = stored.load(key)
            T_map_submap = stored.submaps[keyframe.pose.submap].T_map_submap
            T = T_map_submap.pose(keyframe.pose.T_submap_camera)
            np.testing.assert_allclose(T, poses[keyframe.pose.stamp_ns], atol=1e-9)
            ratio = (
                scale * T_map_submap.scale * keyframe.depth / true[keyframe.pose.stamp_ns].depth
            )
            assert np.nanmedian(ratio) == pytest.approx(1.0, abs=0.1)
    for name in ("a.ply", "b.npz"):
        assert main(["export", str(tmp_path / "out"), str(tmp_path / name), "--voxel", "0.1"][
            : 3 if name == "b.npz" else 5]) == 0  # fmt: skip


def test_nothing_is_written_for_damaged_or_foreign_scenes(folders, ring, second, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(folders("tuesday"), damaged)
    points = SavedRecords(damaged)
    data = bytearray((damaged / JOURNAL).read_bytes())
    data[points.submaps()[0]["points"] + 200] ^= 1
    (damaged / JOURNAL).write_bytes(data)
    network = network_of([*ring, *second])
    with pytest.raises(SceneFileError, match="damaged"):
        merge([folders("monday"), damaged], tmp_path / "out", config(), network)
    with pytest.raises(SceneFileError, match="holds no scene"):
        merge([folders("monday"), tmp_path / "nothing"], tmp_path / "out", config(), network)
    given = [folders("monday"), folders("tuesday")]
    with pytest.raises(MergeError, match="da3-small, not by da3-tiny"):
        merge(given, tmp_path / "out", config(model="da3-tiny"), network)
    assert [p.name for p in tmp_path.iterdir()] == ["damaged"]


def test_scenes_of_different_models_are_refused(folders, ring, second, tmp_path):
    other = tmp_path / "other"
    scene = load_scene(folders("tuesday"))
    known = dataclasses.replace(scene.recognition, model="da3-tiny")
    save_scene(dataclasses.replace(scene, recognition=known), other)
    with pytest.raises(MergeError, match="monday by da3-small, other by da3-tiny"):
        merge([folders("monday"), other], tmp_path / "out", config())


def test_no_input_is_overwritten(folders, tmp_path):
    given = [folders("monday"), folders("tuesday")]
    link = tmp_path / "link"
    link.symlink_to(given[1])
    for output in (given[0], given[1] / "out", given[0].parent, link):
        with pytest.raises((MergeError, ExportError)):
            merge(given, output, config())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="other contents"):
        merge(given, tmp_path / "full", config())
    with pytest.raises(MergeError, match="given twice"):
        merge([given[0], link, given[1]], tmp_path / "out", config())
    assert len(load_scene(given[0]).poses) == 60


def test_scenes_without_keyframes_stay_apart(folders, ring, second, tmp_path):
    old = tmp_path / "old"
    save_scene(dataclasses.replace(load_scene(folders("tuesday")), recognition=None), old)
    summary = merge([folders("monday"), old], tmp_path / "out", config())  # no network is opened
    assert [one.recognised for one in summary.scenes] == [True, False]
    assert summary.scenes[1].unconnected == 1
    assert len(load_scene(tmp_path / "out").poses) == 100


def test_keyframes_that_cannot_be_read_join_nothing(
    folders, ring, second, tmp_path, monkeypatch, caplog
):
    def fail(self, index):
        raise OSError("unplugged")

    monkeypatch.setattr(RecognitionFile, "arrays", fail)
    given = [folders("monday"), folders("tuesday")]
    summary, scene = merged(given, tmp_path / "out", [*ring, *second])
    assert "cannot be read" in caplog.text
    assert summary.scenes[1].unconnected == 1
    assert len(scene.poses) == 100


def test_interrupted_nothing_is_left(folders, ring, second, tmp_path):
    def stop(step, share):
        if step == "saving" and share > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge([folders("monday"), folders("tuesday")], tmp_path / "out", config(),
              network_of([*ring, *second]), stop)  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_names_are_unique(folders, ring, tmp_path):
    """Two robots have saved a scene under one name."""
    other = tmp_path / "monday"
    shutil.copytree(folders("sameday"), other)
    network = network_of({"": ring, "monday_2": ring})
    summary = merge([folders("monday"), other], tmp_path / "out", config(), network)
    assert [one.name for one in summary.scenes] == ["monday", "monday_2"]
    records = SavedRecords(tmp_path / "out")
    assert {s["origin"] for s in records.submaps()} == {"monday", "monday_2"}
    assert records.path()[1] == ["", "monday_2"]


@pytest.mark.long
def test_a_scene_is_not_merged_with_what_continues_it(folders, ring, second, tmp_path):
    """All that both have would be there twice. Of what is continued, the origin is kept."""
    pipeline = Pipeline(config(), NamedTruth({"": [*ring, *second]}, 3))
    pipeline.resume(load_scene(folders("monday")))
    black, K = np.zeros((*SIZE[::-1], 3), np.uint8), ring[0].K.copy()
    K[:2, 2] -= 0.5
    for f in second:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=Calibration(*SIZE, K))))
    save_scene(pipeline.snapshot(), tmp_path / "tuesday")
    with pytest.raises(MergeError, match="monday and tuesday have 60 frames in common"):
        merge([folders("monday"), tmp_path / "tuesday"], tmp_path / "out", config(),
              network_of([*ring, *second]))  # fmt: skip
    network = network_of({"": ring, "sameday": ring})
    merge([folders("monday"), folders("sameday")], tmp_path / "both", config(), network)
    with pytest.raises(MergeError, match="frames in common"):  # whose cameras were renamed
        merge([tmp_path / "both", folders("sameday")], tmp_path / "again", config(), network)
    assert {s["origin"] for s in SavedRecords(tmp_path / "tuesday").submaps()} == {"monday", ""}
    again = load_scene(tmp_path / "tuesday")
    assert {s.origin for s in again.submaps} == {"monday", "tuesday"}


def test_the_smaller_copies_are_left_out_where_that_is_asked(folders, ring, second, tmp_path):
    """One recording twice, and a scene of another day."""
    given = [folders("monday"), folders("tuesday"), tmp_path / "copy"]
    shutil.copytree(folders("monday"), given[-1])
    summary = merge(
        given, tmp_path / "out", config(), network_of([*ring, *second]), leave_out_copies=True
    )
    assert [one.name for one in summary.scenes] == ["monday", "tuesday"]
    (copy,) = summary.copies
    assert (copy.of, copy.is_whole) == ("monday", True)
    assert "copy: left out, it has " in text_of(summary)
    assert len(load_scene(tmp_path / "out").poses) == 60 + 40


def test_a_copy_with_frames_of_its_own_is_no_complete_merge(tmp_path):
    copy = Copy("b", "a", 10, 12)
    assert not copy.is_whole
    assert not MergeSummary(tmp_path, (), True, 1, (copy,)).is_complete
    assert MergeSummary(tmp_path, (), True, 1, (Copy("b", "a", 12, 12),)).is_complete


def test_a_copy_in_metres_stays_however_small(folders, tmp_path):
    large, small = tmp_path / "large", tmp_path / "small"
    shutil.copytree(folders("monday"), large)
    shutil.copytree(folders("monday"), small)
    rewritten(small, changed_in("contents", metric=True))
    inputs, (copy,) = open_without_copies([large, folders("tuesday"), small])
    assert (copy.name, copy.of) == ("large", "small")
    assert [one.name for one in inputs] == ["small", "tuesday"]
    with pytest.raises(MergeError, match="one scene only, nothing to merge: large has"):
        open_without_copies([large, small])


def test_a_replays_scene_has_the_name_of_its_output(folders, tmp_path):
    shutil.copytree(folders("begin"), tmp_path / "night" / "scene")
    assert {s.origin for s in load_scene(tmp_path / "night" / "scene").submaps} == {"night"}


@pytest.mark.long
@pytest.mark.parametrize("stored", ["of another scene", "invalid"])
def test_unusable_stored_keyframes_are_named_with_a_remedy(
    folders, ring, second, tmp_path, stored
):
    given = [folders("monday", store=True), tmp_path / "tuesday"]
    if stored == "of another scene":
        shutil.copytree(given[0], given[1])
        rewritten(given[1], lambda d, data: (d, data) if d["kind"] in (*KINDS, "scene") else None)
        write_scene(load_scene(folders("tuesday")), given[1])
    else:
        shutil.copytree(folders("tuesday", store=True), given[1])
        rewritten(given[1], changed_rows("frames", FRAME, K=0))
    with pytest.raises(MergeError, match=r"or load and save it to merge it without stored"):
        merged(given, tmp_path / "out", [*ring[:60], *second])
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_scene_without_stored_keyframes_is_named(folders, ring, second, tmp_path):
    given = [folders("monday", store=True), folders("tuesday")]
    summary, _ = merged(given, tmp_path / "out", [*ring[:60], *second])
    assert [one.lacks_keyframes for one in summary.scenes] == [False, True]
    assert "tuesday" in text_of(summary).splitlines()[1]
    assert "meshes, and exports that filter depth, lack it" in text_of(summary).splitlines()[1]


@pytest.mark.long
def test_measured_depth_is_in_the_unit_of_the_merged_scene(tmp_path):
    """Two walks through a rendered room, each with a unit of its own."""
    size = 168, 126
    settings = {"process_res": max(size), "window.size": 5, "map.voxel_m": 0.03}
    camera = SyntheticCamera(77, size, walk="loop", frames=52, rate_hz=6)
    frames = list(camera)
    walks = frames[0:36:2], session_of(frames[10:50:2], 1)
    noise = dataclasses.replace(CALM, smooth=0.08, per_frame=0.02)
    folders, shares = [], []
    for k, truth in enumerate(walks):
        session = NamedTruth({"": truth}, seed=k)
        session.noise = noise
        pipeline = Pipeline(config_from_parameters(settings), session)
        recorder = KeyframeRecorder(tmp_path / str(k), counters=Counter(), wait=True)
        pipeline.scene_map.record(KeyframeRecording(recorder))
        for f in truth:
            list(pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration)))
        list(pipeline.flush())
        assert pipeline.scene_map.finish_recording(60)
        write_scene(pipeline.snapshot(), tmp_path / str(k))
        folders.append(tmp_path / str(k))
        shares.append(pipeline.scene_map.dense.so_far)
    network = LoopNetwork(
        config_from_parameters(settings), NamedTruth({"": [*walks[0], *walks[1]]}, 9), None
    )
    merge(folders, tmp_path / "all", config_from_parameters(settings), network)
    true = {f.stamp_ns: f.depth for f in [*walks[0], *walks[1]]}
    with StoredScene.open(tmp_path / "all") as scene:
        assert len(scene.measured) == sum(one.measured for one in shares) > 20
        ratios = []
        for key in scene.measured:
            keyframe, dense = scene.load(key), scene.load_measured(key)
            scale = scene.submaps[keyframe.pose.submap].T_map_submap.scale
            ratio = scale * dense.depth / true[keyframe.pose.stamp_ns]
            ratios.append(np.nanmedian(ratio[dense.measured]))
    assert np.std(ratios) < 0.02 * np.mean(ratios)
