"""Files: killed in mid-export, a full disk, folders that are none, damaged checkpoints."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from da3_ros.network.checkpoint import shipped_folder

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ENDLESS_EXPORT = textwrap.dedent("""
    import sys
    import numpy as np
    from pathlib import Path
    from da3_ros.export.export import export_scene
    from da3_ros.mapping.scene import Scene, SubmapCloud
    from da3_ros.mapping.trajectory import Poses
    from da3_ros.mapping.voxel_map import PointCloud
    n = 200_000
    cloud = PointCloud(np.random.rand(n, 3).astype("f4"), np.zeros((n, 3), "u1"),
                       np.ones(n, "f4"), np.ones(n, "i4"))
    path = Path(sys.argv[1])
    while True:
        export_scene(Scene((SubmapCloud(cloud),), Poses.of([])), path)
        print("written", flush=True)
""")


@pytest.mark.parametrize("suffix", [".ply", ".glb"])
def test_kill_in_mid_export_leaves_the_old_or_the_new_file(tmp_path, suffix):
    import trimesh

    path = tmp_path / f"scene{suffix}"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_EXPORT, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    for wait_s in (0.013, 0.029):
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGSTOP)  # as good as dead, and can be inspected again
        whole = trimesh.load(path)
        points = whole if suffix == ".ply" else whole.geometry["points"]
        assert len(points.vertices) == 200_000
        os.kill(process.pid, signal.SIGCONT)
    process.kill()
    process.wait()
    process.stdout.close()
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == [path.name]


@pytest.fixture
def ros():
    pytest.importorskip("rclpy", reason="needs ROS 2")
    from support import node_process

    return node_process


def export(rig, **fields):
    return rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", **fields)


def test_full_disk_and_a_kill_lose_no_earlier_file(ros, tmp_path):
    """A full disk and a kill lose no earlier file, and a new start works."""
    camera, frames = ros.camera_frames(4)
    root = tmp_path / "out"
    with ros.Rig(export_dir=str(root)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        for n, frame in enumerate(frames[:2], 1):
            rig.show(camera, frame)
            rig.until(lambda n=n: len(depths) == n)
        first = export(rig, path="scene.ply")
        assert first.success, first.message
        before = (root / "scene.ply").read_bytes()
        limit = (len(before) // 2, resource.RLIM_INFINITY)
        assert len(rig.process.output()) < limit[0]
        resource.prlimit(rig.process.pid, resource.RLIMIT_FSIZE, limit)
        for name in ("scene.ply", "scene.glb"):
            full = export(rig, path=name)
            assert not full.success
            assert "cannot be written" in full.message
            assert "\n" not in full.message
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(rig.process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert (root / "scene.ply").read_bytes() == before
        rig.show(camera, frames[2])
        rig.until(lambda: len(depths) == 3)
        assert export(rig, path="after.ply").success
        os.kill(rig.process.pid, signal.SIGKILL)
        rig.process.wait(10)
    files = sorted(p.name for p in root.iterdir())
    assert files == ["after.ply", "scene.ply"], "nothing half written, hidden or not"
    with ros.Rig(export_dir=str(root)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: depths)
        assert export(rig, path="scene.ply").success


@pytest.mark.long
def test_the_service_reports_an_export_folder_that_is_a_file(ros, tmp_path):
    camera, frames = ros.camera_frames(1)
    (tmp_path / "file").write_text("mine")
    with ros.Rig(export_dir=str(tmp_path / "file")) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: depths)
        refused = export(rig, path="scene.ply")
        assert not refused.success
        assert str(tmp_path / "file") in refused.message
        assert rig.status[-1].state == "active"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.long
def test_damaged_or_foreign_checkpoint_is_one_line(ros, tmp_path):
    """The error is one line, and the node waits for another checkpoint."""
    from lifecycle_msgs.msg import Transition

    shutil.copytree(shipped_folder("da3-tiny"), tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with ros.Rig(checkpoint=str(tmp_path / "cut")) as rig:
        rig.process.wait_for("is damaged or not a safetensors file")
        rig.until(lambda: rig.status and rig.status[-1].last_error)
        assert rig.status[-1].state == "unconfigured"
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.until(lambda: diagnostics)
        assert diagnostics[-1].status[0].level == b"\x02"
        assert "damaged" in diagnostics[-1].status[0].message

        def configure():
            change = Transition(id=Transition.TRANSITION_CONFIGURE)
            kind, name = "lifecycle_msgs/srv/ChangeState", "/da3/change_state"
            return rig.call(kind, name, transition=change).success

        ros.set_parameter(rig, "checkpoint", str(shipped_folder("da3-tiny")))
        ros.set_parameter(rig, "model", "da3-small")
        assert not configure()
        rig.process.wait_for("config.json is for model 'da3-tiny', not 'da3-small'")
        ros.set_parameter(rig, "model", "da3-tiny")
        assert configure()
        assert "Traceback" not in rig.process.output()
