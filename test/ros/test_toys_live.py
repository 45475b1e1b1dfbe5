"""Newcomers that only have a row in a table serve the users of a live node as the others do."""

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support.node_process import (
    EXPORT,
    NODES,
    Rig,
    camera_frames,
    depth_of,
    feed,
    values_of,
)
from support.toys import FLOAT, ROWS

pytestmark = pytest.mark.process
TOY_NODE = str(NODES / "toy_node.py")


@pytest.fixture
def toys(monkeypatch):
    for table, name, row in ROWS:
        monkeypatch.setitem(table, name, row)


@pytest.mark.long
def test_a_live_node_serves_toys_of_all_kinds(toys, tmp_path):
    camera, frames = camera_frames(4, distortion_model="fov", D=[0.9])
    values = {"backend": "toy", "scale.source": "spacing", "export_dir": str(tmp_path)}
    with Rig(node=TOY_NODE, **values) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        images = rig.listen("/da3/rgb/image", "sensor_msgs/msg/Image")
        nearest = rig.listen("/da3/nearest", FLOAT)
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        feed(rig, camera, frames, depths)
        rig.until(lambda: len(nearest) == len(frames))
        for said, depth in zip(nearest, depths, strict=True):
            assert said.data == pytest.approx(np.nanmin(depth_of(depth)))
        rig.until(lambda: len(images) == len(frames))
        shown = np.frombuffer(bytes(images[0].data), np.uint8).reshape(frames[0].image.shape)
        straight = camera_frames(4)[1][0].image.astype(float)
        # As without the lens.
        assert np.abs(shown - straight).mean() < np.abs(frames[0].image - straight).mean() / 2
        rig.until(lambda: diagnostics and values_of(diagnostics[-1]).get("backend") == "toy")
        assert rig.status[-1].scale_source == "spacing"
        assert "the scale is unknown yet (spacing)" in diagnostics[-1].status[0].message
        done = rig.call(EXPORT, "/da3/export_scene", path="room.xyz")
        assert done.success, done.message
        assert done.path == str(tmp_path / "room.xyz")
        assert len((tmp_path / "room.xyz").read_text().splitlines()) == done.points > 100
        refused = rig.call(EXPORT, "/da3/export_scene", path="room.obj")
        assert "the suffix must be .glb, .ply, " in refused.message
        assert "unknown distortion_model" not in rig.process.output()
