"""Every image that came is processed, waits, or is counted under the cause that lost it."""

import sys
import threading

import numpy as np
import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import Session
from da3_ros.live.scene_stream import RawFrame
from da3_ros.live.stream import Stream
from da3_ros.messages import build
from da3_ros.messages.build import RosbagsLibrary
from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher
from da3_ros.sensors.pose_prior import PoseHistory
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Prediction

LIB = RosbagsLibrary()
SIZE = (56, 42)


class AnyDepth(Session):
    """Any depth; its windows of the given numbers break."""

    def __init__(self, *broken):
        self.windows, self.broken = 0, broken

    def infer(self, window):
        self.windows += 1
        if self.windows in self.broken:
            raise RuntimeError("of this window")
        shape = (len(window.views), *window.views[0].image.shape[:2])
        K = np.array([view.K for view in window.views], np.float64)
        return Prediction(
            depth=np.ones(shape, np.float32), confidence=np.full(shape, 2.0, np.float32), K=K,
            T_window_camera=np.tile(np.eye(4), (len(window.views), 1, 1)),
        )  # fmt: skip


class Host:
    """What a stream needs of the node."""

    def publish(self, published):
        pass

    def has_subscribers(self, topic):
        return False

    def now_ns(self):
        return 0

    def warn(self, text, every_s=0.0):
        pass

    def stopping(self):
        return False


def stream_of(network, cameras=(), **changes):
    values = {"model": "da3-tiny", "checkpoint": "random", "process_res": 56, **changes}
    values |= {"cameras": list(cameras), "tf.publish": "none"}
    config = config_from_parameters(values, NodeConfig)
    return Stream(config, LIB, Host(), TransformTree(), session=network)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=12)


def put(stream, camera, frames, names=("",)):
    for frame in frames:
        message = build.image(LIB, frame.stamp_ns, "optical", frame.image)
        for name in names:
            stream.put(
                RawFrame(frame.stamp_ns, message, "optical", camera.calibration, True, "t", name)
            )


def step(stream):
    """As the worker: an exception is reported, and the next step comes. True if one was."""
    try:
        stream.step()
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("names", [("",), ("front", "left")])
@pytest.mark.parametrize("new", [1, 3])
def test_a_window_that_fails_counts_all_its_new_images(camera, new, names):
    cameras = names if len(names) > 1 else ()
    stream = stream_of(AnyDepth(2), cameras, **{"window.new": new, "window.size": 8})
    frames = list(camera)[: 3 * new]
    failures = 0
    for n in range(3):
        put(stream, camera, frames[n * new : (n + 1) * new], names)
        stream.put_rest()
        failures += step(stream)
    assert failures == 1
    assert stream.frame_counts.drop_counts() == {"failed": new * len(names)}
    assert stream.frame_counts.processed == 2 * new * len(names)
    assert stream.frame_counts.received == 3 * new * len(names)


def test_what_breaks_while_frames_are_read_counts_those_frames(camera, monkeypatch):
    stream = stream_of(AnyDepth(), **{"window.new": 3, "window.size": 4})

    def broken(message):
        raise RuntimeError("in decode")

    with monkeypatch.context() as patch:
        patch.setattr("da3_ros.live.stream.decode", broken)
        put(stream, camera, list(camera)[:3])
        assert step(stream)
    assert stream.frame_counts.drop_counts() == {"failed": 3}
    put(stream, camera, list(camera)[3:6])
    assert not step(stream)
    assert stream.frame_counts.processed == 3


@pytest.mark.parametrize("names", [("",), ("front", "left")])
def test_a_reset_counts_the_images_that_wait_anywhere(camera, names):
    cameras = names if len(names) > 1 else ()
    stream = stream_of(AnyDepth(), cameras, **{"window.new": 2, "window.size": 8})
    frames = list(camera)
    put(stream, camera, frames[:2], names)
    stream.put_rest()
    step(stream)
    put(stream, camera, frames[2:3], names[:1])  # waits for the other camera, or the second frame
    stream.reset()
    assert stream.frame_counts.drop_counts() == {"cleared": 1}
    assert stream.frame_counts.received == stream.frame_counts.processed + 1


def test_a_reset_counts_the_images_that_wait_for_a_window(camera, monkeypatch):
    stream = stream_of(AnyDepth(), **{"window.new": 2, "window.size": 4})
    monkeypatch.setattr(stream.pipeline.builder, "_new", 3)  # as a smaller memory plan may make it
    monkeypatch.setattr(stream.pipeline.builder, "fit", lambda network: None)
    put(stream, camera, list(camera)[:2])
    assert not step(stream)
    stream.reset()
    assert stream.frame_counts.drop_counts() == {"cleared": 2}
    put(stream, camera, list(camera)[:4])
    for _ in range(2):
        step(stream)
    assert stream.frame_counts.drop_counts()["cleared"] == 2


def test_counts_are_read_while_another_thread_adds_causes(camera):
    stream = stream_of(AnyDepth())
    done, wrong = threading.Event(), []

    def read():
        while not done.is_set():
            try:
                stream.frame_counts.drop_counts()
            except RuntimeError as error:
                wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(20_000):
            stream.pipeline.counters[f"dropped_{n % 500}"] += 1
            if n % 500 == 499:
                stream.pipeline.counters.clear()
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(before)
    assert not wrong


def test_images_that_waited_for_camera_info_are_reported():
    keeper = CameraInfoMatcher("/camera_info", timeout_s=2.0)
    for n in range(3):
        keeper.add_image(n, "optical", 56, 42, n)
    assert keeper.reset() == 3
    assert keeper.reset() == 0


def test_repeated_stamps_of_odometry_replace_each_other():
    history = PoseHistory()
    for stamp in (0, 100, 200):
        history.add(stamp, np.eye(4))
    last = np.eye(4)
    for n in range(50):
        last = np.eye(4)
        last[0, 3] = n
        history.add(100, last)
    assert len(history._poses) == 3
    np.testing.assert_array_equal(history.at(100, 10), last)
    assert [stamp for stamp, _ in history._poses] == [0, 100, 200]
