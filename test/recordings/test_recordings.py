"""Recordings of every kind, whole and damaged, made here with the libraries themselves."""

import logging
import shutil
import sqlite3
from pathlib import Path

import cv2
import mcap.reader
import mcap.writer
import numpy as np
import pytest
import zstandard
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as RosbagsWriter

from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings import RecordingError, open_recording
from da3_ros.recordings.base import FrameSelection, in_stamp_order
from da3_ros.recordings.folder import natural_order, stamps_of
from da3_ros.recordings.writer import BagFolderWriter, BagWriter
from da3_ros.types import Calibration

LIB = RosbagsLibrary()
S, STEP = 1_000_000_000, 100_000_000
T0 = 1_700_000_000 * S + 123
K = np.array([[50.0, 0, 32.0], [0, 50, 24.0], [0, 0, 1]])
W, H, N = 64, 48, 10
IMAGE, JPEG, INFO = (f"sensor_msgs/msg/{n}" for n in ("Image", "CompressedImage", "CameraInfo"))


def picture(i):
    """An image that encodes its number and has texture."""
    image = np.random.default_rng(i).integers(0, 256, (H, W, 3), np.uint8)
    image[0, 0] = (i, 100, 200)
    return image


def number(frame):
    assert tuple(frame.image[0, 0, 1:]) == (100, 200)
    return int(frame.image[0, 0, 0])


def stream(count=N, topic="/camera/image_raw", info=True, frame_id="cam"):
    """(topic, type, message, stamp) of a camera with its camera_info."""
    for i in range(count):
        stamp = T0 + i * STEP
        if info:
            sibling = topic.rpartition("/")[0] + "/camera_info"
            yield sibling, INFO, build.camera_info(LIB, stamp, frame_id, K, W, H), stamp
        yield topic, IMAGE, build.image(LIB, stamp, frame_id, picture(i)), stamp


def write_folder(path, items, storage="mcap"):
    with BagFolderWriter(path, LIB, storage) as writer:
        for item in items:
            writer.write(*item)
    return path


def write_rosbags(path, items, plugin, mode=None):
    """With rosbags alone, compressed as asked."""
    writer = RosbagsWriter(path, version=9, storage_plugin=plugin)
    if mode:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    with writer:
        connections = {}
        for topic, kind, message, stamp in items:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=LIB.store)
            writer.write(connections[topic], stamp, LIB.serialize(message, kind))
    return path


def write_mcap(path, items, *, old_names=False, zstd_messages=False, end=True, **options):
    """With the mcap package alone. Without ``end`` as a power cut leaves it."""
    with path.open("wb") as file:
        writer = mcap.writer.Writer(file, **options)
        writer.start(profile="ros2")
        channels = {}
        for topic, kind, message, stamp in items:
            if topic not in channels:
                name = kind.replace("/msg/", "/") if old_names else kind
                schema = writer.register_schema(name, "ros2msg", LIB.definition(kind).encode())
                channels[topic] = writer.register_channel(topic, "cdr", schema)
            data = bytes(LIB.serialize(message, kind))
            data = zstandard.compress(data) if zstd_messages else data
            writer.add_message(channels[topic], stamp, data, stamp)
        if end:
            writer.finish()
    return path


def frames_of(path, *args, **options):
    with open_recording(path, *args, **options) as recording:
        return list(recording)


def check_whole(path, *args, **options):
    """All pictures, in order, with stamps, frame and calibration."""
    with open_recording(path, *args, **options) as recording:
        frames = list(recording)
        assert recording.length == N
        assert recording.stopped_at is None
        assert recording.counters["bad_images"] == 0
    assert [number(f) for f in frames] == list(range(N))
    assert [f.stamp_ns for f in frames] == [T0 + i * STEP for i in range(N)]
    for frame in frames:
        assert frame.frame_id == "cam"
        np.testing.assert_array_equal(frame.calibration.K, K - [[0, 0, 0.5], [0, 0, 0.5], [0] * 3])
    return frames


