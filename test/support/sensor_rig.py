"""Two cameras on a robot that has an IMU and global poses, in a rendered room."""

import dataclasses

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.imu import imu_samples
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, ImuNoise

from .inertial import BODY

NAMES = ("front", "left")
SIZE = (112, 84)
# Half a metre beside the front camera, and turned about two axes.
LEFT = np.eye(4)
LEFT[:3, :3] = Rotation.from_euler("zy", [90, -25], degrees=True).as_matrix()
LEFT[:3, 3] = -0.5, 0.1, 0.0
MOUNTS = {"front": np.eye(4), "left": LEFT}
# The scale of a pipeline's first window: that of a truth session with its default seed.
FACTOR = float(np.exp(-np.random.default_rng(0).normal(0, 0.5)))
METRES = {"scale.source": "fixed", "scale.factor": FACTOR}


class SensorRig:
    """Frames of both cameras, and what the IMU on the first one measures between them.

    stated: mount of the IMU by camera where that is declared wrongly. yaw: angles [N] by which the
    robot turns at its first place; None: it goes along its walk.
    """

    def __init__(self, frames=40, *, walk="carried", seed=3, stated=None, yaw=None):
        options = {"seed": seed, "size": SIZE, "walk": walk, "frames": frames}
        self.cameras = {n: SyntheticCamera(mount=T, **options) for n, T in MOUNTS.items()}
        if yaw is not None:
            at = self.cameras["front"].T_room_camera[0]
            poses = np.tile(at, (frames, 1, 1))
            poses[:, :3, :3] = Rotation.from_euler("z", yaw[:, None]).as_matrix() @ at[:3, :3]
            for name, camera in self.cameras.items():
                camera.T_room_camera = poses @ MOUNTS[name]
        self.frames = {n: list(camera) for n, camera in self.cameras.items()}
        first = self.cameras["front"]
        stamps = np.array([f.stamp_ns for f in self.frames["front"]])
        samples = imu_samples(
            first.T_room_camera, stamps, T_camera_imu=BODY, noise=ImuNoise(), seed=seed
        )
        self.stretches = {
            n: [None, *samples.stretches(stamps, (stated or {}).get(n, invert_pose(T) @ BODY))]
            for n, T in MOUNTS.items()
        }

    def __len__(self):
        return len(self.frames["front"])

    def frame(self, name, i, *, black=False, **changes):
        """A frame with what the IMU has measured; black: of a covered camera."""
        f = self.frames[name][i]
        image = np.zeros_like(f.image) if black else f.image
        frame = Frame(
            f.stamp_ns, image, f"{name}_optical", name, self.cameras[name].calibration,
            imu=self.stretches[name][i],
        )  # fmt: skip
        return dataclasses.replace(frame, **changes)

    def pipeline(self, **values):
        """A pipeline of exact windows, in which both cameras share one."""
        base = {
            "process_res": SIZE[0], "model": "da3-tiny", "checkpoint": "random", "window.size": 6,
            "cameras": list(NAMES), "refinement.enabled": False, "dense.enabled": False,
            "map.remove_movers": False,
        }  # fmt: skip
        config = config_from_parameters({**base, **values})
        return Pipeline(config, TruthSession(self.frames))

    def run(
        self, pipeline, *, covered=lambda name, i: False, given=lambda name, i: {}, order=NAMES
    ):
        """Results of the whole walk. covered: whether a camera sees nothing at a frameset.
        given: what else a frame has. order: of the cameras."""
        out = []
        for i in range(len(self)):
            frameset = [self.frame(n, i, black=covered(n, i), **given(n, i)) for n in order]
            out += pipeline.push(*frameset)
        return out

    def true(self, result):
        """The true frame of a result."""
        frames = self.frames[result.camera]
        return next(f for f in frames if f.stamp_ns == result.stamp_ns)


def tilt_deg(T, T_true):
    """Angle between what two poses [4, 4] of a camera call up."""
    return np.degrees(np.arccos(np.clip(T[2, :3] @ T_true[2, :3], -1, 1)))
