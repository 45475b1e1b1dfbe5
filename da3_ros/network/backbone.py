"""The DA3 backbone: a vision transformer in which odd late blocks attend across frames.

Numbers in brackets, like (5.7), refer to sections of the architecture notes from which the network
was written; the paper is Depth Anything 3, arXiv 2511.10647. Shapes use B scenes, N frames,
T = 1 + P tokens per frame (class slot first), D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from da3_ros.network.specs import PATCH, POS_GRID, ModelSpec

ROPE_BASE = 100.0
TABLE_SIZES = 8  # number of image sizes whose position tables are cached


class RopeTable(NamedTuple):
    """Cosines and sines of 2-D rotary positions, each [T, 2, 16] (row, column).

    They apply to every ``stride``-th token; the tokens between are not rotated.
    """

    cos: Tensor
    sin: Tensor
    stride: int = 1


def rope_table(positions: Tensor) -> RopeTable:
    """Table for integer (row, column) positions [T, 2] (5.7)."""
    k = torch.arange(16, dtype=torch.float32, device=positions.device)
    angles = positions.float()[:, :, None] * ROPE_BASE ** (-k / 16)  # [T, 2, 16]
    return RopeTable(angles.cos(), angles.sin())


def apply_rope(x: Tensor, table: RopeTable) -> Tensor:
    """Rotate [..., T, 64] channels: 32 by the row position, 32 by the column position.

    With a stride, ``x`` is modified in place and returned.
    """
    if table.stride == 1:
        return _rotate(x, table)
    x[..., :: table.stride, :] = _rotate(x[..., :: table.stride, :], table)
    return x


def _rotate(x: Tensor, table: RopeTable) -> Tensor:
    u, v = x.unflatten(-1, (2, 2, 16)).unbind(-2)  # each [..., T, 2, 16]
    cos, sin = table.cos, table.sin  # fp32, so the arithmetic is too, for any type of x
    return torch.stack((u * cos - v * sin, v * cos + u * sin), dim=-2).flatten(-3).to(x.dtype)


def matching(x: Tensor, layer: nn.Linear | nn.Conv2d | nn.ConvTranspose2d) -> Tensor:
    """Convert ``x`` to the type of a layer with 16-bit weights; else return it unchanged."""
    dtype = layer.weight.dtype
    return x if dtype == torch.float32 else x.to(dtype)


class HeadNorm(nn.LayerNorm):
    """LayerNorm of queries or keys of any type; statistics are computed in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Attention(nn.Module):
    """Multi-head self-attention with optional per-head q/k normalisation and rotary positions."""

    def __init__(self, width: int, heads: int, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.q_norm = HeadNorm(width // heads, eps=1e-5) if qk_norm else nn.Identity()
        self.k_norm = HeadNorm(width // heads, eps=1e-5) if qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, rope: RopeTable | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """[S, L, D] -> [S, L, D]; attention is over L. With ``rows`` as in ``Block``."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [S, L, 3, heads, d]
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [S, heads, L, d], L in strides
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = apply_rope(q, rope), apply_rope(k, rope)
        if rows is not None:
            q = q.index_select(2, rows)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int, out: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, out or width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(matching(x, self.fc1))))


class SwiGlu(nn.Module):
    """Gated feed-forward layer of the giant backbone; one matrix gives both halves."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w12 = nn.Linear(width, 2 * hidden)
        self.w3 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.w12(matching(x, self.w12)).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * value)


class LayerScale(nn.Module):
    """Per-channel gain on a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm transformer block (5.5).

    ``mlp_tokens``: chunk size of the feed-forward layer in inference, in tokens (its hidden layer
    is the widest tensor of a block); 0: all.
    """

    mlp_tokens = 0

    def __init__(
        self, width: int, heads: int, mlp: nn.Module, *, eps: float, qk_norm: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, qk_norm)
        self.ls1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = mlp
        self.ls2 = LayerScale(width)

    def forward(
        self, x: Tensor, rope: RopeTable | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """[S, L, D] -> [S, L, D]; with ``rows`` int64 [R] only these: [S, R, D]."""
        # Cast here: an argument lives until the call returns, and in fp32 it is twice as large.
        branch = self.ls1(self.attn(matching(self.norm1(x), self.attn.qkv), rope, rows))
        x = branch + (x if rows is None else x.index_select(1, rows))
        del branch
        if not self.mlp_tokens or torch.is_grad_enabled():
            return x + self.ls2(self.mlp(self.norm2(x)))
        for part in x.view(-1, x.shape[-1]).split(
            self.mlp_tokens
        ):  # in place: no other reference to this sum
            part += self.ls2(self.mlp(self.norm2(part)))
        return x


class PatchEmbed(nn.Module):
    """Embeds 14 x 14 patches as tokens of D channels, row-major."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, PATCH, PATCH)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(matching(images, self.proj)).flatten(2).transpose(1, 2)


class Prefix(NamedTuple):
    """Output of the first, frame-local blocks for each frame; independent of other frames."""

    tokens: Tensor  # [F, T, D] after block alt_start - 1
    descriptor: Tensor  # [F, D] learned class slot after block alt_start - 2


class Taps(NamedTuple):
    """The backbone's output: four taps in the caller's frame order."""

    patches: list[Tensor]  # 4 x [B, N, P, 2D], global half normalised, or the ``consume`` results
    camera: Tensor  # [B, N, 2D] raw class slot of the last tap


class VisionTransformer(nn.Module):
    """The transformer, named ``backbone.pretrained`` in checkpoints."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        D = spec.width
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D))
        if spec.multi_view:
            self.camera_token = nn.Parameter(torch.zeros(1, 2, D))  # reference, source
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + POS_GRID**2, D))
        self.patch_embed = PatchEmbed(D)
        feed_forward = SwiGlu if spec.swiglu else Mlp
        self.blocks = nn.ModuleList(
            Block(
                D, spec.heads, feed_forward(D, spec.hidden), eps=1e-6, qk_norm=i >= spec.alt_start
            )
            for i in range(spec.blocks)
        )
        self.norm = nn.LayerNorm(D, eps=1e-5)
        self.local_frames = 0  # chunk size of frame-local blocks in inference, in frames; 0: all
        self._tables: dict[tuple[int, int, torch.device], tuple[RopeTable, RopeTable]] = {}
        self._fixed_position: Tensor | None = None  # see fix_tables

    def set_chunks(self, local_frames: int, mlp_tokens: int) -> None:
        """Set chunk sizes for inference (0: all); results change by rounding only."""
        self.local_frames = local_frames
        for block in self.blocks:
            assert isinstance(block, Block)
            block.mlp_tokens = mlp_tokens

    def forget_tables(self) -> None:
        """Drop all cached rotary tables, and those of ``fix_tables``."""
        self._tables.clear()
        self._fixed_position = None

    def fix_tables(self, h: int, w: int, views: int) -> None:
        """Make all position tables constants for one grid and number of views, for an export.

        Across frames every token is then rotated, patches by nothing: results are the same, and
        the strided write, which other runtimes have only as a slow scatter, is gone.
        """
        self.forget_tables()
        device = self.pos_embed.device
        local, slots = self._rope(h, w, device)
        cos, sin = (
            torch.cat((slot, torch.full_like(slot, patch).repeat(h * w, 1, 1))).repeat(views, 1, 1)
            for slot, patch in ((slots.cos, 1.0), (slots.sin, 0.0))
        )
        self._tables[h, w, device] = (local, RopeTable(cos, sin))
        self._fixed_position = self.position_embedding(h, w).detach()  # no parameter of its own

    def is_global(self, i: int) -> bool:
        """Whether block ``i`` attends across all frames (5.10)."""
        return i >= self.spec.alt_start and i % 2 == 1

    def prefix(self, images: Tensor) -> Prefix:
        """Run the frame-local first blocks on images [F, 3, H, W] (5.2 to 5.8)."""
        x = self.embed(images)
        last = self.spec.alt_start - 1
        for block in self.blocks[:last]:
            x = self._frame_by_frame(block, x, None)
        descriptor = x[:, 0].clone()  # a view would keep x in memory, and change with it
        return Prefix(self._frame_by_frame(self.blocks[last], x, None), descriptor)

    def embed(self, images: Tensor) -> Tensor:
        """Images [F, 3, H, W] -> tokens [F, T, D] with position embeddings (5.2 to 5.4)."""
        h, w = images.shape[-2] // PATCH, images.shape[-1] // PATCH
        patches = self.patch_embed(images).to(self.cls_token.dtype)
        x = torch.cat((self.cls_token.expand(patches.shape[0], -1, -1), patches), dim=1)
        return x + self.position_embedding(h, w)

    def local_taps(self, images: Tensor, consume: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
        """Taps of a monocular network for images [F, 3, H, W], after ``consume``."""
        x = self.embed(images)
        taps: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            x = self._frame_by_frame(block, x, None)
            if i in self.spec.taps:
                taps.append(consume(len(taps), self.norm(x[:, 1:])))
        return taps

    def fuse(
        self,
        tokens: Tensor,
        descriptor: Tensor,
        grid: tuple[int, int],
        *,
        ref_view: str = "saddle_balanced",
        camera_tokens: Tensor | None = None,
        frames: Tensor | None = None,
        consume: Callable[[int, Tensor], Tensor] | None = None,
    ) -> Taps:
        """Run the remaining blocks, with attention across frames: tokens [B, N, T, D] -> taps.

        ``descriptor`` [B, N, D] selects the reference view (6). ``camera_tokens`` [B, N, D] come
        from known poses; then there is no reference view and the order is not changed.
        ``frames`` int64 [M]: frames whose patches are wanted, default all; as a tensor they are
        data and not constants of a compiled program. Camera slots are returned for all frames.
        ``consume`` reduces each tap's patches as soon as they are computed: four complete taps
        would need most memory.
        """
        given = camera_tokens is not None
        order = None if given else select_reference(descriptor, ref_view)
        slot = camera_tokens if camera_tokens is not None else self.role_tokens(*tokens.shape[:2])
        x = self._with_slots(_reorder(tokens, order), slot)
        # `consume or ...` would ask for a function's truth: torch.compile of 2.11 refuses that.
        keep = (lambda k, patches: patches) if consume is None else consume
        patches: list[Tensor] = []
        local = camera = x
        for i in range(self.spec.alt_start, self.spec.blocks):
            if frames is not None and order is None and self._is_end(i):
                x, slots = self._run_end(x, grid, frames)
                camera = torch.cat((local[:, :, 0], slots), dim=-1)
                patches.append(keep(len(patches), self._tap(_select(local, frames), x)))
                break
            x = self._run(i, x, grid)
            local = local if self.is_global(i) else x
            if i in self.spec.taps:
                ours, all_views = _restore(local, order), _restore(x, order)
                camera = torch.cat((ours[:, :, 0], all_views[:, :, 0]), dim=-1)
                tap = self._tap(_select(ours, frames), _select(all_views, frames))
                patches.append(keep(len(patches), tap))
        return Taps(patches, camera)

    def position_embedding(self, h: int, w: int) -> Tensor:
        """``pos_embed`` resized to an h x w grid, [1, 1 + h w, D] (5.4).

        Resizes by a scale factor with the 0.1 offset, not by size, as in training: PyTorch
        computes other sample positions from a size.
        """
        if self._fixed_position is not None:
            return self._fixed_position
        if h == w == POS_GRID:
            return self.pos_embed
        grid = self.pos_embed[:, 1:].float().unflatten(1, (POS_GRID, POS_GRID)).permute(0, 3, 1, 2)
        scale = ((h + 0.1) / POS_GRID, (w + 0.1) / POS_GRID)
        grid = F.interpolate(grid, scale_factor=scale, mode="bicubic", align_corners=False)
        patches = grid.flatten(2).transpose(1, 2).to(self.pos_embed.dtype)
        return torch.cat((self.pos_embed[:, :1], patches), dim=1)

    def role_tokens(self, B: int, N: int) -> Tensor:
        """Camera tokens [B, N, D] without known poses: the first frame is the reference."""
        reference, source = self.camera_token[:, :1], self.camera_token[:, 1:]
        return torch.cat((reference, source.expand(-1, N - 1, -1)), dim=1).expand(B, -1, -1)

    @staticmethod
    def _with_slots(x: Tensor, slot: Tensor) -> Tensor:
        """Replace the class slots of [B, N, T, D] by camera tokens [B, N, D] (5.9)."""
        # Not in place: CUDA graphs cannot capture functions that change their input.
        return torch.cat((slot[:, :, None].to(x.dtype), x[:, :, 1:]), dim=2)

    def _run(self, i: int, x: Tensor, grid: tuple[int, int]) -> Tensor:
        B, N, T, _ = x.shape
        local_rope, global_rope = self._rope(*grid, x.device)
        if self.is_global(i):
            return self.blocks[i](x.flatten(1, 2), global_rope).unflatten(1, (N, T))
        return self._frame_by_frame(self.blocks[i], x.flatten(0, 1), local_rope).unflatten(
            0, (B, N)
        )

    def _frame_by_frame(self, block: nn.Module, x: Tensor, rope: RopeTable | None) -> Tensor:
        """Run a frame-local block on ``x`` [F, T, D]; in chunks ``x`` is overwritten."""
        if not self.local_frames or torch.is_grad_enabled():
            return block(x, rope)
        for part in x.split(self.local_frames):
            part.copy_(block(part, rope))
        return x

    def _is_end(self, i: int) -> bool:
        """Whether block ``i`` attends across frames, and its result is the last tap only."""
        return self.is_global(i) and i == self.spec.blocks - 1 == self.spec.taps[-1]

    def _run_end(self, x: Tensor, grid: tuple[int, int], frames: Tensor) -> tuple[Tensor, Tensor]:
        """Run the last block for the tokens that are used: most of its work is for others.

        Returns the tokens of the wanted frames [B, M, T, D] and the class slots of all [B, N, D].
        """
        (N, T), M = x.shape[1:3], frames.shape[0]
        tokens = frames[:, None] * T + torch.arange(T, device=x.device)
        slots = torch.arange(N, device=x.device) * T
        rows = torch.cat((tokens.flatten(), slots))
        out = self.blocks[-1](x.flatten(1, 2), self._rope(*grid, x.device)[1], rows)
        return out[:, : M * T].unflatten(1, (M, T)), out[:, M * T :]

    def _tap(self, local: Tensor, x: Tensor) -> Tensor:
        """Patches [B, M, P, 2D] of tokens [B, M, T, D]; their global half is normalised."""
        return torch.cat((local[:, :, 1:], self.norm(x[:, :, 1:])), dim=-1)

    def _rope(self, h: int, w: int, device: torch.device) -> tuple[RopeTable, RopeTable]:
        key = (h, w, device)
        if key not in self._tables:
            if len(self._tables) >= TABLE_SIZES:
                self._tables.pop(next(iter(self._tables)))
            rows = torch.arange(1, h + 1, device=device).repeat_interleave(w)
            columns = torch.arange(1, w + 1, device=device).repeat(h)
            patches = torch.stack((rows, columns), dim=1)
            slot = torch.zeros(1, 2, dtype=patches.dtype, device=device)
            # Across frames every patch is at (1, 1) and the class slots at (0, 0). Only
            # differences matter, so patches are not rotated and the slots rotate backwards.
            back = rope_table(-torch.ones_like(slot))
            self._tables[key] = (
                rope_table(torch.cat((slot, patches))),
                RopeTable(back.cos, back.sin, stride=1 + h * w),
            )
        return self._tables[key]


class Backbone(nn.Module):
    """Holds the transformer under its name in checkpoints."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.pretrained = VisionTransformer(spec)


def _reorder(x: Tensor, order: Tensor | None) -> Tensor:
    """Reorder frames [B, N, ...] by ``order`` [B, N]."""
    if order is None:
        return x
    return x[torch.arange(len(x), device=x.device)[:, None], order]


def _select(x: Tensor, frames: Tensor | None) -> Tensor:
    """The wanted frames of [B, N, ...]; None: all."""
    return x if frames is None else x.index_select(1, frames)


def _restore(x: Tensor, order: Tensor | None) -> Tensor:
    """Undo ``_reorder``."""
    return x if order is None else _reorder(x, order.argsort(dim=1))


# Selects the reference view, whose camera defines the window's frame (architecture notes, 6).

STRATEGIES = ("first", "middle", "saddle_balanced", "saddle_sim_range")


def select_reference(descriptor: Tensor, strategy: str) -> Tensor | None:
    """Frame order [B, N] with the reference first; None: the order is unchanged.

    ``descriptor`` [B, N, D] holds the class slots. Scores are computed in fp32 for any precision
    of the model: in bf16 rounding would decide between almost identical frames.

    Raises ValueError for an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown ref_view {strategy!r}: must be one of {', '.join(STRATEGIES)}")
    B, N, _ = descriptor.shape
    if N < 3 or strategy == "first":
        return None
    if strategy == "middle":
        index = torch.full((B,), N // 2, device=descriptor.device)
    else:
        index = _saddle(descriptor.float(), strategy)
    frames = torch.arange(N, device=descriptor.device).expand(B, N)
    # A stable sort by "is not the reference" moves it to the front and keeps the others in order.
    return torch.argsort((frames != index[:, None]).int(), dim=1, stable=True)


def _saddle(c: Tensor, strategy: str) -> Tensor:
    """Index [B] of the most typical frame (balanced) or of the most distinct one (sim_range)."""
    N = c.shape[1]
    u = F.normalize(c, dim=-1)
    similarity = u @ u.transpose(1, 2)
    if strategy == "saddle_sim_range":
        off = similarity - torch.eye(N, device=c.device)
        return (off.amax(dim=2) - off.amin(dim=2)).argmax(dim=1)
    mean_similarity = (similarity.sum(dim=2) - 1) / (N - 1)
    measures = torch.stack((mean_similarity, c.norm(dim=-1), u.var(dim=-1)))  # [3, B, N]
    low, high = measures.amin(dim=2, keepdim=True), measures.amax(dim=2, keepdim=True)
    scaled = (measures - low) / (high - low + 1e-8)
    return (scaled - 0.5).abs().sum(dim=0).argmin(dim=1)
