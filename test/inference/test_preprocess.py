"""Pre-processing equals the reference's, pixel for pixel."""

import sys
import types

import numpy as np
import pytest
import torch
from support.reference_imports import torchvision

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import fit_size, resize_for_network
from da3_ros.inference.preprocess import normalize
from da3_ros.parameter_schema import ConfigError, parameters
from da3_ros.types import LOWER_BOUND, RESIZE_METHODS, UPPER_BOUND


@pytest.fixture
def reference(monkeypatch):
    """The reference's input processor; of torchvision it wants two lines of arithmetic only."""
    pytest.importorskip("depth_anything_3", reason="the reference package is the oracle")
    pytest.importorskip("PIL", reason="the reference opens images with it")
    monkeypatch.setitem(sys.modules, "imageio", types.ModuleType("imageio"))  # not used here
    for name, module in torchvision().items():
        monkeypatch.setitem(sys.modules, name, module)
    from depth_anything_3.utils.io.input_processor import InputProcessor

    return InputProcessor()


SIZES = [(640, 480), (320, 240), (1280, 720), (848, 480), (752, 480), (1241, 376), (720, 1280)]


@pytest.mark.parametrize("method", RESIZE_METHODS)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_intrinsics_equal_the_reference(reference, size, method):
    width, height = size
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
    K = np.array([[500.0, 0, width / 2 + 3], [0, 510, height / 2 - 5], [0, 0, 1]])
    theirs, _, their_K = reference(
        [image], np.eye(4)[None], K[None].astype(np.float32), process_res=504,
        process_res_method=method, sequential=True,
    )  # fmt: skip
    ours, our_K = resize_for_network(image, K, 504, method)
    batch = normalize(torch.from_numpy(ours))[None]
    assert tuple(batch.shape[1:]) == tuple(theirs.reshape(-1, *theirs.shape[-3:]).shape[1:])
    assert (batch - theirs.reshape(-1, *theirs.shape[-3:])).abs().max() < 1e-6
    np.testing.assert_allclose(our_K, np.asarray(their_K).reshape(3, 3), rtol=1e-5)


@pytest.mark.parametrize("method", RESIZE_METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_sizes_of_any_image_equal_the_references(reference, method, seed):
    """Also where a side lies between two integers, or between two multiples of 14."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        width, height = rng.integers(60, 400, 2).tolist()
        res = int(rng.integers(28, 260))
        image = np.zeros((height, width, 3), np.uint8)
        theirs, *_ = reference(
            [image], process_res=res, process_res_method=method, sequential=True
        )
        assert fit_size(width, height, res, method)[-1] == tuple(theirs.shape[-2:][::-1])


@pytest.mark.parametrize(
    ("size", "by_longest", "by_shortest"),
    [
        ((640, 480), (504, 378), (672, 504)),
        ((1920, 1080), (504, 280), (896, 504)),
        ((848, 480), (504, 280), (896, 504)),
        ((752, 480), (504, 322), (784, 504)),
        ((1241, 376), (504, 154), (1666, 504)),
        ((720, 1280), (280, 504), (504, 896)),
    ],
)
def test_documented_sizes(size, by_longest, by_shortest):
    assert fit_size(*size, 504)[-1] == by_longest
    assert fit_size(*size, 504, UPPER_BOUND)[-1] == by_longest
    assert fit_size(*size, 504, LOWER_BOUND)[-1] == by_shortest


def test_documented_intrinsics_of_720p():
    image = np.zeros((720, 1280, 3), np.uint8)
    K = np.array([[500.0, 0, 640], [0, 510, 360], [0, 0, 1]])
    _, out = resize_for_network(image, K, 504)
    expected = [[196.875, 0, 252], [0, 198.333333, 140], [0, 0, 1]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("method", RESIZE_METHODS)
@pytest.mark.parametrize("size", [(2000, 99), (99, 2000)])
def test_a_sliver_of_an_image_is_refused(method, size):
    with pytest.raises(ValueError, match="too thin"):
        fit_size(*size, 504, method)


def test_the_thinnest_image_has_its_shortest_side_in_full():
    assert fit_size(2000, 100, 56, LOWER_BOUND)[-1] == (1120, 56)
    assert fit_size(2000, 100, 560, UPPER_BOUND)[-1] == (560, 28)


def test_the_parameter_offers_every_method_and_keeps_the_longest_side_by_default():
    (given,) = [p for p in parameters(NodeConfig()) if p.name == "process_res_method"]
    assert given.choices == RESIZE_METHODS
    assert given.value == UPPER_BOUND


@pytest.mark.parametrize("method", ["upper_bound_crop", "lower_bound_crop"])
def test_a_method_that_crops_is_refused_with_the_reason(method):
    with pytest.raises(ConfigError) as error:
        config_from_parameters({"process_res_method": method})
    for words in (*RESIZE_METHODS, "camera_info", "crop"):
        assert words in str(error.value)
    assert "\n" not in str(error.value)
