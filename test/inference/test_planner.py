"""The planner: predictions against what runs, and the order in which it gives things up."""

import dataclasses
import itertools
import json
import threading

import pytest
import torch
from support.cases import long_after
from support.tiny_networks import tiny_metric_spec

from da3_ros.cli.plan_table import AbsentCuda
from da3_ros.inference import memory_footprint as module
from da3_ros.inference import planner
from da3_ros.inference.devices import open_device
from da3_ros.inference.memory_footprint import (
    Shape,
    cached_footprint,
    footprint,
    peak_of,
    weight_bytes,
)
from da3_ros.inference.planner import (
    GIB,
    SMALLEST,
    BudgetError,
    Plan,
    Request,
    check_fits,
    gib_texts,
    least_memory,
    make_plan,
    needs_lower_precision,
    network_size,
)
from da3_ros.network import MODELS, build_network
from da3_ros.network.model import Chunks
from da3_ros.network.precision import drop_camera_encoder, drop_rays
from da3_ros.types import LOWER_BOUND, UPPER_BOUND, ResizeRule

MIB = 2**20


def request(**changes):
    values = {
        "model": "da3-small", "precision": torch.float32, "lower_precision": None,
        "process_res": 504, "window": 8, "new": 1, "image": (640, 480),
    }  # fmt: skip
    return Request(**(values | changes))


@pytest.fixture(scope="module")
def cpu():
    return open_device("cpu")


@pytest.fixture(scope="module")
def full(cpu):
    return make_plan(cpu, request(), 100 * GIB)


def test_live_tensors_are_added_up_and_freed_ones_are_not():
    def work():
        a = torch.empty(100, device="meta")
        b = a + a
        del a
        c = b.view(10, 10)  # no memory of its own
        return c + 1

    assert peak_of(work)[0] == 2 * 400


def test_attention_is_counted_as_a_fused_kernel_needs_it():
    q = torch.empty(1, 1, 1000, 64, device="meta")
    attention = torch.nn.functional.scaled_dot_product_attention
    assert peak_of(lambda: attention(q, q, q))[0] == q.numel() * 4


def test_weights_are_those_of_the_network_that_runs():
    network = build_network("da3-small")
    drop_rays(network)
    drop_camera_encoder(network)
    shape = Shape("da3-small", 2, 2, 98, 98, torch.float32, Chunks())
    assert footprint(shape).weights == weight_bytes(network)
    half = footprint(dataclasses.replace(shape, dtype=torch.bfloat16)).weights
    assert 0.5 < half / weight_bytes(network) < 0.7  # camera parts and norms stay fp32


def test_known_poses_cost_what_reads_them():
    shape = Shape("da3-small", 8, 4, 210, 280, torch.float32, Chunks(1, 1))
    given = dataclasses.replace(shape, poses=True)
    encoder = weight_bytes(build_network("da3-small").cam_enc)
    assert footprint(given).weights - footprint(shape).weights == encoder
    assert footprint(given).activations >= 0.99 * footprint(shape).activations


def test_cameras_that_take_turns_keep_their_own_prefixes(cpu, full):
    three = make_plan(cpu, request(streams=3), 100 * GIB)
    assert three.prefix == 3 * full.prefix


def test_memory_grows_with_what_it_should_grow_with():
    shape = Shape("da3-small", 8, 4, 210, 280, torch.float32, Chunks(1, 1))
    base = footprint(shape)
    assert footprint(dataclasses.replace(shape, views=16)).activations > base.activations
    assert footprint(dataclasses.replace(shape, height=280)).activations > base.activations
    assert footprint(dataclasses.replace(shape, chunks=Chunks())).activations > base.activations
    half = dataclasses.replace(shape, dtype=torch.bfloat16)
    assert footprint(half).activations < base.activations


def test_with_room_nothing_is_given_up(full):
    assert full.reduced == ()
    assert (full.process_res, full.window, full.width, full.height) == (504, 8, 504, 378)
    assert full.precision == "float32"


def test_lossless_steps_come_before_lossy_ones(cpu):
    device = AbsentCuda()
    plan = make_plan(device, request(), 100 * GIB)
    budgets = [plan.predicted - 1]
    seen = [plan]
    while not seen[-1].reduced:
        seen.append(make_plan(device, request(), budgets[-1]))
        budgets.append(seen[-1].predicted - 1)
    lossless = [p for p in seen if not p.reduced]
    assert [p.chunks.head_frames for p in lossless][:2] == [8, 1]
    assert lossless[-1].chunks == SMALLEST
    assert lossless[-1].prefix_on_host
    assert all(a.predicted > b.predicted for a, b in itertools.pairwise(seen))