# Whole bags


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bag_folder_and_its_bare_file(tmp_path, storage):
    bag = write_folder(tmp_path / "bag", stream(), storage)
    frames = check_whole(bag)
    np.testing.assert_array_equal(frames[3].image, picture(3))
    (file,) = [p for p in bag.iterdir() if p.name != "metadata.yaml"]
    check_whole(file)
    (bag / "metadata.yaml").write_text("this: [is not")
    check_whole(bag)
    (bag / "metadata.yaml").unlink()
    check_whole(bag)


@pytest.mark.parametrize("plugin", list(StoragePlugin))
@pytest.mark.parametrize("mode", [CompressionMode.FILE, CompressionMode.MESSAGE])
def test_zstd_around_files_and_messages(tmp_path, plugin, mode):
    bag = write_rosbags(tmp_path / "bag", stream(), plugin, mode)
    check_whole(bag)
    (bag / "metadata.yaml").unlink()
    check_whole(bag)


@pytest.mark.parametrize("compression", list(mcap.writer.CompressionType))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_chunking": False},
        {
            "index_types": mcap.writer.IndexType.NONE, "use_statistics": False,
            "repeat_channels": False, "repeat_schemas": False, "use_summary_offsets": False,
        },
    ],
    ids=["indexed", "unchunked", "without-summary"],
)  # fmt: skip
def test_mcap_of_any_layout(tmp_path, compression, options):
    file = write_mcap(
        tmp_path / "a.mcap", stream(), chunk_size=20_000, compression=compression, **options
    )
    check_whole(file)


def test_old_type_names_and_zstd_messages_in_a_bare_mcap(tmp_path):
    check_whole(write_mcap(tmp_path / "a.mcap", stream(), old_names=True, zstd_messages=True))


def test_sqlite_of_early_ros_without_definitions(tmp_path):
    file = tmp_path / "old_0.db3"
    database = sqlite3.connect(file)
    database.execute(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, "
        "serialization_format TEXT NOT NULL)"
    )
    database.execute(
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, "
        "timestamp INTEGER NOT NULL, data BLOB NOT NULL)"
    )
    ids = {}
    for topic, kind, message, stamp in stream():
        if topic not in ids:
            ids[topic] = len(ids) + 1
            database.execute(
                "INSERT INTO topics VALUES(?, ?, ?, 'cdr')", (ids[topic], topic, kind)
            )
        row = (ids[topic], stamp, bytes(LIB.serialize(message, kind)))
        database.execute("INSERT INTO messages(topic_id, timestamp, data) VALUES(?, ?, ?)", row)
    database.commit()
    database.close()
    check_whole(file)


@pytest.mark.parametrize("listed", [True, False])
def test_split_files_are_one_recording(tmp_path, listed):
    items, bag = list(stream()), tmp_path / "bag"
    bag.mkdir()
    names = [f"bag_{i}.mcap" for i in range(3)]
    for name, part in zip(names, (items[14:], items[:6], items[6:14]), strict=True):
        write_mcap(bag / name, part)
    if listed:
        text = "".join(f"  - {name}\n" for name in names)
        (bag / "metadata.yaml").write_text(
            f"rosbag2_bagfile_information:\n  relative_file_paths:\n{text}"
        )
    check_whole(bag)


def test_file_that_metadata_lists_must_be_there(tmp_path):
    bag = write_folder(tmp_path / "bag", stream())
    (bag / "bag.mcap").rename(bag / "other.mcap")
    with pytest.raises(RecordingError, match=r"lists bag\.mcap, which does not exist"):
        open_recording(bag)


def test_other_topics_are_read_too(tmp_path):
    odometry = [
        ("/odom", "nav_msgs/msg/Odometry", build.odometry(LIB, t, "odom", "cam", np.eye(4)), t)
        for t in (T0, T0 + S)
    ]
    with open_recording(write_folder(tmp_path / "bag", [*stream(), *odometry])) as recording:
        read = list(recording.messages("/odom"))
        assert [t for t, _ in read] == [T0, T0 + S]
        assert read[0][1].header.frame_id == "odom"
        with pytest.raises(RecordingError, match=r"has no topic /scan: it has .*/odom"):
            recording.messages("/scan")


def test_a_recording_can_be_read_twice(tmp_path):
    with open_recording(write_folder(tmp_path / "bag", stream())) as recording:
        assert len(list(recording)) == len(list(recording)) == N


