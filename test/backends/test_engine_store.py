"""Engines are prepared beside the stream, and replaced by torch if that fails."""

import gc
import logging
import threading
import time

import pytest

from da3_ros.backends import engine_store as module
from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.engine_store import EngineSource, EngineStore
from da3_ros.backends.openvino_engine import EngineError

SIZE = (42, 56)
PATIENCE_S = 120.0  # longest wait for a thread or a process: other work may share the processor


class Builder:
    """Stands in for the process that builds an engine; ``go`` lets it end."""

    def __init__(self, monkeypatch, script="import time; time.sleep(0.05)"):
        self.started = []
        real = module.subprocess.Popen

        def popen(command, **options):
            self.started.append(command)
            return real([module.sys.executable, "-c", script], **options)

        monkeypatch.setattr(module.subprocess, "Popen", popen)


def wait_until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def store_of(tmp_path, opened=lambda path: "engine", **options):
    source = EngineSource("da3-tiny", "random", {"a": 1}, EngineCache(tmp_path), opened)
    return EngineStore(source, **{"wait": True} | options)


def test_a_store_waits_for_its_engine_or_not(tmp_path, monkeypatch):
    Builder(monkeypatch)
    waiting = store_of(tmp_path)
    assert waiting.get(SIZE) is None  # not asked for
    waiting.prepare(SIZE)
    assert waiting.get(SIZE) == "engine"
    go = threading.Event()
    other = store_of(tmp_path, lambda path: go.wait(PATIENCE_S) and "engine", wait=False)
    other.prepare(SIZE)
    assert other.get(SIZE) is None
    go.set()
    wait_until(lambda: other.get(SIZE) == "engine")


def test_an_engine_is_built_once_per_size(tmp_path, monkeypatch):
    builder = Builder(monkeypatch)
    store = store_of(tmp_path, most_sizes=2)
    for size in (SIZE, SIZE, (56, 42), SIZE):
        store.prepare(size)
        assert store.get(size) == "engine"
    assert [command[7:9] for command in builder.started] == [["42", "56"], ["56", "42"]]
    store.prepare((14, 14))
    assert store.get((14, 14)) == "engine"
    assert store.get((56, 42)) is None  # used longest ago
    assert store.get(SIZE) == "engine"


def test_engines_are_prepared_one_after_another(tmp_path, monkeypatch):
    Builder(monkeypatch)
    active, most = [], []

    def opened(path):
        active.append(path)
        most.append(len(active))
        time.sleep(0.05)
        active.remove(path)
        return "engine"

    store = store_of(tmp_path, opened, wait=False, most_sizes=4)
    sizes = [(14, 14 * n) for n in range(1, 5)]
    for size in sizes:
        store.prepare(size)
    assert store.preparing
    for size in sizes:
        assert store._jobs[size].done.wait(PATIENCE_S)
    assert not store.preparing
    assert most == [1, 1, 1, 1]
    assert [store.get(size) for size in sizes] == ["engine"] * 4


def test_what_is_not_needed_any_more_is_not_built(tmp_path, monkeypatch, caplog):
    Builder(monkeypatch, "import time; time.sleep(600)")
    store = store_of(tmp_path, wait=False, most_sizes=3)
    for n in (1, 2):
        store.prepare((14, 14 * n))
    jobs = list(store._jobs.values())
    wait_until(lambda: store._source._child)  # the first one is being built
    assert store.keep_only([(28, 28)])
    assert not store.keep_only([(28, 28)])
    for job in jobs:
        assert job.done.wait(PATIENCE_S)
    assert (store.get((14, 14)), jobs[0].backend, jobs[1].backend) == (None, None, None)
    store.keep_only([])
    assert len(caplog.records) == 1  # sizes that replace each other would stay on torch unnamed
    assert "the engine for 14 x 14 pixels is given up" in caplog.text


def test_for_a_guessed_size_the_cache_is_asked_and_nothing_built(tmp_path, monkeypatch):
    builder = Builder(monkeypatch)
    store = store_of(tmp_path)
    store.prepare(SIZE, build=False)
    assert store.get(SIZE) is None
    assert (builder.started, store.fault(SIZE)) == ([], "")
    store.prepare(SIZE)
    assert store.get(SIZE) == "engine"
    assert len(builder.started) == 1


def test_a_builder_that_hangs_is_ended(tmp_path, monkeypatch, caplog):
    Builder(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(module, "BUILD_S", 0.5)
    store = store_of(tmp_path)
    store.prepare(SIZE)
    assert store.get(SIZE) is None
    assert "its process did not end within" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_an_intact_engine_that_fails_its_check_is_not_built_again(tmp_path, monkeypatch, caplog):
    builder = Builder(monkeypatch)

    def refuse(path):
        raise EngineError("its results are not PyTorch's: result 0 differs by 0.5 of its norm")

    (tmp_path / "engine").mkdir()
    monkeypatch.setattr(EngineCache, "find", lambda self, facts: tmp_path / "engine")
    store = store_of(tmp_path, refuse)
    for build in (False, True, True):
        store.prepare(SIZE, build=build)
        assert store.get(SIZE) is None
    assert builder.started == []
    assert len(caplog.records) == 1
    assert f"delete {tmp_path / 'engine'} to build it again" in caplog.text


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import sys; sys.exit('Error: no memory')", "cannot be built (Error: no memory)"),
        ("import os; os.kill(os.getpid(), 9)", "cannot be built (exit code -9)"),
    ],
)
def test_a_failed_build_is_one_warning(tmp_path, monkeypatch, caplog, script, text):
    Builder(monkeypatch, script)
    store = store_of(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.prepare(SIZE)
            assert store.get(SIZE) is None
    assert text in store.fault(SIZE)
    assert len(caplog.records) == 1
    assert "da3-tiny runs on torch" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_fails_its_check_is_not_used(tmp_path, monkeypatch, caplog):
    Builder(monkeypatch)

    def refuse(path):
        raise EngineError("its results are not PyTorch's: result 0 differs by 0.5 of its norm")

    store = store_of(tmp_path, refuse)
    store.prepare(SIZE)
    assert store.get(SIZE) is None
    assert "differs by 0.5" in caplog.text


def test_an_unexpected_error_ends_in_torch_too(tmp_path, monkeypatch, caplog):
    Builder(monkeypatch)
    store = store_of(tmp_path, lambda path: 1 / 0)
    store.prepare(SIZE)
    assert store.get(SIZE) is None
    assert "ZeroDivisionError" in store.fault(SIZE)


def test_a_builder_ends_with_its_session(tmp_path, monkeypatch, caplog):
    Builder(monkeypatch, "import time; time.sleep(600)")
    store = store_of(tmp_path, wait=False)
    store.prepare(SIZE)
    source = store._source
    wait_until(lambda: source._child)
    child = source._child
    with caplog.at_level(logging.WARNING):
        del store
        gc.collect()
        assert child.wait(PATIENCE_S) == -9
        wait_until(lambda: not list(tmp_path.iterdir()))
    assert caplog.text == ""
