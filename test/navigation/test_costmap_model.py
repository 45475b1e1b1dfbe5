"""The model of Nav2's costmap (support/costmap.py) obeys the rules of Nav2's source."""

import numpy as np
import pytest
from support.costmap import (
    FREE,
    FREE_VOXEL,
    LETHAL,
    MARKED_VOXEL,
    UNKNOWN,
    Costmap,
    Scan,
    cells_on_lines,
)

H_M = 0.5  # of the camera
OBSTACLE = (1.525, 0.025, 0.525)  # middle of a cell, m
BEHIND = (3.0, 0.025, 0.525)  # a ray to it passes the obstacle's voxel
FLOOR_BEHIND = (3.0, 0.025, 0.0)
SOURCE = {"data_type": "PointCloud2", "max_obstacle_height": 2.0, "obstacle_max_range": 5.0,
          "raytrace_max_range": 5.0}  # fmt: skip


def source(topic, **values):
    return {"topic": topic, "marking": False, **SOURCE, **values}


MARK = source("marking", marking=True)
CLEAR = source("clearing", clearing=True)


def layer(plugin="ObstacleLayer", sources=None, **values):
    sources = {"marking": MARK, "clearing": CLEAR} if sources is None else sources
    voxels = {"z_voxels": 16, "z_resolution": 0.05} if plugin == "VoxelLayer" else {}
    return {
        "plugin": f"nav2_costmap_2d::{plugin}", "observation_sources": " ".join(sources),
        **sources, **voxels, **values,
    }  # fmt: skip


def costmap(layers, **values):
    """Ten metres by ten around the origin, in cells of 5 cm, some of which have layers."""
    return Costmap.from_parameters(
        {"width": 10, "height": 10, "resolution": 0.05, "origin_x": -5.0, "origin_y": -5.0,
         "plugins": list(layers), **layers, **values}
    )  # fmt: skip


def pose(x=0.0, y=0.025, z=H_M):
    """Sensor without rotation, so that clouds are in the global frame but for its place."""
    T = np.eye(4)
    T[:3, 3] = x, y, z
    return T


def send(model, topic, *points, T=None, now=0.0):
    """Gives points of the global frame as a cloud of the sensor's frame."""
    T = pose() if T is None else T
    cloud = (np.array(points, np.float32).reshape(-1, 3) - T[:3, 3]).astype(np.float32)
    assert model.receive(topic, cloud, T, now)
    return model.update(now)


def cost(model, point=OBSTACLE):
    return model.cost_at(*point[:2])


# What counts of a cloud


def test_a_banded_source_cannot_clear_by_floor_points():
    """Its band is cut before clearing, so the floor behind what has gone clears nothing."""
    one = source("all", marking=True, clearing=True, min_obstacle_height=0.1)
    for plugin in ("ObstacleLayer", "VoxelLayer"):
        model = costmap({"a": layer(plugin, {"all": one})})
        send(model, "all", OBSTACLE)
        assert cost(model) == LETHAL
        send(model, "all", FLOOR_BEHIND)
        assert cost(model) == LETHAL
        send(model, "all", BEHIND)
        assert cost(model) == FREE


def test_a_source_without_heights_drops_all():
    values = {k: v for k, v in MARK.items() if k != "max_obstacle_height"}
    model = costmap({"a": layer(sources={"marking": values})})
    assert (send(model, "marking", OBSTACLE) == FREE).all()


def test_nan_and_inf_mark_and_clear_nothing():
    model = costmap({"a": layer()})
    send(model, "marking", OBSTACLE, (np.nan, 0, 0.5), (1.0, 0, np.nan), (np.inf, 0.0, 0.5))
    assert (model.costs == LETHAL).sum() == 1
    send(model, "clearing", (np.inf, 0.025, 0.5), (3.0, np.nan, 0.5))
    assert cost(model) == LETHAL


def test_the_last_cloud_counts_until_the_next_comes():
    """Without persistence, so a camera without obstacles has to send empty clouds."""
    model = costmap({"a": layer()})
    send(model, "marking", OBSTACLE)
    model.layers[0].costs[:] = FREE
    assert model.update(1000.0).max() == LETHAL
    model.layers[0].costs[:] = FREE
    assert send(model, "marking", now=1001.0).max() == FREE


def test_persistence_keeps_clouds_by_their_stamps():
    kept = {"marking": {**MARK, "observation_persistence": 1.0}}
    model = costmap({"a": layer(sources=kept)})
    for stamp, y in ((0.0, 0.025), (0.8, 1.025)):
        send(model, "marking", (1.5, y, 0.5), now=stamp)
    layer_a = model.layers[0]
    layer_a.costs[:] = FREE
    assert (model.update(0.9) == LETHAL).sum() == 2
    layer_a.costs[:] = FREE
    assert (model.update(1.5) == LETHAL).sum() == 1


