"""Names in the folder of an engine. Apart from its builder, whose imports take a second."""

from __future__ import annotations

import hashlib
from pathlib import Path

FORMAT = 1  # of the folder; another one is built again
MANIFEST = "manifest.json"
GOLDEN = "golden.npz"
RANDOM = "random"  # as parameter `checkpoint`: weights without meaning, for tests


def sha256(path: Path) -> str:
    """The SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
