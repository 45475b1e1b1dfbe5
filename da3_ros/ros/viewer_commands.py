"""Carries out what a user of the viewer's page wants, by the node's own services."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from rcl_interfaces.srv import SetParameters
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool, Trigger

from da3_ros.srv import ExportScene, SceneFile

ANSWER_S = 600.0  # longest wait for an answer; a mesh takes minutes
CHECK_S = 0.2  # between checks whether the node ends


class ViewerCommands:
    """Calls services of its own node, from a thread that is not the executor's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        group = ReentrantCallbackGroup()
        kinds = {
            "export": (ExportScene, "~/export_scene"),
            "save": (SceneFile, "~/save_scene"),
            "reset": (Trigger, "~/reset"),
            "enable": (SetBool, "~/enable"),
            "set": (SetParameters, "~/set_parameters"),
        }
        self._kinds = {name: kind for name, (kind, _) in kinds.items()}
        self._closed = threading.Event()
        self._clients: dict[str, Any] = {
            name: node.create_client(kind, service, callback_group=group)
            for name, (kind, service) in kinds.items()
        }

    def close(self) -> None:
        """Destroys the clients. Who waits for an answer gets none."""
        self._closed.set()
        for client in self._clients.values():
            self._node.destroy_client(client)

    def __call__(self, name: str, values: Mapping[str, Any]) -> tuple[bool, str]:
        """Carries out one command; returns whether that succeeded, and a line about it."""
        if name not in self._clients:
            return False, f"{name} is no command"
        answered = threading.Event()
        future = self._clients[name].call_async(self._request(name, values))
        future.add_done_callback(lambda _: answered.set())
        end = time.monotonic() + ANSWER_S
        while not answered.wait(CHECK_S):
            if self._closed.is_set() or time.monotonic() > end:
                return False, "no answer: the node ends, or is busy"
        response: Any = future.result()
        if name == "set":
            [result] = response.results
            shown = f"{values['name']} is {values['value']}"
            return result.successful, result.reason or shown
        return response.success, response.message

    def _request(self, name: str, values: Mapping[str, Any]) -> Any:
        request = self._kinds[name].Request()
        if name in ("export", "save"):
            request.path = str(values["path"])
            if name == "export":
                request.include_cameras = True
        elif name == "enable":
            request.data = bool(values["data"])
        elif name == "set":
            request.parameters = [self._parameter(str(values["name"]), values["value"])]
        return request

    def _parameter(self, name: str, value: Any) -> Any:
        """Returns a parameter's message; numbers get the type that the parameter has."""
        held = self._node.get_parameter(name).value
        if isinstance(held, float) and not isinstance(value, bool):
            value = float(value)
        elif isinstance(held, int) and not isinstance(held, bool):
            value = int(value)
        elif isinstance(value, list):  # a range
            value = [float(one) for one in value]
        return Parameter(name, value=value).to_parameter_msg()
