"""Pixels that show the robot itself get no depth, on the way to any result."""

import dataclasses
import logging

import cv2
import numpy as np
import pytest
import trimesh
from support.pipelines import SIZE, settings, to_frame

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.parameter_schema import ConfigError
from da3_ros.pipeline.multi_camera import open_pipelines
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_builder import FramePreparation
from da3_ros.pipeline.window_steps import at_size_of
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession, at_size
from da3_ros.types import Calibration, Frame, ResizeRule

BONNET = 80  # first row of the robot in images of SIZE
NEAR_M = 0.2  # its distance
METRES = float(1 / np.exp(np.random.default_rng(0).normal(0, 0.5)))  # per TruthSession's unit


class WithBonnet(TruthSession):
    """Sees the robot at the bottom of every image."""

    def infer(self, window):
        prediction = super().infer(window)
        depth = prediction.depth.copy()
        depth[:, round(BONNET / SIZE[1] * depth.shape[1]) :] = NEAR_M * self.unit
        return dataclasses.replace(prediction, depth=depth)


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=5, size=SIZE, walk="straight", frames=6)
    return camera, list(camera)


def draw(path, size=SIZE, first_row=BONNET):
    drawn = np.full(size[::-1], 255, np.uint8)
    drawn[first_row:] = 0
    assert cv2.imwrite(str(path), drawn)
    return str(path)


@pytest.fixture
def mask(tmp_path):
    return draw(tmp_path / "mask.png")


def run(walk, session=None, metric_model=None, **values):
    camera, frames = walk
    values = {"scale.source": "fixed", "scale.factor": METRES, "map.voxel_m": 0.03, **values}
    pipeline = Pipeline(settings(**values), session or WithBonnet(frames), metric_model)
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    return pipeline, results + list(pipeline.flush())


def near_points(pipeline, folder):
    """The exported points that are as near to a camera as the robot."""
    points = trimesh.load(pipeline.export(folder / "scene.ply")).vertices
    scene = pipeline.scene()
    here = scene.T_ros_map @ np.stack([pose.T_map_camera for pose in scene.poses])
    far = np.linalg.norm(points[:, None] - here[None, :, :3, 3], axis=2).min(axis=1)
    return int((far < 2 * NEAR_M).sum())


def test_the_robot_gets_no_depth_and_no_point_in_the_map(walk, mask, tmp_path):
    before, seen = run(walk)
    after, results = run(walk, mask=mask)
    assert len(results) == len(seen) == 6
    assert near_points(before, tmp_path) > 100
    assert near_points(after, tmp_path) == 0
    for result, whole in zip(results, seen, strict=True):
        assert np.isnan(result.depth_m[BONNET:]).all()
        # The edge filter sees the whole depth: the mask's border costs no pixel beside it.
        np.testing.assert_array_equal(
            np.isnan(result.depth_m[:BONNET]), np.isnan(whole.depth_m[:BONNET])
        )
    for overlap_view in after.odometry.overlap_views.all():
        assert (overlap_view.pixels < BONNET * SIZE[0]).all()


def test_depth_at_the_cameras_size_keeps_the_masks_border(tmp_path):
    """Upsampled depth ends at the very row of the drawing."""
    camera = SyntheticCamera(seed=5, size=(280, 224), walk="straight", frames=2)
    row = 161  # inside a row of the network's image
    mask = draw(tmp_path / "mask.png", (280, 224), row)
    config = settings(mask=mask, **{"depth.size": "input", "depth.edge_filter": False})
    pipeline = Pipeline(config, TruthSession(at_size(camera, SIZE)))
    results = [r for f in camera for r in pipeline.push(to_frame(camera, f))]
    for result in [*results, *pipeline.flush()]:
        assert result.depth_m.shape == (224, 280)
        assert np.isnan(result.depth_m[row:]).all()
        assert not np.isnan(result.depth_m[: row - 1]).all(axis=1).any()


def test_a_speck_is_masked_at_the_cameras_size_alone(walk, tmp_path):
    """One black pixel of the 1600 that make a pixel of the network."""
    drawn = np.full((1120, 1120), 255, np.uint8)
    drawn[601, 607] = 0
    assert cv2.imwrite(str(tmp_path / "mask.png"), drawn)
    prepare = FramePreparation(settings(mask=str(tmp_path / "mask.png")))
    ready = prepare(Frame(0, np.zeros((1120, 1120, 3), np.uint8)), ResizeRule(28))
    assert ready.valid.all()
    _, results = run(walk)
    small = dataclasses.replace(results[0], depth_m=np.ones((28, 28), np.float32),
                                confidence=np.ones((28, 28), np.float32))  # fmt: skip
    out = at_size_of(small, ready.full, ready.full_valid)
    assert np.argwhere(np.isnan(out.depth_m)).tolist() == [[601, 607]]


def test_estimates_of_the_scale_do_not_see_the_robot(walk, mask):
    class Spy:
        """A metric model that keeps what it gets."""

        seen = ()

        def measure(self, window, prediction):
            self.seen = (*self.seen, prediction.depth)
            return prediction

    spy = Spy()
    values = {"scale.source": "metric_model", "scale.metric_every": 1, "mask": mask}
    run(walk, metric_model=spy, **values)
    assert len(spy.seen) == 6
    for depth in spy.seen:
        assert np.isnan(depth[:, BONNET:]).all()
        assert np.isfinite(depth[-1, :BONNET]).all()


