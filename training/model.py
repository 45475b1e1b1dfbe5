"""The network in training: the released network plus linear probes and a record of its attention.

``da3_ros.network`` does not depend on this module: hooks read what its modules compute, and the
inner network can be saved and used unchanged at any time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from da3_ros.network import Output
from da3_ros.network.backbone import Attention, VisionTransformer, apply_rope
from da3_ros.network.head import Dense
from da3_ros.network.model import DepthAnything3
from da3_ros.network.specs import PATCH, POS_GRID

SUPERVISED_HEAD = 0
PROBE_CHANNELS = 9  # log-depth 1, ray direction 3, ray origin 3, displacement 2
FOV_BIAS = 1.1  # radians, a medium field of view of cameras


class Cameras(NamedTuple):
    """Output of the camera decoder before it is converted to matrices, [B, N, ...]."""

    centre: Tensor  # [..., 3] camera centre in the reference frame
    quaternion: Tensor  # [..., 4] x y z w, not normalised
    fov: Tensor  # [..., 2] radians, vertical, horizontal


class TrainingOutput(NamedTuple):
    """All outputs that losses need."""

    cameras: Cameras
    # Per global tap [B, N, P, 9]: log-depth, ray direction, ray origin, and displacement into the
    # reference view.
    probes: list[Tensor]
    attention: list[Tensor]  # per global block [B, N P, N P]: logits of one head, patches only
    dense: Dense | None  # maps [B, N, ...]; None if the head did not run


class AttentionRecorder:
    """Records queries and keys of one head of attention modules.

    It reads the output of ``qkv`` and applies the same steps as ``Attention.forward``: per-head
    normalisation and rotary positions. Nothing is recorded while ``active`` is false.
    """

    def __init__(self, modules: Sequence[Attention], head: int) -> None:
        self.head, self.active = head, False
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._rope: Any = None
        for module in modules:
            module.register_forward_pre_hook(self._note_rope)
            module.qkv.register_forward_hook(self._keeper(module))

    def _note_rope(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._rope = args[1] if len(args) > 1 else None

    def _keeper(self, attention: Attention) -> Any:
        def keep(module: nn.Module, args: tuple[Any, ...], qkv: Tensor) -> None:
            if not self.active:
                return
            q, k, _ = qkv.unflatten(-1, (3, attention.heads, -1))[..., self.head, :].unbind(-2)
            q, k = attention.q_norm(q), attention.k_norm(k)  # [S, L, d]
            if self._rope is not None:
                q, k = apply_rope(q, self._rope), apply_rope(k, self._rope)
            self._kept.append((q, k))

        return keep

    def take(self) -> list[Tensor]:
        """Returns logits [S, L, L] float32 of each module in order of execution; clears them."""
        kept, self._kept = self._kept, []
        return [q.float() @ k.float().mT / math.sqrt(q.shape[-1]) for q, k in kept]


class TrainingNetwork(nn.Module):
    """A network with linear probes on its global taps and a recorder of its global attention."""

    def __init__(self, network: DepthAnything3, head: int = SUPERVISED_HEAD) -> None:
        super().__init__()
        self.network = network
        vit, spec = network.backbone.pretrained, network.spec
        self.global_taps = [k for k, block in enumerate(spec.taps) if vit.is_global(block)]
        self.probes = nn.ModuleList(
            nn.Linear(2 * spec.width, PROBE_CHANNELS) for _ in self.global_taps
        )
        blocks = [b.attn for i, b in enumerate(vit.blocks) if vit.is_global(i)]
        self.recorder = AttentionRecorder(blocks, head)
        scratch = network.head.scratch
        for last in (scratch.output_conv2[2], scratch.output_conv2_aux[3].get_submodule("5")):
            in_float32(last)

    def forward(
        self,
        images: Tensor,
        extrinsics: Tensor | None = None,
        intrinsics: Tensor | None = None,
        *,
        dense: bool = True,
        rays: bool = False,
    ) -> TrainingOutput:
        """Runs ``DepthAnything3.forward`` with ``ref_view="first"``; returns what losses need.

        images [B, N, 3, H, W]; extrinsics [B, N, 4, 4], window to camera, and intrinsics [B, N, 3,
        3] condition the network if both are given. dense: run the DPT head; rays: also its second
        branch.
        """
        (B, N), size = images.shape[:2], (images.shape[-2], images.shape[-1])
        vit, grid = self.network.backbone.pretrained, (size[0] // PATCH, size[1] // PATCH)
        tokens = None
        if extrinsics is not None and intrinsics is not None:
            with torch.autocast(images.device.type, enabled=False):
                tokens = self.network.cam_enc(extrinsics, intrinsics, size)
        prefix, descriptor = (x.unflatten(0, (B, N)) for x in vit.prefix(images.flatten(0, 1)))
        self.recorder.active = self.training
        taps = vit.fuse(prefix, descriptor, grid, ref_view="first", camera_tokens=tokens)
        self.recorder.active = False
        attention = [_patches_only(a, N) for a in self.recorder.take()]
        probed = zip(self.probes, self.global_taps, strict=True)
        probes = [probe(taps.patches[k]).float() for probe, k in probed]
        maps = None
        if dense:
            frames = [t.flatten(0, 1) for t in taps.patches]
            out = self.network.head(frames, size, rays=rays, chunk=B * N)
            maps = Dense(*(None if m is None else m.unflatten(0, (B, N)) for m in out))
        return TrainingOutput(self._cameras(taps.camera), probes, attention, maps)

    def _cameras(self, slot: Tensor) -> Cameras:
        decoder = self.network.cam_dec
        with torch.autocast(slot.device.type, enabled=False):
            x = decoder.backbone(slot.float())
            return Cameras(decoder.fc_t(x), decoder.fc_qvec(x), decoder.fc_fov(x))

    @torch.no_grad()
    def predict(self, images: Tensor, *poses: Tensor, rays: bool = False) -> Output:
        """Runs the inner network's forward pass."""
        out: Output = self.network(images, *poses, ref_view="first", rays=rays)
        return out


