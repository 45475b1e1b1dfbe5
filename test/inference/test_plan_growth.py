"""A plan that memory made smaller grows again when memory is free, and only then."""

import dataclasses
import itertools
import logging

import numpy as np
import pytest
import torch
from support.cases import long_after

from da3_ros.inference import BudgetError, InferenceConfig, InferenceSession
from da3_ros.inference import memory_governor as governor
from da3_ros.inference import session as module
from da3_ros.inference.devices import Cpu
from da3_ros.inference.memory_governor import (
    CHECK_EVERY,
    CHECK_S,
    FREE_SHARE,
    MOST_CHECKS,
    MOST_FAILURES,
    STABLE_CHECKS,
    Growth,
)
from da3_ros.inference.planner import GIB, SMALLEST, UNMEASURED, least_memory
from da3_ros.types import Prediction, View, Window

PATIENCE = CHECK_EVERY * STABLE_CHECKS  # windows after which lasting memory counts
VIEWS, ASKED = 4, 504


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that each test may move on; checks wait for windows only, unless a test wants more."""
    now = [0.0]
    monkeypatch.setattr(governor.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(governor, "CHECK_S", 0.0)
    return now


class SharedGpu(Cpu):
    """A GPU whose memory other processes use too; a window takes ``excess`` times what its
    activations add up to, by default as it is predicted."""

    kind, shares_host, has_cap = "cuda", False, True

    def __init__(self, total):
        super().__init__()
        self.device = torch.device("cpu")
        self.total, self.others, self.excess = total, 0, UNMEASURED
        self.reserved = self.most = 0
        self.caps = []
        self.needs = lambda: (0, 0)  # kept, and at most, of a window

    def run(self):
        _, most = self.needs()
        if self.others + most > self.total:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.reserved = max(self.reserved, most)
        self.most = max(self.most, self.reserved)

    def free(self):
        return self.total - self.others - self.needs()[0]

    def in_use(self):
        return self.needs()[0] + self.reserved

    def peak(self):
        return self.most

    def window_peak(self, before, persistent):
        return self.most

    def reset_peak(self):
        self.most = self.reserved

    def release(self):
        self.reserved = self.needs()[0]

    def cap(self, budget):
        self.caps.append(budget)


def opened(monkeypatch, *, others_gb=0.0, total_gb=1.0, network=False, **changes):
    """A session on a GPU with as much used by others, and its plan for windows of four views.

    network: whether its windows run; else they only take memory.
    """
    gpu = SharedGpu(int(total_gb * GIB))
    gpu.others = int(others_gb * GIB)
    monkeypatch.setattr(module, "open_device", lambda name, mode: gpu)
    values = {"mixed_precision": "off", "process_res": ASKED, "backend": "torch"} | changes
    session = InferenceSession(InferenceConfig("da3-tiny", "random", "cuda", **values))

    def needs():
        plan, memory = session.memory.plan, session.memory
        if plan is None:
            return 0, 0
        small = memory.fallback.current.scale**2
        activations = gpu.excess * plan.activations / memory.factor * small
        return plan.weights, int(plan.predicted - plan.activations + activations)

    gpu.needs = needs
    session.memory.fit((640, 480), VIEWS, 1)
    plain = session._decoder.answer
    monkeypatch.setattr(session._decoder, "answer", lambda *a: gpu.run() or plain(*a))
    if not network:
        monkeypatch.setattr(session, "_run", lambda window: take_memory(session, gpu, window))
    return session, gpu


def take_memory(session, gpu, window):
    """A window without its network: what counts in memory, in the same order."""
    session.memory.meter.begin()
    gpu.run()
    session.memory.measure(len(window.views))
    return NOTHING


NOTHING = Prediction(*[np.zeros(0)] * 4)
PICTURES = np.random.default_rng(0).integers(0, 256, (VIEWS, 14, 28, 3)).astype(np.uint8)


def run(session, windows, grow=True):
    """Runs windows of the plan's views; returns the image side of the plan after each.

    The network sees small pictures; the GPU counts what the plan's would take.
    """
    sides = []
    for number in range(windows):
        views = tuple(View(i, i, picture) for i, picture in enumerate(PICTURES))
        session.infer(Window(number, views[: session.memory.plan.window], 1))
        if grow:
            session.memory.grow()
        session.memory.fit((640, 480), VIEWS, 1)  # as the pipeline before each window
        sides.append(session.memory.plan.process_res)
    return sides


def changes(values):
    return sum(a != b for a, b in itertools.pairwise(values))


@pytest.fixture(scope="module")
def full_gb():
    """What the whole request is predicted to take, GiB."""
    with pytest.MonkeyPatch.context() as patch:
        session, _ = opened(patch, total_gb=8.0)
        return session.memory.plan.predicted / GIB


def reduced_session(monkeypatch, full_gb, **changes):
    """One that began with a third of the memory that its request needs."""
    total = 3 * full_gb
    session, gpu = opened(
        monkeypatch, total_gb=total, others_gb=total - 0.6 * full_gb / FREE_SHARE, **changes
    )
    assert session.memory.plan.process_res < ASKED
    assert session.memory.degraded
    return session, gpu


@pytest.mark.parametrize("network", long_after(1, [False, True]))
def test_a_plan_grows_to_the_request_when_another_process_ends(
    monkeypatch, full_gb, caplog, network
):
    session, gpu = reduced_session(monkeypatch, full_gb, network=network)
    small, budget = session.memory.plan, session.memory.budget
    assert set(run(session, PATIENCE)) == {small.process_res}, "memory is as short as it was"
    gpu.others = 0
    caplog.clear()
    with caplog.at_level(logging.INFO):
        sides = run(session, PATIENCE + CHECK_EVERY)
    assert changes([small.process_res, *sides]) == 1
    assert session.memory.plan.process_res == ASKED
    assert session.memory.degraded == ()
    assert session.memory.budget > budget
    assert gpu.caps[-1] == session.memory.budget
    assert session.memory.plan.predicted <= session.memory.budget
    told = [r.message for r in caplog.records if r.name.startswith("da3_ros")]
    assert told == ["memory suffices for a larger plan: no result is reduced"]
    assert set(run(session, 2 * PATIENCE)) == {ASKED}, "never beyond the request"


def test_memory_that_lasts_counts_and_no_window_earlier(monkeypatch, full_gb):
    session, gpu = reduced_session(monkeypatch, full_gb)
    small = session.memory.plan.process_res
    gpu.others = 0
    assert set(run(session, PATIENCE - 1)) == {small}
    assert run(session, 1) == [ASKED]


@pytest.mark.parametrize("period", [CHECK_EVERY, 2 * CHECK_EVERY, 17])
def test_memory_that_comes_and_goes_changes_nothing(monkeypatch, full_gb, period):
    session, gpu = reduced_session(monkeypatch, full_gb)
    others, sides = gpu.others, []
    for turn in range(8):
        gpu.others = 0 if turn % 2 else others
        sides += run(session, period)
    assert len(set(sides)) == 1


def test_memory_that_goes_after_growth_is_trusted_less_and_then_no_more(
    monkeypatch, full_gb, caplog
):
    """Each time that memory ran out, the plan from before returns; growth waits, then ends."""
    session, gpu = reduced_session(monkeypatch, full_gb)
    others, small, sides, waits = gpu.others, session.memory.plan.process_res, [], []
    for _ in range(MOST_FAILURES):
        gpu.others = 0
        waits.append(0)
        while sides[-1:] != [ASKED]:
            sides += run(session, 1)
            waits[-1] += 1
            assert waits[-1] < 20 * PATIENCE
        gpu.others = others
        sides += run(session, 3)
        assert sides[-1] == small
        assert session.memory.fallback.level == 0
    assert waits[1] >= 1.8 * waits[0]
    assert caplog.text.count("the plan from before returns") == MOST_FAILURES
    assert changes(sides) <= 2 * MOST_FAILURES
    gpu.others = 0
    assert set(run(session, 20 * PATIENCE)) == {small}, "it does not grow any more"
    session.memory.set_budget(0)  # until somebody says what there is
    assert session.memory.growth.is_due is False
    gpu.others = others


def host_session(monkeypatch, full_gb, **changes):
    """A reduced session on a device that shares the host's memory, where nothing raises."""
    session, gpu = reduced_session(monkeypatch, full_gb, **changes)
    gpu.shares_host = True
    gpu.run = lambda: None
    return session, gpu


