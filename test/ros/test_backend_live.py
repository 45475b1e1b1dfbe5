"""A live node on a CPU: PyTorch first, OpenVINO as soon as its engine is ready."""

import dataclasses
import itertools
import time

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")
pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")

from support.live_node import DEPTH
from support.node_process import Rig, camera_frames, values_of
from support.processes import processes_with

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def show_until(rig, camera, frames, depths, done):
    """Show frames, one for each answer, until ``done()``. Returns how many were shown.

    A node that is never idle would take the cores that the engine is built with.
    """
    for n in itertools.count():
        frame = frames[n % len(frames)]
        rig.show(camera, dataclasses.replace(frame, stamp_ns=(n + 1) * 10**8))
        rig.until(lambda n=n: len(depths) > n)
        if done():
            return n + 1
        time.sleep(0.3)


def test_the_node_switches_to_openvino_while_frames_go_on(tmp_path):
    camera, frames = camera_frames(6)
    cache = str(tmp_path / "cache")
    with Rig(backend="auto", cache_dir=cache, process_res=56) as rig:
        depths = rig.listen(DEPTH, "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()

        def backend():
            return values_of(diagnostics[-1]).get("backend") if diagnostics else None

        rig.until(lambda: diagnostics)
        shown = show_until(rig, camera, frames, depths, lambda: backend() == "openvino")
        since = int(values_of(diagnostics[-1])["backend_since_window"])
        assert 0 < since <= shown
        assert not rig.drops()
        assert "building the OpenVINO engine of da3-tiny" in rig.process.output()
    with Rig(backend="auto", cache_dir=cache, process_res=56) as rig:
        depths = rig.listen(DEPTH, "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        rig.until(lambda: diagnostics)
        show_until(rig, camera, frames, depths, lambda: backend() == "openvino")
        assert "building" not in rig.process.output()


def test_a_node_that_ends_leaves_no_builder(tmp_path):
    """Its engine takes ten seconds; the node ends at once."""
    camera, frames = camera_frames(3)
    with Rig(backend="auto", cache_dir=str(tmp_path), process_res=56) as rig:
        depths = rig.listen(DEPTH, "sensor_msgs/msg/Image")
        rig.ready()
        show_until(rig, camera, frames, depths, lambda: bool(depths))
        rig.until(lambda: "building the OpenVINO engine" in rig.process.output())
        (unfinished,) = tmp_path.iterdir()
        rig.process.stop()
    assert processes_with(unfinished) == []
