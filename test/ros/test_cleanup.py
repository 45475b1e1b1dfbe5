"""Cleanup in mid-window waits, or fails and reports it; a reconfigured node has one of each."""

import gc
import signal
import threading
import time
import weakref

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support import ros_testing as rt
from support.live_node import DEPTH, LiveNode
from support.node_process import (
    ACTIVATE,
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    NODES,
    Rig,
    Transition,
    call_async,
    camera_frames,
    change,
)

from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.ros import stream_runner as module
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process

HELD_S = 60.0  # a guard: a window that a test forgot ends by itself


class HeldNetwork(TruthSession):
    """A network without a fault, whose windows last until the test lets them go."""

    def __init__(self, frames):
        super().__init__(frames)
        self.begun, self.go = threading.Event(), threading.Event()

    def infer(self, window):
        self.begun.set()
        assert self.go.wait(HELD_S)
        return super().infer(window)


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


@pytest.fixture
def live(monkeypatch):
    camera, frames = camera_frames(12)
    with LiveNode(monkeypatch, camera, frames, HeldNetwork) as live:
        yield live
        for network in live.networks:
            network.go.set()


def test_cleanup_waits_for_the_window_and_frees_it(live):
    alive = len(threads("da3-worker"))
    for _ in range(2):
        assert live.change(CONFIGURE, ACTIVATE)
        network = weakref.ref(live.networks[-1])
        assert len(threads("da3-worker")) == len(threads("da3-publisher")) == alive + 1
        live.until(lambda: len(live.publishers()) == 1)
        assert len(live.publishers("/tf")) == 1
        live.show()
        live.until(network().begun.is_set)
        assert live.change(DEACTIVATE)
        cleanup = live.ask(CLEANUP)
        rt.spin_until(live.node, cleanup.done, 1.0)
        assert not cleanup.done(), "the window is still under way"
        network().go.set()
        live.until(cleanup.done)
        assert cleanup.result().success
        assert live.state() == "unconfigured"
        live.networks.clear()
        gc.collect()
        assert network() is None, "the old network lives on"
        assert len(threads("da3-worker")) == len(threads("da3-publisher")) == alive
        live.until(lambda: not live.publishers() and not live.publishers("/tf"))


def test_a_cleanup_that_gives_up_leaves_a_node_that_works(live, monkeypatch):
    monkeypatch.setattr(module, "CLEANUP_S", 0.5)
    assert live.change(CONFIGURE, ACTIVATE)
    network = live.networks[-1]
    live.show()
    live.until(network.begun.is_set)
    assert live.change(DEACTIVATE)
    assert not live.change(CLEANUP)
    assert live.state() == "inactive"
    assert "cleanup failed: the running window" in live.da3.log.last_error
    assert "\n" not in live.da3.log.last_error
    assert len(live.publishers()) == 1
    assert live.change(ACTIVATE)  # it goes on with the very network, worker and publishers
    network.go.set()
    live.until(lambda: live.depths)
    known = len(live.depths)
    live.show()
    live.until(lambda: len(live.depths) > known)
    assert live.change(DEACTIVATE, CLEANUP, CONFIGURE, ACTIVATE)
    assert len(live.networks) == 2
    live.networks[-1].go.set()
    known = len(live.depths)
    live.show()
    live.until(lambda: len(live.depths) > known)
    assert len(live.publishers()) == 1


class Rehearsing(InferenceSession):
    """A compiled network, whose rehearsals last until the test lets them go."""

    compile_mode = "reduce-overhead"

    def __init__(self, frames):
        super().__init__(InferenceConfig("da3-tiny", "random", "cpu", process_res=56), poses=False)
        self.begun, self.go, self.rehearsals = threading.Event(), threading.Event(), 0

    def rehearse(self, window):
        self.rehearsals += 1
        self.begun.set()
        assert self.go.wait(HELD_S)


