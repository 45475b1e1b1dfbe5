"""Ray maps of known cameras give back the cameras; the reference where it is right agrees."""

import math

import pytest
import torch
from support.oracle import pair, relative_error
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from da3_ros.network import build_network, initialize_randomly
from da3_ros.network.camera import invert_rigid, matrix_from_quaternion
from da3_ros.network.ray_pose import cameras_from_rays

GRID = (16, 24)
SIZE = (28, 42)  # pixels: 14 per 8 cells


def cameras(n, seed, *, degrees, offset=(0.0, 0.0)):
    """T_window_camera [n, 4, 4] turned by ``degrees``, and K [n, 3, 3] of an image of SIZE.

    The principal point is off the middle by ``offset`` half widths and half heights.
    """
    g = torch.Generator().manual_seed(seed)
    axis = torch.nn.functional.normalize(torch.randn(n, 3, generator=g).double(), dim=-1)
    half = math.radians(degrees) / 2
    q = torch.cat((axis * math.sin(half), torch.full((n, 1), math.cos(half)).double()), dim=-1)
    T = torch.eye(4).double().repeat(n, 1, 1)
    T[:, :3, :3] = matrix_from_quaternion(q)
    T[:, :3, 3] = torch.randn(n, 3, generator=g)
    H, W = SIZE
    K = torch.eye(3).double().repeat(n, 1, 1)
    K[:, 0, 0] = W * (0.7 + 0.3 * torch.rand(n, generator=g))
    K[:, 1, 1] = H * (0.9 + 0.3 * torch.rand(n, generator=g))
    K[:, 0, 2], K[:, 1, 2] = W / 2 * (1 + offset[0]), H / 2 * (1 + offset[1])
    return T, K


def ray_maps(T, K):
    """Exact ray maps [1, n, h, w, 6], from the definition alone."""
    h, w = GRID
    H, W = SIZE
    v, u = torch.meshgrid(
        (torch.arange(h).double() + 0.5) * H / h,
        (torch.arange(w).double() + 0.5) * W / w,
        indexing="ij",
    )
    pixels = torch.stack((u, v, torch.ones_like(u)), dim=-1)
    d = torch.einsum("nij,njk,hwk->nhwi", T[:, :3, :3], K.inverse(), pixels)
    origin = T[:, None, None, :3, 3].expand_as(d)
    return torch.cat((d, origin), dim=-1)[None].float()


def weights(n, seed=0):
    return 1 + torch.rand(1, n, *GRID, generator=torch.Generator().manual_seed(seed))


def degrees_between(A, B):
    cosine = ((A.mT @ B).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))


def reference_cameras(ray, confidence):
    """Room-to-camera and K of the reference's solver, its global draws seeded here."""
    from addict import Dict

    network = reference_cameras.network
    torch.manual_seed(0)
    out = Dict(ray=ray.clone(), ray_conf=confidence.clone())
    out = network._process_ray_pose_estimation(out, *SIZE)
    return out.extrinsics, out.intrinsics


@pytest.fixture(autouse=True, scope="module")
def oracle_solver():
    reference_cameras.network = pair("da3-tiny", 0)[1]


@pytest.mark.parametrize("degrees", [0, 30, 90, 150, 180])
@pytest.mark.parametrize("offset", [(0.0, 0.0), (0.08, -0.05)])
def test_exact_rays_give_back_the_cameras(degrees, offset):
    T, K = cameras(4, degrees, degrees=degrees, offset=offset)
    extrinsics, found = cameras_from_rays(ray_maps(T, K), weights(4), SIZE)
    assert torch.allclose(extrinsics[0].double(), invert_rigid(T), atol=2e-6)
    assert relative_error(found[0].double(), K) < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_solver_equals_the_reference_for_centred_cameras(seed):
    T, K = cameras(4, seed, degrees=35)
    ray, confidence = ray_maps(T, K), weights(4, seed)
    expected, expected_K = reference_cameras(ray, confidence)
    extrinsics, found = cameras_from_rays(ray, confidence, SIZE)
    assert relative_error(extrinsics, expected) < 1e-4
    assert relative_error(found, expected_K) < 1e-4


def test_with_noise_both_find_the_camera_and_ours_no_worse():
    T, K = cameras(12, 2, degrees=25)
    g = torch.Generator().manual_seed(3)
    ray = ray_maps(T, K)
    ray += 0.01 * torch.randn(ray.shape, generator=g)
    expected, _ = reference_cameras(ray, weights(12))
    extrinsics, _ = cameras_from_rays(ray, weights(12), SIZE)
    truth = invert_rigid(T)[..., :3]
    ours = degrees_between(extrinsics[0, :, :, :3].double(), truth)
    theirs = degrees_between(expected[0, :, :, :3].double(), truth)
    assert ours.max() < 0.3
    assert ours.mean() <= 1.05 * theirs.mean()


