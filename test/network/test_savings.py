"""What is skipped, kept or cut into pieces gives the same result; 16 bits give nearly the same."""

import copy

import pytest
import torch
import torch._dynamo.testing
from support.cases import long_after

from da3_ros.network import build_network, initialize_randomly
from da3_ros.network.backbone import Prefix, RopeTable, apply_rope, rope_table
from da3_ros.network.model import Chunks
from da3_ros.network.precision import channels_last, convert, drop_rays

SIZE = (70, 98)


@pytest.fixture(scope="module", params=["da3-tiny", "da3-small"])
def network(request):
    net = build_network(request.param)
    initialize_randomly(net, seed=1)
    return net


# Of the two only the widths differ, which the compiler's tracing does not see.
one_network = pytest.mark.parametrize("network", ["da3-tiny"], indirect=True)


@pytest.fixture
def images():
    return torch.randn(1, 5, 3, *SIZE, generator=torch.Generator().manual_seed(2))


def close(a, b, bound=1e-5):
    """Within ``bound`` of the largest magnitude."""
    return float((a - b).abs().max() / b.abs().max()) < bound


def same(a, b, frames=slice(None)):
    assert close(a.depth, b.depth[:, frames])
    assert close(a.confidence, b.confidence[:, frames])
    assert close(a.extrinsics, b.extrinsics)
    assert close(a.intrinsics, b.intrinsics)


@pytest.mark.parametrize(
    "chunks", long_after(2, [Chunks(2, 1, 0), Chunks(1, 2, 50), Chunks(1, 0, 0), Chunks(8, 0, 64)])
)
@torch.inference_mode()
def test_pieces_of_any_size_give_the_same_result(network, images, chunks):
    whole = network(images, ref_view="saddle_balanced")
    network.set_chunks(chunks)
    try:
        same(network(images, ref_view="saddle_balanced"), whole)
    finally:
        network.set_chunks(Chunks())


@torch.inference_mode()
def test_the_head_runs_on_the_frames_that_are_wanted(network, images):
    whole = network(images, ref_view="middle")
    frames = [0, 3, 4]
    prefix = network.encode(images)
    some = network.decode(prefix, SIZE, ref_view="middle", frames=torch.tensor(frames))
    assert some.depth.shape[1] == 3
    same(some, whole, frames)


@pytest.mark.parametrize("chunks", [Chunks(), Chunks(1, 1, 50)])
@pytest.mark.parametrize("frames", long_after(2, [[4, 1], [0, 1, 2, 3, 4], [3]]))
@torch.inference_mode()
def test_the_last_block_runs_for_the_tokens_that_are_used(network, images, frames, chunks):
    whole = network(images, ref_view="first")
    rows, last = [], network.backbone.pretrained.blocks[-1]
    hook = last.norm2.register_forward_hook(
        lambda module, x, out: rows.append(out[..., 0].numel())
    )
    network.set_chunks(chunks)
    try:
        out = network.decode(
            network.encode(images), SIZE, ref_view="first", frames=torch.tensor(frames)
        )
    finally:
        network.set_chunks(Chunks())
        hook.remove()
    same(out, whole, frames)
    tokens = 1 + 5 * 7
    assert sum(rows) == len(frames) * tokens + 5  # and the class slots of all views


@torch.inference_mode()
def test_a_window_leaves_what_it_was_given_as_it_was(network, images):
    """CUDA graphs capture nothing that writes into its input."""
    for chunks in (Chunks(), Chunks(1, 1, 50)):
        network.set_chunks(chunks)
        try:
            prefix = network.encode(images)
            before = Prefix(*(x.clone() for x in prefix))
            network.decode(prefix, SIZE, ref_view="first", frames=torch.tensor([1, 2]))
        finally:
            network.set_chunks(Chunks())
        assert all(torch.equal(a, b) for a, b in zip(prefix, before, strict=True))


@pytest.mark.long
@pytest.mark.slow
@one_network
@torch.inference_mode()
def test_other_wanted_frames_are_no_new_program(network, images):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    decode = torch.compile(network.decode, backend=counter, fullgraph=True, dynamic=False)
    prefix, whole = network.encode(images), network(images, ref_view="first")
    for frames in ([0, 4], [1, 2], [3, 4]):
        same(decode(prefix, SIZE, ref_view="first", frames=torch.tensor(frames)), whole, frames)
    assert counter.frame_count == 1


@torch.inference_mode()
def test_a_frames_prefix_is_the_same_whoever_it_is_encoded_with(network, images):
    whole = network(images, ref_view="first")
    parts = [network.encode(images[:, i : i + 1]) for i in range(5)]
    kept = Prefix(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))
    same(network.decode(kept, SIZE, ref_view="first"), whole)


def test_turning_the_slots_back_is_turning_all_patches():
    g = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 2, 9, 64, generator=g)  # three frames of a slot and two patches
    positions = torch.tensor([[0, 0], [1, 1], [1, 1]]).repeat(3, 1)
    table = rope_table(positions)
    plain = apply_rope(q, table) @ apply_rope(k, table).mT
    back = rope_table(torch.tensor([[-1, -1]]))
    strided = RopeTable(back.cos, back.sin, stride=3)
    ours = apply_rope(q.clone(), strided) @ apply_rope(k.clone(), strided).mT
    assert close(ours, plain)


@torch.inference_mode()
def test_without_its_ray_branch_the_head_gives_equal_results(network, images):
    lean = copy.deepcopy(network)
    drop_rays(lean)
    assert len(lean.state_dict()) < len(network.state_dict())
    same(lean(images, ref_view="first"), network(images, ref_view="first"))


@torch.inference_mode()
def test_channels_last_changes_the_layout_and_not_the_result(network, images):
    other = copy.deepcopy(network)
    channels_last(other)
    same(other(images, ref_view="first"), network(images, ref_view="first"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_16_bits_stay_near_and_the_fragile_parts_stay_fp32(network, images, dtype):
    plain = network(images, ref_view="first")
    half = copy.deepcopy(network)
    convert(half, dtype)
    kinds = {n: p.dtype for n, p in half.named_parameters()}
    assert kinds["backbone.pretrained.blocks.1.attn.qkv.weight"] == dtype
    assert kinds["backbone.pretrained.blocks.1.norm1.weight"] == torch.float32
    assert kinds["backbone.pretrained.blocks.1.ls1.gamma"] == torch.float32
    assert kinds["head.scratch.output_conv2.2.weight"] == torch.float32
    assert half.encode(images).tokens.dtype == torch.float32
    out = half(images, ref_view="first")
    assert out.depth.dtype == torch.float32
    assert float((out.depth / plain.depth).log().abs().median()) < 0.02
    assert close(out.extrinsics, plain.extrinsics, 0.02)
    # Terraces: 16-bit depth would have a few hundred values over this many pixels.
    assert len(out.depth.unique()) > 0.9 * out.depth.numel()


@pytest.mark.long
@pytest.mark.slow
@one_network
@torch.inference_mode()
def test_compiler_meets_no_break_and_compiles_shapes_once(network, images):
    whole = network(images, ref_view="first")
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    options = {"backend": counter, "fullgraph": True, "dynamic": False}
    encode = torch.compile(network.encode, **options)
    decode = torch.compile(network.decode, **options)
    for _ in range(3):
        prefix = Prefix(*(x.clone() for x in encode(images)))
        out = decode(prefix, SIZE, ref_view="first", frames=torch.tensor([0, 4]))
    assert counter.frame_count == 2
    same(out, whole, [0, 4])
