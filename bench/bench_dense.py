#!/usr/bin/env python3
"""Depth as the network says it (off) and as the images of neighbours measure it (on), in one run.

Usage: bench_dense.py TABLE [--folder DIR] [--quick] [--out FILE] [...]

``rooms``: da3-tiny with refinement in rendered rooms: depth, cloud and mesh against the truth.
``faults``: the same depth with a hand over the lens, half of the image moving, exposure jumps and
wrong matches. ``kitchen``: a real recording against its depth camera. ``kitti``: the left images
of a car beside semi-global matching (SGBM) of the pair; the right images are not given to ours.
``rectified``: a rendered pair, SGBM beside the plane sweep. The scale is that of the camera's way,
since the unit of depth is not what is measured here. ``seconds`` are those of one keyframe, on one
thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arguments
import dense_kitchen
import dense_rooms
import dense_stereo
import results_file
import torch
from refinement_runs import one_thread, room_seeds

from da3_ros.synthetic import WALKS

DATA = Path(__file__).parents[2] / "shared" / "data"


TABLES = {
    "rooms": (dense_rooms.rows, dense_rooms.by_walk),
    "faults": (dense_rooms.fault_rows, dense_rooms.by_fault),
    "kitchen": (dense_kitchen.rows, dense_kitchen.summary),
    "kitti": (dense_stereo.kitti, dense_stereo.by_unit),
    "rectified": (dense_stereo.rectified, dense_stereo.by_method),
}
USUAL: dict[str, dict[str, Any]] = {
    "rooms": {"seeds": room_seeds(13), "size": (504, 378), "frames": 60, "process_res": 252},
    "faults": {"seeds": room_seeds(2), "size": (336, 252), "frames": 30, "process_res": 168},
    "kitchen": {"folder": DATA / "redkitchen_24", "process_res": 224},
    "kitti": {"folder": DATA / "kitti_stereo_10", "process_res": 504},
    "rectified": {"seeds": room_seeds(4), "size": (252, 189), "frames": 40},
}
QUICK: dict[str, dict[str, Any]] = {
    "rooms": {"seeds": room_seeds(1), "walks": ["strafe"], "size": (112, 84), "frames": 10,
              "process_res": 112, "voxel": 0.2, "backend": "torch"},
    "faults": {"seeds": room_seeds(1), "walks": ["strafe"], "size": (112, 84), "frames": 8,
               "process_res": 112, "backend": "torch"},
    "kitchen": {"frames": 8, "process_res": 112, "offsets": [0.0], "backend": "torch"},
    "kitti": {"frames": 3, "process_res": 224, "backend": "torch"},
    "rectified": {"seeds": room_seeds(1), "size": (84, 63), "frames": 1, "neighbours": [1, 2]},
}  # fmt: skip


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options; each table has its own defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=tuple(TABLES))
    parser.add_argument("--folder", type=Path, help="a recording (kitchen, kitti)")
    parser.add_argument("--seeds", nargs="+", type=int, help="rooms; default: held-out ones")
    parser.add_argument(
        "--walks", nargs="+", choices=WALKS, default=["handheld", "loop", "strafe"]
    )
    parser.add_argument("--frames", type=int, help="at most, of a walk or recording")
    parser.add_argument("--size", type=arguments.size, metavar="WxH", help="of rendered images")
    parser.add_argument("--process-res", type=int, help="size of the network's images")
    parser.add_argument("--voxel", type=float, default=0.03, help="edge of the mesh's voxels, m")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="cpu", help="that searches (rectified)")
    parser.add_argument("--threads", type=int, default=1, help="that search (rectified)")
    parser.add_argument(
        "--offset",
        type=float,
        default=0.025,
        help="x of the colour camera in the depth camera's axes, m (kitchen)",
    )
    parser.add_argument(
        "--offsets", nargs="*", type=float, default=[], help="others to compare, m (kitchen)"
    )
    parser.add_argument(
        "--focals",
        nargs="*",
        type=float,
        default=[],
        help="others of the colour images to compare, pixels (kitchen)",
    )
    parser.add_argument(
        "--neighbours",
        nargs="+",
        type=int,
        default=[1, 2, 4, 6],
        help="of the plane sweep, at most 6 (rectified)",
    )
    parser.add_argument(
        "--baseline", type=float, default=0.06, help="of a pair, over the median depth (rectified)"
    )
    parser.add_argument("--every", type=int, default=10, help="views taken of a walk (rectified)")
    parser.add_argument("--pictures", type=Path, help="folder for PNGs of each keyframe")
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the scenes; one that is there is not recorded again",
    )
    parser.add_argument("--quick", action="store_true", help="tiny: whether it runs at all")
    parser.add_argument("--out", type=Path)  # fmt: skip
    options = parser.parse_args(words)
    for name, value in USUAL[options.table].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name, value in QUICK[options.table].items() if options.quick else ():
        setattr(options, name, value)
    return options


def main() -> int:
    """Prints a row for each run and their means, and writes JSON."""
    options = parsed()
    one_thread()
    torch.set_num_threads(options.threads)
    make, summary = TABLES[options.table]
    rows: list[dict[str, Any]] = []
    for row in make(options):
        rows.append(row)
        results_file.show(row)
        results_file.write(options.out, {"rows": rows}, "cpu")  # a long run may be ended
    table = summary(rows)
    print()
    for row in table if isinstance(table, list) else [table]:
        results_file.show(row)
    results_file.write(options.out, {"rows": rows, "table": table}, options.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
