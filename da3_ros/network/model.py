"""The multi-view DA3 network: images in; depth, confidence, poses and intrinsics out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from da3_ros.network.backbone import Backbone, Prefix
from da3_ros.network.camera import CameraDecoder, CameraEncoder
from da3_ros.network.gaussian_head import GaussianHead
from da3_ros.network.head import DptPyramid, DualDptHead
from da3_ros.network.ray_pose import cameras_from_rays
from da3_ros.network.specs import PATCH, ModelSpec


class Chunks(NamedTuple):
    """Chunk sizes for inference; they affect memory and speed, and results by rounding only."""

    head_frames: int = 8  # frames at a time in the head, which has the largest maps
    local_frames: int = 0  # frames at a time in a frame-local block; 0: all
    mlp_tokens: int = 0  # tokens at a time in a feed-forward layer; 0: all


class Output(NamedTuple):
    """Output of a forward pass, in one unknown unit and the reference camera's frame."""

    depth: Tensor  # [B, N, H, W] z-depth, or [B, M, H, W] of the requested frames
    confidence: Tensor  # likewise, from 1 upwards
    extrinsics: Tensor  # [B, N, 3, 4] window-to-camera, OpenCV axes
    intrinsics: Tensor  # [B, N, 3, 3] pixels of the input, pixel i covers [i, i + 1)
    sky: Tensor | None = None
    ray: Tensor | None = None  # [B, N or M, 8h, 8w, 6], only with rays=True
    ray_confidence: Tensor | None = None
    scale: Tensor | None = None  # [B] nested: metres per unit, applied already; NaN: unknown
    metric_depth: Tensor | None = None  # nested: [B, N, H, W] metres, each frame on its own
    scale_spread: Tensor | None = None  # [B] nested: of log(scale) over the pixels, robust
    appearance: Tensor | None = None  # [B, N, D] descriptors of views, added by a session
    gaussians: Tensor | None = None  # [B, G, 38, H, W] ``splats.relative.CHANNELS``


class ChunkedNetwork(nn.Module):
    """A backbone and a head that process inputs in chunks to limit their memory."""

    backbone: Backbone
    head: DptPyramid
    chunks: Chunks

    def set_chunks(self, chunks: Chunks) -> None:
        """Set the chunk sizes."""
        self.chunks = chunks
        self.backbone.pretrained.set_chunks(chunks.local_frames, chunks.mlp_tokens)

    def forget_tables(self) -> None:
        """Drop all cached position tables; they are computed again on demand."""
        self.backbone.pretrained.forget_tables()
        for head in self.heads:
            head.forget_tables()

    @property
    def heads(self) -> list[DptPyramid]:
        """The dense heads."""
        return [self.head]


