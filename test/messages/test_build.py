"""Messages hold what the core computed; checked by serialising and reading them again."""

import dataclasses

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from da3_ros.drawing.colormaps import colorize_depth
from da3_ros.geometry.poses import T_ROS_MAP
from da3_ros.messages import build
from da3_ros.messages.build import OWN_MESSAGES, RosbagsLibrary, _own_definition
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import decode, stamp_ns
from da3_ros.types import Calibration, Scale, TrackedFrame, WindowReport

STAMP = 1_700_000_000_123_456_789
K = np.array([[50.0, 0, 20.0], [0, 45, 15.0], [0, 0, 1]])
H, W = 30, 40
LIB = RosbagsLibrary()


def over_the_wire(message):
    """What a receiver gets."""
    kind = message.__msgtype__
    return LIB.store.deserialize_cdr(LIB.serialize(message, kind), kind)


@pytest.fixture
def depth():
    depth = np.random.default_rng(0).uniform(1, 5, (H, W)).astype(np.float32)
    depth[0, 0], depth[1, 1] = np.nan, np.inf
    return depth


@pytest.fixture
def rgb():
    return np.random.default_rng(1).integers(0, 256, (H, W, 3), np.uint8)


def unpack(message):
    """Points [H, W, 3] and colours [H, W, 3] of a PointCloud2, read by its own fields."""
    at = {f.name: f.offset for f in message.fields}
    assert all((f.datatype, f.count) == (7, 1) for f in message.fields)
    rows = message.data.reshape(message.height, message.width, message.point_step)
    xyz = [rows[..., at[n] : at[n] + 4].copy().view("<f4")[..., 0] for n in "xyz"]
    packed = rows[..., at["rgb"] : at["rgb"] + 4].copy().view("<u4")[..., 0]
    return np.stack(xyz, -1), np.stack([packed >> s & 255 for s in (16, 8, 0)], -1)


def test_header_keeps_nanoseconds():
    header = over_the_wire(build.header(LIB, STAMP, "cam"))
    assert (stamp_ns(header.stamp), header.frame_id) == (STAMP, "cam")


def test_depth_image_keeps_every_value(depth):
    message = over_the_wire(build.image(LIB, STAMP, "cam", depth))
    assert (message.encoding, message.step, message.is_bigendian) == ("32FC1", 4 * W, 0)
    np.testing.assert_array_equal(message.data.view("<f4").reshape(H, W), depth)


def test_colour_image_is_read_back(rgb):
    message = over_the_wire(build.image(LIB, STAMP, "cam", rgb[:, ::-1]))
    np.testing.assert_array_equal(decode(message), rgb[:, ::-1])
    with pytest.raises(TypeError):
        build.image(LIB, STAMP, "cam", rgb.astype(np.float64))


def test_compressed_images_are_read_back(rgb):
    lossless = over_the_wire(build.compressed_image(LIB, STAMP, "cam", rgb, "png"))
    np.testing.assert_array_equal(decode(lossless), rgb)
    smooth = np.full_like(rgb, (200, 90, 20))
    lossy = over_the_wire(build.compressed_image(LIB, STAMP, "cam", smooth))
    np.testing.assert_allclose(decode(lossy).astype(int), smooth, atol=4)


def test_camera_info_holds_the_ros_pixel_rule():
    message = over_the_wire(build.camera_info(LIB, STAMP, "cam", K, W, H))
    np.testing.assert_array_equal(message.k.reshape(3, 3), K - [[0, 0, 0.5], [0, 0, 0.5], [0] * 3])
    np.testing.assert_array_equal(message.p.reshape(3, 4)[:, :3], message.k.reshape(3, 3))
    np.testing.assert_array_equal(message.p.reshape(3, 4)[:, 3], 0)
    np.testing.assert_array_equal(message.r.reshape(3, 3), np.eye(3))
    assert not message.d.any()
    assert (message.width, message.height, message.distortion_model) == (W, H, "plumb_bob")


