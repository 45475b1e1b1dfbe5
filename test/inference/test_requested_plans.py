"""What cameras ask the planner for, without a network."""

import dataclasses

import torch

from da3_ros.inference.memory_governor import MAX_PLANS, RequestedPlans
from da3_ros.inference.planner import Request

WIDE = Request("da3-tiny", torch.float32, torch.bfloat16, 112, 4, 1, (1280, 720), streams=2)
TALL = dataclasses.replace(WIDE, image=(480, 640))


def test_cameras_in_turns_are_known_until_another_shape_comes():
    requests = RequestedPlans(2)
    assert requests.newest is None
    assert not requests.note(WIDE)
    assert not requests.note(TALL)
    assert not requests.note(WIDE)
    assert requests.active == (WIDE, TALL)
    square = dataclasses.replace(WIDE, image=(480, 480))
    assert requests.note(square)
    assert requests.active == (square, WIDE)


def test_another_window_ends_what_was_asked_for():
    requests = RequestedPlans(2)
    requests.note(WIDE)
    assert requests.note(dataclasses.replace(TALL, window=6))
    assert len(requests.active) == 1


def test_a_guess_is_forgotten_with_the_first_camera():
    requests = RequestedPlans(2)
    requests.note(WIDE)
    requests.note_guess()
    assert not requests.note(TALL)
    assert requests.active == (TALL,)


def test_a_wrong_lower_precision_is_dropped():
    requests = RequestedPlans(2)
    requests.note(WIDE)
    requests.note(TALL)
    requests.drop_lower_precision()
    assert [r.lower_precision for r in requests.active] == [None, None]


def test_plans_are_bounded_and_a_new_budget_keeps_only_its_own():
    requests = RequestedPlans(1)
    for k in range(MAX_PLANS + 1):
        requests.note(dataclasses.replace(WIDE, image=(640, 100 + k)))
        requests.keep(f"plan {k}")
    assert list(requests.plans.values()) == [f"plan {MAX_PLANS}"]
    requests.note(TALL)
    requests.keep_only("of a new budget")
    assert requests.plans == {TALL: "of a new budget"}