def test_a_late_source_makes_the_costmap_not_current():
    model = costmap({"a": layer(sources={"marking": {**MARK, "expected_update_rate": 1.0}})})
    send(model, "marking", now=5.0)
    assert model.current
    model.update(6.5)
    assert not model.current


@pytest.mark.parametrize(("plugin", "expected"), [("ObstacleLayer", LETHAL), ("VoxelLayer", FREE)])
def test_a_late_marking_source_stops_clearing_in_a_flat_layer(plugin, expected):
    sources = {"marking": {**MARK, "expected_update_rate": 1.0}, "clearing": CLEAR}
    model = costmap({"a": layer(plugin, sources)})
    send(model, "marking", OBSTACLE)
    send(model, "marking")
    send(model, "clearing", BEHIND, now=2.0)
    assert cost(model) == expected


def test_rays_begin_where_the_sensor_frame_is():
    """A cloud that comes in another frame than the camera's clears from a wrong place."""
    named = {"marking": MARK, "clearing": {**CLEAR, "sensor_frame": "camera"}}
    model = costmap({"a": layer(sources=named)})
    send(model, "marking", OBSTACLE)
    send(model, "marking")
    cloud = np.array([BEHIND], np.float32)
    model.receive("clearing", cloud, np.eye(4), 0.0, T_global_sensor=pose(y=2.0))
    model.update(0.0)
    assert cost(model) == LETHAL
    model.receive("clearing", cloud, np.eye(4), 0.0, T_global_sensor=pose())
    model.update(0.0)
    assert cost(model) == FREE


@pytest.mark.parametrize("plugin", ["ObstacleLayer", "VoxelLayer"])
@pytest.mark.parametrize(
    ("limits", "marked"),
    [
        ({"obstacle_max_range": 1.4}, False), ({"obstacle_max_range": 1.6}, True),
        ({"obstacle_min_range": 1.6}, False), ({"obstacle_min_range": 1.4}, True),
    ],
)  # fmt: skip
def test_ranges_limit_what_is_marked(plugin, limits, marked):
    model = costmap({"a": layer(plugin, {"marking": {**MARK, **limits}})})
    send(model, "marking", OBSTACLE)
    assert (cost(model) == LETHAL) == marked


@pytest.mark.parametrize("plugin", ["ObstacleLayer", "VoxelLayer"])
@pytest.mark.parametrize(
    ("limits", "cleared"),
    [
        ({"raytrace_max_range": 1.4}, False), ({"raytrace_max_range": 1.6}, True),
        ({"raytrace_min_range": 1.6}, False), ({"raytrace_min_range": 1.4}, True),
    ],
)  # fmt: skip
def test_ranges_limit_what_is_cleared(plugin, limits, cleared):
    sources = {"marking": MARK, "clearing": {**CLEAR, **limits}}
    model = costmap({"a": layer(plugin, sources)})
    send(model, "marking", OBSTACLE)
    send(model, "marking")
    send(model, "clearing", BEHIND)
    assert (cost(model) == FREE) == cleared


def test_the_layers_own_band_limits_marking_alone():
    model = costmap({"a": layer(max_obstacle_height=0.4)})
    send(model, "marking", OBSTACLE, (1.525, 0.025, 0.3))
    assert (model.costs == LETHAL).sum() == 1
    send(model, "marking")
    send(model, "clearing", BEHIND)
    assert cost(model) == FREE


# Two dimensions and three


def test_a_flat_layer_clears_below_a_ray_and_a_voxel_layer_does_not():
    """A ray over a low box reaches the wall: the box's cell is passed, its voxels are not."""
    box, wall = (1.525, 0.025, 0.1), (3.0, 0.025, 0.6)
    for plugin, expected in (("ObstacleLayer", FREE), ("VoxelLayer", LETHAL)):
        model = costmap({"a": layer(plugin)})
        send(model, "marking", box)
        send(model, "marking")
        send(model, "clearing", wall)
        assert cost(model) == expected


def test_a_voxel_layers_rays_end_two_cells_before_their_points():
    model = costmap({"a": layer("VoxelLayer")})
    xs = np.arange(0.025, 3.0, 0.05)
    model.receive("marking", np.stack([xs, 0 * xs, 0 * xs], 1), pose(), 0.0)
    model.update(0.0)
    send(model, "marking")
    send(model, "clearing", (2.025, 0.025, H_M))
    free = [x for x in xs if model.cost_at(x, 0.025) == FREE]
    assert max(free) == pytest.approx(1.925)


