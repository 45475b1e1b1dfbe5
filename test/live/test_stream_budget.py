"""What a stream does about budgets and before the first frame, without a middleware."""

import dataclasses
import math

import pytest
from support.streams import as_messages, stream_of

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import BudgetError, WindowTooLargeError
from da3_ros.inference import memory_governor as module
from da3_ros.inference.devices import Cpu
from da3_ros.inference.planner import GIB, least_memory, make_plan
from da3_ros.synthetic import SyntheticCamera


def changed(stream, **values):
    old = {"model": "da3-tiny", "checkpoint": "random", "device": "cpu", "process_res": 112,
           "window.size": 4, "mixed_precision": "off"}  # fmt: skip
    names = {name.replace("__", "."): value for name, value in values.items()}
    return config_from_parameters({**old, **names}, NodeConfig).pipeline


def test_a_budget_that_no_longer_fits_stays_the_old_one(monkeypatch):
    """A budget that no longer fits stays the old one and the rest is taken."""
    stream, _ = stream_of()
    stream.warm_up()
    budget = stream.session.memory.budget

    def refuse(*args):
        raise BudgetError("nothing fits; raise memory_budget_gb")

    monkeypatch.setattr(module, "make_plan", refuse)
    wanted = changed(stream, memory_budget_gb=1.0, depth__min_confidence=2.0)
    with pytest.raises(BudgetError, match=r"^memory_budget_gb: nothing fits.*the old plan stays$"):
        stream.reconfigure(wanted)
    assert stream.session.memory.budget == budget
    assert stream.config.pipeline.inference.memory_budget_gb == 0.0
    assert stream.pipeline.config.inference.memory_budget_gb == 0.0
    assert stream.pipeline.config.depth.min_confidence == 2.0


@pytest.mark.long
def test_a_live_stream_grows_when_memory_is_free_and_its_scene_goes_on(monkeypatch):
    """Images of the network are as large as asked for again; the status says so."""
    monkeypatch.setattr(module, "CHECK_EVERY", 2)
    monkeypatch.setattr(module, "CHECK_S", 0.0)
    free = [8 * GIB]
    monkeypatch.setattr(Cpu, "free", lambda self: free[0])
    monkeypatch.setattr(Cpu, "window_peak", lambda *args: stream.session.memory.plan.predicted)
    asked = {"backend": "torch", "process_res": 252}
    stream, _ = stream_of(**asked)
    on, request = stream.session.hardware, stream.session.memory.requests.newest
    budget = stream.session.memory.plan.predicted
    while not make_plan(on, request, budget).reduced:
        budget -= 1 << 20
    free[0] = int(budget / module.FREE_SHARE)
    stream, host = stream_of(**asked)
    free[0] -= stream.session.memory.plan.weights  # which are loaded now
    camera = SyntheticCamera(seed=2, size=(252, 189), walk="straight", frames=14)
    widths, degraded = [], []
    for number, pending in enumerate(as_messages(camera, host.lib)):
        if number == 5:
            free[0] = 8 * GIB
        stream.put(pending)
        assert stream.step()
        widths.append(stream.session.memory.plan.width)
        degraded.append(bool(stream.session.status().degraded))
    assert widths == sorted(widths)
    assert widths[0] == widths[5] < widths[-1] == 252
    assert degraded == [width < 252 for width in widths]
    assert stream.pipeline.builder.network_size[0] == 252
    assert len(stream.pipeline.poses()) == len(widths)


