"""A tiled wall, scanned in columns: glances at other tiles that the network takes for one place.

The tiles are near enough for drift to allow that they are one, so that every fused window is
looked at and verified. What forbids to close the scene is that no two of them say the same.
"""

import dataclasses

import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic.truth import Noise, Truth, TruthSession
from da3_ros.types import Calibration, Frame

SIDE, DEPTH = 28, 2.0
STEP_NS = 10**8
K = np.array([[20.0, 0, 14], [0, 20.0, 14], [0, 0, 1]])
ROWS, ROW_M, COLUMN_M = 16, 0.25, 0.35
NOISE = Noise(0.01, 0.02, 0.03, 0.8, 0.04)
# (column, row) of a glance, and of the old tile that it is taken for.
GLANCES = (((4, 4), (0, 4)), ((5, 4), (1, 9)), ((6, 11), (2, 6)), ((7, 4), (3, 9)))


def stamp(column, row):
    """Columns are scanned down and up in turns."""
    row = row if column % 2 == 0 else ROWS - 1 - row
    return STEP_NS * (1 + column * ROWS + row)


def wall(columns=8):
    depth = np.full((SIDE, SIDE), DEPTH, np.float32)
    truth = []
    for column in range(columns):
        for row in sorted(range(ROWS), key=lambda r, c=column: stamp(c, r)):
            T = np.eye(4)
            T[:2, 3] = column * COLUMN_M, row * ROW_M
            truth.append(Truth(stamp(column, row), depth, T, K))
    return truth


class Fooled(TruthSession):
    """Takes each glance for the old tile, when it sees both in one window.

    Of other pairs it makes nothing, so that no true loop can help."""

    def __init__(self, truth, glances, seed):
        super().__init__(truth, seed=seed, noise=NOISE)
        rng = np.random.default_rng(0)
        self.looks = {f.stamp_ns: rng.normal(size=64) for f in truth}
        self.pairs = [(stamp(*old), stamp(*new)) for new, old in glances]
        for old, new in self.pairs:
            self.looks[new] = self.looks[old] + 0.05 * rng.normal(size=64)
        self.fused = []

    def infer(self, window):
        known, stamps = self._frames, {v.stamp_ns for v in window.views}
        if window.new == 0:
            pair = next((p for p in self.pairs if stamps >= set(p)), None)
            offset = np.array([50.0, 0, 0])
            if pair is not None:
                self.fused.append(pair)
                old, new = (known["", s].T_world_camera for s in pair)
                offset = old[:3, 3] - new[:3, 3]
            later = min(v.stamp_ns for v in window.views[len(window.views) // 2 :])
            self._frames = {
                key: moved(f, offset) if key[1] >= later else f for key, f in known.items()
            }
        found = super().infer(window)
        self._frames = known
        seen = np.stack([self.looks[v.stamp_ns] for v in window.views])
        return dataclasses.replace(found, descriptor=seen)


def moved(frame, offset):
    T = frame.T_world_camera.copy()
    T[:3, 3] += offset
    return dataclasses.replace(frame, T_world_camera=T)


def run(truth, session):
    settings = {
        "process_res": SIDE, "window.size": 4, "map.voxel_m": 0.2, "loop.every": 1,
        "keyframe.parallax": 0.05, "window.keyframes": 0,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(settings), session)
    lens = K.copy()
    lens[:2, 2] -= 0.5
    black = np.zeros((SIDE, SIDE, 3), np.uint8)
    for f in truth:
        list(pipeline.push(Frame(f.stamp_ns, black, calibration=Calibration(SIDE, SIDE, lens))))
    return pipeline


@pytest.mark.slow
def test_tiles_that_look_alike_are_found_and_never_made_one():
    truth = wall()
    for seed in range(3):
        session = Fooled(truth, GLANCES, seed)
        pipeline = run(truth, session)
        closer = pipeline.loops._closure
        assert len(session.fused) >= 2  # shown to the network, which takes them for one
        assert pipeline.loops.closed == 0
        assert pipeline.odometry.segment == 0
        assert closer.found >= 2  # verified, within drift: one such loop is not enough


@pytest.mark.slow
def test_two_glances_that_say_the_same_are_believed():
    """The same wall: what is forbidden above is not the geometry but the contradiction."""
    truth = wall()
    glances = (((4, 4), (0, 4)), ((4, 8), (0, 8)), ((5, 8), (1, 8)), ((5, 4), (1, 4)))
    pipeline = run(truth, Fooled(truth, glances, 0))
    assert pipeline.loops.closed > 0
