"""The live node as a real process over DDS: what goes in, what comes out, what it survives."""

import dataclasses
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import ros_testing as rt
from support.cases import long_after
from support.node_process import (
    FRAME,
    IMAGE,
    LIB,
    NODE,
    QUICK,
    SIZE,
    Rig,
    arguments,
    camera_frames,
    depth_of,
    set_parameter,
    values_of,
)

from da3_ros.cli.arguments import load_config
from da3_ros.messages import build
from da3_ros.recordings import open_recording
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera

pytestmark = pytest.mark.process


def test_log_of_rooms_is_throttled_by_kind_and_keeps_errors():
    from da3_ros.ros.node_log import NodeLog

    said = []
    logger = SimpleNamespace(error=said.append, warning=said.append, info=said.append)
    log = NodeLog(logger)
    room = logging.Logger("room")
    room.addHandler(log)
    for n in range(3):
        room.warning("window %d does not fit", n)
        room.warning("%s: bad", f"/camera_{n % 2}")
        room.error("window %d dropped", n)
        room.info("window %d", n)
    assert said == [
        "window 0 does not fit", "/camera_0: bad", "window 0 dropped", "window 0",
        "/camera_1: bad", "window 1", "window 2",
    ]  # fmt: skip
    assert log.last_error == "window 2 dropped"


def numbers_of(pose):
    """Position, orientation and covariance of a PoseWithCovariance, or of a FramePose, which has
    none."""
    p, q = pose.pose.position, pose.pose.orientation
    return [p.x, p.y, p.z, q.x, q.y, q.z, q.w, *getattr(pose, "covariance", ())]


def test_live_without_drops_equals_replay_bit_by_bit(tmp_path):
    camera, frames = camera_frames()
    write_synthetic_bag(tmp_path / "bag", camera)
    half = {"mixed_precision": "bfloat16"}
    settings = load_config(None, [f"{k}:={v}" for k, v in (QUICK | half).items()])
    replay(ReplayOptions(tmp_path / "bag", tmp_path / "out"), settings)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["refinement"]["windows"] > 0
    with open_recording(tmp_path / "out" / "output.mcap", camera="/da3/rgb") as recording:
        depths = [m for _, m in recording.messages("/da3/depth/image")]
        poses = [m for _, m in recording.messages("/da3/pose")]
        motion = [m for _, m in recording.messages("/da3/odom")]
        windows = [m for _, m in recording.messages("/da3/window")]
    with Rig(**half) as rig:
        live_depth = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        live_pose = rig.listen("/da3/pose", "geometry_msgs/msg/PoseWithCovarianceStamped")
        live_motion = rig.listen("/da3/odom", "nav_msgs/msg/Odometry")
        live_windows = rig.listen("/da3/window", "da3_ros/msg/Window")
        rig.ready()
        for i, frame in enumerate(frames):
            rig.show(camera, frame)
            rig.until(lambda n=i: min(map(len, (live_depth, live_pose, live_motion))) > n)
        rig.until(lambda: len(live_windows) == len(windows))
    assert [rt.stamp_ns(m) for m in live_depth] == [f.stamp_ns for f in frames]
    for live, recorded in zip(live_depth, depths, strict=True):
        assert bytes(live.data) == bytes(recorded.data)
        assert live.header.frame_id == FRAME
    for live, recorded in zip(live_pose, poses, strict=True):
        assert numbers_of(live.pose) == numbers_of(recorded.pose)
    for live, recorded in zip(live_motion, motion, strict=True):
        assert numbers_of(live.pose) == numbers_of(recorded.pose)
        assert list(live.twist.covariance) == list(recorded.twist.covariance)
    for live, recorded in zip(live_windows, windows, strict=True):
        assert [*map(numbers_of, live.frames)] == [*map(numbers_of, recorded.frames)]
    assert len(windows[-1].frames) > 1


