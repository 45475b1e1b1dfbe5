"""``output.mcap`` opens with everything visible: transforms lead from the map to every message."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from support.cases import long_after

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.recordings import open_recording
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.odometry import base_below
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import TruthSession

TF = "tf2_msgs/msg/TFMessage"
SIZE, FRAMES = (112, 84), 6
BASE = {"model": "da3-tiny", "checkpoint": "random", "process_res": 112, "window.size": 4,
        "mixed_precision": "off", "backend": "torch", "refinement.enabled": False}  # fmt: skip
METRIC = {"scale.source": "fixed", "scale.factor": 1.0}
ROBOT = {"base_frame": "base_link", **METRIC}


@dataclass
class Tree:
    """Transforms by child frame: parent, and the stamps at which there is one."""

    edges: dict = field(default_factory=dict)

    def add(self, transform):
        stamp = ns(transform.header.stamp)
        parent, stamps = self.edges.setdefault(
            transform.child_frame_id, (transform.header.frame_id, [])
        )
        assert parent == transform.header.frame_id, "a frame has one parent"
        assert stamp not in stamps, "RViz warns of transforms that repeat"
        stamps.append(stamp)

    def root(self, frame, stamp):
        """The frame from which transforms lead to a frame at a stamp, as tf2 looks them up."""
        while frame in self.edges:
            parent, stamps = self.edges[frame]
            if not min(stamps) <= stamp <= max(stamps):
                return frame
            frame = parent
        return frame


def ns(stamp):
    return stamp.sec * 10**9 + stamp.nanosec


def headers(message):
    """All headers in a message."""
    for name in getattr(message, "__dataclass_fields__", {}):
        value = getattr(message, name)
        if name == "header":
            yield value
        for part in value if isinstance(value, list) else [value]:
            yield from headers(part)


def lost(output, camera="/da3/rgb"):
    """Topics, frames and stamps of the messages that no transform connects to a map."""
    tree, seen = Tree(), set()
    with open_recording(output / "output.mcap", camera=camera) as recording:
        names = {topic.name: topic.type for topic in recording._bag.topics}
        for name, kind in names.items():
            for _, message in recording.messages(name):
                if kind == TF:
                    for transform in message.transforms:
                        tree.add(transform)
                else:
                    seen |= {(name, h.frame_id, ns(h.stamp)) for h in headers(message)}
    assert len({name for name, *_ in seen}) > 10
    return {one for one in seen if not tree.root(*one[1:]).endswith("map")}


def run(bag, output, truth, **values):
    config = config_from_parameters({**BASE, **values}, NodeConfig)
    replay(ReplayOptions(bag, output), config, TruthSession(truth))
    return output


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=FRAMES)


def robot_bag(path, camera, mounted=(), moving=()):
    """A recording with static transforms, and with moving ones of the base."""
    lib = RosbagsLibrary()
    with BagFolderWriter(path, lib, "mcap") as bag:
        for number, f in enumerate(camera):
            stamp, base = f.stamp_ns, base_below(f.T_room_camera)
            info = build.calibration_message(lib, stamp, "optical", camera.calibration)
            bag.write("/camera/camera_info", "sensor_msgs/msg/CameraInfo", info, stamp)
            image = build.image(lib, stamp, "optical", f.image)
            bag.write("/camera/image_raw", "sensor_msgs/msg/Image", image, stamp)
            poses = {"optical": invert_pose(base) @ f.T_room_camera, "mast": np.eye(4)}
            poses |= {"base_link": base, "odom": np.eye(4)}
            if number == 0 and mounted:
                edges = [(stamp, parent, child, poses[child]) for parent, child in mounted]
                bag.write("/tf_static", TF, build.tf(lib, edges), stamp)
            edges = [(stamp, parent, child, poses[child]) for parent, child in moving]
            if edges:
                bag.write("/tf", TF, build.tf(lib, edges), stamp)
    return path


MOUNT = (("base_link", "mast"), ("mast", "optical"))
ROBOTS = {
    "camera": ((), (), {}),
    "base": (MOUNT, (), ROBOT),
    "odometry": (MOUNT, (("odom", "base_link"),), ROBOT),
    "localised": (MOUNT, (("map", "odom"), ("odom", "base_link")), ROBOT),
    "loose": (MOUNT[1:], (), ROBOT),
}


@pytest.mark.slow
@pytest.mark.parametrize("robot", long_after(2, ["localised", "camera", "base", "odometry"]))
def test_transforms_lead_from_the_map_to_every_message(tmp_path, camera, robot):
    mounted, moving, values = ROBOTS[robot]
    bag = robot_bag(tmp_path / "bag", camera, mounted, moving)
    assert lost(run(bag, tmp_path / "out", camera, **values)) == set()


@pytest.mark.slow
def test_a_camera_that_nothing_connects_to_the_map_stays_alone(tmp_path, camera):
    """Its transforms lead to a mast, not to the base: an invented one would be wrong."""
    mounted, moving, values = ROBOTS["loose"]
    bag = robot_bag(tmp_path / "bag", camera, mounted, moving)
    assert {frame for _, frame, _ in lost(run(bag, tmp_path / "out", camera, **values))} == {
        "optical", "odom",
    }  # fmt: skip


@pytest.mark.slow
def test_without_metres_the_map_is_not_that_of_the_robot(tmp_path, camera):
    """Its transforms lead from a map of the same name, whose lengths are metres."""
    mounted, moving, _ = ROBOTS["localised"]
    bag = robot_bag(tmp_path / "bag", camera, mounted, moving)
    found = lost(run(bag, tmp_path / "out", camera, base_frame="base_link"))
    assert {frame for _, frame, _ in found} == {"optical", "odom"}


@pytest.mark.long
@pytest.mark.slow
def test_cameras_on_a_robot_that_knows_its_way_share_its_transforms(tmp_path):
    lib, walk = RosbagsLibrary(), {"seed": 2, "size": SIZE, "walk": "straight", "frames": FRAMES}
    rig = {
        name: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk)
        for i, name in enumerate(("front", "left"))
    }
    with BagFolderWriter(tmp_path / "bag", lib, "mcap") as bag:
        for number, pair in enumerate(zip(*rig.values(), strict=True)):
            stamp, base = pair[0].stamp_ns, base_below(pair[0].T_room_camera)
            mounts = []
            for (name, camera), f in zip(rig.items(), pair, strict=True):
                optical = f"{name}_optical"
                info = build.calibration_message(lib, stamp, optical, camera.calibration)
                bag.write(f"/{name}/camera_info", "sensor_msgs/msg/CameraInfo", info, stamp)
                image = build.image(lib, stamp, optical, f.image)
                bag.write(f"/{name}/image_raw", "sensor_msgs/msg/Image", image, stamp)
                mounts.append((stamp, "mast", optical, invert_pose(base) @ f.T_room_camera))
            if number == 0:
                mounts.append((stamp, "base_link", "mast", np.eye(4)))
                bag.write("/tf_static", TF, build.tf(lib, mounts), stamp)
            bag.write("/tf", TF, build.tf(lib, [(stamp, "odom", "base_link", base)]), stamp)
    values = {"cameras": ["front", "left"], **ROBOT}
    assert lost(run(tmp_path / "bag", tmp_path / "out", rig, **values), "/da3/front/rgb") == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "alone"),
    long_after(1, [("independent", ("left/map", "left/odom", "left_optical")), ("joint", ())]),
)
def test_transforms_lead_to_every_camera(tmp_path, mode, alone):
    """The second one's parent is in the recording's /tf_static: it cannot have one in a map of its
    own too."""
    walk = {"seed": 2, "size": SIZE, "walk": "straight", "frames": FRAMES}
    rig = {
        name: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk)
        for i, name in enumerate(("front", "left"))
    }
    write_synthetic_bag(tmp_path / "rig", rig)
    values = {"cameras": ["front", "left"], "window.mode": mode}
    out = run(tmp_path / "rig", tmp_path / "out", rig, **values)
    assert {frame for _, frame, _ in lost(out, "/da3/front/rgb")} <= set(alone)
