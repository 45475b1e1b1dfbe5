"""The refinement when something is wrong with the images or the matches: not worse than without.

A fault changes images, and what a network makes of them: ``TruthSession`` predicts the depth of
what is seen (the mover's, the hand's), and the camera's true pose unless the scene is not visible.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import cv2
import numpy as np
from numpy.typing import NDArray
from refinement_runs import (
    CORRELATED,
    COUNTS,
    as_walk,
    compared,
    demo_values,
    off_and_on,
    one_thread,
    room_camera,
    room_seeds,
)

from da3_ros.refinement import sliding_graph
from da3_ros.refinement.features import Features
from da3_ros.synthetic import SyntheticFrame
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Array, Image

STAND = 15  # frames of a camera that stands
HAND = (0.8, 0.9, 1.0, 0.9, 0.8)  # shares of the image that a hand covers, frame by frame
HAND_M, SKIN = 0.1, (205, 150, 125)  # its distance; red, green, blue
GAINS = (0.4, 1.8)  # of alternating exposures
OTHER_ROOM = 1000  # added to the seed of a room gives that of the mover's
ERRORS = ("ate_m", "rotation_deg", "rotation_far_deg", "scale_drift")


@dataclass(frozen=True, eq=False)
class Faulty:
    """Frames with a fault."""

    frames: list[SyntheticFrame]  # as the camera gives them, with the room's depth, NaN unseen
    seen: list[SyntheticFrame]  # what the truth session predicts
    wrong_matches: float = 0.0  # share


Fault = Callable[[list[SyntheticFrame], list[SyntheticFrame]], Faulty]


def clean(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """No fault."""
    return Faulty(frames, frames)


def each_thrice(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """Each frame repeats exactly, twice."""
    return clean(restamped([f for f in frames for _ in range(3)]), [])


def stand(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """The frame in the middle repeats exactly."""
    half = len(frames) // 2
    return clean(restamped(frames[:half] + STAND * [frames[half]] + frames[half:]), [])


def hand(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """A hand covers the lens; a network sees it as near, and knows the camera's pose."""
    near = np.random.default_rng(0)
    return covered(frames, lambda f, at: replace(f, depth=_filled(f, at, _waves(near, HAND_M))))


