"""Pre-processing equals the reference's, pixel for pixel."""

import sys
import types

import numpy as np
import pytest
import torch

from da3_ros.inference import fit_size, resize_for_network
from da3_ros.inference.preprocess import normalize


@pytest.fixture
def reference(monkeypatch):
    """The reference's input processor; of torchvision it wants two lines of arithmetic only."""
    pytest.importorskip("depth_anything_3", reason="the reference package is the oracle")
    pytest.importorskip("PIL", reason="the reference opens images with it")
    transforms = types.ModuleType("torchvision.transforms")

    class ToTensor:
        def __call__(self, image):
            return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255

    class Normalize:
        def __init__(self, mean, std):
            self.mean, self.std = (torch.tensor(v)[:, None, None] for v in (mean, std))

        def __call__(self, x):
            return (x - self.mean) / self.std

    transforms.ToTensor, transforms.Normalize = ToTensor, Normalize
    parent = types.ModuleType("torchvision")
    parent.transforms = transforms
    monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))  # not used here
    monkeypatch.setitem(sys.modules, "torchvision", parent)
    monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)
    from depth_anything_3.utils.io.input_processor import InputProcessor

    return InputProcessor()


SIZES = [(640, 480), (320, 240), (1280, 720), (848, 480), (752, 480), (1241, 376), (720, 1280)]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_intrinsics_equal_the_reference(reference, size):
    width, height = size
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    K = np.array([[500.0, 0, width / 2 + 3], [0, 510, height / 2 - 5], [0, 0, 1]])
    theirs, _, their_K = reference(
        [image], np.eye(4)[None], K[None].astype(np.float32), process_res=504, sequential=True
    )
    ours, our_K = resize_for_network(image, K, 504)
    batch = normalize(torch.from_numpy(ours))[None]
    assert tuple(batch.shape[1:]) == tuple(theirs.reshape(-1, *theirs.shape[-3:]).shape[1:])
    assert (batch - theirs.reshape(-1, *theirs.shape[-3:])).abs().max() < 1e-6
    np.testing.assert_allclose(our_K, np.asarray(their_K).reshape(3, 3), rtol=1e-5)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (504, 378)),
        ((1920, 1080), (504, 280)),
        ((848, 480), (504, 280)),
        ((752, 480), (504, 322)),
        ((1241, 376), (504, 154)),
        ((720, 1280), (280, 504)),
    ],
)
def test_documented_sizes(size, expected):
    assert fit_size(*size, 504)[-1] == expected


def test_documented_intrinsics_of_720p():
    image = np.zeros((720, 1280, 3), np.uint8)
    K = np.array([[500.0, 0, 640], [0, 510, 360], [0, 0, 1]])
    _, out = resize_for_network(image, K, 504)
    expected = [[196.875, 0, 252], [0, 198.333333, 140], [0, 0, 1]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_sliver_of_an_image_is_refused():
    with pytest.raises(ValueError, match="too thin"):
        fit_size(2000, 20, 504)