def test_every_topic_comes_with_its_type_frame_and_stamp():
    camera, frames = camera_frames(4)
    topics = {
        "depth/image": "sensor_msgs/msg/Image",
        "depth/camera_info": "sensor_msgs/msg/CameraInfo",
        "rgb/image": "sensor_msgs/msg/Image",
        "depth/image_color": "sensor_msgs/msg/Image",
        "confidence/image": "sensor_msgs/msg/Image",
        "confidence/image_color": "sensor_msgs/msg/Image",
        "points": "sensor_msgs/msg/PointCloud2",
        "pose": "geometry_msgs/msg/PoseWithCovarianceStamped",
        "odom": "nav_msgs/msg/Odometry",
        "window": "da3_ros/msg/Window",
    }
    with Rig() as rig:
        got = {name: rig.listen(f"/da3/{name}", kind) for name, kind in topics.items()}
        paths = rig.listen("/da3/path", "nav_msgs/msg/Path", rt.LATCHED)
        clouds = rig.listen("/da3/map/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        transforms = rig.listen("/tf", "tf2_msgs/msg/TFMessage")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for i, frame in enumerate(frames):
            rig.show(camera, frame)
            rig.until(lambda n=i: all(len(m) > n for m in got.values()))
        rig.until(lambda: paths and clouds and diagnostics and len(transforms) >= 4)
        rig.until(lambda: rig.status and rig.status[-1].frames_processed == 4)
        rig.until(lambda: "scale is unknown" in diagnostics[-1].status[0].message)
        some = {"focal_ratio", "publish_median_s"}  # known after a while
        rig.until(lambda: some <= values_of(diagnostics[-1]).keys())
    stamps = [f.stamp_ns for f in frames]
    for name, messages in got.items():
        assert [rt.stamp_ns(m) for m in messages] == stamps, name
        frame = {"pose": "map", "odom": "odom", "window": "map"}.get(name, FRAME)
        assert messages[0].header.frame_id == frame, name
    assert got["odom"][0].child_frame_id == FRAME
    assert got["odom"][0].twist.covariance[0] == 9999.0
    assert 0 < got["odom"][2].pose.covariance[0] < 1
    assert 0 < got["pose"][2].pose.covariance[0] < 1
    depth, info, cloud = (got[n][2] for n in ("depth/image", "depth/camera_info", "points"))
    z, P = depth_of(depth), np.array(info.p).reshape(3, 4)
    assert (info.width, info.height) == SIZE == (depth.width, depth.height)
    points = np.frombuffer(bytes(cloud.data), "<f4").reshape(*z.shape, 4)[..., :3]
    known = np.isfinite(z)
    assert known.mean() > 0.1
    pixels = points[known] @ P[:, :3].T
    rows, columns = np.nonzero(known)
    np.testing.assert_allclose(pixels[:, 0] / pixels[:, 2], columns, atol=5e-3)
    np.testing.assert_allclose(pixels[:, 1] / pixels[:, 2], rows, atol=5e-3)
    edges = {(t.header.frame_id, t.child_frame_id) for t in transforms[-1].transforms}
    assert edges == {("map", "odom"), ("odom", FRAME)}
    status = rig.status[-1]
    assert (status.state, status.model, status.device) == ("active", "da3-tiny", "cpu")
    assert status.license == "Apache-2.0"
    assert tuple(status.process_size) == SIZE
    assert np.isnan(status.scale)
    assert status.scale_source == "none"
    assert status.frames_received == 4
    assert diagnostics[-1].status[0].level == b"\x01"  # WARN
    said = values_of(diagnostics[-1])
    assert float(said["focal_ratio"]) > 0
    assert said.keys() >= {
        "input_hz", "input_age_s", "input_stamp_age_s", "output_hz", "output_age_s",
        "network_median_s", "network_p95_s", "window_median_s", "window_p95_s",
        "refinement_median_s", "refinement_p95_s",
        "publish_median_s", "memory_budget_gb", "memory_plan_gb", "memory_peak_gb", "device",
        "precision", "attention", "model", "license", "scale_source", "scale", "alignment_rms",
        "alignment_inliers", "focal_source", "map_points", "map_memory_mb", "last_error",
        "loops_looked_at", "loops_verified", "loops_closed", "joins_undone",
    }  # fmt: skip
    assert diagnostics[-1].status[0].name == "/da3: stream"
    assert diagnostics[-1].status[0].hardware_id


@pytest.mark.long
def test_late_subscribers_get_the_map():
    """Topics without a subscriber cost nothing and late ones get the map."""
    camera, frames = camera_frames(4)
    with Rig() as rig:
        rig.ready()
        for i, frame in enumerate(frames):
            rig.show(camera, frame)
            rig.until(lambda n=i: rig.status and rig.status[-1].frames_processed > n)
        clouds = rig.listen("/da3/map/points", "sensor_msgs/msg/PointCloud2", rt.LATCHED)
        rig.until(lambda: clouds)
    assert clouds[0].width > 100


def test_services_export_reset_and_pause(tmp_path):
    camera, frames = camera_frames(5)
    root = tmp_path / "exports"
    with Rig(export_dir=str(root)) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        empty = rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", path="early.glb")
        assert not empty.success
        assert "nothing was processed" in empty.message
        for i, frame in enumerate(frames[:3]):
            rig.show(camera, frame)
            rig.until(lambda n=i: len(depths) > n)
        done = rig.call(
            "da3_ros/srv/ExportScene", "/da3/export_scene", path="a/scene", format="ply"
        )
        assert done.success, done.message
        assert done.path == str(root / "a" / "scene.ply")
        assert done.bytes == (root / "a" / "scene.ply").stat().st_size
        assert done.points > 100
        some = rig.call(
            "da3_ros/srv/ExportScene", "/da3/export_scene", path="few.glb", max_points=50
        )
        assert 0 < some.points <= 50
        (root / "file").write_text("")
        for path, words in (
            ("../out.ply", "is outside export_dir"),
            ("/etc/out.ply", "is outside export_dir"),
            ("file/out.ply", "cannot be written"),
            ("scene.obj", "unknown format"),
        ):
            refused = rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", path=path)
            assert not refused.success
            assert words in refused.message
        assert rig.call("std_srvs/srv/SetBool", "/da3/enable", data=False).success
        rig.show(camera, frames[3])
        rig.until(lambda: rig.drops().get("paused") == 1)
        assert rig.call("std_srvs/srv/SetBool", "/da3/enable", data=True).success
        assert rig.call("std_srvs/srv/Trigger", "/da3/reset").success
        rig.until(lambda: rig.status[-1].map_points == 0)
        rig.show(camera, frames[4])
        rig.until(lambda: len(depths) == 4)
    assert not [p for p in root.rglob("*") if p.name.startswith(".")]


def processor_s(process):
    """Processor time that a process has taken, seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_memory(pid: int) -> set[Path]:
    """Chains of Fast DDS that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(x.split()[-1]) for x in lines if re.search(r"/fastdds_[0-9a-f]{16}$", x)}


