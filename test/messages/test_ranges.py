"""Messages of range sensors: which returns they have, and what is refused with one line."""

import contextlib
import math
import random
from types import SimpleNamespace as Message

import numpy as np
import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.ranges import CLOUD, RANGE, SCAN, open_ranges, read_ranges
from da3_ros.parameter_schema import ConfigError
from da3_ros.sensors.range_returns import RangeError
from da3_ros.sensors.transform_tree import TransformTree

STAMP = 1_700_000_000_000_000_000
LIB = RosbagsLibrary()
POINTS = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9.5], [-1, -2, -3]], np.float32)
NUMBERS = {"f4": 7, "f8": 8, "u4": 6, "u8": 0}


def header(frame="lidar"):
    return Message(stamp=Message(sec=STAMP // 10**9, nanosec=STAMP % 10**9), frame_id=frame)


def cloud(fields, width=None, height=1, order="<", pad=0, row_pad=0, frame="lidar"):
    """A PointCloud2 of columns (name, type, values), in this order, with unused bytes."""
    offsets, step = [], pad
    for _, kind, _ in fields:
        offsets.append(step)
        step += np.dtype(kind).itemsize + pad
    count = len(fields[0][2])
    width = count // height if width is None else width
    kinds = [order + kind for _, kind, _ in fields]
    names = [name for name, _, _ in fields]
    record = np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": step})
    packed = np.zeros(count, record)
    for name, _, values in fields:
        packed[name] = values
    rows = [packed[i * width : (i + 1) * width].tobytes() + bytes(row_pad) for i in range(height)]
    return Message(
        header=header(frame), height=height, width=width, point_step=step,
        row_step=width * step + row_pad, is_bigendian=order == ">", is_dense=False,
        data=np.frombuffer(b"".join(rows), np.uint8),
        fields=[Message(name=n, offset=o, datatype=NUMBERS[k], count=1)
                for (n, k, _), o in zip(fields, offsets, strict=True)],
    )  # fmt: skip


def xyz(kind="f4", points=POINTS, names="xyz"):
    return [(n, kind, points[:, "xyz".index(n)]) for n in names]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize(("height", "row_pad"), [(1, 0), (2, 0), (2, 13)])
def test_points_are_read_in_any_layout(order, kind, height, row_pad):
    fields = [*xyz(kind, names="zxy"), ("intensity", "f4", np.arange(4))]
    message = cloud(fields, height=height, order=order, pad=3, row_pad=row_pad)
    found = read_ranges(CLOUD, message)
    np.testing.assert_array_equal(found.points, POINTS)
    assert (found.frame_id, found.stamp_ns, found.stamps_ns) == ("lidar", STAMP, None)


def test_points_that_are_not_finite_or_zero_are_no_returns():
    points = POINTS.copy()
    points[0, 1], points[2] = np.nan, 0
    found = read_ranges(CLOUD, cloud(xyz(points=points), height=2))
    np.testing.assert_array_equal(found.points, points[[1, 3]])


OFFSETS = np.array([0, 10, 50, 99]) * 1_000_000  # ns


@pytest.mark.parametrize(
    ("name", "kind", "values"),
    [
        ("t", "u4", OFFSETS),
        ("offset_time", "u4", OFFSETS),
        ("time", "f4", OFFSETS / 1e9),
        ("timestamp", "f8", (STAMP + OFFSETS) / 1e9),
        ("timestamp", "f8", (STAMP + OFFSETS).astype(float)),
    ],
    ids=["ouster", "livox", "velodyne", "hesai", "livox absolute"],
)
def test_points_have_their_own_times(name, kind, values):
    found = read_ranges(CLOUD, cloud([*xyz(), (name, kind, values)]))
    assert found.note == ""
    np.testing.assert_allclose(found.stamps_ns - STAMP, OFFSETS, atol=1000)


@pytest.mark.parametrize(
    ("kind", "unit", "named"),
    [("u4", 10**3, "microseconds"), ("u4", 10**6, "milliseconds"), ("f4", 10**3, "")],
)
def test_the_unit_of_times_is_that_in_which_a_sweep_lasts(kind, unit, named):
    found = read_ranges(CLOUD, cloud([*xyz(), ("t", kind, OFFSETS / unit)]))
    np.testing.assert_allclose(found.stamps_ns - STAMP, OFFSETS, atol=1000)
    assert (f"the field t is taken as {named}" in found.note) == bool(named)


@pytest.mark.parametrize("values", [[3e9, 4e9, 5e9, 6e9], [np.nan, 0, 0, 0], [1e9, 1e9, 1e9, 1e9]])
def test_times_far_from_the_stamp_are_named_and_not_used(values):
    found = read_ranges(CLOUD, cloud([*xyz(), ("time", "f8", np.array(values))]))
    assert found.stamps_ns is None
    assert "the field time has no times near" in found.note


def broken(**changes):
    message = cloud(xyz())
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (cloud(xyz(names="xy")), "field z is missing"),
        (cloud([*xyz(names="xy"), ("z", "u4", np.arange(4))]), "no floating-point number"),
        (broken(point_step=4), "contradict"),
        (broken(data=np.zeros(10, np.uint8)), "contradict"),
        (broken(width=2**31, height=2**31), "contradict"),
        (cloud(xyz(), frame=""), "frame_id is empty"),
    ],
)
def test_a_cloud_that_contradicts_itself_is_refused(message, text):
    with pytest.raises(RangeError, match=text):
        read_ranges(CLOUD, message)


