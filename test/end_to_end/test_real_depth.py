"""Recorded depth and poses, cut into windows of random units and frames, come back together."""

import cv2
import numpy as np
import pytest
from scipy.spatial import cKDTree
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose, matrix_from_quaternion
from da3_ros.geometry.projection import backproject, corner_K
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import open_recording
from da3_ros.synthetic.truth import Truth, TruthSession, at_size
from da3_ros.types import Calibration, Frame


def pose(position, quaternion):
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = matrix_from_quaternion(quaternion), position
    return T


def kitchen(recordings):
    """Depth in metres, NaN unknown, K by the ROS rule, and poses, of redkitchen_24."""
    with open_recording(recordings / "redkitchen_24") as bag:
        infos = [m for _, m in bag.messages("/camera/depth/camera_info")]
        odometry = [m for _, m in bag.messages("/ground_truth/odom")]
        images = [m for _, m in bag.messages("/camera/depth/image_raw")]
    K = np.array(infos[0].k).reshape(3, 3)
    poses = []
    for message in odometry:
        p, q = message.pose.pose.position, message.pose.pose.orientation
        poses.append(pose([p.x, p.y, p.z], [q.x, q.y, q.z, q.w]))
    depths = [np.frombuffer(bytes(m.data), "<u2").reshape(m.height, m.width) for m in images]
    return depths, K, poses


def desk(recordings):
    """The same of rgbd_5."""
    folder = recordings / "rgbd_5" / "data"
    rows = np.loadtxt(folder / "pose.txt")
    files = [folder / "depth" / f"{i}.pgm" for i in range(1, len(rows) + 1)]
    depths = [cv2.imread(str(f), cv2.IMREAD_UNCHANGED) for f in files]
    K = np.array([[518.0, 0, 325.5], [0, 519, 253.5], [0, 0, 1]])
    return depths, K, [pose(r[:3], r[3:]) for r in rows]


def recorded(depths, K, poses):
    return [
        Truth(
            10**8 * (i + 1),
            np.where((raw > 0) & (raw < 8000), raw / 1000, np.nan).astype(np.float32),
            T,
            corner_K(K),
        )
        for i, (raw, T) in enumerate(zip(depths, poses, strict=True))
    ]


def mapped(frames, K, **values):
    """What our mapping makes of the recording, in the recording's frame and metres."""
    height, width = frames[0].depth.shape
    settings = {
        "process_res": 280,
        "depth.edge_filter": False,
        "map.enabled": False,
        "refinement.enabled": False,
        **values,
    }
    small = at_size(frames, (280, 210))
    pipeline = Pipeline(config_from_parameters(settings), TruthSession(small))
    lens = Calibration(width, height, K)
    results = []
    for f in frames:
        grey = np.nan_to_num(50 * f.depth).clip(0, 255).astype(np.uint8)
        results += pipeline.push(Frame(f.stamp_ns, np.dstack([grey] * 3), calibration=lens))
    results += pipeline.flush()
    assert all(r.window.aligned for r in results)
    assert {r.window.chain for r in results} == {0}
    unit = float(np.nanmedian(results[0].depth_m / small[0].depth))
    clouds, truths = [], []
    for r, f in zip(results, small, strict=True):
        T = r.T_map_camera.copy()
        T[:3, 3] /= unit
        T = small[0].T_room_camera @ invert_pose(results[0].T_map_camera) @ T
        clouds.append(points(r.depth_m / np.float32(unit), r.K, T))
        truths.append(points(f.depth, f.K, f.T_room_camera))
    return clouds, truths


def points(depth, K, T):
    """Points [h, w, 3] in the frame of T."""
    return backproject(depth, K) @ T[:3, :3].T + T[:3, 3]


def consistency(clouds):
    """Median distance from a frame's points to those of the frames before, metres."""
    flat = [c[::3, ::3].reshape(-1, 3) for c in clouds]
    flat = [c[np.isfinite(c).all(axis=1)] for c in flat]
    found = []
    for i in range(1, len(flat)):
        distance, _ = cKDTree(np.concatenate(flat[:i])).query(flat[i])
        found.append(np.median(distance))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.parametrize("source", [kitchen, desk])
@pytest.mark.parametrize("keyframes", long_after(1, [2, 0]))
def test_map_of_a_recording_is_as_consistent_as_the_recording(recordings, source, keyframes):
    depths, K, poses = source(recordings)
    clouds, truths = mapped(recorded(depths, K, poses), K, **{"window.keyframes": keyframes})
    off = np.linalg.norm(np.stack(clouds) - np.stack(truths), axis=-1)
    assert np.nanpercentile(off, 99) < 0.01
    assert consistency(clouds) < consistency(truths) + 0.01