@pytest.mark.long
def test_the_node_leaves_no_shared_memory_behind():
    """Each start would otherwise take tens of megabytes of /dev/shm until the next boot."""
    with Rig() as rig:
        # Warm: a node that ends in the middle of a window ends at once, and leaves its chains.
        rig.until(lambda: rig.status and rig.status[-1].memory_plan_gb > 0)
        held = shared_memory(rig.process.pid)
        assert rig.process.stop() == 0
    assert_gone(held)  # now that the test's own node, whose chains it had mapped, is gone too


def test_the_synthetic_camera_leaves_no_shared_memory_behind():
    camera = "da3_ros.ros.synthetic_camera"
    small = ("-p", "width:=96", "-p", "height:=72", "-p", "walk_frames:=2")
    with rt.start(camera, *small, env=rt.environment(rt.domain())) as process:
        process.wait_for("publishing")
        held = shared_memory(process.pid)
        assert process.stop() == 0
    assert_gone(held)


def assert_gone(held):
    if not held:
        pytest.skip("the middleware is not Fast DDS with shared memory")
    gc.collect()
    assert not {path for path in held if path.exists()}


@pytest.mark.parametrize("kill", long_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_it_is_gone_within_four_seconds_even_in_mid_window(kill):
    camera, frames = camera_frames(8, rate_hz=10)
    slow = {"model": "da3-small", "process_res": 756, "window.size": 8, "window.new": 7}
    with Rig(**slow) as rig:
        rig.ready()
        for frame in frames[:7]:
            rig.show(camera, frame)
            rt.spin_until(rig.node, lambda: False, 0.1)  # as a camera: not in a burst
        rig.until(lambda: rig.status and rig.status[-1].frames_received == 7)
        # The graph does not show that the window runs, but the processor's load does.
        before = processor_s(rig.process)
        rig.until(lambda: processor_s(rig.process) - before > 0.5)
        assert rig.process.stop(kill, timeout_s=4.0) == 0
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
def test_configure_without_checkpoint_names_the_remedies(tmp_path):
    """Configure without checkpoint fails with the remedies and the node stays."""
    from lifecycle_msgs.msg import Transition

    with Rig(checkpoint=str(tmp_path)) as rig:
        rig.process.wait_for("lacks config.json and model.safetensors")
        rig.until(lambda: rig.status and rig.status[-1].last_error)
        assert rig.status[-1].state == "unconfigured"
        answer = set_parameter(rig, "checkpoint", "random")
        assert answer.successful
        for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE):
            change = Transition(id=transition)
            done = rig.call(
                "lifecycle_msgs/srv/ChangeState", "/da3/change_state", transition=change
            )
            assert done.success
        camera, frames = camera_frames(1)
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: rig.status[-1].frames_processed == 1)


