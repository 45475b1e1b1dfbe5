"""Accuracy on sequences with ground truth: trajectory (evo), depth and point cloud.

    python bench/accuracy.py DIR [DIR ...] -p model:=da3-base --out accuracy.json

DIR is a data set as `da3_ros replay` reads it (docs/recordings.md): TUM RGB-D, ETH3D SLAM, EuRoC,
KITTI odometry, 7-Scenes, ScanNet or COLMAP. The frames go through the pipeline that the live node
and the replay run. ``--every 5`` uses every fifth frame; ``--rate`` is that of images without
times. The lengths of a COLMAP model are in its own unit, not in metres.

``--refine off on`` gives two rows per sequence: without and with the refinement by feature tracks.
``--dense off on`` likewise: without and with depth measured by images, which needs refinement.

True depth is taken as seen by the colour camera, as TUM and ETH3D register it. That of 7-Scenes is
not registered, and that of ScanNet has a K of its own: their depth errors include some pixels of
offset.

Depth of keyframes, as they are stored, is compared with the scale of the trajectory's Sim(3) fit:
all pixels with true depth, those that are measured, and their share.

The table has the ATE after a Sim(3) fit, the ATE after an SE(3) fit, and the fitted scale, because
a Sim(3) fit hides a wrong scale. Depth is compared after one median scale, the point cloud after
the Sim(3) fit of the trajectory. ``--out`` writes the same as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import results_file
from scipy.spatial import cKDTree

from da3_ros.cli.arguments import load_config
from da3_ros.config import PipelineConfig
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import open_device
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import Recording, RecordingError, open_recording
from da3_ros.recordings.layouts import LAYOUTS, find_data_set
from da3_ros.recordings.layouts.layout import Layout, ListedImage, camera_of
from da3_ros.recordings.true_poses import TruePoses, read_true_poses
from da3_ros.sensors.calibration import rectification_rotation, resized_calibration
from da3_ros.sensors.camera_models import camera_model_of, is_distorted
from da3_ros.synthetic.evaluation import FramePair, depth_errors, fit_poses, resize_nearest
from da3_ros.types import Array, Calibration, TrackedFrame

CLOUD_VOXEL_M = 0.02


class TruthError(ValueError):
    """A sequence has too few frames with a true pose."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """A data set as a recording, with true poses and, in some layouts, true depth."""

    frames: Recording
    layout: Layout
    images: dict[int, ListedImage]  # by stamp in ns
    poses: TruePoses

    @classmethod
    def open(cls, path: Path, rate_hz: float = 30.0) -> Sequence:
        """Opens the data set in a folder. Raises RecordingError."""
        found = find_data_set(path)
        if found is None:
            titles = ", ".join(layout.title for layout in LAYOUTS.values())
            raise RecordingError(f"{path} is not a data set of {titles}")
        layout, folder = found
        name = camera_of(layout, folder, None)
        listed = layout.images(folder, name, rate_hz).images
        return cls(
            open_recording(folder, name, rate_hz=rate_hz), layout,
            {one.stamp_ns: one for one in listed}, read_true_poses(folder, name, rate_hz),
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.frames.path.name

    def depth(self, stamp_ns: int) -> Array | None:
        """Returns the true depth [H, W] float32 of a frame in metres, NaN where unknown, resampled
        as its image is rectified.

        Returns None for a frame without a depth image.
        """
        one = self.images[stamp_ns]
        raw = None if one.depth is None else cv2.imread(str(one.depth), cv2.IMREAD_UNCHANGED)
        if raw is None:
            return None
        known = ~np.isin(raw, self.layout.no_depth)
        depth = np.where(known, raw * self.layout.depth_step_m, np.nan).astype(np.float32)
        return depth if one.calibration is None else rectified_depth(depth, one.calibration)


def rectified_depth(depth: Array, calibration: Calibration) -> Array:
    """Returns depth [H, W] of a distorted image at the pixels of the rectified one, by the nearest
    pixel; NaN where there is none."""
    c = resized_calibration(calibration, depth.shape[::-1])
    R, P = rectification_rotation(c), c.K if c.P is None else c.P[:, :3]
    if not is_distorted(c) and np.array_equal(R, np.eye(3)):
        return depth
    x, y = camera_model_of(c).sources(c.K, c.D, R, np.ascontiguousarray(P), (c.width, c.height))
    return np.asarray(
        cv2.remap(
            depth, x.astype(np.float32), y.astype(np.float32), cv2.INTER_NEAREST,
            borderMode=cv2.BORDER_CONSTANT, borderValue=float("nan"),
        )
    )  # fmt: skip


# Measures ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """Results for one sequence; NaN if the format has no ground truth for a quantity."""

    name: str
    frames: int
    path_m: float
    ate_sim3_m: float
    ate_se3_m: float
    scale: float  # metres per unit of our trajectory, from the Sim(3) fit
    rpe_m: float  # between consecutive frames, after the Sim(3) fit
    rpe_deg: float
    abs_rel: float = float("nan")
    delta1: float = float("nan")
    cloud_accuracy_m: float = float("nan")  # mean distance from our points to the true cloud
    cloud_completeness_m: float = float("nan")  # mean distance from true points to our cloud
    keyframe_abs_rel: float = float("nan")  # of stored keyframes
    measured_abs_rel: float = float("nan")  # of their measured pixels
    measured_share: float = float("nan")
    refused: int = 0  # windows whose alignment was refused
    seconds_per_frame: float = float("nan")


def measure(sequence: Sequence, config: PipelineConfig, every: int = 1, session=None) -> Accuracy:
    """Runs a sequence through the pipeline and compares the result with the ground truth.

    ``session``: replaces the network that ``config`` names. Raises TruthError if fewer than three
    frames have a true pose.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _measured(sequence, Pipeline(config, session), every, Path(folder))


