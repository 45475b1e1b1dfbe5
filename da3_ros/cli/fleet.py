"""`da3_ros fleet`: processes many recordings with all cores, cards and machines there are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from da3_ros.cli.arguments import (
    FAILED,
    INCOMPLETE,
    add_parameters,
    load_config,
    parameter_help,
)
from da3_ros.cli.replay import add_selection, replay_options
from da3_ros.parameter_schema import ConfigError

if TYPE_CHECKING:
    from da3_ros.fleet.fleet import FleetSummary

EXIT_CODES = (
    "exit codes: 0 all recordings are processed; 1 nothing could be done; 2 wrong usage; 3 some "
    "failed, are damaged or, with --merge, not joined; 130 interrupted, the same command goes on"
)


def add_fleet(commands: Any) -> None:
    fleet = commands.add_parser(
        "fleet",
        help="replay many recordings, each as a task on cores and cards of its own",
        description="Process each recording as `da3_ros replay` does, with workers that load the "
        "networks once. Results are in a folder per recording below --output; the same command "
        "goes on where it was interrupted, and does what is missing. A failed recording is tried "
        "once more on another worker.",
        epilog=f"{parameter_help()}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fleet.add_argument(
        "inputs", type=Path, nargs="+", metavar="BAG_OR_FOLDER",
        help="a recording, as for `da3_ros replay`, or a folder to search for recordings",
    )  # fmt: skip
    fleet.add_argument(
        "--output", type=Path, required=True, metavar="DIR",
        help="folder for all results; with --address on storage that all machines share, as the "
        "recordings",
    )  # fmt: skip
    fleet.add_argument(
        "--address", help="a Ray cluster, e.g. HOST:6379 or auto; else this machine alone"
    )
    fleet.add_argument(
        "--gpus-per-task", type=float, metavar="N",
        help="cards of a worker, 0.5 for two on one; 1 where there are any",
    )  # fmt: skip
    fleet.add_argument(
        "--cpus-per-task", type=int, metavar="N",
        help="cores of a worker; a fair share beside each card, else 4",
    )  # fmt: skip
    fleet.add_argument("--workers", type=int, metavar="N", help="at most so many workers")
    fleet.add_argument(
        "--merge", action="store_true",
        help="join the scenes of all results, as `da3_ros merge`, in the folder `merged`",
    )  # fmt: skip
    add_parameters(fleet)
    add_selection(fleet)
    fleet.set_defaults(run=_run_fleet)


def _run_fleet(options: argparse.Namespace) -> int:
    for name, least in (("gpus_per_task", 0), ("cpus_per_task", 1), ("workers", 1)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: it is at least {least}")
    config = load_config(options.config, options.param)
    common = replay_options(options, Path())

    from da3_ros.cli.fleet_progress import FleetProgress
    from da3_ros.fleet.fleet import FleetOptions, run_fleet
    from da3_ros.fleet.jobs import FleetError

    wanted = FleetOptions(
        [path.expanduser() for path in options.inputs], options.output, common, options.address,
        options.gpus_per_task, options.cpus_per_task, options.workers, options.merge,
    )  # fmt: skip
    progress = FleetProgress()
    try:
        with progress:
            summary = run_fleet(wanted, config, progress)
    except (FleetError, OSError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    except Exception:  # keeps its text, which is set below for an interruption only
        raise
    except BaseException as error:
        error.args = (progress.interrupted(),)
        raise
    sys.stdout.write(text_of(summary))
    return 0 if summary.is_complete else INCOMPLETE


def text_of(summary: FleetSummary) -> str:
    """Returns a table with a row per recording, and what was merged."""
    from da3_ros.cli.merge import text_of as text_of_merge

    rows = [("recording", "state", "frames", "seconds", "frames/s", "worker", "tries", "")]
    for one in summary.outcomes:
        rate = f"{one.frames / one.wall_s:.2f}" if one.wall_s else "-"
        rows.append(
            (one.name, one.state, str(one.frames), f"{one.wall_s:.1f}", rate,
             f"{one.worker} {one.node}", str(one.attempts), one.reason)
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    new = [one for one in summary.outcomes if one.state != "failed"]
    failed = len(summary.outcomes) - len(new)
    frames = sum(one.frames for one in new)
    lines.append(
        f"{len(new)} of {summary.recordings} recordings, {frames} frames; {failed} failed, "
        f"{summary.skipped} were there already; {summary.wall_s:.1f} s with "
        f"{len(summary.workers)} workers"
    )
    if isinstance(summary.merged, str):
        lines.append(f"not merged: {summary.merged}")
    elif summary.merged is not None:
        lines.append(text_of_merge(summary.merged).rstrip())
    lines.append(f"  {summary.output / 'fleet.json'}")
    return "\n".join(lines) + "\n"
