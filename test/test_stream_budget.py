"""What a stream does about budgets and before the first frame, without a middleware."""

import pytest
from test_overlap import stream_of

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import BudgetError
from da3_ros.inference import session as module


def changed(stream, **values):
    old = {"model": "da3-tiny", "checkpoint": "random", "device": "cpu", "process_res": 112,
           "window.size": 4, "mixed_precision": "off"}  # fmt: skip
    names = {name.replace("__", "."): value for name, value in values.items()}
    return config_from_parameters({**old, **names}, NodeConfig).pipeline


def test_a_budget_that_no_longer_fits_stays_the_old_one_and_the_rest_is_taken(monkeypatch):
    stream, _ = stream_of()
    stream.warm_up()
    budget = stream.pipeline.session.budget

    def refuse(*args):
        raise BudgetError("nothing fits; raise memory_budget_gb")

    monkeypatch.setattr(module, "make_plan", refuse)
    wanted = changed(stream, memory_budget_gb=1.0, depth__min_confidence=2.0)
    with pytest.raises(BudgetError, match=r"^memory_budget_gb: nothing fits.*the old plan stays$"):
        stream.reconfigure(wanted)
    assert stream.pipeline.session.budget == budget
    assert stream.config.pipeline.inference.memory_budget_gb == 0.0
    assert stream.pipeline.config.inference.memory_budget_gb == 0.0
    assert stream.pipeline.config.depth.min_confidence == 2.0


def test_a_warm_up_is_no_window_of_the_stream():
    stream, host = stream_of()
    stream.warm_up()
    assert stream.warm_up_s > 0
    assert stream.pipeline.session.plan.window == 4
    assert host.sent == []
    assert stream.processed == stream.received == 0
    assert stream.drop_counts() == {}
    assert not stream.pipeline.counters


def test_a_warm_up_that_nothing_fits_is_said_and_frames_may_still_come():
    stream, host = stream_of(memory_budget_gb=0.01)
    said = []
    host.warn = lambda text, every_s=0.0: said.append(text)
    stream.warm_up()
    assert len(said) == 1
    assert said[0].startswith("no warm-up: da3-tiny does not fit into 0.01 GiB")


def test_the_metric_model_is_warmed_too(monkeypatch):
    from network.tiny import tiny_metric_spec

    from da3_ros.network import MODELS

    monkeypatch.setitem(MODELS, "da3metric-large", tiny_metric_spec())
    looks = []
    stream, _ = stream_of(**{"scale.source": "metric_model", "scale.metric_checkpoint": "random"})
    plain = stream.pipeline.ruler.measure
    monkeypatch.setattr(stream.pipeline.ruler, "measure", lambda *a: looks.append(a) or plain(*a))
    stream.warm_up()
    assert len(looks) == 1
