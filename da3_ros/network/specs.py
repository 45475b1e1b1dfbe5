"""The table of models: all sizes in which the DA3 networks differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

PATCH = 14
MEAN = (0.485, 0.456, 0.406)  # of RGB in [0, 1]: images are normalised by these (ImageNet)
STD = (0.229, 0.224, 0.225)
POS_GRID = 37  # the stored positional embedding covers 37 x 37 patches (518 pixels)


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of one DA3 network (arXiv 2511.10647 and the official config.json).

    From block ``alt_start`` on, odd blocks attend across frames; in a monocular network none does
    and ``alt_start`` equals ``blocks``. ``taps``: blocks whose output feeds the head. A nested
    network has the sizes of its multi-view part, and a ``metric_branch``.
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
    parameters: int = 0  # in the official file, with the Gaussian head
    gaussians: bool = False  # whether the official file has a Gaussian head
    metric: bool = False  # whether depth is in metres, given the focal length
    metric_branch: ModelSpec | None = None

    @property
    def multi_view(self) -> bool:
        """Whether it attends across frames: consistent depth, confidence, poses, intrinsics."""
        return self.alt_start < self.blocks

    @property
    def sky(self) -> bool:
        """Whether the network predicts sky."""
        return not self.multi_view or self.metric_branch is not None

    @property
    def gives(self) -> tuple[str, ...]:
        """The network's outputs, in a few words."""
        many = ("multi-view depth", "poses", "takes poses")
        extras = (("metres",) if self.metric else ()) + (("sky",) if self.sky else ())
        return (many if self.multi_view else ("depth",)) + extras

    @property
    def hidden(self) -> int:
        """Feed-forward width; with SwiGLU 2/3 of 4 x width, rounded up to a multiple of 8."""
        return (int(2 * 4 * self.width / 3) + 7) // 8 * 8 if self.swiglu else 4 * self.width

    @property
    def commercial(self) -> bool:
        """Whether the licence of the official weights allows commercial use."""
        return not self.license.startswith("CC BY-NC")


_NC = "CC BY-NC 4.0"
_L = (256, 512, 1024, 1024)

_ANY_VIEW = (
    ModelSpec("da3-tiny", "vitxs", 192, 8, 3, (2, 3, 5, 7), 2, 32, (24, 48, 96, 192),
        parameters=7_023_495,
    ),
    ModelSpec(
        "da3-small", "vits", 384, 12, 6, (5, 7, 9, 11), 4, 64, (48, 96, 192, 384),
        repo="depth-anything/DA3-SMALL", parameters=34_299_463,
    ),
    ModelSpec(
        "da3-base", "vitb", 768, 12, 12, (5, 7, 9, 11), 4, 128, (96, 192, 384, 768),
        repo="depth-anything/DA3-BASE", parameters=135_366_599,
    ),
    ModelSpec(
        "da3-large", "vitl", 1024, 24, 16, (11, 15, 19, 23), 8, 256, _L,
        repo="depth-anything/DA3-LARGE-1.1", license=_NC, parameters=410_941_767,
    ),
)  # fmt: skip
_GIANT = ModelSpec(
    "da3-giant", "vitg", 1536, 40, 24, (19, 27, 33, 39), 13, 256, _L,
    swiglu=True, repo="depth-anything/DA3-GIANT-1.1", license=_NC, parameters=1_355_674_125,
    gaussians=True,
)  # fmt: skip
_MONO = ModelSpec(
    "da3mono-large", "vitl", 1024, 24, 16, (4, 11, 17, 23), 24, 256, _L,
    repo="depth-anything/DA3MONO-LARGE", parameters=334_171_394,
)  # fmt: skip
_METRIC = replace(
    _MONO, name="da3metric-large", repo="depth-anything/DA3METRIC-LARGE", metric=True
)
_NESTED = replace(
    _GIANT, name="da3nested-giant-large", repo="depth-anything/DA3NESTED-GIANT-LARGE-1.1",
    parameters=1_689_845_519, metric=True, metric_branch=_METRIC,
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {
    spec.name: spec for spec in (*_ANY_VIEW, _GIANT, _MONO, _METRIC, _NESTED)
}