def test_parameters_are_described_and_refused_with_the_reason():
    with Rig() as rig:
        rig.until(lambda: rig.status and rig.status[-1].state == "active")
        described = rig.call(
            "rcl_interfaces/srv/DescribeParameters",
            "/da3/describe_parameters",
            names=["window.size", "device"],
        ).descriptors
        assert described[0].integer_range[0].from_value == 2
        assert "one of auto, cuda, mps, cpu" in described[1].additional_constraints
        fixed = set_parameter(rig, "model", "da3-base")
        assert not fixed.successful
        assert "deactivate and clean up" in fixed.reason
        assert set_parameter(rig, "depth.min_confidence", 1.5).successful
        assert set_parameter(rig, "memory_budget_gb", 1.5).successful
        rig.until(lambda: rig.status[-1].memory_budget_gb == pytest.approx(1.5))
        bad = set_parameter(rig, "depth.color_range_m", [5.0, 1.0])
        assert not bad.successful
        assert "depth.color_range_m" in bad.reason


def malformed():
    """Images that no camera should send, with the cause they are counted under."""
    good = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)

    def image(**changes):
        message = build.image(LIB, 1, FRAME, good)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    return {
        "unknown encoding": image(encoding="rgb9"),
        "zero size": image(width=0, height=0),
        "short step": image(step=10),
        "short data": image(data=LIB.bytes(good[:5])),
        "huge": image(width=2**31, height=2**31),
    }


@pytest.mark.long
def test_bad_images_are_counted_named_and_survived():
    camera, frames = camera_frames(3)
    with Rig() as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: len(depths) == 1)
        for n, message in enumerate(malformed().values(), 1):
            message.header.stamp = build.time(LIB, frames[0].stamp_ns + n * 10**7)
            rig.images.publish(message)
            rig.until(lambda n=n: rig.drops().get("bad_image") == n)
        rig.show(camera, frames[1])
        rig.until(lambda: len(depths) == 2)
        assert rig.process.running
        assert f"{IMAGE}: image dropped" in rig.process.output()
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
def test_invalid_intrinsics_are_replaced_by_the_networks():
    camera, frames = camera_frames(2)
    with Rig(camera_info_timeout_s=0.5) as rig:
        infos = rig.listen("/da3/depth/camera_info", "sensor_msgs/msg/CameraInfo")
        rig.ready()
        broken = build.calibration_message(LIB, 1, FRAME, camera.calibration)
        broken.k = np.full(9, np.nan)
        rig.infos.publish(broken)
        rig.images.publish(build.image(LIB, frames[0].stamp_ns, FRAME, frames[0].image))
        rig.until(lambda: infos)
        assert np.isfinite(infos[0].k).all()
        assert infos[0].k[0] != pytest.approx(camera.calibration.K[0, 0])
        assert "NaN" in rig.process.output()
        assert "/camera/camera_info" in rig.process.output()


