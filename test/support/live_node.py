"""The live node in this process, so that a test sees its threads and gives it a network."""

import threading

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from support import ros_testing as rt
from support.node_process import FRAME, IMAGE, LIB, QUICK

from da3_ros.messages import build
from da3_ros.ros import node as module
from da3_ros.ros.node import Da3Node

DEPTH = "/da3/depth/image"


class LiveNode:
    """The node, served by a thread of its own, and a camera and an audience beside it."""

    def __init__(self, monkeypatch, camera, frames, network, **parameters):
        """``network(frames)`` makes the network of each time that the node is configured."""
        self.networks = []
        self.camera, self._coming = camera, iter(frames)
        self.values = {**QUICK, "autostart": False, **parameters}
        stream = module.Stream

        def stream_of_truth(*args, **options):
            self.networks.append(network(frames))
            return stream(*args, session=self.networks[-1], **options)

        monkeypatch.setattr(module, "Stream", stream_of_truth)
        self.domain = rt.domain()
        self._session = rt.session(self.domain)

    def __enter__(self):
        self.node = self._session.__enter__()
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=self.domain)
        self.da3 = Da3Node(
            context=self.context,
            cli_args=["--ros-args", "-r", f"image:={IMAGE}"],
            parameter_overrides=[
                Parameter(name, value=value) for name, value in self.values.items()
            ],
        )
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.da3)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.images = self.node.create_publisher(
            LIB.type("sensor_msgs/msg/Image"), IMAGE, rt.RELIABLE
        )
        self.infos = self.node.create_publisher(
            LIB.type("sensor_msgs/msg/CameraInfo"), "/camera/camera_info", rt.RELIABLE
        )
        self.depths = rt.collect(self.node, "sensor_msgs/msg/Image", DEPTH)
        self._clients = {
            kind: self.node.create_client(kind, f"/da3/{name}")
            for kind, name in ((ChangeState, "change_state"), (GetState, "get_state"))
        }
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()
        self.da3.close()
        self._executor.shutdown()
        self.da3.destroy_node()
        rclpy.shutdown(context=self.context)
        self._session.__exit__(*error)

    def _serve(self):
        while not self._end.is_set():
            self._executor.spin_once(timeout_sec=0.05)

    def until(self, condition):
        assert rt.spin_until(self.node, condition)

    def ask(self, transition):
        client = self._clients[ChangeState]
        self.until(client.service_is_ready)
        return client.call_async(ChangeState.Request(transition=Transition(id=transition)))

    def change(self, *transitions):
        """Whether all of them succeeded."""
        for transition in transitions:
            answer = self.ask(transition)
            self.until(answer.done)
            if not answer.result().success:
                return False
        return True

    def state(self):
        answer = self._clients[GetState].call_async(GetState.Request())
        self.until(answer.done)
        return answer.result().current_state.label

    def show(self):
        """One more image; returns the frame."""
        self.until(lambda: rt.matched(self.images) and rt.matched(self.infos))
        frame = next(self._coming)
        info = build.calibration_message(LIB, frame.stamp_ns, FRAME, self.camera.calibration)
        self.infos.publish(info)
        self.images.publish(build.image(LIB, frame.stamp_ns, FRAME, frame.image))
        return frame

    def publishers(self, topic=DEPTH):
        return self.node.get_publishers_info_by_topic(topic)
