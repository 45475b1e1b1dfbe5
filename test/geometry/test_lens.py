"""A lens beside its stated calibration: where it shows directions, and back."""

import numpy as np
import pytest

from da3_ros.geometry.lens import KNOWN, Lens

K = np.array([[260.0, 0, 163], [0, 255, 118], [0, 0, 1]])
SHAPE = (240, 320)
LENSES = [
    Lens(0.05, 0.01, -0.02, -0.1, 0.03), Lens(-0.1, k1=0.2), Lens(k1=-0.25, k2=0.08), KNOWN,
]  # fmt: skip


def directions(count=200):
    rng = np.random.default_rng(0)
    return rng.uniform([-0.6, -0.45], [0.6, 0.45], (count, 2))


def on_image(K, directions):
    return directions @ K[:2, :2].T + K[:2, 2]


@pytest.mark.parametrize("lens", LENSES)
def test_what_a_lens_shows_is_undistorted_to_where_a_pinhole_camera_sees_it(lens):
    a = directions()
    pixel = on_image(K, lens.seen(a))
    np.testing.assert_allclose(lens.undistorted(K, pixel), on_image(lens.K(K), a), atol=1e-8)


def test_a_lens_that_is_as_stated_changes_nothing():
    pixel = on_image(K, directions())
    np.testing.assert_allclose(KNOWN.undistorted(K, pixel), pixel, atol=1e-9)
    np.testing.assert_array_equal(KNOWN.K(K), K)
    assert not KNOWN.shift_px(K, SHAPE).any()


def test_the_errors_are_those_of_K_and_of_plumb_bob():
    cv2 = pytest.importorskip("cv2")
    lens = Lens(np.log(1.1), 0.02, -0.01, -0.1, 0.03)
    a = directions()
    own = lens.K(K)
    assert own[0, 0] == pytest.approx(1.1 * 260)
    assert own[1, 2] == pytest.approx(118 - 0.01 * 255)
    rays = np.column_stack((a, np.ones(len(a))))
    D = np.array([lens.k1, lens.k2, 0.0, 0.0])
    shown = cv2.projectPoints(rays, np.zeros(3), np.zeros(3), own, D)[0][:, 0]
    np.testing.assert_allclose(on_image(K, lens.seen(a)), shown, atol=1e-9)
    assert Lens.from_errors(lens.errors) == lens


def test_an_image_that_folds_back_is_of_no_lens():
    assert Lens(k1=-0.15).is_lens(K, SHAPE)
    assert not Lens(k1=-0.3).is_lens(K, SHAPE)  # its corners show nothing
    assert not Lens(k1=-0.6).is_lens(K, SHAPE)
    assert not Lens(k2=-2.0).is_lens(K, SHAPE)
    assert not Lens(focal=-1.0, k1=-0.3).is_lens(K, SHAPE)  # sees farther out


@pytest.mark.parametrize("k1", [-0.18, -0.1, 0.3])
def test_all_of_the_image_of_a_lens_shows_something(k1):
    lens = Lens(k1=k1)
    assert lens.is_lens(K, SHAPE)
    corners = np.array([[x, y] for x in (0.0, 320) for y in (0.0, 240)])
    assert np.isfinite(lens.undistorted(K, corners)).all()


def test_where_a_lens_shows_nothing_there_is_no_pixel():
    far = np.array([[5000.0, 118.0], [163.0, 118.0]])
    out = Lens(k1=-0.3).undistorted(K, far)
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out[1], far[1])