def test_a_camera_above_the_grid_clears_nothing_but_marks():
    """The tutorial's grid of 16 levels of 5 cm ends at 0.8 m."""
    for height, expected in ((0.79, FREE), (0.81, LETHAL)):
        model = costmap({"a": layer("VoxelLayer")})
        send(model, "marking", OBSTACLE, T=pose(z=height))
        assert cost(model) == LETHAL
        send(model, "marking", T=pose(z=height))
        ray = np.array(OBSTACLE) + (np.array(OBSTACLE) - pose(z=height)[:3, 3]) / 3
        send(model, "clearing", ray, T=pose(z=height))
        assert cost(model) == expected


def test_a_voxel_layer_has_at_most_16_levels():
    """More are taken from the file, but nothing is marked in them, and no ray ends there."""
    model = costmap({"a": layer("VoxelLayer", z_voxels=20)})
    send(model, "marking", (1.525, 0.025, 0.79), (2.525, 0.025, 0.81))
    assert [cost(model, (x, 0.025)) for x in (1.525, 2.525)] == [LETHAL, FREE]


def test_points_below_the_grid_mark_its_lowest_level():
    low = {"marking": {**MARK, "min_obstacle_height": -1.0}}
    model = costmap({"a": layer("VoxelLayer", low, origin_z=0.0, min_obstacle_height=-1.0)})
    send(model, "marking", (1.525, 0.025, -0.2))
    assert cost(model) == LETHAL
    assert model.layers[0].voxels[0].max() == MARKED_VOXEL


def test_a_column_is_free_when_few_enough_of_its_voxels_are_marked():
    for threshold, expected in ((0, LETHAL), (1, FREE)):
        model = costmap({"a": layer("VoxelLayer", mark_threshold=threshold)})
        send(model, "marking", OBSTACLE, (1.525, 0.025, 0.325), (1.525, 0.025, 0.225))
        assert cost(model) == LETHAL
        send(model, "marking")
        for z in (0.525, 0.325):  # two of three voxels are passed
            send(model, "clearing", (3.0, 0.025, z), T=pose(z=z))
        assert cost(model) == expected


@pytest.mark.parametrize(
    ("threshold", "levels", "expected"),
    [(15, 16, FREE), (14, 16, UNKNOWN), (8, 10, UNKNOWN), (9, 10, FREE), (3, 20, FREE)],
)
def test_a_column_with_many_unknown_voxels_is_unknown(threshold, levels, expected):
    values = {"unknown_threshold": threshold, "z_voxels": levels, "z_resolution": 0.06}
    model = costmap({"a": layer("VoxelLayer", **values)}, track_unknown_space=True)
    assert (model.update(0.0) == UNKNOWN).all()
    send(model, "clearing", BEHIND)
    assert cost(model) == expected


def test_rays_that_leave_the_grid_are_cut_at_its_border():
    every = {"clearing": {**CLEAR, "min_obstacle_height": -9.0, "max_obstacle_height": 9.0}}
    model = costmap({"a": layer("VoxelLayer", every)})
    ends = [(20.0, 0.025, 0.5), (3.0, 0.025, -0.5), (3.0, 0.025, 5.0), (-1.0, -30.0, 0.4)]
    send(model, "clearing", *ends)
    free = model.layers[0].voxels == FREE_VOXEL
    assert free.any(axis=(1, 2)).all()


def test_a_ray_that_leaves_by_the_side_clears_to_the_last_cell():
    """A step back from the border, without which Humble loses some by rounding."""
    model = costmap({"a": layer("VoxelLayer")}, width=8, height=8)
    send(model, "clearing", (9.0, 0.025, H_M))
    assert (model.layers[0].voxels[:, 100, -1] == FREE_VOXEL).any()


@pytest.mark.parametrize(("threshold", "expected"), [(0, LETHAL), (1, FREE)])
def test_a_column_is_marked_when_enough_of_its_voxels_are(threshold, expected):
    model = costmap({"a": layer("VoxelLayer", mark_threshold=threshold)})
    send(model, "marking", OBSTACLE, OBSTACLE)
    assert cost(model) == expected
    send(model, "marking", OBSTACLE, (1.525, 0.025, 0.325))
    assert cost(model) == LETHAL


# Several layers


def lidar_and_camera(method, same_layer):
    lidar = {**MARK, "topic": "scan", "data_type": "LaserScan"}
    camera = {"clearing": CLEAR}
    if same_layer:
        return costmap({"a": layer(sources={"scan": lidar, **camera})})
    layers = {
        "a": layer(sources={"scan": lidar}),
        "b": layer(sources=camera, combination_method=method),
    }
    return costmap(layers, track_unknown_space=True)