def grown_on_host(monkeypatch, full_gb):
    session, gpu = host_session(monkeypatch, full_gb)
    others, gpu.others = gpu.others, 0
    assert run(session, PATIENCE)[-1] == ASKED
    return session, gpu, others


def test_a_plan_shrinks_back_before_the_hosts_memory_ends(monkeypatch, full_gb, caplog):
    """Where the host's memory ends, the system ends the process: nothing is raised before."""
    session, gpu, _ = grown_on_host(monkeypatch, full_gb)
    plan = session.memory.plan
    gpu.others = gpu.total - plan.predicted
    assert set(run(session, 2 * PATIENCE)) == {ASKED}, "it suffices"
    gpu.others += 2**20
    sides = run(session, CHECK_EVERY + 1)
    assert (sides[0], sides[-1]) == (ASKED, session.memory.plan.process_res)
    assert session.memory.plan.process_res < ASKED
    assert session.memory.plan.predicted <= session.memory.budget
    assert "took the memory that the plan grew into: the plan from before returns" in caplog.text


def test_a_plan_that_shrank_back_grows_after_twice_as_many_checks(monkeypatch, full_gb):
    session, gpu, others = grown_on_host(monkeypatch, full_gb)
    for most in (2, 4, 8):
        gpu.others = others
        assert run(session, CHECK_EVERY + 1)[-1] < ASKED
        gpu.others = 0
        small = run(session, (most - 1) * PATIENCE)
        assert max(small) < ASKED
        assert run(session, PATIENCE)[-1] == ASKED


