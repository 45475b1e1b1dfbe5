"""Meshes by the live node's service, while its stream goes on."""

import os
import signal

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")
pytest.importorskip("skimage", reason="needs scikit-image: pip install scikit-image")

from support.node_process import (
    EXPORT,
    FILE,
    NODES,
    Rig,
    call_async,
    camera_frames,
    feed,
    values_of,
)

from da3_ros.cli import main

pytestmark = pytest.mark.process
TRIGGER = "std_srvs/srv/Trigger"
EXPORT_SCENE = "/da3/export_scene"
VOXEL = {"voxel_m": 0.125}  # exact in float32, the type of the field


def mesh_rig(tmp_path, **parameters):
    """A node that stores all frames and fuses surfaces when the file ``go`` is there."""
    every = {"keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "map.store": "night"}
    return Rig(
        export_dir=str(tmp_path), node=str(NODES / "mesh_node.py"), checkpoint="''",
        environment={"DA3_TEST_GO": str(tmp_path / "go")}, **{**every, **parameters},
    )  # fmt: skip


def percent(diagnostics):
    """The newest percentage; NaN: no mesh is made."""
    return float(values_of(diagnostics[-1])["mesh_percent"]) if diagnostics else float("nan")


def answered(rig, future):
    rig.until(future.done)
    return future.result()


@pytest.mark.long
def test_frames_flow_while_a_mesh_is_made(tmp_path):
    camera, frames = camera_frames(8)
    with mesh_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        feed(rig, camera, frames[:4], depths)
        mesh = call_async(rig, EXPORT, EXPORT_SCENE, path="room.mesh.ply", **VOXEL)
        rig.until(lambda: percent(diagnostics) == 40)
        before = len(depths)
        feed(rig, camera, frames[4:7], depths)
        assert len(depths) - before == 3  # published during the export
        assert not mesh.done()

        second = rig.call(EXPORT, EXPORT_SCENE, path="other.mesh.glb", **VOXEL)
        assert not second.success
        assert "room.mesh.ply is being made (40 %)" in second.message
        assert "\n" not in second.message
        assert rig.call(EXPORT, EXPORT_SCENE, path="points.ply").success  # others go on
        assert rig.call(FILE, "/da3/save_scene", path="saved").success

        (tmp_path / "go").write_text("")
        done = answered(rig, mesh)
        assert done.success, done.message
        assert "triangles in" in done.message
        assert done.path == str(tmp_path / "room.mesh.ply")
        assert done.bytes == (tmp_path / "room.mesh.ply").stat().st_size
        assert done.points > 100
        rig.until(lambda: percent(diagnostics) != 40)

        obj = rig.call(EXPORT, EXPORT_SCENE, path="room.obj", format="mesh", **VOXEL)
        assert obj.success, obj.message
        assert obj.points >= done.points / 2
        feed(rig, camera, frames[7:], depths)  # the recorder goes on
        last = rig.call(EXPORT, EXPORT_SCENE, path="last", format="mesh", **VOXEL)
        assert last.path == str(tmp_path / "last.mesh.glb")
        for path, words in (
            ("../x.mesh.glb", "outside export_dir"),
            ("x.mesh.stl", "unknown mesh format"),
            ("saved/x.mesh.glb", "saved scene"),
        ):
            refused = rig.call(EXPORT, EXPORT_SCENE, path=path, format="mesh", **VOXEL)
            assert not refused.success
            assert words in refused.message
            assert "\n" not in refused.message
    again = tmp_path / "again.mesh.glb"
    store = tmp_path / "night" / "000001"
    assert main(["export", str(store), str(again), "--voxel", "0.125"]) == 0
    assert again.read_bytes() == (tmp_path / "last.mesh.glb").read_bytes()


@pytest.mark.long
def test_a_reset_cancels_a_mesh(tmp_path):
    camera, frames = camera_frames(4)
    with mesh_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        feed(rig, camera, frames[:3], depths)
        mesh = call_async(rig, EXPORT, EXPORT_SCENE, path="room.mesh.glb", **VOXEL)
        rig.until(lambda: percent(diagnostics) == 40)
        assert rig.call(TRIGGER, "/da3/reset").success
        cancelled = answered(rig, mesh)
        assert not cancelled.success
        assert "cancelled by ~/reset" in cancelled.message
        (tmp_path / "go").write_text("")
        empty = rig.call(EXPORT, EXPORT_SCENE, path="room.mesh.glb", **VOXEL)
        assert not empty.success  # a new scene, without a surface
        feed(rig, camera, frames[3:], depths)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["go", "night"]


@pytest.mark.long
def test_a_caller_is_answered_when_the_node_ends(tmp_path):
    camera, frames = camera_frames(2)
    with mesh_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        feed(rig, camera, frames, depths)
        mesh = call_async(rig, EXPORT, EXPORT_SCENE, path="room.mesh.glb", **VOXEL)
        rig.until(lambda: percent(diagnostics) == 40)
        os.kill(rig.process.pid, signal.SIGTERM)
        ended = answered(rig, mesh)
        assert not ended.success
        assert "shutting down" in ended.message
        assert rig.process.wait(30.0) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["night"]


@pytest.mark.long
def test_without_a_store_one_line_names_the_remedy(tmp_path):
    camera, frames = camera_frames(1)
    with mesh_rig(tmp_path, **{"map.store": "''"}) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        refused = rig.call(EXPORT, EXPORT_SCENE, path="room.mesh.glb", **VOXEL)
        assert not refused.success
        assert "set the parameter map.store" in refused.message
        assert "\n" not in refused.message
    assert not list(tmp_path.iterdir())
