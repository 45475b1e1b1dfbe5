"""The command line: `da3_ros replay | export | plan ...` (also `python -m da3_ros`)."""

from __future__ import annotations

import argparse
import contextlib
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
        _check_paths(options)
        return int(options.run(options))
    except ConfigError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return USAGE
    except Interrupted:
        sys.stderr.write("da3_ros: interrupted, nothing was written\n")
        return INTERRUPTED


def _check_paths(options: argparse.Namespace) -> None:
    """Expand ~ in all paths that are given. Raises ConfigError for what no file can be called."""
    for name, path in vars(options).items():
        if isinstance(path, Path):
            try:
                expanded = path.expanduser()
                with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    expanded.lstat()
            except (OSError, RuntimeError, ValueError) as error:
                short = f"{str(path)[:60]!a}{'...' * (len(str(path)) > 60)}"
                raise ConfigError(f"{name} {short}: {_cause(error)}") from error
            setattr(options, name, expanded)


def _cause(error: Exception) -> str:
    """Without the path, which may be very long."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


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
    _add_bench(commands)
    _add_export(commands)
    _add_view(commands)
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
    _add_parameters(replay)
    replay.add_argument(
        "--camera", action="append", default=[], metavar="TOPIC",
        help="image topic, where the recording has several; with parameter `cameras` NAME:=TOPIC "
        "for each whose topic is not below /NAME",
    )  # fmt: skip
    replay.add_argument("--odometry", help="topic of the robot's own poses, if there are several")
    replay.add_argument("--start", type=float, help="skip this many seconds at the beginning")
    replay.add_argument("--end", type=float, help="stop this many seconds after the beginning")
    replay.add_argument("--every", type=int, default=1, help="use every n-th frame")
    replay.add_argument("--rate", type=float, default=10.0, help="frames/s of an image folder")
    replay.add_argument(
        "--plan", type=Path, metavar="FILE",
        help="run exactly as an earlier replay's report.json says, whatever memory is free",
    )  # fmt: skip
    replay.add_argument(
        "--resume", type=Path, metavar="DIR",
        help="go on in a saved scene, or in that of an earlier replay's output folder",
    )  # fmt: skip
    replay.add_argument("--pictures", action="store_true", help="contact sheet and cloud picture")
    replay.set_defaults(run=_run_replay)


def _add_parameters(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", type=Path, help="YAML file with parameters (as for ROS nodes)"
    )
    command.add_argument(
        "-p", "--param", action="append", default=[], metavar="NAME:=VALUE",
        help="one parameter; wins over --config",
    )  # fmt: skip


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
    synth.add_argument(
        "--cameras", nargs="+", default=[], metavar="NAME",
        help="several cameras on a rig, below topics of their names",
    )  # fmt: skip
    synth.add_argument("--baseline", type=float, default=0.2, help="between them, metres")
    synth.add_argument("--yaw", type=float, default=0.0, help="between them, degrees to the right")
    synth.add_argument("--storage", default="mcap", choices=("mcap", "sqlite3"))
    synth.add_argument(
        "--tf", action="store_true",
        help="the true poses in /tf too, as of a robot that knows where it is: then its tree is "
        "the robot's, and da3 adds nothing to it",
    )  # fmt: skip
    synth.add_argument("--force", action="store_true", help="replace an existing bag")
    synth.set_defaults(run=_run_synth_bag)


def _add_models(commands: Any) -> None:
    models = commands.add_parser(
        "models", help="the models, their licences, and which are on this machine"
    )
    models.add_argument(
        "--get", metavar="NAME", help="fetch a model's weights, or check those here"
    )
    models.add_argument(
        "--to", type=Path, metavar="FOLDER",
        help="with --get: put the files there, for another machine (not into the hub cache)",
    )  # fmt: skip
    models.set_defaults(run=_run_models)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what fits into a memory budget: models, window, image size, precision",
        description="Predicts what runs in each memory budget; --measure also runs it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    config = InferenceConfig()
    plan.add_argument("--device", default=config.device, help="auto, cuda, cuda:1, mps or cpu")
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


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="how fast the network runs here as configured, and what memory it takes",
        description="Runs the network of the parameters in a sliding window of random pictures, "
        "as the node would: times of a window and of a new frame, cold start, memory against plan "
        "and budget. Times hold upload, network and download, not messages. Where weights are "
        "missing -p checkpoint:=random measures the same: speed does not depend on them.",
        epilog="parameters: as in `da3_ros replay --help`, e.g. -p model:=da3-base "
        "-p device:=cpu -p window.new:=2 -p mixed_precision:=off",
    )
    _add_parameters(bench)
    bench.add_argument(
        "--frames", type=int, default=50, metavar="N", help="new frames to time (default: 50)"
    )
    bench.add_argument(
        "--size",
        default="640x480",
        metavar="WxH",
        help="of the camera's images (default: 640x480)",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    bench.set_defaults(run=_run_bench)


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        help="write a saved scene as GLB, PLY, COLMAP model or TUM trajectory",
        description="Convert a scene that a replay or the service save_scene has saved. "
        "Points pass in chunks, so that memory holds little more than the scene itself.",
    )
    export.add_argument("scene", type=Path, help="scene folder, or a replay's output folder")
    export.add_argument(
        "output", type=Path, help="NAME.glb, .ply, .tum, or a folder NAME.colmap; replaced"
    )
    export.add_argument(
        "--format", default="", choices=("glb", "ply", "colmap", "tum"),
        help="where the output's suffix does not say it",
    )  # fmt: skip
    export.add_argument(
        "--voxel", type=float, default=0.0, metavar="M",
        help="average points in voxels of this edge; also merges where submaps overlap",
    )  # fmt: skip
    export.add_argument("--min-confidence", type=float, default=0.0, metavar="C")
    export.add_argument(
        "--min-observations", type=int, default=1, metavar="N",
        help="leave out points seen less often (after averaging)",
    )  # fmt: skip
    export.add_argument("--max-points", type=int, default=0, metavar="N", help="thin evenly")
    export.add_argument(
        "--crop", type=float, nargs=6, default=[0.0] * 6,
        metavar=("X0", "Y0", "Z0", "X1", "Y1", "Z1"), help="box in the map frame",
    )  # fmt: skip
    export.add_argument(
        "--no-cameras", action="store_true", help="a GLB without camera frusta and path"
    )
    export.add_argument(
        "--known-only", action="store_true",
        help="leave out parts of the scene whose place is guessed (after a time jump or where "
        "windows could not be joined)",
    )  # fmt: skip
    export.set_defaults(run=_run_export)


def _add_view(commands: Any) -> None:
    view = commands.add_parser(
        "view",
        help="a picture of a scene: points, cameras and path, without a display",
        description="Draws a scene off-screen: a saved scene, a replay's output folder, a GLB or "
        "a PLY. Ceilings and walls that stand between the eye and the room are left out.",
    )
    view.add_argument("scene", type=Path, help="scene folder, replay's output folder, .glb, .ply")
    view.add_argument("--output", type=Path, required=True, help="PNG to write; replaced")
    view.add_argument(
        "--from", dest="sides", nargs="+", default=["behind"], choices=_sides(),
        help="where from, seen from the first camera (default: behind); several stand beside "
        "each other",
    )  # fmt: skip
    view.add_argument(
        "--size", default="960x720", metavar="WxH", help="of each view (default: 960x720)"
    )
    view.add_argument(
        "--below", type=float, default=float("inf"), metavar="Z",
        help="show points below this height of the map only: a PLY has no cameras that tell where "
        "the ceiling is",
    )  # fmt: skip
    view.set_defaults(run=_run_view)


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
    camera, topics = _camera_topics(options.camera)
    wanted = ReplayOptions(
        input=options.input,
        output=options.output,
        camera=camera,
        topics=topics,
        start_s=options.start,
        end_s=options.end,
        every=options.every,
        rate_hz=options.rate,
        pictures=options.pictures,
        odometry=options.odometry,
        plan=options.plan,
        resume=options.resume,
    )
    try:
        summary = replay(wanted, config)
    except ReplayError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(summary.text())
    return INCOMPLETE if summary.stopped_at else 0


def _camera_topics(given: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """TOPIC, or NAME:=TOPIC of each of several cameras."""
    pairs = [text.partition(":=") for text in given]
    plain = [topic for topic, separator, _ in pairs if not separator]
    if len(plain) > 1 or (plain and len(pairs) > 1):
        raise ConfigError(
            f"--camera {plain[-1]}: for several cameras set -p cameras:=[NAME,...] and give each "
            "topic with --camera NAME:=TOPIC"
        )
    return (plain[0] if plain else None), {name: topic for name, sep, topic in pairs if sep}


def _run_synth_bag(options: argparse.Namespace) -> int:
    from da3_ros.recordings import RecordingError
    from da3_ros.recordings.synthetic_bag import write_synthetic_bag
    from da3_ros.rig_geometry import rig_mount
    from da3_ros.synthetic import SyntheticCamera

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
            replace=options.force, tf=options.tf,
        )  # fmt: skip
    except RecordingError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _run_models(options: argparse.Namespace) -> int:
    if options.get is not None:
        return _get_model(options.get, options.to)
    from da3_ros.model_table import model_table

    sys.stdout.write(model_table())
    return 0


def _get_model(name: str, folder: Path | None) -> int:
    """Fetch one model's weights, or look whether what is here is whole."""
    from da3_ros.network import MODELS
    from da3_ros.network.checkpoint import remedies, shipped_folder
    from da3_ros.network.hub import PINS, HubError, fetch

    if name not in MODELS:
        raise ConfigError(f"--get {name!r}: one of {', '.join(MODELS)}")
    spec = MODELS[name]
    if not spec.repo:
        sys.stdout.write(f"{name} comes with this package: {shipped_folder(name) or 'not here'}\n")
        return 0
    pin = PINS[spec.repo]
    sys.stdout.write(
        f"{name}: {pin.weights_bytes / 1e6:.0f} MB of {spec.repo} on the Hugging Face hub "
        f"({pin.revision[:12]}), weights under {spec.license}"
        + ("" if spec.commercial else ": no commercial use")
        + "\n"
    )
    sys.stdout.flush()
    try:
        where = fetch(spec.repo, folder)
    except HubError as error:
        sys.stderr.write(f"da3_ros: {spec.repo}: {error}: {remedies(spec)}\n")
        return FAILED
    use = f"`checkpoint: {where}`" if folder else f"`model: {name}` finds it"
    sys.stdout.write(f"{where}: size and SHA-256 are right; {use}\n")
    return 0