def test_a_budget_that_was_set_keeps_a_plan_that_grew(monkeypatch, full_gb, caplog):
    """It is the user's word: what others take does not count, as it does not at the start."""
    session, gpu = host_session(monkeypatch, full_gb, memory_budget_gb=0.6 * full_gb)
    gpu.excess = 0.5 * UNMEASURED
    run(session, 2)
    small = session.memory.plan.process_res
    session.memory._before_growth = session.memory.budget, session.memory.factor
    gpu.others = gpu.total
    assert min(run(session, 2 * PATIENCE)) >= small
    assert "returns" not in caplog.text


def test_what_an_engine_has_released_is_free_once(monkeypatch, full_gb):
    session, gpu = host_session(monkeypatch, full_gb)
    memory, size = session.memory, GIB // 8
    monkeypatch.setattr(gpu, "in_use", lambda: 8 * GIB)  # with the map
    memory.meter.kept = size
    free = memory._free_for_us(memory.plan)
    memory.meter._released = size
    gpu.others -= size
    assert memory._free_for_us(memory.plan) == free


def test_checks_that_count_are_bounded():
    growth = Growth()
    for _ in range(40):
        growth.fail()
    assert checked(growth, [5] * MOST_CHECKS) == (5, 1.2, 1.1)


def test_windows_of_a_fast_camera_are_no_long_time(monkeypatch, full_gb, clock):
    monkeypatch.setattr(governor, "CHECK_S", CHECK_S)
    session, gpu = reduced_session(monkeypatch, full_gb)
    small = session.memory.plan.process_res
    gpu.others = 0
    assert set(run(session, 10 * PATIENCE)) == {small}
    for _ in range(STABLE_CHECKS):
        clock[0] += CHECK_S
        sides = run(session, CHECK_EVERY)
    assert sides[-1] == ASKED


def test_memory_that_ends_while_a_plan_grows_leaves_the_plan(monkeypatch, full_gb, caplog):
    """Not only memory of the device: weights may be read again, on a host that is full."""
    session, gpu = reduced_session(monkeypatch, full_gb)
    small, budget = session.memory.plan, session.memory.budget
    take = session.memory._adopt

    def full(plan):
        if plan.process_res > small.process_res:
            raise MemoryError("the host is full")
        return take(plan)

    monkeypatch.setattr(session.memory, "_adopt", full)
    gpu.others = 0
    assert set(run(session, 30 * PATIENCE)) == {small.process_res}
    assert (session.memory.plan, session.memory.budget) == (small, budget)
    assert caplog.text.count("the plan from before stays") == MOST_FAILURES


