"""What consumers of ROS ask of the node's outputs, each by its own source.

One node runs once: a robot in a rendered room, exact windows, metres. Each consumer has a table of
subscriptions with the QoS that it requests, and a test of what it does with the messages. The
consumers themselves were not run. Their sources, ROS 2 branches: navigation2 a3a9704,
image_pipeline 30b982a, rtabmap_ros aec4f91, isaac_ros_nvblox 319438a, octomap_mapping 72141b9,
robot_localization 1cb9533, depthimage_to_laserscan 79b60bf, image_transport_plugins 7404d77,
and nvblox 7c76f90.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from rclpy.qos import QoSProfile, ReliabilityPolicy
from support import ros_testing as rt
from support.compressed_depth import decode
from support.live_node import LiveNode
from support.node_process import FRAME, LIB, camera_frames
from support.robot import matrix

from da3_ros.config import ObstacleConfig
from da3_ros.geometry.poses import invert_pose
from da3_ros.messages import build
from da3_ros.messages.outputs import output_topics, topics
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.process

COUNT = 6
BASE = "base_link"
SEED = 0  # of the exact windows; its first draw is the logarithm of the first window's unit


# Subscriptions ----------------------------------------------------------------------------------


def sensor_data(depth):
    """rmw_qos_profile_sensor_data and rclcpp::SensorDataQoS, with another depth."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)


def system_default(depth):
    """As reliable as the middleware's own default."""
    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.SYSTEM_DEFAULT)


def camera_info_of(image):
    """The topic beside an image: image_transport::getCameraInfoTopic."""
    return f"{image.rpartition('/')[0]}/camera_info"


DEPTH, DEPTH_MM, RGB = "depth/image", "depth/image_16uc1", "rgb/image"
INFO = camera_info_of(DEPTH)
PACKED = f"{DEPTH}/compressedDepth"  # image_transport: base topic and name of the transport
CONSUMERS = {
    # plugins/obstacle_layer.cpp, onInitialize: nav2::qos::SensorDataQoS(50)
    "nav2": dict.fromkeys(("points/obstacles", "points/clearing", "scan"), sensor_data(50)),
    # point_cloud_xyz.cpp: rmw_qos_profile_system_default, depth queue_size; image and camera_info
    "point_cloud_xyz": dict.fromkeys((DEPTH, DEPTH_MM, INFO), system_default(5)),
    # point_cloud_xyzrgb.cpp: rmw_qos_profile_default; also what reads compressedDepth there
    "point_cloud_xyzrgb": dict.fromkeys((DEPTH, RGB, INFO, PACKED), rt.RELIABLE),
    # CommonDataSubscriber.cpp and nodelets/rgbd_sync.cpp: qos 0, topic_queue_size 10
    "rtabmap": dict.fromkeys((DEPTH, DEPTH_MM, RGB, INFO, "odom"), system_default(10)),
    # nvblox_node.cpp, subscribeToTopics: input_qos; SENSOR_DATA in its files for real cameras
    "nvblox": dict.fromkeys((DEPTH_MM, RGB, INFO), sensor_data(5)),
    # octomap_server.cpp: cloud_in with rmw_qos_profile_sensor_data
    "octomap_server": {"points": sensor_data(5)},
    # ros_filter.cpp, loadParams: SensorDataQoS(KeepLast(queue_size)), 10
    "robot_localization": dict.fromkeys(("odom", "pose"), sensor_data(10)),
    # DepthImageToLaserScanROS.cpp: SystemDefaultsQoS
    "depthimage_to_laserscan": dict.fromkeys((DEPTH, INFO), system_default(1)),
}


@dataclass
class Heard:
    """What each consumer's subscriptions got of one drive."""

    frames: list
    T_base_camera: np.ndarray
    messages: dict = field(default_factory=dict)  # by consumer and topic
    transforms: dict = field(default_factory=dict)  # child: {stamp, ns: (parent, T)}
    mounts: dict = field(default_factory=dict)  # child: (parent, T), of /tf_static

    def of(self, consumer, topic):
        """All messages; none if the node's QoS is not what the consumer requests."""
        got = self.messages[consumer, topic]
        assert got, f"{consumer} hears nothing on {topic}"
        return got

    def synced(self, consumer, *topics):
        """Messages of equal stamps: sync_policies::ExactTime of message_filters."""
        by_stamp = [{rt.stamp_ns(m): m for m in self.of(consumer, topic)} for topic in topics]
        stamps = sorted(set.intersection(*map(set, by_stamp)))
        assert stamps, f"{consumer}: no stamp that all have"
        return [tuple(messages[stamp] for messages in by_stamp) for stamp in stamps]

    def lookup(self, target, message):
        """T_target_frame [4, 4] at a message's stamp, as tf2 without extrapolation; else fails."""
        frame, T = message.header.frame_id, np.eye(4)
        while frame != target:
            parent, T_parent = (
                self.mounts.get(frame) or self.transforms[frame][rt.stamp_ns(message)]
            )
            frame, T = parent, T_parent @ T
        return T

    def true(self, message):
        """The rendered frame of a message's stamp."""
        return next(f for f in self.frames if f.stamp_ns == rt.stamp_ns(message))


