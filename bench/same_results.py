#!/usr/bin/env python3
"""Replays many situations, and compares the results of two versions of the code.

Usage: same_results.py record FOLDER [--only CASE ...] [--recordings DIR]
       same_results.py compare BEFORE AFTER

``record`` runs the commands `da3_ros replay` and `merge` as a user would, with da3-tiny on the
CPU: rendered walks (refined or not, with loops, darkness, a lost track, a jump of the clock, a
rig, the robot's poses, a saved map, merging) and, with ``--recordings``, real ones. ``compare``
exits with 1 if a trajectory differs by more than 1e-6 of its length, a cloud by more than 1e-5 m
or 0.1 % of its points, or a count of the report at all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trimesh
from scipy.spatial import cKDTree

from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.synthetic import SyntheticCamera, SyntheticFrame
from da3_ros.synthetic.rig import rig_mount
from da3_ros.types import Calibration

SIZE, FRAMES = (224, 168), 40
STEP_NS = 10**8
# For each replay: the plan must not depend on free memory, nor the engine on when it is ready.
SETTINGS = (
    "model:=da3-tiny", "device:=cpu", "backend:=torch", "mixed_precision:=off", "window.size:=6",
    "process_res:=224", "memory_budget_gb:=4.0",
)  # fmt: skip
TRAJECTORY, CLOUD_M, POINTS = 1e-6, 1e-5, 1e-3  # tolerated differences


class Walk:
    """A walk that was edited: frames in any order, with stamps of their own."""

    def __init__(self, frames: Sequence[SyntheticFrame], calibration: Calibration) -> None:
        self.frames, self.calibration = list(frames), calibration
        self.start_ns = self.frames[0].stamp_ns

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[SyntheticFrame]:
        return iter(self.frames)


def walk(*pieces: tuple[int, int, int]) -> Walk:
    """Returns pieces of walks, one after another: seed of the room, first frame, last frame.

    A last frame before the first one: backwards.
    """
    frames, cameras = [], {}
    for seed, first, last in pieces:
        if seed not in cameras:
            cameras[seed] = SyntheticCamera(seed, SIZE, walk="loop", frames=FRAMES)
        step = 1 if last >= first else -1
        frames += [cameras[seed][i] for i in range(first, last + step, step)]
    calibration = next(iter(cameras.values())).calibration
    start = frames[0].stamp_ns
    stamped = [dataclasses.replace(f, stamp_ns=start + n * STEP_NS) for n, f in enumerate(frames)]
    return Walk(stamped, calibration)


def black(one: Walk, first: int, last: int) -> Walk:
    """Returns a walk whose images from ``first`` to ``last`` are black."""
    frames = [
        dataclasses.replace(f, image=np.zeros_like(f.image)) if first <= n <= last else f
        for n, f in enumerate(one)
    ]
    return Walk(frames, one.calibration)


def delayed(one: Walk, first: int, seconds: int) -> Walk:
    """Returns a walk whose stamps jump at frame ``first``."""
    frames = [
        dataclasses.replace(f, stamp_ns=f.stamp_ns + seconds * 10**9 * (n >= first))
        for n, f in enumerate(one)
    ]
    return Walk(frames, one.calibration)


def rig() -> dict[str, SyntheticCamera]:
    """Returns two cameras on a rig."""
    return {
        name: SyntheticCamera(
            5, SIZE, walk="loop", frames=FRAMES // 2, mount=rig_mount(i, 0.2, -30)
        )
        for i, name in enumerate(("front", "left"))
    }


BAGS: dict[str, Callable[[], Walk | dict[str, SyntheticCamera]]] = {
    "there-and-back": lambda: walk((100, 0, 39), (100, 39, 0), (100, 0, 39)),
    "dark": lambda: black(walk((100, 0, 39)), 15, 24),
    "lost": lambda: walk((100, 0, 15), (7, 0, 15), (100, 15, 0)),
    "lost-and-found": lambda: walk((100, 0, 39), (7, 0, 15), (100, 39, 0), (100, 0, 39)),
    "jump": lambda: delayed(walk((100, 0, 25)), 13, -60),
    "other-way": lambda: walk((100, 30, 0)),
    "rig": rig,
}


@dataclass(frozen=True)
class Case:
    """A command to run. ``{name}`` in arguments is the folder of another case's results."""

    bag: str  # a name of BAGS, a path below --recordings, or "" for a merge
    parameters: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