def test_what_a_window_takes_in_pytorch_says_nothing_about_an_engine(monkeypatch, full_gb):
    session, _ = opened(monkeypatch, total_gb=3 * full_gb)
    memory = session.memory
    base = memory.plan.predicted - memory.plan.activations
    plans = {
        name: dataclasses.replace(memory.plan, backend=name, activations=n)
        for name, n in (("openvino", 2000), ("torch", 1000))
    }

    def make(device, request, budget, factor, lower):
        for name in dict.fromkeys((request.backend, "torch")):
            plan = dataclasses.replace(
                plans[name], activations=int(plans[name].activations * factor / UNMEASURED)
            )
            if plan.predicted <= budget:
                return plan
        return plan

    monkeypatch.setattr(governor, "make_plan", make)
    request = dataclasses.replace(memory.requests.newest, backend="openvino")
    budget = base + 2100
    assert memory._make(request, budget).backend == "openvino"
    monkeypatch.setattr(memory, "_take", lambda plan: None)
    memory.requests.active = (request,)
    memory._replan(plans["openvino"], base + 2200)  # a tenth more than predicted
    assert memory._make(request, budget).backend == "torch"
    memory._replan(plans["torch"], base + 900)  # less than predicted
    assert memory._make(request, budget).backend == "torch", "its engine does not fit"
    assert memory._make(request, 2 * budget).backend == "openvino"


def test_a_little_more_memory_is_not_worth_a_change(monkeypatch, full_gb):
    session, gpu = reduced_session(monkeypatch, full_gb)
    before = session.memory.plan
    gpu.others -= int(0.1 * full_gb * GIB)
    assert set(run(session, 2 * PATIENCE)) == {before.process_res}


def test_memory_of_the_host_must_be_twice_as_free(monkeypatch, full_gb):
    """Where it runs out, the process is ended, and no plan from before returns."""
    session, gpu = reduced_session(monkeypatch, full_gb)
    small = session.memory.plan.process_res
    monkeypatch.setattr(gpu, "shares_host", True)
    gpu.others = int((3 - 1.2 / FREE_SHARE) * full_gb * GIB)
    assert set(run(session, 2 * PATIENCE)) == {small}
    gpu.others = int((3 - 2.5 / FREE_SHARE) * full_gb * GIB)
    assert run(session, PATIENCE + CHECK_EVERY)[-1] == ASKED


def test_a_plan_grows_in_part_if_memory_does(monkeypatch, full_gb):
    session, gpu = reduced_session(monkeypatch, full_gb)
    before = session.memory.plan
    gpu.others = int((3 - 1.0 / FREE_SHARE) * full_gb * GIB)
    side = run(session, PATIENCE + 1)[-1]
    assert before.process_res < side < ASKED
    assert session.memory.degraded == (f"process_res {side} instead of {ASKED}",)


def test_a_budget_of_the_user_is_never_exceeded(monkeypatch, full_gb):
    session, gpu = opened(monkeypatch, total_gb=3 * full_gb, memory_budget_gb=0.6 * full_gb)
    small, budget = session.memory.plan.process_res, session.memory.budget
    assert small < ASKED
    assert set(run(session, 2 * PATIENCE)) == {small}
    assert session.memory.budget == budget == int(0.6 * full_gb * GIB)
    session.memory.set_budget(0)  # automatic: all that was free at the start
    assert session.memory.plan.process_res == ASKED
    assert gpu.caps[-1] == session.memory.budget


def test_a_measured_window_that_took_too_much_is_corrected_again(monkeypatch, full_gb):
    """What the first window took beyond its prediction need not last; the budget does."""
    budget_gb = 1.05 * full_gb
    session, gpu = opened(monkeypatch, total_gb=9 * full_gb, memory_budget_gb=budget_gb)
    assert session.memory.plan.process_res == ASKED
    gpu.excess = 3.0
    run(session, 1)
    small = session.memory.plan.process_res
    assert small < ASKED
    assert session.memory.factor == pytest.approx(3.0, rel=0.05)
    gpu.excess = 1.1
    sides = run(session, 10 * PATIENCE)
    assert changes([small, *sides]) == 1
    assert sides[-1] == ASKED
    assert session.memory.factor == pytest.approx(1.1, rel=0.1)
    assert session.memory.plan.predicted <= session.memory.budget == int(budget_gb * GIB)


