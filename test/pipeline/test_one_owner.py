"""The map owns its poses: no other object keeps one that a row of its table has, or has had."""

import contextlib
import hashlib
from collections import deque

import numpy as np
import pytest
from scipy.spatial import cKDTree
from support.pipelines import to_frame
from support.ring import DescribedTruth

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping import submaps
from da3_ros.mapping.map_table import MapListener
from da3_ros.mapping.submap_spill import Submap
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import Outputs
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.replay.replay_state import ReplayState
from da3_ros.replay.results import ReplayOptions, WarnOnce
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import Noise
from da3_ros.types import ImuNoise

OWNERS = {"MapTable", "Submap", "Trajectory"}
# What may have a pose of the map's rows, by the ends of the ways to it, and why.
ON_ITS_WAY = "waits for the disk, in order: a later pose of the frame comes after it"
OF_A_CAMERA = "where a camera was last, or began to stand, and not where a keyframe is"
EXCEPTIONS = {
    "WindowOdometry.newest": OF_A_CAMERA,
    "Sight._poses": OF_A_CAMERA,
    "SeenCamera.last/TrackedFrame.T_map_camera": OF_A_CAMERA,
    "_Stand.T_local_camera": OF_A_CAMERA,
    "GravityFilter._last": OF_A_CAMERA,
    "KeyframeRecorder._changes/_Changes.frames/FramePose.T_submap_camera": ON_ITS_WAY,
    "KeyframeRecorder._changes/_Changes.poses": ON_ITS_WAY,
    "_Carved.T_map_submap": "what the grid was carved from, to know when it must be carved anew",
}
# What may have an image, depth or confidence that a row has, or that was published, and why.
WHILE_MEASURED = "neighbours are compared with it until its depth stays"
ARRAYS = {
    "_Kept.keyframe/Measurable.image": WHILE_MEASURED,
    "_Kept.keyframe/Measurable.confidence": WHILE_MEASURED,
    "Measured.keyframe/Measurable.image": "the newest of its camera, which corrects live depth",
    "Measured.keyframe/Measurable.confidence": "the same",
    "ImageCheck._past/_Past.image": "the newest of its camera, to see whether images freeze",
    "_Stand.since/View.image": "that at which a camera began to stand",
}
LARGE = 200  # elements of an array of a view, at least
# What may have such poses because the map tells it of every change: they must be those of now.
FOLLOWERS = {"ImuFilter._keyframes/PathPose.T_local_camera"}
# A walk of a few seconds, in which all that makes or follows the map's poses is at work.
VALUES = {
    "process_res": 140, "window.size": 6, "loop.every": 1, "map.remove_movers": True,
    "imu.enabled": True, "level.source": "imu", "scale.source": "imu",
}  # fmt: skip
NOISE = Noise(smooth=0.05, per_frame=0.02, rotation_deg=0.3, translation=0.01)


def matrices(array):
    """The poses [3, 4] in an array: of a table's rows, or of one or more poses."""
    if array.dtype.names:
        fields = (array[name] for name in array.dtype.names)
        return [T for field in fields if field.shape[-2:] == (3, 4) for T in field]
    if array.ndim < 2 or array.shape[-2:] not in ((3, 4), (4, 4)):
        return []
    return list(array.reshape(-1, *array.shape[-2:])[:, :3])


def below(root, wanted=(np.ndarray, Similarity)):
    """Yields the way to each array and similarity below an object of ours that is not the map's
    table, and the array or similarity; or to what else is wanted."""
    seen, todo = set(), deque([("", root)])
    while todo:
        way, one = todo.popleft()
        if isinstance(one, wanted):  # also one that a row has: it stays there
            yield way, one
        if id(one) in seen or type(one).__name__ in OWNERS:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            todo.extend((way, value) for value in one.values())
        elif isinstance(one, list | tuple | set | frozenset | deque):
            todo.extend((way, value) for value in one)
        elif type(one).__module__.startswith("da3_ros.") and not isinstance(one, Similarity):
            name = type(one).__name__
            todo.extend((f"{way}/{name}.{key}", value) for key, value in vars(one).items())


