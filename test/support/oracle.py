"""The reference implementation as an oracle, with the same weights as one of our networks.

The package `depth-anything-3` is installed without its dependencies for tests only.
"""

import contextlib
import dataclasses
import os

import pytest
import torch

from da3_ros.network import MODELS
from da3_ros.network.checkpoint import ALIASES
from da3_ros.network.model import DepthAnything3

os.environ.setdefault("DA3_LOG_LEVEL", "ERROR")
pytest.importorskip("depth_anything_3", reason="the reference package is the oracle")

# Full large and giant would take minutes on two cores; these keep their width, heads, feed-forward
# and parity of alt_start (giant's first late block is global) with fewer blocks.
SHORT = {
    "da3-large": {"blocks": 6, "alt_start": 2, "taps": (2, 3, 4, 5)},
    "da3-giant": {"blocks": 7, "alt_start": 3, "taps": (3, 4, 5, 6)},
}


@contextlib.contextmanager
def unset_weights():
    """Networks that are built here keep what was in memory: all their weights are set later."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kaiming_uniform_", "trunc_normal_", "uniform_", "normal_"):
            patch.setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
        yield


def spec_of(name: str):
    return dataclasses.replace(MODELS[name], **SHORT.get(name, {}))


def randomize(network: torch.nn.Module, seed: int) -> None:
    """Every parameter random, so that no zero or one in the initial weights hides an error."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            mean, std = 0.0, 0.3
            if name.endswith("gamma"):
                mean, std = 0.3, 0.2
            elif p.ndim == 1 and name.endswith("weight"):
                mean, std = 1.0, 0.2
            elif p.ndim > 1 and "token" not in name and "pos_embed" not in name:
                std = (0.64 / p[0].numel()) ** 0.5
            p.copy_(torch.randn(p.shape, generator=g) * std + mean)
        for name, p in network.named_parameters():
            if name.endswith("fc_fov.0.bias"):  # no field of view clipped to zero
                p.add_(1.0)


def reference_backbone(spec):
    """The reference's transformer for ``spec``, in the holder that its networks expect."""
    from depth_anything_3.model.dinov2.vision_transformer import DinoVisionTransformer

    start = spec.alt_start if spec.multi_view else -1

    class Backbone(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pretrained = DinoVisionTransformer(
                img_size=518, patch_size=14, embed_dim=spec.width, depth=spec.blocks,
                num_heads=spec.heads, ffn_layer="swiglufused" if spec.swiglu else "mlp",
                init_values=1.0, alt_start=start, qknorm_start=start, rope_start=start,
                cat_token=spec.multi_view,
            )  # fmt: skip

        def forward(self, x, **kw):
            return self.pretrained.get_intermediate_layers(x, list(spec.taps), **kw)

    return Backbone()


def reference_network(spec, *, gaussians=False):
    """The reference's modules put together for ``spec``."""
    from depth_anything_3.model.cam_dec import CameraDec
    from depth_anything_3.model.cam_enc import CameraEnc
    from depth_anything_3.model.da3 import DepthAnything3Net
    from depth_anything_3.model.dualdpt import DualDPT

    head = DualDPT(
        dim_in=2 * spec.width, output_dim=2, features=spec.features,
        out_channels=list(spec.channels),
    )  # fmt: skip
    parts = [reference_backbone(spec), head, CameraDec(2 * spec.width)]
    parts.append(CameraEnc(dim_out=spec.width))
    return DepthAnything3Net(*parts, *(gaussian_parts(spec) if gaussians else ())).eval()


def gaussian_parts(spec):
    """The reference's Gaussian head and adapter, with the numbers of its giant model."""
    pytest.importorskip("e3nn", reason="the reference rotates harmonics with it")
    from depth_anything_3.model.gs_adapter import GaussianAdapter
    from depth_anything_3.model.gsdpt import GSDPT

    head = GSDPT(
        dim_in=2 * spec.width, output_dim=38, features=spec.features,
        out_channels=list(spec.channels),
    )  # fmt: skip
    head.out_dim = 38
    adapter = GaussianAdapter(
        sh_degree=2, pred_color=False, pred_offset_depth=True, pred_offset_xy=True,
        gaussian_scale_min=1e-5, gaussian_scale_max=30.0,
    )  # fmt: skip
    return head, adapter


def monocular_reference(spec):
    """The same for a monocular network."""
    from depth_anything_3.model.da3 import DepthAnything3Net
    from depth_anything_3.model.dpt import DPT

    head = DPT(
        dim_in=spec.width, output_dim=1, features=spec.features, out_channels=list(spec.channels)
    )
    return DepthAnything3Net(reference_backbone(spec), head).eval()


def nested_reference(spec, *, gaussians=False):
    """The reference's nested network, its forward pass its own, around two such networks."""
    from depth_anything_3.model.da3 import NestedDepthAnything3Net

    network = NestedDepthAnything3Net.__new__(NestedDepthAnything3Net)
    torch.nn.Module.__init__(network)
    network.da3 = reference_network(spec, gaussians=gaussians)
    network.da3_metric = monocular_reference(spec.metric_branch)
    return network.eval()


def packaged_network(name: str):
    """The reference's own assembly from its packaged configuration (small and base)."""
    from depth_anything_3.cfg import create_object, load_config
    from depth_anything_3.registry import MODEL_REGISTRY

    return create_object(load_config(MODEL_REGISTRY[name])).eval()


def pair(name: str, seed: int, *, packaged: bool = False, short: bool = True):
    """Our network and the oracle with the same random weights; ``short``: see SHORT."""
    spec = spec_of(name) if short else MODELS[name]
    with unset_weights():
        ours = DepthAnything3(spec).eval()
        theirs = packaged_network(name) if packaged else reference_network(spec)
    randomize(ours, seed)
    weights = dict(ours.state_dict())
    weights.update({alias: weights[kept] for alias, kept in ALIASES.items()})
    theirs.load_state_dict(weights, strict=True)
    return ours, theirs


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference over the oracle's largest magnitude."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max() / b.abs().max())


def given_poses(n, seed):
    """Plausible window-to-camera poses and intrinsics, half turns among them."""
    g = torch.Generator().manual_seed(seed)
    q = torch.nn.functional.normalize(torch.randn(n, 4, generator=g), dim=-1)
    q[-1] = torch.tensor([0.0, 1.0, 0.0, 1e-4])
    from da3_ros.network.camera import matrix_from_quaternion

    T = torch.eye(4).repeat(n, 1, 1)
    T[:, :3, :3] = matrix_from_quaternion(q)
    T[:, :3, 3] = torch.randn(n, 3, generator=g)
    K = torch.tensor([[100.0, 0, 70], [0, 110, 50], [0, 0, 1]]).repeat(n, 1, 1)
    return T[None], K[None]
