"""The synthetic camera as a process of its own, heard over DDS."""

import re
import signal
import time

import numpy as np
import pytest
from support.cases import long_after
from support.ros_testing import (
    BEST_EFFORT,
    LATCHED,
    PATIENCE_S,
    collect,
    domain,
    environment,
    session,
    spin_until,
    stamp_ns,
    start,
)

from da3_ros.geometry.poses import invert_pose, matrix_from_quaternion
from da3_ros.geometry.projection import backproject, project
from da3_ros.live.missing_input_hints import IMAGE, Awaited, RemotePublisher, read_graph
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import decode
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.synthetic import WALKS, SyntheticCamera
from da3_ros.synthetic.rig import rig_mount

pytestmark = pytest.mark.process

MODULE = "da3_ros.ros.synthetic_camera"
TRUTH = "/synthetic_camera/truth"
SMALL = {"width": 96, "height": 72, "rate_hz": 20.0, "wait_for_subscribers": 1}


def camera(domain_id, *remaps, **parameters):
    """A synthetic camera's process."""
    given = {**SMALL, **parameters}
    options = [word for name, value in given.items() for word in ("-p", f"{name}:={text(value)}")]
    rules = [word for rule in remaps for word in ("-r", rule)]
    return start(MODULE, *options, *rules, env=environment(domain_id))


def text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def all_of(node, count, *lists, timeout_s=PATIENCE_S):
    """Serve until each list holds ``count`` messages."""
    done = spin_until(node, lambda: min(map(len, lists)) >= count, timeout_s)
    assert done, f"received {[len(x) for x in lists]} of {count}"


def pose_matrix(pose):
    p, q = pose.position, pose.orientation
    T = np.eye(4)
    T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    T[:3, 3] = p.x, p.y, p.z
    return T


def floats(message):
    assert message.encoding == "32FC1"
    return np.frombuffer(message.data, np.float32).reshape(message.height, message.width)


# Over DDS


@pytest.fixture(scope="module")
def rendered():
    """The same walk as the first test's, rendered here."""
    return list(SyntheticCamera(11, (96, 72), frames=8, rate_hz=20.0, walk="strafe"))


def test_image_info_and_truth_are_those_of_the_walk(rendered):
    domain_id = domain()
    with session(domain_id) as node:
        infos = collect(node, "sensor_msgs/msg/CameraInfo", "/cam/camera_info")
        depths = collect(node, "sensor_msgs/msg/Image", f"{TRUTH}/depth/image")
        poses = collect(node, "geometry_msgs/msg/PoseStamped", f"{TRUTH}/pose")
        odometry = collect(node, "nav_msgs/msg/Odometry", f"{TRUTH}/odom")
        images = collect(node, "sensor_msgs/msg/Image", "/cam/image_raw")
        with camera(
            domain_id, "image_raw:=/cam/image_raw", seed=11, frames=8, walk="strafe"
        ) as process:
            all_of(node, 8, images, infos, depths, poses, odometry)
            process.wait_for("all 8 frames are published")
            assert process.running
    reference = SyntheticCamera(11, (96, 72), frames=8, rate_hz=20.0, walk="strafe")
    for i, frame in enumerate(rendered):
        assert images[i].encoding == "rgb8"
        np.testing.assert_array_equal(decode(images[i]), frame.image)
        np.testing.assert_array_equal(floats(depths[i]), frame.depth)
        np.testing.assert_allclose(pose_matrix(poses[i].pose), frame.T_room_camera, atol=1e-9)
        np.testing.assert_allclose(
            pose_matrix(odometry[i].pose.pose), frame.T_room_camera, atol=1e-9
        )
        np.testing.assert_allclose(
            calibration_from_msg(infos[i]).K, reference.calibration.K, atol=1e-9
        )
        assert len({stamp_ns(m[i]) for m in (images, infos, depths, poses, odometry)}) == 1
    assert {m[0].header.frame_id for m in (images, infos, depths)} == {"camera_optical"}
    assert {m[0].header.frame_id for m in (poses, odometry)} == {"room"}
    assert odometry[0].child_frame_id == "camera_optical"
    assert_depth_reprojects(rendered[0], depths[0], depths[7], poses[0], poses[7])


def assert_depth_reprojects(frame, depth_a, depth_b, pose_a, pose_b):
    """Points of one depth image lie on the surfaces of the other, by the published poses."""
    T_b_a = invert_pose(pose_matrix(pose_b.pose)) @ pose_matrix(pose_a.pose)
    points = backproject(floats(depth_a), frame.K).reshape(-1, 3)
    moved = points @ T_b_a[:3, :3].T + T_b_a[:3, 3]
    pixels = np.floor(project(moved, frame.K))
    inside = ((pixels >= 0) & (pixels < [depth_b.width, depth_b.height])).all(-1)
    column, row = pixels[inside].astype(int).T
    error = np.abs(floats(depth_b)[row, column] - moved[inside, 2]) / moved[inside, 2]
    assert inside.mean() > 0.5
    assert np.median(error) < 0.01