# Selection and order


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start_s": 0.3}, range(3, 10)),
        ({"end_s": 0.5}, range(0, 6)),
        ({"start_s": 0.2, "end_s": 0.65, "every": 2}, (2, 4, 6)),
        ({"every": 4}, (0, 4, 8)),
        ({"start_s": 99.0}, ()),
    ],
)
def test_selection(tmp_path, options, expected):
    bag = write_folder(tmp_path / "bag", stream())
    with open_recording(bag, **options) as recording:
        assert [number(f) for f in recording] == list(expected)
        assert abs(recording.length - len(expected)) <= 1


@pytest.mark.parametrize("bad", [{"every": 0}, {"start_s": -1}, {"start_s": 2, "end_s": 1}])
def test_senseless_selection_is_refused(bad):
    with pytest.raises(RecordingError):
        FrameSelection(**bad)


def test_without_a_start_nothing_before_the_first_stamp_is_dropped():
    """The first stamps may have been wrong, or the clock was set."""
    items = [(s * S, s) for s in (3600, 0, 1, 2)]
    assert [n for _, n in FrameSelection().apply(items)] == [3600, 0, 1, 2]
    assert [n for _, n in FrameSelection(start_s=0.5).apply(items[1:])] == [1, 2]


def test_disorder_is_mended_and_a_time_jump_passed_on():
    stamps = [0, 2, 1, 3, 5, 4]
    first = [(STEP * s, f"a{s}") for s in stamps]
    later = [(STEP * s, f"b{s}") for s in range(3)]
    shifted = [(s + 9 * S, name) for s, name in first]
    assert [n for _, n in in_stamp_order([*shifted, *later])] == [
        *("a0", "a1", "a2", "a3", "a4", "a5"), *("b0", "b1", "b2"),
    ]  # fmt: skip


def test_frames_come_by_header_stamp_even_if_recorded_otherwise(tmp_path):
    items = [(t, k, m, stamp) for (t, k, m, _), stamp in zip(
        (i for i in (list(stream(info=False))[j] for j in (0, 2, 1, 4, 3, 5, 6, 7, 8, 9))),
        range(T0, T0 + 10 * STEP, STEP), strict=True,
    )]  # fmt: skip
    frames = frames_of(write_folder(tmp_path / "bag", items))
    assert [number(f) for f in frames] == list(range(N))


@pytest.mark.parametrize("wrong", [[4], [0], [0, 1, 2], [N - 2, N - 1]])
def test_images_with_stamps_an_hour_off_are_left_out_of_a_bag(tmp_path, caplog, wrong):
    items = list(stream(info=False))
    for i in wrong:
        topic, kind, _, logged = items[i]
        stamp = T0 + 3600 * S + i * STEP
        items[i] = (topic, kind, build.image(LIB, stamp, "cam", picture(i)), logged)
    with open_recording(write_folder(tmp_path / "bag", items)) as recording:
        frames = list(recording)
        assert recording.counters["bad_images"] == len(wrong)
    assert [number(f) for f in frames] == [i for i in range(N) if i not in wrong]
    assert "the camera driver's clock jumped" in caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_short_bag_of_simulated_time_is_read_to_its_end(tmp_path, count):
    """No stamp is near the time of recording, so the first images wait for later ones."""
    items = [(topic, kind, build.image(LIB, 100 * S + i * STEP, "cam", picture(i)), logged)
             for i, (topic, kind, _, logged) in enumerate(stream(count, info=False))]  # fmt: skip
    assert [number(f) for f in frames_of(write_folder(tmp_path / "bag", items))] == [*range(count)]


def test_stamps_of_zero_become_the_time_of_recording(tmp_path):
    items = [(t, k, build.image(LIB, 0, "cam", picture(i)), stamp)
             for i, (t, k, _, stamp) in enumerate(stream(info=False))]  # fmt: skip
    frames = frames_of(write_folder(tmp_path / "bag", items))
    assert [f.stamp_ns for f in frames] == [T0 + i * STEP for i in range(N)]


