"""Scenes with stored keyframes are aligned on the camera's full images: a rendered corridor."""

import dataclasses
import logging
import shutil
from collections import Counter

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.journals import without_keyframes
from support.ring import DescribedTruth

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene, write_scene
from da3_ros.keyframe_store.journal import JournalReader
from da3_ros.keyframe_store.keyframe import MeasuredKeyframe
from da3_ros.keyframe_store.recorder import KeyframeRecorder
from da3_ros.keyframe_store.store import JOURNAL, StoredScene, StoreWriter
from da3_ros.merging.inputs import InputScene
from da3_ros.merging.joining import LoopNetwork
from da3_ros.merging.merge import merge
from da3_ros.merging.stored_views import StoredViews
from da3_ros.pipeline.keyframe_recording import KeyframeRecording
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.refinement.features import FeatureDetector
from da3_ros.sensors.calibration import pinhole_calibration
from da3_ros.synthetic import intrinsics, make_ring, render, ring_walk
from da3_ros.synthetic.evaluation import fit_poses
from da3_ros.synthetic.truth import Noise, Truth
from da3_ros.types import DenseDepth, Frame, RefinedLoop

SIZE = (336, 280)
LATER = 10**12  # ns, between sessions
K = intrinsics(SIZE, 70.0)
CONFIG = config_from_parameters({
    "process_res": 84, "window.size": 6, "map.voxel_m": 0.1, "refinement.enabled": False,
})  # fmt: skip


@pytest.fixture(scope="module")
def walks():
    """Images and truth of two walks, the second one beside the first."""
    room = make_ring(0)
    first = ring_walk(room, 80, 0.6)[:14]
    second = first[3:12].copy()
    second[:, :3, 3] += [0.1, 0.15, 0.05]
    out = []
    for number, poses in enumerate((first, second)):
        seen = render(room, poses, K, SIZE)
        stamps = [10**8 * (i + 1) + number * LATER for i in range(len(poses))]
        truth = [
            Truth(s, d, T, K)
            for s, d, T in zip(stamps, np.asarray(seen.depth), poses, strict=True)
        ]
        out.append((truth, np.asarray(seen.image)))
    return out


@pytest.fixture(scope="module")
def scenes(walks, tmp_path_factory):
    """Saved scenes with stored keyframes, nearly exact; made once, copied for each test."""
    home = tmp_path_factory.mktemp("scenes")
    for number, (truth, images) in enumerate(walks):
        pipeline = Pipeline(CONFIG, DescribedTruth(truth, number, noise=Noise()))
        folder = home / f"walk{number}"
        recorder = KeyframeRecorder(folder, counters=Counter(), wait=True)
        pipeline.scene_map.record(KeyframeRecording(recorder))
        for true, image in zip(truth, images, strict=True):
            frame = Frame(true.stamp_ns, image, calibration=pinhole_calibration(K, SIZE))
            list(pipeline.push(frame))
        list(pipeline.flush())
        assert pipeline.scene_map.finish_recording(60)
        write_scene(pipeline.snapshot(), folder)
    return home


@pytest.fixture
def folders(scenes, tmp_path):
    return [
        shutil.copytree(scenes / name, tmp_path / name) for name in ("walk0", "walk1")
    ]  # fmt: skip


def coarse(walks):
    """A network whose poses, also by tracks, are those of coarse images: off by percent."""
    truth = [f for frames, _ in walks for f in frames]
    rng = np.random.default_rng(3)

    def refine(window, split, prediction):
        T = prediction.T_window_camera.copy()
        depth = float(np.median(prediction.depth[np.isfinite(prediction.depth)]))
        turn = Rotation.from_rotvec(rng.normal(0, 0.01, (len(T), 3))).as_matrix()
        T[:, :3, :3] = T[:, :3, :3] @ turn
        T[:, :3, 3] += rng.normal(0, 0.02 * depth, (len(T), 3))
        return RefinedLoop(dataclasses.replace(prediction, T_window_camera=T), np.zeros(3))

    return LoopNetwork(CONFIG, DescribedTruth(truth, 9, noise=Noise()), refine)


