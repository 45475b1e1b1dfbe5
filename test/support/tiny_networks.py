"""Cut-down monocular and nested networks: every kind of layer, in milliseconds."""

import dataclasses

from da3_ros.network import MODELS, ModelSpec


def tiny_metric_spec(name: str = "da3metric-large") -> ModelSpec:
    return dataclasses.replace(
        MODELS[name], width=128, heads=2, blocks=6, alt_start=6, taps=(1, 2, 3, 5), features=32,
        channels=(16, 24, 32, 48),
    )  # fmt: skip


def tiny_nested_spec() -> ModelSpec:
    return dataclasses.replace(
        MODELS["da3nested-giant-large"], width=128, heads=2, blocks=7, alt_start=3,
        taps=(3, 4, 5, 6), features=32, channels=(16, 24, 32, 48),
        metric_branch=tiny_metric_spec(),
    )  # fmt: skip
