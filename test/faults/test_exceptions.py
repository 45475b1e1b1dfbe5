"""An exception anywhere in the node costs at most the frames it hit, and is logged in one line."""

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support.node_process import BROKEN, Rig, camera_frames, values_of

pytestmark = pytest.mark.process

FAULTS = "decode:2,infer:2,build:2,publish:4,callback:8,memory:5,status:3"


def broken_rig(faults):
    return Rig(node=BROKEN, environment={"FAULTS": faults})


def lost_frames(rig):
    """Faults so far that cost a frame: that of the status comes when it likes."""
    output = rig.process.output()
    return output.count("injected in") - output.count("injected in status")


def test_two_callback_errors_within_a_second_are_both_reported():
    camera, frames = camera_frames(2, rate_hz=10)
    with broken_rig("callback:2,size:2") as rig:
        rig.ready()
        rig.show(camera, frames[0])
        rig.process.wait_for("a callback failed: ValueError: injected in callback")
        rig.show(camera, frames[1])
        rig.process.wait_for("a callback failed: TypeError: injected in size")


def test_every_exception_costs_its_own_frame_alone():
    camera, frames = camera_frames(10, rate_hz=10)
    with broken_rig(FAULTS) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for frame in frames:
            known, said = len(depths), lost_frames(rig)
            rig.show(camera, frame)
            rig.until(lambda k=known, s=said: len(depths) > k or lost_frames(rig) > s)
        window, publishing = "a window failed", "publishing a frame failed"
        for name, said in (
            ("decode", f"{window}: RuntimeError: injected in decode"),
            ("infer", f"{window}: RuntimeError: CUDA error: injected in infer"),
            ("build", f"{publishing}: MemoryError: injected in build"),
            ("publish", f"{publishing}: RuntimeError: injected in publish"),
        ):
            assert said in rig.process.output()
            assert rig.process.output().count(f"injected in {name}") == 1
        assert "injected in callback" in rig.process.output()
        # Status goes by its own clock: ten frames may be over before its third message.
        rig.until(lambda: "injected in status" in rig.process.output())
        assert "out of memory: retrying window" in rig.process.output()
        rig.until(lambda: values_of(diagnostics[-1]).get("publish_failed") == "2")
        rig.until(lambda: rig.drops().get("failed") == 2)
        rig.until(lambda: rig.status[-1].frames_received == len(frames) - 1)
        rig.until(lambda: rig.status[-1].frames_processed == len(frames) - 3)
        assert sum(rig.drops().values()) == 2
        assert any("frames are not published" in m.status[0].message for m in diagnostics)
        assert len(depths) == len(frames) - 5, "four of the worker, one of the callback"
        assert rig.status[-1].state == "active"
        assert rig.status[-1].last_error
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
def test_broken_activation_is_one_line_and_can_be_retried():
    with broken_rig("activate:1") as rig:
        rig.process.wait_for("activating failed: RuntimeError: injected in activate")
        rig.until(lambda: rig.status and rig.status[-1].state == "inactive")
        assert "injected in activate" in rig.status[-1].last_error
        from lifecycle_msgs.msg import Transition

        change = Transition(id=Transition.TRANSITION_ACTIVATE)
        done = rig.call("lifecycle_msgs/srv/ChangeState", "/da3/change_state", transition=change)
        assert done.success
        rig.until(lambda: rig.status[-1].state == "active")
        assert "Traceback" not in rig.process.output()


def test_broken_configuration_is_one_line_and_can_be_retried():
    with broken_rig("configure:1") as rig:
        rig.process.wait_for("configuring failed: RuntimeError: injected in configure")
        rig.until(lambda: rig.status and rig.status[-1].state == "unconfigured")
        from lifecycle_msgs.msg import Transition

        change = Transition(id=Transition.TRANSITION_CONFIGURE)
        done = rig.call("lifecycle_msgs/srv/ChangeState", "/da3/change_state", transition=change)
        assert done.success
        rig.until(lambda: rig.status[-1].state == "inactive")
        assert not rig.status[-1].last_error
        assert "Traceback" not in rig.process.output()
