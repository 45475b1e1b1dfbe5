"""The session: what goes in, what comes out, and which device is used."""

import numpy as np
import pytest
import torch

from da3_ros.inference import DeviceError, InferenceConfig, InferenceSession, open_device
from da3_ros.inference.session import camera_to_window
from da3_ros.network import CheckpointError, build_network, initialize_randomly, save_checkpoint
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import View, Window


def window(n, size=(42, 56), seed=0):
    rng = np.random.default_rng(seed)
    views = [View(i, i, rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for i in range(n)]
    return Window(0, tuple(views), n)


@pytest.fixture(scope="module")
def session():
    return InferenceSession(InferenceConfig(model="da3-tiny", checkpoint="random", device="cpu"))


def test_prediction_has_documented_shapes_types_conventions(session):
    prediction = session.infer(window(3))
    assert prediction.depth.shape == prediction.confidence.shape == (3, 42, 56)
    assert prediction.depth.dtype == np.float32
    assert (prediction.depth > 0).all()
    assert (prediction.confidence >= 1).all()
    R = prediction.T_window_camera[:, :3, :3]
    np.testing.assert_allclose(R @ R.transpose(0, 2, 1), np.tile(np.eye(3), (3, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(R), 1)
    np.testing.assert_allclose(prediction.K[:, :2, 2], np.tile([28, 21], (3, 1)))


def test_same_window_gives_the_same_bits(session):
    a, b = session.infer(window(3)), session.infer(window(3))
    assert a.depth.tobytes() == b.depth.tobytes()
    assert a.T_window_camera.tobytes() == b.T_window_camera.tobytes()


def test_extrinsics_are_inverted_by_the_networks_convention():
    rng = np.random.default_rng(0)
    from scipy.spatial.transform import Rotation

    R = Rotation.random(5, random_state=0).as_matrix()
    t = rng.normal(size=(5, 3))
    T = camera_to_window(np.concatenate((R, t[..., None]), axis=2))
    for i in range(5):
        point_window = rng.normal(size=3)
        point_camera = R[i] @ point_window + t[i]
        np.testing.assert_allclose(T[i, :3, :3] @ point_camera + T[i, :3, 3], point_window)


def test_a_checkpoint_folder_gives_the_saved_networks_numbers(tmp_path):
    network = build_network("da3-tiny")
    initialize_randomly(network, 5)
    save_checkpoint(network, tmp_path)
    config = InferenceConfig(
        model="da3-tiny", checkpoint=str(tmp_path), device="cpu", mixed_precision="off"
    )
    prediction = InferenceSession(config).infer(window(1))
    from da3_ros.inference.preprocess import normalize

    with torch.inference_mode():
        images = normalize(torch.from_numpy(window(1).views[0].image))[None, None]
        expected = network(images, ref_view="first").depth[0].numpy()
    np.testing.assert_allclose(prediction.depth, expected, rtol=1e-5)


def test_missing_checkpoint_names_the_remedies(tmp_path):
    config = InferenceConfig(model="da3-small", checkpoint=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="lacks"):
        InferenceSession(config)


def test_a_missing_device_is_an_error_and_no_silent_fallback():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(DeviceError, match="set `device` to auto or cpu"):
        open_device("cuda")


def test_non_commercial_weights_are_named_when_loaded(caplog, monkeypatch):
    import dataclasses

    from da3_ros.network import MODELS

    spec = dataclasses.replace(MODELS["da3-tiny"], license="CC BY-NC 4.0")
    monkeypatch.setitem(MODELS, "da3-tiny", spec)
    InferenceSession(InferenceConfig(model="da3-tiny", checkpoint="random", device="cpu"))
    assert "CC BY-NC 4.0" in caplog.text


def test_views_of_one_place_are_similar_whatever_the_window():
    """Descriptors are of each view alone, so that they can be compared across windows."""
    frames = list(SyntheticCamera(3, (126, 98), walk="handheld", frames=2))
    other = next(iter(SyntheticCamera(8, (126, 98), walk="handheld", frames=1)))
    session = InferenceSession(InferenceConfig(model="da3-tiny", checkpoint="", device="cpu"))
    views = tuple(View(i, i, f.image, f.K) for i, f in enumerate([*frames, other]))
    looks = session.infer(Window(0, views, 3)).descriptor
    alone = session.infer(Window(1, views[:2], 2)).descriptor
    np.testing.assert_allclose(looks[:2], alone, atol=1e-4)
    near, far = (np.linalg.norm(looks[0] - looks[k]) for k in (1, 2))
    assert near < 0.5 * far
