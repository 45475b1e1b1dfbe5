"""Range sensors of a bag: which topics, read on with the frames, in bounded memory."""

import numpy as np
import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings import RecordingError, open_recording
from da3_ros.recordings.recorded_poses import transforms_of
from da3_ros.recordings.recorded_ranges import ranges_of_recording
from da3_ros.recordings.synthetic_bag import MOUNTS, write_synthetic_bag
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.replay.object_state import load_state, save_state
from da3_ros.replay.results import WarnOnce
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Frame

SIZE, FRAMES, RATE_HZ = (56, 42), 8, 4.0
LIB, IMAGE = RosbagsLibrary(), np.zeros((42, 56, 3), np.uint8)
RANGE, INFO = "sensor_msgs/msg/Range", "sensor_msgs/msg/Image"


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=FRAMES, rate_hz=RATE_HZ)
    folder = tmp_path_factory.mktemp("ranges") / "bag"
    write_synthetic_bag(folder, camera, tf=True, lidar_hz=10.0, range_hz=20.0)
    return folder, list(camera)


def opened(folder, topics=(), source="range", warn=print):
    config = config_from_parameters(
        {"scale.source": source, "range_topics": list(topics), "odom_frame": "map"}, NodeConfig
    )
    recording = open_recording(folder, camera="/camera/image_raw")
    return ranges_of_recording(recording, config, transforms_of(recording), None, warn)


def frame(f):
    return Frame(f.stamp_ns, f.image, "camera_optical")


@pytest.mark.slow
def test_returns_lie_on_the_surfaces_of_the_image(bag):
    """At the image's stamp, though the camera has moved during the sweep."""
    folder, frames = bag
    sensors = opened(folder)
    assert list(sensors.topics) == ["/lidar/points", "/range"]
    for f in frames[1:-1]:
        found = sensors.at(frame(f))
        column, row = ((found.points / found.points[:, 2:]) @ f.K.T)[:, :2].T
        inside = (column >= 0) & (column < SIZE[0]) & (row >= 0) & (row < SIZE[1])
        assert inside.sum() > 300
        depth = f.depth[row[inside].astype(int), column[inside].astype(int)]
        assert np.median(np.abs(found.points[inside, 2] / depth - 1)) < 0.01
        (cone,) = found.cones
        middle = f.depth[15:27, 22:34]
        assert 0.9 * middle.min() < cone.range_m < 1.1 * middle.max()
    assert sensors.counts["frames_with_returns"] == FRAMES - 2


def test_topics_are_those_of_the_parameter_or_all_if_needed(bag):
    assert list(opened(bag[0], ["/range"], "none").topics) == ["/range"]
    assert opened(bag[0], source="none") is None
    with pytest.raises(RecordingError, match=r"no PointCloud2, LaserScan or Range on /truth/odom"):
        opened(bag[0], ["/truth/odom"])


def write_ranges(folder, stamps_ns):
    """A bag of one image, and a range per stamp, in this order."""
    with BagFolderWriter(folder, LIB, "mcap") as writer:
        image = build.image(LIB, stamps_ns[0], "camera_optical", IMAGE)
        writer.write("/camera/image_raw", INFO, image, stamps_ns[0])
        edge = (stamps_ns[0], "camera_optical", "range", MOUNTS["/range"])
        writer.write("/tf_static", "tf2_msgs/msg/TFMessage", build.tf(LIB, [edge]), stamps_ns[0])
        for i, stamp in enumerate(stamps_ns):
            message = build.range_message(LIB, stamp, "range", 1.0 + 1e-3 * i, 0.05)
            writer.write("/range", RANGE, message, stamps_ns[0] + i)


def at(sensors, stamp_ns, camera=""):
    found = sensors.at(Frame(stamp_ns, IMAGE, "camera_optical", camera=camera))
    return None if found is None else round(1000 * (found.cones[0].range_m - 1))


SECOND = 10**9
START = 1_700_000_000 * SECOND


