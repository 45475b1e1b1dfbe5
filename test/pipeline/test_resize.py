"""The network's image size changes in mid-stream: odometry and the scene go on."""

import dataclasses
import types

import numpy as np
import pytest
from support.cases import long_after
from support.pipelines import settings, to_frame

from da3_ros.geometry.poses import invert_pose
from da3_ros.inference.interfaces import Memory
from da3_ros.mapping.map_table import OverlapView
from da3_ros.mapping.resizing import Cut
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_builder import ImageFormat
from da3_ros.synthetic import SyntheticCamera, distance_to_surface
from da3_ros.synthetic.truth import TruthSession, at_size
from da3_ros.types import ResizeRule, View


class Budgeted(TruthSession, Memory):
    """Allows images of a size that changes from one window on."""

    memory = property(lambda self: self)

    def __init__(self, frames, sizes, **options):
        super().__init__(frames, **options)
        self.sizes, self.ran, self.shapes = sizes, 0, []

    def fit(self, image, window, new):
        first = max(i for i in self.sizes if i <= self.ran)
        rule = ResizeRule(self.sizes[first])
        return types.SimpleNamespace(rule=rule, window=window, new=new)

    def infer(self, window):
        self.ran += 1
        self.shapes.append(window.views[0].image.shape[:2])
        assert {v.image.shape for v in window.views} == {window.views[0].image.shape}
        return super().infer(window)


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=24)
    return camera, list(camera)


def run(walk, session, **values):
    camera, frames = walk
    pipeline = Pipeline(settings(**{"map.voxel_m": 0.03, **values}), session)
    results = [r for f in frames for r in pipeline.push(to_frame(camera, f))]
    return pipeline, results + list(pipeline.flush())


def off(walk, results, first):
    """Largest error of poses, first window's unit taken out."""
    frames, T0 = {f.stamp_ns: f for f in walk[1]}, walk[1][0].T_room_camera
    unit = np.nanmedian(results[0].depth_m / first.depth)
    out = []
    for r in results:
        true = invert_pose(T0) @ frames[r.stamp_ns].T_room_camera
        T = (r.T_odom_map @ r.T_map_camera).copy()
        T[:3, 3] /= unit
        out.append(np.abs(T - true).max())
    return max(out)


@pytest.mark.slow
@pytest.mark.parametrize("new", long_after(1, [1, 3]))
@pytest.mark.parametrize(
    "sizes", long_after(1, [{0: 140, 2: 84, 5: 112}, {0: 140, 4: 84}, {0: 84, 4: 140}])
)
def test_a_changed_plan_joins_the_scene_at_the_new_size(walk, sizes, new):
    camera, frames = walk
    session = Budgeted(frames, sizes)
    pipeline, results = run(walk, session, **{"window.new": new})
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames]
    assert len(set(session.shapes)) == len(sizes)
    assert {r.window.chain for r in results} == {0}
    assert all(r.window.aligned for r in results)
    assert pipeline.map.pose_known
    first = frames[0] if session.sizes[0] == 140 else small(walk, results)
    assert off(walk, results, first) < 0.02
    unit = np.nanmedian(results[0].depth_m / first.depth)
    T = frames[0].T_room_camera
    points = pipeline.map.cloud().xyz / unit @ T[:3, :3].T + T[:3, 3]
    assert np.percentile(np.asarray(distance_to_surface(camera.room, points)), 95) < 0.05


def small(walk, results):
    """The first frame's truth at the size of its result."""
    shape = results[0].depth_m.shape
    step = walk[1][0].depth.shape[0] / shape[0], walk[1][0].depth.shape[1] / shape[1]
    rows, columns = np.indices(shape)
    picked = walk[1][0].depth[
        ((rows + 0.5) * step[0]).astype(int), ((columns + 0.5) * step[1]).astype(int)
    ]
    return types.SimpleNamespace(depth=picked)


def test_covariance_goes_on_through_a_change_of_size(walk):
    _, results = run(walk, Budgeted(walk[1], {0: 140, 6: 84}))
    assert all(r.covariance_map is not None for r in results)
    sizes = [np.trace(r.covariance_odom) for r in results]
    assert sizes[6] < 10 * sizes[5] + 1e-6


