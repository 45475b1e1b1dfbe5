"""The occupancy grid of the live node: for late subscribers, after a reset, as a file."""

import importlib.util

import numpy as np
import pytest
from rclpy.qos import DurabilityPolicy, ReliabilityPolicy
from support import ros_testing as rt
from support.robot import Robot, run

MOUNT = np.array([[0.0, 0, 1, 0.1], [-1, 0, 0, 0], [0, -1, 0, 0.6], [0, 0, 0, 1]])
LEVEL = {"scale.source": "fixed", "base_frame": "base_link", "occupancy.updates": True}
GRID = "/da3/map/occupancy"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.slow
def test_the_grid_reaches_late_subscribers_and_follows_the_map(tmp_path):
    with Robot(export_dir=str(tmp_path), **LEVEL) as robot:
        robot.mount(MOUNT)
        run(robot, 4)
        if not importlib.util.find_spec("map_msgs"):
            assert "map_msgs is not installed" in robot.process.output()
        (endpoint,) = robot.node.get_publishers_info_by_topic(GRID)
        assert endpoint.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
        assert endpoint.qos_profile.reliability == ReliabilityPolicy.RELIABLE
        grids = robot.listen(GRID, "nav_msgs/msg/OccupancyGrid", rt.LATCHED)
        robot.until(lambda: grids)
        info = grids[0].info
        assert grids[0].header.frame_id == "map"
        assert info.resolution == np.float32(0.05)
        assert abs(info.origin.position.x / 0.05 - round(info.origin.position.x / 0.05)) < 1e-6
        assert info.origin.orientation.w == 1.0
        assert len(grids[0].data) == info.width * info.height
        assert {-1, 100} <= set(grids[0].data) <= {-1, 0, 100}
        done = robot.call("da3_ros/srv/ExportScene", "/da3/export_scene", path="room.pgm")
        assert done.success, done.message
        assert "cells in" in done.message
        assert {p.name for p in tmp_path.iterdir()} == {"room.pgm", "room.yaml"}
        assert robot.call("std_srvs/srv/Trigger", "/da3/reset").success
        robot.until(lambda: set(grids[-1].data) == {-1})
