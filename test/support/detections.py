"""Detects the features of the same image once in a process: tests show it again and again."""

import dataclasses
from collections import OrderedDict

from support.renders import content_key

MOST_BYTES = 128 * 2**20


class Detections:
    """Stands in for ``FeatureDetector.__call__``; what it keeps is known by all it was detected
    from."""

    def __init__(self, detect):
        self.detect, self._kept = detect, OrderedDict()

    def __get__(self, detector, owner):
        return lambda image, usable=None: self(detector, image, usable)

    def __call__(self, detector, image, usable):
        key = content_key(detector.most, detector.most_pixels, image, usable)
        if key not in self._kept:
            self._kept[key] = self.detect(detector, image, usable)
            while sum(map(nbytes, self._kept.values())) > MOST_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        found = self._kept[key]
        return dataclasses.replace(
            found, pixel=found.pixel.copy(), descriptor=found.descriptor.copy()
        )


def nbytes(features):
    return features.pixel.nbytes + features.descriptor.nbytes
