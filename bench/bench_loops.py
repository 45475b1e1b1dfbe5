"""Loop closure on walks round a corridor: drift, recall, and false loops.

    python bench/bench_loops.py rings --seeds 10 --out bench/results/loops-rings.json
    python bench/bench_loops.py twins --seeds 20 --out bench/results/loops-twins.json
    python bench/bench_loops.py recall --seeds 10 --out bench/results/loops-recall.json
    python bench/bench_loops.py network --seeds 2 --out bench/results/loops-network.json

``rings``: 1.25 laps; windows are exact plus noise, descriptors are those of da3-tiny for the
rendered images. Drift is the error of the poses at the end relative to the earlier poses at the
same position, without and with loop closure.
``twins``: perceptual aliasing. Two identical corridors, 30 m apart, are visited one after the
other, and the network predicts one location when a window has views of both: no loop may be
closed. ``recall``: share of the second lap's keyframes for which the five most similar earlier
keyframes include one with a similar pose in the first lap, by kind of descriptor.
``network``: windows of da3-tiny on rendered images: how many loop candidates it verifies, of those
that are true and of those that are false; and the error of the path without and with loops.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import results_file
import torch

from da3_ros.config import PipelineConfig, config_from_parameters
from da3_ros.inference import InferenceSession, Session
from da3_ros.inference.preprocess import normalize
from da3_ros.mapping.descriptor_index import statistics
from da3_ros.network import build_network, load_checkpoint
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import intrinsics, make_ring, render, ring_walk
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import Noise, Truth, TruthSession, at_size
from da3_ros.types import Array, Calibration, Frame, Window

SEEN = (140, 112)  # (width, height) of the images for descriptors
SIZE = (84, 70)  # of depth
NOISE = Noise(0.01, 0.02, 0.02, 0.5, 0.02)
STEP_NS = 10**8


class Descriptors:
    """Computes several kinds of descriptors from the features of da3-tiny."""

    def __init__(self) -> None:
        self.network = build_network("da3-tiny")
        load_checkpoint(self.network, "")
        self.network.eval()

    @torch.inference_mode()
    def __call__(self, images: Array) -> dict[str, Array]:
        """Returns descriptors [N, D] float32 of images [N, h, w, 3] by kind."""
        kinds: dict[str, list] = {"class slot": [], "mean": [], "mean and spread": []}
        for some in np.array_split(images, max(1, len(images) // 32)):
            prefix = self.network.encode(normalize(torch.from_numpy(some))[None])
            patches = prefix.tokens[0][:, 1:]
            mean, spread = patches.mean(dim=1), patches.std(dim=1)
            kinds["class slot"].append(prefix.descriptor[0])
            kinds["mean"].append(mean)
            kinds["mean and spread"].append(torch.cat((mean, spread), dim=1))
        return {k: torch.cat(v).float().numpy() for k, v in kinds.items()}


@dataclasses.dataclass(frozen=True)
class Walk:
    """A rendered walk."""

    truth: list[Truth]  # at SIZE
    images: Array  # [N, h, w, 3] at SEEN
    descriptors: dict[str, Array]  # by kind, [N, D]


def walk_ring(seed: int, frames: int, laps: float, describe: Descriptors) -> Walk:
    """Renders a walk round the corridor of ``seed``."""
    room = make_ring(seed)
    poses = ring_walk(room, frames, laps)
    K = intrinsics(SEEN, 70.0)
    truth, images = [], []
    for first in range(0, frames, 40):
        part = poses[first : first + 40]
        out = render(room, part, K, SEEN)
        images.append(np.asarray(out.image))
        depth = np.asarray(out.depth)
        truth += [
            Truth(STEP_NS * (first + i + 1), d, T, K)
            for i, (d, T) in enumerate(zip(depth, part, strict=True))
        ]
    seen = np.concatenate(images)
    return Walk(at_size(truth, SIZE), seen, describe(seen))


class DescriptorSession(TruthSession):
    """TruthSession with noise and the descriptors of the rendered images."""

    def __init__(self, walk: Walk, seed: int) -> None:
        super().__init__(walk.truth, seed=seed, noise=NOISE)
        known = zip(walk.truth, walk.descriptors["mean"], strict=True)
        self._descriptors = {f.stamp_ns: d for f, d in known}

    def infer(self, window: Window):
        """Like ``TruthSession.infer``, with descriptors."""
        descriptors = np.stack([self._descriptors[view.stamp_ns] for view in window.views])
        return dataclasses.replace(super().infer(window), descriptor=descriptors)


class AliasedSession(DescriptorSession):
    """Places the second of two identical corridors in the first when verifying a loop."""

    def __init__(self, walk: Walk, seed: int, second: set[int], offset: Array) -> None:
        """``second``: stamps of the second corridor's views, ``offset`` [3] metres away."""
        super().__init__(walk, seed)
        self._second, self._offset, self.aliased = second, offset, 0

    def infer(self, window: Window):
        """Like DescriptorSession, except for windows without new views that have both."""
        stamps = {view.stamp_ns for view in window.views}
        if not window.new and stamps & self._second and stamps - self._second:
            self.aliased += 1
            before, self._frames = (
                self._frames,
                {
                    key: dataclasses.replace(
                        f, T_room_camera=translated(f.T_room_camera, -self._offset)
                    )
                    if key[1] in self._second
                    else f
                    for key, f in self._frames.items()
                },
            )
            try:
                return super().infer(window)
            finally:
                self._frames = before
        return super().infer(window)


