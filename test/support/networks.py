"""Random networks are made once in a process: tests open sessions on the same ones."""

import copy

from torch.utils._python_dispatch import _get_current_dispatch_mode

from da3_ros.network import MODELS

MOST_BYTES = 64 * 2**20  # of a network


def nbytes(network):
    return sum(p.numel() * p.element_size() for p in network.parameters())


class EmptyNetworks:
    """Stands in for ``empty_network``: a copy of the first one, which takes half as long."""

    def __init__(self, make):
        self.make, self._kept = make, {}

    def __call__(self, name, *, gaussians=False):
        if _get_current_dispatch_mode() is not None:  # as where a test pretends to have a GPU
            return self.make(name, gaussians=gaussians)
        key = repr(MODELS.get(name)), gaussians
        if key not in self._kept:
            network = self.make(name, gaussians=gaussians)
            if nbytes(network) > MOST_BYTES:
                return network
            self._kept[key] = network
        return copy.deepcopy(self._kept[key])


class RandomWeights:
    """Stands in for ``initialize_randomly``."""

    def __init__(self, initialize):
        self.initialize, self._kept = initialize, {}

    def __call__(self, network):
        if _get_current_dispatch_mode() is not None or nbytes(network) > MOST_BYTES:
            return self.initialize(network)
        key = repr(network.spec), tuple((n, p.shape) for n, p in network.named_parameters())
        if key not in self._kept:
            self.initialize(network)
            self._kept[key] = [p.detach().clone() for p in network.parameters()]
        for p, value in zip(network.parameters(), self._kept[key], strict=True):
            p.detach().copy_(value)
        return None