@pytest.mark.parametrize("known", [True, False])
def test_a_budget_one_camera_cannot_have_is_in_force_nowhere(known):
    """Not ``known``: the session finds out only when that camera's pipeline asks."""
    shapes = {"left": (112, 84), "right": (224, 56)}
    stream, host = stream_of(cameras=list(shapes), **{"window.mode": "independent"})
    host.warn = lambda text, every_s=0.0, about="": None
    for name, size in shapes.items():
        camera = SyntheticCamera(seed=2, size=size, walk="straight", frames=1)
        for pending in as_messages(camera, host.lib):
            stream.put(dataclasses.replace(pending, camera=name))
            assert stream.step()
    session = stream.session
    least = {
        r.image: least_memory(session.hardware, r, session.memory.factor)
        for r in session.memory.requests.active
    }
    between = sum(least.values()) / 2 / GIB
    assert max(least, key=least.get) == (112, 84)  # the first camera's
    if known:
        with pytest.raises(BudgetError, match="raise memory_budget_gb"):
            stream.session.memory.check_budget(between)
    else:
        # The one it fits is asked first.
        stream.scene_streams = dict(reversed(stream.scene_streams.items()))
        session.memory.requests.active = session.memory.requests.active[:1]
    plan, budget = session.memory.plan, session.memory.budget
    inference = dataclasses.replace(stream.config.pipeline.inference, memory_budget_gb=between)
    wanted = dataclasses.replace(stream.config.pipeline, inference=inference)
    with pytest.raises(BudgetError, match="the old plan stays"):
        stream.reconfigure(wanted)
    assert (session.memory.plan, session.memory.budget) == (plan, budget)
    assert stream.config.pipeline.inference.memory_budget_gb == 0.0
    for pipeline in stream.pipelines:
        pipeline.builder.fit(session)
        assert (pipeline.builder.rule.process_res, pipeline.builder.window_size) == (112, 4)


def test_a_warm_up_is_no_window_of_the_stream():
    stream, host = stream_of()
    stream.warm_up()
    assert stream.warm_up_s > 0
    assert stream.session.memory.plan.window == 4
    assert host.sent == []
    assert stream.frame_counts.processed == stream.frame_counts.received == 0
    assert stream.frame_counts.drop_counts() == {}
    assert not stream.pipeline.counters


def test_no_stream_begins_in_a_budget_that_admits_no_window(tmp_path):
    store = {"map.store": "run", "export_dir": str(tmp_path)}
    with pytest.raises(BudgetError, match=r"da3-tiny does not fit into 0\.01 GiB"):
        stream_of(memory_budget_gb=0.01, **store)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BudgetError, match=r"set model to da3-tiny \(at least 2 views of 112x84"):
        stream_of(memory_budget_gb=0.09, model="da3-small", checkpoint="random")


def test_a_warm_up_without_enough_memory_is_reported(monkeypatch):
    """The cameras' images may be smaller: the node waits for them."""
    stream, host = stream_of()
    said = []
    host.warn = lambda text, every_s=0.0: said.append(text)

    def ends(*args, **options):
        raise WindowTooLargeError("memory ran out")

    monkeypatch.setattr(stream.session, "warm_up", ends)
    stream.warm_up()
    assert said == ["no warm-up: memory ran out"]


def test_a_warm_up_ends_where_the_node_leaves():
    stream, _ = stream_of()
    stream.warm_up(lambda: True)
    assert math.isnan(stream.warm_up_s)


@pytest.mark.parametrize(("mode", "new"), [("joint", 4), ("independent", 2)])
def test_the_warm_up_of_a_rig_plans_what_its_windows_ask_for(mode, new):
    stream, host = stream_of(
        cameras=["left", "right"], **{"window.mode": mode, "window.size": 6, "window.new": 2}
    )
    host.warn = lambda text, every_s=0.0: None
    stream.warm_up()
    session = stream.session
    assert (session.memory.plan.window, session.memory.plan.new) == (6, new)
    camera = SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=2)
    for pending in as_messages(camera, host.lib):
        for name in ("left", "right"):
            stream.put(dataclasses.replace(pending, camera=name))
    while stream.step():
        pass
    assert stream.frame_counts.processed == 4
    assert (session.memory.plan.window, session.memory.plan.new) == (6, new)


def test_the_metric_model_is_warmed_too(monkeypatch):
    from support.tiny_networks import tiny_metric_spec

    from da3_ros.network import MODELS

    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    looks = []
    stream, _ = stream_of(**{"scale.source": "metric_model", "scale.metric_checkpoint": "random"})
    plain = stream.pipeline.inference.metric_model.measure
    monkeypatch.setattr(
        stream.pipeline.inference.metric_model, "measure", lambda *a: looks.append(a) or plain(*a)
    )
    stream.warm_up()
    assert len(looks) == 1
