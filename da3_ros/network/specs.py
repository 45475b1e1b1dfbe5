"""The table of models: every size that tells one DA3 network from another."""

from __future__ import annotations

from dataclasses import dataclass

PATCH = 14
POS_GRID = 37  # the stored positional embedding covers 37 x 37 patches (518 pixels)


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of one any-view DA3 network (arXiv 2511.10647 and the official config.json).

    ``alt_start`` is the first block that may attend across frames; from there on odd blocks do.
    ``taps`` are the blocks whose output feeds the head.
    """

    name: str
    backbone: str  # the backbone's name in the official config.json
    width: int
    blocks: int
    heads: int
    taps: tuple[int, int, int, int]
    alt_start: int
    features: int
    channels: tuple[int, int, int, int]
    swiglu: bool = False
    repo: str = ""  # on the Hugging Face hub; empty: ships with this package
    license: str = "Apache-2.0"

    @property
    def hidden(self) -> int:
        """Feed-forward width; SwiGLU takes two thirds of 4 x width, rounded up to eights."""
        return (int(2 * 4 * self.width / 3) + 7) // 8 * 8 if self.swiglu else 4 * self.width

    @property
    def commercial(self) -> bool:
        """Whether the licence of the official weights allows commercial use."""
        return not self.license.startswith("CC BY-NC")


_NC = "CC BY-NC 4.0"

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("da3-tiny", "vitxs", 192, 8, 3, (2, 3, 5, 7), 2, 32, (24, 48, 96, 192)),
        ModelSpec(
            "da3-small", "vits", 384, 12, 6, (5, 7, 9, 11), 4, 64, (48, 96, 192, 384),
            repo="depth-anything/DA3-SMALL",
        ),
        ModelSpec(
            "da3-base", "vitb", 768, 12, 12, (5, 7, 9, 11), 4, 128, (96, 192, 384, 768),
            repo="depth-anything/DA3-BASE",
        ),
        ModelSpec(
            "da3-large", "vitl", 1024, 24, 16, (11, 15, 19, 23), 8, 256, (256, 512, 1024, 1024),
            repo="depth-anything/DA3-LARGE-1.1", license=_NC,
        ),
        ModelSpec(
            "da3-giant", "vitg", 1536, 40, 24, (19, 27, 33, 39), 13, 256, (256, 512, 1024, 1024),
            swiglu=True, repo="depth-anything/DA3-GIANT-1.1", license=_NC,
        ),
    )
}  # fmt: skip