class DepthAnything3(ChunkedNetwork):
    """Depth Anything 3, any-view series (arXiv 2511.10647).

    Parameter names are those of the official checkpoints without the leading ``model.``.
    """

    head: DualDptHead
    gs_head: GaussianHead | None

    def __init__(self, spec: ModelSpec, *, gaussians: bool = False) -> None:
        """gaussians: with the Gaussian head, which only some models have."""
        super().__init__()
        self.spec = spec
        self.backbone = Backbone(spec)
        self.head = DualDptHead(spec)
        self.gs_head = GaussianHead(spec) if gaussians else None
        self.cam_enc = CameraEncoder(spec)
        self.cam_dec = CameraDecoder(spec)
        self.chunks = Chunks()

    @property
    def heads(self) -> list[DptPyramid]:
        return [self.head] if self.gs_head is None else [self.head, self.gs_head]

    def forward(
        self,
        images: Tensor,
        extrinsics: Tensor | None = None,
        intrinsics: Tensor | None = None,
        ref_view: str = "saddle_balanced",
        *,
        rays: bool = False,
        ray_pose: bool = False,
        gaussians: bool = False,
    ) -> Output:
        """Run the whole network.

        images: [B, N, 3, H, W], ImageNet-normalised, H and W multiples of 14.
        extrinsics, intrinsics: known window-to-camera [B, N, 3 or 4, 4] and K [B, N, 3, 3] of all
            frames, both or none (the network cannot use intrinsics alone).
        ref_view: ``first``, ``middle``, ``saddle_balanced`` or ``saddle_sim_range``.
        rays: also return the ray maps (the second branch of the head, skipped otherwise).
        ray_pose: poses and intrinsics from the ray maps instead of the camera decoder; NaN for
            frames to whose rays no camera fits.
        gaussians: also return a Gaussian per pixel; needs the Gaussian head.

        Raises ValueError if the size is not a multiple of 14, or for poses without intrinsics.
        """
        size = image_size(images)
        if (extrinsics is None) != (intrinsics is None):
            raise ValueError("known poses need both extrinsics and intrinsics of every frame")
        camera_tokens = None
        if extrinsics is not None and intrinsics is not None:
            camera_tokens = self.camera_tokens(extrinsics, intrinsics, size)
        prefix = self.encode(images)
        return self.decode(
            prefix, size, camera_tokens, ref_view=ref_view, rays=rays, ray_pose=ray_pose,
            images=images if gaussians else None,
        )  # fmt: skip

    def camera_tokens(
        self, extrinsics: Tensor, intrinsics: Tensor, size: tuple[int, int]
    ) -> Tensor:
        """Convert known poses and K, as in ``forward``, to tokens [B, N, D] for ``decode``."""
        tokens: Tensor = self.cam_enc(extrinsics, intrinsics, size)
        return tokens

    def encode(self, images: Tensor) -> Prefix:
        """The frame-local layers: images [B, N, 3, H, W] -> [B, N, T, D], [B, N, D].

        The result can be reused in all windows that contain a frame.
        """
        prefix = self.backbone.pretrained.prefix(images.flatten(0, 1))
        return Prefix(*(x.unflatten(0, images.shape[:2]) for x in prefix))

    def decode(
        self,
        prefix: Prefix,
        size: tuple[int, int],
        camera_tokens: Tensor | None = None,
        *,
        ref_view: str = "saddle_balanced",
        frames: Tensor | None = None,
        rays: bool = False,
        ray_pose: bool = False,
        images: Tensor | None = None,
    ) -> Output:
        """The layers with attention across frames of ``size`` (H, W), and the heads.

        frames: int64 [M], frames whose maps are wanted (default all). Poses are returned for all
            frames; with ``ray_pose``, which computes them from the maps, only for these.
        images: [B, G, 3, H, W] of the last G of these, which get Gaussians too (not with
            ``ray_pose`` and ``frames``).
        """
        vit, grid = self.backbone.pretrained, (size[0] // PATCH, size[1] // PATCH)
        splat_taps: list[Tensor] = []

        def project(k: int, patches: Tensor) -> Tensor:
            if images is not None and self.gs_head is not None:
                last = patches[:, -images.shape[1] :].flatten(0, 1)
                splat_taps.append(self.gs_head.project(k, last))
            return self.head.project(k, patches.flatten(0, 1))

        taps = vit.fuse(
            prefix.tokens, prefix.descriptor, grid, ref_view=ref_view,
            camera_tokens=camera_tokens, frames=frames, consume=project,
        )  # fmt: skip
        chunk = self.chunks.head_frames
        dense = self.head.decode(taps.patches, size, rays or ray_pose, chunk)
        shape = (len(taps.camera), -1)
        depth, confidence = (m.unflatten(0, shape) for m in dense[:2])
        maps = [None if m is None else m.unflatten(0, shape) for m in dense[2:]]
        if ray_pose and maps[0] is not None and maps[1] is not None:
            w2c, K = cameras_from_rays(maps[0], maps[1], size)
        else:
            w2c, K = self.cam_dec(taps.camera, size)
        out = Output(depth, confidence, w2c, K, None, *(maps if rays else ()))
        if images is None:
            return out
        return out._replace(gaussians=self._gaussians(splat_taps, images, out, frames))

    def _gaussians(
        self, projected: list[Tensor], images: Tensor, out: Output, frames: Tensor | None
    ) -> Tensor:
        """Relative Gaussians [B, G, 38, H, W] of the last frames, from the projected taps."""
        if self.gs_head is None:
            raise ValueError(f"{self.spec.name} was built without its Gaussian head")
        count = images.shape[1]
        w2c = out.extrinsics if frames is None else out.extrinsics.index_select(1, frames)
        found = self.gs_head.decode(
            projected, images.flatten(0, 1), out.depth[:, -count:].flatten(0, 1),
            w2c[:, -count:, :, :3].flatten(0, 1), self.chunks.head_frames,
        )  # fmt: skip
        return found.unflatten(0, images.shape[:2])


def image_size(images: Tensor) -> tuple[int, int]:
    """(H, W) of images [B, N, 3, H, W]. Raises ValueError for an invalid shape."""
    if images.ndim != 5 or images.shape[2] != 3:
        raise ValueError(f"images must be [B, N, 3, H, W], not {list(images.shape)}")
    H, W = images.shape[-2:]
    if H % PATCH or W % PATCH or not H or not W:
        raise ValueError(f"image size {W}x{H} is not a multiple of {PATCH}")
    return H, W
