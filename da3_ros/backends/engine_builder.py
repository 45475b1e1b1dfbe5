"""Builds the files of an engine: a network's parts as OpenVINO models, and a golden run.

Exporting runs PyTorch's tracer for many seconds and needs the memory of a second network, so the
command ``main`` does it in a process of its own, with low priority; the caller (engine_store) only
waits for the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import Dim, export

from da3_ros.backends.engine_folder import FORMAT, MANIFEST, RANDOM, sha256
from da3_ros.backends.golden import GOLDEN, golden_run
from da3_ros.backends.network_parts import Part, network_parts
from da3_ros.backends.openvino_import import openvino
from da3_ros.network import Network, empty_network, initialize_randomly, load_checkpoint
from da3_ros.network.precision import drop_rays

MOST_VIEWS = 1024
FULL_DISK = 2**20  # bytes left
# Weaker than the stream, but not so weak that a camera faster than the network starves it: at 10
# an engine of ten seconds was not ready after 150.
NICENESS = 5


def build_engine(
    network: Network, size: tuple[int, int], folder: Path, facts: dict[str, Any]
) -> None:
    """Write the engine of ``network`` (fp32, on the host) for images of ``size`` (H, W).

    ``folder`` must exist and be empty. The manifest, which holds ``facts`` and a hash of every
    other file, is written last.
    """
    golden: dict[str, Any] = dict(golden_run(network, size))
    np.savez(folder / GOLDEN, **golden)
    programs = {name: convert(part) for name, part in network_parts(network, size).items()}
    for name, program in programs.items():
        # Full precision: the device's own precision is chosen when the file is compiled.
        openvino().save_model(program, str(folder / f"{name}.xml"), compress_to_fp16=False)
    files = {f.name: sha256(f) for f in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, **facts, "parts": list(programs), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def convert(part: Part) -> Any:
    """The OpenVINO model of a part, with names and shapes of its inputs and outputs."""
    ov = openvino()
    names = list(part.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about its own code
        exported = export(part.module, tuple(part.inputs.values()), dynamic_shapes=_dims(part))
        model = ov.convert_model(exported)
    free = {*part.views, *part.wanted}
    shapes = {
        i: ov.PartialShape([-1 if name in free else x.shape[0], *x.shape[1:]])
        for i, (name, x) in enumerate(part.inputs.items())
    }
    model.reshape(shapes)
    for i, name in enumerate(names):
        model.inputs[i].get_tensor().set_names({name})
    for i, name in enumerate(part.outputs):
        model.outputs[i].get_tensor().set_names({name})
    return model


def _dims(part: Part) -> tuple[dict[int, Dim], ...]:
    """The varying dimensions of a part's inputs."""
    views, wanted = Dim("views", min=2, max=MOST_VIEWS), Dim("wanted", min=1, max=MOST_VIEWS)
    found = []
    for name in part.inputs:
        dim = views if name in part.views else wanted if name in part.wanted else None
        found.append({} if dim is None else {0: dim})
    return tuple(found)


def main(arguments: list[str] | None = None) -> int:
    """The command; prints one line to stderr and returns 1 on failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("checkpoint", help="as parameter `checkpoint`")
    parser.add_argument("height", type=int)
    parser.add_argument("width", type=int)
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("facts", type=json.loads, help="JSON, copied into the manifest")
    options = parser.parse_args(arguments)
    try:
        _stay_in_the_background()
        network = load_network(options.model, options.checkpoint)
        size = (options.height, options.width)
        build_engine(network, size, options.folder, options.facts)
    except Exception as error:  # any: the caller shows the line
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        if shutil.disk_usage(options.folder).free < FULL_DISK:
            text = f"the disk of {options.folder.parent} is full"
        print(text, file=sys.stderr)
        return 1
    return 0


def _stay_in_the_background() -> None:
    """Leave the processor to the robot."""
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(NICENESS)


def load_network(model: str, checkpoint: str) -> Network:
    """A network of MODELS in fp32 on the host, without what an export leaves out.

    checkpoint: as parameter `checkpoint`. Raises CheckpointError.
    """
    network = empty_network(model)
    if checkpoint == RANDOM:
        initialize_randomly(network)
    else:
        load_checkpoint(network, checkpoint)
    network.requires_grad_(False)
    drop_rays(network)
    return network
