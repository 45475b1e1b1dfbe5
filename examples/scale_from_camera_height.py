"""An own source of metres: the camera's height above the floor, which its mount gives.

python examples/scale_from_camera_height.py      # a camera in a rendered room

Prints the scale and the median depth of each frame beside the true one. A class and its row are
enough: `scale.source` then has one more value. For a node or a replay, add the row before
`da3_ros.ros.node.main()` or `da3_ros.cli.main()`.
"""

import math

import numpy as np

from da3_ros.config import config_from_parameters
from da3_ros.geometry.projection import backproject
from da3_ros.pipeline import Pipeline
from da3_ros.scale_sources import SCALE_SOURCES
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.synthetic.demo_settings import PARAMETERS, demo_camera
from da3_ros.types import Frame, ScaleMeasurement

CAMERA = demo_camera()
HEIGHT_M = CAMERA.T_room_camera[0, 2, 3]  # of the camera above the floor
DOWN = -CAMERA.T_room_camera[0, 2, :3]  # [3] in the camera's axes; it is pitched by 18 degrees
SETTINGS = {**PARAMETERS, "backend": "torch", "scale.source": "camera_height",
            "refinement.enabled": False, "dense.enabled": False}  # fmt: skip


class CameraHeight(ScaleSource):
    """Metres per network unit with which the lowest points are ``HEIGHT_M`` below the camera."""

    by_depth = True

    def measure(self, window, estimate, by_prior):
        heights = [self._height(*seen) for seen in zip(estimate.depth, estimate.K, strict=True)]
        logs = np.log([height for height in heights if height > 0])  # NaN: a view without depth
        if len(logs) < 2:
            return None
        sigma = math.hypot(np.std(logs, ddof=1) / math.sqrt(len(logs)), 0.05)
        return ScaleMeasurement(HEIGHT_M / math.exp(np.median(logs)), sigma)

    def _height(self, depth, K):
        below = backproject(depth, K).reshape(-1, 3) @ DOWN
        below = below[np.isfinite(below)]
        return np.percentile(below, 97) if len(below) else math.nan


if __name__ == "__main__":
    SCALE_SOURCES["camera_height"] = CameraHeight
    pipeline = Pipeline(config_from_parameters(SETTINGS))
    true_m = {}
    for seen in CAMERA:
        true_m[seen.stamp_ns] = np.median(seen.depth)
        frame = Frame(seen.stamp_ns, seen.image, calibration=CAMERA.calibration)
        for done in pipeline.push(frame):
            if done.scale.metric:
                print(
                    f"{done.scale.value:.2f} m per unit +- {100 * done.scale.sigma:.0f} %, depth"
                    f" {np.nanmedian(done.depth_m):.2f} m, true {true_m[done.stamp_ns]:.2f} m"
                )
