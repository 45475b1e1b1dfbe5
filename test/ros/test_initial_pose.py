"""RViz's tool for the robot's pose narrows the search in a loaded map."""

import math

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from geometry_msgs.msg import PoseWithCovarianceStamped
from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import camera_frames
from support.pipelines import settings, to_frame

from da3_ros.export.scene_file import save_scene
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.ros.initial_pose import MAX_SIGMA, SIGMA, sigma_of
from da3_ros.synthetic.truth import TruthSession

UP = (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)


@pytest.fixture
def live(monkeypatch, tmp_path):
    """A node that begins in a saved scene."""
    camera, frames = camera_frames(6)
    pipeline = Pipeline(settings(), TruthSession(frames))
    for frame in frames:
        list(pipeline.push(to_frame(camera, frame)))
    save_scene(pipeline.snapshot(), tmp_path / "monday")
    values = {"export_dir": str(tmp_path), "map.load": "monday"}
    with LiveNode(monkeypatch, camera, frames, TruthSession, **values) as live:
        assert live.change(*UP)
        yield live


def message(frame="map", x=1.0, y=-2.0, variance=0.25):
    out = PoseWithCovarianceStamped()
    out.header.frame_id = frame
    out.pose.pose.position.x, out.pose.pose.position.y = x, y
    out.pose.covariance[0] = out.pose.covariance[7] = variance
    return out


def test_a_pose_in_the_map_narrows_the_search(live):
    publisher = live.node.create_publisher(PoseWithCovarianceStamped, "/initialpose", rt.RELIABLE)
    live.until(lambda: rt.matched(publisher))
    search = live.da3.runner.stream.pipeline.pose_search
    for unusable in (message("odom"), message(x=math.nan), message(variance=-1.0)):
        publisher.publish(unusable)
    publisher.publish(message(y=3.0))
    live.until(lambda: search.hint is not None)
    assert (search.hint.position == [1.0, 3.0, 0.0]).all()
    assert search.hint.sigma == 0.5
    assert live.change(Transition.TRANSITION_DEACTIVATE)
    live.until(lambda: not live.node.get_subscriptions_info_by_topic("/initialpose"))


def test_a_covariance_gives_the_larger_side():
    values = [0.0] * 36
    assert sigma_of(values) == SIGMA
    values[7] = 4.0
    assert sigma_of(values) == 2.0
    values[0] = 1e30
    assert sigma_of(values) == MAX_SIGMA
    for bad in (math.nan, -1.0, math.inf):
        assert sigma_of([1.0] * 7 + [bad] + [1.0] * 28) is None