def _measured(sequence: Sequence, pipeline: Pipeline, every: int, folder: Path) -> Accuracy:
    pipeline.store(folder, None, DiskLimit(), wait=True)
    pairs, clouds, seconds = [], [], []
    for result in track(sequence, pipeline, every):
        known, true_pose = sequence.poses.at(np.array([result.stamp_ns]))
        seconds.append(result.window.total_s / result.window.new_frames)
        if not known.any():
            continue
        T = true_pose[0]
        depth = sequence.depth(result.stamp_ns)
        if depth is not None:
            depth = resize_nearest(depth, result.depth_m.shape)
            clouds.append(room_points(depth, result.K, T))
        unknown = np.full(result.depth_m.shape, np.nan, np.float32)
        true = unknown if depth is None else depth
        pairs.append(FramePair(result.depth_m, result.T_map_camera, true, T))
    if len(pairs) < 3:
        raise TruthError(f"{sequence.name}: {len(pairs)} frames have a true pose, 3 are needed")
    ours = np.array([p.T_map_camera for p in pairs])
    true = np.array([p.T_room_camera for p in pairs])
    depth = depth_errors(pairs)
    fit = fit_poses(ours, true, depth.scale)
    pipeline.scene_map.finish_recording()
    way = trajectory(ours, true)
    accuracy, completeness = cloud_distance(
        fit.points(pipeline.map.scene(np.eye(4)).map_points().astype(np.float64)), clouds
    )
    return Accuracy(
        name=sequence.name,
        frames=len(pairs),
        path_m=float(np.linalg.norm(np.diff(true[:, :3, 3], axis=0), axis=1).sum()),
        **way,
        **keyframe_errors(sequence, folder, way["scale"]),
        abs_rel=depth.abs_rel,
        delta1=depth.delta1,
        cloud_accuracy_m=accuracy,
        cloud_completeness_m=completeness,
        refused=pipeline.counters["windows_refused"],
        seconds_per_frame=float(np.median(seconds)),
    )


def keyframe_errors(sequence: Sequence, folder: Path, scale: float) -> dict[str, float]:
    """Returns the errors of stored keyframes' depth; scale: metres per unit of the scene."""
    everything, measured, count = [], [], 0
    with StoredScene.open(folder) as stored:
        for key in stored.images:
            keyframe, dense = stored.load(key), stored.load_measured(key)
            true = sequence.depth(keyframe.pose.stamp_ns)
            if true is None:
                continue
            depth = keyframe.depth if dense is None else dense.depth
            unit = stored.submaps[keyframe.pose.submap].T_map_submap.scale
            metres = scale * stored.map.scene_scale * unit * depth
            true = resize_nearest(true, depth.shape)
            known = np.isfinite(true) & np.isfinite(metres) & (true > 0)
            error = np.abs(metres / np.where(known, true, 1) - 1)
            everything.append(error[known])
            count += known.sum()
            if dense is not None:
                measured.append(error[known & dense.measured])
    if not count:
        return {}
    return {
        "keyframe_abs_rel": float(np.concatenate(everything).mean()),
        "measured_abs_rel": float(np.concatenate(measured).mean()) if measured else float("nan"),
        "measured_share": sum(map(len, measured)) / int(count),
    }


def track(sequence: Sequence, pipeline: Pipeline, every: int) -> Iterator[TrackedFrame]:
    """Yields the tracked frame of every n-th frame (n: ``every``)."""
    for frame in itertools.islice(sequence.frames, 0, None, every):
        yield from pipeline.push(frame)
    yield from pipeline.flush()


