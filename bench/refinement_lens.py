"""Cameras whose camera_info does not fit their images, with and without the correction of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from refinement_runs import (
    CORRELATED,
    Walk,
    means,
    one_thread,
    room_walks,
    tracked,
)

from da3_ros.synthetic.demo_settings import PARAMETERS
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Calibration


def focal(factor: float) -> Callable[[Calibration], Calibration]:
    """Returns what makes a focal length wrong by a factor."""
    return lambda c: replace(c, K=c.K * np.array([[factor, 1, 1], [1, factor, 1], [1, 1, 1]]))


def lens(k1: float, k2: float = 0.0) -> Callable[[Calibration], Calibration]:
    """Returns what states a distortion that there is none of."""
    return lambda c: replace(c, D=np.array([k1, k2, 0.0, 0.0, 0.0]))


def centre(share: float) -> Callable[[Calibration], Calibration]:
    """Returns what moves a principal point by a share of the width."""

    def moved(c: Calibration) -> Calibration:
        K = c.K.copy()
        K[0, 2] += share * c.width
        return replace(c, K=K)

    return moved


FAULTS: dict[str, Callable[[Calibration], Calibration]] = {
    "right": lambda c: c,
    "focal length 2 % long": focal(1.02),
    "focal length 5 % long": focal(1.05),
    "focal length 10 % short": focal(0.9),
    "k1 0.1 that is none": lens(0.1),
    "k1 -0.1 that is none": lens(-0.1),
    "principal point 2 % off": centre(0.02),
    "focal length 5 % short, k1 0.05": lambda c: lens(0.05)(focal(0.95)(c)),
}
ERRORS = ("ate_percent", "focal_percent")


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room, network and fault, without and with the correction."""
    one_thread()
    for name, seed, walk in room_walks(options):
        for network in options.networks:
            for fault, make in FAULTS.items():
                for corrected in (False, True):
                    yield {
                        "walk": name, "room": seed, "network": network, "fault": fault,
                        "corrected": corrected,
                    } | _run(walk, network, make, corrected, options)  # fmt: skip


def _run(
    walk: Walk, network: str, make: Callable[[Calibration], Calibration], corrected: bool,
    options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    calibration = walk.frames[0].calibration
    assert calibration is not None
    stated = make(calibration)
    frames = [replace(f, calibration=stated) for f in walk.frames]
    session = None
    if network == "truth":
        session = TruthSession(walk.truth, seed=0, noise=CORRELATED)
    values = PARAMETERS | {
        "backend": options.backend, "process_res": options.process_res or 224,
        "refinement.lens": corrected, "loop.enabled": False, "dense.enabled": False,
    }  # fmt: skip
    pipeline, results = tracked(values, frames, session)
    true = {f.stamp_ns: f.T_room_camera for f in walk.truth}
    poses = pipeline.poses()
    exact = np.array([true[p.stamp_ns] for p in poses])
    way = float(np.linalg.norm(np.diff(exact[:, :3, 3], axis=0), axis=1).sum())
    ate = trajectory_error(np.array([p.T_map_camera for p in poses]), exact)
    width = results[-1].depth_m.shape[1]
    found = results[-1].K[0, 0] / width / (calibration.K[0, 0] / calibration.width)
    return {
        "ate_m": ate, "ate_percent": 100 * ate / way, "focal_percent": abs(100 * (found - 1)),
        "lenses": pipeline.counters["lenses_corrected"],
    }  # fmt: skip


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means per network and fault, without and with the correction, and in how many
    walks there was one."""
    out = []
    for network, fault in dict.fromkeys((r["network"], r["fault"]) for r in found):
        for corrected in (False, True):
            same = [
                r for r in found
                if (r["network"], r["fault"], r["corrected"]) == (network, fault, corrected)
            ]  # fmt: skip
            row = {"network": network, "fault": fault, "corrected": corrected, "walks": len(same)}
            corrections = sum(r["lenses"] > 0 for r in same)
            out.append(row | {"corrections": corrections} | means(same, ERRORS))
    return out