def test_two_stamps_of_zero_mean_that_the_driver_sets_none(tmp_path):
    """Also if later ones are set: two clocks in one recording would be worse."""
    items = []
    for i, (topic, kind, _, logged) in enumerate(stream(info=False)):
        stamp = 0 if i < 2 else 100 * S + i * STEP
        items.append((topic, kind, build.image(LIB, stamp, "cam", picture(i)), logged))
    frames = frames_of(write_folder(tmp_path / "bag", items))
    assert [f.stamp_ns for f in frames] == [T0 + i * STEP for i in range(N)]


@pytest.mark.parametrize("zero", [0, 5])
def test_one_stamp_of_zero_among_others_is_a_fault(tmp_path, zero):
    """By a simulator's clock: its time of recording is another one's."""
    items = []
    for i, (topic, kind, _, logged) in enumerate(stream(info=False)):
        stamp = 0 if i == zero else 100 * S + i * STEP
        items.append((topic, kind, build.image(LIB, stamp, "cam", picture(i)), logged))
    with open_recording(write_folder(tmp_path / "bag", items)) as recording:
        assert [number(f) for f in recording] == [i for i in range(N) if i != zero]
        assert recording.counters["bad_images"] == 1


# Which camera


def depth_stream():
    for i in range(3):
        depth = build.image(LIB, T0 + i, "cam", np.ones((H, W), np.float32))
        yield "/camera/depth/image_raw", IMAGE, depth, T0 + i


def grey_stream(topic):
    for i in range(3):
        yield topic, IMAGE, build.image(LIB, T0 + i, "cam", picture(i)[..., 0]), T0 + i


def compressed_stream(topic="/camera/image_raw/compressed"):
    for i in range(N):
        t = T0 + i * STEP
        yield topic, JPEG, build.compressed_image(LIB, t, "cam", picture(i), "png"), t


@pytest.mark.parametrize(
    "others",
    [
        (depth_stream(),),
        (compressed_stream(),),
        (grey_stream("/infra1/image"), grey_stream("/infra2/image")),
        (stream(3, "/camera/image_rect"),),
        (depth_stream(), compressed_stream(), grey_stream("/camera/image_mono")),
    ],
    ids=["depth", "compressed-twin", "grey", "rectified-twin", "all"],
)
def test_the_one_camera_is_found_without_asking(tmp_path, others):
    bag = write_folder(tmp_path / "bag", [*stream(), *(i for other in others for i in other)])
    with open_recording(bag) as recording:
        assert recording.camera == "/camera/image_raw"


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ("/left/image_raw", "/left/image_raw"),
        ("left/image_raw", "/left/image_raw"),
        ("/left", "/left/image_raw"),
        ("/right", "/right/image/compressed"),
        ("/right/image", "/right/image/compressed"),
        ("/right/image/compressed", "/right/image/compressed"),
    ],
)
def test_camera_by_any_of_its_names(tmp_path, wanted, got):
    items = [*stream(topic="/left/image_raw"), *compressed_stream("/right/image/compressed")]
    bag = write_folder(tmp_path / "bag", items)
    with open_recording(bag, wanted) as recording:
        assert recording.camera == got
        assert len(list(recording)) == N
        assert f"* {got}" in recording.describe()


@pytest.mark.parametrize("wanted", [None, "/nowhere"])
def test_missing_or_ambiguous_camera_lists_what_there_is(tmp_path, wanted):
    items = [*stream(topic="/left/image_raw"), *stream(3, "/right/image_raw"), *depth_stream()]
    with pytest.raises(RecordingError) as caught:
        open_recording(write_folder(tmp_path / "bag", items), wanted)
    text = str(caught.value)
    assert "\n" not in text
    assert "/left/image_raw: 10 x sensor_msgs/msg/Image, 64x48 rgb8" in text
    assert "/right/image_raw: 3 x" in text
    assert "depth, not a camera" in text


def test_a_depth_topic_is_refused_as_the_camera(tmp_path):
    bag = write_folder(tmp_path / "bag", [*stream(), *depth_stream()])
    with pytest.raises(RecordingError, match=r"depth, not a camera.*choose a colour topic"):
        open_recording(bag, "/camera/depth/image_raw")