def test_principal_point_off_centre_is_found():
    """Principal point off centre is found where the reference turns the camera."""
    T, K = cameras(3, 4, degrees=20, offset=(0.05, 0.05))
    ray, truth = ray_maps(T, K), invert_rigid(T)
    extrinsics, found = cameras_from_rays(ray, weights(3), SIZE)
    expected, expected_K = reference_cameras(ray, weights(3))
    assert degrees_between(extrinsics[0, :, :, :3].double(), truth[..., :3]).max() < 0.01
    assert degrees_between(expected[0, :, :, :3].double(), truth[..., :3]).min() > 1
    middle = torch.tensor(SIZE).double().flip(0) / 2
    offset, wrong = (k[0, :, :2, 2].double() - middle for k in (found, expected_K))
    assert torch.allclose(offset, 0.05 * middle.expand_as(offset), rtol=1e-3)
    assert (wrong < 0).all()  # the sign is lost, too


def test_directions_across_the_reference_plane_are_as_good():
    """Turned by 90 degrees, half of the rays have a negative z in the reference frame."""
    T, K = cameras(1, 0, degrees=0)
    T[0, :3, :3] = matrix_from_quaternion(torch.tensor([0.0, 1, 0, 1]).double())
    ray = ray_maps(T, K)
    assert float(ray[..., 2].min()) < 0 < float(ray[..., 2].max())
    noisy = ray + 0.005 * torch.randn(ray.shape, generator=torch.Generator().manual_seed(0))
    extrinsics, _ = cameras_from_rays(noisy, weights(1), SIZE)
    assert degrees_between(extrinsics[0, :, :, :3].double(), invert_rigid(T)[..., :3]).max() < 0.3


def test_a_third_of_wild_rays_changes_little():
    T, K = cameras(3, 5, degrees=40)
    g = torch.Generator().manual_seed(6)
    ray, wild = ray_maps(T, K), torch.rand(1, 3, *GRID, generator=g) < 1 / 3
    ray[..., :3][wild] = torch.randn(int(wild.sum()), 3, generator=g)
    extrinsics, found = cameras_from_rays(ray, weights(3), SIZE)
    truth = invert_rigid(T)[..., :3]
    assert degrees_between(extrinsics[0, :, :, :3].double(), truth).max() < 1
    assert relative_error(found[0].double(), K) < 0.03


def test_bad_rays_give_nan_for_their_frame_only():
    """Rays of no camera and broken values give NaN for that frame only."""
    T, K = cameras(5, 7, degrees=10)
    ray, confidence = ray_maps(T, K), weights(5)
    ray[0, 0, ..., :3] = 0
    ray[0, 1, ..., :3] = torch.tensor([0.0, 0, 1])  # all rays parallel
    ray[0, 2] = torch.nan
    confidence[0, 3] = 0
    ray[0, 4, 0, 0] = torch.inf  # one cell: the rest suffices
    extrinsics, found = cameras_from_rays(ray, confidence, SIZE)
    for i in range(4):
        assert extrinsics[0, i].isnan().all(), i
        assert found[0, i].isnan().all(), i
    assert torch.allclose(extrinsics[0, 4].double(), invert_rigid(T)[4], atol=1e-5)


def test_the_global_generator_is_neither_read_nor_moved():
    T, K = cameras(2, 8, degrees=10)
    ray = ray_maps(T, K)
    ray = ray + 0.02 * torch.randn(ray.shape, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    first = cameras_from_rays(ray, weights(2), SIZE)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = cameras_from_rays(ray, weights(2), SIZE)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_memory_of_poses_from_rays_is_bounded():
    """The size of 504 x 280 images. The reference's decomposition alone takes a gigabyte."""
    h, w = 160, 288
    ray = torch.randn(1, 8, h, w, 6, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), _LargestTensor() as largest:
        cameras_from_rays(ray, torch.ones(1, 8, h, w), (280, 504))
    assert largest.bytes <= 4 * h * w * 9 * 8


class _LargestTensor(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return out


def test_each_frame_is_solved_on_its_own():
    T, K = cameras(6, 9, degrees=15)
    ray, confidence = ray_maps(T, K), weights(6)
    together, _ = cameras_from_rays(ray, confidence, SIZE)
    alone, _ = cameras_from_rays(ray[:, 5:], confidence[:, 5:], SIZE)
    assert torch.allclose(together[:, 5:], alone, atol=1e-6)


def test_network_gives_the_cameras_of_its_own_rays():
    network = build_network("da3-tiny")
    initialize_randomly(network, 3)
    x = torch.randn(1, 2, 3, *SIZE, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        out = network(x, ref_view="first", ray_pose=True)
        plain = network(x, ref_view="first", rays=True)
    extrinsics, K = cameras_from_rays(plain.ray, plain.ray_confidence, SIZE)
    assert out.ray is None
    assert torch.equal(out.depth, plain.depth)
    assert torch.equal(out.extrinsics.nan_to_num(7), extrinsics.nan_to_num(7))
    assert torch.equal(out.intrinsics.nan_to_num(7), K.nan_to_num(7))
