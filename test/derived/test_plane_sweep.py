"""What a sweep takes and where it runs; what it finds is tested with the measured depth."""

import numpy as np
import pytest
import torch
from support.cases import long_after
from support.painted_walls import SIZE, scene, seen
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from da3_ros.derived.plane_sweep import coarse_search, sweep, sweep_bytes


def swept(neighbours=4, device="cpu", masked=False):
    views, _, given, _ = scene()
    if masked:
        views = [type(v)(v.grey, v.K, v.T_frame_camera, v.grey > 0.4) for v in views]
    return sweep(views[2], ([*views[:2], *views[3:]] * 2)[:neighbours], given[2], device=device)


class Types(TorchDispatchMode):
    """Notes the types of tensors made on devices other than the host."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {
            (x.device.type, x.dtype) for x in tree_leaves(out) if isinstance(x, torch.Tensor)
        }
        return out


@pytest.mark.parametrize("masked", long_after(1, [True, False]))
def test_it_stays_on_its_device_in_types_that_all_devices_have(masked):
    """Meta tensors have no values: whatever asks the device for one fails. (Fake ones of other
    devices need their drivers for indexing.)"""
    with Types() as types:
        found = swept(device="meta", masked=masked)
    for tensor in (found.log_factor, found.correlation, found.disparity, found.distinct):
        assert tensor.device.type == "meta"
        assert tensor.shape[-2:] == SIZE[::-1]
    there = {dtype for where, dtype in types.seen if where == "meta"}
    assert torch.float32 in there
    assert torch.float64 not in there


class Peak(TorchDispatchMode):
    """Sums the bytes of live storages that operations create."""

    def __init__(self):
        super().__init__()
        self.live, self.total, self.bytes = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for key in [key for key, (reference, _) in self.live.items() if reference.expired()]:
            self.total -= self.live.pop(key)[1]
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference.cdata not in self.live:
                    self.live[reference.cdata] = reference, storage.nbytes()
                    self.total += storage.nbytes()
        self.bytes = max(self.bytes, self.total)
        return out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("neighbours", long_after(1, [4, 1, 2, 6]))
def test_the_predicted_memory_is_what_it_takes(neighbours, masked):
    with Peak() as peak:
        swept(neighbours, masked=masked)
    assert peak.bytes <= sweep_bytes(SIZE, neighbours) <= 1.35 * peak.bytes


@pytest.mark.parametrize("period", [0.32, 0.44])
def test_a_pattern_that_fits_again_farther_off_does_not_move_the_search(period):
    """Stripes, cameras .4 m apart: depth of 1/1.8 and 1/2.1 fits all images too."""

    def stripes(x, y):
        return 0.5 + 0.25 * np.sin(2 * np.pi * x / period) + 0.1 * np.sin(2 * np.pi * y / 0.3)

    def part(i, T):
        noise = np.random.default_rng(i).standard_normal(SIZE[::-1])
        return np.clip(seen(T, stripes) + 0.1 * noise, 0, 1), np.ones(SIZE[::-1], bool)

    cameras = np.tile(np.eye(4), (3, 1, 1))
    cameras[:, 0, 3] = -0.4, 0, 0.4
    views, truth, _, _ = scene(part, cameras=cameras)
    found, _, clear = coarse_search(views[1], views[::2], truth[1])
    assert clear.mean() > 0.9
    assert np.abs(found[clear]).max() < 0.1


def test_it_gives_the_same_twice_and_with_more_threads():
    before = torch.get_num_threads()
    results = []
    for threads in (1, 1, 2):
        torch.set_num_threads(threads)
        results.append(swept())
    torch.set_num_threads(before)
    for other in results[1:]:
        for name in ("log_factor", "correlation", "disparity", "distinct"):
            np.testing.assert_array_equal(getattr(other, name), getattr(results[0], name))
