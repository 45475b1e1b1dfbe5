"""Accuracy on sequences with ground truth: trajectory (evo), depth and point cloud.

    python bench/accuracy.py DIR [DIR ...] -p model:=da3-base --out accuracy.json

DIR is a sequence in the format of TUM RGB-D (rgb.txt, groundtruth.txt, depth.txt), which ETH3D
SLAM has too, of 7-Scenes (frame-000000.color.png, .pose.txt, .depth.png) or of EuRoC (mav0/cam0).
The frames go through the pipeline that the live node and the replay run. K is read from
camera_info.yaml in DIR if that file exists, or from ETH3D's calibration.txt (fx fy cx cy), else it
is the known K of the data set; ``--every 5`` uses every fifth frame.

``--refine off on`` gives two rows per sequence: without and with the refinement by feature tracks.
``--dense off on`` likewise: without and with depth measured by images, which needs refinement.

Depth of keyframes, as they are stored, is compared with the scale of the trajectory's Sim(3) fit:
all pixels with true depth, those that are measured, and their share.

The table has the ATE after a Sim(3) fit, the ATE after an SE(3) fit, and the fitted scale, because
a Sim(3) fit hides a wrong scale. Depth is compared after one median scale, the point cloud after
the Sim(3) fit of the trajectory. ``--out`` writes the same as JSON.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
import results_file
import yaml
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation, Slerp

from da3_ros.cli.arguments import load_config
from da3_ros.config import PipelineConfig
from da3_ros.geometry.poses import matrix_from_quaternion
from da3_ros.geometry.projection import backproject
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import open_device
from da3_ros.keyframe_store.disk_limit import DiskLimit
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings.folder import CALIBRATION_FILE, read_calibration
from da3_ros.synthetic.evaluation import FramePair, depth_errors, fit_poses, resize_nearest
from da3_ros.types import Array, Calibration, Frame

MAX_GAP_S = 0.05  # between two true poses that are interpolated, or an image and its depth image
CLOUD_VOXEL_M = 0.02
TUM_K = {
    "freiburg1": (517.3, 516.5, 318.6, 255.3),
    "freiburg2": (520.9, 521.0, 325.1, 249.7),
    "freiburg3": (535.4, 539.2, 320.1, 247.6),
}
SEVEN_SCENES_K = (525.0, 525.0, 320.0, 240.0)


class FormatError(ValueError):
    """A folder is in none of the formats, or has too few frames with a true pose."""


@dataclass(frozen=True)
class Item:
    """One image of a sequence, and its depth image if there is one."""

    stamp_ns: int
    image: Path
    depth: Path | None


@dataclass(frozen=True, eq=False)
class Sequence:
    """A sequence of images with true poses and, in some formats, true depth."""

    name: str
    items: list[Item]
    calibration: Calibration
    stamps_ns: Array  # [M] of the true poses, ascending
    poses: Array  # [M, 4, 4] T_room_camera, metres
    depth_unit: float = 1.0  # metres per step of a depth image
    no_depth: tuple[int, ...] = (0, 65535)  # raw values that mean unknown depth

    def depth(self, item: Item) -> Array | None:
        """Returns the true depth [H, W] float32 in metres, NaN where unknown.

        Returns None for an image without a depth image.
        """
        if item.depth is None:
            return None
        raw = cv2.imread(str(item.depth), cv2.IMREAD_UNCHANGED)
        known = ~np.isin(raw, self.no_depth)
        return np.where(known, raw * self.depth_unit, np.nan).astype(np.float32)

    def pose(self, stamp_ns: int) -> Array | None:
        """Returns T_room_camera [4, 4], metres, interpolated between the nearest true poses.

        Returns None before the first and after the last true pose, and in gaps of more than
        ``MAX_GAP_S``.
        """
        after = int(np.searchsorted(self.stamps_ns, stamp_ns))
        before = after - 1
        if after < len(self.stamps_ns) and self.stamps_ns[after] == stamp_ns:
            return np.asarray(self.poses[after])
        if before < 0 or after >= len(self.stamps_ns):
            return None
        start, end = self.stamps_ns[before], self.stamps_ns[after]
        if end - start > MAX_GAP_S * 1e9:
            return None
        share = (stamp_ns - start) / (end - start)
        return interpolated_pose(self.poses[before], self.poses[after], share)


def interpolated_pose(start: Array, end: Array, share: float) -> Array:
    """Returns the pose [4, 4] at ``share`` (0 to 1) of the motion from ``start`` to ``end``.

    Rotations are interpolated by slerp, positions linearly.
    """
    T = np.eye(4)
    rotations = Rotation.from_matrix(np.stack((start[:3, :3], end[:3, :3])))
    T[:3, :3] = Slerp([0, 1], rotations)(share).as_matrix()
    T[:3, 3] = (1 - share) * start[:3, 3] + share * end[:3, 3]
    return T


# Formats ----------------------------------------------------------------------------------------


def open_sequence(path: Path) -> Sequence:
    """Returns the sequence in a folder. Raises FormatError if it has none of the formats."""
    if (path / "rgb.txt").exists():
        return open_tum(path)
    if any(path.glob("frame-*.color.*")):
        return open_seven_scenes(path)
    if (path / "mav0" / "cam0").is_dir():
        return open_euroc(path)
    raise FormatError(
        f"{path} is not a sequence: it has no rgb.txt (TUM RGB-D, ETH3D), no frame-*.color.png "
        "(7-Scenes) and no mav0/cam0 (EuRoC)"
    )


def to_ns(seconds: str) -> int:
    """Returns a decimal number of seconds in nanoseconds, exact."""
    whole, _, part = seconds.partition(".")
    return int(whole) * 10**9 + int(part[:9].ljust(9, "0"))


def table(path: Path, separator: str | None = None) -> list[list[str]]:
    """Returns the rows of a text file as lists of cells, without comments and empty lines."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return [
        [cell.strip() for cell in line.split(separator)]
        for line in lines
        if line and not line.startswith("#")
    ]