@pytest.fixture(scope="module")
def heard():
    camera, frames = camera_frames(COUNT)
    out = Heard(frames, DriftingOdometry(frames[0].T_room_camera).T_base_camera)
    metres_per_unit = np.exp(-np.random.default_rng(SEED).normal(0, 0.5))
    values = {
        "base_frame": BASE, "scale.source": "fixed", "scale.factor": float(metres_per_unit),
        "refinement.enabled": False,
    }  # fmt: skip
    with (
        pytest.MonkeyPatch.context() as patch,
        LiveNode(patch, camera, frames, TruthSession, **values) as live,
    ):
        _listen(live, out)
        _drive(live, out)
    return out


def _listen(live, out):
    rows = output_topics()
    for consumer, wanted in CONSUMERS.items():
        for topic, qos in wanted.items():
            got = rt.collect(live.node, rows[topic].type, f"/da3/{topic}", qos)
            out.messages[consumer, topic] = got
    for topic, qos in (("/tf", rt.RELIABLE), ("/tf_static", rt.LATCHED)):
        out.messages["tf2", topic] = rt.collect(live.node, "tf2_msgs/msg/TFMessage", topic, qos)


def _drive(live, out):
    static = live.node.create_publisher(
        LIB.type("tf2_msgs/msg/TFMessage"), "/tf_static", rt.LATCHED
    )
    static.publish(build.tf(LIB, [(0, BASE, FRAME, out.T_base_camera)]))
    assert live.change(Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE)
    live.until(lambda: rt.matched(static, 2))  # the node and this test
    moving = out.messages["tf2", "/tf"]
    for _ in out.frames:
        stamp = live.show().stamp_ns
        live.until(lambda s=stamp: moving and rt.stamp_ns(moving[-1].transforms[0]) == s)
    rt.spin_until(live.node, lambda: all(out.messages.values()), 10.0)  # what is heard at all
    for t in (t for message in moving for t in message.transforms):
        at = out.transforms.setdefault(t.child_frame_id, {})
        at[rt.stamp_ns(t)] = t.header.frame_id, matrix(t.transform)
    (mount,) = out.messages["tf2", "/tf_static"][0].transforms
    out.mounts[mount.child_frame_id] = mount.header.frame_id, matrix(mount.transform)


# Reading as consumers do ------------------------------------------------------------------------


def pixels_of(image):
    """A view of the bytes by the header alone: encoding, size, step."""
    kind = {"32FC1": "<f4", "16UC1": "<u2", "rgb8": "u1"}[image.encoding]
    assert not image.is_bigendian
    rows = np.frombuffer(bytes(image.data), kind).reshape(image.height, -1)
    assert rows.strides[0] == image.step
    return rows.reshape(image.height, image.width, -1).squeeze()


def metres_of(image):
    """Depth [H, W] with NaN for unknown: depth_traits.hpp of depth_image_proc."""
    values = pixels_of(image)
    if image.encoding == "32FC1":
        return values
    return np.where(values > 0, values.astype(np.float64) / 1000, np.nan)


def points_of(cloud):
    """[N, 3]: pcl::fromROSMsg of PointXYZ finds x, y, z by name, as FLOAT32."""
    names = {f.name: f for f in cloud.fields}
    assert all((names[n].datatype, names[n].count) == (7, 1) for n in "xyz")
    assert cloud.row_step == cloud.width * cloud.point_step
    assert len(cloud.data) == cloud.height * cloud.row_step
    kind = np.dtype(
        {
            "names": list("xyz"), "formats": ["<f4"] * 3,
            "offsets": [names[n].offset for n in "xyz"], "itemsize": cloud.point_step,
        }
    )  # fmt: skip
    values = np.frombuffer(bytes(cloud.data), kind)
    return np.stack([values[n] for n in "xyz"], axis=-1)


