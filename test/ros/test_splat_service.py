"""Gaussians of the live node, by its service."""

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support.node_process import EXPORT, NODES, Rig, camera_frames, feed
from support.splats import read_glb, read_ply

from da3_ros.cli import main

pytestmark = pytest.mark.process
EXPORT_SCENE = "/da3/export_scene"
EVERY = {"keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "map.store": "night"}


@pytest.mark.long
def test_the_service_writes_what_the_command_writes(tmp_path):
    camera, frames = camera_frames(4)
    with Rig(export_dir=str(tmp_path), node=str(NODES / "splat_node.py"), model="da3-giant",
             **EVERY, **{"splats.enabled": True}) as rig:  # fmt: skip
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        done = rig.call(EXPORT, EXPORT_SCENE, path="room", format="splat")
        assert done.success, done.message
        assert "Gaussians in" in done.message
        assert done.path == str(tmp_path / "room.splat.ply")
        assert done.points == len(read_ply(done.path).means) > 1000
        assert done.bytes == (tmp_path / "room.splat.ply").stat().st_size
        glb = rig.call(EXPORT, EXPORT_SCENE, path="room.splat.glb", max_points=500)
        assert glb.success, glb.message
        assert len(read_glb(glb.path)[0].means) == 500
        for fields, words in (
            ({"path": "x.splat.obj"}, "NAME.splat.ply"),
            ({"path": "x.splat.ply", "voxel_m": 0.5}, "leave out voxel"),
            ({"path": "../x", "format": "splat"}, "outside export_dir"),
        ):
            refused = rig.call(EXPORT, EXPORT_SCENE, **fields)
            assert not refused.success
            assert words in refused.message
    again = tmp_path / "again.splat.ply"
    assert main(["export", str(tmp_path / "night" / "000001"), str(again)]) == 0
    assert again.read_bytes() == (tmp_path / "room.splat.ply").read_bytes()