def test_a_rig_shows_what_its_cameras_see():
    """A rig shows what its cameras see in frames that hold together."""
    options = {"frames": 3, "walk": "strafe", "camera_baseline_m": 0.3, "camera_yaw_deg": -20.0}
    walk = {"seed": 11, "size": (96, 72), "frames": 3, "rate_hz": 20.0, "walk": "strafe"}
    mount = rig_mount(1, 0.3, -20.0)
    left = list(SyntheticCamera(mount=mount, **walk))
    domain_id = domain()
    with session(domain_id) as node:
        static = collect(node, "tf2_msgs/msg/TFMessage", "/tf_static", LATCHED)
        infos = collect(node, "sensor_msgs/msg/CameraInfo", "/left/camera_info")
        front, beside = (
            collect(node, "sensor_msgs/msg/Image", f"/{name}/image_raw")
            for name in ("front", "left")
        )
        with camera(domain_id, seed=11, cameras="[front,left]", **options):
            all_of(node, 3, front, beside, infos)
            all_of(node, 1, static)
    for a, b, frame in zip(front, beside, left, strict=True):
        assert a.header.stamp == b.header.stamp
        assert (a.header.frame_id, b.header.frame_id) == ("front_optical", "left_optical")
        np.testing.assert_array_equal(decode(b), frame.image)
    (edge,) = static[0].transforms
    assert (edge.header.frame_id, edge.child_frame_id) == ("front_optical", "left_optical")
    t, q = edge.transform.translation, edge.transform.rotation
    np.testing.assert_allclose([t.x, t.y, t.z], mount[:3, 3], atol=1e-9)
    R = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    np.testing.assert_allclose(R, mount[:3, :3], atol=1e-9)


@pytest.mark.long
def test_endless_stream_keeps_its_rate_and_ends_clean():
    """Endless stream keeps its rate and ends clean on interrupt."""
    domain_id = domain()
    with session(domain_id) as node, camera(domain_id, buffer_frames=4, rate_hz=25.0) as process:
        images = collect(node, "sensor_msgs/msg/Image", "/image_raw")
        # Late ones leave whole periods out; a machine that is not always busy keeps most of them.
        assert spin_until(node, lambda: len(images) > 40 and last_steps(images).mean() < 80e6)
        awaited = [Awaited("/image_raw", IMAGE, "image")]
        # A killed node of an earlier test in this domain may take a while to leave.
        assert spin_until(node, lambda: read_graph(node, awaited).other_nodes == 1)
        seen = read_graph(node, awaited)
        assert process.stop(signal.SIGINT) == 0
        assert "Traceback" not in process.output()
    assert seen.publishers["/image_raw"] == [RemotePublisher("/synthetic_camera", IMAGE)]
    steps = np.diff([stamp_ns(m) for m in images])
    assert steps.min() > 0
    np.testing.assert_allclose(steps / 40e6, np.round(steps / 40e6), atol=1e-3)
    assert 40e6 <= last_steps(images).mean() < 80e6
    assert bytes(images[0].data) == bytes(images[3].data)  # a loop ends where it began
    assert bytes(images[0].data) != bytes(images[1].data)


def last_steps(images, count=40):
    """Nanoseconds between the last images."""
    return np.diff([stamp_ns(m) for m in images[-count:]])


def test_compressed_distorted_best_effort_odometry_and_tf():
    domain_id = domain()
    with session(domain_id) as node:
        infos = collect(node, "sensor_msgs/msg/CameraInfo", "/robot/camera_info", BEST_EFFORT)
        odometry = collect(node, "nav_msgs/msg/Odometry", "/robot/synthetic_camera/odometry")
        tf = collect(node, "tf2_msgs/msg/TFMessage", "/tf")
        static = collect(node, "tf2_msgs/msg/TFMessage", "/tf_static", LATCHED)
        topic = "/robot/image_raw/compressed"
        images = collect(node, "sensor_msgs/msg/CompressedImage", topic, BEST_EFFORT)
        with camera(
            domain_id, "__ns:=/robot", frames=6, transport="compressed", reliability="best_effort",
            distortion="[-0.2,0.05,0.001,0.0]", frame_id="left_optical", publish_odometry=True,
            publish_tf=True, odometry_noise_m=0.1,
        ) as process:  # fmt: skip
            all_of(node, 6, images, infos, odometry, tf)
            all_of(node, 1, static)
            offered = node.get_publishers_info_by_topic(topic)
            assert process.stop(signal.SIGTERM) == 0
            assert "Traceback" not in process.output()
    assert [p.qos_profile.reliability.name for p in offered] == ["BEST_EFFORT"]
    truth = SyntheticCamera(7, (96, 72), frames=6, rate_hz=20.0, D=(-0.2, 0.05, 0.001, 0.0))
    assert infos[0].distortion_model == "plumb_bob"
    np.testing.assert_allclose(infos[0].d, [-0.2, 0.05, 0.001, 0.0])
    difference = decode(images[0]).astype(float) - truth[0].image
    assert np.abs(difference).mean() < 4.0  # JPEG
    (mounted,) = static[0].transforms
    assert (mounted.header.frame_id, mounted.child_frame_id) == ("base_link", "left_optical")
    moved = tf[5].transforms[0]
    assert (moved.header.frame_id, moved.child_frame_id) == ("odom", "base_link")
    assert (odometry[5].header.frame_id, odometry[5].child_frame_id) == ("odom", "base_link")
    assert moved.transform.translation.x == odometry[5].pose.pose.position.x
    assert moved.header.stamp == odometry[5].header.stamp == images[5].header.stamp