def rigid(position: list[float], quaternion: list[float]) -> Array:
    """Returns the pose [4, 4] with a position (x, y, z) and a quaternion (x, y, z, w)."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = matrix_from_quaternion(np.array(quaternion)), position
    return T


def pinhole(path: Path, image: Path, K: tuple[float, ...]) -> Calibration:
    """Returns the calibration in the folder's camera_info.yaml, else the one with ``K``.

    ``image`` gives the size; ``K``: (fx, fy, cx, cy) in pixels.
    """
    own = path / CALIBRATION_FILE
    if own.exists():
        return read_calibration(own)
    height, width = cv2.imread(str(image), cv2.IMREAD_GRAYSCALE).shape
    fx, fy, cx, cy = K
    return Calibration(width, height, np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]))


def open_tum(path: Path) -> Sequence:
    """Reads a sequence of TUM RGB-D, or of ETH3D SLAM.

    rgb.txt and depth.txt hold lines of ``stamp file``, groundtruth.txt lines of
    ``stamp tx ty tz qx qy qz qw``; a depth value of 5000 is 1 m.
    """
    depths = table(path / "depth.txt") if (path / "depth.txt").exists() else []
    depth_ns = np.array([to_ns(row[0]) for row in depths], dtype=np.int64)
    items = []
    for stamp, name in (row[:2] for row in table(path / "rgb.txt")):
        depth, stamp_ns = None, to_ns(stamp)
        if len(depths):
            nearest = int(np.argmin(np.abs(depth_ns - stamp_ns)))
            if abs(depth_ns[nearest] - stamp_ns) < MAX_GAP_S * 1e9:
                depth = path / depths[nearest][1]
        items.append(Item(stamp_ns, path / name, depth))
    truth = table(path / "groundtruth.txt")
    poses = [rigid([float(v) for v in row[1:4]], [float(v) for v in row[4:8]]) for row in truth]
    lens = pinhole(path, items[0].image, tum_K(path))
    stamps = np.array([to_ns(row[0]) for row in truth])
    return Sequence(path.name, items, lens, stamps, np.array(poses), 1 / 5000)


def tum_K(path: Path) -> tuple[float, ...]:
    """Returns (fx, fy, cx, cy), pixels: of the folder's calibration.txt, else of TUM's camera
    in its name. Raises FormatError for another file of that name."""
    own = path / "calibration.txt"
    if not own.exists():
        return TUM_K[next((k for k in TUM_K if k in path.name), "freiburg1")]
    rows = table(own)
    try:
        fx, fy, cx, cy = (float(value) for value in rows[0])
    except (IndexError, ValueError) as error:
        raise FormatError(f"{own} must have fx fy cx cy: {error}") from error
    return fx, fy, cx, cy


def open_seven_scenes(path: Path) -> Sequence:
    """Reads a sequence of 7-Scenes.

    Each frame has a colour image, depth in mm, and the camera-to-world matrix; the rate is 30 Hz.
    """
    items, poses = [], []
    for image in sorted(path.glob("frame-*.color.*")):
        stem = image.name.split(".")[0]
        depth = path / f"{stem}.depth.png"
        stamp = round((int(stem.split("-")[1]) + 1) * 1e9 / 30)
        items.append(Item(stamp, image, depth if depth.exists() else None))
        T = np.loadtxt(path / f"{stem}.pose.txt")
        u, _, vt = np.linalg.svd(T[:3, :3])
        T[:3, :3] = u @ vt
        poses.append(T)
    lens = pinhole(path, items[0].image, SEVEN_SCENES_K)
    stamps = np.array([item.stamp_ns for item in items])
    return Sequence(path.name, items, lens, stamps, np.array(poses), 1 / 1000)


def open_euroc(path: Path) -> Sequence:
    """Reads a sequence of EuRoC: cam0, its sensor.yaml, and the true body poses; no depth."""
    folder = path / "mav0" / "cam0"
    rows = table(folder / "data.csv", ",")
    items = [Item(int(row[0]), folder / "data" / row[1], None) for row in rows]
    sensor = yaml.safe_load((folder / "sensor.yaml").read_text())
    T_body_camera = np.array(sensor["T_BS"]["data"], float).reshape(4, 4)
    fx, fy, cx, cy = sensor["intrinsics"]
    width, height = sensor["resolution"]
    K = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    D = np.array(sensor.get("distortion_coefficients", ()), float)
    lens = Calibration(width, height, K, D=np.append(D, 0.0) if len(D) == 4 else D)
    truth = table(path / "mav0" / "state_groundtruth_estimate0" / "data.csv", ",")
    poses = []
    for row in truth:
        w, x, y, z = (float(v) for v in row[4:8])
        poses.append(rigid([float(v) for v in row[1:4]], [x, y, z, w]) @ T_body_camera)
    stamps = np.array([int(row[0]) for row in truth])
    return Sequence(path.name, items, lens, stamps, np.array(poses))


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

    ``session``: replaces the network that ``config`` names. Raises FormatError if fewer than three
    frames have a true pose.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _measured(sequence, Pipeline(config, session), every, Path(folder))


def _measured(sequence: Sequence, pipeline: Pipeline, every: int, folder: Path) -> Accuracy:
    pipeline.store(folder, None, DiskLimit(), wait=True)
    pairs, clouds, seconds = [], [], []
    for item, result in track(sequence, pipeline, every):
        T = sequence.pose(item.stamp_ns)
        seconds.append(result.window.total_s / result.window.new_frames)
        if T is None:
            continue
        depth = sequence.depth(item)
        if depth is not None:
            depth = resize_nearest(depth, result.depth_m.shape)
            clouds.append(room_points(depth, result.K, T))
        unknown = np.full(result.depth_m.shape, np.nan, np.float32)
        true = unknown if depth is None else depth
        pairs.append(FramePair(result.depth_m, result.T_map_camera, true, T))
    if len(pairs) < 3:
        raise FormatError(f"{sequence.name}: {len(pairs)} frames have a true pose, 3 are needed")
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
    items, everything, measured, count = {i.stamp_ns: i for i in sequence.items}, [], [], 0
    with StoredScene.open(folder) as stored:
        for key in stored.images:
            keyframe, dense = stored.load(key), stored.load_measured(key)
            true = sequence.depth(items[keyframe.pose.stamp_ns])
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


def track(sequence: Sequence, pipeline: Pipeline, every: int) -> Iterator[tuple]:
    """Yields every n-th item (n: ``every``) with its tracked frame."""
    items = {item.stamp_ns: item for item in sequence.items[::every]}
    for stamp_ns, item in items.items():
        image = cv2.cvtColor(cv2.imread(str(item.image)), cv2.COLOR_BGR2RGB)
        frame = Frame(stamp_ns, np.asarray(image, np.uint8), calibration=sequence.calibration)
        for result in pipeline.push(frame):
            yield items[result.stamp_ns], result
    for result in pipeline.flush():
        yield items[result.stamp_ns], result


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
                one = measure(open_sequence(folder), config, options.every)
            except FormatError as error:
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