def test_a_mask_is_rectified_as_its_image(tmp_path):
    """A drawing of what the raw image shows hides the same in the rectified image."""
    size = (160, 120)
    raw = np.full((120, 160, 3), 200, np.uint8)
    raw[30:60, 90:] = 0  # the robot
    assert cv2.imwrite(str(tmp_path / "mask.png"), (raw > 0).astype(np.uint8)[..., 0] * 255)
    K = np.array([[100.0, 0, 79.5], [0, 100.0, 59.5], [0, 0, 1]])
    bent = Calibration(*size, K, D=np.array([-0.25, 0.06, 0, 0, 0]))
    other = dataclasses.replace(bent, D=np.array([-0.10, 0.02, 0, 0, 0]))
    prepare = FramePreparation(settings(mask=str(tmp_path / "mask.png")))
    found = []
    for calibration in (bent, other):
        ready = prepare(Frame(0, raw, calibration=calibration), ResizeRule(140))
        done = Rectifier()(raw, calibration, False)
        hidden = (done.image < 200).any(axis=2)  # also where a part of the robot is mixed in
        holes = np.zeros_like(hidden) if done.valid is None else ~done.valid
        np.testing.assert_array_equal(~ready.full_valid, hidden | holes)
        found.append(ready)
        again = prepare(
            Frame(1, raw, calibration=dataclasses.replace(calibration)), ResizeRule(140)
        )
        assert again.full_valid is ready.full_valid, "rectified once"
        assert again.valid is ready.valid
    assert (found[0].full_valid != found[1].full_valid).any(), "a new calibration, a new mask"


def test_an_image_that_arrives_rectified_needs_no_remap(mask):
    K = np.array([[100.0, 0, 69.5], [0, 100.0, 55.5], [0, 0, 1]])
    bent = Calibration(*SIZE, K, D=np.array([-0.25, 0.06, 0, 0, 0]))
    frame = Frame(0, np.zeros((*SIZE[::-1], 3), np.uint8), calibration=bent, rectified=True)
    valid = FramePreparation(settings(mask=mask))(frame, ResizeRule(140)).full_valid
    assert valid[:BONNET].all()
    assert not valid[BONNET:].any()


def test_without_a_mask_all_pixels_of_a_plain_image_are_valid(walk):
    camera, frames = walk
    ready = FramePreparation(settings())(to_frame(camera, frames[0]), ResizeRule(140))
    assert ready.valid is None
    assert ready.full_valid is None


def test_images_of_another_shape_are_dropped_and_counted(walk, tmp_path, caplog):
    mask = draw(tmp_path / "mask.png", (140, 100))
    with caplog.at_level(logging.WARNING):
        pipeline, results = run(walk, mask=mask)
    assert results == []
    assert pipeline.counters["dropped_bad_input"] == len(caplog.records) == 6
    assert "of 140x100, but the camera's images are 140x112" in caplog.text


def test_a_missing_file_ends_the_making_of_a_pipeline(walk, tmp_path):
    config = settings(mask=str(tmp_path / "none.png"))
    with pytest.raises(ConfigError, match=r"^mask is '.*none\.png': No such file"):
        Pipeline(config, TruthSession(walk[1]))


@pytest.mark.parametrize("mode", ["joint", "independent"])
def test_each_camera_of_a_rig_has_its_own_mask(tmp_path, mode):
    names = ("front", "left")
    rows = {"front": 40, "left": 80}
    for name in names:
        draw(tmp_path / f"{name}.png", first_row=rows[name])
    cameras = {
        name: SyntheticCamera(seed=3, size=SIZE, walk="straight", frames=2) for name in names
    }
    values = {
        "process_res": 140, "model": "da3-tiny", "checkpoint": "random",
        "cameras": list(names), "window.mode": mode, "mask": f"{tmp_path}/{{camera}}.png",
    }  # fmt: skip
    session = TruthSession({name: list(camera) for name, camera in cameras.items()})
    pipelines = open_pipelines(config_from_parameters(values), session)
    results = []
    for i in range(2):
        frames = [
            dataclasses.replace(to_frame(cameras[n], cameras[n][i]), camera=n) for n in names
        ]
        if mode == "joint":
            results += pipelines[""].push(*frames)
        else:
            results += [r for f in frames for r in pipelines[f.camera].push(f)]
    assert len(results) == 4
    for result in results:
        first = rows[result.camera]
        assert np.isnan(result.depth_m[first:]).all()
        assert np.isfinite(result.depth_m[:first]).mean() > 0.5


def test_waiting_views_keep_their_mask_through_a_new_size(walk, mask):
    """A view that waits when the plan changes is cut and resized together with its mask."""
    camera, frames = walk
    pipeline = Pipeline(settings(mask=mask, **{"window.new": 2}), TruthSession(frames))
    results = [r for f in frames[:3] for r in pipeline.push(to_frame(camera, f))]
    pipeline.builder.rule = ResizeRule(70)
    pipeline.builder.fit = lambda session: None
    results += pipeline.push(to_frame(camera, frames[3]))
    assert len(results) == 4
    assert [r.depth_m.shape for r in results[2:]] == [(56, 70)] * 2
    for result in results[2:]:
        assert np.isnan(result.depth_m[BONNET // 2 :]).all()
        assert np.isfinite(result.depth_m[: BONNET // 2 - 1]).mean() > 0.5


def test_poses_are_as_good_without_the_robot(walk, mask):
    """The robot moves with the camera; kept out, it does not pull at the poses."""
    _, results = run(walk, mask=mask)
    first = invert_pose(walk[1][0].T_room_camera)
    for result, frame in zip(results, walk[1], strict=True):
        expected = first @ frame.T_room_camera
        np.testing.assert_allclose(result.T_map_camera, expected, atol=5e-3)