@pytest.mark.parametrize("encoding", ["bgr8", "mono8"])
def test_encoding_matches_the_bytes(encoding):
    domain_id = domain()
    with session(domain_id) as node, camera(domain_id, encoding=encoding, frames=2) as process:
        images = collect(node, "sensor_msgs/msg/Image", "/image_raw")
        all_of(node, 2, images)
        assert process.stop() == 0
    frame = SyntheticCamera(7, (96, 72), frames=2, rate_hz=20.0)[0]
    assert images[0].encoding == encoding
    if encoding == "bgr8":
        np.testing.assert_array_equal(decode(images[0]), frame.image)
    else:
        grey = frame.image @ np.array([0.299, 0.587, 0.114])
        np.testing.assert_allclose(decode(images[0])[..., 0], grey, atol=1.0)


# At the consumer's pace


class Consumer:
    """Takes the newest image, works on it for a while, and answers, as the live node does."""

    def __init__(self, node, work_s, answers=True):
        lib = RclpyLibrary()
        self.info = lib.type("sensor_msgs/msg/CameraInfo")
        self.answer = node.create_publisher(self.info, "/answer", 10)
        self.stamps = []
        self.work_s, self.answers = work_s, answers
        self.poses = collect(node, "geometry_msgs/msg/PoseStamped", f"{TRUTH}/pose")
        node.create_subscription(lib.type("sensor_msgs/msg/Image"), "/image_raw", self.take, 1)

    def take(self, image):
        self.stamps.append(stamp_ns(image))
        time.sleep(self.work_s)
        if self.answers:
            self.answer.publish(self.info(header=image.header))


@pytest.mark.long
def test_camera_waits_for_a_slow_consumer_and_none_is_dropped():
    domain_id, frames = domain(), 12
    walk = list(SyntheticCamera(7, (96, 72), frames=frames, rate_hz=20.0, walk="loop"))
    with session(domain_id) as node:
        consumer = Consumer(node, work_s=0.2)  # four periods
        options = {"frames": frames, "pace_topic": "/answer", "exit_when_done": True}
        with camera(domain_id, pace_timeout_s=PATIENCE_S, **options) as process:
            all_of(node, frames, consumer.stamps, consumer.poses)
            assert process.wait() == 0
            assert "no result" not in process.output()
        stamps = np.array(consumer.stamps)
        assert len(stamps) == frames
        assert (np.diff(stamps) > 0).all()
        # The walk goes by frames: as much motion between two as on a fast machine.
        for sent, frame in zip(consumer.poses, walk, strict=True):
            np.testing.assert_allclose(pose_matrix(sent.pose), frame.T_room_camera, atol=1e-6)


@pytest.mark.long
def test_a_silent_consumer_is_reported_once_and_blocks_nothing():
    domain_id = domain()
    with session(domain_id) as node:
        consumer = Consumer(node, work_s=0.0, answers=False)
        options = {"frames": 6, "pace_topic": "/answer", "exit_when_done": True}
        with camera(domain_id, pace_timeout_s=0.3, **options) as process:
            all_of(node, 6, consumer.stamps)
            assert process.wait() == 0
            assert process.output().count("no result on /answer within 0.3 s") == 1
        assert len(set(consumer.stamps)) == 6


def test_process_ends_by_itself_on_request():
    with camera(domain(), frames=2, wait_for_subscribers=0, exit_when_done=True) as process:
        assert process.wait() == 0
        assert "all 2 frames are published" in process.output()


def test_unusable_parameter_ends_the_process_with_one_line():
    with camera(domain(), walk="flying") as process:
        assert process.wait() == 1
        assert "walk is 'flying': must be one of loop, straight" in process.output()
        assert "Traceback" not in process.output()


@pytest.mark.parametrize("sig", long_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_signal_while_rendering_ends_the_process_in_time(sig):
    with camera(domain(), width=1280, height=960) as process:
        process.wait_for("waiting for the rendering of")
        assert process.stop(sig) == 0
        assert not re.search("Traceback|terminate|Fatal Python", process.output())


# Without a process


def test_walks_offered_are_those_there_are():
    from da3_ros.parameter_schema import parameters
    from da3_ros.ros.synthetic_camera import CameraConfig

    (walk,) = (p for p in parameters(CameraConfig()) if p.name == "walk")
    assert set(walk.choices) == set(WALKS)
    assert all(p.text for p in parameters(CameraConfig()))
