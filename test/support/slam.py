"""A walk round a rendered corridor with drifting odometry, and a SLAM that corrects it."""

import dataclasses

import numpy as np
from support.ring import SIZE, DescribedTruth, walked

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import distance_to_surface, make_ring
from da3_ros.synthetic.odometry import drifted
from da3_ros.synthetic.truth import Noise
from da3_ros.types import Calibration, Frame, SlamPath, SlamPose

VOXEL_M = 0.05
ROOM = make_ring(0)
BASE = {
    "process_res": 84, "model": "da3-tiny", "checkpoint": "random", "refinement.enabled": False,
    "window.size": 5, "pose_prior.source": "odometry", "scale.source": "odometry",
    "map.voxel_m": VOXEL_M, "hold_when_blind": False,  # images are black
    "map.remove_movers": False,  # a fifth of the time, and nothing moves
}  # fmt: skip
# Of the odometry's frame in the other SLAM's map: neither is the room's.
T_SLAM_ROOM = np.array([[0, -1, 0, 3.0], [1, 0, 0, -2.0], [0, 0, 1, 0.5], [0, 0, 0, 1]])


def drifting_walk(count=110, laps=1.1, yaw_deg=0.05, offset=(0.004, 0.0, 0.0)):
    """Returns the true frames, and the odometry's poses of the camera."""
    frames = walked(count, laps)
    return frames, drifted([f.T_room_camera for f in frames], yaw_deg, np.array(offset))


def settings(corrections, **values):
    frame = {"pose_prior.map_frame": "map"} if corrections == "tf" else {}
    return config_from_parameters(
        {**BASE, "pose_prior.corrections": corrections, **frame, **values}
    )


def jump_at(frames, priors, index):
    """The transform to the odometry's frame that puts frame ``index`` where it is."""
    return T_SLAM_ROOM @ frames[index].T_room_camera @ invert_pose(priors[index])


def path_until(frames, index, number=1, every=7):
    """The path of a SLAM that knows the truth, as it sends it before frame ``index``."""
    known = frames[:index:every]
    stamps = np.array([f.stamp_ns for f in known])
    poses = np.stack([T_SLAM_ROOM @ f.T_room_camera for f in known])
    return SlamPath(number, int(stamps[-1]), stamps, poses)


def by_tf(frames, priors, jumps):
    """What the other SLAM says at each frame, with jumps at some indices."""
    T, out = T_SLAM_ROOM, []
    for i in range(len(frames)):
        T = jump_at(frames, priors, i) if i in jumps else T
        out.append(SlamPose(T_slam_prior=T))
    return out


def by_path(frames, paths):
    """What the other SLAM says at each frame; paths: by the index at which they are sent."""
    path, out = None, []
    for i in range(len(frames)):
        path = paths.get(i, path)
        out.append(SlamPose(path=path, T_base_camera=np.eye(4)))
    return out


def to_frame(true, prior, slam, stamp_ns=None):
    half = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    image = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    return Frame(
        stamp_ns or true.stamp_ns, image, calibration=Calibration(*SIZE, true.K - half),
        T_prior_camera=prior, slam=slam,
    )  # fmt: skip


def open_pipeline(frames, config, noise=None):
    return Pipeline(config, DescribedTruth(frames, noise=noise or Noise()))


def run(walk, config, said, pipeline=None, begin=0):
    """Runs a walk; said: what the other SLAM says at each frame."""
    frames, priors = walk
    pipeline = pipeline or open_pipeline(frames, config)
    results = []
    for i in range(begin, len(said)):
        results += list(pipeline.push(to_frame(frames[i], priors[i], said[i])))
    return pipeline, results


def errors(pipeline, frames, T_slam_room=T_SLAM_ROOM):
    """Distances of the map's points to the room's surfaces, the map being the other SLAM's."""
    T = invert_pose(T_slam_room) @ pipeline.scene_map.T_ros_map
    points = pipeline.map.table.metres * pipeline.map.cloud().xyz
    return distance_to_surface(ROOM, points @ T[:3, :3].T + T[:3, 3])


def share_off(distance):
    """The share of points that are no surface: of double walls."""
    return float(np.mean(distance > 3 * VOXEL_M))


def at_other_stamps(frames, offset_ns):
    return [dataclasses.replace(f, stamp_ns=f.stamp_ns + offset_ns) for f in frames]
