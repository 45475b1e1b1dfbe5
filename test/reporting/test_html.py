"""Numbers and cells as a page writes them."""

import math

import pytest

from da3_ros.reporting.html import LONGEST, NARROW, details, number, table


@pytest.mark.parametrize(
    ("value", "digits", "said"),
    [
        (999.6, 3, f"1{NARROW}000"), (99.7, 2, "100"), (0.05, 3, "0.05"), (18234.5, 3, "18 234"),
        (1.0, 3, "1"), (0.1234, 3, "0.123"), (-12.34, 3, "-12.3"), (1e-7, 3, "1e-07"), (0, 3, "0"),
        (2e6, 3, f"2{NARROW}000{NARROW}000"), (1e20, 3, "1e+20"), (math.nan, 3, "unknown"),
    ],
)  # fmt: skip
def test_numbers_have_digits_and_no_exponent(value, digits, said):
    assert number(value, digits=digits) == said.replace(" ", NARROW)


def test_foreign_texts_of_any_length_stay_short():
    long = "<" * 100_000
    assert table((), [("a", long)]).count("&lt;") == LONGEST
    assert details("b", [long]).count("&lt;") == LONGEST
