"""Sessions in a rendered corridor, with exact windows and noise: one saves a scene, another loads
it."""

import dataclasses

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.config import config_from_parameters
from da3_ros.export.scene_file import load_scene, save_scene
from da3_ros.geometry.poses import invert_pose
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.types import Calibration, Frame, ScaleMeasurement

from .ring import CALM, SIZE, DescribedTruth

LATER = 10**12  # ns, of a second session
METRIC = {"scale.source": "metric_model", "scale.metric_every": 1}
SETTINGS = {
    "process_res": 84, "window.size": 6, "map.voxel_m": 0.1, "refinement.enabled": False,
    "hold_when_blind": False,  # images are black
    "map.remove_movers": False,  # a fifth of the time, and nothing moves
}  # fmt: skip


class MetricModel:
    """Measures exact metres of the windows of a session."""

    def __init__(self, session):
        self.session = session

    def measure(self, window, prediction):
        measure = ScaleMeasurement(1 / self.session.unit, 0.01)
        return dataclasses.replace(prediction, measure=measure)


def opened(truth, seed=0, metric=False, noise=CALM, **values):
    """A pipeline on exact windows with noise."""
    session = DescribedTruth(truth, seed, noise=noise)
    values |= METRIC if metric else {}
    config = config_from_parameters({**SETTINGS, **values})
    return Pipeline(config, session, MetricModel(session) if metric else None)


def push(pipeline, truth, size=SIZE):
    """Frames of the truth with black images of another size."""
    K = np.diag([size[0] / SIZE[0], size[1] / SIZE[1], 1]) @ truth[0].K
    K[:2, 2] -= 0.5
    black, lens = np.zeros((*size[::-1], 3), np.uint8), Calibration(*size, K)
    results = []
    for f in truth:
        results += pipeline.push(Frame(f.stamp_ns, black, calibration=lens))
    return results


def later(truth):
    """The same frames in another session."""
    return [dataclasses.replace(f, stamp_ns=f.stamp_ns + LATER) for f in truth]


def errors(results, truth, first):
    """Distance and angle, degrees, of published poses from the truth; the map's frame is the
    ``first`` camera."""
    true = {f.stamp_ns: invert_pose(first) @ f.T_room_camera for f in truth}
    out = []
    for r in results:
        T = invert_pose(true[r.stamp_ns]) @ r.T_map_camera
        angle = Rotation.from_matrix(T[:3, :3]).magnitude()
        out.append((np.linalg.norm(T[:3, 3]), np.degrees(angle)))
    return np.array(out)


def found_at(pipeline, results):
    """Number of the first frame that is published in the map; None: there is none."""
    known = [i for i, r in enumerate(results) if r.covariance_map is not None]
    return known[0] if known and pipeline.map.pose_known else None


def saved(pipeline, folder):
    save_scene(pipeline.snapshot(), folder / "scene")
    return folder / "scene"


def resumed(folder, known, truth, seed=3, **values):
    """A pipeline in a saved scene, of which it knows the frames."""
    pipeline = opened([*known, *truth], seed, **values)
    pipeline.resume(load_scene(folder))
    return pipeline