def poses_in(root):
    """Yields the way to each pose [3, 4] below an object, and the pose."""
    for way, one in below(root):
        if isinstance(one, Similarity):
            yield way, np.column_stack((one.R, one.t))
        else:
            yield from ((way, T) for T in matrices(one))


def arrays_in(root):
    """Yields the way to each large array below an object, and the array."""
    for way, one in below(root):
        if isinstance(one, np.ndarray) and one.dtype != object and one.size >= LARGE:
            yield way, one


def content(array):
    return hashlib.sha256(array.tobytes()).digest()


def rows_of(table):
    """All poses [3, 4] of a map's table now: of submaps, and of frames, views and keyframes, in
    their submaps, in odometry and in the map."""
    found = []
    for id, submap in table.submaps.items():
        for S in (submap.T_map_submap, table.T_local_submap(id)):
            found.append(np.column_stack((S.R, S.t)))
    path = table.path.poses().rows
    rows = [*zip(path["submap"].tolist(), path["T"], strict=True)]
    rows += [(r.submap, r.T_submap_camera) for r in table.shared.values()]
    rows += [(r.submap, r.T_submap_camera) for r in table.keyframes.values()]
    for submap, T in rows:
        T_local = table.T_local_submap(submap).pose(T)
        found += [T[:3], T_local[:3], table.T_map_local.pose(T_local)[:3]]
    return found


class Known:
    """Poses that are compared with those of other objects."""

    def __init__(self, poses):
        # The first view of a submap is its frame: the identity is no copy of anything.
        some = [T for T in poses if np.abs(T - np.eye(4)[:3]).max() > 1e-6]
        self._tree = cKDTree(np.array(some).reshape(-1, 12))

    def has(self, T):
        return np.isfinite(T).all() and self._tree.query(T.reshape(12), p=np.inf)[0] < 1e-9


class Ever(MapListener):
    """All poses that a map's rows have ever had, and frames when they were published; and what
    was told of each frame last."""

    def __init__(self, table):
        self.table, self.poses, self.told = table, [], {}
        table.listeners.insert(0, self)

    def look(self):
        self.poses += rows_of(self.table)

    def on_correction(self, correction, before):
        self.look()

    def on_refinement(self, frames):
        self.look()
        self.told |= {f.stamp_ns: (f.submap, f.T_submap_camera[:3]) for f in frames}


