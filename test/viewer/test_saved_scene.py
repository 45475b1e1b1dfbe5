"""A saved scene in the viewer."""

import socket

import numpy as np
import pytest
from support.scenes import frame, full_store, pose, store
from support.stored_walls import SIZE, write_walls

from da3_ros.cli import main
from da3_ros.export.checked_files import SceneFileError
from da3_ros.export.scene_file import save_scene, write_scene
from da3_ros.mapping.submaps import SubmapStore
from da3_ros.viewer.saved_scene import SavedSceneView, keyframe_source


def view_of(held: SubmapStore, folder):
    save_scene(held.snapshot(), folder)
    return SavedSceneView(folder)


def test_the_first_component_of_a_scene_is_shown_and_its_state_is_told(tmp_path):
    with view_of(full_store(), tmp_path / "scene") as view:
        assert view.keyframes == 0
        values = view.values()
        assert values["map_points"] == str(len(view.store))
        assert values["parts"] == "2"
        assert values["scale_source"] == "unknown"
        assert keyframe_source(view)(0) == "this keyframe cannot be shown: there are none"


def test_a_metric_scene_says_so(tmp_path):
    held = store()
    held.add_frame(frame(0, pose()))
    save_scene(held.snapshot(metric=True), tmp_path / "scene")
    with SavedSceneView(tmp_path / "scene") as view:
        assert view.values()["scale_source"] == "lengths are metres"


def test_keyframes_come_with_depth_and_pose_in_the_map_and_only_those_of_the_shown_component(
    tmp_path,
):
    held = store()
    for i in range(20):
        held.add_frame(frame(i, pose(0.3 * i), seed=i))
    held.start_chain()
    held.add_frame(frame(50, pose(1.0), seed=50))
    folder = write_walls(tmp_path / "scene", count=5)
    write_scene(held.snapshot(), folder)
    with SavedSceneView(folder) as view:
        assert view.keyframes == 5  # all are of submap 0
        message = view.keyframe(3)
        assert message.arrays["depth"].shape == SIZE[::-1]
        submap = view.store.submaps[0].T_map_submap
        T = view.T_ros_map @ submap.pose(pose(0.15))
        np.testing.assert_allclose(message.arrays["T_ros_camera"], T, atol=1e-6)
        assert message.values["note"] == "Keyframe, depth of the network"
        assert keyframe_source(view)(0).kind == "frame"
        assert "cannot be shown" in keyframe_source(view)(99)
        for one in view.store.submaps.values():
            one.component = 1 - one.component
        assert view._placed_keys() == []


def test_what_is_no_scene_is_refused_in_a_line(tmp_path, capsys):
    with pytest.raises(SceneFileError):
        SavedSceneView(tmp_path)
    assert main(["view", str(tmp_path), "--serve"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("da3_ros: ")


@pytest.mark.process
def test_a_port_in_use_is_refused_in_a_line(tmp_path, capfd):
    save_scene(full_store().snapshot(), tmp_path / "scene")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(tmp_path / "scene"), "--serve", "--port", str(port)]) == 1
    out, errors = capfd.readouterr()
    assert out == ""
    assert errors == (
        f"da3_ros: --serve: there is no viewer: port {port} is in use by another program\n"
    )


@pytest.mark.parametrize("options", [
    ["--serve", "--from", "top"], ["--serve", "--dense"], ["--serve", "--size", "9x9"],
    ["--output", "a.png", "--port", "80"], ["--output", "a.png", "--host", "::1"],
    ["--serve", "--port", "0"], ["--serve", "--port", "65536"],
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(tmp_path, options, capsys):
    held = store()
    held.add_frame(frame(0, pose()))
    save_scene(held.snapshot(), tmp_path / "scene")
    assert main(["view", str(tmp_path / "scene"), *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--" in line