def test_windows_that_go_on_taking_more_keep_the_plan_small(monkeypatch, full_gb):
    session, gpu = opened(monkeypatch, total_gb=9 * full_gb, memory_budget_gb=1.05 * full_gb)
    gpu.excess = 3.0
    sides = run(session, 3 * PATIENCE)
    assert len(set(sides)) == 1
    assert sides[0] < ASKED


def test_a_window_gets_its_views_back(monkeypatch):
    session, gpu = opened(monkeypatch, total_gb=8.0)
    least = least_memory(gpu, session.memory.requests.newest) / GIB
    session, gpu = opened(
        monkeypatch, total_gb=8.0, others_gb=8.0 - 1.01 * least / FREE_SHARE
    )  # fmt: skip
    assert session.memory.plan.window < VIEWS
    assert len(session.memory.degraded) == 2
    gpu.others = 0
    run(session, PATIENCE)
    assert (session.memory.plan.window, session.memory.plan.process_res) == (VIEWS, ASKED)


def test_smaller_pieces_of_work_end_too(monkeypatch, full_gb):
    total = 3 * full_gb
    session, gpu = opened(
        monkeypatch, total_gb=total, others_gb=total - 0.99 * full_gb / FREE_SHARE
    )
    assert session.memory.degraded == ()
    assert session.memory.plan.chunks != gpu.chunks()
    gpu.others = 0
    run(session, PATIENCE)
    assert session.memory.plan.chunks == gpu.chunks() != SMALLEST


def test_a_given_plan_and_a_replay_never_grow(monkeypatch, full_gb):
    session, gpu = reduced_session(monkeypatch, full_gb)
    small = session.memory.plan
    gpu.others = 0
    assert set(run(session, 2 * PATIENCE, grow=False)) == {small.process_res}
    pinned, gpu = opened(monkeypatch, total_gb=3 * full_gb)
    pinned.memory.use_plan(small)
    assert set(run(pinned, 2 * PATIENCE)) == {small.process_res}


def test_growth_that_nothing_fits_changes_nothing(monkeypatch, full_gb):
    session, gpu = reduced_session(monkeypatch, full_gb)
    plan, budget = session.memory.plan, session.memory.budget

    def refuse(*args):
        raise BudgetError("nothing fits")

    monkeypatch.setattr("da3_ros.inference.memory_governor.make_plan", refuse)
    gpu.others = 0
    run(session, 2 * PATIENCE)
    assert (session.memory.plan, session.memory.budget) == (plan, budget)


def test_a_budget_that_is_refused_leaves_the_checks_of_growth(monkeypatch, full_gb):
    """Growth that was given up must not start again by a budget that does not hold."""
    session, _ = reduced_session(monkeypatch, full_gb)
    memory = session.memory
    for _ in range(MOST_FAILURES):
        memory.growth.disappoint()

    def refuse(plan):
        raise BudgetError("nothing fits")

    monkeypatch.setattr(memory, "_take", refuse)
    with pytest.raises(BudgetError):
        memory.set_budget(0)
    assert not memory.growth.goes_on


# The checks, without a session


def checked(growth, budgets):
    for budget in budgets:
        growth.note(budget, 1.2, 1.1)
    return growth.lasting


def test_the_worst_of_the_last_checks_counts():
    growth = Growth()
    assert checked(growth, [9] * (STABLE_CHECKS - 1)) is None
    assert checked(growth, [7]) == (7, 1.2, 1.1)
    assert checked(growth, [8]) == (7, 1.2, 1.1)
    growth.measured(1.5, "torch")
    growth.measured(1.1, "torch")
    assert checked(growth, [8]) == (7, 1.5, 1.1) if STABLE_CHECKS > 2 else (8, 1.5, 1.1)
    assert checked(growth, [8])[1] == 1.5, "also while later windows take less"
    growth.restart()
    assert growth.lasting is None


def test_a_failure_doubles_the_checks():
    growth = Growth()
    growth.fail()
    assert checked(growth, [5] * (2 * STABLE_CHECKS - 1)) is None
    assert checked(growth, [5]) == (5, 1.2, 1.1)


def test_a_check_is_due_after_so_many_windows():
    growth = Growth()
    for _ in range(2):
        assert [growth.count() or growth.is_due for _ in range(CHECK_EVERY)] == [
            *[False] * (CHECK_EVERY - 1), True
        ]  # fmt: skip
        growth.note(1, 1.0, 1.0)
