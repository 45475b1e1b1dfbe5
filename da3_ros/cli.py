"""The command line: `da3_ros replay | synth-bag | models | plan` (also `python -m da3_ros`)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from da3_ros import __version__
from da3_ros.config import (
    ConfigError,
    InferenceConfig,
    InputConfig,
    NodeConfig,
    PipelineConfig,
    WindowConfig,
    config_from_parameters,
    flatten,
    parameters,
)

# What replay takes of the parameters that say how images reach the live node.
REPLAY_INPUT = ("input_rectified", "camera_info_timeout_s")
FAILED, USAGE, INCOMPLETE, INTERRUPTED = 1, 2, 3, 130
EXIT_CODES = (
    "exit codes: 0 done; 1 failed, nothing written; 2 wrong usage; "
    "3 the recording is damaged, its readable part was processed; 130 interrupted, nothing written"
)


class Interrupted(BaseException):
    """Ctrl-C or a kill. Not KeyboardInterrupt: if that passes through an inner ``exec`` (imports,
    dataclasses), CPython ends the process by SIGINT whatever we return."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = build_parser().parse_args(arguments)
    logging.basicConfig(
        format="%(levelname)s %(name)s: %(message)s", level=options.log_level.upper()
    )
    # A kill from a launch system must clean up just as Ctrl-C does, and Ctrl-C must work where a
    # parent shell has set it to be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return int(options.run(options))
    except ConfigError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return USAGE
    except Interrupted:
        sys.stderr.write("da3_ros: interrupted, nothing was written\n")
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, with its help."""
    parser = argparse.ArgumentParser(
        prog="da3_ros", description="Cameras to metric-aware 3D with Depth Anything 3."
    )
    parser.add_argument("--version", action="version", version=f"da3_ros {__version__}")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_replay(commands)
    _add_synth_bag(commands)
    _add_models(commands)
    _add_plan(commands)
    return parser


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="process a recording without a player: every frame, repeatably",
        description="Process a recording: depth, poses, clouds and one scene. "
        "Drops nothing; two runs give the same bytes on a CPU.",
        epilog=f"{_parameter_help()}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument(
        "input", type=Path, help="ROS 2 bag folder, .mcap, .db3, video file or folder of images"
    )
    replay.add_argument("--output", type=Path, required=True, help="folder for the results")
    replay.add_argument("--config", type=Path, help="YAML file with parameters (as for ROS nodes)")
    replay.add_argument(
        "-p", "--param", action="append", default=[], metavar="NAME:=VALUE",
        help="one parameter; wins over --config",
    )  # fmt: skip
    replay.add_argument("--camera", help="image topic, where the recording has several")
    replay.add_argument("--odometry", help="topic of the robot's own poses, if there are several")
    replay.add_argument("--start", type=float, help="skip this many seconds at the beginning")
    replay.add_argument("--end", type=float, help="stop this many seconds after the beginning")
    replay.add_argument("--every", type=int, default=1, help="use every n-th frame")
    replay.add_argument("--rate", type=float, default=10.0, help="frames/s of an image folder")
    replay.add_argument(
        "--plan", type=Path, metavar="FILE",
        help="run exactly as an earlier replay's report.json says, whatever memory is free",
    )  # fmt: skip
    replay.add_argument("--pictures", action="store_true", help="contact sheet and cloud picture")
    replay.set_defaults(run=_run_replay)


def _add_synth_bag(commands: Any) -> None:
    synth = commands.add_parser(
        "synth-bag",
        help="write a rendered room as a bag, with its exact depth and poses",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    synth.add_argument("output", type=Path, help="bag folder to write; must not exist")
    synth.add_argument("--frames", type=int, default=60)
    synth.add_argument("--seed", type=int, default=0, help="room, walk and noise")
    synth.add_argument("--width", type=int, default=640)
    synth.add_argument("--height", type=int, default=480)
    synth.add_argument("--rate", type=float, default=10.0, help="frames per second")
    synth.add_argument("--fov", type=float, default=65.0, help="horizontal, degrees")
    synth.add_argument("--walk", default="loop", choices=_walks())
    synth.add_argument("--storage", default="mcap", choices=("mcap", "sqlite3"))
    synth.add_argument("--force", action="store_true", help="replace an existing bag")
    synth.set_defaults(run=_run_synth_bag)


def _add_models(commands: Any) -> None:
    models = commands.add_parser(
        "models", help="the models, their licences, and which are on this machine"
    )
    models.add_argument("--get", metavar="NAME", help="fetch a model's weights from the hub")
    models.set_defaults(run=_run_models)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what fits into a memory budget: models, window, image size, precision",
        description="Predicts what runs in each memory budget; --measure also runs it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    config = InferenceConfig()
    plan.add_argument("--device", default=config.device, choices=("auto", "cuda", "mps", "cpu"))
    plan.add_argument("--model", nargs="+", default=["da3-small", "da3-base", "da3-large"])
    plan.add_argument(
        "--budget", nargs="+", type=float, default=[0.0], metavar="GIB",
        help="0: 90 %% of what is free",
    )  # fmt: skip
    plan.add_argument("--size", default="640x480", metavar="WxH", help="of the camera's images")
    plan.add_argument("--process-res", type=int, default=config.process_res)
    plan.add_argument("--window", type=int, default=WindowConfig().size)
    plan.add_argument("--new", type=int, default=WindowConfig().new)
    plan.add_argument("--mixed-precision", default=config.mixed_precision)
    plan.add_argument("--performance-mode", default=config.performance_mode)
    plan.add_argument("--measure", action="store_true", help="run each with random weights")
    plan.set_defaults(run=_run_plan)


def load_config(file: Path | None, assignments: Sequence[str]) -> NodeConfig:
    """Parameters of a YAML file, then ``NAME:=VALUE`` assignments, over the defaults.

    The file is a plain mapping (nested or dotted names) or a ROS parameter file for any node name.
    Raises ConfigError.
    """
    values = _read_yaml(file) if file else {}
    for assignment in assignments:
        name, separator, text = assignment.partition(":=")
        if not separator:
            raise ConfigError(f"-p {assignment!r}: write NAME:=VALUE")
        values[name.strip()] = _parse_value(text)
    return config_from_parameters(values, NodeConfig)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path}: a mapping of parameters is wanted")
    values: dict[str, Any] = {}
    for key, value in data.items():
        inner = value.get("ros__parameters") if isinstance(value, dict) else None
        values.update(flatten({key: value}) if inner is None else flatten(inner))
    return values


def _parse_value(text: str) -> Any:
    try:
        return yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError:
        return text


def _parameter_help() -> str:
    lines = ["parameters (-p NAME:=VALUE or --config), with their defaults:"]
    used = [*parameters(PipelineConfig())]
    used += [p for p in parameters(InputConfig()) if p.name in REPLAY_INPUT]
    for p in used:
        value = list(p.value) if isinstance(p.value, tuple) else p.value
        lines.append(f"  {p.name:<28} {value!s:<14} {p.text}")
    return "\n".join(lines)


def _run_replay(options: argparse.Namespace) -> int:
    from da3_ros.replay import ReplayError, ReplayOptions, replay

    config = load_config(options.config, options.param)
    wanted = ReplayOptions(
        input=options.input,
        output=options.output,
        camera=options.camera,
        start_s=options.start,
        end_s=options.end,
        every=options.every,
        rate_hz=options.rate,
        pictures=options.pictures,
        odometry=options.odometry,
        plan=options.plan,
    )
    try:
        summary = replay(wanted, config)
    except ReplayError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(summary.text())
    return INCOMPLETE if summary.stopped_at else 0


def _run_synth_bag(options: argparse.Namespace) -> int:
    from da3_ros.recordings import RecordingError
    from da3_ros.recordings.synthetic_bag import write_synthetic_bag
    from da3_ros.synthetic import SyntheticCamera

    camera = SyntheticCamera(
        seed=options.seed,
        size=(options.width, options.height),
        fov_deg=options.fov,
        walk=options.walk,
        frames=options.frames,
        rate_hz=options.rate,
    )
    try:
        text = write_synthetic_bag(
            options.output, camera, storage=options.storage, replace=options.force
        )
    except RecordingError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _run_models(options: argparse.Namespace) -> int:
    from da3_ros.network import MODELS, CheckpointError
    from da3_ros.network.checkpoint import find_checkpoint

    if options.get is None:
        from da3_ros.model_table import model_table

        sys.stdout.write(model_table())
        return 0
    if options.get not in MODELS:
        raise ConfigError(f"--get {options.get!r}: one of {', '.join(MODELS)}")
    spec = MODELS[options.get]
    try:
        folder = find_checkpoint(spec, spec.repo)
    except CheckpointError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(f"{spec.name} is in {folder}; its weights are under {spec.license}\n")
    return 0


def _run_plan(options: argparse.Namespace) -> int:
    from da3_ros.inference.devices import DeviceError
    from da3_ros.inference.plan_table import Question, as_text, table
    from da3_ros.network import MODELS

    unknown = [name for name in options.model if name not in MODELS]
    width, _, height = options.size.partition("x")
    if unknown or not (width.isdigit() and height.isdigit()):
        raise ConfigError(
            f"--model {unknown[0]!r}: one of {', '.join(MODELS)}"
            if unknown
            else f"--size {options.size!r}: write WIDTHxHEIGHT"
        )
    config: PipelineConfig = config_from_parameters(
        {
            "device": options.device,
            "process_res": options.process_res,
            "mixed_precision": options.mixed_precision,
            "performance_mode": options.performance_mode,
            "window.size": options.window,
            "window.new": options.new,
        }
    )
    question = Question(
        models=options.model,
        budgets_gb=options.budget,
        config=config.inference,
        image=(int(width), int(height)),
        window=options.window,
        new=options.new,
        measure=options.measure,
    )
    try:
        sys.stdout.write(as_text(table(question)))
    except DeviceError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    return 0


def _walks() -> tuple[str, ...]:
    return ("loop", "straight", "spot", "handheld", "still", "strafe")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted
