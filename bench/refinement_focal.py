"""The focal length of a camera without calibration, by the network and by feature tracks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import refinement_recordings
from refinement_runs import (
    CORRELATED,
    Walk,
    demo_values,
    means,
    off_and_on,
    one_thread,
    room_walks,
)
from scipy.spatial.transform import Rotation

from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import Noise, TrueFrame, TruthSession
from da3_ros.types import Prediction, TrackedFrame, Window

LAST = 5  # frames over which the result is taken
WITHIN = 5.0  # per cent; the error that counts as right


class WrongFocal(TruthSession):
    """Predicts focal lengths that are ``factor`` times the true ones, and what images then show.

    A network that takes the focal length for longer sees smaller angles: turns and motions across
    the optical axis of the first view are smaller by the same factor; depth, and motions along
    the axis, keep theirs. This is exact for a camera that does not turn, and for small angles.
    """

    def __init__(
        self, frames: Sequence[TrueFrame], factor: float, *, seed: int, noise: Noise
    ) -> None:
        super().__init__(frames, seed=seed, noise=noise)
        self.factor = factor

    def infer(self, window: Window) -> Prediction:
        """Predicts the window's views. Raises KeyError for an unknown stamp."""
        found = super().infer(window)
        first = found.T_window_camera[0]
        moved = np.linalg.inv(first) @ found.T_window_camera
        turns = Rotation.from_matrix(moved[:, :3, :3]).as_rotvec() / self.factor
        moved[:, :3, :3] = Rotation.from_rotvec(turns).as_matrix()
        moved[:, :2, 3] /= self.factor
        found.T_window_camera[:] = first @ moved
        found.K[:, [0, 1], [0, 1]] *= self.factor
        return found


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk and network, off and on; camera_info is hidden."""
    one_thread()
    for name, _, walk in room_walks(options):
        values = dict.fromkeys(
            ("truth", "da3-tiny"), demo_values(options.process_res or 224, options.backend)
        )
        yield from of_walk(name, walk, values, CORRELATED, options)
    if options.data is not None:
        for walk in refinement_recordings.recordings(options.data):
            values = {n: refinement_recordings.settings(n, options) for n in options.networks}
            yield from of_walk(walk.name, walk, values, refinement_recordings.NOISE, options)


def of_walk(
    data: str, walk: Walk, values: dict[str, Any], noise: Noise, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a walk; ``values``: parameters by network."""
    hidden = walk.uncalibrated()
    for network in options.networks:
        for factor in options.factors if network == "truth" else (None,):

            def session(factor: float | None = factor) -> Any:
                if factor is None:
                    return None
                return WrongFocal(walk.truth, factor, seed=0, noise=noise)

            name = network if factor is None else f"{network} x {factor:g}"
            for row, pipeline, results in off_and_on(hidden, values[network], session):
                yield {
                    "data": data, "walk": walk.name, "network": name, "refined": row["refined"],
                    "focal_percent": focal_error_percent(results, walk),
                    "determined": row["refined"] and is_determined(pipeline),
                } | {k: row[k] for k in ("rotation_deg", "ate_m", "windows_refined")}  # fmt: skip


def focal_error_percent(results: Sequence[TrackedFrame], walk: Walk) -> float:
    """Returns the signed error of the focal length in the newest frames, per cent."""
    true = walk.truth[0].K[0, 0] / walk.truth[0].depth.shape[1]
    found = [r.K[0, 0] / r.depth_m.shape[1] for r in results[-LAST:]]
    return float(100 * (np.median(found) / true - 1))


def is_determined(pipeline: Pipeline) -> bool:
    """Whether tracks have determined the focal length, so that it is published."""
    return bool(pipeline._steps.refinement.refiner.calibration.known)


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns per data and network: mean absolute errors off and on, the share of walks that
    determine the focal length, and the share of those with an error within 5 %."""
    out = []
    for data, network in dict.fromkeys((r["data"], r["network"]) for r in found):
        same = [r for r in found if (r["data"], r["network"]) == (data, network)]
        off, on = ([r for r in same if r["refined"] == refine] for refine in (False, True))
        known = [r for r in on if r["determined"]]
        right = [abs(r["focal_percent"]) <= WITHIN for r in known]
        out.append({
            "data": data, "network": network, "walks": len(on),
            "off_percent": mean_error(off), "on_percent": mean_error(on),
            "determined": len(known) / len(on),
            "right_of_determined": float(np.mean(right)) if right else float("nan"),
            "worst_determined_percent": max(
                (abs(r["focal_percent"]) for r in known), default=float("nan")
            ),
            "off_rotation_deg": means(off, ("rotation_deg",))["rotation_deg"],
            "on_rotation_deg": means(on, ("rotation_deg",))["rotation_deg"],
        })  # fmt: skip
    return out


def mean_error(found: Sequence[dict[str, Any]]) -> float:
    """Returns the mean absolute error of rows, per cent."""
    return float(np.mean([abs(r["focal_percent"]) for r in found]))
