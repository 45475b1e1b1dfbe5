"""`da3_ros nav2-config`: Nav2 then marks what is in the way and clears what has gone."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from support.costmap import FREE, LETHAL, Costmap, Scan

from da3_ros.cli import main
from da3_ros.config import ObstacleConfig
from da3_ros.navigation.nav2_config import CostmapRequest, costmap_text, voxel_levels
from da3_ros.navigation.sighting import BEYOND, sight

WRITTEN = Path(__file__).parents[2] / "config" / "nav2_costmap.yaml"
HEIGHTS = (0.1, 0.3, 0.79, 0.81, 1.2, 1.89, 1.91, 2.2)  # m, of the camera
BOX_X, BOX_SIDE, BOX_TOP = 2.0, 0.4, 0.5  # m
K = np.array([[120.0, 0, 84], [0, 120, 63], [0, 0, 1]])
SIZE = (126, 168)  # height and width of the depth, pixels


def parameters(name="local_costmap", **values):
    request = CostmapRequest(**{"camera_height_m": 0.3, **values})
    return yaml.safe_load(costmap_text(request))[name][name]["ros__parameters"]


def looking_at_box(height_m, floor_z=0.0):
    """T_odom_camera [4, 4] of a camera with optical axes, tilted towards the box."""
    down = np.arctan2(height_m - BOX_TOP / 2, BOX_X)
    forward = np.array([np.cos(down), 0, -np.sin(down)])
    right = np.array([0.0, -1.0, 0.0])
    T = np.eye(4)
    T[:3, :3] = np.stack([right, np.cross(forward, right), forward], 1)
    T[:3, 3] = 0, 0.025, floor_z + height_m
    return T


def depth_of(T_odom_camera, box, floor_z=0.0):
    """Depth [H, W] float32, m, of a floor and perhaps the front of a box, with 0.5 % noise."""
    v, u = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(K).T
    d, origin = rays @ T_odom_camera[:3, :3].T, T_odom_camera[:3, 3]
    down = np.minimum(d[..., 2], -1e-9)
    depth = np.where(d[..., 2] < 0, (floor_z - origin[2]) / down, np.inf)
    to_front = (BOX_X - BOX_SIDE / 2 - origin[0]) / d[..., 0]
    y, z = origin[1] + d[..., 1] * to_front, origin[2] + d[..., 2] * to_front - floor_z
    on_box = box & (np.abs(y) < BOX_SIDE / 2) & (z > 0) & (z < BOX_TOP)
    depth = np.where(on_box, to_front, depth)
    return (depth * np.random.default_rng(0).normal(1, 0.005, SIZE)).astype(np.float32)


def drive(model, T, box, stamp_s, floor_z=0.0):
    """Gives a costmap what the node makes of a frame; returns the costs."""
    seen = sight(depth_of(T, box, floor_z), K, T, ObstacleConfig(), floor_z)
    assert model.receive("/da3/points/obstacles", seen.marks, T, stamp_s) == 1
    assert model.receive("/da3/points/clearing", seen.clearing, T, stamp_s) == 1
    return model.update(stamp_s)


def polar(range_m, angle):
    """Points [N, 3] at the sensor's height."""
    return np.stack([range_m * np.cos(angle), range_m * np.sin(angle), 0 * angle], 1)


@pytest.mark.parametrize("height_m", HEIGHTS)
@pytest.mark.parametrize(("robot_m", "floor_z"), [(0.4, 0.0), (2.0, 0.0), (2.0, -0.6)])
def test_obstacles_mark_and_what_has_gone_is_cleared(height_m, robot_m, floor_z):
    """From a camera at any height, which therefore is inside the voxel grid."""
    values = {"robot_height_m": robot_m, "floor_z_m": floor_z}
    model = Costmap.from_parameters(parameters(camera_height_m=height_m, **values))
    T = looking_at_box(height_m, floor_z)
    costs = drive(model, T, box=True, stamp_s=0.0, floor_z=floor_z)
    front = [model.cost_at(BOX_X - BOX_SIDE / 2 + 0.02, y) for y in (-0.15, 0.0, 0.15)]
    assert front == [LETHAL] * 3
    assert (costs == LETHAL).sum() <= BOX_SIDE / 0.05 * 3  # noise spreads over three cells at most
    costs = drive(model, T, box=False, stamp_s=0.2, floor_z=floor_z)
    assert (costs == LETHAL).sum() == 0