def unprojected(depth_m, P):
    """[H, W, 3] by depth_image_proc, conversions.hpp, convertDepth: pixel centres are integers."""
    v, u = np.indices(depth_m.shape)
    x, y = (u - P[0, 2]) / P[0, 0], (v - P[1, 2]) / P[1, 1]
    return np.stack((x * depth_m, y * depth_m, depth_m), axis=-1)


def true_points(frame):
    """[H, W, 3] of a rendered frame, whose K has pixel centres at halves."""
    v, u = np.indices(frame.depth.shape) + 0.5
    x, y = (u - frame.K[0, 2]) / frame.K[0, 0], (v - frame.K[1, 2]) / frame.K[1, 1]
    return np.stack((x, y, np.ones_like(x)), axis=-1) * frame.depth[..., None]


def projection_of(info):
    """P [3, 4], of a camera_info that describes the whole, rectified image."""
    K, P = np.array(info.k).reshape(3, 3), np.array(info.p).reshape(3, 4)
    np.testing.assert_array_equal(P, np.hstack([K, np.zeros((3, 1))]))
    np.testing.assert_array_equal(np.array(info.r).reshape(3, 3), np.eye(3))
    assert not any(info.d)
    assert info.binning_x in (0, 1)
    assert info.binning_y in (0, 1)
    assert (info.roi.x_offset, info.roi.y_offset, info.roi.width, info.roi.height) == (0, 0, 0, 0)
    return P


def assert_covariance_is_known(values):
    covariance = np.array(values).reshape(6, 6)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-6, atol=1e-15)
    assert np.linalg.eigvalsh(covariance).min() > 0
    assert covariance.max() < 1e3


# Consumers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["points/obstacles", "points/clearing"])
def test_nav2_gets_clouds_whose_rays_begin_at_the_camera(heard, topic):
    """nav2_costmap_2d/src/observation_buffer.cpp, bufferCloud: a ray begins at the origin of the
    cloud's frame, at the stamp; plugins/obstacle_layer.cpp: a message filter waits for TF."""
    for cloud in heard.of("nav2", topic):
        T = heard.lookup("odom", cloud)
        points = points_of(cloud)
        assert np.isfinite(points).all()
        assert (points[:, 2] > 0).all()  # in front of the optical frame
        true = heard.true(cloud)
        assert abs(T[2, 3] - true.T_room_camera[2, 3]) < 1e-3  # odom begins on the floor
        heights = (points @ T[:3, :3].T + T[:3, 3])[:, 2]
        if topic == "points/obstacles":
            assert heights.min() > 0.0
            assert heights.max() <= ObstacleConfig().max_height + 0.01
        else:
            assert np.abs(heights).min() < 0.02


def test_nav2_gets_scans_of_one_geometry_in_a_frame_of_tf(heard):
    """plugins/obstacle_layer.cpp, laserScanCallback and laserScanValidInfCallback: +Inf becomes a
    point just below range_max, which must not mark; laser_geometry projects by the angles."""
    scans = heard.of("nav2", "scan")
    geometry = {
        (s.angle_min, s.angle_max, s.angle_increment, s.range_min, s.range_max, len(s.ranges))
        for s in scans
    }
    ((low, high, step, near, far, count),) = geometry
    assert (high - low) / step == pytest.approx(count - 1, rel=1e-5)
    assert far > ObstacleConfig().max_range
    for scan in scans:
        assert scan.header.frame_id == BASE
        heard.lookup("odom", scan)
        ranges = np.array(scan.ranges)
        seen = ranges[~np.isnan(ranges)]
        assert ((seen >= near) & (seen <= far) | (seen == np.inf)).all()
        assert np.isfinite(seen).any()


@pytest.mark.parametrize(("topic", "rounding"), [(DEPTH, 1e-5), (DEPTH_MM, 5.1e-4)])
def test_depth_image_proc_makes_the_points_of_the_room(heard, topic, rounding):
    """depth_image_proc/src/point_cloud_xyz.cpp: camera_info beside the image, 32FC1 or 16UC1;
    conversions.hpp and depth_traits.hpp: metres, or millimetres with 0 for unknown."""
    assert camera_info_of(topic) == INFO
    for image, info in heard.synced("point_cloud_xyz", topic, INFO):
        assert image.header == info.header
        assert (image.width, image.height) == (info.width, info.height)
        depth = metres_of(image)
        known = np.isfinite(depth)
        assert 0.8 < known.mean() < 1
        points = unprojected(depth, projection_of(info))[known]
        true = true_points(heard.true(image))[known]
        np.testing.assert_allclose(points, true, atol=2 * rounding, rtol=1e-5)
        np.testing.assert_allclose(points[:, 2], true[:, 2], atol=rounding, rtol=1e-5)