def test_cuts_that_add_up_to_too_much_are_refused(walk):
    """The newest view must stay: without it the next window would begin anew, as if exact."""
    pipeline = Pipeline(settings(), TruthSession(walk[1]))
    for f in walk[1][:6]:
        list(pipeline.push(to_frame(walk[0], f)))
    height, width = pipeline.odometry.overlap_views.newest.view.image.shape[:2]
    less = int(0.75 * height)
    assert pipeline._steps.resize(ImageFormat("", (less, width, 3), ResizeRule(140)))
    assert not pipeline._steps.resize(
        ImageFormat("", (less, int(0.7 * width), 3), ResizeRule(140))
    )
    assert pipeline.odometry.overlap_views.newest.view.image.shape[:2] == (less, width)


@pytest.mark.slow
def test_another_camera_resolution_joins_too(walk):
    """A driver that switches to a wider mode in mid-stream, with its own camera_info."""
    camera, frames = walk
    wide = SyntheticCamera(seed=3, size=(140, 84), walk="loop", frames=24)
    mixed = frames[:10] + list(wide)[10:]
    pipeline = Pipeline(settings(), TruthSession(mixed))
    results = []
    for i, f in enumerate(mixed):
        results += list(pipeline.push(to_frame(camera if i < 10 else wide, f)))
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in mixed]
    assert {r.window.chain for r in results} == {0}
    assert all(r.window.aligned for r in results)
    assert off(walk, results, frames[0]) < 0.02


def test_where_too_little_is_left_the_pose_is_held(caplog):
    """From a wide picture to a tall one: odometry goes on with unknown covariance."""
    wide = SyntheticCamera(seed=3, size=(140, 56), walk="straight", frames=12)
    tall = SyntheticCamera(seed=3, size=(56, 140), walk="straight", frames=12)
    mixed = list(wide)[:6] + list(tall)[6:]
    pipeline = Pipeline(settings(), TruthSession(mixed))
    results = []
    for i, f in enumerate(mixed):
        results += list(pipeline.push(to_frame(wide if i < 6 else tall, f)))
    assert len(results) == 12
    assert "the pose is held" in caplog.text
    np.testing.assert_allclose(results[6].T_map_camera, results[5].T_map_camera, atol=1e-9)
    assert np.linalg.norm(results[5].T_map_camera[:3, 3]) > 0.05  # and not at the origin
    assert not pipeline.map.pose_known
    assert all(r.covariance_odom is None for r in results[6:])


def test_stamps_are_compared_across_a_change_of_size():
    wide = SyntheticCamera(seed=3, size=(140, 56), walk="straight", frames=4)
    tall = SyntheticCamera(seed=3, size=(56, 140), walk="straight", frames=4)
    frames = [*list(wide)[:3], list(tall)[3]]
    pipeline = Pipeline(settings(), TruthSession(frames))
    for f in frames:
        list(pipeline.push(to_frame(tall if f is frames[3] else wide, f)))
    again = to_frame(wide, frames[2])
    assert not list(pipeline.push(again))
    assert pipeline.counters["dropped_late"] == 1
    assert pipeline.counters["time_jumps"] == 0


@pytest.mark.parametrize("new", [(84, 112, 3), (112, 84, 3), (56, 70, 3), (168, 224, 3)])
def test_a_cut_image_is_the_same_camera(new):
    """What a pixel's ray meets does not change: image, K and pixels of depth go together."""
    camera = SyntheticCamera(seed=2, size=(140, 112), walk="straight", frames=1)
    frame = next(iter(camera))
    view = View(0, frame.stamp_ns, frame.image, frame.K)
    pixels = np.flatnonzero(np.isfinite(frame.depth))[::3]
    overlap_view = OverlapView(
        view, frame.K, np.eye(4), pixels, frame.depth.reshape(-1)[pixels], np.ones(len(pixels))
    )
    cut = Cut.of(frame.image.shape, new)
    out = cut.row(overlap_view)
    assert out.view.image.shape == new
    assert len(np.unique(out.pixels)) == len(out.pixels) > 0.2 * min(len(pixels), new[0] * new[1])
    true = dataclasses.replace(overlap_view, pixels=np.arange(frame.depth.size)).rays()
    directions = out.rays()
    column, row = ((directions @ frame.K.T)[:, :2]).T
    seen = frame.depth[row.astype(int), column.astype(int)]
    assert np.median(np.abs(seen / out.depth - 1)) < 0.01
    assert true.shape == (frame.depth.size, 3)


def test_a_cut_that_leaves_too_little_is_none():
    assert Cut.of((56, 140, 3), (140, 56, 3)) is None
    assert Cut.of((112, 140, 3), (70, 84, 3)) is not None


