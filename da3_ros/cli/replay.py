"""`da3_ros replay`: processes a recording to depth, poses, clouds and a scene."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3_ros.cli.arguments import (
    EXIT_CODES,
    FAILED,
    INCOMPLETE,
    add_parameters,
    load_config,
    parameter_help,
)
from da3_ros.parameter_schema import ConfigError

if TYPE_CHECKING:
    from da3_ros.replay.results import ReplayOptions

LAST = Path()  # --resume without a folder


def add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="process a recording without a player: every frame, repeatably",
        description="Process a recording: depth, poses, clouds and one scene. "
        "Drops no frame; two runs write the same bytes on a CPU.",
        epilog=f"{parameter_help()}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument(
        "input", type=Path,
        help="ROS 2 bag folder, .mcap, .db3, video file, folder of images, or of a data set: TUM "
        "RGB-D, EuRoC, KITTI, 7-Scenes, ScanNet, COLMAP",
    )  # fmt: skip
    replay.add_argument("--output", type=Path, required=True, help="folder for the results")
    add_parameters(replay)
    add_selection(replay)
    replay.add_argument(
        "--resume", nargs="?", type=Path, const=LAST, metavar="DIR",
        help="without DIR: go on where the interrupted replay in the output folder was; with DIR: "
        "begin in a saved scene, or in that of an earlier replay's output folder",
    )  # fmt: skip
    replay.set_defaults(run=_run_replay)


def add_selection(command: argparse.ArgumentParser) -> None:
    """Add the options that say what of a recording is processed, and how."""
    command.add_argument(
        "--camera", action="append", default=[], metavar="TOPIC",
        help="image topic, or camera of a data set, if the recording has several; with parameter "
        "`cameras`: NAME:=TOPIC for each camera whose topic is not below /NAME",
    )  # fmt: skip
    command.add_argument(
        "--odometry", help="topic of the robot's own poses, if the recording has several"
    )
    command.add_argument("--imu", metavar="TOPIC", help="topic of the IMU, if there are several")
    command.add_argument(
        "--slam-path", metavar="TOPIC",
        help="topic of another SLAM's path (pose_prior.corrections: path), if there are several",
    )  # fmt: skip
    command.add_argument(
        "--global-pose", metavar="TOPIC",
        help="topic of global poses of the robot, by tags, GNSS or docks, which hold the map",
    )  # fmt: skip
    command.add_argument("--start", type=float, help="skip this many seconds at the beginning")
    command.add_argument("--end", type=float, help="stop this many seconds after the beginning")
    command.add_argument("--every", type=int, default=1, help="use every n-th frame")
    command.add_argument(
        "--rate", type=float, default=10.0, help="frames/s of images without times"
    )
    command.add_argument(
        "--plan", type=Path, metavar="FILE",
        help="use exactly the plan in an earlier replay's report.json, whatever memory is free",
    )  # fmt: skip
    command.add_argument(
        "--pictures", action="store_true", help="write a contact sheet and a picture of the cloud"
    )
    command.add_argument(
        "--no-report", action="store_true", help="write no report.html, which takes about a second"
    )
    command.add_argument(
        "--video", action="store_true",
        help="write video.mp4: each frame with depth, confidence and the map so far from above",
    )  # fmt: skip


def _run_replay(options: argparse.Namespace) -> int:
    from da3_ros.replay.results import ReplayError
    from da3_ros.replay.run import replay

    config = load_config(options.config, options.param)
    wanted = dataclasses.replace(
        replay_options(options, options.input),
        resume=None if options.resume is LAST else options.resume,
        go_on=options.resume is LAST,
    )
    try:
        summary = replay(wanted, config)
    except ReplayError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(summary.text())
    return INCOMPLETE if summary.damage else 0


def replay_options(options: argparse.Namespace, recording: Path) -> ReplayOptions:
    """Returns the options of ``add_selection`` for a recording. Raises ConfigError."""
    from da3_ros.replay.results import ReplayOptions

    camera, topics = _camera_topics(options.camera)
    return ReplayOptions(
        input=recording,
        output=options.output,
        camera=camera,
        topics=topics,
        start_s=options.start,
        end_s=options.end,
        every=options.every,
        rate_hz=options.rate,
        pictures=options.pictures,
        report=not options.no_report,
        video=options.video,
        odometry=options.odometry,
        imu=options.imu,
        slam_path=options.slam_path,
        global_pose=options.global_pose,
        plan=options.plan,
    )


def _camera_topics(given: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Returns TOPIC, or the topics by name of NAME:=TOPIC arguments. Raises ConfigError."""
    pairs = [text.partition(":=") for text in given]
    plain = [topic for topic, separator, _ in pairs if not separator]
    if len(plain) > 1 or (plain and len(pairs) > 1):
        raise ConfigError(
            f"--camera {plain[-1]}: for several cameras set -p cameras:=[NAME,...] and give each "
            "topic with --camera NAME:=TOPIC"
        )
    return (plain[0] if plain else None), {name: topic for name, sep, topic in pairs if sep}