@pytest.mark.long
def test_a_late_camera_info_is_taken_over_and_the_map_stays():
    camera, frames = camera_frames(6)
    with Rig(camera_info_timeout_s=0.0) as rig:
        infos = rig.listen("/da3/depth/camera_info", "sensor_msgs/msg/CameraInfo")
        rig.ready()
        for n, frame in enumerate(frames[:2], 1):
            rig.images.publish(build.image(LIB, frame.stamp_ns, FRAME, frame.image))
            rig.until(lambda n=n: len(infos) == n)
        focal = camera.calibration.K[0, 0]
        assert infos[-1].k[0] != pytest.approx(focal)
        rig.infos.publish(build.calibration_message(LIB, 1, FRAME, camera.calibration))
        rig.until(lambda: "arrived late" in rig.process.output())
        for n, frame in enumerate(frames[2:], 3):
            rig.show(camera, frame)
            rig.until(lambda n=n: len(infos) == n)
        assert infos[-1].k[0] == pytest.approx(focal)
        assert rig.process.output().count("arrived late") == 1
        assert "Traceback" not in rig.process.output()


@pytest.mark.long
def test_bursts_with_pauses_are_not_reported_as_lost():
    _, frames = camera_frames(1)
    with Rig(camera_info_timeout_s=0.0) as rig:
        rig.ready()
        rig.call("std_srvs/srv/SetBool", "/da3/enable", data=False)
        for burst in range(10):
            for n in range(4):
                stamp = frames[0].stamp_ns + (14 * burst + n) * 33_333_333
                rig.images.publish(build.image(LIB, stamp, FRAME, frames[0].image))
            rig.until(lambda b=burst: rig.status and rig.drops().get("paused", 0) == 4 * b + 4)
        assert "lost_on_the_way" not in rig.drops()
        text = rig.process.output()
        assert "did not arrive" not in text


@pytest.mark.long
def test_wrong_stamps_are_faults_with_their_cause_and_no_new_component():
    camera, frames = camera_frames(8)
    hour = 3600 * 10**9
    with Rig() as rig:
        windows = rig.listen("/da3/window", "da3_ros/msg/Window")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for n in range(3):
            rig.show(camera, frames[n])
            rig.until(lambda n=n: len(windows) > n)
        rig.show(camera, dataclasses.replace(frames[3], stamp_ns=frames[3].stamp_ns + hour))
        rig.show(camera, frames[4])
        rig.until(lambda: rig.drops().get("bad_stamp") == 1)
        rig.until(lambda: len(windows) == 4)
        assert "jump back" not in rig.process.output()
        assert "ahead of the image before" in rig.process.output()

        def told():  # a cause is logged every five seconds
            rig.images.publish(build.image(LIB, 0, FRAME, frames[5].image))
            return "header.stamp is 0" in rig.process.output()

        rig.until(told)
        rig.until(lambda: "image stamps are wrong" in diagnostics[-1].status[0].message)
        assert set(rig.drops()) <= {"bad_stamp"}
        rig.show(camera, frames[7])
        rig.until(lambda: len(windows) == 5)


@pytest.mark.long
def test_late_repeated_and_jumping_stamps():
    camera, frames = camera_frames(4)
    with Rig(max_late_s=0.15) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        for n, i in enumerate((0, 1, 2, 3), 1):
            rig.show(camera, frames[i])
            rig.until(lambda n=n: len(depths) == n)
        rig.show(camera, frames[3])
        rig.until(lambda: rig.drops().get("late") == 1)
        rig.show(camera, frames[2])
        rig.until(lambda: rig.drops().get("late") == 2)
        rig.show(camera, frames[0])
        rig.until(lambda: len(depths) == 5)
        assert "jump back" in rig.process.output()