@pytest.mark.slow
def test_then_16_bits_then_smaller_images_then_fewer_views(cpu):
    wanted = request(lower_precision=torch.bfloat16)
    budget = make_plan(cpu, wanted, 100 * GIB).predicted
    order = []
    while True:
        try:
            plan = make_plan(cpu, wanted, budget)
        except BudgetError:
            break
        lost = (plan.precision != "float32", plan.process_res < 504, plan.window < 8)
        if lost not in order:
            order.append(lost)
        budget = int(plan.predicted * 0.9)
    expected = [
        (False, False, False), (True, False, False), (True, True, False), (True, True, True),
    ]  # fmt: skip
    assert order == expected


def test_a_lossy_plan_uses_most_of_the_budget(cpu, full):
    budget = int(full.weights + 0.7 * (full.predicted - full.weights))
    plan = make_plan(cpu, request(), budget)
    assert plan.reduced
    assert 0.9 * budget < plan.predicted <= budget


@pytest.mark.parametrize("image", long_after(1, [(640, 480), ((480, 640),)]))
def test_every_reduction_keeps_the_method(cpu, image):
    asked = request(process_res_method=LOWER_BOUND, process_res=392, image=image)
    full = make_plan(cpu, asked, 100 * GIB)
    assert min(full.width, full.height) == 392
    assert full.rule == ResizeRule(392, LOWER_BOUND)
    assert network_size(asked) == (full.height, full.width)
    for part in (0.6, 0.4):
        budget = int(full.weights + part * (full.predicted - full.weights))
        less = make_plan(cpu, asked, budget)
        assert less.predicted <= budget
        assert less.process_res_method == LOWER_BOUND
        assert min(less.width, less.height) == less.process_res < 392


def test_a_plan_without_a_method_had_the_longest_side(full):
    values = dataclasses.asdict(full)
    del values["process_res_method"]
    assert Plan.from_json(json.dumps(values)).rule == ResizeRule(504, UPPER_BOUND)
    by_shortest = dataclasses.replace(full, process_res_method=LOWER_BOUND)
    assert Plan.from_json(json.dumps(by_shortest.repeatable())).rule.process_res_method == (
        LOWER_BOUND
    )


def test_what_was_given_up_is_reported(cpu, full):
    plan = make_plan(cpu, request(), int(full.weights + 0.5 * (full.predicted - full.weights)))
    assert any("process_res" in text and "instead of 504" in text for text in plan.reduced)


