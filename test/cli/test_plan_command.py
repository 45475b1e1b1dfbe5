"""`da3_ros plan`: its exit code, and the size by the side that is asked for."""

import pytest
import torch

from da3_ros.cli import main

PLAN = ("plan", "--device", "cpu", "--backend", "torch", "--process-res", "112", "--model")


@pytest.mark.parametrize(("budgets", "code"), [(("0.01",), 1), (("0.01", "2"), 0), (("2",), 0)])
def test_a_plan_fails_if_nothing_fits(capsys, budgets, code):
    assert main([*PLAN, "da3-tiny", "--budget", *budgets]) == code
    out = capsys.readouterr().out
    assert ("da3-tiny does not fit into 0.01 GiB" in out) == ("0.01" in budgets)
    assert ("nothing" in out) == ("2" in budgets)


@pytest.mark.parametrize(("method", "size"), [("upper", "112x56"), ("lower", "224x112")])
def test_a_plan_is_for_the_method_of_resizing(capsys, method, size):
    method = ("--process-res-method", f"{method}_bound_resize", "--size", "640x320")
    assert main([*PLAN, "da3-tiny", "--budget", "2", *method]) == 0
    assert size in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, whose memory counts")
def test_a_gpu_that_is_not_here_needs_a_budget(capsys):
    assert main(["plan", "--device", "cuda", "--model", "da3-tiny"]) == 1
    assert "add --budget GIB" in capsys.readouterr().err