def test_a_bag_without_images_is_reported(tmp_path):
    tf = ("/tf", "tf2_msgs/msg/TFMessage", build.tf(LIB, []), T0)
    with pytest.raises(RecordingError, match="no image topics"):
        open_recording(write_folder(tmp_path / "bag", [tf]))


# Calibration


def test_rectified_follows_the_name_or_the_declaration(tmp_path):
    bag = write_folder(tmp_path / "bag", stream(topic="/camera/image_rect"))
    assert frames_of(bag)[0].rectified
    assert not frames_of(bag, input_rectified="false")[0].rectified


def test_late_calibration_still_reaches_the_first_frames(tmp_path):
    items = list(stream())
    infos = [i for i in items if i[1] == INFO][8:]
    images = [i for i in items if i[1] == IMAGE]
    check_whole(write_folder(tmp_path / "bag", sorted([*infos, *images], key=lambda i: i[3])))


def test_calibration_after_the_timeout_holds_from_then_on(tmp_path, caplog):
    items = list(stream())
    late = [i for i in items if i[1] == INFO][6:]
    items = [i for i in items if i[1] == IMAGE] + late
    bag = write_folder(tmp_path / "bag", sorted(items, key=lambda i: (i[3], i[1] == IMAGE)))
    with caplog.at_level(logging.WARNING):
        frames = frames_of(bag, camera_info_timeout_s=2.5 * STEP / 1e9)
    assert [f.calibration is not None for f in frames] == [False] * 6 + [True] * (N - 6)
    assert sum("arrived late" in r.message for r in caplog.records) == 1


def test_useless_calibration_is_reported_once_and_left_out(tmp_path, caplog):
    items = [(t, k, m, s) for t, k, m, s in stream() if k == IMAGE]
    zero = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    for i in range(N):
        bad = build.camera_info(LIB, T0 + i, "cam", zero, W, H)
        items.append(("/camera/camera_info", INFO, bad, T0 + i))
    with caplog.at_level(logging.WARNING):
        frames = frames_of(write_folder(tmp_path / "bag", items))
    assert [f.calibration for f in frames] == [None] * N
    assert sum("uncalibrated" in r.message for r in caplog.records) <= 2
    assert all("/camera/camera_info" in r.message for r in caplog.records)


def test_given_calibration_replaces_the_recorded_one(tmp_path):
    mine = Calibration(W, H, K)
    frames = frames_of(write_folder(tmp_path / "bag", stream()), calibration=mine)
    assert frames[0].calibration is mine


# Bad images and damaged files


def test_bad_images_are_skipped_counted_and_named(tmp_path, caplog):
    items = list(stream(info=False))
    good = items[4][2]
    items[4] = (*items[4][:2], build.image(LIB, T0 + 4 * STEP, "cam", picture(4)), items[4][3])
    items[4][2].data = good.data[:100]
    with open_recording(write_folder(tmp_path / "bag", items)) as recording:
        with caplog.at_level(logging.WARNING):
            frames = list(recording)
        assert recording.counters["bad_images"] == 1
        assert recording.stopped_at is None
        (named,) = recording.bad_images
    assert [number(f) for f in frames] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (record,) = caplog.records
    assert record.message == named
    assert "/camera/image_raw" in record.message
    assert str(T0 + 4 * STEP) in record.message


def test_of_two_cameras_on_one_topic_the_first_is_read(tmp_path, caplog):
    left, right = (list(stream(info=False, frame_id=name)) for name in ("left", "right"))
    turns = [item for pair in zip(left, right, strict=True) for item in pair]
    with open_recording(write_folder(tmp_path / "bag", turns)) as recording:
        for _ in range(2):  # also when it is read again
            caplog.clear()
            frames = list(recording)
            assert recording.counters == {"bad_images": 0, "foreign_frames": len(right)}
            assert {frame.frame_id for frame in frames} == {"left"}
            assert [number(f) for f in frames] == list(range(len(left)))
            (record,) = caplog.records
            assert "images of frame_id 'right' are dropped" in record.message