@pytest.mark.slow
def test_nothing_fits_and_the_error_names_what_would(cpu):
    with pytest.raises(BudgetError, match=r"0\.30 GiB .* needs .* or set model to da3-small"):
        make_plan(cpu, request(model="da3-large"), 3 * GIB // 10)
    with pytest.raises(BudgetError, match=r"raise memory_budget_gb$"):
        make_plan(cpu, request(model="da3-tiny"), 10 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("changes", long_after(2, [
    {"process_res": 112, "window": 2, "lower_precision": torch.bfloat16}, {"poses": True},
    {"window": 4, "new": 3}, {}, {"lower_precision": torch.bfloat16},
    {"process_res": 112, "window": 2}, {"precision": torch.int8},
]))  # fmt: skip
@pytest.mark.parametrize("on", [open_device("cpu"), AbsentCuda()], ids=["cpu", "cuda"])
def test_a_budget_is_refused_exactly_when_it_has_no_plan(on, changes):
    wanted = request(model="da3-tiny", **changes)
    least = least_memory(on, wanted)
    for budget in (least, least + MIB, 2 * least):
        check_fits(on, wanted, budget)
        assert make_plan(on, wanted, budget).predicted <= budget
    for budget in (least - 1, least // 2):
        for refuses in (check_fits, make_plan):
            with pytest.raises(BudgetError, match=r"needs at least .* GiB"):
                refuses(on, wanted, budget)


def test_a_measured_factor_changes_the_plan(cpu, full):
    assert make_plan(cpu, request(), 100 * GIB, factor=2.4).activations == pytest.approx(
        2 * full.activations, rel=0.01
    )


def test_a_plan_survives_its_file(full):
    again = Plan.from_json(json.dumps(dataclasses.asdict(full)))
    assert again == full
    assert isinstance(again.chunks, Chunks)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"precision": "float8"}, "unknown precision 'float8'"), ({"width": 0}, "a size below 1"),
     ({"process_res_method": "lower_bound_crop"}, "unknown process_res_method"),
     ({"height": "84"}, "not a plan")],
)  # fmt: skip
def test_a_plan_of_another_kind_is_one_clear_error(full, changes, said):
    values = json.loads(json.dumps(dataclasses.asdict(full))) | changes
    with pytest.raises(BudgetError, match=said):
        Plan.from_json(json.dumps(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", long_after(2, ["da3-small", "da3metric-large", "da3-tiny", "da3-giant"])
)
@pytest.mark.parametrize("dtype", long_after(1, [torch.bfloat16, torch.float32, torch.int8]))
def test_blocks_counted_once_need_what_each_of_them_needs(monkeypatch, model, dtype):
    shapes = [
        Shape(model, views, wanted, height, 252, dtype, chunks, poses)
        for views, wanted, height in ((8, 4, 378), (2, 2, 168))
        for chunks, poses in ((Chunks(8), False), (Chunks(1, 4, 8192), model == "da3-small"))
    ]
    found = [footprint(shape) for shape in shapes]
    for counted_once in (module._CachedBlock, module._CachedFrames):
        monkeypatch.setattr(
            counted_once, "__call__", lambda self, *arguments: self._run(*arguments)
        )
    cached_footprint.cache_clear()
    assert [footprint(shape) for shape in shapes] == found


@pytest.mark.slow
def test_two_threads_may_ask_at_once():
    shape = Shape("da3-tiny", 4, 2, 168, 252, torch.float32, SMALLEST)
    shapes = [shape, dataclasses.replace(shape, chunks=Chunks())]
    alone = [footprint(s) for s in shapes]
    found = []

    def ask(index):
        for _ in range(10):
            uncached = cached_footprint.__wrapped__(shapes[index], MODELS["da3-tiny"])
            found.append(uncached == alone[index])

    threads = [threading.Thread(target=ask, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [True] * 20


def test_a_name_that_stands_for_another_network_is_counted_anew(monkeypatch):
    shape = Shape("da3metric-large", 1, 1, 56, 84, torch.float32, SMALLEST)
    with monkeypatch.context() as patched:
        patched.setitem(MODELS, "da3metric-large", tiny_metric_spec())
        small = footprint(shape)
    assert footprint(shape).weights > 10 * small.weights


def test_a_budget_is_checked_after_a_window_made_the_plan():
    """A window runs in PyTorch's inference mode, the check of a parameter does not."""
    module._meta_network.cache_clear()
    cached_footprint.cache_clear()
    shape = Shape("da3metric-large", 1, 1, 56, 84, torch.float32, SMALLEST)
    with torch.inference_mode():
        found = footprint(shape)
    cached_footprint.cache_clear()
    assert footprint(shape) == found


def test_an_answer_does_not_depend_on_what_was_asked_before():
    shape = Shape("da3-tiny", 4, 2, 168, 252, torch.bfloat16, SMALLEST)
    cached_footprint.cache_clear()
    alone = footprint(shape)
    cached_footprint.cache_clear()
    footprint(dataclasses.replace(shape, chunks=Chunks()))
    assert footprint(shape) == alone


def test_a_row_of_the_table_needs_few_counts(cpu, monkeypatch):
    asked, plain = [], planner.footprint
    monkeypatch.setattr(planner, "footprint", lambda shape: asked.append(shape) or plain(shape))
    make_plan(cpu, request(model="da3-tiny"), 100 * GIB)
    assert len(asked) == 1
    with pytest.raises(BudgetError):
        make_plan(cpu, request(model="da3-tiny"), 10 * MIB)
    assert len(set(asked)) <= 6


def test_sizes_in_a_line_have_the_digits_that_tell_them_apart():
    assert gib_texts(GIB, 2 * GIB) == ("1.00", "2.00")
    assert gib_texts(round(0.0701 * GIB), round(0.0712 * GIB)) == ("0.07", "0.08")  # rounded up
    assert gib_texts(round(0.0759 * GIB), round(0.0768 * GIB)) == ("0.076", "0.077")
    assert gib_texts(5 * GIB, 5 * GIB + 1) == ("5.00", "5.01")


@pytest.mark.long
def test_a_model_without_gaussians_is_no_remedy(cpu):
    with pytest.raises(BudgetError, match=r"raise memory_budget_gb$"):
        make_plan(cpu, request(model="da3-giant", gaussians=True), GIB)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"model": "da3-small"}'])
def test_anything_else_is_no_plan(text):
    with pytest.raises(BudgetError, match="not a plan"):
        Plan.from_json(text)


def test_the_lower_precision_is_needed_if_only_it_fits(cpu):
    wanted = request(lower_precision=torch.bfloat16)
    least = least_memory(cpu, wanted)
    enough = make_plan(cpu, wanted, 100 * GIB).predicted
    assert needs_lower_precision(cpu, wanted, least)
    assert not needs_lower_precision(cpu, wanted, least - 1)  # no precision helps
    assert not needs_lower_precision(cpu, wanted, enough)
    assert not needs_lower_precision(cpu, request(), least_memory(cpu, request()))


def test_lower_precision_alone_if_memory_suffices(cpu, full):
    wanted = request(lower_precision=torch.bfloat16)
    plan = make_plan(cpu, wanted, 100 * GIB, planner.UNMEASURED, torch.bfloat16)
    assert plan.reduced == ("precision bfloat16",)
    assert plan.chunks == full.chunks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shortcuts_give_what_the_operations_give(dtype):
    """Results on meta tensors that are made without running PyTorch's own code for them."""
    aten = torch.ops.aten
    rows, image = torch.randn(2, 5, 8).to(dtype), torch.randn(2, 3, 6, 4).to(dtype)
    last = image.contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(7, 8).to(dtype), torch.randn(7).to(dtype)
    kernel = torch.randn(7, 3, 3, 2).to(dtype)
    cases = [
        (aten.linear.default, (rows, weight, bias)),
        (aten.linear.default, (rows[:, 1:4], weight)),
        (aten.layer_norm.default, (rows, [8], weight[0], weight[1], 1e-6)),
        (aten.layer_norm.default, (rows.transpose(0, 1), [8], weight[0], weight[1], 1e-6)),
        (aten.gelu.default, (rows.transpose(0, 1),)),
        *((op, (x,)) for op in (aten.relu.default, aten.gelu.default) for x in (image, last)),
        (aten.upsample_bilinear2d.vec, (last, [9, 5], False, None)),
        (aten.upsample_bicubic2d.vec, (image, None, False, [1.5, 2.0])),
        *((op, (x, image)) for op in (aten.add.Tensor, aten.sub.Tensor) for x in (image, last)),
        *((aten.mul.Tensor, (rows, other)) for other in (rows, rows[:, :1], weight[0], 2, 0.5)),
        (aten.neg.default, (last,)),
        (aten.where.ScalarOther, (rows > 0, rows, float("nan"))),
        (aten.conv2d.default, (image, kernel, bias, [2, 2], [1, 1])),
        (aten.conv2d.default, (image, kernel, None, [3])),
        (aten.conv2d.default, (image, kernel)),
    ]
    assert {op for op, _ in cases} == set(module._SHORTCUTS)
    for op, args in cases:
        meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
        found, wanted = module._SHORTCUTS[op](*meta), op(*args)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), op
        assert found.stride() == wanted.stride(), op


def test_what_a_shortcut_cannot_tell_is_left_to_the_operation():
    """Operands that change type, shape or layout of the result."""
    aten = torch.ops.aten
    x, image = torch.ones(2, 3, device="meta"), torch.ones(1, 2, 5, 5, device="meta")
    kernel = torch.ones(4, 1, 3, 3, device="meta")
    for op, args in (
        (aten.add.Tensor, (x, x.double())),
        (aten.mul.Tensor, (x[:1], x)),
        (aten.mul.Tensor, (x[0], x)),
        (aten.mul.Tensor, (x.int(), 0.5)),
        (aten.sub.Tensor, (x.t(), x.t())),
        (aten.neg.default, (x[:, :2],)),
        (aten.where.ScalarOther, (x[:, :1] > 0, x[0], 0.0)),
        (aten.conv2d.default, (image, kernel, None, [1, 1], [0, 0], [2, 2])),
        (aten.conv2d.default, (image, kernel, None, [1, 1], [0, 0], [1, 1], 2)),
    ):
        assert module._SHORTCUTS[op](*args) is None, (op, args)
