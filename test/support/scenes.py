"""Frames of a made-up wall, and stores and scenes of them."""

import numpy as np
from scipy.spatial.transform import Rotation
from support.submaps import local_frame

from da3_ros.config import MapConfig
from da3_ros.mapping.submaps import KEYFRAMES, SubmapStore

K = np.array([[20.0, 0, 8], [0, 20, 6], [0, 0, 1]])


def pose(x=0.0, y=0.0, turn_deg=0.0):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", turn_deg, degrees=True).as_matrix()
    T[:3, 3] = x, y, 0
    return T


def frame(i, T, *, keyframe=True, depth=2.0, camera="", seed=0):
    """A 16 x 12 picture of a rough wall; one pixel is sky and one is not known."""
    rng = np.random.default_rng(seed)
    z = (depth * rng.uniform(0.8, 1.2, (12, 16))).astype(np.float32)
    z[0, 0], z[0, 1] = np.inf, np.nan
    image = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
    confidence = rng.uniform(1, 5, (12, 16)).astype(np.float32)
    return local_frame(1000 + i, camera, image, z, confidence, K, T, keyframe)


def store(**limits):
    """A store that keeps all points: no two frames agree about the rough wall."""
    plain = {"voxel_m": 1e-3, "keep_images": False, "remove_movers": False}
    return SubmapStore(MapConfig(**plain | limits))


def full_store(step=0.3):
    """Two chains, a closed submap, an open one, two cameras, images, metres known. step: from
    one keyframe to the next."""
    held = store(keep_images=True)
    held.table.known_metres = 0.5
    for i in range(KEYFRAMES + 3):
        held.add_frame(frame(i, pose(step * i), seed=i, camera="front" if i % 2 else ""))
    held.start_chain()
    held.add_frame(frame(50, pose(1.0), seed=50))
    held.add_frame(frame(51, pose(1.0 + step / 3), keyframe=False))
    return held