def trajectory(ours: Array, true: Array) -> dict[str, float]:
    """Returns ATE after the Sim(3) and the SE(3) fit, the scale, and RPE of consecutive frames.

    ours, true: poses [N, 4, 4] of cameras. Computed by evo. evo cannot fit camera centres
    that are all equal or exactly on a line; then the fit uses the rotations (``fit_poses``).
    """
    from evo.core.geometry import GeometryException
    from evo.core.metrics import APE, RPE, PoseRelation, StatisticsType
    from evo.core.trajectory import PosePath3D

    def fitted(scaled: bool) -> tuple:
        path = PosePath3D(poses_se3=list(ours))
        try:
            scale = path.align(reference, correct_scale=scaled)[2]
        except GeometryException:
            fit = fit_poses(ours, true)
            scale = fit.scale if scaled else 1.0
            T = Similarity.between(true[0], ours[0], scale)
            path = PosePath3D(poses_se3=[T.pose(one) for one in ours])
        return path, float(scale)

    def rmse(metric, path) -> float:
        metric.process_data((reference, path))
        return float(metric.get_statistic(StatisticsType.rmse))

    reference = PosePath3D(poses_se3=list(true))
    (similar, scale), (rigidly, _) = fitted(True), fitted(False)
    return {
        "ate_sim3_m": rmse(APE(PoseRelation.translation_part), similar),
        "ate_se3_m": rmse(APE(PoseRelation.translation_part), rigidly),
        "scale": scale,
        "rpe_m": rmse(RPE(PoseRelation.translation_part), similar),
        "rpe_deg": rmse(RPE(PoseRelation.rotation_angle_deg), similar),
    }


def room_points(depth: Array, K: Array, T: Array) -> Array:
    """Returns the points [M, 3], metres, in the frame of ``T``, of the finite pixels of a depth
    image [H, W]."""
    points = backproject(depth, K)[np.isfinite(depth)]
    return np.asarray(points @ T[:3, :3].T + T[:3, 3])


def cloud_distance(cloud: Array, truth: list[Array]) -> tuple[float, float]:
    """Returns the mean distances, metres, from our points to the true cloud and the reverse.

    cloud: our points [M, 3]; truth: clouds [M, 3]. Both are thinned to ``CLOUD_VOXEL_M``. NaN if
    either is empty.
    """
    if not len(cloud) or not truth:
        return float("nan"), float("nan")
    true = thinned(np.concatenate(truth))
    ours = thinned(cloud)
    to_truth = cKDTree(true).query(ours)[0]
    from_truth = cKDTree(ours).query(true)[0]
    return float(to_truth.mean()), float(from_truth.mean())


def thinned(points: Array) -> Array:
    """Returns the first of the points [M, 3] in each voxel of ``CLOUD_VOXEL_M``."""
    _, first = np.unique(
        np.floor(points / CLOUD_VOXEL_M).astype(np.int64), axis=0, return_index=True
    )
    return np.asarray(points[first])


COLUMNS = {
    "name": "sequence",
    "frames": "frames",
    "path_m": "path m",
    "ate_sim3_m": "ATE Sim(3) m",
    "ate_se3_m": "ATE SE(3) m",
    "scale": "scale",
    "rpe_m": "RPE m",
    "rpe_deg": "RPE deg",
    "abs_rel": "AbsRel",
    "delta1": "delta1",
    "cloud_accuracy_m": "cloud to truth m",
    "cloud_completeness_m": "truth to cloud m",
    "keyframe_abs_rel": "keyframes AbsRel",
    "measured_abs_rel": "measured AbsRel",
    "measured_share": "measured",
    "refused": "refused",
}


def row(found: Accuracy) -> str:
    """Returns a line of the table."""
    values = asdict(found)
    cells = [values[name] for name in COLUMNS]
    text = [f"{v:.4f}" if isinstance(v, float) else str(v) for v in cells]
    return "| " + " | ".join(text) + " |"


def switched(name: str, values: list[str]) -> list[list[str]]:
    """Returns what sets a parameter to each of ``values``; nothing without any."""
    return [[f"{name}:={str(one == 'on').lower()}"] for one in values] or [[]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME:=VALUE"
    )
    parser.add_argument("--config", type=Path, help="YAML file of parameters")
    parser.add_argument(
        "--refine", nargs="+", choices=("off", "on"), default=[],
        help="rows without and with the refinement by feature tracks",
    )  # fmt: skip
    parser.add_argument(
        "--dense", nargs="+", choices=("off", "on"), default=[],
        help="rows without and with depth measured by images",
    )  # fmt: skip
    parser.add_argument("--every", type=int, default=1, help="use every n-th frame")
    parser.add_argument(
        "--rate", type=float, default=30.0, help="frames/s of images without times"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    variants = [
        [*options.parameters, *refine, *dense]
        for refine in switched("refinement.enabled", options.refine)
        for dense in switched("dense.enabled", options.dense)
    ]
    configs = [load_config(options.config, one).pipeline for one in variants]
    print("| " + " | ".join(COLUMNS.values()) + " |")
    print("|" + "---|" * len(COLUMNS))
    found = []
    for folder in options.folders:
        for parameters, config in zip(variants, configs, strict=True):
            try:
                one = measure(Sequence.open(folder, rate_hz=options.rate), config, options.every)
            except (RecordingError, TruthError) as error:
                raise SystemExit(str(error)) from error
            values = {
                k: None if isinstance(v, float) and math.isnan(v) else v
                for k, v in asdict(one).items()
            }  # fmt: skip
            found.append({**values, "parameters": parameters})
            print(row(one), flush=True)
    device = open_device(configs[0].inference.device).name()
    results_file.write(options.out, {"rows": found}, device)


if __name__ == "__main__":
    main()
