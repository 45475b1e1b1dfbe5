"""Large best-effort images between two processes: none is lost with the shipped Fast DDS profile.

The profile is in the publisher's process alone, as with a camera driver; the subscriber has none.
"""

import json
import sys

import numpy as np
import pytest
from support.cases import long_after
from support.ros_testing import (
    BEST_EFFORT,
    PROFILE,
    PROFILE_VARIABLES,
    Process,
    collect,
    domain,
    environment,
    rclpy,
    session,
    spin_until,
    stamp_ns,
    start,
    without_profile,
)

FAST = "rmw_fastrtps_cpp"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        rclpy.get_rmw_implementation_identifier() != FAST, reason=f"the profile is for {FAST}"
    ),
]


def listen(domain_id, count):
    """A process without the profile; writes stamps and sizes of ``count`` images, then ends."""
    command = [__file__, str(domain_id), str(count)]
    return Process(command, environment(domain_id, **without_profile()))


@pytest.mark.parametrize(
    ("size", "rate_hz", "count"),
    long_after(1, [((1920, 1080), 10.0, 8), ((1920, 1080), 10.0, 20), ((640, 480), 30.0, 90)]),
)
def test_no_best_effort_image_is_lost_with_the_profile(size, rate_hz, count):
    """No best effort image is lost with the profile at the publisher."""
    domain_id = domain()
    profile = dict.fromkeys(PROFILE_VARIABLES, str(PROFILE))
    parameters = {
        "width": size[0], "height": size[1], "rate_hz": rate_hz, "frames": count,
        "buffer_frames": 2, "reliability": "best_effort", "wait_for_subscribers": 1,
    }  # fmt: skip
    options = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
    publisher = start(
        "da3_ros.ros.synthetic_camera", *options, env=environment(domain_id, **profile)
    )
    with publisher, listen(domain_id, count) as listener:
        publisher.wait_for(f"all {count} frames are published")
        listener.wait_for("received")
        assert publisher.stop() == 0
        received = json.loads(listener.output().partition("received ")[2])
    stamps = np.array(received["stamps"])
    periods = np.round(np.diff(stamps) * rate_hz / 1e9)
    assert len(stamps) == count, f"{count - len(stamps)} of {count} images were lost"
    assert set(received["bytes"]) == {size[0] * size[1] * 3}
    assert periods.min() >= 1


def another(node, images):
    """Whether one more image comes in the next seconds."""
    heard = len(images)
    return spin_until(node, lambda: len(images) > heard, 4.0)


def main() -> None:
    """The listener's process."""
    domain_id, count = int(sys.argv[1]), int(sys.argv[2])
    with session(domain_id) as node:
        images = collect(node, "sensor_msgs/msg/Image", "/image_raw", BEST_EFFORT)
        spin_until(node, lambda: images, 60.0)
        # What is lost never comes: patience ends when nothing has come for a while.
        while len(images) < count and another(node, images):
            pass
    received = {"stamps": [stamp_ns(m) for m in images], "bytes": [len(m.data) for m in images]}
    sys.stdout.write("received " + json.dumps(received) + "\n")


if __name__ == "__main__":
    main()