@pytest.mark.parametrize("compression", list(mcap.writer.CompressionType))
@pytest.mark.parametrize("chunk_size", [20_000, 10_000_000])
def test_truncated_mcap_gives_what_is_readable(tmp_path, compression, chunk_size):
    """A truncated MCAP gives what is readable and reports where it stops."""
    # Many frames: zstd and lz4 give back whole blocks only, of up to 128 KiB.
    file = write_mcap(
        tmp_path / "a.mcap", stream(60), chunk_size=chunk_size, compression=compression
    )
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * 0.8)])
    with open_recording(file) as recording:
        frames = list(recording)
        assert recording.stopped_at.startswith("a.mcap is truncated at byte")
        assert "\n" not in recording.stopped_at
    numbers = [number(f) for f in frames]
    assert numbers == list(range(len(numbers)))
    assert 30 <= len(numbers) <= 50


def test_mcap_of_a_power_cut_is_read(tmp_path):
    file = write_mcap(tmp_path / "a.mcap", stream(), chunk_size=20_000, end=False)
    with open_recording(file) as recording:
        assert len(list(recording)) >= N - 2
        assert "without a footer" in recording.stopped_at


def readable(path):
    """Number of frames read from a damaged recording, and its report of the damage."""
    try:
        with open_recording(path) as recording:
            return len(list(recording)), recording.stopped_at
    except RecordingError as error:
        return 0, str(error)


@pytest.mark.slow
def test_every_cut_is_survived_and_reported(tmp_path):
    file = write_mcap(tmp_path / "a.mcap", stream(4), chunk_size=20_000)
    data = file.read_bytes()
    for size in range(0, len(data), 997):
        file.write_bytes(data[:size])
        count, text = readable(file)
        assert count <= 4
        assert text
        assert "\n" not in text


@pytest.mark.parametrize("indexed", [True, False])
def test_damage_in_the_middle_ends_the_reading_there(tmp_path, indexed):
    file = write_mcap(tmp_path / "a.mcap", stream(), chunk_size=20_000)
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    file.write_bytes(data if indexed else data[:-100])
    with open_recording(file) as recording:
        frames = list(recording)
        assert "damaged" in recording.stopped_at
    assert 0 < len(frames) < N


def test_last_split_that_is_empty_costs_nothing_else(tmp_path):
    bag = tmp_path / "bag"
    bag.mkdir()
    write_mcap(bag / "bag_0.mcap", stream())
    (bag / "bag_1.mcap").touch()
    with open_recording(bag) as recording:
        assert len(list(recording)) == N
        assert "bag_1.mcap is empty" in recording.stopped_at


def test_truncated_zstd_around_a_file(tmp_path):
    bag = write_rosbags(tmp_path / "bag", stream(60), StoragePlugin.MCAP, CompressionMode.FILE)
    file = bag / "bag.mcap.zstd"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * 0.8)])
    count, text = readable(bag)
    assert 30 <= count <= 50
    assert "truncated" in text
    file.write_bytes(data[:5000])
    count, text = readable(bag)
    assert count == 0
    assert "cannot be decompressed" in text


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.8, 0.99])
def test_truncated_sqlite_is_one_clear_error_at_opening(tmp_path, share):
    bag = write_folder(tmp_path / "bag", stream(), "sqlite3")
    file = bag / "bag.db3"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    with pytest.raises(RecordingError, match=r"bag\.db3 is") as caught:
        open_recording(bag)
    assert "\n" not in str(caught.value)


def test_damaged_sqlite_is_one_clear_error_at_opening(tmp_path):
    bag = write_folder(tmp_path / "bag", stream(200, info=False), "sqlite3")
    file = bag / "bag.db3"
    data = bytearray(file.read_bytes())
    for page in range(4096, len(data) - 4096, 4096):
        data[page : page + 12] = b"\xff" * 12
    file.write_bytes(data)
    with pytest.raises(RecordingError, match=r"bag\.db3 is damaged") as caught:
        open_recording(bag)
    assert "\n" not in str(caught.value)


