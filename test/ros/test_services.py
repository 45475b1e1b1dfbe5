"""Scenes written, saved and loaded through the live node's services, while its stream goes on."""

import numpy as np
import pytest
from support import ros_testing as rt
from support.node_process import EXPORT, FILE, Rig, call_async, camera_frames, feed, waiting_rig

from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.submap_points import compact
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.mapping.voxel_map import PointCloud

pytestmark = pytest.mark.process


def large_scene(points):
    """A scene of one submap and one pose."""
    rng = np.random.default_rng(0)
    xyz = rng.uniform(-5, 5, (points, 3)).astype(np.float32)
    rgb = rng.integers(0, 256, (points, 3)).astype(np.uint8)
    cloud = compact(PointCloud(xyz, rgb, np.full(points, 2.0), np.ones(points)))
    place = Similarity(1.0, np.eye(3), np.zeros(3))
    pose = Pose(5, np.eye(4), np.diag([100.0, 100, 1]), (140, 112), True)
    return Snapshot((Submap(0, 0, place, cloud),), Poses.of([pose]), 0, False, np.eye(4))


def test_the_stream_goes_on_while_a_scene_is_written_as_it_was(tmp_path):
    camera, frames = camera_frames(4)
    with waiting_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames[:1], depths)
        export = call_async(rig, EXPORT, "/da3/export_scene", path="late.ply")
        rig.until(lambda: list(tmp_path.glob(".late-*")))  # it is being written
        rig.until(lambda: rig.status[-1].frames_processed == 1)
        points = rig.status[-1].map_points
        feed(rig, camera, frames[1:], depths)
        saved = call_async(rig, FILE, "/da3/save_scene", path="next")
        assert rig.call("std_srvs/srv/SetBool", "/da3/enable", data=False).success
        assert not export.done()
        assert not saved.done()
        (tmp_path / "go").write_text("")
        rig.until(lambda: export.done() and saved.done())
        assert export.result().points == points
        assert "4 poses" in saved.result().message


@pytest.mark.long
def test_a_node_that_ends_leaves_no_half_file(tmp_path):
    camera, frames = camera_frames(1)
    with waiting_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        call_async(rig, EXPORT, "/da3/export_scene", path="late.ply")
        rig.until(lambda: list(tmp_path.glob(".late-*")))
        assert rig.process.stop(timeout_s=30.0) == 0
    assert not list(tmp_path.iterdir())


def test_a_saved_scene_is_loaded_shown_and_gone_on_in(tmp_path):
    points = 20_000
    save_scene(large_scene(points), tmp_path / "large")
    camera, frames = camera_frames(2)
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        clouds = rig.listen("/da3/map/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        rig.ready()
        loaded = rig.call(FILE, "/da3/load_scene", path="large")
        assert loaded.success, loaded.message
        assert f"{points} points and 1 poses" in loaded.message
        assert "where the saved one ended" in loaded.message
        rig.until(lambda: rig.status[-1].map_points == points)
        rig.until(lambda: clouds and clouds[-1].width == points)
        feed(rig, camera, frames, depths)
        assert "and 3 poses" in rig.call(FILE, "/da3/save_scene", path="more").message
    assert {s.chain for s in load_scene(tmp_path / "more").submaps} == {0, 1}


@pytest.mark.long
def test_three_callers_at_once_are_answered_with_what_happened(tmp_path):
    camera, frames = camera_frames(4)
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames[:3], depths)
        calls = [
            call_async(rig, EXPORT, "/da3/export_scene", path="a.glb", include_cameras=True),
            call_async(rig, EXPORT, "/da3/export_scene", path="a", format="colmap"),
            call_async(rig, FILE, "/da3/save_scene", path="scenes/a"),
            call_async(rig, FILE, "/da3/save_scene", path="../a"),
        ]
        rig.until(lambda: all(call.done() for call in calls))
        glb, colmap, saved, refused = (call.result() for call in calls)
        feed(rig, camera, frames[3:], depths)
    for answer, path in ((glb, "a.glb"), (colmap, "a")):
        assert answer.success, answer.message
        assert answer.path == str(tmp_path / path)
        assert answer.points > 100
    files = [f for f in (tmp_path / "a").rglob("*") if f.is_file()]
    assert colmap.bytes == sum(f.stat().st_size for f in files)
    assert len(list((tmp_path / "a" / "images").iterdir())) > 0
    assert saved.success
    assert f"{glb.points} points and 3 poses in {tmp_path / 'scenes' / 'a'}" in saved.message
    assert len(load_scene(tmp_path / "scenes" / "a").poses) == 3
    assert not refused.success
    assert "is outside export_dir" in refused.message


