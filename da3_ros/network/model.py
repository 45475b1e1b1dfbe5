"""The any-view DA3 network: images in; depth, confidence, poses and intrinsics out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from da3_ros.network.backbone import Backbone
from da3_ros.network.camera import CameraDecoder, CameraEncoder
from da3_ros.network.head import DualDptHead
from da3_ros.network.specs import MODELS, PATCH, ModelSpec


class Output(NamedTuple):
    """What a forward pass returns, in one unknown unit and the reference camera's world."""

    depth: Tensor  # [B, N, H, W] z-depth
    confidence: Tensor  # [B, N, H, W], from 1 upwards
    extrinsics: Tensor  # [B, N, 3, 4] world-to-camera, OpenCV axes
    intrinsics: Tensor  # [B, N, 3, 3] pixels of the input, pixel i covers [i, i + 1)
    sky: Tensor | None = None
    ray: Tensor | None = None  # [B, N, 8h, 8w, 6], only with rays=True
    ray_confidence: Tensor | None = None


class DepthAnything3(nn.Module):
    """Depth Anything 3, any-view series (arXiv 2511.10647).

    Parameter names are those of the official checkpoints without the leading ``model.``.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = Backbone(spec)
        self.head = DualDptHead(spec)
        self.cam_enc = CameraEncoder(spec)
        self.cam_dec = CameraDecoder(spec)

    def forward(
        self,
        images: Tensor,
        extrinsics: Tensor | None = None,
        intrinsics: Tensor | None = None,
        ref_view: str = "saddle_balanced",
        *,
        rays: bool = False,
        head_chunk: int = 8,
    ) -> Output:
        """Run the whole network.

        images: [B, N, 3, H, W], ImageNet-normalised, H and W multiples of 14.
        extrinsics, intrinsics: known world-to-camera [B, N, 3 or 4, 4] and K [B, N, 3, 3] of every
            frame, both or none (the network has no use for intrinsics alone).
        ref_view: ``first``, ``middle``, ``saddle_balanced`` or ``saddle_sim_range``.
        rays: also return the ray maps (the second branch of the head, skipped otherwise).
        head_chunk: frames that pass the head together; memory only, no effect on values.

        Raises ValueError for a size that is no multiple of 14, or for poses without intrinsics.
        """
        size = self._check(images, extrinsics, intrinsics)
        B, N = images.shape[:2]
        camera_tokens = None
        if extrinsics is not None and intrinsics is not None:
            camera_tokens = self.cam_enc(extrinsics, intrinsics, size)
        vit = self.backbone.pretrained
        tokens, descriptor = (x.unflatten(0, (B, N)) for x in vit.prefix(images.flatten(0, 1)))
        grid = (size[0] // PATCH, size[1] // PATCH)
        taps = vit.fuse(tokens, descriptor, grid, ref_view=ref_view, camera_tokens=camera_tokens)
        frames = [t.flatten(0, 1) for t in taps.patches]
        dense = self.head(frames, size, rays=rays, chunk=head_chunk)
        w2c, K = self.cam_dec(taps.camera, size)
        depth, confidence = (m.unflatten(0, (B, N)) for m in dense[:2])
        ray, ray_confidence = (None if m is None else m.unflatten(0, (B, N)) for m in dense[2:])
        return Output(depth, confidence, w2c, K, None, ray, ray_confidence)

    @staticmethod
    def _check(images: Tensor, extrinsics: Tensor | None, K: Tensor | None) -> tuple[int, int]:
        if images.ndim != 5 or images.shape[2] != 3:
            raise ValueError(f"images must be [B, N, 3, H, W], not {list(images.shape)}")
        H, W = images.shape[-2:]
        if H % PATCH or W % PATCH or not H or not W:
            raise ValueError(f"image size {W}x{H} is not a multiple of {PATCH}")
        if (extrinsics is None) != (K is None):
            raise ValueError("known poses need both extrinsics and intrinsics of every frame")
        return H, W


def build_network(name: str) -> DepthAnything3:
    """A network of MODELS with PyTorch's initial weights, in eval mode, on the CPU.

    Raises ValueError for an unknown name.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}: one of {', '.join(MODELS)}")
    return DepthAnything3(MODELS[name]).eval()
