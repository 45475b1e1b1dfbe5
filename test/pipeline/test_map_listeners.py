"""What is derived from the map is told of each change of its poses, whatever the cause."""

import numpy as np
import pytest
from support import slam
from support.ring import STEP_NS, walked
from support.sessions import LATER, opened, push, resumed, saved

from da3_ros.mapping.map_table import MapListener
from da3_ros.mapping.pose_hint import PoseHint
from da3_ros.pipeline.pipeline import Pipeline

LOCALIZE = {"mode": "localization"}


class Mirror(MapListener):
    """Has the poses of all submaps, by what it is told alone; not of new submaps."""

    def __init__(self, table):
        self.table, self.poses, self.told = table, {}, []
        table.listeners.append(self)

    def look(self):
        """Notes new submaps; checks that no other one has moved without a word."""
        assert self.is_right()
        self.poses = {i: s.T_map_submap for i, s in self.table.submaps.items()}

    def is_right(self):
        now = {i: s.T_map_submap for i, s in self.table.submaps.items() if i in self.poses}
        return all(T.is_same(self.poses[i]) for i, T in now.items())

    def on_clear(self):
        self.poses, self.told = {}, [*self.told, "clear"]

    def on_correction(self, correction, before):
        assert all(T.is_same(before[i]) for i, T in self.poses.items() if i in before)
        self.poses = {i: s.T_map_submap for i, s in self.table.submaps.items()}
        self.told.append("followed" if correction.followed else "loop")


def watched(pipeline, frames, step=1):
    mirror = Mirror(pipeline.map.table)
    for i in range(0, len(frames), step):
        push(pipeline, frames[i : i + step])
        mirror.look()
    return mirror


@pytest.fixture(scope="module")
def ring():
    return walked(110, 1.0)


def again(ring, first_ns):
    return [
        f.__class__(first_ns + i * STEP_NS, f.depth, f.T_room_camera, f.K)
        for i, f in enumerate(ring)
    ]


@pytest.fixture(scope="module")
def mapped(ring):
    walk = [*ring, *again(ring, ring[-1].stamp_ns + STEP_NS)[:25]]
    pipeline = opened(walk, metric=True)
    return pipeline, watched(pipeline, walk), walk


@pytest.mark.long
def test_a_loop_is_told_once(mapped):
    pipeline, mirror, _ = mapped
    assert pipeline.loops.closed
    assert mirror.told == ["loop"] * pipeline.loops.closed


@pytest.mark.long
@pytest.mark.slow
def test_a_saved_map_and_a_pose_set_by_hand_are_told(mapped, ring, tmp_path):
    """A camera that is found in a loaded map, and again where it is said to be."""
    walk = again(ring, LATER)
    folder = saved(mapped[0], tmp_path)
    pipeline = resumed(folder, mapped[2], walk, metric=True, **LOCALIZE)
    before = {i: s.T_map_submap for i, s in pipeline.map.submaps.items()}
    mirror = watched(pipeline, walk[20:60])
    assert mirror.told == ["loop"] * pipeline.loops.closed
    assert pipeline.map.pose_known
    told = len(mirror.told)
    here = np.array([*pipeline.poses().rows["T"][-1, :, 3], 1.0])
    x, y, *_ = pipeline.scene_map.T_ros_map @ here
    assert pipeline.look_near(PoseHint.on_map(x, y, 3.0))
    for f in walk[60:100]:
        push(pipeline, [f])
        mirror.look()
    assert pipeline.map.pose_known
    assert len(mirror.told) > told
    assert all(before[i].is_same(s.T_map_submap) for i, s in pipeline.map.submaps.items())


@pytest.mark.long
def test_another_slam_is_told():
    frames, priors = slam.drifting_walk()
    talk = slam.by_tf(frames, priors, {100})
    mirrors = []
    made = Pipeline.__init__

    def init(self, *args, **values):
        made(self, *args, **values)
        mirrors.append(Mirror(self.map.table))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "__init__", init)
        pipeline, _ = slam.run((frames, priors), slam.settings("tf"), talk)
    assert pipeline.scene_map.following.count == 1
    assert mirrors[0].told == ["followed"]
    mirrors[0].look()


def test_a_reset_is_told(ring):
    later = again(ring, LATER)[:10]
    pipeline = opened([*ring, *later])
    mirror = watched(pipeline, ring[:10])
    pipeline.reset()
    assert mirror.told == ["clear"]
    assert not pipeline.map.table.submaps
    assert not len(pipeline.map.table.path)
    push(pipeline, later)
    assert len(pipeline.map.table.path) == 10


def test_a_move_without_a_word_is_found(ring):
    pipeline = opened(ring)
    mirror = watched(pipeline, ring[:10])
    table = pipeline.map.table
    first = next(iter(table.submaps))
    table.set_poses({first: table.submaps[first].T_map_submap.scaled(1.1)})
    assert not mirror.is_right()
