"""Results leave the device without stopping it; faked, where there is none."""

from typing import NamedTuple

import pytest
import torch

from da3_ros.inference import feature_cache as transfer
from da3_ros.inference.feature_cache import Download


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor | None = None


class OnCard(torch.Tensor):
    """A host tensor that claims to be on a GPU and records how it is copied."""

    is_cuda = True


@pytest.fixture
def calls(monkeypatch):
    made = []
    plain = torch.empty

    def empty(*shape, pin_memory=False, **options):
        made.append("pinned" if pin_memory else "pageable")
        return Target(plain(*shape, **options))

    class Target:
        def __init__(self, tensor):
            self.tensor = tensor

        def copy_(self, source, non_blocking=False):
            made.append("queued" if non_blocking else "waited")
            return self.tensor.copy_(source.as_subclass(torch.Tensor))

    class Event:
        def record(self, stream):
            made.append(f"recorded on {stream}")

        def synchronize(self):
            made.append("waited for the event")

    monkeypatch.setattr(transfer.torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"{device}'s")
    return made


def test_copies_from_a_card_are_queued_and_waited_for_once(calls):
    """Copies from a GPU are queued to pinned memory and waited for once."""
    values = [torch.arange(3.0).as_subclass(OnCard), torch.ones(2).as_subclass(OnCard)]
    download = Download(Pair(*values))
    assert calls == ["pinned", "queued", "pinned", "queued", "recorded on cpu's"]
    found = download.wait()
    assert calls[5:] == ["waited for the event"]
    assert found.a.tolist() == [0, 1, 2]
    assert found.b.tolist() == [1, 1]


def test_what_is_on_the_host_stays_what_it_is(calls):
    found = Download(Pair(torch.arange(3.0))).wait()
    assert found.a.tolist() == [0, 1, 2]
    assert found.b is None
    assert calls == []
