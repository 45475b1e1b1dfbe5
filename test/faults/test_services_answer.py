"""Whatever happens inside a service, its caller is answered: false, and why in one line."""

import os
import signal

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from support import ros_testing as rt
from support.node_process import (
    CLEANUP,
    CONFIGURE,
    DEACTIVATE,
    EXPORT,
    FILE,
    IMAGE,
    LIB,
    Rig,
    call_async,
    camera_frames,
    change,
    feed,
    waiting_rig,
)

from da3_ros.messages import build

pytestmark = pytest.mark.process

TRIGGER = "std_srvs/srv/Trigger"
SOON_S = 30.0  # a guard against waiting for ever; answers take milliseconds
LONG = 300 * "n"
PATHS = (
    "/", ".", "..", "./", "//", "a/..", "~", "~nouser/x", "~nouser", LONG, f"{LONG}/x",
    f"a/{LONG}", "", "file/x", "folder", "loop", "loop/x", "/dev/null", "/proc/self/mem", "../x",
    5000 * "a/", "a\nb/../..", "\ufffd/../..", "link/x", "~/x", "odd/x",
)  # fmt: skip


def answered(rig, future):
    rig.until(future.done, SOON_S)
    return future.result()


class Asker:
    """One client of one service: a new one for every call would be discovered anew."""

    def __init__(self, rig, name):
        kind = EXPORT if name == "export_scene" else FILE
        self.rig, self.kind = rig, LIB.type(kind)
        self.client = rig.node.create_client(self.kind, f"/da3/{name}")
        rig.until(self.client.service_is_ready)

    def __call__(self, **fields):
        return answered(self.rig, self.client.call_async(self.kind.Request(**fields)))


def fill(root):
    """Things in the way."""
    (root / "folder").mkdir()
    (root / "folder" / "mine").write_text("mine")
    (root / "file").write_text("mine")
    (root / "loop").symlink_to(root / "loop")
    (root / "link").symlink_to(root.parent)
    os.mkdir(os.fsencode(root) + b"/\xff\xfe")
    os.symlink(os.fsencode(root) + b"/\xff\xfe", root / "odd")


def files(root):
    return sorted(p for p in root.rglob("*") if p.is_symlink() or p.is_file())


def test_no_answer_holds_what_cannot_be_sent():
    from da3_ros.ros.services import sendable

    answer = LIB.type(EXPORT).Response(path="/out/\udcff.ply", points=3)
    assert sendable(answer).path == "/out/?.ply"
    assert answer.points == 3


