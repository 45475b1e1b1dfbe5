"""Metres by the known poses of a rig's cameras, with da3-tiny, without and with refinement.

    python bench/bench_rig.py --data DIR --out bench/results/rig.json

Rendered rooms with a second camera: a stereo pair, one with pictures that overlap in part, and one
whose pose is declared wrongly. DIR: also its ``kitti_stereo_10``, a car with a stereo pair.

``metric_from``: framesets before there are metres. ``scale_error``: length of the final way over
the true one, less 1 (Sim(3) fit); ``sigma``: as stated at the end. ``local_scale``: the same of
each eighth of the way, over that of all. ``ate_m``: after the fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from refinement_recordings import true_poses
from refinement_runs import FIRST_ROOM, one_thread
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from da3_ros.config import config_from_parameters
from da3_ros.geometry.similarity import Similarity
from da3_ros.inference import open_networks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import open_recording
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.demo_settings import PACE, RATE_HZ
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.rig import rig_mount
from da3_ros.types import Array, Frame

NAMES = ("left", "right")
VALUES = {
    "model": "da3-tiny", "process_res": 224, "cameras": list(NAMES), "scale.source": "rig",
    "dense.enabled": False,
}  # fmt: skip
KITTI, KITTI_BASELINE_M = "kitti_stereo_10", 0.537
PARTS = 8


@dataclass(frozen=True)
class Rig:
    """A second camera: beside the first one, and turned."""

    baseline_m: float
    yaw_deg: float
    wrong_deg: float = 0.0  # angle by which its declared pose is turned

    @property
    def declared(self) -> Array:
        """The declared pose [4, 4] of the second camera."""
        T = rig_mount(1, self.baseline_m, self.yaw_deg)
        T[:3, :3] = T[:3, :3] @ Rotation.from_euler("y", self.wrong_deg, degrees=True).as_matrix()
        return T


RIGS = (Rig(0.12, 0.0), Rig(0.3, -30.0), Rig(0.12, 0.0, 3.0))


def room(
    seed: int, walk: str, rig: Rig, size: tuple[int, int], count: int
) -> tuple[list[tuple[Frame, ...]], list[Array]]:
    """Returns framesets of a rendered room, and the true poses [4, 4] of the first camera."""
    mounts = (np.eye(4), rig_mount(1, rig.baseline_m, rig.yaw_deg))
    declared = (np.eye(4), rig.declared)
    sides, true = [], []
    for name, mount, known in zip(NAMES, mounts, declared, strict=True):
        camera = SyntheticCamera(
            seed, size, walk=walk, frames=count, rate_hz=RATE_HZ, pace=PACE, mount=mount
        )
        rendered = list(camera)
        true = true or [f.T_room_camera for f in rendered]
        sides.append([
            Frame(f.stamp_ns, f.image, name, name, camera.calibration, T_rig_camera=known)
            for f in rendered
        ])  # fmt: skip
    return list(zip(*sides, strict=True)), true


def kitti(folder: Path, count: int) -> tuple[list[tuple[Frame, ...]], list[Array]]:
    """The same of a recording of a stereo pair."""
    sides, true = [], []
    for number, name in enumerate(NAMES):
        with open_recording(folder, camera=f"/{name}/image_rect") as bag:
            frames = list(bag)[:count]
            true = true or true_poses(bag)[:count]
        T = rig_mount(number, KITTI_BASELINE_M, 0.0)
        sides.append([dataclasses.replace(f, camera=name, T_rig_camera=T) for f in frames])
    return list(zip(*sides, strict=True)), true


def measured(
    framesets: Sequence[tuple[Frame, ...]], true: Sequence[Array], values: dict[str, Any]
) -> dict[str, Any]:
    """Runs framesets through the pipeline; returns a row."""
    config = config_from_parameters(VALUES | values)
    pipeline = Pipeline(config, *open_networks(config))
    scales = []
    for frames in tqdm(framesets, leave=False):
        scales += [r.scale for r in pipeline.push(*frames) if r.camera == NAMES[0]]
    scales += [r.scale for r in pipeline.flush() if r.camera == NAMES[0]]
    stamps = {frames[0].stamp_ns: T for frames, T in zip(framesets, true, strict=True)}
    final = [p for p in pipeline.poses() if p.stamp_ns in stamps]
    found = np.array([p.T_map_camera for p in final])
    wanted = np.array([stamps[p.stamp_ns] for p in final])
    growth = 1 / Similarity.aligning(wanted, found).scale
    steps = [np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1) for T in (found, wanted)]
    parts = np.array_split(np.arange(len(steps[0])), PARTS)
    metric = [s.metric for s in scales]
    known = bool(metric[-1])
    return {
        "metric_from": metric.index(True) if any(metric) else None,
        "scale_error": growth - 1 if known else None,
        "sigma": scales[-1].sigma if known else None,
        "ate_m": trajectory_error(found, wanted),
        "way_m": float(steps[1].sum()),
        "local_scale": [
            round(float(steps[0][k].sum() / steps[1][k].sum() / growth), 3) for k in parts
        ],
        "windows_refined": pipeline.counters["windows_refined"],
        "rig_contradicted": pipeline.counters["rig_contradicted"],
    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per room, walk and rig, and of the recording, without and with refinement."""
    for seed, walk, rig in itertools.product(options.seeds, options.walks, RIGS):
        frames, true = room(seed, walk, rig, options.size, options.frames)
        about = {"room": seed, "walk": walk} | dataclasses.asdict(rig)
        for refined in (False, True):
            found = measured(frames, true, {"refinement.enabled": refined})
            yield about | {"refined": refined} | found
    if options.data is not None:
        frames, true = kitti(options.data / KITTI, options.frames)
        for refined in (False, True):
            found = measured(frames, true, {"refinement.enabled": refined})
            yield {"recording": KITTI, "refined": refined} | found


def main() -> None:
    """Runs and prints all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    seeds = list(range(FIRST_ROOM, FIRST_ROOM + 4))
    parser.add_argument("--seeds", type=int, nargs="*", default=seeds)
    parser.add_argument("--walks", nargs="+", default=["loop", "strafe", "straight"])
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument(
        "--size", type=lambda s: tuple(map(int, s.split("x"))), default=(320, 240), metavar="WxH"
    )
    parser.add_argument("--data", type=Path, help="folder of the recordings")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    one_thread()
    out = []
    for row in rows(options):
        print(row, flush=True)
        out.append(row)
    for refined in (False, True):
        mine = [r for r in out if r["refined"] is refined]
        known = [r for r in mine if r["scale_error"] is not None]
        off = np.abs([r["scale_error"] for r in known])
        z = off / np.array([r["sigma"] for r in known])
        if known:
            print(
                f"refined {refined}: metres in {len(known)} of {len(mine)}; scale error median "
                f"{100 * np.median(off):.2f} %, largest {100 * off.max():.2f} %; in sigmas, RMS "
                f"{np.sqrt((z**2).mean()):.2f}, largest {z.max():.2f}"
            )
    results_file.write(options.out, {"rows": out}, "cpu")


if __name__ == "__main__":
    main()
