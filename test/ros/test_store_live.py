"""A live node that stores its keyframes: what is there after it was ended, or killed."""

import signal

import pytest
from support.cases import long_after

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support.live_node import DEPTH
from support.node_process import Rig, camera_frames

from da3_ros.keyframe_store.store import StoredScene

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.parametrize("kill", long_after(1, [signal.SIGKILL, signal.SIGINT]))
def test_a_node_leaves_its_keyframes(tmp_path, kill):
    camera, frames = camera_frames(4)
    every = {"keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "map.store": "night"}
    with Rig(backend="torch", process_res=56, export_dir=str(tmp_path), **every) as rig:
        depths = rig.listen(DEPTH, "sensor_msgs/msg/Image")
        rig.ready()
        for n, frame in enumerate(frames, 1):
            rig.show(camera, frame)
            rig.until(lambda n=n: len(depths) >= n)
        if kill == signal.SIGKILL:  # the thread has no more time than until here
            rig.until(lambda: stored(tmp_path)[1] >= len(frames) - 2)
        rig.process.stop(kill)
    count, images = stored(tmp_path)
    assert count >= len(frames) - (kill == signal.SIGKILL)
    assert images >= len(frames) - 2


def stored(folder):
    (run,) = (folder / "night").iterdir()
    with StoredScene.open(run) as scene:
        for key in scene.images:
            scene.load(key)
        return len(scene.frames), len(scene.images)