@pytest.mark.parametrize("name", ["local_costmap", "global_costmap"])
@pytest.mark.parametrize("drift_m", [-1.0, -0.5, -0.2, 0.2])
def test_obstacles_mark_where_z_of_the_frame_has_drifted(name, drift_m):
    """By odometry in three dimensions, or a map that bends: heights are the node's own."""
    model = Costmap.from_parameters(parameters(name))
    if name == "global_costmap":
        model.receive_map("/da3/map/occupancy", np.full((400, 400), -1, np.int8), 0.05, (-10, -10))
    T = looking_at_box(0.3)
    drifted = T.copy()
    drifted[2, 3] += drift_m
    seen = sight(depth_of(T, box=True), K, T, ObstacleConfig())
    model.receive("/da3/points/obstacles", seen.marks, drifted, 0.0)
    model.update(0.0)
    front = [model.cost_at(BOX_X - BOX_SIDE / 2 + 0.02, y) for y in (-0.15, 0.0, 0.15)]
    assert front == [LETHAL] * 3


def test_what_is_marked_at_the_largest_range_is_cleared():
    """Nav2 ends rays two cells before their points, so the node's free rays go farther."""
    model = Costmap.from_parameters(parameters())
    T = np.eye(4)
    T[:3, 3] = 0, 0, 0.3
    most = ObstacleConfig().max_range
    range_m, angle = np.meshgrid(np.arange(most - 1, most, 0.02), np.arange(-0.1, 0.1, 0.002))
    marks = polar(range_m.ravel(), angle.ravel())
    model.receive("/da3/points/obstacles", marks, T, 0.0)
    model.update(0.0)
    assert all(model.cost_at(x, y) == LETHAL for x, y, _ in marks)
    free = polar(most + BEYOND, np.arange(-0.15, 0.15, 0.002))
    model.receive("/da3/points/obstacles", marks[:0], T, 0.1)
    model.receive("/da3/points/clearing", free, T, 0.1)
    assert (model.update(0.1) == LETHAL).sum() == 0


@pytest.mark.parametrize("height_m", HEIGHTS)
def test_the_floor_alone_is_free_in_the_global_costmap(height_m):
    model = Costmap.from_parameters(parameters("global_costmap", camera_height_m=height_m))
    unknown = np.full((400, 400), -1, np.int8)
    assert model.receive_map("/da3/map/occupancy", unknown, 0.05, (-10.0, -10.0)) == 1
    drive(model, looking_at_box(height_m), box=False, stamp_s=0.0)
    assert model.cost_at(BOX_X + 1, 0.0) == FREE
    assert (model.costs == LETHAL).sum() == 0
    assert not (model.costs == FREE).all()


@pytest.mark.parametrize("robot_m", [0.1, 0.8, 2.0, 3.3, 5.0])
def test_the_grid_holds_camera_and_robot_in_16_levels(robot_m):
    for camera_m in np.arange(0.02, 5.0, 0.07):
        levels = voxel_levels(camera_m, robot_m)
        assert levels.count <= 16
        assert levels.height_m >= 0.05
        assert levels.begin_m <= -0.05
        assert levels.end_m >= max(robot_m, camera_m + 0.1) - 1e-9


def test_a_lidars_layer_keeps_what_the_camera_clears():
    values = parameters()
    lidar = {
        "plugin": "nav2_costmap_2d::ObstacleLayer", "observation_sources": "scan",
        "scan": {"topic": "/scan", "max_obstacle_height": 2.0},
    }  # fmt: skip
    plugins = ["obstacle_layer", *values["plugins"]]
    model = Costmap.from_parameters({**values, "plugins": plugins, "obstacle_layer": lidar})
    T_odom_scan = np.eye(4)
    T_odom_scan[:3, 3] = 0, 0, 0.2
    model.receive_scan("/scan", Scan(np.array([2.0]), 0.0, 0.1, 0.1, 9.0), T_odom_scan, 0.0)
    drive(model, looking_at_box(0.3), box=False, stamp_s=0.1)
    assert model.cost_at(2.0, 0.0) == LETHAL


def test_without_clouds_the_costmap_is_not_current():
    model = Costmap.from_parameters(parameters())
    drive(model, looking_at_box(0.3), box=True, stamp_s=10.0)
    assert model.current
    model.update(13.0)
    assert not model.current


