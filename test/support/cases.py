"""Parameters of tests."""

import pytest


def long_after(count, cases):
    """The cases, of which those after the first ``count`` run in ``make test-all`` alone.

    A plain tuple is the values of several parameters.
    """
    cases = list(cases)
    return cases[:count] + [
        pytest.param(*(case if type(case) is tuple else (case,)), marks=pytest.mark.long)
        for case in cases[count:]
    ]
