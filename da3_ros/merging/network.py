"""The network that verifies loops between scenes, as the live node opens it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from da3_ros.config import PipelineConfig
from da3_ros.inference import open_networks
from da3_ros.inference.interfaces import Session
from da3_ros.merging.inputs import InputScene, MergeError
from da3_ros.merging.joining import LoopNetwork
from da3_ros.pipeline.saved_recognition import weights_name
from da3_ros.pipeline.window_refinement import WindowRefinement
from da3_ros.refinement.solver_limits import SolverLimits


def check_weights(inputs: Sequence[InputScene], config: PipelineConfig) -> bool:
    """Returns whether at least two scenes can recognise each other.

    Raises MergeError if the descriptors of two are of different weights, or of others than those
    that ``config`` names: they cannot be compared.
    """
    model_of = {
        one.name: one.saved.recognition.model
        for one in inputs if one.saved.recognition is not None and one.recognition() is not None
    }  # fmt: skip
    models = list(dict.fromkeys(model_of.values()))
    if len(model_of) < 2:
        return False
    if len(models) > 1:
        said = ", ".join(f"{name} by {model}" for name, model in model_of.items())
        raise MergeError(
            f"the locations of the scenes are recognised by different models: {said}; merge "
            "scenes of one model"
        )
    if models[0] != weights_name(config):
        raise MergeError(
            f"the locations of the scenes are recognised by the model {models[0]}, not by "
            f"{weights_name(config)}: set it with -p model:=NAME (and -p checkpoint:=FOLDER)"
        )
    if not config.loop.enabled:
        raise MergeError(
            "loop.enabled is false, so that no locations are recognised: set it to true"
        )
    return True


def open_loop_network(config: PipelineConfig, session: Session | None = None) -> LoopNetwork:
    """Opens what verifies loops. Raises ConfigError, CheckpointError, DeviceError."""
    if session is None:  # without what measures metres: scenes have them, or have not
        unscaled = dataclasses.replace(
            config, scale=dataclasses.replace(config.scale, source="none")
        )
        session, _ = open_networks(unscaled)
    # No frame waits: the limits must not depend on the machine's speed.
    limits = SolverLimits.full(config.refinement.max_features)
    refinement = WindowRefinement(config, Counter(), limits)
    return LoopNetwork(config, session, refinement.loop if config.refinement.enabled else None)
