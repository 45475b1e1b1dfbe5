"""Makes docs/images/scene.png: a rendered room joined from windows of exact depth and poses."""

from pathlib import Path

from da3_ros.config import config_from_parameters
from da3_ros.mapping.picture import render_scene, write_png
from da3_ros.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame

SETTINGS = {
    "window.size": 6,
    "window.new": 2,
    "map.voxel_m": 0.03,
    "keyframe.parallax": 0.03,
}

camera = SyntheticCamera(seed=13, size=(504, 378), walk="strafe", frames=60)
frames = list(camera)
pipeline = Pipeline(config_from_parameters(SETTINGS), TruthSession(frames, depth_noise=0.01))
for frame in frames:
    for _ in pipeline.push(Frame(frame.stamp_ns, frame.image, calibration=camera.calibration)):
        pass
write_png(Path(__file__).parent / "images" / "scene.png", render_scene(pipeline.scene()))