def translated(T: Array, offset: Array) -> Array:
    """Returns the pose [4, 4] translated by ``offset`` [3]."""
    out = T.copy()
    out[:3, 3] += offset
    return out


def run(walk: Walk, session: TruthSession, *, loops: bool) -> Pipeline:
    """Runs a walk through a pipeline with or without loop closure, and returns the pipeline."""
    values = {
        "process_res": max(SIZE), "window.size": 8, "map.voxel_m": 0.1, "loop.enabled": loops,
        "map.keep_images": False, "refinement.enabled": False, "hold_when_blind": False,
    }  # fmt: skip
    pipeline = Pipeline(config_from_parameters(values), session)
    K = walk.truth[0].K.copy()
    K[:2, 2] -= 0.5
    lens, black = Calibration(*SIZE, K), np.zeros((*SIZE[::-1], 3), np.uint8)
    for f in walk.truth:
        for _ in pipeline.push(Frame(f.stamp_ns, black, calibration=lens)):
            pass
    return pipeline


def end_error(pipeline: Pipeline, walk: Walk) -> dict[str, float]:
    """Returns the errors of the last 30 frames relative to earlier frames, and the path's ATE.

    Each of the last frames is compared with the frame of the first half that is nearest to it in
    truth. end_m: median error of the translation between both, metres; scale: median scale of the
    end relative to that of the beginning; ate_m: of the whole path, metres.
    """
    poses = {p.stamp_ns: p.T_map_camera for p in pipeline.poses()}
    true = np.array([f.T_room_camera for f in walk.truth])
    ours = np.array([poses[f.stamp_ns] for f in walk.truth])
    early = len(true) // 2
    off, scales = [], []
    for last in range(len(true) - 30, len(true)):
        first = int(np.argmin(np.linalg.norm(true[:early, :3, 3] - true[last, :3, 3], axis=1)))
        around = slice(max(0, first - 5), first + 6)
        unit = length(ours[around]) / length(true[around])  # scene units per metre there
        a, b = (np.linalg.inv(T[first]) @ T[last] for T in (ours, true))
        off.append(np.linalg.norm(a[:3, 3] / unit - b[:3, 3]))
        then = slice(last - 10, last + 1)
        scales.append(length(ours[then]) / length(true[then]) / unit)
    return {
        "end_m": float(np.median(off)),
        "scale": float(np.median(scales)),
        "ate_m": trajectory_error(ours, true),
    }


def length(poses: Sequence[Array]) -> float:
    """Returns the length of the path through poses [4, 4]."""
    return float(np.linalg.norm(np.diff([T[:3, 3] for T in poses], axis=0), axis=1).sum())


def ring_rows(options: argparse.Namespace, describe: Descriptors) -> list[dict]:
    """Returns a row per corridor, without and with loop closure."""
    found = []
    for seed in range(options.seeds):
        walk = walk_ring(seed, options.frames, 1.25, describe)
        row = {"seed": seed, "path_m": length([f.T_room_camera for f in walk.truth])}
        for loops in (False, True):
            pipeline = run(walk, DescriptorSession(walk, seed), loops=loops)
            error = end_error(pipeline, walk)
            row |= {f"{k}{'' if loops else ' before'}": v for k, v in error.items()}
            if loops:
                closure = pipeline.loops
                row |= {"closed": pipeline.loops.closed, "found": closure.found}
                row |= {
                    "looks": closure.found + closure.refused,  # windows run to verify a loop
                    "submaps": len(closure._graph.nodes),
                }
        row["gain"] = row["end_m before"] / row["end_m"]
        found.append(row)
        show(row)
    return found