def test_calibration_survives_a_round_trip():
    c = Calibration(
        640, 480, K, "rational_polynomial", np.arange(8) / 10, np.eye(3), np.ones((3, 4)),
        2, 1, 10, 20, 300, 200, True,
    )  # fmt: skip
    back = calibration_from_msg(over_the_wire(build.calibration_message(LIB, STAMP, "cam", c)))
    for a, b in zip(dataclasses.astuple(c), dataclasses.astuple(back), strict=True):
        np.testing.assert_array_equal(a, b)


def test_cloud_points_project_to_their_own_pixels(depth, rgb):
    """Cloud points project to their own pixels through camera_info."""
    cloud = over_the_wire(build.depth_cloud(LIB, STAMP, "cam", depth, K, rgb))
    info = over_the_wire(build.camera_info(LIB, STAMP, "cam", K, W, H))
    assert (cloud.height, cloud.width, cloud.point_step, cloud.row_step) == (H, W, 16, 16 * W)
    assert not cloud.is_dense
    points, colors = unpack(cloud)
    np.testing.assert_array_equal(np.isnan(points).all(-1), ~np.isfinite(depth))
    homogeneous = np.concatenate([points, np.ones((H, W, 1))], -1) @ info.p.reshape(3, 4).T
    pixels = homogeneous[..., :2] / homogeneous[..., 2:]
    row, column = np.mgrid[0:H, 0:W]
    known = np.isfinite(depth)
    # ROS: the centre of a pixel is its whole number.
    np.testing.assert_allclose(pixels[known], np.stack([column, row], -1)[known], atol=1e-4)
    np.testing.assert_array_equal(points[known][:, 2], depth[known])
    np.testing.assert_array_equal(colors, rgb)


def test_free_cloud_is_dense(rgb):
    points = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    cloud = over_the_wire(build.point_cloud(LIB, STAMP, "map", points, rgb[0, :7]))
    back, colors = unpack(cloud)
    assert cloud.is_dense
    np.testing.assert_array_equal(back[0], points)
    np.testing.assert_array_equal(colors[0], rgb[0, :7])


def pose_ahead():
    """A camera 2 ahead of, 1 right of and 3 below the first one, turned to the right."""
    T = np.eye(4)
    T[:3, :3] = [[0, 0, 1], [0, 1, 0], [-1, 0, 0]]
    T[:3, 3] = [1, 3, 2]
    return T_ROS_MAP @ T


def test_pose_stands_in_map_axes():
    message = over_the_wire(build.pose_with_covariance(LIB, STAMP, "map", pose_ahead()))
    p, q = message.pose.pose.position, message.pose.pose.orientation
    assert (p.x, p.y, p.z) == (2, -1, -3)
    # The optical axis, z of the camera, looks right: -y of the map.
    x, y, z, w = q.x, q.y, q.z, q.w
    axis = (2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y))
    np.testing.assert_allclose(axis, (0, -1, 0), atol=1e-12)
    assert message.header.frame_id == "map"


def test_unknown_covariances_are_large_never_zero_or_minus_one():
    """robot_localization floors 0 to 1e-9 and takes the absolute value of -1."""
    odometry = over_the_wire(build.odometry(LIB, STAMP, "odom", "cam", np.eye(4)))
    pose = over_the_wire(build.pose_with_covariance(LIB, STAMP, "map", np.eye(4)))
    for part, variance in ((odometry.twist, 9999.0), (odometry.pose, 1e6), (pose.pose, 1e6)):
        np.testing.assert_array_equal(part.covariance.reshape(6, 6), variance * np.eye(6))


def test_known_covariances_are_row_major():
    known = np.arange(36.0).reshape(6, 6)
    message = over_the_wire(build.odometry(LIB, STAMP, "odom", "cam", np.eye(4), known))
    np.testing.assert_array_equal(message.pose.covariance, np.arange(36.0))


