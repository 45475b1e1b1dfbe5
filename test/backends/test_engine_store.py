"""Engines are prepared beside the stream, and replaced by torch if that fails."""

import gc
import logging
import threading
import time

import pytest

from da3_ros.backends import engine_store as module
from da3_ros.backends.engine_cache import EngineCache
from da3_ros.backends.engine_store import MOST_SIZES, EngineSource, EngineStore
from da3_ros.backends.openvino_engine import EngineError

SIZE = (42, 56)


class Builder:
    """Stands in for the process that builds an engine; ``go`` lets it end."""

    def __init__(self, monkeypatch, script="import time; time.sleep(0.05)"):
        self.started = []
        real = module.subprocess.Popen

        def popen(command, **options):
            self.started.append(command)
            return real([module.sys.executable, "-c", script], **options)

        monkeypatch.setattr(module.subprocess, "Popen", popen)


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
    other = store_of(tmp_path, lambda path: go.wait(10) and "engine", wait=False)
    other.prepare(SIZE)
    assert other.get(SIZE) is None
    go.set()
    end = time.monotonic() + 10
    while other.get(SIZE) is None and time.monotonic() < end:
        time.sleep(0.01)
    assert other.get(SIZE) == "engine"


def test_an_engine_is_built_once_per_size(tmp_path, monkeypatch):
    builder = Builder(monkeypatch)
    store = store_of(tmp_path)
    for size in (SIZE, SIZE, (56, 42)):
        store.prepare(size)
        assert store.get(size) == "engine"
    assert [command[6:8] for command in builder.started] == [["42", "56"], ["56", "42"]]
    for n in range(MOST_SIZES):
        store.prepare((14, 14 * (n + 1)))
        store.get((14, 14 * (n + 1)))
    assert store.get(SIZE) is None  # its memory was freed


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
    Builder(monkeypatch, "import time; time.sleep(60)")
    store = store_of(tmp_path, wait=False)
    store.prepare(SIZE)
    end = time.monotonic() + 10
    children = store._source._children
    while not children and time.monotonic() < end:
        time.sleep(0.01)
    (child,) = children
    with caplog.at_level(logging.WARNING):
        del store
        gc.collect()
        assert child.wait(10) == -9
        while list(tmp_path.iterdir()) and time.monotonic() < end:
            time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []
    assert caplog.text == ""
