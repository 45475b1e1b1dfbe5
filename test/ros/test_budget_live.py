"""Memory budgets and the warm-up of the live node, as a real process over DDS."""

import pytest
from support.node_process import LIB, NODES, Rig, camera_frames, set_parameter, values_of
from support.streams import as_messages, stream_of

from da3_ros.inference import BudgetError
from da3_ros.inference import memory_governor as module
from da3_ros.live.health import WARN
from da3_ros.synthetic import SyntheticCamera

pytestmark = pytest.mark.process

BUSY = str(NODES / "busy_node.py")


@pytest.mark.long
def test_a_budget_is_refused_in_mid_window_with_the_reason(tmp_path):
    go = tmp_path / "go"
    camera, frames = camera_frames(2)
    with Rig(node=BUSY, environment={"DA3_TEST_GO": str(go)}) as rig:
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: "a window runs" in rig.process.output())
        before = rig.status[-1].memory_budget_gb
        refused = set_parameter(rig, "memory_budget_gb", 0.01)  # answered while the window runs
        assert not refused.successful
        assert "da3-tiny does not fit into 0.01 GiB on cpu" in refused.reason
        assert "raise memory_budget_gb" in refused.reason
        assert set_parameter(rig, "memory_budget_gb", 1.5).successful
        assert rig.status[-1].frames_processed == 0
        go.touch()
        rig.until(lambda: rig.status[-1].memory_budget_gb == pytest.approx(1.5))
        assert before != pytest.approx(0.01)
        rig.until(lambda: rig.status[-1].frames_processed == 1)


def test_before_the_first_frame_the_node_is_warm_and_has_a_plan():
    with Rig() as rig:
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.until(
            lambda: diagnostics and values_of(diagnostics[-1]).get("warm_up_s", "nan") != "nan"
        )
        rig.until(lambda: rig.status and rig.status[-1].memory_plan_gb > 0)
        status = rig.status[-1]
        assert status.frames_received == status.frames_processed == 0
        assert list(status.drop_causes) == []
        assert status.last_error == ""


@pytest.mark.long
def test_windows_over_budget_are_in_status_and_diagnostics(monkeypatch):
    from da3_ros.ros import status_report as report

    camera = SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=6)
    stream, host = stream_of(memory_budget_gb=1.0)
    node = report.NodeFacts("/da3", LIB, host.now_ns(), "active", True, "", "", None)
    run(stream, camera, host)
    assert list(report.status(node, stream).degraded) == []

    def refuse(*args):
        raise BudgetError("it needs at least 2.00 GiB")

    monkeypatch.setattr(stream.session.hardware, "window_peak", lambda before, persistent: 2 << 30)
    with monkeypatch.context() as patch:
        patch.setattr(module, "make_plan", refuse)
        run(stream, camera, host)
    said = "it needs at least 2.00 GiB; the old plan stays"
    assert list(report.status(node, stream).degraded) == [said]
    (told,) = report.diagnostics(node, stream).status
    assert told.level == bytes([WARN])
    assert f"memory is short: {said}" in told.message

    stream.pipeline.set_budget(3.0)  # there it fits
    assert list(report.status(node, stream).degraded) == []


def test_diagnostics_warn_of_localization_without_a_map():
    from da3_ros.ros import status_report as report

    camera = SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=6)
    stream, host = stream_of(mode="localization")
    node = report.NodeFacts("/da3", LIB, host.now_ns(), "active", True, "", "", None)
    run(stream, camera, host)
    (told,) = report.diagnostics(node, stream).status
    assert told.level == bytes([WARN])
    assert "mode is localization, but there is no map: load one (map.load" in told.message


def run(stream, camera, host):
    for pending in as_messages(camera, host.lib):
        stream.put(pending)
        stream.step()
    stream.reset()