def twin_rows(options: argparse.Namespace, describe: Descriptors) -> list[dict]:
    """Returns a row per pair of identical corridors."""
    found = []
    for seed in range(options.seeds):
        one = walk_ring(seed, options.frames // 2, 0.5, describe)
        offset = np.array([30.0, 0, 0])
        count = len(one.truth)
        twin = [
            Truth(f.stamp_ns + count * STEP_NS, f.depth, translated(f.T_room_camera, offset), f.K)
            for f in one.truth
        ]
        descriptors = {k: np.concatenate((v, v)) for k, v in one.descriptors.items()}
        walk = Walk(one.truth + twin, np.concatenate((one.images, one.images)), descriptors)
        session = AliasedSession(walk, seed, {f.stamp_ns for f in twin}, offset)
        pipeline = run(walk, session, loops=True)
        row = {"seed": seed, "closed": pipeline.loops.closed, "fooled": session.aliased}
        row |= {"found": pipeline.loops.found, "chains": pipeline.map.table.chain + 1}
        found.append(row)
        show(row)
    return found


def recall_rows(options: argparse.Namespace, describe: Descriptors) -> list[dict]:
    """Returns the recall at 5 of every kind of descriptor, without and with whitening."""
    walks = [walk_ring(seed, options.frames, 1.25, describe) for seed in range(options.seeds)]
    found = []
    for kind in walks[0].descriptors:
        for white in (False, True):
            hits: list[bool] = []
            for walk in walks:
                hits += recall_hits(walk, kind, white)
            row = {"kind": kind, "whitened": white, "recall@5": float(np.mean(hits))}
            found.append(row | {"queries": len(hits)})
            show(found[-1])
    return found


class VerificationRecorder(Session):
    """Runs da3-tiny, and records for each loop verification whether the candidate is true."""

    def __init__(self, walk: Walk, settings: PipelineConfig) -> None:
        self.session = InferenceSession(settings.inference)
        self.memory = self.session.memory
        self._true = {f.stamp_ns: f.T_room_camera for f in walk.truth}
        # Of each verification: whether both keyframes are within 1.5 m and 40 degrees.
        self.true: list[bool] = []

    def prefetch(self, image) -> None:
        """Calls the session."""
        self.session.prefetch(image)

    def infer(self, window: Window):
        """Calls the session; a window without new views is the verification of a loop."""
        if not window.new:
            split = int(np.argmax(np.abs(np.diff([v.stamp_ns for v in window.views])))) + 1
            a, b = (self._true[window.views[i].stamp_ns] for i in (0, split))
            near = np.linalg.norm(a[:3, 3] - b[:3, 3]) < 1.5
            self.true.append(bool(near and a[:3, 2] @ b[:3, 2] > np.cos(np.radians(40))))
        return self.session.infer(window)


def network_rows(options: argparse.Namespace, describe: Descriptors) -> list[dict]:
    """Returns a row per corridor with da3-tiny's predictions, without and with loop closure."""
    found = []
    for seed in range(options.seeds):
        walk = walk_ring(seed, options.frames, 1.25, describe)
        row = {"seed": seed}
        for loops in (False, True):
            values = {
                "model": "da3-tiny", "process_res": max(SEEN), "map.voxel_m": 0.1,
                "loop.enabled": loops, "map.keep_images": False, "device": "cpu",
            }  # fmt: skip
            settings = config_from_parameters(values)
            recorder = VerificationRecorder(walk, settings)
            pipeline = Pipeline(settings, recorder)
            K = intrinsics(SEEN, 70.0)
            K[:2, 2] -= 0.5
            verdicts: list[int] = []
            for f, image in zip(walk.truth, walk.images, strict=True):
                frame = Frame(f.stamp_ns, image, calibration=Calibration(*SEEN, K))
                for _ in pipeline.push(frame):
                    pass
                missing = len(recorder.true) - len(verdicts)
                verdicts += [pipeline.loops.found - sum(verdicts)] * missing
            error = end_error(pipeline, walk)
            row |= {f"{k}{'' if loops else ' before'}": v for k, v in error.items()}
        true = np.array(recorder.true, bool)
        verified = np.array(verdicts, bool)
        row |= {"closed": pipeline.loops.closed, "true looks": int(true.sum())}
        row |= {"of these found": int(verified[true].sum()), "false looks": int((~true).sum())}
        row |= {
            "of these found too": int(verified[~true].sum()),
            "chains": pipeline.map.table.chain + 1,
        }
        found.append(row)
        show(row)
    return found


def recall_hits(walk: Walk, kind: str, white: bool) -> list[bool]:
    """Returns for keyframes of the second lap whether a true match is among the best five.

    A true match is a keyframe of the first half lap within 1 m and 25 degrees; keyframes without
    one are left out.
    """
    chosen = np.arange(0, len(walk.truth), 4)
    x = walk.descriptors[kind][chosen]
    x = statistics(list(x))[1] if white else x / np.linalg.norm(x, axis=1, keepdims=True)
    first = round(len(chosen) / 1.25)
    old, new = np.arange(first // 2), np.arange(first, len(chosen))
    T = np.array([walk.truth[i].T_room_camera for i in chosen])
    hits = []
    for q in new:
        near = np.linalg.norm(T[old, :3, 3] - T[q, :3, 3], axis=1) < 1.0
        near &= (T[old, :3, 2] @ T[q, :3, 2]) > np.cos(np.radians(25))
        if near.any():
            best = np.argsort(-(x[: q - 8] @ x[q]))[:5]
            hits.append(bool(near[best[best < len(old)]].any()))
    return hits


def show(row: dict) -> None:
    """Prints a row of the table."""
    cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="?", default="rings", choices=("rings", "twins", "recall", "network")
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--frames", type=int, default=320)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("da3_ros").setLevel(logging.ERROR)
    work = {
        "rings": ring_rows,
        "twins": twin_rows,
        "recall": recall_rows,
        "network": network_rows,
    }[options.what]
    found = work(options, Descriptors())
    results_file.write(options.out, {"rows": found}, "cpu")


if __name__ == "__main__":
    main()
