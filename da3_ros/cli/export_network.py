"""`da3_ros export-network`: writes a network for other runtimes (ONNX Runtime, TensorRT ...)."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from da3_ros.cli.arguments import FAILED, size_argument
from da3_ros.parameter_schema import ConfigError

log = logging.getLogger(__name__)

LARGEST_SIDE = 4200  # pixels
EXAMPLE = """example:
  da3_ros export-network da3-small --format onnx --views 8 --size 504x378 --output da3-small-onnx
  python da3-small-onnx/example.py

docs/export_network.md has the lines for TensorRT."""


def add_export_network(commands: Any) -> None:
    export = commands.add_parser(
        "export-network",
        help="write a network as ONNX or OpenVINO files, for programs with a runtime of their own",
        description="Write the parts of a network with static shapes, a manifest, PyTorch's "
        "results and an example. The files are run and compared before the folder appears.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("model", help="one of those that `da3_ros models` lists")
    export.add_argument("--format", default="onnx", choices=("onnx", "openvino"))
    export.add_argument(
        "--views", type=int, default=8, metavar="N",
        help="images per window, 8 by default; single-image models have none",
    )  # fmt: skip
    export.add_argument(
        "--size", default="504x378", metavar="WxH",
        help="size of the images, multiples of 14, 504x378 by default",
    )  # fmt: skip
    export.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder; must not exist"
    )
    export.add_argument(
        "--checkpoint", default="", metavar="C", help="weights, as parameter `checkpoint`"
    )
    export.set_defaults(run=_run_export_network)


def _run_export_network(options: argparse.Namespace) -> int:
    from da3_ros.backends.engine_builder import MOST_VIEWS
    from da3_ros.backends.network_export import ExportRequest, NetworkExportError, export_network
    from da3_ros.backends.openvino_engine import first_line
    from da3_ros.export.atomic_files import atomic_folder
    from da3_ros.export.selection import ExportError
    from da3_ros.network import MODELS, CheckpointError

    if options.model not in MODELS:
        raise ConfigError(f"model {options.model!r}: one of {', '.join(MODELS)}")
    spec = MODELS[options.model]
    if spec.multi_view and options.views < 2:
        raise ConfigError(f"--views {options.views}: {spec.name} needs at least 2")
    if options.views > MOST_VIEWS:
        raise ConfigError(f"--views {options.views}: at most {MOST_VIEWS}")
    views = options.views if spec.multi_view else 2  # images of the golden run
    size = _network_size(options.size)
    if options.output.exists() and not options.output.is_dir():
        raise ConfigError(f"--output {options.output}: it is not a folder")
    request = ExportRequest(spec.name, options.checkpoint, options.format, size, views)
    try:
        with atomic_folder(options.output, lambda folder: min(folder.iterdir())) as folder:
            lines = export_network(request, folder, _say)
    except (CheckpointError, ExportError, NetworkExportError) as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    except (MemoryError, OSError, RuntimeError, ValueError) as error:  # too little memory or disk
        log.debug("exporting failed", exc_info=True)
        sys.stderr.write(f"da3_ros: {spec.name} cannot be exported: {first_line(error)}\n")
        return FAILED
    licence = spec.license + ("" if spec.commercial else ": no commercial use")
    lines.append(f"{options.output}: {spec.name}, weights under {licence}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _network_size(text: str) -> tuple[int, int]:
    """Height and width of WxH. Raises ConfigError, also if the network cannot take them."""
    from da3_ros.network.specs import PATCH

    width, height = size_argument(text)
    near = [max(PATCH, (side + PATCH // 2) // PATCH * PATCH) for side in (width, height)]
    if near != [width, height]:
        raise ConfigError(
            f"--size {text}: sides must be multiples of {PATCH}; the nearest: {near[0]}x{near[1]}"
        )
    if max(near) > LARGEST_SIDE:
        raise ConfigError(f"--size {text}: sides are at most {LARGEST_SIDE} pixels")
    return height, width


def _say(step: str) -> None:
    sys.stderr.write(f"da3_ros: {step} ...\n")
    sys.stderr.flush()
