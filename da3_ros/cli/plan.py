"""`da3_ros plan`: predicts what fits into a memory budget."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from da3_ros.backends import backend_choices
from da3_ros.cli.arguments import FAILED, size_argument
from da3_ros.config import (
    InferenceConfig,
    PipelineConfig,
    WindowConfig,
    config_from_parameters,
)
from da3_ros.parameter_schema import ConfigError

USUAL = ("da3-small", "da3-base", "da3-large")


def add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="predict what fits into a memory budget: models, window, image size, precision",
        description="Predicts the configuration for each memory budget; --measure also runs it. "
        "Exits with 1 if nothing fits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    config = InferenceConfig()
    plan.add_argument("--device", default=config.device, help="auto, cuda, cuda:1, mps or cpu")
    plan.add_argument("--backend", default=config.backend, help=_backends())
    plan.add_argument(
        "--model", nargs="+", default=argparse.SUPPRESS,
        help=f"default: {' '.join(USUAL)}; with --splats all that can",
    )  # fmt: skip
    plan.add_argument(
        "--budget", nargs="+", type=float, default=[0.0], metavar="GIB",
        help="memory budgets, GiB; 0: 90 %% of the free memory",
    )  # fmt: skip
    plan.add_argument(
        "--size", default="640x480", metavar="WxH", help="size of the camera's images"
    )
    plan.add_argument("--process-res", type=int, default=config.process_res)
    plan.add_argument(
        "--process-res-method", default=config.process_res_method,
        help="side that --process-res determines: upper_bound_resize (the longest) or "
        "lower_bound_resize (the shortest)",
    )  # fmt: skip
    plan.add_argument("--window", type=int, default=WindowConfig().size)
    plan.add_argument("--new", type=int, default=WindowConfig().new)
    plan.add_argument("--mixed-precision", default=config.mixed_precision)
    plan.add_argument("--performance-mode", default=config.performance_mode)
    plan.add_argument(
        "--measure", action="store_true", help="run each configuration with random weights"
    )
    plan.add_argument(
        "--splats", action="store_true", help="with a Gaussian per pixel of new views, on torch"
    )
    plan.set_defaults(run=_run_plan)


def _backends() -> str:
    *names, last = backend_choices()
    return f"{', '.join(names)} or {last}"


def _run_plan(options: argparse.Namespace) -> int:
    from da3_ros.cli.plan_table import Question, as_text, nothing_fits, table
    from da3_ros.inference.devices import DeviceError
    from da3_ros.network import MODELS

    known = [name for name, spec in MODELS.items() if spec.gaussians or not options.splats]
    models = getattr(options, "model", known if options.splats else USUAL)
    unknown = [name for name in models if name not in known]
    if unknown:
        which = " with --splats" if options.splats else ""
        raise ConfigError(f"--model {unknown[0]!r}: one of {', '.join(known)}{which}")
    config: PipelineConfig = config_from_parameters(
        {
            "device": options.device,
            "backend": "torch" if options.splats else options.backend,
            "process_res": options.process_res,
            "process_res_method": options.process_res_method,
            "mixed_precision": options.mixed_precision,
            "performance_mode": options.performance_mode,
            "window.size": options.window,
            "window.new": options.new,
        }
    )
    question = Question(
        models=models,
        budgets_gb=options.budget,
        config=config.inference,
        image=size_argument(options.size),
        window=options.window,
        new=options.new,
        measure=options.measure,
        splats=options.splats,
    )
    try:
        rows = table(question)
    except DeviceError as error:
        sys.stderr.write(f"da3_ros: {error}\n")
        return FAILED
    sys.stdout.write(as_text(rows))
    return FAILED if nothing_fits(rows) else 0
