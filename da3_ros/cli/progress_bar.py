"""The progress of a command, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from da3_ros.export.selection import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yields what shows a step and its share that is done."""
    with tqdm(
        total=1.0, disable=not sys.stderr.isatty(), bar_format="{desc}: {percentage:3.0f}%|{bar}|"
    ) as bar:

        def progress(step: str, share: float) -> None:
            bar.set_description(step, refresh=False)
            bar.n = share
            bar.refresh()

        yield progress
