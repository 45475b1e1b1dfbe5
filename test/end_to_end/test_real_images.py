"""Real images with the network that ships, which was trained on rendered rooms only."""

import itertools

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import open_recording
from da3_ros.synthetic.evaluation import trajectory_error

FRAMES = 26


def pose_of(message):
    p, q = message.pose.pose.position, message.pose.pose.orientation
    T = np.eye(4)
    T[:3, :3] = matrix_from_quaternion(np.array([q.x, q.y, q.z, q.w]))
    T[:3, 3] = p.x, p.y, p.z
    return T


@pytest.mark.long
@pytest.mark.slow
def test_a_car_is_followed_by_its_images_where_the_network_knows_nothing(recordings):
    """Its depth is meaningless on roads, and its confidence falls to a hundredth and rises again
    from frame to frame: tracks decide."""
    with open_recording(recordings / "kitti_mono_51", camera="/left/image_rect/compressed") as bag:
        frames = list(itertools.islice(bag, FRAMES))
        messages = itertools.islice(bag.messages("/ground_truth/odom"), FRAMES)
        true = np.array([pose_of(message) for _, message in messages])
    config = config_from_parameters({
        "model": "da3-tiny", "device": "cpu", "process_res": 224, "window.size": 8,
        "dense.enabled": False, "map.enabled": False,
    })  # fmt: skip
    pipeline = Pipeline(config, *open_networks(config))
    results = [r for f in frames for r in pipeline.push(f)]
    results += pipeline.flush()
    assert not any(r.blind for r in results)
    assert pipeline.counters["windows_refined"] == FRAMES - 1
    way = np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum()
    poses = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    ours = np.array([poses[f.stamp_ns] for f in frames])
    assert trajectory_error(ours, true) < 0.004 * way