def alternating(walk, wide, every, **values):
    """Two resolutions in turn, each for ``every`` frames; results and pipeline."""
    camera, frames = walk
    other = list(wide)
    mixed = [frames[i] if i // every % 2 == 0 else other[i] for i in range(len(frames))]
    pipeline = Pipeline(settings(**values), TruthSession(mixed))
    results = []
    for i, f in enumerate(mixed):
        results += list(pipeline.push(to_frame(camera if i // every % 2 == 0 else wide, f)))
    return pipeline, results + list(pipeline.flush()), mixed


@pytest.fixture(scope="module")
def wide():
    return SyntheticCamera(seed=3, size=(140, 84), walk="loop", frames=24)


def test_frames_that_wait_follow_a_change_of_size(walk, wide):
    """The change comes while two of three frames wait: depth and K of the cut picture go out."""
    pipeline, results, mixed = alternating(
        walk, wide, 8, **{"window.new": 3, "depth.size": "input"}
    )
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in mixed]
    assert pipeline.counters["poses_held"] == 0
    assert {r.window.chain for r in results} == {0}
    for r, f in zip(results, mixed, strict=True):
        np.testing.assert_allclose([r.K[0, 0], r.K[1, 1]], [f.K[0, 0], f.K[1, 1]], rtol=1e-6)
        assert r.image.shape[:2] == r.depth_m.shape


def test_a_change_before_the_first_window_keeps_the_chain(walk, wide):
    values = {"window.new": 3, "scale.source": "fixed"}
    pipeline, results, _ = alternating(walk, wide, 2, **values)
    first = [r for r in results if r.window.chain == 0]
    assert len(first) >= 3
    assert all(r.scale.metric for r in first)
    assert len(pipeline.poses()) >= 3


@pytest.mark.slow
def test_sizes_in_turn_do_not_zoom_what_is_shared(walk, wide):
    pipeline, results, _ = alternating(walk, wide, 3)
    for overlap_view in pipeline.odometry.overlap_views.all():
        assert overlap_view.kept >= 0.6
        assert overlap_view.K[0, 0] < 2 * walk[1][0].K[0, 0]
    assert {r.window.chain for r in results} == {0}


@pytest.mark.long
@pytest.mark.slow
def test_keyframes_of_yet_another_size_are_left_alone(walk):
    """Loops remember places of sizes that no cut connects: 140x56, then 56x140, then 70x140."""
    cameras = [SyntheticCamera(seed=3, size=s, walk="straight", frames=18)
               for s in ((140, 56), (56, 140), (70, 140))]  # fmt: skip
    mixed = [list(cameras[i // 6])[i] for i in range(18)]

    class Looking(TruthSession):
        def infer(self, window):
            found = super().infer(window)
            descriptor = np.random.default_rng(0).normal(size=(len(window.views), 16))
            return dataclasses.replace(found, descriptor=descriptor.astype(np.float32))

    pipeline, results = Pipeline(settings(**{"keyframe.parallax": 0.0}), Looking(mixed)), []
    for i, f in enumerate(mixed):
        results += list(pipeline.push(to_frame(cameras[i // 6], f)))
    assert len(results) == 18


def test_masks_are_cut_with_their_pictures():
    cut = Cut.of((112, 140, 3), (84, 140, 3))
    mask = np.ones((112, 140), bool)
    mask[:20] = False
    out = cut.mask(mask)
    assert out.shape == (84, 140)
    assert not out[:5].any()
    assert out[8:].all()


@pytest.mark.parametrize(("size", "network"), [((112, 168), (84, 126)), ((168, 112), (126, 84))])
@pytest.mark.parametrize("depth", ["network", "input"])
def test_the_shortest_side_can_be_the_given_one(size, network, depth):
    """Of images of either shape; depth at the camera's size stays there."""
    camera = SyntheticCamera(seed=3, size=size, walk="straight", frames=4)
    frames = list(camera)
    pipeline, results = run(
        (camera, frames), TruthSession(frames), process_res=84,
        process_res_method="lower_bound_resize", **{"depth.size": depth},
    )  # fmt: skip
    assert pipeline.builder.network_size == network
    shown = size if depth == "input" else network
    assert [r.depth_m.shape for r in results] == [shown[::-1]] * 4
    assert off((camera, frames), results, at_size(frames[:1], shown)[0]) < 0.02
