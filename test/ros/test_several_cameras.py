"""The live node with two cameras, as real processes over DDS."""

import dataclasses
import json
import time

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support import ros_testing as rt
from support.node_process import EXPORT, FILE, LIB, NODE, QUICK, SIZE, call_async

from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import load_scene
from da3_ros.messages import build
from da3_ros.recordings import open_recording
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera

pytestmark = pytest.mark.process

NAMES = ("front", "left")
DEPTH = "sensor_msgs/msg/Image"
POSE = "geometry_msgs/msg/PoseWithCovarianceStamped"


def mount():
    """front to left."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec([0, -0.5, 0]).as_matrix()
    T[0, 3] = -0.2
    return T


class TwoCameras:
    """A node process with two cameras, and a node of the test that is both and the audience."""

    def __init__(self, **parameters):
        self.domain = rt.domain()
        values = {**QUICK, "window.size": 4, "cameras": "[front,left]", **parameters}
        flat = [part for name, value in values.items() for part in ("-p", f"{name}:={value}")]
        maps = [part for n in NAMES for part in ("-r", f"{n}/image:=/{n}/image_raw")]
        self.process = rt.start(NODE, *maps, *flat, env=rt.environment(self.domain))
        self._session = rt.session(self.domain)

    def __enter__(self):
        self.process.__enter__()
        self.node = node = self._session.__enter__()
        self.images, self.infos = (
            {n: node.create_publisher(LIB.type(kind), f"/{n}/{topic}", rt.RELIABLE) for n in NAMES}
            for kind, topic in (
                (DEPTH, "image_raw"),
                ("sensor_msgs/msg/CameraInfo", "camera_info"),
            )
        )
        self.static = node.create_publisher(
            LIB.type("tf2_msgs/msg/TFMessage"), "/tf_static", rt.LATCHED
        )
        self.depth = {n: self.listen(f"/da3/{n}/depth/image", DEPTH) for n in NAMES}
        self.pose = {n: self.listen(f"/da3/{n}/pose", POSE) for n in NAMES}
        self.transforms = self.listen("/tf", "tf2_msgs/msg/TFMessage")
        return self

    def __exit__(self, *error):
        self._session.__exit__(*error)
        self.process.__exit__(*error)

    def listen(self, topic, kind):
        return rt.collect(self.node, kind, topic)

    def until(self, condition, timeout_s=rt.PATIENCE_S):
        assert rt.spin_until(self.node, condition, timeout_s), self.process.output()

    def ready(self):
        """As Rig.ready of test_node, for both cameras."""
        for n in NAMES:
            self.until(lambda n=n: rt.matched(self.images[n]) and rt.matched(self.infos[n]))

        def settled():
            offers = [
                o
                for n in NAMES
                for o in self.node.get_subscriptions_info_by_topic(f"/{n}/image_raw")
            ]
            return len(offers) == 2 and all(
                o.qos_profile.reliability == rt.RELIABLE.reliability for o in offers
            )

        self.until(settled)
        rt.spin_until(self.node, lambda: False, 1.0)
        for subscription in self.node.subscriptions:
            if subscription.topic_name.startswith("/da3/"):
                self.until(lambda s=subscription: rt.matched(s))

    def show(self, name, camera, frame):
        optical = f"{name}_optical"
        info = build.calibration_message(LIB, frame.stamp_ns, optical, camera.calibration)
        self.infos[name].publish(info)
        self.images[name].publish(build.image(LIB, frame.stamp_ns, optical, frame.image))

    def edges(self):
        """(parent, child) of all transforms so far."""
        return {
            (t.header.frame_id, t.child_frame_id) for m in self.transforms for t in m.transforms
        }


def walks(n=4, skew_ns=4_000_000):
    front = SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=n)
    left = SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=n, mount=mount())
    late = [dataclasses.replace(f, stamp_ns=f.stamp_ns + skew_ns) for f in left]
    return {"front": (front, list(front)), "left": (left, late)}


def show_all(rig, cameras, keep=lambda name, i: True):
    rig.ready()
    for i in range(len(cameras["front"][1])):
        before = {n: len(rig.depth[n]) for n in NAMES}
        shown = [n for n in NAMES if keep(n, i)]
        for n in shown:
            rig.show(n, cameras[n][0], cameras[n][1][i])
        if len(shown) == len(NAMES):
            rig.until(lambda b=before: all(len(rig.depth[n]) > b[n] for n in NAMES))


def stamps(messages):
    return [rt.stamp_ns(m) for m in messages]


def test_two_cameras_share_a_window_and_keep_their_names():
    cameras = walks()
    with TwoCameras() as rig:
        windows = rig.listen("/da3/window", "da3_ros/msg/Window")
        show_all(rig, cameras)
        rig.until(lambda: len(windows) == 4 and all(len(rig.pose[n]) == 4 for n in NAMES))
        rig.until(lambda: len(rig.edges()) == 3)
    for n in NAMES:
        assert stamps(rig.depth[n]) == [f.stamp_ns for f in cameras[n][1]]
        assert {m.header.frame_id for m in rig.depth[n]} == {f"{n}_optical"}
    newest = windows[-1]
    assert [f.camera for f in newest.frames] == ["front", "left"] * 2
    assert newest.new_frames == 2
    assert rt.stamp_ns(newest) == cameras["left"][1][-1].stamp_ns
    # Nobody else parents the optical frames: both hang below odom.
    assert rig.edges() == {
        ("map", "odom"), ("odom", "front_optical"), ("odom", "left_optical")
    }  # fmt: skip


@pytest.mark.long
def test_live_without_drops_equals_replay_bit_by_bit(tmp_path):
    cameras = walks(skew_ns=0)
    write_synthetic_bag(tmp_path / "bag", {name: camera for name, (camera, _) in cameras.items()})
    values = {**QUICK, "window.size": 4, "cameras": "[front, left]"}
    settings = load_config(None, [f"{k}:={v}" for k, v in values.items()])
    replay(ReplayOptions(tmp_path / "bag", tmp_path / "out"), settings)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["refinement"]["windows"] > 0
    with TwoCameras() as rig:
        show_all(rig, cameras)
    with open_recording(tmp_path / "out" / "output.mcap", camera="/da3/left/rgb") as recording:
        for name in NAMES:
            recorded = [m for _, m in recording.messages(f"/da3/{name}/depth/image")]
            for live, other in zip(rig.depth[name], recorded, strict=True):
                assert bytes(live.data) == bytes(other.data)
                assert live.header.stamp.nanosec == other.header.stamp.nanosec


@pytest.mark.long
def test_no_transform_for_a_camera_with_another_parent():
    cameras = walks(2)
    with TwoCameras() as rig:
        rig.until(lambda: rt.matched(rig.static))
        edge = (0, "front_optical", "left_optical", mount())
        rig.static.publish(build.tf(LIB, [edge]))
        show_all(rig, cameras)
        rig.until(lambda: len(rig.edges()) >= 2)
        assert rig.edges() == {("map", "odom"), ("odom", "front_optical")}


@pytest.mark.long
def test_a_missing_camera_does_not_stop_the_other():
    cameras = walks(8)
    with TwoCameras() as rig:
        show_all(rig, cameras, lambda name, i: name == "front" or i in (0, 7))
        rig.until(lambda: len(rig.depth["front"]) >= 2 and len(rig.depth["left"]) == 2)
        # Live, waiting frames may be replaced by newer ones; those that come out are in order.
        assert stamps(rig.depth["front"])[-1] == cameras["front"][1][-1].stamp_ns
        assert stamps(rig.depth["front"]) == sorted(stamps(rig.depth["front"]))


@pytest.mark.long
def test_diagnostics_name_the_one_camera_that_is_silent():
    _, frames = walks(2)["front"]
    with TwoCameras() as rig:
        health = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.until(lambda: rt.matched(rig.images["front"]))

        def told():
            front = build.image(LIB, time.time_ns(), "front_optical", frames[0].image)
            rig.images["front"].publish(front)
            return health and "no images arrive on /left/image_raw" in health[-1].status[0].message

        rig.until(told)
        assert "/front" not in health[-1].status[0].message


@pytest.mark.long
def test_independent_cameras_take_turns(tmp_path):
    """Independent cameras take turns and have scenes and frames of their own."""
    cameras = walks(3)
    with TwoCameras(**{"window.mode": "independent", "export_dir": str(tmp_path)}) as rig:
        windows = {n: rig.listen(f"/da3/{n}/window", "da3_ros/msg/Window") for n in NAMES}
        show_all(rig, cameras)
        rig.until(lambda: all(len(windows[n]) == 3 for n in NAMES))
        rig.until(lambda: len(rig.edges()) == 4)
        for kind, name, path in (
            (EXPORT, "export_scene", "room.ply"),
            (FILE, "save_scene", "room"),
            (FILE, "load_scene", "room"),
        ):
            answer = call_async(rig, kind, f"/da3/{name}", path=path)
            rig.until(answer.done)
            assert answer.result().success, answer.result().message
    assert {p.name for p in tmp_path.iterdir()} == {
        "room.ply", "room_left.ply", "room", "room_left",
    }  # fmt: skip
    assert load_scene(tmp_path / "room_left").poses.cameras == ("left",)
    for n in NAMES:
        assert stamps(rig.depth[n]) == [f.stamp_ns for f in cameras[n][1]]
        assert {f.camera for w in windows[n] for f in w.frames} == {n}
    assert rig.edges() == {
        ("map", "odom"), ("odom", "front_optical"),
        ("left/map", "left/odom"), ("left/odom", "left_optical"),
    }  # fmt: skip
    assert {m.header.frame_id for m in rig.pose["left"]} == {"left/map"}