PRIOR = ("pose_prior.source:=tf", "odom_frame:=map", "tf.publish:=none")
CASES = {
    "refined": Case("there-and-back"),
    "unrefined": Case("there-and-back", ("refinement.enabled:=false",)),
    "no-loops": Case("there-and-back", ("loop.enabled:=false",)),
    "two-new": Case("there-and-back", ("window.new:=2",)),
    "dark": Case("dark"),
    "lost": Case("lost"),
    "lost-unrefined": Case("lost", ("refinement.enabled:=false",)),
    # Loops tie the part after the lost track to the first one.
    "loop": Case("lost-and-found", ("loop.every:=1", "keyframe.rotation_deg:=5.0")),
    "loop-unrefined": Case("lost-and-found", ("loop.every:=1", "refinement.enabled:=false")),
    "jump": Case("jump"),
    "other-way": Case("other-way"),
    "rig": Case("rig", ("cameras:=[front, left]",)),
    # What da3-tiny sees of the rig is refused: nothing becomes metric, and that must stay so.
    "rig-scale": Case("rig", ("cameras:=[front, left]", "scale.source:=rig")),
    "independent": Case("rig", ("cameras:=[front, left]", "window.mode:=independent")),
    "prior": Case("there-and-back", PRIOR),
    "prior-refined": Case("there-and-back", (*PRIOR, "pose_prior.output:=refined")),
    "prior-scale": Case(
        "there-and-back", (*PRIOR, "scale.source:=odometry", "pose_prior.output:=refined")
    ),
    "prior-metric": Case("there-and-back", (*PRIOR, "scale.source:=odometry")),
    "fixed": Case("lost", ("scale.source:=fixed", "scale.factor:=2.5")),
    "resumed": Case("other-way", (), ("--resume", "{refined}")),
    "resumed-metric": Case("other-way", (), ("--resume", "{prior-scale}")),
    "resumed-prior": Case(
        "other-way", (*PRIOR, "scale.source:=odometry"), ("--resume", "{prior-scale}")
    ),
    "localized": Case("other-way", ("mode:=localization",), ("--resume", "{refined}")),
    "merged": Case("", (), ("{refined}", "{other-way}")),
    "red-kitchen": Case("redkitchen_24"),
    "red-kitchen-200": Case("redkitchen_200", (), ("--every", "2")),
    "kitti": Case("kitti_mono_51"),
    "dashcam": Case("dashcam_100", (), ("--every", "2")),
}