@pytest.mark.parametrize("camera", ["", "front/", "left/"])
def test_each_cameras_depth_has_its_calibration_beside_it(camera):
    """image_transport/src/camera_common.cpp, getCameraInfoTopic: camera_info for the last name."""
    published = {name for name, _ in topics([camera.rstrip("/")], [""])}
    for topic in (DEPTH, DEPTH_MM):
        assert {camera + topic, camera_info_of(camera + topic)} <= published


def test_depth_image_proc_colours_registered_depth(heard):
    """depth_image_proc/src/point_cloud_xyzrgb.cpp, imageCb: another size is an error and no cloud,
    another frame a warning; the camera_info of the colour is that of the depth."""
    for depth, rgb, info in heard.synced("point_cloud_xyzrgb", DEPTH, RGB, INFO):
        assert (rgb.width, rgb.height) == (depth.width, depth.height)
        assert (rgb.header.frame_id, rgb.encoding) == (depth.header.frame_id, "rgb8")
        assert info.header == depth.header
        true = heard.true(rgb)
        assert np.abs(pixels_of(rgb).astype(int) - true.image).mean() < 1.0


@pytest.mark.parametrize("topic", [DEPTH, DEPTH_MM])
def test_rtabmap_gets_one_stamp_one_size_and_one_scale(heard, topic):
    """rtabmap_sync, CommonDataSubscriber.cpp: approx_sync false is ExactTime; rtabmap_conversions,
    MsgConversion.cpp, convertRGBDMsgs: sizes of integer ratio, rgb8, 32FC1 or 16UC1, TF of the
    stamp."""
    ratios = []
    for depth, rgb, info, _ in heard.synced("rtabmap", topic, RGB, INFO, "odom"):
        assert (rgb.width % depth.width, rgb.height % depth.height) == (0, 0)
        assert rgb.width // depth.width == rgb.height // depth.height
        assert (info.width, info.height) == (rgb.width, rgb.height)
        assert rgb.encoding == "rgb8"
        assert depth.encoding in ("32FC1", "16UC1")
        np.testing.assert_allclose(heard.lookup(BASE, rgb), heard.T_base_camera, atol=1e-9)
        ratios.append(np.nanmedian(metres_of(depth) / heard.true(depth).depth))
    assert np.ptp(ratios) < 1e-4


def test_rtabmap_weighs_odometry_by_the_covariance_of_its_pose(heard):
    """rtabmap_slam, CoreWrapper.cpp, odomUpdate: TF at the stamp goes before the message's pose;
    the twist's covariance counts unless it is 9999 or not positive; where those of pose and twist
    are both 9999 or more, a new map begins; a variance of 1 is ignored."""
    for (odom,) in heard.synced("rtabmap", "odom"):
        assert odom.twist.covariance[0] == 9999
        assert odom.pose.covariance[0] < 9999
        assert_covariance_is_known(np.array(odom.pose.covariance) / 2)
        assert odom.pose.covariance[0] / 2 != 1.0
        T_odom_base = heard.transforms[BASE][rt.stamp_ns(odom)][1]
        T_odom_camera = rigid(odom.pose.pose)
        np.testing.assert_allclose(T_odom_base @ heard.T_base_camera, T_odom_camera, atol=1e-9)
    assert not np.allclose(T_odom_base, np.eye(4), atol=1e-3)  # an identity would be a reset


def rigid(pose):
    p, q = pose.position, pose.orientation
    assert p.x**2 + p.y**2 + p.z**2 < np.inf
    assert q.x**2 + q.y**2 + q.z**2 + q.w**2 == pytest.approx(1, abs=1e-9)
    return matrix(LIB.type("geometry_msgs/msg/Transform")(
        translation=LIB.type("geometry_msgs/msg/Vector3")(x=p.x, y=p.y, z=p.z), rotation=q
    ))  # fmt: skip


