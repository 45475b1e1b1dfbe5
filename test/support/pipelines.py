"""Pipelines on exact windows of rendered rooms."""

import dataclasses

import numpy as np

from da3_ros.config import config_from_parameters
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame

SIZE = (140, 112)


def settings(**values):
    """Of pipelines that only align windows: exact ones come together exactly."""
    base = {
        "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
        "refinement.enabled": False,
        "map.remove_movers": False,  # nothing moves
    }  # fmt: skip
    return config_from_parameters({**base, **values})


def to_frame(camera, f, **changes):
    frame = Frame(f.stamp_ns, f.image, "camera_optical", calibration=camera.calibration)
    return dataclasses.replace(frame, **changes)


class LostSession(TruthSession):
    """Has nothing to do with the scene in some windows."""

    def __init__(self, frames, lost):
        super().__init__(frames)
        self.lost = lost

    def infer(self, window):
        prediction = super().infer(window)
        if window.id not in self.lost:
            return prediction
        wild = np.random.default_rng(window.id).uniform(0.2, 5, prediction.depth.shape)
        return dataclasses.replace(prediction, depth=wild.astype(np.float32))


def odometry_of(camera, frames, **noise):
    """The robot's own poses of the camera, frame by frame."""
    odometry = DriftingOdometry(frames[0].T_room_camera, **noise)
    for frame in frames:
        odometry.move(frame.T_room_camera, 1 / camera.rate_hz)
        yield odometry.T_odom_camera.copy()