def test_a_long_recording_is_read_with_its_frames(tmp_path):
    stamps = [START + i * SECOND // 10 for i in range(600)]
    write_ranges(tmp_path / "bag", stamps)
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: None)
    history, most = sensors.topics["/range"], 0
    for i in range(0, 600, 7):
        assert at(sensors, stamps[i] + 1000) == i
        most = max(most, len(history._messages))
    assert most < 60


def test_returns_follow_stamps_that_jump_back(tmp_path):
    """A recording of a player that loops."""
    once = [START + i * SECOND // 10 for i in range(100)]
    write_ranges(tmp_path / "bag", once + once)
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: None)
    assert [at(sensors, once[i]) for i in (0, 50, 99)] == [0, 50, 99]
    assert [at(sensors, once[i]) for i in (1, 50, 99)] == [101, 150, 199]


def test_frames_alone_that_jump_back_end_nothing(tmp_path):
    """A camera's clock is wrong for a moment."""
    stamps = [START + i * SECOND // 10 for i in range(600)]
    write_ranges(tmp_path / "bag", stamps)
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: None)
    frames = [100, 200, 170, 171, 201, 400, 599]
    assert [at(sensors, stamps[i]) for i in frames] == frames


def test_cameras_of_different_times_read_one_recording(tmp_path):
    """One is late; and it jumps back after the other one."""
    once = [START + i * SECOND // 10 for i in range(100)]
    write_ranges(tmp_path / "bag", once + once)
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: None)
    for i in range(20, 100):
        assert at(sensors, once[i], "a") == i
        assert at(sensors, once[i - 15], "b") == i - 15
    assert at(sensors, once[0], "a") == 100
    at(sensors, once[85], "b")
    assert [at(sensors, once[i], "a") for i in (1, 2)] == [101, 102]
    assert [at(sensors, once[i], "b") for i in (0, 1)] == [100, 101]
    assert [at(sensors, once[i], name) for i in (50, 99) for name in "ab"] == [150, 150, 199, 199]


@pytest.mark.parametrize("index", [0, 50])
@pytest.mark.parametrize("wrong", [0, START + 3600 * SECOND, START + 60 * SECOND])
def test_a_wrong_stamp_loses_one_message_and_is_named(tmp_path, caplog, index, wrong):
    stamps = [START + i * SECOND // 10 for i in range(100)]
    right = [*stamps]
    stamps[index] = wrong
    write_ranges(tmp_path / "bag", stamps)
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: None)
    found = [at(sensors, stamp) for stamp in right]
    assert found[:index] + found[index + 2 :] == [*range(index), *range(index + 2, 100)]
    assert caplog.text.count("/range: messages with wrong stamps are not used") == 1


def test_a_gap_gives_no_returns_and_a_warning(tmp_path):
    stamps = [START, START + 3600 * SECOND]
    write_ranges(tmp_path / "bag", stamps)
    warned = []
    sensors = opened(tmp_path / "bag", warn=lambda text, every_s=0: warned.append(text))
    assert at(sensors, START + 1) == 0
    assert at(sensors, START + 1800 * SECOND) is None
    assert "none is within 0.25 s of the image" in warned[-1]
    assert at(sensors, stamps[1]) == 1


def test_a_replay_that_is_continued_behind_a_jump_reads_on_to_it(tmp_path):
    """And has the counts from before."""
    once = [START + i * SECOND // 10 for i in range(60)]
    write_ranges(tmp_path / "bag", once + once)
    first, again = (opened(tmp_path / "bag", warn=WarnOnce()) for _ in range(2))
    assert [at(first, once[i]) for i in (0, 40, 5)] == [0, 40, 65]
    save_state(tmp_path / "state", {"ranges": first}, services(first))
    load_state(tmp_path / "state", "ranges", again, services(again))
    assert at(again, once[20]) == 80
    assert again.counts["frames_with_returns"] == 4


def services(sensors):
    found = {"transforms": sensors._transforms, "feed": sensors.feed}
    return found | sensors.topics
