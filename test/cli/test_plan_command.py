"""`da3_ros plan`: its exit code."""

import pytest

from da3_ros.cli import main

PLAN = ("plan", "--device", "cpu", "--backend", "torch", "--process-res", "112", "--model")


@pytest.mark.parametrize(("budgets", "code"), [(("0.01",), 1), (("0.01", "2"), 0), (("2",), 0)])
def test_a_plan_fails_if_nothing_fits(capsys, budgets, code):
    assert main([*PLAN, "da3-tiny", "--budget", *budgets]) == code
    out = capsys.readouterr().out
    assert ("da3-tiny does not fit into 0.01 GiB" in out) == ("0.01" in budgets)
    assert ("nothing" in out) == ("2" in budgets)