def test_stvl_clears_buffers_and_by_the_field_of_view_that_is_given():
    for name in ("local_costmap", "global_costmap"):
        layer = parameters(name, layer="stvl")["camera_layer"]
        assert layer["observation_sources"] == "obstacles"
        seen = parameters(name, layer="stvl", fov_deg=(90.0, 60.0))["camera_layer"]
        assert seen["observation_sources"] == "obstacles clearing"
        assert seen["clearing"]["horizontal_fov_angle"] == pytest.approx(np.pi / 2, abs=1e-4)
        assert seen["clearing"]["vertical_fov_angle"] == pytest.approx(np.pi / 3, abs=1e-4)
        assert seen["obstacles"]["clear_after_reading"]
        assert seen["clearing"]["clear_after_reading"]
        assert seen["track_unknown_space"] == (name == "global_costmap")


@pytest.mark.parametrize("name", ["local_costmap", "global_costmap"])
def test_each_camera_of_a_rig_marks_and_clears(name):
    model = Costmap.from_parameters(parameters(name, cameras=("front", "left")))
    if name == "global_costmap":
        model.receive_map("/da3/map/occupancy", np.full((400, 400), -1, np.int8), 0.05, (-10, -10))
    T = looking_at_box(0.3)
    for number, camera in enumerate(("front", "left")):
        for step, box in enumerate((True, False)):
            seen = sight(depth_of(T, box), K, T, ObstacleConfig())
            stamp_s = number + 0.2 * step
            for what, points in (("obstacles", seen.marks), ("clearing", seen.clearing)):
                assert model.receive(f"/da3/{camera}/points/{what}", points, T, stamp_s) == 1
            assert (model.update(stamp_s) == LETHAL).any() == box


def test_each_camera_of_a_rig_has_its_frustum():
    layer = parameters(layer="stvl", fov_deg=(90.0, 60.0), cameras=("front", "left"))[
        "camera_layer"
    ]
    names = layer["observation_sources"].split()
    assert names == ["front_obstacles", "front_clearing", "left_obstacles", "left_clearing"]
    assert {layer[n]["topic"] for n in names} == {
        "/da3/front/points/obstacles", "/da3/left/points/obstacles",
    }  # fmt: skip


# The file


def test_the_committed_file_is_what_the_command_writes(tmp_path):
    file = tmp_path / "nav2_costmap.yaml"
    assert main(["nav2-config", "--camera-height", "0.3", "--output", str(file)]) == 0
    assert WRITTEN.read_text() == file.read_text(), "run: make generated"
    assert max(map(len, file.read_text().splitlines())) <= 99


def test_options_change_topics_ranges_and_the_line_on_top(capsys):
    words = "--camera-height 1.5 --max-range 3 --robot-height 0.6 --node /robot/eye --cameras a b"
    assert main(["nav2-config", *words.split(" ")]) == 0
    text = capsys.readouterr().out
    assert f"da3_ros nav2-config {words}" in text
    layer = yaml.safe_load(text)["local_costmap"]["local_costmap"]["ros__parameters"]
    assert layer["width"] == 8
    source = layer["camera_layer"]["a_obstacles"]
    assert source["topic"] == "/robot/eye/a/points/obstacles"
    assert source["max_obstacle_height"] == 0.6
    assert 3.0 < source["obstacle_max_range"] < 5.0
    assert layer["camera_layer"]["b_clearing"]["raytrace_max_range"] > 3.0 + BEYOND


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--camera-height 0", "--camera-height 0: 0.02 to 5 m"),
        ("--camera-height nan", "--camera-height nan: 0.02 to 5 m"),
        ("--camera-height 1 --max-range inf", "--max-range inf: 0.5 to 50 m"),
        ("--camera-height 1 --robot-height -1", "--robot-height -1: 0.1 to 5 m"),
        ("--camera-height 1 --layer grid", "--layer 'grid': one of voxel, stvl"),
        ("--camera-height 1 --node da3", "--node 'da3': write the node's full name"),
        ("--camera-height 1 --node /a\n#", "--node '/a"),
        ("--camera-height 1 --layer stvl --fov 90", "--fov '90': write degrees as"),
        ("--camera-height 1 --layer stvl --fov 9x200", "--fov 200: 5 to 170 degrees"),
        ("--camera-height 1 --cameras a a", "--cameras 'a': names as in the node's cameras"),
        ("--camera-height 1 --cameras a/b", "--cameras 'a/b': names as in"),
        ("--camera-height 1 --fov 90x60", "--fov is for --layer stvl"),
    ],
)
def test_a_bad_argument_is_one_line(capsys, words, complaint):
    assert main(["nav2-config", *words.split(" ")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"da3_ros: {complaint}")


def test_a_file_that_cannot_be_written_is_one_line(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "nav2.yaml"
    assert main(["nav2-config", "--camera-height", "1", "--output", str(target)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written" in line