def test_every_caller_of_a_burst_is_answered(tmp_path):
    """The client's own queue bounds a burst, too: its default is 10."""
    camera, frames = camera_frames(1)
    save_scene(large_scene(100), tmp_path / "kept")
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        export, load = (
            rig.node.create_client(rt.RclpyLibrary().type(kind), name, qos_profile=rt.RELIABLE)
            for kind, name in ((EXPORT, "/da3/export_scene"), (FILE, "/da3/load_scene"))
        )
        rig.until(lambda: export.service_is_ready() and load.service_is_ready())
        calls = [
            export.call_async(export.srv_type.Request(path=f"{n}.ply")) for n in range(60)
        ] + [load.call_async(load.srv_type.Request(path="kept")) for _ in range(5)]
        rig.until(lambda: all(call.done() for call in calls))
        assert all(call.result().success for call in calls)


@pytest.mark.long
def test_a_saved_scene_is_kept_free_of_other_things(tmp_path):
    camera, frames = camera_frames(1)
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        assert rig.call(FILE, "/da3/save_scene", path="s").success
        for kind, name, path in (
            (EXPORT, "export_scene", "s/x.ply"),
            (EXPORT, "export_scene", "s/deeper/x.glb"),
            (FILE, "save_scene", "s/inner"),
        ):
            refused = rig.call(kind, f"/da3/{name}", path=path)
            assert not refused.success
            assert f"is inside the saved scene {tmp_path / 's'}" in refused.message
        assert rig.call(EXPORT, "/da3/export_scene", path="s.ply").success
        assert rig.call(FILE, "/da3/save_scene", path="s").success


@pytest.mark.long
@pytest.mark.parametrize("kind", ["foreign", "none", "file"])
def test_what_is_no_scene_changes_nothing(tmp_path, kind):
    camera, frames = camera_frames(2)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "scene.json").write_text("{}")
    (tmp_path / "file").write_text("")
    words = {"none": "scene.da3k is missing", "foreign": "not from da3_ros", "file": "is a file"}
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        answer = rig.call(FILE, "/da3/load_scene", path=kind)
        assert not answer.success
        assert words[kind] in answer.message
        saved = rig.call(FILE, "/da3/save_scene", path="kept")
        assert "and 2 poses" in saved.message


@pytest.mark.long
def test_the_map_on_show_is_the_newest_and_is_emptied_with_it(tmp_path):
    camera, frames = camera_frames(5)
    with Rig(export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        clouds = rig.listen("/da3/map/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        rig.ready()
        for frame in frames:  # faster than the map is shown
            rig.show(camera, frame)
            rt.spin_until(rig.node, lambda: False, 0.05)
        rig.until(lambda: depths and rt.stamp_ns(depths[-1]) == frames[-1].stamp_ns)
        points = rig.call(EXPORT, "/da3/export_scene", path="a.ply").points
        # No frame comes any more: what the throttle held back is shown all the same.
        rig.until(lambda: clouds and clouds[-1].width == points > 100)
        assert clouds[-1].header.frame_id == "map"
        assert rig.call("std_srvs/srv/Trigger", "/da3/reset").success
        rig.until(lambda: clouds[-1].width == 0)
