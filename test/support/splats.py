"""Gaussians on exact surfaces, and a renderer of Gaussians: EWA splatting, sorted, on the CPU.

Written from the formulas of arXiv 2308.04079 and of KHR_gaussian_splatting, with harmonics of
its own, so that it judges what da3_ros writes.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.splats.relative import CHANNELS, COUNT
from da3_ros.synthetic.truth import TruthSession

LOW_PASS = 0.3  # px^2, added to each projected covariance, as in the original renderer
CUT = 3.0  # standard deviations


@dataclass
class Splats:
    """Gaussians of one file: all float64."""

    means: np.ndarray  # [N, 3]
    scales: np.ndarray  # [N, 3]
    wxyz: np.ndarray  # [N, 4]
    opacities: np.ndarray  # [N]
    sh: np.ndarray  # [N, 3, 1 or 9]


def exact_values(depth, image, K, size_px=0.5, opacity=0.99):
    """Relative Gaussians [38, h, w] that lie on the depth [h, w] and have the image's colours."""
    h, w = depth.shape
    x, y = np.meshgrid(np.arange(w) + 0.5, np.arange(h) + 0.5)
    ray = np.hypot((x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1])
    values = np.zeros((COUNT, h, w), np.float32)
    values[CHANNELS["stretch"]] = np.hypot(ray, 1) - 1  # depth counts along the ray
    values[CHANNELS["scale"]] = size_px / 2  # of 1 / fx + 1 / fy, which are equal
    values[CHANNELS["rotation"].start] = 1
    values[CHANNELS["opacity"]] = opacity
    for colour in range(3):
        values[CHANNELS["sh"].start + 9 * colour] = (image[..., colour] / 255 - 0.5) / 0.28209479
    return values.astype(np.float16)


def harmonics(d):
    """Real spherical harmonics of unit vectors [N, 3], degree 0 to 2."""
    x, y, z = d.T
    return np.stack(
        (
            0.28209479 + 0 * x, -0.48860251 * y, 0.48860251 * z, -0.48860251 * x,
            1.09254843 * x * y, -1.09254843 * y * z, 0.31539157 * (3 * z * z - 1),
            -1.09254843 * x * z, 0.54627422 * (x * x - y * y),
        ),
        axis=1,
    )  # fmt: skip


def render(splats, T_map_camera, K, size):
    """Returns the picture [h, w, 3] of 0..1 and the opacity [h, w]; size: (width, height)."""
    w, h = size
    R, centre = T_map_camera[:3, :3], T_map_camera[:3, 3]
    away = splats.means - centre
    local = away @ R
    away = away / np.linalg.norm(away, axis=1, keepdims=True)
    basis = harmonics(away)[:, : splats.sh.shape[2]]
    colours = np.clip(0.5 + np.einsum("nci,ni->nc", splats.sh, basis), 0, None)
    order = np.argsort(np.linalg.norm(local, axis=1), kind="stable")
    order = order[local[order, 2] > 0.05]
    x, y, z = local[order].T
    fx, fy = K[0, 0], K[1, 1]
    u, v = fx * x / z + K[0, 2], fy * y / z + K[1, 2]
    J = np.zeros((len(order), 2, 3))
    J[:, 0, 0], J[:, 0, 2] = fx / z, -fx * x / z**2
    J[:, 1, 1], J[:, 1, 2] = fy / z, -fy * y / z**2
    axes = Rotation.from_quat(splats.wxyz[order][:, [1, 2, 3, 0]]).as_matrix()
    M = J @ R.T @ axes * splats.scales[order][:, None]
    cov = M @ M.transpose(0, 2, 1) + LOW_PASS * np.eye(2)
    inverse = np.linalg.inv(cov)
    reach = np.ceil(CUT * np.sqrt(np.stack((cov[:, 0, 0], cov[:, 1, 1]), axis=1))).astype(int)
    picture, left = np.zeros((h, w, 3)), np.ones((h, w))
    for n, index in enumerate(order):
        x0, x1 = int(max(u[n] - reach[n, 0], 0)), int(min(u[n] + reach[n, 0] + 1, w))
        y0, y1 = int(max(v[n] - reach[n, 1], 0)), int(min(v[n] + reach[n, 1] + 1, h))
        if x0 >= x1 or y0 >= y1:
            continue
        dx = np.arange(x0, x1) + 0.5 - u[n]
        dy = (np.arange(y0, y1) + 0.5 - v[n])[:, None]
        (a, b), (_, c) = inverse[n]
        power = a * dx * dx + 2 * b * dx * dy + c * dy * dy
        alpha = np.where(power < CUT**2, splats.opacities[index] * np.exp(-power / 2), 0)
        alpha = np.minimum(alpha, 0.99)
        some = left[y0:y1, x0:x1]
        picture[y0:y1, x0:x1] += (some * alpha)[..., None] * colours[index]
        left[y0:y1, x0:x1] = some * (1 - alpha)
    return picture, 1 - left