def test_path_and_tf():
    path = over_the_wire(build.path(LIB, STAMP, "map", [(5, np.eye(4)), (STAMP, pose_ahead())]))
    assert [stamp_ns(p.header.stamp) for p in path.poses] == [5, STAMP]
    assert path.poses[1].pose.position.x == 2
    tf = over_the_wire(build.tf(LIB, [(STAMP, "map", "odom", np.eye(4))]))
    (one,) = tf.transforms
    assert (one.header.frame_id, one.child_frame_id, one.transform.rotation.w) == (
        "map",
        "odom",
        1,
    )


@pytest.fixture
def frame(depth, rgb):
    report = WindowReport(
        id=3, stamp_ns=STAMP, view_ids=(8, 9), new_frames=1, aligned=True, alignment_rms=0.1,
        alignment_inliers=0.9, unit=2.0, scale=Scale("fixed", 1.5, 0.1), inference_s=0.2,
    )  # fmt: skip
    confidence = np.full((H, W), 4, np.float32)
    confidence[0] = np.nan
    return TrackedFrame(
        id=9, stamp_ns=STAMP, frame_id="cam", camera="front", image=rgb, depth_m=depth,
        confidence=confidence, K=K, T_map_camera=np.eye(4), keyframe=True,
        scale=report.scale, window=report,
    )  # fmt: skip


def test_window_lists_its_frames_and_its_scale(frame):
    views = [(build.WindowView.from_frame(frame), frame.T_map_camera)]
    message = over_the_wire(build.window(LIB, frame.window, views))
    assert (message.id, message.header.frame_id, message.new_frames) == (3, "map", 1)
    # Metres per network unit: metres per scene unit times scene units per network unit.
    assert (message.scale_source, message.scale) == ("fixed", 3.0)
    (one,) = message.frames
    assert (one.camera, one.keyframe, one.confidence) == ("front", True, 4.0)
    assert one.k[2] == K[0, 2] - 0.5


def test_status_fills_unset_fields():
    message = over_the_wire(
        build.status(LIB, STAMP, state="active", drops={"late": 2, "age": 1}, input_hz=30)
    )
    assert (message.state, message.license, message.input_hz) == ("active", "", 30)
    assert np.isnan(message.latency_p95_s)
    assert message.drop_causes == ["age", "late"]
    assert message.drop_counts.tolist() == [1, 2]
    with pytest.raises(TypeError, match="no field 'speed'"):
        build.status(LIB, STAMP, speed=1)


def test_our_messages_are_those_of_the_definition_files():
    for name in OWN_MESSAGES:
        fields = {f.name for f in dataclasses.fields(LIB.type(f"da3_ros/msg/{name}"))}
        text = _own_definition(name)
        declared = {
            line.split("#")[0].split()[1]
            for line in text.splitlines()
            if line.split("#")[0].strip()
        }
        assert fields - {"__msgtype__"} == declared


def test_type_hashes_of_standard_messages_are_the_official_ones():
    # From metadata.yaml of bags that ROS 2 recorded.
    official = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47"
    assert LIB.store.hash_rihs01("sensor_msgs/msg/Image") == official
    assert get_typestore(Stores.ROS2_KILTED).hash_rihs01("sensor_msgs/msg/Image") == official


def test_coloured_depth_is_fixed_to_metres():
    depth = np.array([[0.1, 0.3, 5.15, 10.0, 99.0, np.nan, np.inf]], np.float32)
    for name in ("spectral", "turbo"):
        near, low, _, high, far, unknown, sky = colorize_depth(depth, (0.3, 10.0), name)[0]
        np.testing.assert_array_equal(near, low)
        np.testing.assert_array_equal(high, far)
        assert low[0] > 100  # near is red
        assert low[0] > low[2]
        assert high[2] > high[0]
        assert not unknown.any()
        assert sky.min() > 200
