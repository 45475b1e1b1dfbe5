"""Writes a network for other runtimes, as ONNX or OpenVINO files, and runs them before it ends.

Beside the parts the folder holds a manifest, PyTorch's results (golden arrays) and an example,
by whose code the files are checked here too.
"""

from __future__ import annotations

import inspect
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from da3_ros.backends import export_example
from da3_ros.backends.engine_builder import convert, load_network
from da3_ros.backends.engine_folder import GOLDEN, MANIFEST
from da3_ros.backends.export_manifest import file_digests, manifest, weights_facts
from da3_ros.backends.export_parts import export_parts
from da3_ros.backends.golden import golden_run
from da3_ros.backends.network_parts import Part
from da3_ros.backends.openvino_engine import first_line
from da3_ros.backends.openvino_import import OpenVinoMissingError, openvino
from da3_ros.network import MODELS
from da3_ros.network.precision import KEPT

FORMATS = ("onnx", "openvino")
OPSET = 18  # TensorRT 10 reads up to 20
EXAMPLE = "example.py"
# Larger weights go into a file beside the graph: protobuf ends at 2 GiB.
LARGEST_FILE = 1_900_000_000
# Nodes whose names begin so lose visible accuracy in 16 bits: trtexec's --layerPrecisions selects
# layers by their names.
EXACT = "fp32/"
SCOPES = "pkg.torch.onnx.name_scopes"  # property of a node: the modules that it comes from

Say = Callable[[str], None]

log = logging.getLogger(__name__)


class NetworkExportError(RuntimeError):
    """A network cannot be exported; the text is one line with the remedy."""


@dataclass(frozen=True)
class ExportRequest:
    """What to export. size: (H, W), multiples of 14. views: at least 2 for a multi-view model."""

    model: str
    checkpoint: str  # as the parameter
    form: str  # one of FORMATS
    size: tuple[int, int]
    views: int


def check_tools(form: str) -> None:
    """Raise NetworkExportError if a library that writes or checks ``form`` is missing."""
    try:
        openvino()
    except OpenVinoMissingError as error:
        raise NetworkExportError(str(error)) from error
    if form != "onnx":
        return
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise NetworkExportError(
            f"--format onnx needs {' and '.join(missing)}: `pip install onnx onnxscript`"
        )
    if "dynamo" not in inspect.signature(torch.onnx.export).parameters:
        raise NetworkExportError(f"--format onnx needs a newer torch than {torch.__version__}")


def export_network(request: ExportRequest, folder: Path, say: Say) -> list[str]:
    """Write the export into ``folder``, which must exist and be empty. Takes minutes.

    say: called with a line before each long step. Returns lines about how closely the written
    files agree with PyTorch. Raises NetworkExportError, CheckpointError, OSError.
    """
    check_tools(request.form)
    spec = MODELS[request.model]
    say(f"reading the weights of {request.model}")
    weights = weights_facts(spec, request.checkpoint)
    network = load_network(request.model, request.checkpoint)
    say("running it in PyTorch")
    golden: dict[str, Any] = dict(golden_run(network, request.size, request.views))
    np.savez(folder / GOLDEN, **golden)
    parts = export_parts(network, request.size, request.views)
    files = {}
    for name, part in parts.items():
        say(f"exporting {name}")
        files[name] = _written(part, folder / name, request.form)
    shutil.copyfile(export_example.__file__, folder / EXAMPLE)
    facts = manifest(spec, request.size, parts, files, file_digests(folder.iterdir()))
    facts["weights"] = weights
    facts |= {"opset": OPSET} if request.form == "onnx" else {}
    facts["versions"] |= _versions(request.form)
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n")
    return _checked(folder, request.form, say)


def _written(part: Part, path: Path, form: str) -> str:
    """``_write``, with any error of the libraries as NetworkExportError."""
    try:
        return _write(part, path, form)
    except (RuntimeError, TypeError, ValueError) as error:
        log.debug("exporting %s", path.name, exc_info=error)
        text = f"{path.name} cannot be exported: {first_line(error)}"
        raise NetworkExportError(text) from error


def _write(part: Part, path: Path, form: str) -> str:
    """Write a part; returns the name of its file."""
    if form == "openvino":
        file = path.with_suffix(".xml")
        openvino().save_model(convert(part), str(file), compress_to_fp16=False)
        return file.name
    file = path.with_suffix(".onnx")
    with _quiet():
        program: Any = torch.onnx.export(
            part.module,
            tuple(part.inputs.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            verbose=False,
        )
    if program.model.opset_imports[""] != OPSET:
        raise NetworkExportError(f"torch {torch.__version__} writes no ONNX of opset {OPSET}")
    _name_exact_nodes(program.model.graph)
    _forget_sources(program.model)
    weights = sum(x.const_value.nbytes for x in program.model.graph.initializers.values())
    program.save(str(file), external_data=weights > LARGEST_FILE)
    return file.name


def _name_exact_nodes(graph: Any) -> None:
    """Put EXACT before the names of nodes in KEPT modules, and of all that follow them."""
    modules = tuple(name.rstrip(".") for name in KEPT)
    exact: set[Any] = set()
    for node in graph:
        scopes = node.metadata_props.get(SCOPES, "")
        if any(name in scopes for name in modules) or exact.intersection(node.inputs):
            node.name = f"{EXACT}{node.name}"
            exact.update(node.outputs)


def _forget_sources(model: Any) -> None:
    """Remove what the tracer noted at each node: lines of code, with paths of this machine."""
    for holder in (model, model.graph, *model.graph.inputs, *model.graph.initializers.values()):
        holder.metadata_props.clear()
    for node in model.graph:
        for holder in (node, *node.outputs):
            holder.metadata_props.clear()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the tracer and its libraries say about their own work."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _versions(form: str) -> dict[str, str]:
    if form == "openvino":
        return {"openvino": openvino().__version__}
    import onnx
    import onnxscript

    return {"onnx": onnx.__version__, "onnxscript": onnxscript.__version__}


def _checked(folder: Path, form: str, say: Say) -> list[str]:
    """Run the written files; returns lines about them. Raises NetworkExportError."""
    lines = []
    runtimes = ["openvino"]
    if form == "onnx" and find_spec("onnxruntime") is not None:
        runtimes.append("onnxruntime")
    for runtime in runtimes:
        say(f"checking the files with {runtime}")
        found = export_example.ExportedNetwork(folder, runtime).differences()
        wrong = [f"{name} by {value:.1e}" for name, value, most in found if not value <= most]
        if wrong:
            raise NetworkExportError(
                f"in {runtime} the written files differ from PyTorch: {', '.join(wrong)}; "
                "please report it"
            )
        text = ", ".join(f"{name} {value:.0e}" for name, value, _ in found)
        lines.append(f"differences from PyTorch in {runtime}: {text}")
    return lines