def psnr(picture, image, where=None):
    """Peak signal to noise ratio, dB, of a picture 0..1 against an image 0..255."""
    error = (np.clip(picture, 0, 1) - image / 255) ** 2
    return -10 * np.log10(error[where].mean() if where is not None else error.mean())


def read_ply(path):
    """Reads a splat PLY with plyfile."""
    import plyfile

    vertex = plyfile.PlyData.read(path)["vertex"]

    def columns(*names):
        return np.stack([np.asarray(vertex[n], float) for n in names], axis=1)

    more = sum(p.name.startswith("f_rest_") for p in vertex.properties)
    dc = columns("f_dc_0", "f_dc_1", "f_dc_2")[:, :, None]
    rest = (
        [columns(*(f"f_rest_{i}" for i in range(more))).reshape(-1, 3, more // 3)] if more else []
    )
    return Splats(
        columns("x", "y", "z"), np.exp(columns("scale_0", "scale_1", "scale_2")),
        columns("rot_0", "rot_1", "rot_2", "rot_3"),
        1 / (1 + np.exp(-columns("opacity")[:, 0])), np.concatenate([dc, *rest], axis=2),
    )  # fmt: skip


def read_glb(path):
    """Reads a splat GLB with pygltflib: in glTF's axes."""
    import pygltflib

    file = pygltflib.GLTF2().load(path)
    blob, primitive = file.binary_blob(), file.meshes[0].primitives[0]
    attributes = {k: v for k, v in vars(primitive.attributes).items() if v is not None}

    def values(name):
        accessor = file.accessors[attributes[name]]
        view = file.bufferViews[accessor.bufferView]
        count = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[accessor.type]
        begin = view.byteOffset + accessor.byteOffset
        strides = (view.byteStride or 4 * count, 4)
        shape = (accessor.count, count)
        return np.ndarray(shape, "<f4", blob, begin, strides).astype(float)

    own = "KHR_gaussian_splatting:"
    sh = [values(n) for n in sorted(attributes) if n.startswith(f"{own}SH_DEGREE")]
    xyzw = values(f"{own}ROTATION")
    splats = Splats(
        values("POSITION"), values(f"{own}SCALE"), xyzw[:, [3, 0, 1, 2]],
        values(f"{own}OPACITY")[:, 0], np.stack(sh, axis=2),
    )  # fmt: skip
    return splats, values("COLOR_0"), file


class SplatTruth(TruthSession):
    """The truth of each window, in a unit and a frame of its own, with exact Gaussians."""

    def infer(self, window):
        prediction = super().infer(window)
        new = [
            self._frames["", v.stamp_ns] for v in window.views[len(window.views) - window.new :]
        ]
        if not new:  # a loop's window
            return prediction
        values = [exact_values(f.depth, f.image, f.K) for f in new]
        return dataclasses.replace(prediction, splats=np.stack(values))
