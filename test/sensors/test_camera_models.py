"""A camera model from outside: one class in one table, and images of its lens are rectified."""

from dataclasses import replace

import numpy as np
import pytest
from support.toys import FieldOfView

from da3_ros.messages.build import RosbagsLibrary, calibration_message
from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.sensors.calibration import CalibrationError
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher
from da3_ros.sensors.camera_models import CAMERA_MODELS, CameraModel
from da3_ros.sensors.distortion import pixel_rays
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.synthetic.camera import SyntheticCamera

SIZE = (320, 240)
STILL = {"size": SIZE, "walk": "still", "frames": 1}


@pytest.fixture
def bent(monkeypatch):
    """A still view through the lens of the toy."""
    monkeypatch.setitem(CAMERA_MODELS, "fov", FieldOfView())
    return SyntheticCamera(9, distortion_model="fov", D=[0.9], **STILL)


def paired(image, calibration):
    """An image with the calibration that a camera_info message gives, and what is logged."""
    message = calibration_message(RosbagsLibrary(), 0, "cam", calibration)
    matcher = CameraInfoMatcher("/camera/camera_info")
    matcher.add_info(calibration_from_msg(message), "cam")
    matcher.add_image(image, "cam", *SIZE, 0)
    ((image, calibration),) = matcher.ready(0, final=True)
    return image, calibration, matcher.notices()


def test_images_of_a_toy_lens_are_rectified(bent):
    image, calibration, notices = paired(bent[0].image, bent.calibration)
    assert notices == []
    truth = SyntheticCamera(9, **STILL)[0]
    assert np.abs(image.astype(float) - truth.image).mean() > 8  # it is bent
    rectified = Rectifier()(image, calibration, False)
    np.testing.assert_allclose(rectified.K, truth.K)
    assert rectified.valid is None or rectified.valid.mean() > 0.7
    valid = slice(None) if rectified.valid is None else rectified.valid
    difference = np.abs(rectified.image.astype(float) - truth.image).mean(-1)[valid]
    assert np.median(difference) < 3.0


def test_pixels_of_a_toy_lens_have_the_rays_of_its_formula(bent):
    c = bent.calibration
    rays = pixel_rays(c)[::40, ::40].reshape(-1, 2)
    v, u = (x.ravel() for x in np.mgrid[0:240:40, 0:320:40])
    bent_radius = np.hypot((u - c.K[0, 2]) / c.K[0, 0], (v - c.K[1, 2]) / c.K[1, 1])
    expected = np.tan(bent_radius * 0.9) / (2 * np.tan(0.45))
    np.testing.assert_allclose(np.hypot(*rays.T), expected, atol=1e-8)


def test_a_camera_info_of_a_toy_lens_is_checked(bent):
    good = bent.calibration
    check_calibration(good, SIZE)
    for D, text in (([0.9, 0.1], "fov takes 1 or no coefficients"), ([2.9], "stretches a part")):
        with pytest.raises(CalibrationError, match=text):
            check_calibration(replace(good, D=np.array(D)), SIZE)
    with pytest.raises(CalibrationError, match=f"known are {', '.join(CAMERA_MODELS)}:"):
        check_calibration(replace(good, distortion_model="unified"), SIZE)


class NoCoefficients(CameraModel):
    """The radius is the angle: an equidistant lens without D."""

    def distort(self, K, D, rays):
        radius = np.hypot(*rays.T).clip(1e-9)
        return rays * (np.arctan(radius) / radius)[:, None] * np.diag(K)[:2] + K[:2, 2]


def test_a_lens_without_coefficients_distorts_and_is_rectified(monkeypatch):
    monkeypatch.setitem(CAMERA_MODELS, "angle", NoCoefficients())
    camera = SyntheticCamera(9, distortion_model="angle", **STILL)
    image, calibration, notices = paired(camera[0].image, camera.calibration)
    assert notices == []
    straight = SyntheticCamera(9, **STILL)[0].image.astype(float)
    assert np.abs(image - straight).mean() > 8  # it is bent
    shown = Rectifier()(image, calibration, False)
    valid = slice(None) if shown.valid is None else shown.valid
    assert np.median(np.abs(shown.image - straight).mean(-1)[valid]) < 3.0
    with pytest.raises(CalibrationError, match="angle takes no coefficients but D has 1"):
        check_calibration(replace(calibration, D=np.ones(1)), SIZE)


def test_without_its_row_a_lens_is_unknown(bent, monkeypatch):
    image = bent[0].image
    monkeypatch.delitem(CAMERA_MODELS, "fov")
    _, calibration, notices = paired(image, bent.calibration)
    assert calibration is None
    assert "unknown distortion_model 'fov'; known are plumb_bob" in notices[0]
    with pytest.raises(CalibrationError, match="unknown distortion_model 'fov'"):
        pixel_rays(bent.calibration)