@pytest.mark.parametrize(
    ("method", "same_layer", "expected"),
    [(1, True, FREE), (1, False, LETHAL), (0, False, FREE), (2, False, LETHAL)],
)
def test_a_camera_clears_what_a_lidar_marked_in_one_layer(method, same_layer, expected):
    """A layer of its own, combined by maximum (1), leaves the lidar's obstacles."""
    model = lidar_and_camera(method, same_layer)
    scan = Scan(np.array([1.525], np.float32), 0.0, 0.1, 0.1, 5.0)
    assert model.receive_scan("scan", scan, pose(), 0.0) == 1
    model.update(0.0)
    assert cost(model) == LETHAL
    empty = Scan(np.array([np.nan], np.float32), 0.0, 0.1, 0.1, 5.0)
    model.receive_scan("scan", empty, pose(), 0.1)
    send(model, "clearing", BEHIND, now=0.1)
    assert cost(model) == expected


def test_an_inf_clears_where_it_is_valid_and_marks_at_the_end():
    """A scan's +Inf becomes a point at ``range_max``: within ``obstacle_max_range`` it marks."""
    for valid, far, expected in ((False, 5.0, 0), (True, 5.0, 1), (True, 2.9, 0)):
        values = {**MARK, "clearing": True, "data_type": "LaserScan", "inf_is_valid": valid,
                  "obstacle_max_range": far}  # fmt: skip
        model = costmap({"a": layer(sources={"marking": values})}, track_unknown_space=True)
        inf = Scan(np.array([np.inf], np.float32), 0.0, 0.1, 0.1, 3.0)
        model.receive_scan("marking", inf, pose(), 0.0)
        model.update(0.0)
        assert (model.costs == LETHAL).sum() == expected
        assert (cost(model) == FREE) == valid


def test_a_new_size_of_the_map_forgets_what_was_marked():
    static = {"plugin": "nav2_costmap_2d::StaticLayer", "map_topic": "occupancy"}
    model = costmap({"s": static, "a": layer("VoxelLayer")}, track_unknown_space=True)
    occupancy = np.full((200, 200), -1, np.int8)
    occupancy[0, :2] = 0, 100
    assert model.receive_map("occupancy", occupancy, 0.05, (-5.0, -5.0)) == 1
    send(model, "marking", OBSTACLE)
    assert cost(model) == LETHAL
    assert list(model.costs[0, :3]) == [FREE, LETHAL, UNKNOWN]
    send(model, "marking")
    model.receive_map("occupancy", occupancy, 0.05, (-5.0, -5.0))
    model.update(0.0)
    assert cost(model) == LETHAL
    model.receive_map("occupancy", np.full((220, 220), -1, np.int8), 0.05, (-5.5, -5.5))
    model.update(0.0)
    assert cost(model) == UNKNOWN


def test_a_rolling_window_keeps_what_stays_in_it():
    model = costmap({"a": layer("VoxelLayer")}, rolling_window=True, width=4, height=4)
    model.update(0.0, (0.0, 0.0))
    send(model, "marking", OBSTACLE)
    before = model.layers[0].voxels.copy()
    send(model, "marking")
    model.update(0.0, (0.5, -0.25))
    assert cost(model) == LETHAL
    model.update(0.0, (-3.0, 0.0))
    model.update(0.0, (0.0, 0.0))
    assert (model.costs == FREE).all()
    assert before.max() == MARKED_VOXEL > model.layers[0].voxels.max()


# Parameters and lines


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"max_obstacle_hight": 2.0}, "max_obstacle_hight"),
        ({"max_obstacle_height": 2}, "float"),
        ({"clearing": 1.0}, "bool"),
    ],
)
def test_a_parameter_that_nav2_has_not_is_refused(values, word):
    with pytest.raises(ValueError, match=word):
        costmap({"a": layer(sources={"marking": {**MARK, **values}})})


def bresenham(first, last, steps):
    """The loop of voxel_grid.hpp's bresenham3D: errors that are added up."""
    d = [b - a for a, b in zip(first, last, strict=True)]
    n = max(map(abs, d))
    position, errors, out = list(first), [n // 2] * len(d), []
    for _ in range(min(steps, n)):
        out.append(tuple(position))
        for axis, size in enumerate(d):
            errors[axis] += abs(size)
            if errors[axis] >= n:
                position[axis] += 1 if size > 0 else -1
                errors[axis] -= n
    return [*out, tuple(position)]


@pytest.mark.parametrize("dimensions", [2, 3])
def test_lines_pass_the_cells_of_the_loop_that_adds_errors(dimensions):
    random = np.random.default_rng(0)
    first = random.integers(0, 60, (300, dimensions))
    last = random.integers(0, 60, (300, dimensions))
    last[0] = first[0]
    scale = random.uniform(0, 1.2, 300).clip(max=1)
    for a, b, part in zip(first, last, scale, strict=True):
        expected = bresenham(a, b, int(part * np.abs(b - a).max()))
        found = cells_on_lines(a[None], b[None], np.array([part]))
        assert [tuple(c) for c in found] == expected
    together = cells_on_lines(first, last, scale)
    assert len(together) == sum(
        int(s * np.abs(b - a).max()) + 1 for a, b, s in zip(first, last, scale, strict=True)
    )
