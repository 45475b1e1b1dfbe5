"""Which messages a frame becomes, and that nothing is made without a subscriber."""

import array

import numpy as np
import pytest
from rosbags.typesys import get_types_from_msg

from da3_ros.config import config_from_parameters
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.outputs import FRAME_TOPICS, SCENE_TOPICS, Outputs, SceneViews
from da3_ros.navigation.floor_grid import GridPart, OccupancyGrid
from da3_ros.types import Scale, TrackedFrame, WindowReport


class CountingLibrary(RosbagsLibrary):
    """Counts the message classes asked for: each costs an allocation and a copy."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def type(self, name):
        self.asked.append(name)
        return super().type(name)


def tracked(i, ids, poses=None, **fields):
    poses = np.tile(np.eye(4), (len(ids), 1, 1)) if poses is None else poses
    report = WindowReport(0, i, ids, 1, True, 0.0, 1.0, 1.0, T_map_camera=poses)
    return TrackedFrame(
        id=i, stamp_ns=i, frame_id="optical", camera="", image=np.zeros((4, 6, 3), np.uint8),
        confidence=np.ones((4, 6), np.float32), keyframe=True, window=report,
        **{"scale": Scale(), "T_map_camera": np.eye(4), "K": np.diag([5.0, 5, 1]),
           "depth_m": np.ones((4, 6), np.float32), **fields},
    )  # fmt: skip


LEVEL = np.array([[0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1.0], [0, 0, 0, 1]])  # 1 m up, forward
NAVIGATION = ("points/obstacles", "points/clearing", "scan")
METRES = ("depth/image_16uc1", "depth/image/compressedDepth")


def outputs(lib, **options):
    return Outputs(lib, config_from_parameters({"window.size": 4}), **options)


def views_of(scene):
    return SceneViews(path=lambda: scene.poses, scene=lambda: scene)


def test_only_wanted_topics_are_built():
    lib = CountingLibrary()
    made = list(outputs(lib, tf=lambda frame: []).frame(tracked(0, (0,)), lambda t: t == "pose"))
    assert [topic for topic, _, _ in made] == ["pose"]
    assert "sensor_msgs/msg/PointCloud2" not in lib.asked
    assert "sensor_msgs/msg/Image" not in lib.asked


def test_all_topics_have_their_types_and_window_comes_last():
    metric = tracked(0, (0,), scale=Scale("fixed", 1.0, 0.0), T_level_camera=LEVEL)
    made = list(outputs(RosbagsLibrary(), base_frame="base_link").frame(metric))
    assert [(topic, kind) for topic, kind, _ in made] == [
        (topic, row.type) for topic, row in FRAME_TOPICS.items()
    ]
    assert made[-1][0] == "window"


@pytest.mark.parametrize(
    ("fields", "silent", "reason"),
    [
        ({}, (*NAVIGATION, *METRES), "scale"),
        ({"T_level_camera": LEVEL}, (*NAVIGATION, *METRES), "scale.source"),
        ({"scale": Scale("fixed", 1.0, 0.0)}, NAVIGATION, "from base_link to optical"),
        ({"scale": Scale("fixed", 1.0, 0.0), "T_level_camera": LEVEL}, (), ""),
    ],
)
def test_what_needs_metres_or_up_is_silent_without_and_says_why(fields, silent, reason):
    said = []
    made = outputs(
        RosbagsLibrary(), base_frame="base_link", warn=lambda text, every_s: said.append(text)
    ).frame(tracked(0, (0,), **fields))
    assert {*NAVIGATION, *METRES} - {topic for topic, _, _ in made} == set(silent)
    assert {text.split()[0] for text in said} == {f"~/{topic}" for topic in silent}
    assert any(reason in text for text in said) or not silent


def test_a_covered_camera_is_no_empty_room():
    said = []
    blind = tracked(
        0, (0,), scale=Scale("fixed", 1.0, 0.0), T_level_camera=LEVEL, blind="dark",
    )  # fmt: skip
    out = outputs(RosbagsLibrary(), warn=lambda text, every_s: said.append(text))
    assert not {*NAVIGATION} & {topic for topic, _, _ in out.frame(blind)}
    assert not said


def test_a_window_is_announced_once_with_all_its_frames():
    out = outputs(RosbagsLibrary())
    ids = (0, 1, 2)
    names = [[t for t, _, _ in out.frame(tracked(i, ids))] for i in ids]
    assert ["window" in n for n in names] == [False, False, True]
    *_, (_, _, message) = out.frame(tracked(2, ids))
    assert [f.header.stamp.nanosec for f in message.frames] == [0, 1, 2]


def test_a_window_lists_earlier_views_where_they_are_now():
    """A view whose pose the map does not know any longer is left out."""
    out = outputs(RosbagsLibrary(), T_ros_map=lambda: np.eye(4))
    for i in range(2):
        list(out.frame(tracked(i, (0, 1))))
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[0], poses[1, 0, 3] = np.nan, 5.0
    *_, (_, _, message) = out.frame(tracked(2, (0, 1, 2), poses))
    stamps = [f.header.stamp.nanosec for f in message.frames]
    assert list(zip(stamps, [f.pose.position.x for f in message.frames], strict=True)) == [
        (1, 5.0), (2, 0.0),
    ]  # fmt: skip


def test_where_the_map_lies_is_asked_anew_for_every_frame():
    places = iter(range(1, 10))

    def owner():
        T = np.eye(4)
        T[0, 3] = next(places)
        return T

    out = outputs(RosbagsLibrary(), T_ros_map=owner, tf=lambda frame: [])
    found = [
        message.pose.pose.position.x
        for i in range(2)
        for topic, _, message in out.frame(tracked(i, (9,)), lambda t: t == "pose")
    ]
    assert found == [1.0, 2.0]


def test_large_fields_of_real_messages_are_filled_in_one_copy():
    pytest.importorskip("rclpy", reason="needs ROS 2")
    from da3_ros.ros.rclpy_library import RclpyLibrary

    data = RclpyLibrary().bytes(np.arange(6, dtype="<u2").reshape(2, 3).T)
    assert isinstance(data, array.array)
    assert data.typecode == "B"
    assert data.tobytes() == np.arange(6, dtype="<u2").reshape(2, 3).T.tobytes()


def test_map_is_thinned_for_display_but_not_below_the_limit(monkeypatch):
    from da3_ros.mapping.scene import Scene, SubmapCloud
    from da3_ros.mapping.trajectory import Poses
    from da3_ros.mapping.voxel_map import PointCloud

    monkeypatch.setattr("da3_ros.messages.outputs.MAX_DISPLAY", 100)
    xyz = np.arange(999, dtype=np.float32)[:, None] * [1, 0, 0]
    cloud = PointCloud(xyz.astype(np.float32), np.zeros((999, 3), np.uint8), xyz[:, 0], xyz[:, 0])
    scene = Scene((SubmapCloud(cloud),), Poses.of([]))
    _, _, message = outputs(RosbagsLibrary()).scene("map/points", views_of(scene), 7)
    assert message.width == 100
    assert message.header.stamp.nanosec == 7
    rows = np.frombuffer(bytes(message.data), "<f4").reshape(100, -1)
    np.testing.assert_allclose(rows[:, 1], -xyz[::10, 0])  # to the right in the map: -y


def test_an_empty_map_can_be_shown():
    pytest.importorskip("rclpy", reason="needs ROS 2")
    from da3_ros.mapping.scene import Scene
    from da3_ros.mapping.trajectory import Poses
    from da3_ros.ros.rclpy_library import RclpyLibrary

    _, _, message = outputs(RclpyLibrary()).scene(
        "map/points", views_of(Scene((), Poses.of([]))), 7
    )
    assert (message.width, len(message.data)) == (0, 0)


def test_a_single_image_network_has_a_scan_about_the_base():
    unposed = tracked(
        0, (0,), scale=Scale("metric_model", 1.0, 0.0), T_level_camera=LEVEL,
        T_map_camera=np.full((4, 4), np.nan),
    )  # fmt: skip
    out = outputs(RosbagsLibrary(), base_frame="base_link")
    made = {topic: message for topic, _, message in out.frame(unposed)}
    assert made["scan"].header.frame_id == "base_link"
    assert "/tf" not in made


GRID = OccupancyGrid(0.05, (-6.4, 3.2), np.array([[0, 100, -1], [-1, 0, 0]], np.int8))


def test_a_grid_is_the_message_that_map_server_sends():
    lib = RosbagsLibrary()
    views = SceneViews(path=lambda: None, scene=lambda: None, grid=lambda: GRID)
    topic, kind, message = outputs(lib, map_frame="map").scene("map/occupancy", views, 5)
    assert (topic, kind) == ("map/occupancy", "nav_msgs/msg/OccupancyGrid")
    again = lib.store.deserialize_cdr(lib.serialize(message, kind), kind)
    info = again.info
    assert again.header.frame_id == "map"
    assert (info.width, info.height, info.resolution) == (3, 2, np.float32(0.05))
    assert (info.origin.position.x, info.origin.position.y) == GRID.origin
    assert info.origin.position.z == 0.0
    assert info.origin.orientation.w == 1.0
    assert again.data.tolist() == [0, 100, -1, -1, 0, 0]
    row = SCENE_TOPICS["map/occupancy"]
    assert row.latched
    assert row.depth == 1


def test_an_update_is_the_rectangle_that_has_changed():
    lib = RosbagsLibrary()
    text = "std_msgs/Header header\nint32 x\nint32 y\nuint32 width\nuint32 height\nint8[] data"
    lib.store.register(get_types_from_msg(text, "map_msgs/msg/OccupancyGridUpdate"))
    part = GridPart(1, 0, GRID.cells[:, 1:])
    views = SceneViews(path=lambda: None, scene=lambda: None, grid_part=lambda: part)
    _, kind, message = outputs(lib).scene("map/occupancy_updates", views, 5)
    again = lib.store.deserialize_cdr(lib.serialize(message, kind), kind)
    assert (again.x, again.y, again.width, again.height) == (1, 0, 2, 2)
    assert again.data.tolist() == [100, -1, 0, 0]


def test_without_a_grid_nothing_is_sent():
    views = SceneViews(path=lambda: None, scene=lambda: None)
    for topic in ("map/occupancy", "map/occupancy_updates"):
        assert outputs(RosbagsLibrary()).scene(topic, views, 5) is None


@pytest.mark.parametrize(
    ("values", "base", "fields", "reason"),
    [
        ({}, "", {}, "set base_frame"),
        ({"level.source": "none"}, "base_link", {}, "level.source is none"),
        ({"level.source": "ground"}, "", {}, "not shown a floor"),
        (
            {"level.source": "ground"}, "", {"T_map_camera": np.full((4, 4), np.nan)},
            "a model with poses",
        ),
        ({}, "base_link", {"T_level_camera": LEVEL, "K": np.full((3, 3), np.nan)}, "camera_info"),
    ],
)  # fmt: skip
def test_a_silent_topic_names_what_helps(values, base, fields, reason):
    said = []
    out = Outputs(
        RosbagsLibrary(), config_from_parameters(values), base_frame=base,
        warn=lambda text, every_s: said.append(text),
    )  # fmt: skip
    frame = tracked(0, (0,), **{"scale": Scale("fixed", 1.0, 0.0), **fields})
    made = {topic for topic, _, _ in out.frame(frame, lambda topic: topic in NAVIGATION)}
    assert made <= {"/tf"}
    assert len(said) == 3
    assert all(reason in text for text in said)


NO_HEIGHT = LEVEL * [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
BODY_AXES = np.array([[1, 0, 0, 0.1], [0, 1, 0, 0], [0, 0, 1, 0.3], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("T_level_camera", "floor_z", "reason"),
    [
        (NO_HEIGHT, 0.0, "0.00 m above the floor"),
        (LEVEL, 1.5, "-0.50 m above the floor"),
        (BODY_AXES, 0.0, "optical frame"),
        (NO_HEIGHT, -0.3, ""),
        (LEVEL, 0.0, ""),
    ],
)
def test_a_mount_that_cannot_be_says_so_instead_of_free_space(T_level_camera, floor_z, reason):
    """What a transform without translation, or into body axes, makes of a camera."""
    said = []
    out = Outputs(
        RosbagsLibrary(), config_from_parameters({"level.floor_z": floor_z}),
        base_frame="base_link", warn=lambda text, every_s: said.append(text),
    )  # fmt: skip
    frame = tracked(0, (0,), scale=Scale("fixed", 1.0, 0.0), T_level_camera=T_level_camera)
    made = {topic for topic, _, _ in out.frame(frame, lambda topic: topic in NAVIGATION)}
    assert made - {"/tf"} == (set() if reason else set(NAVIGATION))
    assert len(said) == (len(NAVIGATION) if reason else 0)
    assert all(reason in text for text in said)


def test_a_scan_whose_frame_is_in_no_transform_says_so():
    said = []
    out = Outputs(
        RosbagsLibrary(), config_from_parameters({"level.source": "ground"}),
        tf=lambda frame: [], warn=lambda text, every_s: said.append(text),
    )  # fmt: skip
    frame = tracked(0, (0,), scale=Scale("fixed", 1.0, 0.0), T_level_camera=LEVEL)
    assert not list(out.frame(frame, lambda topic: topic in ("scan", "/tf")))
    assert ["tf.publish" in text for text in said] == [True]


def test_the_height_of_the_floor_counts_in_the_clouds():
    depth = np.full((60, 80), 2.0, np.float32)
    K = np.array([[60.0, 0, 40], [0, 60, 30], [0, 0, 1]])
    counts = []
    for floor_z in (0.0, -0.6):
        config = config_from_parameters({"level.floor_z": floor_z})
        out = Outputs(RosbagsLibrary(), config, base_frame="base_link")
        frame = tracked(
            0, (0,), scale=Scale("fixed", 1.0, 0.0), T_level_camera=LEVEL, depth_m=depth, K=K
        )
        made = {t: m for t, _, m in out.frame(frame, lambda t: t == "points/obstacles")}
        counts.append(made["points/obstacles"].width)
    assert counts[0] != counts[1]
