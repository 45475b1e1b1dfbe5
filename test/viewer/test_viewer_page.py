"""What messages make of the page: nodes of viser's own server, without a browser."""

import time

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.scenes import frame, pose, store

pytest.importorskip("viser")

import websockets.asyncio.server as web
from support.viewers import OFFERED, free_port, tracked

from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.graph_solution import Correction
from da3_ros.mapping.pose_graph import Edge
from da3_ros.viewer.encode import frame_message, map_message
from da3_ros.viewer.feed import Offered
from da3_ros.viewer.map_reader import MapReader
from da3_ros.viewer.page import EMPTY, Page
from da3_ros.viewer.server import PortError, check_protected, open_server
from da3_ros.viewer.wire import ViewerMessage

SCENES = Offered("title", ["map", "other"], ["left", "right"], (0.1, 10.0))


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(web, "serve", web.serve)  # restored at the end
    server = open_server("127.0.0.1", free_port(), exact=True)
    yield server
    server.stop()


@pytest.fixture
def page(server):
    asked = []
    page = Page(server, SCENES.message(), lambda name, values: asked.append((name, values)))
    page.asked = asked
    return page


def walked():
    """A map of three submaps, of which the middle one was turned, moved and made larger."""
    held = store()
    for i in range(40):
        held.add_frame(frame(i, pose(0.3 * i, turn_deg=2.0 * i), seed=i))
    here = held.table.T_map_local
    R = Rotation.from_euler("xyz", [20, 30, 40], degrees=True).as_matrix()
    moved = Similarity(1.3, R, np.array([1.0, 2.0, 3.0]))
    held.table.correct(Correction({1: moved}, here, here))
    held.table.edges.append(Edge(0, 2, here, np.full(3, 0.1), loop=True))
    return held


def show(page, held, scene="map"):
    update = MapReader(10**6).update(held, T_ROS_MAP)
    page.take(map_message(scene, update))
    return update


def in_map(handle):
    R = Rotation.from_quat(np.roll(handle.wxyz, -1)).as_matrix()
    return handle.scale * np.asarray(handle.points, float) @ R.T + handle.position


def test_points_stand_where_their_submaps_are(page):
    held = walked()
    show(page, held)
    nodes = page.scenes["map"]._submaps
    assert set(nodes) == {0, 1, 2}
    for id, submap in held.submaps.items():
        true = held.view.submap_poses[id].points(held.points.cloud_of(submap).xyz)
        np.testing.assert_allclose(in_map(nodes[id].handle), true, atol=0.02)
        assert 0 < nodes[id].handle.point_size < 1
    ros = page.scenes["map"]._map
    R = Rotation.from_quat(np.roll(ros.wxyz, -1)).as_matrix()
    np.testing.assert_allclose(R, T_ROS_MAP[:3, :3], atol=1e-9)


def test_path_keyframes_and_loops_are_lines_in_the_axes_of_ros(page):
    held = walked()
    update = show(page, held)
    lines = page.scenes["map"]._lines
    to_ros = T_ROS_MAP[:3, :3].T
    centres = update.path.poses.rows["T"][:, :, 3] @ to_ros
    path = np.stack((centres[:-1], centres[1:]), axis=1)
    np.testing.assert_allclose(lines["path"].points, path, atol=1e-5)
    assert len(lines["keyframes"].points) == 8 * 40
    np.testing.assert_allclose(
        lines["keyframes"].points.reshape(40, 8, 2, 3)[:, 0, 0], centres, atol=1e-5
    )
    ends = np.array([held.view.submap_poses[id].t for id in (0, 2)]) @ to_ros
    np.testing.assert_allclose(lines["loops"].points, [ends], atol=1e-5)


def test_boxes_show_and_hide_parts(page):
    show(page, walked())
    page.take(frame_message("map", tracked(1, np.eye(4), "left"), T_ROS_MAP, None, (0.1, 9.0)))
    scene, shown = page.scenes["map"], page.shown
    parts = {
        "points": scene._points, "path": scene._lines["path"], "loops": scene._lines["loops"],
        "keyframes": scene._lines["keyframes"], "cameras": scene._cameras["left"],
    }  # fmt: skip
    for name, handle in parts.items():
        assert handle.visible
        getattr(shown, name).value = False
        assert not handle.visible, name
        getattr(shown, name).value = True
        assert handle.visible, name
    before = scene._submaps[0].handle.point_size
    shown.point_size.value = 2.0
    assert scene._submaps[0].handle.point_size == pytest.approx(2 * before)