def hand_as_noise(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """A hand covers the lens; a network sees noise in its place, and is wrong about the pose."""
    rng = np.random.default_rng(0)

    def noise(f: SyntheticFrame, at: NDArray[np.bool_]) -> SyntheticFrame:
        depth = rng.uniform(0.2, 5, f.depth.shape)
        T = f.T_room_camera.copy()
        T[:3, :3] = T[:3, :3] @ cv2.Rodrigues(rng.normal(0, 0.1, 3))[0]
        T[:3, 3] += rng.normal(0, 0.2, 3)
        return replace(f, depth=_filled(f, at, depth), T_room_camera=T)

    return covered(frames, noise)


def other_room(frames: list[SyntheticFrame], others: list[SyntheticFrame]) -> Faulty:
    """In the middle third the left half shows another camera's walk through another room: half of
    the image moves on its own. Its depth is that of the other room, as it is seen."""
    half = frames[0].image.shape[1] // 2
    out = list(frames)
    for i in range(len(frames) // 3, 2 * len(frames) // 3):
        image, depth = frames[i].image.copy(), frames[i].depth.copy()
        image[:, :half], depth[:, :half] = others[i].image[:, :half], others[i].depth[:, :half]
        out[i] = replace(frames[i], image=image, depth=depth)
    return clean(out, [])


def exposure(frames: list[SyntheticFrame], _: list[SyntheticFrame]) -> Faulty:
    """Brightness jumps from frame to frame, and is clipped."""
    return clean([
        replace(f, image=np.clip(f.image * GAINS[i % 2], 0, 255).astype(np.uint8))
        for i, f in enumerate(frames)
    ], [])  # fmt: skip


def mixed_up(share: float) -> Fault:
    """Returns the fault that a share of the matches is wrong."""
    return lambda frames, _: Faulty(frames, frames, share)


FAULTS: dict[str, Fault] = {
    "none": clean, "each frame thrice": each_thrice, "stand": stand, "hand": hand,
    "hand as noise": hand_as_noise, "mover": other_room, "exposure": exposure,
    "10 % wrong matches": mixed_up(0.1), "30 % wrong matches": mixed_up(0.3),
}  # fmt: skip


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields a row per walk, room, network and fault, off and on."""
    one_thread()
    values = demo_values(options.process_res or 224, options.backend)
    for name in options.walks:
        for room in room_seeds(options.rooms):
            camera = room_camera(name, room, options.size, options.frames)
            frames = list(camera)
            others = list(room_camera(name, room + OTHER_ROOM, options.size, options.frames))
            for fault in options.faults:
                faulty = FAULTS[fault](frames, others)
                walk = as_walk(name, camera, faulty.frames)
                for network, seed in networks(fault, options):

                    def session(
                        network: str = network, seed: int = seed, seen: Any = faulty.seen
                    ) -> Any:
                        truth = TruthSession(seen, seed=seed, noise=CORRELATED)
                        return truth if network == "truth" else None

                    with wrong_matches(faulty.wrong_matches, seed):
                        for row, _, _ in off_and_on(walk, values, session):
                            yield {
                                "fault": fault, "network": network, "walk": name, "room": room,
                                "seed": seed, "refined": row["refined"],
                            } | {k: row[k] for k in (*ERRORS, *COUNTS, "worse")}  # fmt: skip


def networks(fault: str, options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yields networks with their seeds. A real network has its own view of a hand, once."""
    for network in options.networks:
        if network == "truth":
            yield from ((network, seed) for seed in range(options.runs))
        elif fault != "hand as noise":
            yield network, 0


def table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means over walks, rooms and seeds."""
    return compared(found, ("fault", "network"), ERRORS, COUNTS)


def restamped(frames: Sequence[SyntheticFrame]) -> list[SyntheticFrame]:
    """Returns frames at equal intervals: those of the first two different stamps."""
    stamps = sorted({f.stamp_ns for f in frames})
    step = stamps[1] - stamps[0]
    return [replace(f, stamp_ns=stamps[0] + i * step) for i, f in enumerate(frames)]


def covered(
    frames: list[SyntheticFrame],
    seen: Callable[[SyntheticFrame, NDArray[np.bool_]], SyntheticFrame],
) -> Faulty:
    """Puts a hand over the lens in the middle of the walk.

    seen: returns what is predicted, of a frame and the mask [H, W] of the hand.
    """
    out, predicted = list(frames), list(frames)
    skin = _skin(frames[0].image.shape[:2])
    first = max(1, (len(frames) - len(HAND)) // 2)
    for i, share in enumerate(HAND[: len(frames) - first], first):
        at = np.zeros(frames[i].depth.shape, bool)
        at[round((1 - share) * len(at)) :] = True
        image = frames[i].image.copy()
        # The hand moves a little, as its texture does.
        image[at] = np.roll(skin, (3 * i, 5 * i), (0, 1))[at]
        predicted[i] = seen(replace(frames[i], image=image), at)
        out[i] = replace(frames[i], image=image, depth=_filled(frames[i], at, np.nan))
    return Faulty(out, predicted)


def _filled(frame: SyntheticFrame, at: NDArray[np.bool_], depth: Array | float) -> Array:
    return np.where(at, depth, frame.depth).astype(np.float32)


def _waves(rng: np.random.Generator, mean: float) -> float:
    return float(mean * np.exp(rng.normal(0, 0.1)))


def _skin(shape: tuple[int, ...]) -> Image:
    """Returns a blurred texture [H, W, 3] of the colour of skin."""
    rng = np.random.default_rng(0)
    noise = cv2.GaussianBlur(rng.normal(size=shape), (0, 0), max(shape) / 40)
    return np.asarray(
        np.clip(np.array(SKIN) + 15 * noise[..., None] / noise.std(), 0, 255).astype(np.uint8)
    )


@contextlib.contextmanager
def wrong_matches(share: float, seed: int) -> Iterator[None]:
    """Makes a share of the refinement's matches wrong: their partners are shuffled."""
    rng, real = np.random.default_rng(seed), sliding_graph.match

    def match(first: Features, second: Features) -> NDArray[np.int64]:
        pairs = real(first, second).copy()
        some = rng.permutation(len(pairs))[: round(share * len(pairs))]
        pairs[some, 1] = pairs[np.roll(some, 1), 1]
        return pairs

    with mock.patch.object(sliding_graph, "match", match if share else real):
        yield
