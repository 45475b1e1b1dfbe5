"""The live node with an IMU."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode
from support.node_process import FRAME, LIB

from da3_ros.inertial.gyro_turns import GyroTurns
from da3_ros.inertial.mount_check import TimeOffset
from da3_ros.messages import build
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process

FRAMES = 8


@pytest.mark.long
def test_frames_get_what_the_imu_measured(monkeypatch):
    camera = SyntheticCamera(seed=2, size=(140, 112), walk="carried", frames=FRAMES)
    frames = list(camera)
    stamps = np.array([f.stamp_ns for f in frames])
    samples = imu_samples(camera.T_room_camera, stamps, rate_hz=100.0)
    values = {"refinement.enabled": False, "window.size": 4, "imu.enabled": True}
    with LiveNode(monkeypatch, camera, frames, TruthSession, **values) as live:
        health = rt.collect(live.node, "diagnostic_msgs/msg/DiagnosticArray", "/diagnostics")
        imu = live.node.create_publisher(LIB.type("sensor_msgs/msg/Imu"), "/imu", rt.RELIABLE)
        assert live.change(Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
        live.until(lambda: rt.matched(imu))
        history = live.da3.runner.stream.imu.history

        def sent():
            """Sends all samples again, since one may be lost; repeated ones do not count."""
            for row in zip(samples.stamps_ns, samples.gyro, samples.acceleration, strict=True):
                imu.publish(build.imu(LIB, int(row[0]), FRAME, *row[1:]))
            return len(history) == len(samples.stamps_ns)

        live.until(sent)
        for count in range(1, FRAMES + 1):
            live.show()
            live.until(lambda count=count: len(live.depths) == count)

        def known():
            return {v.key: v.value for v in health[-1].status[0].values} if health else {}

        # So little rotation shows nothing yet.
        live.until(lambda: known().get("imu") == "unknown")
        assert known()["frames_without_imu"] == "0"
        assert live.change(Transition.TRANSITION_DEACTIVATE)
        live.until(lambda: not rt.matched(imu))


def test_diagnostics_tell_of_the_imu_by_each_camera():
    """In independent mode, of which each has a scene of its own."""
    from da3_ros.ros import status_report as report

    def scene(camera, fault, late_s):
        gyro = GyroTurns()
        gyro.mount.fault, gyro.mount.time_offset_s = fault, TimeOffset(late_s, 0.001)
        scene_map = SimpleNamespace(level_finder=SimpleNamespace(camera=camera))
        return SimpleNamespace(scene_map=scene_map, gyro=gyro, counters=Counter())

    scenes = [scene("front", "", 0.001), scene("left", "it is turned", -0.05), scene("", "", 0.0)]
    stream = SimpleNamespace(imu=SimpleNamespace(without=0), pipelines=scenes)
    told = report._imu(stream)
    assert told["imu_fault"] == "left: it is turned"
    assert told["imu_late_s"] == -0.05
