"""A viewer with its process, pages without a browser, and frames for it."""

import http.client
import socket
import time

import numpy as np

from da3_ros.config import ViewerConfig
from da3_ros.types import Scale, TrackedFrame, WindowReport
from da3_ros.viewer.feed import Offered, ViewerFeed

OFFERED = Offered("a scene", ["map"], [""], (0.1, 10.0))


def free_port():
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return trial.getsockname()[1]


def tracked(stamp_ns, T, camera=""):
    """A processed frame with a red picture."""
    image = np.zeros((48, 64, 3), np.uint8)
    image[..., 0] = 220
    K = np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])
    report = WindowReport(0, stamp_ns, (0,), 1, True, 0.0, 1.0, 1.0)
    depth = np.linspace(1, 3, 48 * 64, dtype=np.float32).reshape(48, 64)
    return TrackedFrame(
        0, stamp_ns, "camera", camera, image, depth, np.full_like(depth, 2.0), K, T, True,
        Scale(), report,
    )  # fmt: skip


class Running:
    """A feed with its process; a context manager."""

    def __init__(self, port=None, offered=OFFERED, **config):
        exact = config.pop("exact", False)
        self.warnings = []
        self.config = ViewerConfig(port=port or free_port(), **config)
        self.feed = ViewerFeed(self.config, offered, self.warnings.append, exact=exact)

    def __enter__(self):
        self.until(lambda: self.feed.url or self.feed.failure)
        return self

    def __exit__(self, *_):
        self.feed.close()

    @staticmethod
    def until(condition, patience_s=60.0):
        end = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.02)

    @property
    def port(self):
        return int(self.feed.url.rpartition(":")[2])

    def get(self, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", "/", headers=headers)
        response = connection.getresponse()
        return response.status, response.read()


class Client:
    """A page without a browser: speaks viser's protocol as far as counting needs it."""

    def __init__(self, port):
        import msgspec
        import viser
        from websockets.sync.client import connect

        self.socket = connect(
            f"ws://127.0.0.1:{port}", subprotocols=[f"viser-v{viser.__version__}"],
            origin=f"http://127.0.0.1:{port}", max_size=None,
        )  # fmt: skip
        camera = {
            "type": "ViewerCameraMessage", "wxyz": (1.0, 0.0, 0.0, 0.0),
            "position": (3.0, 3.0, 3.0), "fov": 1.0, "near": 0.01, "far": 1000.0,
            "image_height": 600, "image_width": 800, "look_at": (0.0, 0.0, 0.0),
            "up_direction": (0.0, 0.0, 1.0),
        }  # fmt: skip
        self.socket.send(msgspec.msgpack.encode(camera))

    def close(self):
        self.socket.close()
