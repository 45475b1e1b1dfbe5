"""`da3_ros models`: lists the networks and fetches their weights."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED
from da3_ros.parameter_schema import ConfigError


def add_models(commands: Any) -> None:
    models = commands.add_parser(
        "models", help="list the models and licences, and which are on this machine; fetch weights"
    )
    models.add_argument(
        "--get", metavar="NAME", help="fetch a model's weights, or verify those on this machine"
    )
    models.add_argument(
        "--to", type=Path, metavar="FOLDER",
        help="with --get: put the files there, for another machine (not into the hub cache)",
    )  # fmt: skip
    models.set_defaults(run=_run_models)


def _run_models(options: argparse.Namespace) -> int:
    if options.get is not None:
        return _get_model(options.get, options.to)
    from da3_ros.cli.model_table import model_table

    sys.stdout.write(model_table())
    return 0


def _get_model(name: str, folder: Path | None) -> int:
    """Fetch one model's weights, or verify those on this machine."""
    from da3_ros.network import MODELS
    from da3_ros.network.checkpoint import remedies, shipped_folder
    from da3_ros.network.hub import PINS, HubError, fetch

    if name not in MODELS:
        raise ConfigError(f"--get {name!r}: one of {', '.join(MODELS)}")
    spec = MODELS[name]
    if not spec.repo:
        sys.stdout.write(f"{name} is part of this package: {shipped_folder(name) or 'missing'}\n")
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
    sys.stdout.write(f"{where}: size and SHA-256 are correct; {use}\n")
    return 0