@pytest.mark.long
def test_hostile_paths_are_refused_in_one_line_each(tmp_path):
    camera, frames = camera_frames(2)
    root = tmp_path / "out"
    root.mkdir()
    fill(root)
    before = files(tmp_path)
    with Rig(export_dir=str(root)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames[:1], depths)
        ask = {name: Asker(rig, name) for name in ("export_scene", "save_scene", "load_scene")}
        for path in PATHS:
            asked = [("save_scene", {"path": path}), ("load_scene", {"path": path})]
            for form in ("ply", "colmap", "mesh", ""):
                if form != "ply" or path not in ("folder", "loop"):  # good names with .ply
                    asked.append(("export_scene", {"path": path, "format": form}))
            for name, fields in asked:
                answer = ask[name](**fields)
                assert not answer.success, (name, fields)
                assert answer.message, (name, fields)
                assert "\n" not in answer.message, (name, fields)
        feed(rig, camera, frames[1:], depths)
        assert answered(rig, call_async(rig, EXPORT, "/da3/export_scene", path="x.ply")).success
        assert "Traceback" not in rig.process.output()
    (root / "x.ply").unlink()
    assert files(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_reported(tmp_path):
    _unwritable(tmp_path, tmp_path)


@pytest.mark.long
def test_an_impossible_export_dir_is_reported(tmp_path):
    _unwritable(tmp_path, "/proc/da3")
    _unwritable(tmp_path, "~nouser/da3")


def _unwritable(tmp_path, root):
    camera, frames = camera_frames(1)
    tmp_path.chmod(0o500)
    with Rig(export_dir=str(root)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        for kind, name, path in (
            (EXPORT, "export_scene", "a.ply"),
            (FILE, "save_scene", "a"),
            (FILE, "load_scene", "a"),
        ):
            answer = answered(rig, call_async(rig, kind, f"/da3/{name}", path=path))
            assert not answer.success
            assert "\n" not in answer.message


def test_unforeseen_error_is_answered_and_the_next_call_works(tmp_path):
    camera, frames = camera_frames(2)
    faults = "snapshots:1,reset:1,write:1,save:1,load:1,resolve:3"
    with Rig(node=broken_node(), environment={"FAULTS": faults}, export_dir=str(tmp_path)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames[:1], depths)
        calls = (
            (EXPORT, "export_scene", {"path": "a.ply"}, "injected in snapshots"),
            (EXPORT, "export_scene", {"path": "a.ply"}, "AssertionError: injected in write"),
            (FILE, "save_scene", {"path": "a"}, "injected"),
            (FILE, "load_scene", {"path": "a"}, "injected in load"),
            (FILE, "save_scene", {"path": "a"}, "injected in resolve"),
            (TRIGGER, "reset", {}, "injected in reset"),
            (EXPORT, "export_scene", {"path": "a.ply"}, ""),
            (FILE, "save_scene", {"path": "a"}, ""),
            (FILE, "load_scene", {"path": "a"}, ""),
            (TRIGGER, "reset", {}, ""),
        )
        for kind, name, fields, words in calls:
            answer = answered(rig, call_async(rig, kind, f"/da3/{name}", **fields))
            assert answer.success == (not words), answer.message
            assert words in answer.message
            assert "\n" not in answer.message
        feed(rig, camera, frames[1:], depths)
        assert "Traceback" not in rig.process.output()


def broken_node():
    from support.node_process import BROKEN

    return BROKEN


@pytest.mark.long
def test_callers_are_answered_when_the_node_is_cleaned_up(tmp_path):
    """The file is written all the same: the scene was handed over before."""
    camera, frames = camera_frames(1)
    with waiting_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        assert answered(rig, call_async(rig, FILE, "/da3/save_scene", path="kept")).success
        export = call_async(rig, EXPORT, "/da3/export_scene", path="late.ply")
        rig.until(lambda: list(tmp_path.glob(".late-*")))
        load = call_async(rig, FILE, "/da3/load_scene", path="kept")  # behind the export
        rt.spin_until(rig.node, load.done, 1.0)  # two services have no common order: it is taken
        change(rig, DEACTIVATE)
        change(rig, CLEANUP)
        change(rig, CONFIGURE)  # another stream: the scene must not be loaded into the old one
        assert not export.done()
        (tmp_path / "go").write_text("")
        assert answered(rig, export).success
        refused = answered(rig, load)
        assert not refused.success
        assert "cleaned up" in refused.message
        empty = answered(rig, call_async(rig, EXPORT, "/da3/export_scene", path="b.glb"))
        assert "nothing was processed" in empty.message


def test_callers_are_answered_when_the_node_ends(tmp_path):
    camera, frames = camera_frames(1)
    with waiting_rig(tmp_path) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        feed(rig, camera, frames, depths)
        export = call_async(rig, EXPORT, "/da3/export_scene", path="late.ply")
        rig.until(lambda: list(tmp_path.glob(".late-*")))
        save = call_async(rig, FILE, "/da3/save_scene", path="next")
        os.kill(rig.process.pid, signal.SIGTERM)
        for future in (export, save):
            answer = answered(rig, future)
            assert not answer.success
            assert "shut" in answer.message
        assert rig.process.wait(30.0) == 0


@pytest.mark.long
def test_images_that_wait_for_a_camera_info_are_counted(tmp_path):
    _, frames = camera_frames(3)
    with Rig(camera_info_timeout_s=1000.0) as rig:
        rig.ready()
        for frame in frames:
            rig.images.publish(build.image(LIB, frame.stamp_ns, "camera_optical", frame.image))
        bad = LIB.type("sensor_msgs/msg/Image")()
        bad.header.frame_id = "camera_optical"
        # Nothing shows that they wait; a bad one, sent after them, is counted once they arrived.
        rig.images.publish(bad)
        rig.until(lambda: rig.drops().get("bad_image") == 1)
        assert rig.call(TRIGGER, "/da3/reset").success
        rig.until(lambda: rig.drops().get("cleared") == 3)
        assert rig.status[-1].frames_received == 4
        rig.images.publish(
            build.image(LIB, frames[-1].stamp_ns, "camera_optical", frames[0].image)
        )
        rig.images.publish(bad)
        rig.until(lambda: rig.drops().get("bad_image") == 2)
        change(rig, DEACTIVATE)
        rig.until(lambda: rig.drops().get("cleared") == 4)
        assert IMAGE in rig.process.output()
