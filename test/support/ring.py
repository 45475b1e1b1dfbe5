"""A rendered corridor, and exact windows with noise and descriptors."""

import dataclasses

import numpy as np

from da3_ros.synthetic import intrinsics, make_ring, render, ring_walk
from da3_ros.synthetic.truth import Noise, Truth, TruthSession

SIZE = (84, 70)
NOISE = Noise(0.01, 0.02, 0.02, 0.5, 0.02)
CALM = Noise(0.01, 0.01, 0.01, 0.1, 0.005)
STEP_NS = 10**8


def descriptor_at(T):
    """Made-up descriptor of a place: similar for cameras that see the same."""
    wave = np.random.default_rng(5).normal(size=(3, 64))
    return np.cos(np.array([*T[:2, 3], 2 * np.arctan2(T[1, 2], T[0, 2])]) @ wave * 0.7)


class DescribedTruth(TruthSession):
    """The truth with noise, and a descriptor of each view."""

    def __init__(self, truth, seed=0, descriptors=None, noise=NOISE):
        super().__init__(truth, seed=seed, noise=noise)
        self.descriptors = descriptors or {
            f.stamp_ns: descriptor_at(f.T_room_camera) for f in truth
        }
        self.verified = 0

    def infer(self, window):
        self.verified += window.new == 0
        seen = np.stack([self.descriptors[v.stamp_ns] for v in window.views])
        return dataclasses.replace(super().infer(window), descriptor=seen)


def shifted(frame, offset):
    T = frame.T_room_camera.copy()
    T[:3, 3] += offset
    return T


def walked(frames=200, laps=1.3, seed=0, part=slice(None)):
    """Frames of a walk; only a ``part`` of them."""
    room = make_ring(seed)
    poses = ring_walk(room, frames, laps)[part]
    frames = len(poses)
    K = intrinsics(SIZE, 70.0)
    depth = np.concatenate(
        [np.asarray(render(room, poses[i : i + 40], K, SIZE).depth) for i in range(0, frames, 40)]
    )
    return [
        Truth(STEP_NS * (i + 1), d, T, K)
        for i, (d, T) in enumerate(zip(depth, poses, strict=True))
    ]