def test_a_camera_is_at_its_pose_and_hidden_without_one(page):
    show(page, walked())
    T = pose(1.0, 2.0, 30.0)
    page.take(frame_message("map", tracked(1, T, "left"), T_ROS_MAP, None, (0.1, 9.0)))
    camera = page.scenes["map"]._cameras["left"]
    np.testing.assert_allclose(camera.position, (T_ROS_MAP @ T)[:3, 3])
    assert camera.visible
    assert camera.image.shape[1] == 420
    lost = np.full((4, 4), np.nan)
    page.take(frame_message("map", tracked(2, lost, "left"), T_ROS_MAP, None, (0.1, 9.0)))
    assert not camera.visible
    page.take(frame_message("map", tracked(3, lost, "right"), T_ROS_MAP, None, (0.1, 9.0)))
    assert "right" not in page.scenes["map"]._cameras


def test_pictures_are_those_of_the_chosen_camera(page):
    for n, camera in enumerate(("left", "right")):
        one = tracked(10**9 * (n + 1), np.eye(4), camera)
        page.take(frame_message("map", one, T_ROS_MAP, None, (0.1, 9.0), "a note"))
    assert "Stamp 1.000 s" in page._caption.content
    assert "a note" in page._caption.content
    page._camera.value = "right"
    assert "Stamp 2.000 s" in page._caption.content


def test_one_scene_is_shown_at_a_time(page):
    show(page, walked())
    show(page, walked(), "other")
    assert page.scenes["map"].root.visible
    assert not page.scenes["other"].root.visible
    page._scene.value = "other"
    assert not page.scenes["map"].root.visible
    assert page.scenes["other"].root.visible


def test_another_map_begins_with_an_empty_page(page):
    show(page, walked())
    page.take(frame_message("map", tracked(1, np.eye(4), "left"), T_ROS_MAP, None, (0.1, 9.0)))
    handles = [*page.scenes["map"]._lines.values(), *page.scenes["map"]._cameras.values()]
    page.take(ViewerMessage("anew", {"scene": "map"}))
    assert all(handle._impl.removed for handle in handles)
    scene = page.scenes["map"]
    assert not any((scene._submaps, scene._lines, scene._cameras, scene.size))
    assert (page._image.image == EMPTY).all()
    assert "no frame yet" in page._caption.content
    show(page, walked())
    assert set(scene._submaps) == {0, 1, 2}


def test_viewpoints_see_the_scene(page):
    show(page, walked())
    scene = page.scenes["map"]
    above = scene.viewpoint(above=True) - scene.centre
    assert above[2] > scene.size
    assert np.linalg.norm(above[:2]) < 0.01 * scene.size
    behind = scene.viewpoint(above=False) - scene.centre
    assert behind[2] > 0
    forward = T_ROS_MAP[:3, :3] @ np.array([0, 0, 1.0])  # of the first camera
    assert behind @ forward < 0


def test_state_and_components_are_told(page):
    update = MapReader(10**6).update(walked(), T_ROS_MAP)
    message = map_message("map", update)
    page.take(ViewerMessage("map", {**message.values, "unconnected": 2}, message.arrays))
    page.take(ViewerMessage("state", {"state": "active"}))
    assert "active" in page._state.content
    assert "2 components are not shown" in page._state.content


def test_nothing_leaves_this_machine(server):
    assert server.request_share_url() is None


def test_a_server_without_the_check_is_refused():
    import viser

    open_to_all = viser.ViserServer(host="127.0.0.1", port=free_port(), verbose=False)
    try:
        with pytest.raises(PortError, match="other sites"):
            check_protected("127.0.0.1", open_to_all.get_port())
    finally:
        open_to_all.stop()


def test_values_in_force_are_no_wishes_of_a_user(server):
    setting = {"name": "mode", "value": "mapping", "text": "", "low": None, "high": None,
               "choices": ["mapping", "localization"]}  # fmt: skip
    span = setting | {"name": "depth.color_range_m", "value": [0.3, 10.0], "choices": []}
    controls = {"suffixes": [".glb"], "settings": [setting, span]}
    offered = Offered("title", ["map"], [""], (0.1, 9.0), controls)
    asked = []
    page = Page(server, offered.message(), lambda *command: asked.append(command))
    in_force = {"mode": "localization", "depth.color_range_m": [0.5, 4.0], "unknown": 3}
    values = {"enabled": False, "parameters": in_force}
    page.take(ViewerMessage("settings", values))
    time.sleep(0.2)
    assert page._controls._fields["mode"].value == "localization"
    assert page._controls._fields["depth.color_range_m"].value == (0.5, 4.0)
    assert page._controls._enabled.value is False
    assert not asked
    assert OFFERED.message().values["controls"] is None
