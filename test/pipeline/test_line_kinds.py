"""Lines that say the same with other numbers are of one kind."""

from da3_ros.pipeline.line_kinds import kind_of


def test_numbers_make_no_other_kind():
    line = "turned by {} degrees (about x {}): correct the transform"
    assert kind_of(line.format(9, -0.25)) == kind_of(line.format(21, "1.0"))
    assert kind_of(line.format(9, 0)) != kind_of("its stamps are 9 ms late")
