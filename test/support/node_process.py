"""The live node as a real process, beside a node of the test that is camera and audience."""

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")

from lifecycle_msgs.msg import Transition
from support import ros_testing as rt

from da3_ros.messages import build
from da3_ros.ros.rclpy_library import RclpyLibrary
from da3_ros.synthetic import SyntheticCamera

NODES = Path(__file__).parent / "nodes"
NODE = "da3_ros.ros.node"
SIZE = (140, 112)
# Without 16 bits no kernel is timed and no precision is checked: two seconds of a start.
QUICK = {
    "model": "da3-tiny", "checkpoint": "random", "process_res": 140, "window.size": 3,
    "mixed_precision": "off", "backend": "torch",
}  # fmt: skip
LIB = RclpyLibrary()
IMAGE = "/camera/image_raw"
FRAME = "camera_optical"


def arguments(image=IMAGE, **parameters):
    values = {**QUICK, **parameters}
    flat = [f"{name}:={value}" for name, value in values.items()]
    return ["-r", f"image:={image}", *(part for p in flat for part in ("-p", p))]


def camera_frames(n=6, **options):
    """A camera whose clock is this machine's: a node believes its stamps without a wait."""
    options = {"start_ns": time.time_ns(), **options}
    camera = SyntheticCamera(seed=2, size=SIZE, walk="straight", frames=n, **options)
    return camera, list(camera)


class Rig:
    """A node process, and a node of the test that is its camera and its audience."""

    def __init__(self, *, qos=rt.RELIABLE, node=NODE, environment=None, **parameters):
        self.domain = rt.domain()
        env = rt.environment(self.domain, **(environment or {}))
        self.process = rt.start(node, *arguments(**parameters), env=env)
        self._session = rt.session(self.domain)
        self._qos = qos

    def __enter__(self):
        self.process.__enter__()
        self.node = self._session.__enter__()
        self.images = self.node.create_publisher(
            LIB.type("sensor_msgs/msg/Image"), IMAGE, self._qos
        )
        self.infos = self.node.create_publisher(
            LIB.type("sensor_msgs/msg/CameraInfo"), "/camera/camera_info", rt.RELIABLE
        )
        self.status = rt.collect(self.node, "da3_ros/msg/Status", "/da3/status", rt.LATCHED)
        return self

    def __exit__(self, *error):
        self._session.__exit__(*error)
        self.process.__exit__(*error)

    def listen(self, topic, kind, qos=rt.RELIABLE):
        return rt.collect(self.node, kind, topic, qos)

    def until(self, condition, timeout_s=rt.PATIENCE_S):
        assert rt.spin_until(self.node, condition, timeout_s), self.process.output()

    def ready(self, *topics):
        """Until the node listens to the camera, as reliably as it sends, and the test to the node.

        A publisher cannot see when its subscriber has seen it too, hence the second at the end.
        """
        self.until(lambda: rt.matched(self.images) and rt.matched(self.infos))
        wanted = self._qos.reliability

        def settled():
            offers = self.node.get_subscriptions_info_by_topic(IMAGE)
            return offers and all(o.qos_profile.reliability == wanted for o in offers)

        self.until(settled)
        rt.spin_until(self.node, lambda: False, 1.0)
        for subscription in self.node.subscriptions:
            if subscription.topic_name.startswith("/da3/"):
                self.until(lambda s=subscription: rt.matched(s))

    def show(self, camera, frame):
        """One frame as a camera driver sends it."""
        info = build.calibration_message(LIB, frame.stamp_ns, FRAME, camera.calibration)
        self.infos.publish(info)
        self.images.publish(build.image(LIB, frame.stamp_ns, FRAME, frame.image))

    def call(self, kind, name, **fields):
        package, _, cls = kind.split("/")
        module = __import__(f"{package}.srv", fromlist=[cls])
        service = getattr(module, cls)
        client = self.node.create_client(service, name)
        self.until(client.service_is_ready)
        future = client.call_async(service.Request(**fields))
        self.until(future.done)
        return future.result()

    def drops(self):
        if not self.status:
            return {}
        last = self.status[-1]
        return dict(zip(last.drop_causes, last.drop_counts, strict=True))


def depth_of(message):
    return np.frombuffer(bytes(message.data), "<f4").reshape(message.height, message.width)


def values_of(diagnostics):
    """Key to value of a diagnostics message's only status."""
    return {v.key: v.value for v in diagnostics.status[0].values}


def set_parameter(rig, name, value):
    from rclpy.parameter import Parameter

    message = Parameter(name, value=value).to_parameter_msg()
    answer = rig.call(
        "rcl_interfaces/srv/SetParameters", "/da3/set_parameters", parameters=[message]
    )
    return answer.results[0]


CONFIGURE, CLEANUP = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP


ACTIVATE, DEACTIVATE = Transition.TRANSITION_ACTIVATE, Transition.TRANSITION_DEACTIVATE


def change(rig, transition):
    answer = rig.call(
        "lifecycle_msgs/srv/ChangeState", "/da3/change_state",
        transition=Transition(id=transition),
    )  # fmt: skip
    assert answer.success, rig.process.output()


def state_is(rig, name):
    rig.until(lambda: rig.status and rig.status[-1].state == name)


EXPORT, FILE = "da3_ros/srv/ExportScene", "da3_ros/srv/SceneFile"


def feed(rig, camera, frames, got):
    for frame in frames:
        count = len(got)
        rig.show(camera, frame)
        rig.until(lambda n=count: len(got) > n)


def call_async(rig, kind, name, **fields):
    package, _, cls = kind.split("/")
    service = getattr(__import__(f"{package}.srv", fromlist=[cls]), cls)
    client = rig.node.create_client(service, name)
    rig.until(client.service_is_ready)
    return client.call_async(service.Request(**fields))


def waiting_rig(tmp_path):
    """A node that writes PLY files when the file ``go`` is there."""
    node = str(NODES / "waiting_node.py")
    environment = {"DA3_TEST_GO": str(tmp_path / "go")}
    return Rig(export_dir=str(tmp_path), node=node, environment=environment)


BROKEN = str(NODES / "broken_node.py")