@pytest.mark.long
def test_after_a_jump_the_pose_is_published_as_unknown(tmp_path):
    """Over the node: covariances, diagnostics, the map that is shown, and exports."""
    camera, frames = camera_frames(6)
    values = {"scale.source": "fixed", "map.voxel_m": 0.05, "max_late_s": 0.15}
    with Rig(export_dir=str(tmp_path), **values) as rig:
        poses = rig.listen("/da3/pose", "geometry_msgs/msg/PoseWithCovarianceStamped")
        odoms = rig.listen("/da3/odom", "nav_msgs/msg/Odometry")
        windows = rig.listen("/da3/window", "da3_ros/msg/Window")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for n, i in enumerate((0, 1, 2, 3, 4, 5, 0, 1, 2), 1):
            rig.show(camera, frames[i])
            rig.until(lambda n=n: len(poses) == len(odoms) == len(windows) == n)
            if n == 6:
                rig.until(lambda: values_of(diagnostics[-1]).get("place") == "known")
        variances = [m.pose.covariance[0] for m in poses]
        assert max(variances[:6]) < 1
        np.testing.assert_array_equal(
            np.array(poses[-1].pose.covariance).reshape(6, 6), 1e6 * np.eye(6)
        )
        assert odoms[-1].pose.covariance[0] < 1  # odometry has begun anew
        assert [w.scale_source for w in windows] == ["fixed"] * 6 + ["none"] * 3
        # Read beside the worker: one message may tell the place of a window and the scale before.
        rig.until(
            lambda: (
                values_of(diagnostics[-1]).get("place") == "guessed"
                and np.isnan(float(values_of(diagnostics[-1])["scale"]))
            )
        )
        assert "lengths are not in metres" in diagnostics[-1].status[0].message
        done = rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", path="scene.ply")
        assert done.success
        assert "unconnected" not in done.message  # what has no metres is not in the scene