@pytest.mark.long
def test_cleanup_waits_for_one_window_of_a_compiled_warm_up(monkeypatch):
    camera, frames = camera_frames(1)
    with LiveNode(monkeypatch, camera, frames, Rehearsing) as live:
        assert live.change(CONFIGURE)
        network = live.networks[-1]
        live.until(network.begun.is_set)
        cleanup = live.ask(CLEANUP)
        live.until(lambda: live.da3.runner.worker.stop_requested)
        network.go.set()
        live.until(cleanup.done)
        assert cleanup.result().success
        assert network.rehearsals == 1


@pytest.mark.long
def test_shutdown_waits_for_the_window_too(live):
    assert live.change(CONFIGURE, ACTIVATE)
    live.show()
    live.until(live.networks[-1].begun.is_set)
    shutdown = live.ask(Transition.TRANSITION_ACTIVE_SHUTDOWN)
    rt.spin_until(live.node, shutdown.done, 0.5)
    assert not shutdown.done()
    live.networks[-1].go.set()
    live.until(shutdown.done)
    assert shutdown.result().success
    assert live.state() == "finalized"
    live.until(lambda: not live.publishers())


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_cleanup_that_waits_does_not_keep_the_process(tmp_path, end):
    node = str(NODES / "slow_node.py")
    camera, frames = camera_frames(1)
    with Rig(node=node, environment={"DA3_TEST_GO": str(tmp_path / "go")}) as rig:
        rig.ready()
        rig.show(camera, frames[0])
        rig.until((tmp_path / "begun").exists)
        waiting = call_async(rig, "std_srvs/srv/Trigger", "/da3/reset")  # behind the window
        change(rig, DEACTIVATE)
        cleanup = call_async(
            rig, "lifecycle_msgs/srv/ChangeState", "/da3/change_state",
            transition=Transition(id=CLEANUP),
        )  # fmt: skip
        rig.until(
            lambda: "cleanup waits up to 20 s for the running window" in rig.process.output()
        )
        late = call_async(rig, "std_srvs/srv/Trigger", "/da3/reset")  # the executor is busy
        rt.spin_until(rig.node, late.done, 0.5)
        status = []
        ended = threading.Thread(target=lambda: status.append(rig.process.stop(end, 4.0)))
        ended.start()
        rig.until(lambda: cleanup.done() and waiting.done() and late.done())
        assert not any(call.result().success for call in (cleanup, waiting, late))
        ended.join()
        assert status == [0]  # none if it took longer
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
def test_a_long_window_is_waited_for_while_images_stream_in(tmp_path):
    """The 8 s of a slow machine, in a process of its own, with a camera that never rests."""
    node = str(NODES / "slow_node.py")
    camera, frames = camera_frames(200)
    with Rig(node=node, environment={"DA3_TEST_GO": str(tmp_path / "go")}) as rig:
        rig.ready()
        depths = rig.listen(DEPTH, "sensor_msgs/msg/Image")
        stream = iter(frames)
        rig.show(camera, next(stream))
        rig.until((tmp_path / "begun").exists)
        change(rig, DEACTIVATE)
        cleanup = call_async(
            rig, "lifecycle_msgs/srv/ChangeState", "/da3/change_state",
            transition=Transition(id=CLEANUP),
        )  # fmt: skip
        end = time.monotonic() + 8.0
        while time.monotonic() < end:
            rig.show(camera, next(stream))
            rt.spin_until(rig.node, lambda: False, 0.1)
        assert not cleanup.done()
        (tmp_path / "go").touch()
        rig.until(cleanup.done)
        assert cleanup.result().success
        rig.until(lambda: not rig.node.get_publishers_info_by_topic(DEPTH))
        depths.clear()
        change(rig, CONFIGURE)
        change(rig, ACTIVATE)
        rig.until(lambda: rig.images.get_subscription_count() == 1)
        rig.until(lambda: rig.show(camera, next(stream)) or depths)
        assert len(rig.node.get_publishers_info_by_topic(DEPTH)) == 1
        assert "Traceback" not in rig.process.output()
