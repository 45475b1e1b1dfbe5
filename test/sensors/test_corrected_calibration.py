"""Calibrations that are brought to the lens that rectified images show."""

import dataclasses

import numpy as np
import pytest

from da3_ros.geometry.lens import KNOWN, Lens
from da3_ros.sensors import corrected_calibration as module
from da3_ros.sensors.calibration import image_calibration, rectification_rotation
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.sensors.corrected_calibration import corrected_calibration
from da3_ros.sensors.distortion import distort
from da3_ros.types import Calibration

SIZE = (640, 480)
K = np.array([[500.0, 0, 322], [0, 505, 236], [0, 0, 1]])
LENS = Lens(0.04, 0.01, -0.008, -0.06, 0.02)
TURN = np.array([[np.cos(0.02), 0, np.sin(0.02)], [0, 1, 0], [-np.sin(0.02), 0, np.cos(0.02)]])
P = np.column_stack((np.array([[480.0, 0, 318], [0, 480, 242], [0, 0, 1]]), [-48.0, 0, 0]))
FISHEYE = {"distortion_model": "equidistant", "D": np.array([0.02, -0.005, 0.001, 0.0])}
BENT = {"D": np.array([-0.28, 0.08, 0.001, -0.0005, 0.0])}
RATIONAL = {
    "distortion_model": "rational_polynomial",
    "D": np.array([0.5, -0.1, 0.0005, 0.0002, 0.01, 0.8, -0.05, 0.005]),
}


def calibration(**values):
    return Calibration(*SIZE, K, **values)


def rectified_directions():
    x, y = np.meshgrid(np.linspace(-0.5, 0.5, 15), np.linspace(-0.38, 0.38, 11))
    return np.stack((x, y), -1).reshape(-1, 2)


def raw(directions, R):
    rays = np.column_stack((directions, np.ones(len(directions)))) @ R
    return rays[:, :2] / rays[:, 2:]


def shown_by(c, directions):
    """Pixels of the raw image, of directions in the rectified camera."""
    return distort(c, raw(directions, rectification_rotation(c)))


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ({}, 1e-12), ({"P": P}, 1e-12), (BENT, 0.01), (BENT | {"R": TURN, "P": P}, 0.02),
        (FISHEYE, 0.08), (RATIONAL, 0.01), ({"R": TURN, "P": P}, 0.02),
    ],
    ids=("pinhole", "unused P", "plumb_bob", "stereo", "fisheye", "rational", "only turned"),
)  # fmt: skip
def test_raw_images_are_explained_by_the_corrected_calibration(values, most):
    c = calibration(**values)
    found = corrected_calibration(c, LENS, rectified=False)
    a = rectified_directions()
    stated, shown, found_at = shown_by(c, a), shown_by(c, LENS.seen(a)), shown_by(found, a)
    inside = ((shown >= 0) & (shown < SIZE)).all(1)
    assert inside.sum() > 50
    before, after = (np.linalg.norm((x - shown)[inside]) for x in (stated, found_at))
    assert after < most * before
    check_calibration(found, SIZE)


def test_an_image_that_was_rectified_before_is_a_raw_one_now():
    c = calibration(**BENT, R=TURN, P=P)
    found = corrected_calibration(c, LENS, rectified=True)
    a = rectified_directions()
    stated = LENS.seen(a) @ P[:2, :2].T + P[:2, 2]
    np.testing.assert_allclose(shown_by(found, a), stated, atol=1e-9)


def test_a_lens_that_is_as_stated_leaves_the_calibration():
    c = calibration(**BENT, R=TURN, P=P)
    found = corrected_calibration(c, KNOWN, rectified=False)
    np.testing.assert_allclose(found.K, c.K, rtol=1e-4)
    np.testing.assert_allclose(found.P, c.P, rtol=1e-12)


def test_the_rectified_camera_has_the_focal_length_of_the_lens():
    found = corrected_calibration(calibration(**BENT, R=TURN, P=P), LENS, rectified=False)
    np.testing.assert_allclose(found.P[:, :3], LENS.K(P[:, :3]))
    assert found.P[0, 3] == pytest.approx(np.exp(LENS.focal) * P[0, 3])  # the same baseline


def test_binning_and_region_are_those_of_the_image():
    c = dataclasses.replace(
        calibration(), binning_x=2, binning_y=2, roi_x=40, roi_y=20, roi_width=560, roi_height=400
    )
    found = corrected_calibration(c, LENS, rectified=False)
    assert (found.width, found.height, found.binning_x, found.roi_x) == (280, 200, 0, 0)
    np.testing.assert_allclose(found.K, LENS.K(image_calibration(c).K))
    check_calibration(found, (280, 200))


def test_a_lens_that_the_model_cannot_express_is_refused(monkeypatch):
    c = calibration(**BENT)
    assert corrected_calibration(c, LENS, rectified=False) is not None
    monkeypatch.setattr(module, "LEFT_OVER", 1e-12)
    assert corrected_calibration(c, LENS, rectified=False) is None
