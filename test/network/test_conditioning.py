"""Known poses are normalised as the reference's API does it, and never badly posed."""

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.oracle import given_poses, pair, relative_error

from da3_ros.network.camera import invert_rigid
from da3_ros.network.conditioning import SHORTEST_UNIT, normalize_poses
from da3_ros.synthetic import SyntheticCamera

BOUND = 1e-4


def reference_normalized(extrinsics):
    """What the reference's API does; its method is lifted out of a module that needs far more."""
    from depth_anything_3.utils.geometry import affine_inverse

    (folder,) = find_spec("depth_anything_3").submodule_search_locations
    source = Path(folder, "api.py").read_text()
    start = source.index("    def _normalize_extrinsics")
    names = {"torch": torch, "affine_inverse": affine_inverse}
    method = source[start : source.index("    def ", start + 8)]
    exec("from __future__ import annotations\n" + textwrap.dedent(method), names)
    return names["_normalize_extrinsics"](None, extrinsics.clone())


def walk(name, n=6):
    """T_room_camera [1, n, 4, 4] of a synthetic walk."""
    camera = SyntheticCamera(seed=1, size=(56, 42), walk=name, frames=20 * n)
    return torch.as_tensor(camera.T_room_camera[::20][:n]).double()[None]


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_normalised_poses_equal_the_reference(n):
    extrinsics, _ = given_poses(n, 3)
    ours = normalize_poses(torch.linalg.inv(extrinsics)).extrinsics
    assert relative_error(ours, reference_normalized(extrinsics)) < 1e-5


@pytest.mark.parametrize("n", [2, 4])
def test_network_output_with_known_poses_equals_the_reference(n, record_property):
    ours, theirs = pair("da3-tiny", 11)
    extrinsics, K = given_poses(n, 4)
    extrinsics[..., :3, 3] *= 3  # metres, far from the encoder's unit
    x = torch.randn(1, n, 3, 56, 84, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        a = ours(x, normalize_poses(torch.linalg.inv(extrinsics.double())).extrinsics, K)
        b = theirs(x, reference_normalized(extrinsics), K)
    for name, mine, its in (
        ("depth", a.depth, b.depth),
        ("confidence", a.confidence, b.depth_conf),
        ("extrinsics", a.extrinsics, b.extrinsics),
        ("intrinsics", a.intrinsics, b.intrinsics),
    ):
        error = relative_error(mine, its)
        record_property(f"oracle/conditioned/{n}/{name}", f"{error:.1e}")
        assert error < BOUND, name


@pytest.mark.parametrize("name", ["straight", "spot", "still", "loop"])
def test_every_walk_is_well_posed(name):
    T = walk(name)
    found = normalize_poses(T)
    assert found.extrinsics.isfinite().all()
    back = invert_rigid(found.extrinsics.double())
    relative = invert_rigid(T[:, :1]) @ T
    assert torch.allclose(back[..., :3], relative[..., :3], atol=1e-5)
    unit = float(found.unit)
    assert torch.allclose(back[..., 3] * unit, relative[..., 3], atol=1e-5)
    assert bool(found.rotation_only) == (name in ("spot", "still"))
    assert unit >= SHORTEST_UNIT


def test_two_views_give_rotation_only():
    T = torch.eye(4).double().repeat(1, 2, 1, 1)
    T[0, 1, 0, 3] = 5.0
    found = normalize_poses(T)
    assert bool(found.rotation_only)
    assert float(found.unit) == pytest.approx(0.1)


def test_scenes_of_a_batch_have_units_of_their_own():
    T = torch.eye(4).double().repeat(2, 3, 1, 1)
    T[0, 1:, 0, 3], T[1, 1:, 0, 3] = 2.0, 8.0
    found = normalize_poses(T)
    assert found.unit.tolist() == [2.0, 8.0]
    assert torch.equal(found.extrinsics[0], found.extrinsics[1])


def test_poses_far_from_their_origin_keep_their_millimetres():
    """As map coordinates have it. In float32, as in the reference, steps of 3 cm are left."""
    near = walk("loop")
    far = near.clone()
    far[..., :3, 3] += torch.tensor([500_000.0, 4_500_000.0, 0.0])
    exact = normalize_poses(near).extrinsics
    assert torch.allclose(normalize_poses(far).extrinsics, exact, atol=1e-6)
    rough = reference_normalized(torch.linalg.inv(far).float())
    assert (rough - exact).abs().max() > 1e-2
