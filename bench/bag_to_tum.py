"""Convert a bag with true poses to a TUM RGB-D folder, which `bench/accuracy.py` reads.

    python bench/bag_to_tum.py BAG DIR --truth /ground_truth/odom --depth /camera/depth/image_raw

Images are written rectified, with the rectified K in camera_info.yaml. The true poses are
nav_msgs/Odometry of the camera's optical frame. Depth images (16UC1 in mm or 32FC1 in m) are
resampled to the size and K of the colour camera; the depth camera's K is read from the camera_info
beside its topic, and without one it is taken to equal the colour camera's K. The offset between
the cameras is not modelled, so depth at close range is shifted by some pixels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from tqdm import tqdm

from da3_ros.geometry.projection import corner_K
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Array

STEP_M = 1 / 5000  # metres per step of a depth image in this format


def convert(recording: Recording, folder: Path, truth: str, depth: str | None) -> int:
    """Writes all frames of ``recording`` into ``folder``. Returns their number.

    truth, depth: topics. Raises RecordingError if there are no frames or no camera_info.
    """
    lists = {"rgb": [], "depth": [], "groundtruth": []}
    rectifier, K = Rectifier(), None
    for frame in tqdm(recording, total=recording.length, unit="frame"):
        if frame.calibration is None:
            raise RecordingError(f"{recording.path}: images without a camera_info")
        done = rectifier(frame.image, frame.calibration, frame.rectified)
        if K is None:
            K, size = done.K, done.image.shape[1::-1]
            write_calibration(folder / "camera_info.yaml", K, size)
        name = f"rgb/{seconds(frame.stamp_ns)}.png"
        write_png(folder / name, cv2.cvtColor(done.image, cv2.COLOR_RGB2BGR))
        lists["rgb"].append(f"{seconds(frame.stamp_ns)} {name}")
    if K is None:
        raise RecordingError(f"{recording.path}: no frames")
    lists["groundtruth"] += [pose_line(m) for _, m in recording.messages(truth)]
    if depth is not None:
        for stamp, image in registered(recording, depth, K, size):
            name = f"depth/{stamp}.png"
            write_png(folder / name, image)
            lists["depth"].append(f"{stamp} {name}")
    for kind, lines in lists.items():
        if lines:
            (folder / f"{kind}.txt").write_text("\n".join(lines) + "\n")
    return len(lists["rgb"])


def registered(
    recording: Recording, topic: str, K: Array, size: tuple[int, int]
) -> Iterator[tuple[str, Array]]:
    """Yields stamps and depth images [H, W] uint16, in steps of ``STEP_M``; 0: unknown.

    K, size: of the colour image (K by the corner rule), to which depth is resampled.
    """
    info_topic = topic.rsplit("/", 1)[0] + "/camera_info"
    has_info = info_topic in recording.topics_of("sensor_msgs/msg/CameraInfo")
    infos = [m for _, m in recording.messages(info_topic)] if has_info else []
    theirs = corner_K(np.array(infos[0].k, float).reshape(3, 3)) if infos else K
    v, u = np.mgrid[: size[1], : size[0]] + 0.5
    x = ((u - K[0, 2]) / K[0, 0] * theirs[0, 0] + theirs[0, 2] - 0.5).astype(np.float32)
    y = ((v - K[1, 2]) / K[1, 1] * theirs[1, 1] + theirs[1, 2] - 0.5).astype(np.float32)
    for _, message in recording.messages(topic):
        if not infos and (message.width, message.height) != tuple(size):
            raise RecordingError(
                f"{recording.path}: images of {topic} differ in size from the colour images, and "
                f"there is no {info_topic}"
            )
        steps = np.rint(np.nan_to_num(metres(message), posinf=0.0) / STEP_M)
        steps[~((steps > 0) & (steps < 65535))] = 0
        image = cv2.remap(steps.astype(np.uint16), x, y, cv2.INTER_NEAREST)
        yield stamp_of(message), image


def metres(message: Any) -> Array:
    """Returns the depth [H, W] of a message, metres."""
    kinds = {"16UC1": ("<u2", 0.001), "mono16": ("<u2", 0.001), "32FC1": ("<f4", 1.0)}
    if message.encoding not in kinds:
        raise RecordingError(
            f"depth has encoding {message.encoding}; supported: {', '.join(kinds)}"
        )
    kind, unit = kinds[message.encoding]
    raw = np.frombuffer(bytes(message.data), kind).reshape(message.height, -1)
    return raw[:, : message.width].astype(np.float64) * unit


def pose_line(message: Any) -> str:
    """Returns ``stamp tx ty tz qx qy qz qw`` of an odometry message."""
    p, q = message.pose.pose.position, message.pose.pose.orientation
    numbers = " ".join(f"{v:.9f}" for v in (p.x, p.y, p.z, q.x, q.y, q.z, q.w))
    return f"{stamp_of(message)} {numbers}"


def stamp_of(message: Any) -> str:
    """Returns the header's stamp in decimal seconds, exact."""
    stamp = message.header.stamp
    return seconds(stamp.sec * 10**9 + stamp.nanosec)


def seconds(stamp_ns: int) -> str:
    """Returns nanoseconds as decimal seconds, exact."""
    return f"{stamp_ns // 10**9}.{stamp_ns % 10**9:09d}"


def write_png(path: Path, image: Array) -> None:
    """Writes an image, and creates its folder. Raises OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), image):
        raise OSError(f"{path} cannot be written")


def write_calibration(path: Path, K: Array, size: tuple[int, int]) -> None:
    """Writes the camera_info.yaml of a rectified image; K by the corner rule."""
    ros = K.copy()
    ros[:2, 2] -= 0.5
    content = {
        "image_width": int(size[0]),
        "image_height": int(size[1]),
        "camera_matrix": {"rows": 3, "cols": 3, "data": ros.ravel().tolist()},
        "distortion_model": "plumb_bob",
        "distortion_coefficients": {"rows": 1, "cols": 5, "data": [0.0] * 5},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bag", type=Path)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--camera", help="image topic; required if there are several")
    parser.add_argument(
        "--truth", required=True, help="topic of the camera's true poses, nav_msgs/Odometry"
    )
    parser.add_argument("--depth", help="topic of depth images, with camera_info beside it")
    options = parser.parse_args()
    try:
        with open_recording(options.bag, camera=options.camera) as recording:
            count = convert(recording, options.folder, options.truth, options.depth)
    except RecordingError as error:
        sys.exit(str(error))
    print(f"{count} frames in {options.folder}")


if __name__ == "__main__":
    main()
