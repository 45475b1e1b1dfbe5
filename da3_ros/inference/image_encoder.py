"""What the network makes of images alone: kept where they were seen before, computed otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.prefix_cache import KeepRule, KeptPrefixes, Prefix
from da3_ros.inference.preprocess import normalize, to_size
from da3_ros.types import Image


class ImageEncoder:
    """Prefixes of images [h, w, 3]. Owns nothing: the prefixes that stay are in ``kept``."""

    def __init__(self, network: LoadedNetwork, kept: KeptPrefixes) -> None:
        self._network, self._kept = network, kept

    def begin(self, image: Image, rule: KeepRule) -> None:
        """Keep the prefix of an image at its own size, for the window that it waits for."""
        if self._kept.get(image) is None:
            height, width = image.shape[:2]
            self._keep([image], self.encode([image], (height, width)), rule)

    def prefixes(
        self, images: Sequence[Image], size: tuple[int, int], rule: KeepRule | None
    ) -> Prefix:
        """Prefixes [1, N, ...] of all images; only those not seen before are computed.

        size: (height, width) in the network. rule: None keeps nothing.
        """
        missing = [image for image in images if self._kept.get(image) is None]
        fresh: dict[int, Prefix] = {}
        if missing:
            fresh = self.encode(missing, size)
            if rule is not None:
                self._keep(missing, fresh, rule)
        parts = [fresh.get(id(image)) or self._kept.get(image) for image in images]
        stacked = (
            torch.stack([self._network.upload(x) for x in xs])[None]
            for xs in zip(*parts, strict=True)
        )
        make: Any = type(parts[0])
        return make(*stacked)

    def encode(self, images: Sequence[Image], size: tuple[int, int]) -> dict[int, Prefix]:
        """What the network makes of each image alone, by the array's ``id()``."""
        pixels = torch.from_numpy(np.stack([to_size(image, size) for image in images]))
        batch = normalize(self._network.upload(pixels))[None]
        prefix: Prefix = self._network.call("encode", batch)
        parts = (type(prefix)(*(x[0, i] for x in prefix)) for i in range(len(images)))
        return {id(image): part for image, part in zip(images, parts, strict=True)}

    def _keep(self, images: Sequence[Image], fresh: dict[int, Prefix], rule: KeepRule) -> None:
        """Keep what later windows will ask for again; the longest unused leaves first."""
        for image in images:
            self._kept.put(image, fresh[id(image)], on_host=rule.on_host)
        self._kept.bound(rule.most)