def test_nvblox_gets_millimetres_colour_and_the_cameras_place(heard):
    """nvblox_ros/src/lib/nvblox_node.cpp, subscribeToTopics: image and camera_info by ExactTime;
    conversions/image_conversions.cpp: 16UC1 over 1000, colour rgb8, intrinsics from k;
    transformer.cpp, lookupTransformTf: global_frame at the stamp."""
    for depth, rgb, info in heard.synced("nvblox", DEPTH_MM, RGB, INFO):
        assert (depth.encoding, rgb.encoding) == ("16UC1", "rgb8")
        assert (info.width, info.height) == (depth.width, depth.height) == (rgb.width, rgb.height)
        assert info.k[0] > 0
        assert info.k[4] > 0
        heard.lookup("odom", depth)
        values = pixels_of(depth)
        known = values > 0  # view_calculator.cu of nvblox drops what is not, and tests no NaN
        assert 0.8 < known.mean() < 1
        assert values.max() <= 1000 * heard.true(depth).depth.max() + 1


def test_octomap_server_gets_a_cloud_and_the_sensors_origin(heard):
    """octomap_server/src/octomap_server.cpp, insertCloudCallback: PCL fields, TF from frame_id to
    the cloud's frame at the stamp, NaN removed by its filters; insertScan: rays begin there."""
    first = None
    for cloud in heard.of("octomap_server", "points"):
        T_map_camera, true = heard.lookup("map", cloud), heard.true(cloud).T_room_camera
        if first is None:
            first = true @ invert_pose(T_map_camera)  # T_room_map
        np.testing.assert_allclose(first @ T_map_camera, true, atol=1e-3)
        assert {f.name for f in cloud.fields} == {"x", "y", "z", "rgb"}  # for colored_map
        points = points_of(cloud)
        known = np.isfinite(points).all(axis=1)
        assert known.any()
        assert not cloud.is_dense
        heights = (points[known] @ T_map_camera[:3, :3].T + T_map_camera[:3, 3])[:, 2]
        assert abs(heights.min()) < 0.02  # the floor is the map's z = 0


@pytest.mark.parametrize(("topic", "frame"), [("odom", "odom"), ("pose", "map")])
def test_robot_localization_gets_known_covariances_and_frames(heard, topic, frame):
    """robot_localization/src/ros_filter.cpp, copyCovariance: above 1e3 is a warning, so are 0 and
    less; poseCallback: stamps must rise; preparePose: the pose's frame and, with
    pose_use_child_frame, the child must be in TF; ekf.cpp, correct: -1 is taken as 1."""
    messages = heard.of("robot_localization", topic)
    stamps = [rt.stamp_ns(m) for m in messages]
    assert stamps == sorted(set(stamps))
    for message in messages:
        assert message.header.frame_id == frame
        assert_covariance_is_known(message.pose.covariance)
        rigid(message.pose.pose)


def test_robot_localization_sees_that_velocities_are_unknown(heard):
    """ros_filter.cpp, odometryCallback: the twist counts only by flags of odomN_config, which stay
    false; its frame is child_frame_id."""
    for odom in heard.of("robot_localization", "odom"):
        assert odom.child_frame_id == FRAME
        assert heard.mounts[FRAME][0] == BASE
        assert (np.diag(np.array(odom.twist.covariance).reshape(6, 6)) > 1e3).all()
        twist = odom.twist.twist
        assert not any(getattr(v, a) for v in (twist.linear, twist.angular) for a in "xyz")


def test_depthimage_to_laserscan_takes_the_middle_row(heard):
    """src/DepthImageToLaserScan.cpp, convert_msg, and convert in its header: one row from
    int(cy - scan_height / 2), range of a pixel sqrt(x^2 + z^2); a band beyond the image throws."""
    for depth, info in heard.synced("depthimage_to_laserscan", DEPTH, INFO):
        P, scan_height = projection_of(info), 1
        assert scan_height / 2 <= P[1, 2] <= depth.height - scan_height / 2
        row = int(P[1, 2] - scan_height / 2)
        ranges, there = (
            np.hypot(points[row, :, 0], points[row, :, 2])
            for points in (unprojected(metres_of(depth), P), true_points(heard.true(depth)))
        )
        known = np.isfinite(ranges)
        assert known.any()
        np.testing.assert_allclose(ranges[known], there[known], rtol=1e-4)


def test_image_transport_decodes_compressed_depth(heard):
    """compressed_depth_image_transport/src/codec.cpp, by a decoder of its own."""
    for image, packed in heard.synced("point_cloud_xyzrgb", DEPTH, PACKED):
        assert packed.header == image.header
        encoding, depth = decode(packed)
        assert encoding == image.encoding
        true = pixels_of(image)
        known = np.isfinite(true)
        np.testing.assert_array_equal(np.isfinite(depth), known)
        assert (np.abs(depth - true)[known] <= true[known] ** 2 / 20000 + 1e-6).all()