def _run_plan(options: argparse.Namespace) -> int:
    from da3_ros.inference.devices import DeviceError
    from da3_ros.inference.plan_table import Question, as_text, table
    from da3_ros.network import MODELS

    unknown = [name for name in options.model if name not in MODELS]
    if unknown:
        raise ConfigError(f"--model {unknown[0]!r}: one of {', '.join(MODELS)}")
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
        image=_size(options.size),
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


def _size(text: str) -> tuple[int, int]:
    """Width and height of WIDTHxHEIGHT. Raises ConfigError."""
    width, _, height = text.partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ConfigError(f"--size {text!r}: write WIDTHxHEIGHT")
    return int(width), int(height)


def _run_bench(options: argparse.Namespace) -> int:
    from da3_ros.bench_command import BenchError, BenchOptions, bench

    if options.frames < 1:
        raise ConfigError(f"--frames is {options.frames}: at least 1")
    config = load_config(options.config, options.param)
    wanted = BenchOptions(_size(options.size), options.frames, options.json)
    try:
        sys.stdout.write(bench(wanted, config))
    except BenchError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    return 0


def _run_export(options: argparse.Namespace) -> int:
    from da3_ros.convert import convert
    from da3_ros.mapping.export import ExportError, Selection
    from da3_ros.mapping.scene_file import SceneFileError

    selection = Selection(
        voxel=options.voxel,
        min_confidence=options.min_confidence,
        min_observations=options.min_observations,
        max_points=options.max_points,
        crop=tuple(options.crop),
        cameras=not options.no_cameras,
        guessed=not options.known_only,
    )
    try:
        text = convert(options.scene, options.output, selection, options.format)
    except (ExportError, SceneFileError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _run_view(options: argparse.Namespace) -> int:
    from da3_ros.mapping.export import ExportError
    from da3_ros.mapping.scene_file import SceneFileError
    from da3_ros.view_command import view

    try:
        text = view(
            options.scene, options.output, options.sides, _size(options.size), options.below
        )
    except (ExportError, SceneFileError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(text)
    return 0


def _sides() -> tuple[str, ...]:
    return ("behind", "corner", "side", "top")


def _walks() -> tuple[str, ...]:
    return ("loop", "straight", "spot", "handheld", "still", "strafe")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted
