"""da3_node with faults built in: ``FAULTS=decode:2,infer:4`` breaks the calls of these numbers."""

import os
import sys
from itertools import count

import torch

from da3_ros.inference.session import InferenceSession
from da3_ros.live import scene_stream, stream
from da3_ros.messages import outputs
from da3_ros.ros import camera_subscriber as camera_input
from da3_ros.ros import node, services
from da3_ros.ros import status_report as report

# What breaks: where it is found, its name there, and what it raises.
FAULTS = {
    "decode": (stream, "decode", RuntimeError("injected in decode")),
    "infer": (InferenceSession, "infer", RuntimeError("CUDA error: injected in infer")),
    "memory": (InferenceSession, "_run", torch.OutOfMemoryError("injected")),
    "build": (outputs.Outputs, "frame", MemoryError("injected in build")),
    "publish": (scene_stream.SceneStream, "deliver", RuntimeError("injected in publish")),
    "callback": (camera_input, "stamp_ns", ValueError("injected in callback")),
    "size": (camera_input, "image_size", TypeError("injected in size")),
    "status": (report, "status", KeyError("injected in status")),
    "activate": (node, "CameraInputs", RuntimeError("injected in activate")),
    "snapshots": (stream.Stream, "snapshots", RuntimeError("injected\nin snapshots")),
    "reset": (stream.Stream, "reset", SystemExit("injected in reset")),
    "write": (services, "export_scene", AssertionError("injected in write")),
    "save": (services, "save_scene", UnicodeEncodeError("utf-8", "\udc80", 0, 1, "injected")),
    "load": (services, "load_scenes", MemoryError("injected in load")),
    "resolve": (services, "resolve_inside", RecursionError("injected in resolve")),
    "configure": (node, "Stream", RuntimeError("injected in configure")),
}


def breaks(function, error, at):
    """``function``, whose call number ``at`` raises."""
    calls = count(1)

    def broken(*args, **options):
        if next(calls) == at:
            raise error
        return function(*args, **options)

    return broken


def main():
    for fault in os.environ["FAULTS"].split(","):
        name, _, at = fault.partition(":")
        owner, attribute, error = FAULTS[name]
        setattr(owner, attribute, breaks(getattr(owner, attribute), error, int(at)))
    return node.main(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
