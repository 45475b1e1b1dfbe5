"""Latency of the live node from image stamp to the arrival of the cloud, at 30 Hz 640x480.

Starts the synthetic camera (or a rig of them) and the node, subscribes to all its topics, and
prints a table; ``--out`` writes JSON. All times are of messages that arrive while it measures:
``network`` and ``placing`` (alignment, refinement, filters, of a window before it is published) by
the node's ``~/window``; ``rest`` is what remains of the latency: waiting for the window before,
decoding, map, and messages on their way. Results are comparable only on the same machine.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import rclpy
import results_file
from rclpy.node import Node
from session_row import percentile

from da3_ros.messages.decode import stamp_ns
from da3_ros.messages.outputs import FRAME_TOPICS
from da3_ros.ros.rclpy_library import RclpyLibrary

PATIENCE_S = 300  # for engines to be built
SETTLE_S = 2.0  # after an engine took over: frames that waited for it are no part of the figures


def start(module, remaps, parameters):
    """Starts a node's module as a process, and returns the process."""
    command = [sys.executable, "-m", module, "--ros-args"]
    command += [part for r in remaps for part in ("-r", r)]
    command += [part for p in parameters for part in ("-p", p)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Listener(Node):
    """Receives all topics; keeps windows, the last status, and the time each cloud arrived."""

    def __init__(self, cameras):
        super().__init__("bench")
        library = RclpyLibrary()
        self.windows, self.arrivals, self.status = [], {}, None
        self.backend = None  # of the newest window
        self.corrected = 0  # frames that measured depth has corrected, by the newest diagnostics
        for camera in cameras or [""]:
            base = f"/da3/{camera}/" if camera else "/da3/"
            for topic, row in FRAME_TOPICS.items():
                if row.of_scene:
                    continue
                if topic.startswith("/") and camera != (cameras or [""])[0]:
                    continue
                name = topic if topic.startswith("/") else base + topic
                self.create_subscription(library.type(row.type), name, lambda m: None, 10)
            self.create_subscription(
                library.type("sensor_msgs/msg/PointCloud2"), base + "points", self._on_cloud, 10
            )
        self.create_subscription(
            library.type("diagnostic_msgs/msg/DiagnosticArray"),
            "/diagnostics",
            self._on_diagnostics,
            10,
        )
        self.create_subscription(
            library.type("da3_ros/msg/Window"), "/da3/window", self.windows.append, 10
        )
        self.create_subscription(
            library.type("da3_ros/msg/Status"), "/da3/status", self._on_status, 10
        )

    def _on_cloud(self, message):
        self.arrivals[stamp_ns(message.header.stamp)] = time.time_ns()

    def _on_diagnostics(self, message):
        values = {v.key: v.value for v in message.status[0].values}
        self.backend = values.get("backend")
        self.corrected = int(values.get("frames_depth_corrected", 0))

    def _on_status(self, message):
        self.status = message

    def counts(self):
        """Returns the node's counts: frames received, lost by cause, depth corrected."""
        status = self.status
        lost = dict(zip(status.drop_causes, map(int, status.drop_counts), strict=True))
        return lost | {"received": int(status.frames_received), "corrected": self.corrected}

    def forget(self):
        """Forgets what has arrived; returns ``counts``."""
        self.windows.clear()
        self.arrivals.clear()
        return self.counts()


def spin(listener, seconds):
    """Lets messages arrive for some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        rclpy.spin_once(listener, timeout_sec=0.1)


def measure(seconds, parameters, count, rate_hz, backend, of_camera=(), way=30):
    """Runs camera and node for ``seconds``, and returns the results (see ``figures``).

    count: number of cameras; rate_hz: of each; of_camera: more of its parameters; way: frames of
    a closed way that it renders, and shows again and again. The time begins when the node runs on
    ``backend`` ("": any) and has got so many frames: nothing is rendered any more. Raises
    RuntimeError if a process ends, or if that takes more than PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    names = [f"c{n}" for n in range(count)] if count > 1 else []
    listed = [f"cameras:=[{','.join(names)}]"] if names else []
    camera = start(
        "da3_ros.ros.synthetic_camera", [] if names else ["image_raw:=/bench/image_raw"],
        [f"rate_hz:={rate_hz}", f"buffer_frames:={way}", *listed, *of_camera],
    )  # fmt: skip
    remaps = [f"{n}/image:=/{n}/image_raw" for n in names] or ["image:=/bench/image_raw"]
    node = start("da3_ros.ros.node", remaps, [*parameters, *listed])
    listener = Listener(names)
    try:
        while (
            len(listener.arrivals) < 5 or listener.status is None
            or backend not in ("", listener.backend) or listener.counts()["received"] < way
        ):  # fmt: skip
            rclpy.spin_once(listener, timeout_sec=0.1)
            if node.poll() is not None or camera.poll() is not None:
                raise RuntimeError(f"a process ended: {' '.join(node.args)}")
            if time.monotonic() > deadline:
                ran = listener.backend or "nothing"
                raise RuntimeError(
                    f"after {PATIENCE_S} s it runs on {ran}, not {backend or 'any'}"
                )
        spin(listener, SETTLE_S)
        before = listener.forget()
        spin(listener, seconds)
    finally:
        for process in (camera, node):
            process.send_signal(signal.SIGINT)
            process.wait(15)
    return figures(listener, seconds, before)


def figures(listener, seconds, before):
    """Returns rates (1/s), medians and 95th percentiles of durations (s), and counts, of what the
    listener received in ``seconds``. before: counts of frames when these began."""
    by_stamp = {stamp_ns(w.header.stamp): w for w in listener.windows}
    arrived = {s: (t - s) / 1e9 for s, t in listener.arrivals.items()}
    both = [(arrived[s], w) for s, w in by_stamp.items() if s in arrived]
    counts = {name: n - before.get(name, 0) for name, n in listener.counts().items()}
    received, corrected = counts.pop("received"), counts.pop("corrected")
    if not both:
        raise RuntimeError(f"nothing was published in {seconds:g} s")
    latencies = sorted(arrived.values())
    return {
        "windows_per_s": len(listener.windows) / seconds,
        "latency_median_s": statistics.median(latencies),
        "latency_p95_s": percentile(latencies, 95),
        "network_median_s": statistics.median(w.inference_s for w in listener.windows),
        "placing_median_s": statistics.median(w.total_s - w.inference_s for w in listener.windows),
        "rest_median_s": statistics.median(t - w.total_s for t, w in both),
        "device": listener.status.device,
        "backend": listener.backend,
        "drops": {cause: count for cause, count in counts.items() if count},
        "received": received,
        "frames_corrected": corrected,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cameras", type=int, default=1)
    parser.add_argument("--rate", type=float, default=30.0, help="of each camera, Hz")
    parser.add_argument("-p", "--param", action="append", default=[], metavar="NAME:=VALUE")
    parser.add_argument(
        "--backend", default="", help="measure from when the node runs on this one"
    )
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    parameters = options.param or [
        "model:=da3-tiny", "checkpoint:=random", "process_res:=252",
        f"window.size:={max(4, 2 * options.cameras)}",
    ]  # fmt: skip
    rclpy.init(args=[])
    result = measure(options.seconds, parameters, options.cameras, options.rate, options.backend)
    rclpy.try_shutdown()
    for name, value in result.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        sys.stdout.write(f"{name:<36} {shown}\n")
    results_file.write(options.out, result, result["device"])


if __name__ == "__main__":
    main()
