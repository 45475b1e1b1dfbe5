"""Renders the README's pictures: ``python docs/scene_picture.py [--exact] [--checkpoint DIR]``.

docs/images/reconstruction.png: the demo's room as da3-tiny sees it alone, with poses refined by
feature tracks, and with depth measured by images too, beside the map of the same frames from exact
depth and poses. With --exact
docs/images/scene.png instead: the map from windows of exact poses and depth with 1 % noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from da3_ros.config import config_from_parameters
from da3_ros.drawing.scene_picture import render_scene, write_png
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.demo_settings import NETWORK_SIZE, PARAMETERS, demo_camera
from da3_ros.synthetic.evaluation import FramePair, measure
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, Image

IMAGES = Path(__file__).parent / "images"
EXACT = {"window.size": 6, "window.new": 2, "map.voxel_m": 0.03, "keyframe.parallax": 0.03}
PANEL, GAP = (560, 560), 12


def run(pipeline: Pipeline, camera: SyntheticCamera) -> list[FramePair]:
    """Runs all frames of the camera through the pipeline, and pairs the results with the truth."""
    true = {f.stamp_ns: f for f in camera}
    done = []
    for f in true.values():
        done += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    done += pipeline.flush()
    return [
        FramePair(
            d.depth_m,
            pipeline.scene_map.T_ros_map @ d.T_map_camera,
            true[d.stamp_ns].depth,
            true[d.stamp_ns].T_room_camera,
        )
        for d in done
    ]


def exact() -> Image:
    """Renders the map of a sideways walk from exact windows."""
    camera = SyntheticCamera(seed=13, size=(504, 378), walk="strafe", frames=60)
    pipeline = Pipeline(
        config_from_parameters(EXACT), TruthSession(camera, noise=Noise(independent=0.01))
    )
    run(pipeline, camera)
    return render_scene(pipeline.scene())


def reconstruction(checkpoint: str) -> Image:
    """Renders the demo's room from the network, without and with refinement and measured depth,
    beside that from exact windows of equal size."""
    configs = [
        config_from_parameters(
            {**PARAMETERS, "checkpoint": checkpoint, "refinement.enabled": refine,
             "dense.enabled": dense}
        )
        for refine, dense in ((False, False), (True, False), (True, True))
    ]  # fmt: skip
    small = demo_camera(size=NETWORK_SIZE)
    panels = [_panel(Pipeline(one), demo_camera()) for one in configs]
    panels.append(_panel(Pipeline(configs[0], TruthSession(small)), small))
    gap = np.full((PANEL[1], GAP, 3), 255, np.uint8)
    return np.hstack([part for panel in panels for part in (gap, panel)][1:])


def _panel(pipeline: Pipeline, camera: SyntheticCamera) -> Image:
    pairs = run(pipeline, camera)
    scene = pipeline.scene()
    print(measure(camera.room, pairs, scene.map_points()).text())
    return render_scene(scene, PANEL)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exact", action="store_true", help="write scene.png, without a network")
    parser.add_argument("--checkpoint", default="", help="a folder; default: the included weights")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the picture")
    args = parser.parse_args()
    if args.exact:
        write_png(args.out / "scene.png", exact())
    else:
        write_png(args.out / "reconstruction.png", reconstruction(args.checkpoint))


if __name__ == "__main__":
    main()
