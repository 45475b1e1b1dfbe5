"""Load times: files that are written are read as official ones, and the page cache is known."""

import bench_loading as loading
import pytest
import torch

from da3_ros.network import empty_network, initialize_randomly, load_checkpoint


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return loading.write_model("da3-tiny", tmp_path_factory.mktemp("models") / "da3-tiny")


def test_what_it_writes_is_read_back_exactly(weights):
    written, read = empty_network("da3-tiny"), empty_network("da3-tiny")
    initialize_randomly(written)
    load_checkpoint(read, weights.parent)
    other = read.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in written.state_dict().items())


def test_a_file_that_was_dropped_is_not_in_the_page_cache(weights):
    loading.read_once(weights)
    assert loading.share_cached(weights) == 1
    try:
        loading.drop(weights)
    except OSError as error:  # a file system in memory, as that of some containers
        pytest.skip(str(error))
    assert loading.share_cached(weights) <= loading.DROPPED


def test_the_time_of_each_step(weights):
    row = loading.measure("da3-tiny", weights.parent, "warm", "bf16", "cpu")
    parts = [row[name] for name in ("build_s", "read_s", "convert_s", "move_s")]
    assert min(parts) > 0
    assert row["sum_s"] == pytest.approx(sum(parts))
    assert row["read_gb_per_s"] == pytest.approx(row["gb"] / row["read_s"])
    session = loading.measure("da3-tiny", weights.parent, "session", "bf16", "cpu")
    assert session["precision"] == "bfloat16"
    assert session["session_s"] > 0


def test_a_cold_file_is_dropped_before_it_is_read(weights, monkeypatch):
    calls = []
    monkeypatch.setattr(loading, "drop", lambda path: calls.append(("drop", path)))
    monkeypatch.setattr(loading, "read_once", lambda path: calls.append(("read", path)))
    for state in ("cold", "warm"):
        loading.measure("da3-tiny", weights.parent, state, "bf16", "cpu")
    assert calls == [("drop", weights), ("read", weights)]


def test_a_model_that_memory_does_not_hold_is_refused(weights, monkeypatch):
    monkeypatch.setattr(loading, "host_free", lambda: weights.stat().st_size)
    row = loading.measure("da3-tiny", weights.parent, "warm", "bf16", "cpu")
    assert "more than is free" in row["refused"]
