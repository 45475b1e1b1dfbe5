"""A session that is interrupted in one of its windows, as by Ctrl-C."""

import numpy as np

from da3_ros.synthetic.truth import TruthSession


class InterruptedTruth(TruthSession):
    """Windows that depend on nothing but their number; that of number ``at`` is interrupted."""

    def __init__(self, truth, at=-1, noise=None):
        super().__init__(truth, noise=noise)
        self.at, self.ran = at, 0

    def infer(self, window):
        if self.ran == self.at:
            raise KeyboardInterrupt
        self.ran += 1
        self._rng = np.random.default_rng(window.id)
        return super().infer(window)
