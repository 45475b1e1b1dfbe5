"""Which images of a topic are the camera's own."""

from da3_ros.sensors.frame_id_filter import GONE_NS, MOST_NAMED, FrameIdFilter

S = 1_000_000_000


def admitted(frames):
    """Admit (seconds, frame_id) pairs; returns the filter and the pairs that are the camera's."""
    one = FrameIdFilter("/image")
    return one, [(t, name) for t, name in frames if one.admit(name, round(t * S))]


def test_of_two_cameras_in_turns_the_first_is_used():
    turns = [(0.1 * i, "left" if i % 2 == 0 else "right") for i in range(100)]
    one, own = admitted(turns)
    assert own == turns[::2]
    warning = one.warning("right")
    assert "/image: images of frame_id 'right' are dropped, since 'left' came first" in warning
    assert one.warning("right") == ""
    assert one.notices() == []


def test_a_frame_id_is_accepted_once_the_old_one_has_stopped():
    """As after a restart of the driver, with another name for its frame."""
    before = [(0.1 * i, "old") for i in range(10)]
    after = [(1 + 0.5 * i, "new") for i in range(20)]
    one, own = admitted(before + after)
    gone_s = 0.9 + GONE_NS / S
    assert own == before + [(t, name) for t, name in after if t > gone_s]
    assert one.notices() == [
        "/image: images of frame_id 'old' have stopped; those of 'new' are used now"
    ]
    assert one.notices() == []
    assert not one.admit("old", round(10.6 * S))


def test_a_slow_camera_counts_as_gone_after_two_of_its_periods():
    slow = [(20.0 * i, "left") for i in range(5)]
    other = [(20.0 * i + 10, "right") for i in range(1, 5)]
    _, own = admitted(sorted(slow + other))
    assert own == slow


def test_a_clock_that_jumps_back_makes_no_camera_foreign_for_ever():
    one, _ = admitted([(1000.0, "left")])
    assert one.admit("right", S)


def test_a_new_stream_begins_with_any_frame_id():
    one, _ = admitted([(0.0, "left")])
    one.reset()
    assert one.admit("right", S)
    assert one.notices() == []


def test_ever_new_frame_ids_are_not_all_reported():
    one, _ = admitted([(0.0, "left")])
    said = [one.warning(f"camera {i}") for i in range(100)]
    assert sum(map(bool, said)) == MOST_NAMED
