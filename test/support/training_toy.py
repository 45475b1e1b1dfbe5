"""A network and a pool so small that tests of training take seconds."""

from functools import cache

import torch

from da3_ros.network import ModelSpec
from da3_ros.network.model import DepthAnything3
from training.data import FIRST_TRAINING_SEED, Bucket, Pool, draw_clips, render_pool
from training.model import initialize
from training.schedule import Phase

SPEC = ModelSpec("toy", "vitxs", 64, 6, 1, (2, 3, 4, 5), 2, 16, (8, 8, 16, 16))
PHASES = (
    Phase("pairs", 0.5, (56, 70), (Bucket(2, 56, 70),), (0.6, 0.3), dense=False),
    Phase("views", 0.5, (56, 70), (Bucket(3, 56, 56), Bucket(2, 56, 70)), (0.3, 0.2), posed=0.5),
)


def network(seed: int = 0) -> DepthAnything3:
    """Fresh weights."""
    torch.manual_seed(seed)
    net = DepthAnything3(SPEC)
    initialize(net, torch.randn(2, 3, 56, 70))
    return net


@cache
def pool() -> Pool:
    """Four rooms, one clip of six frames each, 56 x 70."""
    return render_pool(draw_clips(FIRST_TRAINING_SEED, 4, clips=1, frames=6), (56, 70))


def generator(seed: int = 0) -> torch.Generator:
    """For drawing from the pool."""
    return torch.Generator().manual_seed(seed)