def error_of(folder, walks):
    """Root mean square error of all positions after a Sim(3) fit, metres."""
    true = {f.stamp_ns: f.T_room_camera for frames, _ in walks for f in frames}
    poses = list(load_scene(folder).scene().poses)
    ours = np.array([p.T_map_camera for p in poses])
    theirs = np.array([true[p.stamp_ns] for p in poses])
    off = fit_poses(ours, theirs).points(ours[:, :3, 3]) - theirs[:, :3, 3]
    return float(np.sqrt((off**2).sum(axis=1).mean()))


def merged_error(folders, walks, output):
    assert merge(folders, output, CONFIG, coarse(walks)).is_complete
    return error_of(output, walks)


@pytest.mark.long
def test_stored_keyframes_align_better_than_small_images(folders, walks, tmp_path, caplog):
    with_store = merged_error(folders, walks, tmp_path / "with")
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    without_keyframes(folders[1])
    without = merged_error(folders, walks, tmp_path / "without")
    assert with_store < 0.3 * without
    assert with_store < 0.01
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "walk1 without stored keyframes" in said
    assert "small images" in said


@pytest.mark.long
def test_the_result_is_the_same_twice(folders, walks, tmp_path):
    merged_error(folders, walks, tmp_path / "once")
    merged_error(folders, walks, tmp_path / "twice")
    once, twice = (load_scene(tmp_path / name).submaps for name in ("once", "twice"))
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a.T_map_submap.t, b.T_map_submap.t)


@pytest.mark.long
def test_images_that_cannot_be_read_leave_the_alignment_as_it_was(
    folders, walks, tmp_path, caplog
):
    for folder in folders:
        damage_images(folder / JOURNAL)
    damaged = merged_error(folders, walks, tmp_path / "damaged")
    said = [r.getMessage() for r in caplog.records]
    assert any("0 stored keyframes show the same" in one for one in said)
    assert any("aligned without it" in one for one in said)
    for folder in folders:
        without_keyframes(folder)
    assert damaged == pytest.approx(merged_error(folders, walks, tmp_path / "none"), rel=1e-6)


@pytest.mark.parametrize("damaged", [False, True])
def test_measured_depth_counts_where_it_is_stored(scenes, tmp_path, caplog, damaged):
    """The network's depth is 30 % too far, that of the images is right; if that cannot be read,
    the network's is there, and a warning."""
    saved = load_scene(scenes / "walk0")
    with StoredScene.open(scenes / "walk0") as true:
        writer = StoreWriter(tmp_path)
        writer.place(true.submaps.values())
        writer.set_map(true.map)
        for key in true.images:
            one = true.load(key)
            writer.add_keyframe(dataclasses.replace(one, depth=np.float32(1.3) * one.depth))
            sigma = np.full_like(one.depth, 0.01)
            dense = DenseDepth(one.depth, sigma, np.isfinite(one.depth))
            pose = one.pose
            writer.measure(MeasuredKeyframe(pose.camera, pose.stamp_ns, pose.submap, dense))
        writer.journal.close()
        if damaged:
            damage_images(tmp_path / JOURNAL, "measured depth")
        detector = FeatureDetector(10, 10**6)
        with StoredScene.open(tmp_path) as wrong:
            scene = InputScene("a", None, saved)
            exact, views = (StoredViews(scene, s, detector) for s in (true, wrong))
            for number in (0, len(exact) - 1):
                there = exact.T_map_camera[number][:3, 3]
                expected = exact.surface(number) - there
                found = views.surface(number) - there
                assert len(found) > 10
                np.testing.assert_allclose(found, (1.3 if damaged else 1) * expected, rtol=1e-3)
    assert ("the network's is used" in caplog.text) == damaged


def damage_images(path, kind="keyframe"):
    """Flips a byte in the data of each keyframe, or of other records."""
    reader = JournalReader(path)
    images = [r for r in reader.records() if r.description.get("kind") == kind]
    data = bytearray(path.read_bytes())
    for record in images:
        whole = reader.data(record)
        at = data.find(whole)
        data[at + 10] ^= 0xFF
    reader.close()
    path.write_bytes(data)