class Run:
    """A replay of a walk that ends where it began, up to its last frame."""

    def __init__(self, stack, folder):
        camera = SyntheticCamera(3, (140, 112), walk="loop", frames=26, rate_hz=2.5)
        frames = list(camera)
        settings = config_from_parameters(VALUES, NodeConfig)
        self.pipeline = Pipeline(settings.pipeline, DescribedTruth(frames, noise=NOISE))
        self.ever = Ever(self.pipeline.map.table)
        annotator = FrameAnnotator(settings.pipeline, TransformTree(), None, WarnOnce())
        self.state = ReplayState.open(
            stack, folder, ReplayOptions(folder, folder), settings, annotator,
            {"": self.pipeline}, None,
        )  # fmt: skip
        self._outputs = Outputs(
            RosbagsLibrary(), settings.pipeline, T_ros_map=lambda: np.eye(4), tf=lambda frame: []
        )
        self.heard = []  # messages of windows, and where the map had their views then
        self.ways_between = set()  # windows
        self.contents, self.ways_of_arrays = set(), set()  # of views' arrays
        stamps = np.array([f.stamp_ns for f in frames])
        samples = imu_samples(camera.T_room_camera, stamps, noise=ImuNoise(), seed=3)
        for k, imu in enumerate([None, *samples.stretches(stamps)]):
            self._take(self.pipeline.push(to_frame(camera, frames[k], imu=imu)))
            if k % 5 == 4:
                self.ways_between |= self.ways()
                arrays = arrays_in(self.state)
                self.ways_of_arrays |= {way for way, a in arrays if content(a) in self.contents}
        self._take(self.pipeline.flush())

    def _take(self, results):
        for result in results:
            self.state.first.take(result)
            self._note_arrays([result.image, result.depth_m, result.confidence])
            self.ever.poses += [
                result.T_map_camera[:3],
                (result.T_odom_map @ result.T_map_camera)[:3],
            ]
            for topic, _, message in self._outputs.frame(result, lambda topic: topic == "window"):
                if topic == "window":
                    self.heard.append((message, self._now(result)))
        self.ever.look()
        table = self.pipeline.map.table
        for row in (*table.shared.values(), *table.keyframes.values()):
            self._note_arrays([row.view.image, *row.arrays])

    def _note_arrays(self, arrays):
        self.contents |= {content(a) for a in arrays if a is not None and a.size >= LARGE}

    def _now(self, result):
        """Where the map has shared views and the newest frame, by their stamps."""
        table, unit = self.pipeline.map.table, self.pipeline.map.table.metres
        now = {}
        for id, row in table.shared.items():
            T = table.T_map_local.pose(table.view(id).T_local_camera)
            T[:3, 3] *= unit if result.scale.metric else 1.0
            now[row.view.stamp_ns] = T
        return now | {result.stamp_ns: result.T_map_camera}

    def ways(self):
        """The ways to poses that rows have or have had, below all objects of the replay."""
        known = Known(self.ever.poses)
        return {way for way, T in poses_in(self.state) if known.has(T)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(submaps, "KEYFRAMES", 3)  # so that a short walk makes many submaps
        yield Run(stack, tmp_path_factory.mktemp("replay"))


def others(ways):
    """The ways that do not end as an exception does."""
    return {way for way in ways if not way.endswith((*EXCEPTIONS, *FOLLOWERS))}


def test_the_map_was_made_by_all_that_moves_it(run):
    counters = run.pipeline.counters
    print(dict(counters))
    assert run.pipeline.loops.closed
    assert counters["windows_refined"] > 10
    assert counters["map_adjustments"] > 1
    assert run.pipeline.map._dynamic._voters
    assert run.pipeline.scale.filter.estimator._keyframes
    assert len(run.pipeline._steps.refinement.refiner.graph.views) > 5


def test_no_other_object_keeps_a_pose_of_the_map(run):
    assert others(run.ways_between | run.ways()) == set()


def test_each_exception_is_one(run):
    ways = run.ways_between | run.ways()
    assert {end for end in EXCEPTIONS if not any(way.endswith(end) for way in ways)} == set()


def test_submaps_are_in_the_table_alone(run):
    """What has several of them has their ids."""
    found = {way.rpartition("/")[2] for way, _ in below(run.state, Submap)}
    assert found == {"SubmapPoints.newest"}  # the one that grows
    assert len(run.pipeline.map.submaps) == len(run.pipeline.map.table.submaps) > 3


def test_no_other_object_keeps_an_array_of_a_view_without_a_reason(run):
    found = run.ways_of_arrays
    assert {way for way in found if not way.endswith(tuple(ARRAYS))} == set()
    assert {end for end in ARRAYS if not any(way.endswith(end) for way in found)} == set()


def test_what_follows_the_map_has_its_poses_of_now(run):
    now, ever = Known(rows_of(run.pipeline.map.table)), Known(run.ever.poses)
    followed = [T for way, T in poses_in(run.state) if way.endswith(tuple(FOLLOWERS))]
    assert sum(now.has(T) for T in followed) > 10
    assert [T for T in followed if ever.has(T) and not now.has(T)] == []


@pytest.mark.parametrize("make", [
    lambda T: [{1: T.copy()}],
    lambda T: (Similarity(2.0, T[:, :3], T[:, 3]),),
    lambda T: np.array([(7, T)], [("id", "i4"), ("pose", "f8", (3, 4))]),
])  # fmt: skip
def test_a_copy_would_be_found(run, make):
    """Also one of a pose that the map has no longer."""
    now, ever = Known(rows_of(run.pipeline.map.table)), Known(run.ever.poses)
    old = next(T for T in run.ever.poses if ever.has(T) and not now.has(T))
    for holder in (run.pipeline.odometry.prior, run.state.first.results.timeline):
        before = others(run.ways())
        holder.copy = make(old)
        found = others(run.ways()) - before
        del holder.copy
        assert len(found) == 1


def test_path_and_listeners_have_the_refined_poses(run):
    rows = run.pipeline.map.table.path.poses().rows
    path = {int(r["stamp_ns"]): (int(r["submap"]), r["T"]) for r in rows}
    assert len(run.ever.told) > 10
    for stamp_ns, (submap, T) in run.ever.told.items():
        assert path[stamp_ns][0] == submap
        np.testing.assert_array_equal(path[stamp_ns][1], T)


def test_the_map_has_one_pose_of_each_view(run):
    """In rows of views, of keyframes of loops, and of the path."""
    assert len(differences(run.pipeline.map.table)) > 20
    assert max(differences(run.pipeline.map.table)) < 1e-12


def differences(table):
    """Of the poses of views from those of their frames in the path."""
    path, out = table.path, []
    for row in (*table.shared.values(), *table.keyframes.values()):
        T = path.pose_of(row.view.stamp_ns, row.view.camera, row.submap)
        if T is not None:
            out.append(np.abs(T - row.T_submap_camera[:3]).max())
    return out


def test_without_refinement_the_path_has_what_later_windows_say():
    """Not what the first window of a frame said, which is farther from the truth."""
    camera = SyntheticCamera(3, (140, 112), walk="loop", frames=20, rate_hz=2.5)
    frames = list(camera)
    values = {"process_res": 140, "window.size": 6, "refinement.enabled": False,
              "loop.enabled": False, "dense.enabled": False}  # fmt: skip
    settings = config_from_parameters(values, NodeConfig)
    pipeline, published = Pipeline(settings.pipeline, DescribedTruth(frames, noise=NOISE)), []
    for f in frames:
        published += [r.T_map_camera for r in pipeline.push(to_frame(camera, f))]
    published += [r.T_map_camera for r in pipeline.flush()]
    assert max(differences(pipeline.map.table)) < 1e-12
    at = {f.stamp_ns: f.T_room_camera for f in frames}
    rows = pipeline.poses().rows
    true = np.array([at[int(stamp)] for stamp in rows["stamp_ns"]])
    known = trajectory_error(np.array([np.vstack((T, [0, 0, 0, 1])) for T in rows["T"]]), true)
    assert known < 0.8 * trajectory_error(np.array(published), true)


def said(message):
    """Where a window's message has its views, by their stamps."""
    out = {}
    for one in message.frames:
        p, q, T = one.pose.position, one.pose.orientation, np.eye(4)
        T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
        T[:3, 3] = p.x, p.y, p.z
        out[one.header.stamp.sec * 10**9 + one.header.stamp.nanosec] = T
    return out


def test_a_window_lists_its_views_where_the_map_has_them_then(run):
    compared = 0
    for message, now in run.heard:
        for stamp_ns, T in said(message).items():
            if stamp_ns in now:
                np.testing.assert_allclose(T, now[stamp_ns], atol=1e-6)
                compared += 1
    assert compared > 4 * len(run.heard)


def test_the_first_window_after_a_loop_is_of_one_map(run):
    """Its shared views have moved since the window before, and its newest one is placed by
    them."""
    closed = [k for k, (message, _) in enumerate(run.heard) if message.loop_closed]
    assert closed
    for k in closed:
        before, after = (said(run.heard[i][0]) for i in (k - 1, k))
        both = before.keys() & after.keys()
        assert max(np.abs(before[s][:3, 3] - after[s][:3, 3]).max() for s in both) > 1e-3
