"""`da3_ros synth-bag`: writes a recording of a synthetic room."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED
from da3_ros.parameter_schema import ConfigError

RANGE_HZ, MOST_LIDAR_HZ = 20.0, 100


def add_synth_bag(commands: Any) -> None:
    synth = commands.add_parser(
        "synth-bag",
        help="write a rendered room as a bag, with its exact depth and poses",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    synth.add_argument("output", type=Path, help="bag folder to write; must not exist")
    synth.add_argument("--frames", type=int, default=60)
    synth.add_argument("--seed", type=int, default=0, help="seed of room, walk and noise")
    synth.add_argument("--width", type=int, default=640)
    synth.add_argument("--height", type=int, default=480)
    synth.add_argument("--rate", type=float, default=10.0, help="frames per second")
    synth.add_argument("--fov", type=float, default=65.0, help="horizontal field of view, degrees")
    synth.add_argument("--walk", default="loop", choices=_walks())
    synth.add_argument(
        "--cameras", nargs="+", default=[], metavar="NAME",
        help="names of several cameras on a rig, which prefix their topics",
    )  # fmt: skip
    synth.add_argument(
        "--baseline", type=float, default=0.2, help="distance of neighbouring cameras, metres"
    )
    synth.add_argument(
        "--yaw",
        type=float,
        default=0.0,
        help="rotation between neighbouring cameras, degrees to the right",
    )
    synth.add_argument("--storage", default="mcap", choices=("mcap", "sqlite3"))
    synth.add_argument(
        "--tf", action="store_true",
        help="write the true poses to /tf too, like a robot with its own localization; then da3 "
        "adds no transform to the robot's tree",
    )  # fmt: skip
    synth.add_argument(
        "--imu", action="store_true",
        help="write what an IMU on the first camera measures (/imu, 200 Hz), with the noise and "
        "the biases of a consumer chip, and its mount",
    )  # fmt: skip
    synth.add_argument(
        "--lidar", action="store_true",
        help="write sweeps of a LiDAR on the first camera to /lidar/points, each return at its "
        "own time",
    )  # fmt: skip
    synth.add_argument("--lidar-rate", type=float, default=10.0, help="sweeps per second")
    synth.add_argument(
        "--range", action="store_true",
        help="write the distances of a range finder on the first camera to /range, 20 per second",
    )  # fmt: skip
    synth.add_argument(
        "--global-pose", action="store_true",
        help="write where the first camera is in the map to /global_pose once a second, as a tag "
        "says it, to 2 cm and half a degree",
    )  # fmt: skip
    synth.add_argument("--force", action="store_true", help="replace an existing bag")
    synth.set_defaults(run=_run_synth_bag)


def _run_synth_bag(options: argparse.Namespace) -> int:
    from da3_ros.recordings import RecordingError
    from da3_ros.recordings.synthetic_bag import write_synthetic_bag
    from da3_ros.synthetic import SyntheticCamera
    from da3_ros.synthetic.rig import rig_mount

    if not 0 < options.lidar_rate <= MOST_LIDAR_HZ:
        raise ConfigError(
            f"--lidar-rate is {options.lidar_rate:g}: must be above 0 and at most {MOST_LIDAR_HZ}"
        )
    names = options.cameras or [""]
    rig = {
        name: SyntheticCamera(
            seed=options.seed,
            size=(options.width, options.height),
            fov_deg=options.fov,
            walk=options.walk,
            frames=options.frames,
            rate_hz=options.rate,
            mount=rig_mount(i, options.baseline, options.yaw),
        )
        for i, name in enumerate(names)
    }
    try:
        text = write_synthetic_bag(
            options.output, rig if options.cameras else rig[""], storage=options.storage,
            replace=options.force, tf=options.tf, imu=options.imu,
            lidar_hz=options.lidar_rate if options.lidar else 0.0,
            range_hz=RANGE_HZ if options.range else 0.0, global_pose=options.global_pose,
        )  # fmt: skip
    except RecordingError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _walks() -> tuple[str, ...]:
    return ("loop", "straight", "spot", "handheld", "still", "strafe", "carried", "drone")
