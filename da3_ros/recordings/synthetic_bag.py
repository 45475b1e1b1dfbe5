"""A rendered room as a bag: what a camera would have recorded, and the exact truth beside it.

Topics: `/camera/image_raw`, `/camera/camera_info`, `/truth/depth/image`, `/truth/odom` and `/tf`
(`map` is the room, z up, metres).
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from tqdm import tqdm

from da3_ros.recordings.writer import BagFolderWriter
from da3_ros.ros import messages as build
from da3_ros.ros.messages import RosbagsLibrary
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame

CAMERA, TRUTH, MAP_FRAME, OPTICAL_FRAME = "/camera", "/truth", "map", "camera_optical"
IMAGE, INFO = "sensor_msgs/msg/Image", "sensor_msgs/msg/CameraInfo"


def write_synthetic_bag(
    path: Path, camera: SyntheticCamera, *, storage: str = "mcap", replace: bool = False
) -> str:
    """Write all frames of ``camera`` to the bag folder ``path``; returns a line on what was done.

    ``replace`` removes a bag that stands there. Raises RecordingError if something else does.
    """
    start = time.perf_counter()
    if replace and (path / "metadata.yaml").is_file():
        shutil.rmtree(path)
    lib = RosbagsLibrary()
    frames = tqdm(camera, desc="render", unit="frame", disable=not sys.stderr.isatty())
    with BagFolderWriter(path, lib, storage) as writer:
        for frame in frames:
            _write_frame(writer, lib, camera, frame)
    seconds = time.perf_counter() - start
    rate = len(camera) / seconds
    return f"{path}: {len(camera)} frames in {seconds:.1f} s ({rate:.1f} frames/s)\n"


def _write_frame(
    writer: BagFolderWriter, lib: RosbagsLibrary, camera: SyntheticCamera, frame: SyntheticFrame
) -> None:
    stamp, T = frame.stamp_ns, frame.T_world_camera
    messages = (
        (
            f"{CAMERA}/camera_info",
            INFO,
            build.calibration_message(lib, stamp, OPTICAL_FRAME, camera.calibration),
        ),
        (f"{CAMERA}/image_raw", IMAGE, build.image(lib, stamp, OPTICAL_FRAME, frame.image)),
        (f"{TRUTH}/depth/image", IMAGE, build.image(lib, stamp, OPTICAL_FRAME, frame.depth)),
        (
            f"{TRUTH}/odom",
            "nav_msgs/msg/Odometry",
            build.odometry(lib, stamp, MAP_FRAME, OPTICAL_FRAME, T),
        ),
        (
            "/tf",
            "tf2_msgs/msg/TFMessage",
            build.tf(lib, [(stamp, MAP_FRAME, OPTICAL_FRAME, T)]),
        ),
    )
    for topic, kind, message in messages:
        writer.write(topic, kind, message, stamp)
