"""More images than a camera sends: bursts pass, a flood is thinned, counted and reported."""

import itertools

import pytest

from da3_ros.live.rate_limit import BURST_S, LEAST, RateLimit


def admitted(limit, times):
    return [t for t in times if limit.admit(t)]


def steady(hz, seconds, start=0.0):
    return [start + n / hz for n in range(round(hz * seconds))]


@pytest.mark.parametrize("hz", [5.0, 30.0, 100.0])
def test_a_camera_at_the_limit_loses_nothing(hz):
    limit = RateLimit(hz)
    times = steady(hz, 20.0)
    assert admitted(limit, times) == times
    assert limit.rate() == pytest.approx(hz)


def test_a_flood_is_thinned_to_the_limit():
    limit = RateLimit(100.0)
    let_in = admitted(limit, steady(1000.0, 10.0))
    assert len(let_in) == pytest.approx(100 * 10 + BURST_S * 100, abs=2)
    late = [t for t in let_in if t > 5.0]
    assert max(b - a for a, b in itertools.pairwise(late)) < 0.012, "evenly, not in bursts"
    assert limit.rate() == pytest.approx(1000.0)


def test_what_waited_while_the_node_was_busy_comes_in_one_burst():
    limit = RateLimit(30.0)
    assert len(admitted(limit, [1.0] * LEAST)) == LEAST
    assert not limit.admit(1.0)
    assert limit.admit(1.1)


def test_after_a_flood_the_camera_is_heard_again_at_once():
    limit = RateLimit(30.0)
    admitted(limit, steady(1000.0, 3.0))
    normal = steady(20.0, 2.0, start=3.1)
    assert admitted(limit, normal) == normal


def test_without_a_limit_everything_passes():
    limit = RateLimit(0.0)
    assert len(admitted(limit, [0.0] * 1000)) == 1000


@pytest.mark.long
@pytest.mark.process
def test_a_flood_is_dropped_counted_reported_and_kept_in_order():
    pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")
    from support import ros_testing as rt
    from support.node_process import IMAGE, Rig, camera_frames

    camera, (first, *others) = camera_frames(30)
    with Rig(max_image_hz=1.0) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, first)
        rig.until(lambda: depths)
        for frame in others:
            rig.show(camera, frame)
            rt.spin_until(rig.node, lambda: False, 0.02)
        rig.until(lambda: rig.drops().get("too_fast", 0) > 5)
        rig.process.wait_for("images per second, more than max_image_hz = 1")
        assert f"{IMAGE}: " in rig.process.output()
        stamps = [rt.stamp_ns(m) for m in depths]
        assert stamps == sorted(stamps)
        assert "late" not in rig.drops()
        last = rig.status[-1]
        dropped = sum(n for why, n in rig.drops().items() if why != "lost_on_the_way")
        assert dropped + last.frames_processed <= last.frames_received
