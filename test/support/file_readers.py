"""Readers of exported files, written from the formats' descriptions."""

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.recordings import open_recording


def read_ply(path):
    """A reader of our own flavour, written from the format's description."""
    data = path.read_bytes()
    header, body = data.split(b"end_header\n", 1)
    lines = header.decode().splitlines()
    assert lines[0] == "ply"
    assert "format binary_little_endian 1.0" in lines
    kinds = {"float": "<f4", "uchar": "u1"}
    fields = [line.split()[1:] for line in lines if line.startswith("property")]
    return np.frombuffer(body, dtype=[(name, kinds[kind]) for kind, name in fields])


def read_colmap(folder):
    """Cameras, images and points as the readers of splatting tools do it, line by line.

    Points: rows of id, x y z, r g b, error.
    """
    folder = folder / "sparse" / "0"
    cameras, images = {}, []
    for line in (folder / "cameras.txt").read_text().splitlines():
        if not line.startswith("#"):
            number, model, width, height, *parameters = line.split()
            cameras[int(number)] = (model, int(width), int(height), [float(v) for v in parameters])
    lines = [x for x in (folder / "images.txt").read_text().split("\n") if not x.startswith("#")]
    for line, seen in zip(lines[::2], lines[1::2], strict=False):
        number, *values, camera, name = line.split()
        assert len(seen.split()) % 3 == 0
        q, t = np.array(values[:4], float), np.array(values[4:], float)
        T = np.eye(4)
        T[:3, :3] = Rotation.from_quat(q[[1, 2, 3, 0]]).as_matrix()
        T[:3, 3] = t
        images.append((int(number), T, int(camera), name))
    rows = [x.split()[:8] for x in (folder / "points3D.txt").read_text().splitlines()]
    points = np.array([row for row in rows if row[0] != "#"], float)
    return cameras, images, points


def messages(output, topic):
    """Messages of a topic, read with the rosbags library from the bare file."""
    with open_recording(output / "output.mcap", camera="/da3/rgb") as recording:
        return [message for _, message in recording.messages(topic)]


def pose_matrix(pose):
    T = np.eye(4)
    q = pose.orientation
    T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    T[:3, 3] = pose.position.x, pose.position.y, pose.position.z
    return T
