"""The live node while its camera shows nothing."""

import dataclasses

import bench_blind
import numpy as np
import pytest
from lifecycle_msgs.msg import Transition
from support import ros_testing as rt
from support.live_node import LiveNode

from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process

SEEN, DARK = 6, 4


@pytest.mark.long
def test_covered_images_get_held_poses_no_depth_and_a_warning(monkeypatch):
    camera = SyntheticCamera(seed=2, size=(140, 112), walk="straight", frames=SEEN + DARK + 2)
    frames = [
        dataclasses.replace(f, image=bench_blind.lens_cap(f.image, i, f.image))
        if SEEN <= i < SEEN + DARK
        else f
        for i, f in enumerate(camera)
    ]
    values = {"refinement.enabled": False, "window.size": 4}
    with LiveNode(monkeypatch, camera, frames, TruthSession, **values) as live:
        health = rt.collect(live.node, "diagnostic_msgs/msg/DiagnosticArray", "/diagnostics")
        odom = rt.collect(live.node, "nav_msgs/msg/Odometry", "/da3/odom")
        assert live.change(Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
        for count in range(1, len(frames) + 1):
            live.show()
            live.until(lambda count=count: len(live.depths) == len(odom) == count)
        known = [np.isfinite(np.frombuffer(bytes(m.data), np.float32)).any() for m in live.depths]
        assert known == [True] * SEEN + [False] * DARK + [True] * 2
        places = np.array([[getattr(m.pose.pose.position, a) for a in "xyz"] for m in odom])
        assert np.ptp(places[SEEN - 1 : SEEN + DARK], axis=0).max() < 1e-9
        live.until(
            lambda: any("images show nothing (dark)" in m.status[0].message for m in health)
        )
        newest = {v.key: v.value for v in health[-1].status[0].values}
        assert newest["blind_dark"] == str(DARK)
        assert health[-1].status[0].level == b"\x01"
