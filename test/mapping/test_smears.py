"""Networks draw ramps from a near surface to the one behind it: published, but not mapped."""

import dataclasses

import cv2
import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.mapping.depth_filter import depth_edges
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera, distance_to_surface, make_room
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame

SEED, SIZE = 88, (224, 168)  # a room with boxes before far walls
FAR_M = 0.1  # a point farther than this from every surface flies
SIGMA_PX = 3.0  # of the smear: what a network of this size has


def smeared(frame):
    """A frame whose depth is mixed across edges; sky stays sky."""
    sky = np.isinf(frame.depth)
    mixed = cv2.GaussianBlur(np.where(sky, 12, frame.depth).astype(np.float32), (0, 0), SIGMA_PX)
    return dataclasses.replace(frame, depth=np.where(sky, np.float32(np.inf), mixed))


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(SEED, SIZE, walk="loop", frames=12)
    return camera, [smeared(f) for f in camera]


def run(walk, **values):
    """Pipeline, results, and the map's points in the room, metres."""
    camera, frames = walk
    config = config_from_parameters(
        {"process_res": SIZE[0], "model": "da3-tiny", "checkpoint": "random", "window.size": 5,
         "map.voxel_m": 0.01, "keyframe.rotation_deg": 3.0, **values}
    )  # fmt: skip
    pipeline = Pipeline(config, TruthSession(frames))
    results = []
    for f in frames:
        frame = Frame(f.stamp_ns, f.image, "camera_optical", calibration=camera.calibration)
        results += pipeline.push(frame)
    results += pipeline.flush()
    unit = np.nanmedian(results[0].depth_m / frames[0].depth)
    T = frames[0].T_room_camera
    return pipeline, results, pipeline.map.cloud().xyz / unit @ T[:3, :3].T + T[:3, 3]


def flying(points):
    return (distance_to_surface(make_room(SEED), points) > FAR_M).mean()


@pytest.fixture(scope="module")
def filtered(walk):
    return run(walk)


@pytest.fixture(scope="module")
def unfiltered(walk):
    return run(walk, **{"depth.edge_filter": False})


def test_smears_between_surfaces_are_published_but_not_mapped(walk, filtered):
    _, frames = walk
    _, results, points = filtered
    # Measured: 5.4 % of the points without the map's own filter, 0.7 % with it.
    assert flying(points) < 0.025
    assert sum(r.keyframe for r in results) > 2
    for result, frame in zip(results, frames, strict=True):
        kept = np.isfinite(result.depth_m)
        np.testing.assert_array_equal(kept, np.isfinite(frame.depth) & ~depth_edges(frame.depth))


def test_without_the_edge_filter_everything_is_mapped(unfiltered):
    _, results, points = unfiltered
    assert flying(points) > 0.04
    assert all(np.isfinite(r.depth_m).mean() > 0.99 or np.isinf(r.depth_m).any() for r in results)


@pytest.mark.slow
def test_surfaces_are_still_covered(filtered, unfiltered):
    def cells(points):
        near = distance_to_surface(make_room(SEED), points) < 0.05
        return {tuple(c) for c in np.floor(points[near] / 0.1).astype(int)}

    everything = cells(unfiltered[2])
    assert len(cells(filtered[2]) & everything) > 0.93 * len(everything)
