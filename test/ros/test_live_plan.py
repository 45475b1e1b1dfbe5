"""A memory budget that changes while frames flow: the robot goes on where it was."""

import types

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import ACTIVATE, CONFIGURE
from support.robot import matrix

from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import BudgetError
from da3_ros.inference.interfaces import Memory
from da3_ros.synthetic import SyntheticCamera, distance_to_surface
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import ResizeRule

pytestmark = pytest.mark.process

SMALL_GB = 0.5
ALL_SAID = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
LATE_GB = 0.25  # fits when it is checked, and not when it is applied


class Budgeted(TruthSession, Memory):
    """Without a fault; a small budget makes its images small."""

    memory = property(lambda self: self)

    def __init__(self, frames):
        super().__init__(frames)
        self.process_res, self.shapes = 140, []

    def set_budget(self, memory_budget_gb):
        self.process_res = 84 if memory_budget_gb == SMALL_GB else 140

    def fit(self, image, window, new):
        return types.SimpleNamespace(rule=ResizeRule(self.process_res), window=window, new=new)

    def infer(self, window):
        self.shapes.append(window.views[0].image.shape)
        return super().infer(window)


class Refusing(TruthSession, Memory):
    """Finds out late that a budget does not fit."""

    memory = property(lambda self: self)

    def __init__(self, frames):
        super().__init__(frames)
        self.budgets = []

    def set_budget(self, memory_budget_gb):
        self.budgets.append(memory_budget_gb)
        if memory_budget_gb == LATE_GB:
            raise BudgetError("nothing fits")


def set_budget(live, value):
    set_parameter(live, "memory_budget_gb", value)


def set_parameter(live, name, value):
    client = live.node.create_client(SetParameters, "/da3/set_parameters")
    live.until(client.service_is_ready)
    change = Parameter(name, value=value).to_parameter_msg()
    answer = client.call_async(SetParameters.Request(parameters=[change]))
    live.until(answer.done)
    assert answer.result().results[0].successful, answer.result()


@pytest.mark.long
def test_the_mode_changes_while_frames_flow(monkeypatch):
    """The map stops to grow, and grows again."""
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="strafe", frames=18)
    frames, sizes, submaps = list(camera), [], []
    values = {"keyframe.parallax": 0.02}
    with LiveNode(monkeypatch, camera, frames, TruthSession, **values) as live:
        assert live.change(CONFIGURE, ACTIVATE)
        pipeline = live.da3.runner.stream.pipeline
        for n in range(len(frames)):
            if n in (6, 12):
                set_parameter(live, "mode", "localization" if n == 6 else "mapping")
            live.show()
            live.until(lambda n=n: pipeline.counters["processed"] > n)
            sizes.append(len(pipeline.map))
            submaps.append(len(pipeline.map.submaps))
        assert pipeline.map.pose_known
    # Depth that was measured until then belongs to the map. Later points vary: they are measured.
    assert min(sizes[:6]) > 1000
    assert sizes[6] == sizes[11] < sizes[12]
    assert sizes[11] < sizes[17]
    assert submaps[5] == submaps[11] < submaps[17]


def test_a_budget_refused_late_disturbs_no_other_change(monkeypatch):
    """A budget that is refused late is not kept and disturbs no other change."""
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=1)
    with LiveNode(monkeypatch, camera, list(camera), Refusing, memory_budget_gb=2.0) as live:
        rosout = rt.collect(live.node, "rcl_interfaces/msg/Log", "/rosout", ALL_SAID)
        statuses = rt.collect(live.node, "da3_ros/msg/Status", "/da3/status", rt.LATCHED)
        assert live.change(CONFIGURE)
        stream, checked = live.da3.runner.stream, []
        monkeypatch.setattr(stream.session.memory, "check_budget", checked.append)
        set_budget(live, LATE_GB)
        set_parameter(live, "depth.min_confidence", 1.5)
        live.until(lambda: stream.config.pipeline.depth.min_confidence == 1.5)
        live.until(lambda: live.da3.get_parameter("memory_budget_gb").value == 2.0)
        live.until(lambda: statuses and "nothing fits" in statuses[-1].last_error)
        set_parameter(live, "depth.min_confidence", 2.5)
        live.until(lambda: stream.config.pipeline.depth.min_confidence == 2.5)
        assert stream.config.pipeline.inference.memory_budget_gb == 2.0
        set_budget(live, 3.0)
        live.until(lambda: stream.config.pipeline.inference.memory_budget_gb == 3.0)
        live.until(lambda: not live.da3.parameter_changes.pending)  # it was checked
        assert live.da3.get_parameter("memory_budget_gb").value == 3.0
        live.until(lambda: [m for m in rosout if "nothing fits" in m.msg])
        said = [m.msg for m in rosout if "nothing fits" in m.msg]
    assert live.networks[-1].budgets == checked == [LATE_GB, 3.0]
    assert said == ["memory_budget_gb: nothing fits; the old plan stays"]


@pytest.mark.long
def test_a_live_budget_changes_neither_path_nor_map(monkeypatch):
    camera = SyntheticCamera(seed=3, size=(140, 112), walk="loop", frames=18)
    frames = list(camera)
    values = {"window.size": 5, "map.voxel_m": 0.03}
    with LiveNode(monkeypatch, camera, frames, Budgeted, **values) as live:
        odometry = rt.collect(live.node, "nav_msgs/msg/Odometry", "/da3/odom")
        assert live.change(CONFIGURE, ACTIVATE)
        live.until(lambda: rt.matched(live.images) and rt.matched(live.infos))
        live.until(lambda: live.publishers("/da3/odom"))
        rt.spin_until(live.node, lambda: False, 1.0)
        for n in range(len(frames)):
            if n in (6, 12):
                set_budget(live, SMALL_GB if n == 6 else 2.0)
            live.show()
            live.until(lambda n=n: len(odometry) > n)
        shapes = live.networks[-1].shapes
        cloud = live.da3.runner.stream.pipeline.map.cloud().xyz
    assert [rt.stamp_ns(m) for m in odometry] == [f.stamp_ns for f in frames]
    assert {shape[1] for shape in shapes[:6]} == {shape[1] for shape in shapes[12:]} == {140}
    assert {shape[1] for shape in shapes[6:12]} == {84}

    found = [matrix(as_transform(m.pose.pose)) for m in odometry]
    found = [invert_pose(found[0]) @ T for T in found]
    true = [invert_pose(frames[0].T_room_camera) @ f.T_room_camera for f in frames]
    unit = np.linalg.norm(found[5][:3, 3]) / np.linalg.norm(true[5][:3, 3])
    for a, b in zip(found, true, strict=True):
        np.testing.assert_allclose(a[:3, :3], b[:3, :3], atol=0.02)
        np.testing.assert_allclose(a[:3, 3] / unit, b[:3, 3], atol=0.02)
    T = frames[0].T_room_camera
    points = cloud / unit @ T[:3, :3].T + T[:3, 3]
    assert np.percentile(np.asarray(distance_to_surface(camera.room, points)), 95) < 0.05


def as_transform(pose):
    """A pose message's fields by a transform's names."""
    return types.SimpleNamespace(translation=pose.position, rotation=pose.orientation)
