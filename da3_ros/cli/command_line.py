"""The command line: `da3_ros replay | export | plan ...` (also `python -m da3_ros`)."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from types import FrameType

from da3_ros import __version__
from da3_ros.cli.arguments import INTERRUPTED, USAGE
from da3_ros.cli.bench import add_bench
from da3_ros.cli.export import add_export
from da3_ros.cli.export_network import add_export_network
from da3_ros.cli.fleet import add_fleet
from da3_ros.cli.lasting_output import lasting_output
from da3_ros.cli.merge import add_merge
from da3_ros.cli.models import add_models
from da3_ros.cli.nav2_config import add_nav2_config
from da3_ros.cli.plan import add_plan
from da3_ros.cli.replay import add_replay
from da3_ros.cli.report import add_report
from da3_ros.cli.synth_bag import add_synth_bag
from da3_ros.cli.view import add_view
from da3_ros.parameter_schema import ConfigError

REPEAT_S = 0.02  # until an interruption that was ignored is repeated


class Interrupted(BaseException):
    """Raised by SIGINT, SIGTERM and SIGHUP; the text is what was written all the same.

    Not KeyboardInterrupt: if that passes through an inner ``exec`` (imports, dataclasses), CPython
    ends the process by SIGINT, whatever exit code we return.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    with lasting_output():
        return _main(arguments)


def main_process(arguments: Sequence[str] | None = None) -> int:
    """Run one command as the main function of a process; returns the exit code.

    An interruption can leave threads in native code, which abort in a regular shutdown of Python:
    only the functions that were registered for the exit run then.
    """
    status = main(arguments)
    if status == INTERRUPTED:
        with contextlib.suppress(Interrupted):
            atexit._run_exitfuncs()
        os._exit(status)
    return status


def _main(arguments: Sequence[str] | None) -> int:
    options = build_parser().parse_args(arguments)
    logging.basicConfig(
        format="%(levelname)s %(name)s: %(message)s", level=options.log_level.upper()
    )
    # SIGTERM of a launch system must clean up like Ctrl-C, and Ctrl-C must work even if the parent
    # shell ignores it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _interrupt)
    sys.unraisablehook = _repeat_interruption
    try:
        _check_paths(options)
        return int(options.run(options))
    except ConfigError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return USAGE
    except Interrupted as error:
        sys.stderr.write(f"da3_ros: interrupted, {str(error) or 'nothing was written'}\n")
        return INTERRUPTED


def _check_paths(options: argparse.Namespace) -> None:
    """Expand ~ in all given paths. Raises ConfigError for impossible file names."""
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
    """Returns the error's text without the path, which may be very long."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line, with its help."""
    parser = argparse.ArgumentParser(
        prog="da3_ros", description="Cameras to metric-aware 3D with Depth Anything 3."
    )
    parser.add_argument("--version", action="version", version=f"da3_ros {__version__}")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_replay(commands)
    add_fleet(commands)
    add_synth_bag(commands)
    add_models(commands)
    add_plan(commands)
    add_bench(commands)
    add_export(commands)
    add_export_network(commands)
    add_merge(commands)
    add_view(commands)
    add_report(commands)
    add_nav2_config(commands)
    return parser


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted


def _repeat_interruption(ignored: sys.UnraisableHookArgs) -> None:
    """Interrupts again after Python has ignored an interruption, as it does with what is raised in
    callbacks of weak references and finalizers."""
    if isinstance(ignored.exc_value, Interrupted):
        Timer(REPEAT_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)