def _patches_only(logits: Tensor, N: int) -> Tensor:
    """Removes the class tokens of N frames from logits [B, N T, N T]."""
    T = logits.shape[-1] // N
    return (
        logits.unflatten(-1, (N, T))[..., 1:]
        .flatten(-2)
        .unflatten(1, (N, T))[:, :, 1:]
        .flatten(1, 2)
    )


def in_float32(module: nn.Module) -> None:
    """Makes a module run without autocast, on float32 inputs."""
    regions: list[torch.autocast] = []

    def enter(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        region = torch.autocast(args[0].device.type, enabled=False)
        region.__enter__()
        regions.append(region)
        return tuple(a.float() for a in args)

    def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        regions.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


# Initial weights --------------------------------------------------------------------------------


@torch.no_grad()
def initialize(network: DepthAnything3, images: Tensor) -> None:
    """Initialises the weights from torch's global random generator.

    images [F, 3, H, W] determine the amplitude of the position table.
    """
    vit = network.backbone.pretrained
    for block in [*vit.blocks, *network.cam_enc.trunk]:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
    for token in (vit.cls_token, vit.camera_token):
        nn.init.trunc_normal_(token, std=0.02)
    amplitude = vit.patch_embed(images).std()
    vit.pos_embed.copy_(position_table(vit, float(amplitude)))
    vit.pos_embed.requires_grad_(False)
    decoder = network.cam_dec
    for layer, bias in (
        (decoder.fc_t, (0.0, 0.0, 0.0)),
        (decoder.fc_qvec, (0.0, 0.0, 0.0, 1.0)),
        (decoder.fc_fov[0], (FOV_BIAS, FOV_BIAS)),
    ):
        layer.weight.mul_(0.1)
        layer.bias.copy_(torch.tensor(bias))


def position_table(vit: VisionTransformer, amplitude: float) -> Tensor:
    """Returns a smooth sine-cosine table [1, 1 + 37 x 37, D] of root mean square ``amplitude``.

    Half of the channels encode the row, half the column, at a quarter to two and a half periods
    per image. The table is resized without antialiasing, and even at 7 patches per side each wave
    is sampled more than twice per period.
    """
    waves = vit.spec.width // 4
    period = 2 * math.pi * torch.logspace(math.log10(0.25), math.log10(2.5), waves)
    position = (torch.arange(POS_GRID) + 0.5) / POS_GRID - 0.5
    angle = position[:, None] * period
    line = torch.cat((angle.sin(), angle.cos()), dim=1)  # [37, D / 2]
    rows = line[:, None].expand(-1, POS_GRID, -1)
    columns = line[None].expand(POS_GRID, -1, -1)
    table = F.pad(torch.cat((rows, columns), dim=-1).flatten(0, 1), (0, 0, 1, 0))
    return amplitude * math.sqrt(2) * table[None]
