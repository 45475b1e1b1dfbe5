"""The DA3 networks in plain PyTorch, and the reader of official checkpoints."""

from da3_ros.network.build import Network, build_network, empty_network
from da3_ros.network.checkpoint import (
    CheckpointError,
    initialize_randomly,
    load_checkpoint,
    save_checkpoint,
)
from da3_ros.network.model import Output
from da3_ros.network.specs import MODELS, ModelSpec

__all__ = [
    "MODELS",
    "CheckpointError",
    "ModelSpec",
    "Network",
    "Output",
    "build_network",
    "empty_network",
    "initialize_randomly",
    "load_checkpoint",
    "save_checkpoint",
]
