"""Malformed images and calibrations, hundreds of them, through the decoder and the live node."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.cases import long_after
from support.fuzz import Fuzzer, one_line, try_decoder

from da3_ros.inference import preprocess
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import MAX_ASPECT, ImageError, image_size
from da3_ros.sensors.calibration import CalibrationError
from da3_ros.sensors.camera_info_matcher import KINDS, CameraInfoMatcher
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Calibration


@pytest.mark.parametrize("count", long_after(1, [400, 1500]))
def test_decoder_refuses_or_decodes_whatever_comes(count):
    done = try_decoder(RosbagsLibrary(), seed=1, count=count)
    assert done["tried"] == count
    assert done["refused"] + done["decoded"] == count, "a refusal is one line"
    assert min(done["refused"], done["decoded"]) > count / 5


def test_rectifier_refuses_or_rectifies_any_calibration():
    fuzzer, refused = Fuzzer(RosbagsLibrary(), 2), 0
    image = np.zeros((24, 32, 3), np.uint8)
    for _ in range(300):
        calibration = calibration_from_msg(fuzzer.camera_info((32, 24)))
        try:
            done = Rectifier()(image, calibration, bool(fuzzer.random.randrange(2)))
        except CalibrationError as error:
            refused += one_line(error)
            continue
        assert done.image.shape == image.shape
        assert np.isfinite(done.K).all()
    assert refused > 100


def test_camera_that_invents_sizes_fills_no_memory():
    keeper = CameraInfoMatcher("camera_info", timeout_s=0.0)
    for n in range(1000):
        keeper.add_image(n, "optical", n + 1, 10, now_ns=n)
        assert [item for item, _ in keeper.ready(n)] == [n]
    assert len(keeper._choices) <= KINDS


def test_camera_that_invents_names_fills_no_memory():
    keeper = CameraInfoMatcher("camera_info")
    calibration = Calibration(32, 24, np.array([[30.0, 0, 16], [0, 30.0, 12], [0, 0, 1]]))
    for n in range(1000):
        keeper.add_info(calibration, f"optical_{n}")
    assert 0 < len(keeper._infos) <= KINDS


def test_limit_of_thin_images_is_the_networks():
    assert preprocess.MAX_ASPECT == MAX_ASPECT


@pytest.mark.parametrize(
    ("width", "height"), [(0, 10), (2**31, 2**31), (10_001, 10_000), (140, 1)]
)
def test_impossible_image_size_is_refused_before_it_is_kept(width, height):
    message = Fuzzer(RosbagsLibrary(), 4).image()
    message.width, message.height = width, height
    with pytest.raises(ImageError):
        image_size(message)


@pytest.fixture
def ros():
    pytest.importorskip("rclpy", reason="needs ROS 2")
    from support import node_process

    return node_process


@pytest.mark.process
@pytest.mark.parametrize("count", long_after(1, [50, 300]))
def test_live_node_survives_and_counts_every_frame(ros, count):
    camera, frames = ros.camera_frames(4, rate_hz=2)
    with ros.Rig(camera_info_timeout_s=0.0) as rig:
        depths = rig.listen("/da3/depth/image", "sensor_msgs/msg/Image")
        rig.ready()
        rig.show(camera, frames[0])
        rig.until(lambda: depths)
        fuzzer = Fuzzer(ros.LIB, 3)
        for n in range(count):
            rig.images.publish(fuzzer.image(fuzzer.stamp()))
            if n % 5 == 0:
                rig.infos.publish(fuzzer.camera_info(ros.SIZE, fuzzer.stamp()))
            ros.rt.spin_until(rig.node, lambda: False, 0.005)
        rig.until(lambda: rig.drops().get("bad_image", 0) > count // 6)
        heard = len(depths)
        rig.call("std_srvs/srv/Trigger", "/da3/reset")
        rig.show(camera, frames[1])
        rig.until(lambda: len(depths) > heard)

        def accounted():
            last = rig.status[-1]
            dropped = sum(n for why, n in rig.drops().items() if why != "lost_on_the_way")
            return dropped + last.frames_processed == last.frames_received

        rig.until(accounted)
        assert "failed" not in rig.drops()
        assert "Traceback" not in rig.process.output()


@pytest.mark.process
def test_images_awaiting_calibration_stay_within_memory(ros, monkeypatch):
    """Large images wait for no calibration until memory is gone."""
    from da3_ros.config import InputConfig
    from da3_ros.ros import camera_subscriber as camera_input
    from da3_ros.ros.qos import Endpoints

    monkeypatch.setattr(camera_input, "QUEUED_BYTES", 3 * 30_000)
    taken = []
    with ros.rt.session(ros.rt.domain()) as node:
        host = SimpleNamespace(take=taken.append, drop=None, warn=None)
        inputs = camera_input.CameraInput(node, InputConfig(), Endpoints(node), host)
        for n in range(8):
            message = build.image(ros.LIB, n + 1, "optical", np.zeros((100, 100, 3), np.uint8))
            inputs._on_image(message)
        inputs.close()
    assert len(taken) == 8
    assert taken[0].calibration is None