def test_a_left_write_ahead_log_is_reported(tmp_path, caplog):
    bag = write_folder(tmp_path / "bag", stream(), "sqlite3")
    (bag / "bag.db3-wal").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        open_recording(bag).close()
    assert "wal_checkpoint" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.mcap", "does not exist"),
        ("text.mcap", "is not an MCAP file"),
        ("text.db3", "is not an SQLite database"),
        ("text.mp4", "cannot be opened as a video"),
        ("text.txt", "is not a supported recording"),
        ("text.bag", "ROS 1 bag"),
        ("folder", "neither bag files nor images"),
    ],
)
def test_what_is_no_recording_gets_one_line(tmp_path, name, words):
    path = tmp_path / name
    if name.startswith("text"):
        path.write_text("hello " * 100)
    elif name == "folder":
        path.mkdir()
    with pytest.raises(RecordingError, match=words) as caught:
        open_recording(path)
    assert "\n" not in str(caught.value)


# Videos and image folders


def write_video(path, codec, count=N, rate=20.0):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), rate, (W, H))
    assert writer.isOpened()
    for i in range(count):
        writer.write(np.full((H, W, 3), (30, 60, 20 * i + 10), np.uint8))
    writer.release()
    return path


@pytest.mark.parametrize(("name", "codec"), [("a.avi", "MJPG"), ("a.mp4", "mp4v")])
def test_video(tmp_path, name, codec):
    with open_recording(write_video(tmp_path / name, codec)) as recording:
        frames = list(recording)
        assert recording.length == N
        assert recording.stopped_at is None
        assert "64x48" in recording.describe()
        with pytest.raises(RecordingError, match="is not a bag"):
            recording.messages("/tf")
    assert [f.stamp_ns for f in frames] == [S + i * S // 20 for i in range(N)]
    for i, frame in enumerate(frames):
        np.testing.assert_allclose(frame.image.mean((0, 1)), (20 * i + 10, 60, 30), atol=6)


def test_a_truncated_video_reports_where_it_stops(tmp_path):
    path = write_video(tmp_path / "a.avi", "MJPG", 100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    count, text = readable(path)
    assert count < 60
    assert text


def write_images(folder, names):
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        cv2.imwrite(str(folder / name), picture(i)[..., ::-1])
    return folder


def test_digits_that_are_no_decimal_ones_have_an_order():
    names = ["10.png", "1\u00b22.png", "2.png"]
    assert sorted(names, key=natural_order) == ["1\u00b22.png", "2.png", "10.png"]


def test_image_folder_in_natural_order_with_calibration(tmp_path):
    folder = write_images(tmp_path / "a", ["f1.png", "f2.bmp", "f10.png", "f11.tif"])
    (folder / "notes.txt").write_text("no image")
    (folder / "f12.png").write_bytes(b"damaged")
    (folder / "camera_info.yaml").write_text(
        "image_width: 64\nimage_height: 48\ncamera_name: c\ncamera_matrix:\n  rows: 3\n  cols: 3\n"
        "  data: [50, 0, 32, 0, 51, 24, 0, 0, 1]\ndistortion_model: plumb_bob\n"
        "distortion_coefficients:\n  rows: 1\n  cols: 5\n  data: [0.1, 0, 0, 0, 0]\n"
    )
    with open_recording(folder, rate_hz=4) as recording:
        frames = list(recording)
        assert recording.counters["bad_images"] == 1
    assert [number(f) for f in frames] == [0, 1, 2, 3]
    assert [f.stamp_ns for f in frames] == [S, S + S // 4, S + S // 2, S + 3 * S // 4]
    assert frames[0].calibration.K[1, 1] == 51
    assert frames[0].calibration.D[0] == 0.1
    (folder / "camera_info.yaml").write_text("image_width: 64\n")
    with pytest.raises(RecordingError, match="camera_calibration"):
        open_recording(folder)


@pytest.mark.parametrize(
    ("stems", "stamps"),
    [
        (
            ("1403636579763555584", "1403636579813555456"),
            (1403636579763555584, 1403636579813555456),
        ),
        (("1305031102.175304", "1305031102.2"), (1305031102175304000, 1305031102200000000)),
        (("1305031102", "1305031103"), (1305031102 * S, 1305031103 * S)),
        (("0000000001", "0000000002"), (S, S + S // 10)),
        (("1305031102", "x"), (S, S + S // 10)),
        (("000000", "000001"), (S, S + S // 10)),
    ],
)
def test_stamps_from_names(stems, stamps):
    assert stamps_of(stems, 10.0) == list(stamps)


def test_folder_of_folders_names_the_one_with_images(tmp_path):
    write_images(tmp_path / "color", ["1.png"])
    with pytest.raises(RecordingError, match=r"images are in .*color"):
        open_recording(tmp_path)


def test_camera_makes_no_sense_without_topics(tmp_path):
    with pytest.raises(RecordingError, match="no topics"):
        open_recording(write_images(tmp_path / "a", ["1.png"]), "/camera")


# Writing


def test_mcap_is_read_by_another_library_and_the_same_each_time(tmp_path):
    items = [*stream(), ("/da3/status", "da3_ros/msg/Status", build.status(LIB, T0), T0)]
    for name in ("a.mcap", "b.mcap"):
        with BagWriter(tmp_path / name, LIB) as writer:
            for item in items:
                writer.write(*item)
    assert (tmp_path / "a.mcap").read_bytes() == (tmp_path / "b.mcap").read_bytes()
    with (tmp_path / "a.mcap").open("rb") as file:
        reader = mcap.reader.make_reader(file, validate_crcs=True)
        assert reader.get_header().profile == "ros2"
        read = list(reader.iter_messages())
        channels = {c.topic: c.metadata for c in reader.get_summary().channels.values()}
    assert len(read) == len(items)
    assert {schema.name for schema, _, _ in read} == {kind for _, kind, _, _ in items}
    assert "durability: 1" in channels["/da3/status"]["offered_qos_profiles"]
    assert "durability: 2" in channels["/camera/image_raw"]["offered_qos_profiles"]
    assert channels["/da3/status"]["topic_type_hash"].startswith("RIHS01_")
    check_whole(tmp_path / "a.mcap")


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bag_folder_is_the_same_each_time(tmp_path, storage):
    parts = []
    for parent in ("a", "b"):
        bag = write_folder(tmp_path / parent / "bag", stream(), storage)
        parts.append({p.name: p.read_bytes() for p in bag.iterdir()})
        assert [p.name for p in (tmp_path / parent).iterdir()] == ["bag"]
    assert parts[0] == parts[1]
    assert "metadata.yaml" in parts[0]


@pytest.mark.parametrize("kind", [BagWriter, BagFolderWriter])
def test_interrupted_writing_leaves_nothing(tmp_path, kind):
    def write_half():
        with kind(tmp_path / "out.mcap", LIB) as writer:
            writer.write(*next(stream()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_existing_bag_is_kept(tmp_path):
    bag = write_folder(tmp_path / "bag", stream())
    with pytest.raises(RecordingError, match="exists"):
        BagFolderWriter(bag, LIB)


# Real recordings


@pytest.mark.parametrize(
    ("name", "camera", "count", "size", "calibrated"),
    [
        ("redkitchen_24", None, 24, (480, 640), True),
        ("redkitchen_raw_4", None, 4, (480, 640), True),
        ("kitti_stereo_10", "/left", 10, (370, 1226), True),
        ("dashcam_100", None, 100, (540, 960), False),
        ("amber_soccer", None, 2, (480, 640), False),
        ("rgbd_5/data/color", None, 5, (480, 640), False),
    ],
)
def test_real_recordings(recordings, name, camera, count, size, calibrated):
    with open_recording(recordings / name, camera) as recording:
        frames = list(recording)
        assert recording.length == len(frames) == count
        assert recording.counters["bad_images"] == 0
        assert recording.stopped_at is None
    stamps = [f.stamp_ns for f in frames]
    assert stamps == sorted(set(stamps))
    for frame in frames:
        assert frame.image.shape == (*size, 3)
        assert (frame.calibration is not None) == calibrated
        assert 20 < frame.image.mean() < 235
        assert frame.rectified == name.startswith("kitti")


def test_real_recording_without_metadata_and_truncated(recordings, tmp_path):
    source = Path(recordings, "dashcam_100", "dashcam_100.mcap")
    shutil.copyfile(source, tmp_path / "a.mcap")
    with (tmp_path / "a.mcap").open("rb+") as file:
        file.truncate(source.stat().st_size // 2)
    with open_recording(tmp_path) as recording:
        assert 40 < len(list(recording)) < 60
        assert recording.stopped_at
