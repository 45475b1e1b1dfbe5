"""Frames of several cameras become framesets by their stamps, whatever is missing or late."""

from dataclasses import dataclass

from da3_ros.sensors.rig_sync import RigSync

MS = 1_000_000


@dataclass(frozen=True)
class F:
    camera: str
    ms: int

    @property
    def stamp_ns(self):
        return 10_000 * MS + self.ms * MS


def run(frames, cameras=("front", "left"), flush=True):
    sync = RigSync(cameras, max_skew_s=0.02, max_wait_s=0.2, max_late_s=0.5)
    out = [i for f in frames for i in sync.add(f)]
    return sync, [[(f.camera, f.ms) for f in i.frames] for i in out + sync.flush() * flush]


def stream(camera, stamps):
    return [F(camera, ms) for ms in stamps]


def mixed(*streams):
    return sorted((f for s in streams for f in s), key=lambda f: f.ms)


def test_frames_within_the_skew_are_one_frameset():
    """Frames within the skew are one frameset in the order of the cameras."""
    _, out = run(mixed(stream("left", (0, 100, 200)), stream("front", (15, 115, 215))))
    assert out == [[("front", 15 + i), ("left", i)] for i in (0, 100, 200)]


def test_a_complete_frameset_leaves_at_once():
    _, out = run([F("front", 0), F("left", 5)], flush=False)
    assert len(out) == 1


def test_frames_farther_apart_stay_alone_and_none_is_lost():
    _, out = run(mixed(stream("front", range(0, 500, 100)), stream("left", range(50, 500, 100))))
    assert [len(i) for i in out] == [1] * 10
    assert [i[0][1] for i in out] == list(range(0, 500, 50))


def test_a_missing_frame_does_not_hold_up_the_others():
    frames = mixed(stream("front", range(0, 500, 100)), stream("left", (0, 100, 300, 400)))
    _, out = run(frames[:-1], flush=False)
    assert [len(i) for i in out] == [2, 2, 1, 2]


def test_a_silent_camera_is_waited_for_only_for_a_while():
    frames = stream("front", range(0, 5000, 100))
    _, out = run(frames, flush=False)
    # Nobody is waited for after two seconds: then every frame leaves as it comes.
    assert len(out) == 50
    _, early = run(frames[:10], flush=False)
    assert len(early) == 7  # three stay: left may still be up to 0.2 s late


def test_a_camera_that_comes_back_is_waited_for_again():
    left = stream("left", [*range(0, 300, 100), *range(4000, 5000, 100)])
    _, out = run(mixed(stream("front", range(0, 5000, 100)), left))
    assert [len(i) for i in out[-9:]] == [2] * 9
    assert sum(len(i) for i in out) == 50 + 13


def test_late_messages_join_within_the_wait_and_alone_after():
    front, left = stream("front", range(0, 1000, 100)), stream("left", range(0, 1000, 100))
    late = sorted([(f.ms, f) for f in front] + [(f.ms + 150, f) for f in left], key=lambda x: x[0])
    _, out = run([f for _, f in late])
    assert [len(i) for i in out] == [2] * 10
    later = sorted(
        [(f.ms, f) for f in front] + [(f.ms + 450, f) for f in left], key=lambda x: x[0]
    )
    _, out = run([f for _, f in later])
    assert sum(len(i) for i in out) == 20
    for camera in ("front", "left"):
        stamps = [ms for i in out for name, ms in i if name == camera]
        assert stamps == sorted(stamps)


def test_arrival_order_within_the_wait_changes_nothing():
    import random

    frames = mixed(*(stream(c, [k * 100 + s for k in range(20)]) for c, s in (
        ("front", 0), ("left", 7), ("right", 13))))  # fmt: skip
    cameras = ("front", "left", "right")
    _, expected = run(frames, cameras)
    assert [len(i) for i in expected] == [3] * 20
    rng = random.Random(0)
    arrival = [(f.ms + rng.uniform(0, 80), f) for f in frames]
    shuffled = [f for _, f in sorted(arrival, key=lambda x: x[0])]
    assert run(shuffled, cameras)[1] == expected


def test_a_jump_back_lets_go_and_drops_what_came_before():
    before = mixed(stream("front", range(5000, 5300, 100)), stream("left", range(5003, 5300, 100)))
    after = [F("front", 0), F("left", 5303), F("left", 5), F("front", 100), F("left", 105)]
    sync, out = run(before + after)
    assert out[-2:] == [[("front", 0), ("left", 5)], [("front", 100), ("left", 105)]]
    assert sync.strays == 1


def test_one_camera_needs_no_sync():
    _, out = run(stream("", (0, 100)), cameras=(), flush=False)
    assert out == [[("", 0)], [("", 100)]]
