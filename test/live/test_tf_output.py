"""What goes to /tf frame by frame, where other nodes come and go."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.live import scene_output
from da3_ros.live.scene_output import MOST_CHILDREN, TfOutput
from da3_ros.sensors.transform_tree import TransformTree

GONE_S = 5.0
ODOM_BASE = ("odom", "base")


class Stage:
    """A TfOutput, its clock, the other nodes' transforms and what was warned of."""

    def __init__(self, base="base", cameras=(), publish="auto"):
        self.now_s, self.warned = 0.0, []
        self.tree = TransformTree(gone_s=GONE_S, clock=lambda: self.now_s)
        self.tree.add("base", "optical", np.eye(4), 0, static=True)
        config = SimpleNamespace(
            pipeline=SimpleNamespace(
                cameras=cameras, pose_prior=SimpleNamespace(corrections="none")
            ),
            tf=SimpleNamespace(publish=publish),
            base_frame=base,
        )
        outputs = SimpleNamespace(
            map_frame="map", odom_frame="odom",
            T_ros_map=np.eye(4), T_ros_odom=lambda frame: np.eye(4),
        )  # fmt: skip
        self.out = TfOutput(
            config, self.tree, outputs, lambda text, **options: self.warned.append(text),
            prior=False, clock=lambda: self.now_s,
        )  # fmt: skip

    def frame(self, at_s, frame_id="optical", camera="", is_reference=True):
        """The edges of a frame that comes at ``at_s``."""
        self.now_s = at_s
        frame = SimpleNamespace(
            stamp_ns=int(at_s * 1e9), frame_id=frame_id, camera=camera, is_reference=is_reference,
            T_odom_map=np.eye(4), T_map_camera=np.eye(4), scale=SimpleNamespace(metric=True),
        )  # fmt: skip
        return {(parent, child) for parent, child, _ in self.out.edges(frame)}

    def repeated(self, at_s):
        """The edges that are repeated at ``at_s``, and their stamps."""
        self.now_s = at_s
        return {(parent, child): stamp for stamp, parent, child, _ in self.out.repeat()}

    def owner(self, *times_s):
        """Another node publishes odom -> base at these times."""
        for at_s in times_s:
            self.now_s = at_s
            self.tree.add(*ODOM_BASE, np.eye(4), int(at_s * 1e9), owner="/ekf")


@pytest.fixture
def heard(caplog):
    caplog.set_level(logging.INFO, scene_output.__name__)
    return lambda: [r.getMessage() for r in caplog.records if "silent" in r.getMessage()]


def test_an_owner_after_a_reset_and_its_end_are_reported_once(heard):
    stage = Stage()
    assert ODOM_BASE in stage.frame(1.0)
    stage.out.reset()
    stage.owner(2.0, 2.1, 2.2)
    assert ODOM_BASE not in stage.frame(2.1)
    assert ODOM_BASE not in stage.frame(2.2)
    assert len(stage.warned) == 1
    assert "/ekf publishes odom -> base too: da3 stops publishing odom -> base" in stage.warned[0]
    assert ODOM_BASE in stage.frame(20.0)
    assert len(heard()) == 1


def test_an_owner_that_goes_without_frames_is_replaced(heard):
    """An owner that goes while no frames come is taken up again."""
    stage = Stage()
    stage.frame(1.0)
    stage.owner(*np.arange(1.1, 15.0, 0.5))
    assert ODOM_BASE not in stage.repeated(15.0)
    assert len(stage.warned) == 1
    assert stage.repeated(30.0)[ODOM_BASE] == 10**9 + 1
    assert len(heard()) == 1


def test_owners_are_checked_with_nothing_to_repeat(heard):
    stage = Stage()
    stage.frame(1.0)
    stage.out.reset()
    stage.owner(*np.arange(1.1, 15.0, 0.5))
    assert stage.repeated(15.0) == {}
    assert len(stage.warned) == 1
    assert stage.repeated(30.0) == {}
    assert len(heard()) == 1


def test_what_was_left_before_newer_frames_is_not_repeated():
    stage = Stage()
    stage.frame(1.0)
    stage.owner(1.1, 2.0)
    assert ODOM_BASE not in stage.frame(2.5)
    stage.owner(*np.arange(3.0, 15.0, 0.5))
    assert ODOM_BASE not in stage.repeated(30.0)  # the owner is gone, by its stamps too
    assert "base" not in stage.out._yielded
    assert ODOM_BASE in stage.frame(31.0)


def test_names_of_frames_that_change_for_ever_are_not_kept():
    stage = Stage(base="")
    for i in range(3 * MOST_CHILDREN):
        edges = stage.frame(float(i), f"optical_{i}")
        assert ("odom", f"optical_{i}") in edges
    assert len(stage.out._published) == MOST_CHILDREN
    assert {"odom", f"optical_{i}", f"optical_{i - 62}"} <= set(stage.out._published)


def test_a_base_that_another_camera_moved_is_repeated():
    """The first camera missed a frameset, and the second one moved the base in its place."""
    stage = Stage(cameras=("front", "left"))
    stage.tree.add("base", "left_optical", np.eye(4), 0, static=True)
    stage.frame(1.0, camera="front")
    assert ODOM_BASE in stage.frame(1.1, "left_optical", camera="left")
    stage.frame(1.2, camera="front")
    stage.frame(1.2, "left_optical", camera="left", is_reference=False)
    assert set(stage.repeated(3.0)) == {("map", "odom"), ODOM_BASE}


def test_a_node_that_publishes_none_asks_and_keeps_nothing():
    stage = Stage(publish="none")
    stage.tree = stage.out._others = None  # so that a question would be an error
    assert not stage.frame(1.0)
    assert not stage.repeated(3.0)
    assert stage.out._plan is None
    assert not stage.out._published