def record(folder: Path, only: Sequence[str], recordings: Path | None) -> None:
    """Runs all cases, or those of ``only``, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, case in CASES.items():
            if only and name not in only:
                continue
            source = _input(case, Path(place), recordings)
            if source is None and case.bag:
                print(f"{name}: skipped, without --recordings", flush=True)
                continue
            print(f"{name}: {_run(folder, name, case, source)}", flush=True)


def _input(case: Case, place: Path, recordings: Path | None) -> Path | None:
    if case.bag not in BAGS:
        return None if recordings is None or not case.bag else recordings / case.bag
    path = place / case.bag
    if not path.exists():
        write_synthetic_bag(path, BAGS[case.bag](), tf=case.bag != "rig")  # type: ignore[arg-type]
    return path


def _run(folder: Path, name: str, case: Case, source: Path | None) -> str:
    """Runs a command; returns its last line."""
    output = folder / name
    shutil.rmtree(output, ignore_errors=True)
    others = {other: str(folder / other) for other in CASES}
    command = [sys.executable, "-m", "da3_ros", "merge" if source is None else "replay"]
    command += [argument.format(**others) for argument in case.arguments]
    command += [] if source is None else [str(source)]
    command += ["--output", str(output)]
    for parameter in (*SETTINGS, *case.parameters):
        command += ["-p", parameter]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{name}: {' '.join(command)}\n{done.stderr}")
    (output / "said.txt").write_text(done.stdout.replace(str(folder), ""))
    return done.stdout.strip().splitlines()[-1].replace(str(folder), "")


def compare(before: Path, after: Path) -> list[str]:
    """Prints the differences of all results in two folders; returns those that are too large."""
    wrong = []
    for old in sorted(p for p in before.iterdir() if p.is_dir()):
        new = after / old.name
        if not new.is_dir():
            wrong.append(f"{old.name}: missing")
            continue
        for text, fine in _differences(old, new):
            print(f"{old.name}: {text}{'' if fine else '  DIFFERS'}")
            wrong += [] if fine else [f"{old.name}: {text}"]
    return wrong


def _differences(old: Path, new: Path) -> Iterator[tuple[str, bool]]:
    """Yields what was compared, and whether it is equal enough."""
    for path in sorted(old.rglob("trajectory*.tum")):
        yield _trajectory_difference(path, new / path.relative_to(old))
    for path in sorted(old.rglob("*.ply")):
        yield _cloud_difference(path, new / path.relative_to(old))
    report, again = old / "report.json", new / "report.json"
    if report.exists():
        a, b = (json.loads(p.read_text()) for p in (report, again))
        counted = [k for k in _counts(a) if _counts(a).get(k) != _counts(b).get(k)]
        yield f"counts {', '.join(counted) or 'equal'}", not counted


def _counts(values: object, name: str = "") -> dict[str, object]:
    """Returns the whole numbers and texts of a report, by their path; no times, no parameters."""
    if isinstance(values, dict):
        kept = {k: v for k, v in values.items() if k not in ("parameters", "options", "input")}
        return {k: x for n, v in kept.items() for k, x in _counts(v, f"{name}/{n}").items()}
    return {name: values} if isinstance(values, int | str | list) else {}


def _trajectory_difference(old: Path, new: Path) -> tuple[str, bool]:
    if not new.exists():
        return f"{old.name} is missing", False
    a, b = (np.loadtxt(p, ndmin=2) for p in (old, new))
    if a.shape != b.shape or not np.array_equal(a[:, 0], b[:, 0]):
        return f"{old.name} has {len(b)} poses of {len(a)}", False
    length = float(np.linalg.norm(np.diff(a[:, 1:4], axis=0), axis=1).sum())
    off = float(np.abs(a[:, 1:4] - b[:, 1:4]).max(initial=0.0)) / max(length, 1e-9)
    turn = float(np.abs(a[:, 4:] - b[:, 4:]).max(initial=0.0))
    text = f"{old.name}: {off:.1e} of {length:.3g}, quaternion {turn:.1e}, {len(a)} poses"
    return text, off <= TRAJECTORY and turn <= TRAJECTORY


def _cloud_difference(old: Path, new: Path) -> tuple[str, bool]:
    if not new.exists():
        return f"{old.name} is missing", False
    a, b = (np.asarray(trimesh.load(p).vertices) for p in (old, new))
    if not len(a) or not len(b):
        return f"{old.name}: {len(a)} and {len(b)} points", len(a) == len(b)
    near, back = cKDTree(b).query(a)[0], cKDTree(a).query(b)[0]
    lost = float(np.mean(near > CLOUD_M) + np.mean(back > CLOUD_M))
    text = f"{old.name}: {len(a)} points, {100 * lost:.2g} % elsewhere"
    return text, lost <= POINTS and abs(len(b) / len(a) - 1) <= POINTS


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("folder", type=Path)
    one.add_argument("--only", nargs="+", default=(), choices=tuple(CASES), metavar="CASE")
    one.add_argument("--recordings", type=Path, help="folder of real recordings")
    two = commands.add_parser("compare")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.folder, options.only, options.recordings)
        return 0
    wrong = compare(options.before, options.after)
    print("\n".join(["", *wrong]) if wrong else "all results are equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
