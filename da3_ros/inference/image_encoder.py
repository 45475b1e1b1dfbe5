"""Encodes images with the network's per-image layers; images seen before come from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from da3_ros.inference.feature_cache import CachePolicy, FeatureCache, Prefix
from da3_ros.inference.loaded_network import LoadedNetwork
from da3_ros.inference.preprocess import normalize, resize_to
from da3_ros.types import Image


class ImageEncoder:
    """Computes prefixes of images [h, w, 3]. Owns nothing: ``cache`` holds the prefixes."""

    def __init__(self, network: LoadedNetwork, cache: FeatureCache) -> None:
        self._network, self._cache = network, cache

    def begin(self, image: Image, policy: CachePolicy) -> None:
        """Cache the prefix of an image at its own size, before its window is complete."""
        if self._cache.get(image) is None:
            height, width = image.shape[:2]
            self._keep([image], self.encode([image], (height, width)), policy)

    def prefixes(
        self, images: Sequence[Image], size: tuple[int, int], policy: CachePolicy | None
    ) -> Prefix:
        """Prefixes [1, N, ...] of all images; only those not in the cache are computed.

        size: (height, width) in the network. policy: None caches nothing.
        """
        missing = [image for image in images if self._cache.get(image) is None]
        fresh: dict[int, Prefix] = {}
        if missing:
            fresh = self.encode(missing, size)
            if policy is not None:
                self._keep(missing, fresh, policy)
        parts = [fresh.get(id(image)) or self._cache.get(image) for image in images]
        stacked = (
            torch.stack([self._network.upload(x) for x in xs])[None]
            for xs in zip(*parts, strict=True)
        )
        make: Any = type(parts[0])
        return make(*stacked)

    def encode(self, images: Sequence[Image], size: tuple[int, int]) -> dict[int, Prefix]:
        """Compute the prefix of each image; keys are the arrays' ``id()``."""
        pixels = torch.from_numpy(np.stack([resize_to(image, size) for image in images]))
        batch = normalize(self._network.upload(pixels))[None]
        prefix: Prefix = self._network.encode(batch)
        parts = (type(prefix)(*(x[0, i] for x in prefix)) for i in range(len(images)))
        return {id(image): part for image, part in zip(images, parts, strict=True)}

    def _keep(
        self, images: Sequence[Image], fresh: dict[int, Prefix], policy: CachePolicy
    ) -> None:
        """Cache the prefixes that later windows use again, within the policy's limit."""
        for image in images:
            self._cache.put(image, fresh[id(image)], on_host=policy.on_host)
        self._cache.bound(policy.most)