@pytest.mark.parametrize("seed", range(4))
def test_no_cloud_crashes_the_reader(seed):
    """Every field of a good cloud is replaced by something wrong, or nearly right."""
    draw = random.Random(seed)
    for _ in range(150):
        message = cloud([*xyz(), ("t", "u4", OFFSETS)], height=draw.choice((1, 2)))
        for _ in range(draw.randint(1, 3)):
            name = draw.choice(("height", "width", "point_step", "row_step", "is_bigendian"))
            setattr(message, name, draw.choice((0, 1, 2, 3, 16, 2**16, 2**32 - 1)))
            field = draw.choice(message.fields)
            field.offset = draw.choice((field.offset, 0, 3, 2**31))
            field.datatype = draw.choice((field.datatype, 0, 1, 5, 8, 200))
            field.count = draw.choice((1, 1, 0, 7))
        message.data = message.data[: draw.choice((None, 0, 5))]
        with contextlib.suppress(RangeError):
            assert np.isfinite(read_ranges(CLOUD, message).points).all()


def scan(ranges, time_increment=0.0):
    return Message(
        header=header(), ranges=np.array(ranges, np.float32), angle_min=-math.pi / 2,
        angle_increment=math.pi / 4, time_increment=time_increment, range_min=0.5, range_max=9.0,
    )  # fmt: skip


def test_a_scan_has_returns_within_its_range_at_their_own_times():
    found = read_ranges(SCAN, scan([2, np.inf, 3, np.nan, 4, 0.1, 10], 0.01))
    np.testing.assert_allclose(found.points, [[0, -2, 0], [3, 0, 0], [0, 4, 0]], atol=1e-6)
    np.testing.assert_array_equal(found.stamps_ns - STAMP, [0, 20_000_000, 40_000_000])


def test_a_scan_slower_than_a_second_has_one_time():
    found = read_ranges(SCAN, scan([2, 2, 2], 1.0))
    assert found.stamps_ns is None
    assert "time_increment" in found.note


@pytest.mark.parametrize(
    ("distance", "count"),
    [(2.0, 1), (math.inf, 0), (-math.inf, 0), (math.nan, 0), (20.0, 0), (0.01, 0)],
)
def test_a_range_out_of_reach_is_no_return(distance, count):
    """REP-117: too near, too far, wrong; and the end of the range, which stands for no echo."""
    found = read_ranges(RANGE, build.range_message(LIB, STAMP, "range", distance, 0.1))
    assert len(found.points) == count
    assert found.half_angle == pytest.approx(0.1)


def test_metres_by_range_need_a_topic():
    config = config_from_parameters({"scale.source": "range"}, NodeConfig)
    with pytest.raises(ConfigError, match="range_topics is empty"):
        open_ranges(config, TransformTree(), None, print)
    config = config_from_parameters({"range_topics": ["/a", "/b"]}, NodeConfig)
    assert list(open_ranges(config, TransformTree(), None, print).topics) == ["/a", "/b"]


@pytest.mark.parametrize("topics", [[""], ["/a b"], ["/a/"], ["/a", "/a"]])
def test_names_that_no_topic_has_are_refused(topics):
    with pytest.raises(ConfigError, match="range_topics"):
        config_from_parameters({"range_topics": topics}, NodeConfig)