@pytest.mark.long
def test_unconnected_components_are_exported_or_left_out(tmp_path):
    camera, frames = camera_frames(6)
    with Rig(export_dir=str(tmp_path), **{"map.voxel_m": 0.05, "max_late_s": 0.15}) as rig:
        poses = rig.listen("/da3/pose", "geometry_msgs/msg/PoseWithCovarianceStamped")
        diagnostics = rig.listen("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
        rig.ready()
        for n, i in enumerate((0, 1, 2, 3, 4, 5, 0, 1, 2), 1):
            rig.show(camera, frames[i])
            rig.until(lambda n=n: len(poses) == n)
        rig.until(lambda: values_of(diagnostics[-1]).get("parts_guessed") == "1")
        assert values_of(diagnostics[-1])["parts"] == "2"
        everything = rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", path="all.ply")
        assert "2 components, 1 unconnected" in everything.message
        assert set_parameter(rig, "map.export_guessed", False).successful
        known = rig.call("da3_ros/srv/ExportScene", "/da3/export_scene", path="known.ply")
        assert known.points < everything.points
        assert "unconnected" not in known.message.replace(known.path, "")


@pytest.mark.long
def test_a_change_of_resolution_in_mid_stream_is_survived():
    camera, frames = camera_frames(2)
    other = SyntheticCamera(
        seed=2, size=(140, 84), walk="straight", frames=4, start_ns=camera.start_ns
    )
    with Rig() as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        for n, frame in enumerate(frames, 1):
            rig.show(camera, frame)
            rig.until(lambda n=n: len(depths) == n)
        rig.show(other, other[3])
        rig.until(lambda: len(depths) == 3)
        assert (depths[2].width, depths[2].height) == (140, 84)
        assert "image size" in rig.process.output()


def test_reliability_follows_the_publishers():
    with Rig(qos=rt.BEST_EFFORT) as rig:
        rig.until(lambda: rt.matched(rig.images))

        def offered():
            infos = rig.node.get_subscriptions_info_by_topic(IMAGE)
            return [i.qos_profile.reliability.name for i in infos]

        rig.until(lambda: offered() == ["BEST_EFFORT"])
        rig.node.destroy_publisher(rig.images)
        reliable = rig.node.create_publisher(LIB.type("sensor_msgs/msg/Image"), IMAGE, rt.RELIABLE)
        rig.until(lambda: offered() == ["RELIABLE"])
        assert reliable


@pytest.mark.long
def test_the_newest_frames_count_when_the_camera_is_faster():
    camera, frames = camera_frames(40, rate_hz=100)
    with Rig(process_res=504) as rig:  # slower than the camera on any processor
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.until(lambda: rig.status)
        for frame in frames:
            rig.show(camera, frame)
            rt.spin_until(rig.node, lambda: False, 0.02)
        rig.until(lambda: depths and rt.stamp_ns(depths[-1]) == frames[-1].stamp_ns)
        rig.until(lambda: rig.drops().get("busy", 0) > 0)

        def accounted():
            last = rig.status[-1]
            return rig.drops()["busy"] + last.frames_processed == last.frames_received

        rig.until(accounted)
        # A machine that is busy elsewhere may let the middleware's queue of five run over.
        assert set(rig.drops()) <= {"busy", "lost_on_the_way"}


@pytest.mark.long
def test_a_compressed_camera_with_distortion_comes_through():
    domain = rt.domain()
    camera = rt.start(
        "da3_ros.ros.synthetic_camera", "-r", "image_raw:=/cam/image_raw", "-p", "frames:=0",
        "-p", "buffer_frames:=4", "-p", "width:=140", "-p", "height:=112",
        "-p", "transport:=compressed", "-p", "distortion:=[-0.1,0.01,0.0,0.0,0.0]",
        env=rt.environment(domain),
    )  # fmt: skip
    node = rt.start(
        NODE, *arguments("/cam/image_raw", image_transport="compressed"),
        env=rt.environment(domain),
    )  # fmt: skip
    with camera, node, rt.session(domain) as test:
        infos = rt.collect(test, "sensor_msgs/msg/CameraInfo", "/da3/depth/camera_info")
        assert rt.spin_until(test, lambda: len(infos) > 2), node.output() + camera.output()
    assert not np.any(infos[-1].d)
    assert infos[-1].width == 140


@pytest.mark.long
def test_waiting_names_the_topic_and_the_remap_that_helps():
    domain = rt.domain()
    with rt.session(domain) as test:
        publisher = test.create_publisher(
            LIB.type("sensor_msgs/msg/Image"), "/robot/front/image_raw", rt.BEST_EFFORT
        )
        node = rt.start(NODE, *arguments(), env=rt.environment(domain))
        with node:
            node.wait_for("no message received for 5 s")
            assert rt.spin_until(test, lambda: "/robot/front/image_raw" in node.output())
            assert IMAGE in node.output()
            assert publisher


def test_a_wrong_parameter_type_is_one_line(tmp_path):
    domain = rt.domain()
    with rt.start(NODE, "-p", "window.size:=text", env=rt.environment(domain)) as node:
        assert node.wait() == 2
        assert "Traceback" not in node.output()
        assert "window.size" in node.output()


@pytest.mark.long
def test_no_search_for_garbage_looks_at_what_was_imported():
    """It would stop all threads for a tenth of a second, in the middle of a drive."""
    script = Path(__file__).parents[2] / "scripts" / "da3_node"
    words = f"""
import gc, runpy, sys
sys.argv = ["da3_node", "--ros-args", "-p", "window.size:=text"]
try:
    runpy.run_path({str(script)!r}, run_name="__main__")
except SystemExit as end:
    print(end.code, gc.isenabled(), gc.get_freeze_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=120,
        env=rt.environment(rt.domain()),
    )  # fmt: skip
    code, enabled, frozen = done.stdout.split()
    assert (code, enabled) == ("2", "True"), done.stderr
    assert int(frozen) > 100_000


def test_status_is_plain_data():
    """A recorded status can be kept: every field is a number, a text or a list of them."""
    status = build.status(LIB, 5, state="active", drops={"busy": 3})
    fields = status.get_fields_and_field_types()
    text = json.dumps({n: str(getattr(status, n)) for n in fields})
    assert "busy" in text
