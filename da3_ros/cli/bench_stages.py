"""Stages for `da3_ros bench --stages`: those of a window, and an export of the map."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from da3_ros.config import PipelineConfig
from da3_ros.export.export import export_scene
from da3_ros.inference import InferenceSession
from da3_ros.inference.benchmark import Stage, measure_stages
from da3_ros.inference.devices import open_device
from da3_ros.inference.stage_meter import StageMeter
from da3_ros.mapping.scene import Scene, SubmapCloud
from da3_ros.mapping.trajectory import Poses
from da3_ros.mapping.voxel_map import PointCloud

WINDOWS = 5  # timed
POINTS = 1_000_000  # of the exported map, if max_points admits them
EXTENT_M = 10.0


def stages(
    session: InferenceSession, config: PipelineConfig, image: tuple[int, int]
) -> tuple[list[Stage], list[Stage]]:
    """Measure the stages of a window, and the export of a map as GLB and as PLY.

    image: (width, height) of the camera. Memory of exports is the host's.
    """
    points = POINTS if not config.map.max_points else min(POINTS, config.map.max_points)
    return measure_stages(session, image, WINDOWS), _exports(points)


def _exports(points: int) -> list[Stage]:
    rng = np.random.default_rng(0)
    cloud = PointCloud(
        rng.uniform(0, EXTENT_M, (points, 3)).astype(np.float32),
        rng.integers(0, 256, (points, 3)).astype(np.uint8),
        np.ones(points, np.float16),
        np.ones(points, np.uint16),
    )
    scene = Scene((SubmapCloud(cloud),), Poses.of([]))
    meter = StageMeter(open_device("cpu"), memory=True)
    with tempfile.TemporaryDirectory() as folder:
        for form in ("glb", "ply"):
            meter.begin()
            with meter.stage(f"export of {points} points as {form.upper()}"):
                export_scene(scene, Path(folder, f"scene.{form}"))
    return [Stage(name, s, meter.peaks[name]) for name, s in meter.seconds.items()]
