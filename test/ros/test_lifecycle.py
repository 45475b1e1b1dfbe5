"""What a lifecycle manager relies on: every way round, and nothing left behind."""

from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from support.node_process import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    Rig,
    camera_frames,
    change,
    set_parameter,
    state_is,
)

pytestmark = pytest.mark.process


def held_mb(rig):
    """Memory of the node's process that is its own, MB."""
    for line in Path(f"/proc/{rig.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no RssAnon")


@pytest.mark.long
def test_another_model_leaves_nothing_of_the_old_behind():
    """Another model takes a cleanup and a configure, and leaves nothing of the old behind."""
    camera, frames = camera_frames(1)
    with Rig(autostart=False, **{"window.size": 2}) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        state_is(rig, "unconfigured")
        clean = []
        for n, model in enumerate(("da3-small", "da3-tiny", "da3-small", "da3-small"), 1):
            assert set_parameter(rig, "model", model).successful
            change(rig, CONFIGURE)
            change(rig, ACTIVATE)
            rig.ready()
            rig.show(camera, frames[0])
            rig.until(lambda n=n: len(depths) == n)
            state_is(rig, "active")
            assert rig.status[-1].model == model
            held = held_mb(rig)
            change(rig, DEACTIVATE)
            change(rig, CLEANUP)
            state_is(rig, "unconfigured")
            clean.append(held_mb(rig))
            if model == "da3-small":
                assert held - clean[-1] > 50, "its weights alone are 69 MB in 16 bits"
        assert clean[-1] - clean[1] < 20, clean
        assert "Traceback" not in rig.process.output()


def test_deactivated_it_hears_nothing_and_goes_on_where_it_was():
    camera, frames = camera_frames(4)
    with Rig() as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: len(depths) == 1)
        change(rig, DEACTIVATE)
        rig.until(lambda: rig.images.get_subscription_count() == 0)
        rig.show(camera, frames[1])
        state_is(rig, "inactive")
        change(rig, ACTIVATE)
        rig.ready()
        rig.show(camera, frames[2])
        rig.until(lambda: len(depths) == 2)
        assert rig.status[-1].map_points > 0
        change(rig, Transition.TRANSITION_ACTIVE_SHUTDOWN)
        state_is(rig, "finalized")
        assert rig.process.stop(timeout_s=20.0) == 0


@pytest.mark.long
def test_a_budget_that_admits_no_window_fails_configuring():
    """A lifecycle manager must not see a healthy node whose windows all fail."""
    with Rig(autostart=False, memory_budget_gb=0.01) as rig:
        state_is(rig, "unconfigured")
        answer = rig.call(
            "lifecycle_msgs/srv/ChangeState", "/da3/change_state",
            transition=Transition(id=CONFIGURE),
        )  # fmt: skip
        assert not answer.success
        rig.until(lambda: "da3-tiny does not fit into 0.01 GiB on cpu" in rig.process.output())
        state_is(rig, "unconfigured")
        assert set_parameter(rig, "memory_budget_gb", 0.0).successful
        change(rig, CONFIGURE)
        state_is(rig, "inactive")
