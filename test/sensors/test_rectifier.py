"""Rectification against distortion models written out here, and the pixel rules both ways."""

from dataclasses import replace

import numpy as np
import pytest

from da3_ros.geometry.projection import corner_K, resize_K, ros_K
from da3_ros.sensors.calibration import (
    CalibrationError,
    image_calibration,
    image_size,
    is_calibrated,
    pinhole_calibration,
)
from da3_ros.sensors.calibration_check import check_calibration
from da3_ros.sensors.distortion import distort, pixel_rays
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.types import Calibration

FULL = (640, 480)
K = np.array([[410.0, 0.0, 322.3], [0.0, 405.0, 236.8], [0.0, 0.0, 1.0]])
PLUMB_BOB = np.array([-0.28, 0.09, 0.0011, -0.0007, -0.012])
RATIONAL = np.array([0.30, -0.01, 0.0008, -0.0005, 0.002, 0.50, -0.005, 0.001])
EQUIDISTANT = np.array([-0.031, 0.012, -0.006, 0.0011])
MODELS = {
    "plumb_bob": PLUMB_BOB,
    "rational_polynomial": RATIONAL,
    "equidistant": EQUIDISTANT,
}


def rotation(axis, degrees):
    """Rodrigues' formula, written out."""
    axis = np.asarray(axis, float) / np.linalg.norm(axis)
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    a = np.radians(degrees)
    return np.eye(3) + np.sin(a) * cross + (1 - np.cos(a)) * cross @ cross


def raw_pixels(model, D, K, points):
    """Raw pixels [N, 2] (ROS rule) of camera-frame points [N, 3], from the papers' formulas."""
    x, y = points[:, 0] / points[:, 2], points[:, 1] / points[:, 2]
    if model == "equidistant":
        r = np.hypot(x, y)
        t = np.arctan(r)
        bent = t * (1 + D[0] * t**2 + D[1] * t**4 + D[2] * t**6 + D[3] * t**8)
        xd, yd = bent / r * x, bent / r * y
    else:
        k1, k2, p1, p2, k3, k4, k5, k6 = np.concatenate([D, np.zeros(8)])[:8]
        r2 = x * x + y * y
        radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
        xd = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        yd = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    return np.stack([K[0, 0] * xd + K[0, 2], K[1, 1] * yd + K[1, 2]], -1)


def scene_points(columns=5, rows=4, reach=(0.52, 0.38)):
    x, y = np.meshgrid(np.linspace(-1, 1, columns) * reach[0], np.linspace(-1, 1, rows) * reach[1])
    z = 2.0 + 0.3 * np.sin(7 * x + 3 * y)
    return np.stack([x * z, y * z, z], -1).reshape(-1, 3)


def draw_blobs(pixels, size, sigma):
    """Black image uint8 [H, W, 3] with a Gaussian blob centred on each pixel (ROS rule)."""
    u, v = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    image = np.zeros((size[1], size[0]))
    for p in pixels:
        image += 250.0 * np.exp(-((u - p[0]) ** 2 + (v - p[1]) ** 2) / (2 * sigma**2))
    return np.repeat(image.clip(0, 255).round().astype(np.uint8)[..., None], 3, -1)


def blob_at(image, expected, radius):
    """Centroid (ROS rule) of the brightness around an expected pixel."""
    c = np.round(expected).astype(int)
    part = image[c[1] - radius : c[1] + radius + 1, c[0] - radius : c[0] + radius + 1, 0] * 1.0
    u, v = np.meshgrid(np.arange(-radius, radius + 1), np.arange(-radius, radius + 1))
    return c + np.array([(part * u).sum(), (part * v).sum()]) / part.sum()


def project(M, points):
    """ROS-rule pixels [N, 2] of points under a 3x3 matrix."""
    p = points @ M.T
    return p[:, :2] / p[:, 2:]


def assert_rectified_where_P_says(c, full_points_to_image, size, sigma=2.5, radius=9):
    """Blobs drawn at the raw pixels appear where R and P put their points."""
    points = scene_points()
    raw = raw_pixels(c.distortion_model, c.D, c.K, points)
    result = Rectifier()(draw_blobs(full_points_to_image(raw), size, sigma), c, False)
    P = c.K if c.P is None else c.P[:, :3]
    expected = full_points_to_image(project(P, points @ np.asarray(c.R).T))
    inside = (expected > radius + 1).all(1) & (expected < np.array(size) - radius - 2).all(1)
    assert inside.sum() >= 6
    found = np.array([blob_at(result.image, p, radius) for p in expected[inside]])
    np.testing.assert_allclose(found, expected[inside], atol=0.12)
    # and K equals P, under the corner rule
    np.testing.assert_allclose(
        project(result.K, (points @ np.asarray(c.R).T)[inside]) - 0.5, expected[inside], atol=1e-9
    )
    return result


@pytest.mark.parametrize("model", MODELS)
def test_rectified_image_shows_points_where_P_projects_them(model):
    P = np.array([[380.0, 0, 318.0, 0], [0, 390.0, 241.5, 0], [0, 0, 1, 0]])
    c = Calibration(*FULL, K=K, distortion_model=model, D=MODELS[model], P=P)
    assert_rectified_where_P_says(c, lambda p: p, FULL)


def test_missing_P_means_K():
    c = Calibration(*FULL, K=K, D=PLUMB_BOB)
    result = assert_rectified_where_P_says(c, lambda p: p, FULL)
    np.testing.assert_array_equal(result.K, corner_K(K))
    zero = Rectifier()(result.image, replace(c, P=np.zeros((3, 4))), False)
    np.testing.assert_array_equal(zero.K, corner_K(K))


def test_four_plumb_bob_coefficients_are_five_with_a_zero():
    image = draw_blobs([(100, 90), (500, 400)], FULL, 5)
    four = Rectifier()(image, Calibration(*FULL, K=K, D=PLUMB_BOB[:4]), False)
    five = Rectifier()(image, Calibration(*FULL, K=K, D=np.append(PLUMB_BOB[:4], 0)), False)
    np.testing.assert_array_equal(four.image, five.image)


@pytest.mark.parametrize("model", MODELS)
def test_rectifying_rotation_is_applied(model):
    P = np.hstack([K, [[-40.0], [0], [0]]])
    c = Calibration(
        *FULL, K=K, distortion_model=model, D=MODELS[model], R=rotation([1, 2, 0.5], 3.0), P=P
    )
    assert_rectified_where_P_says(c, lambda p: p, FULL)


def test_rotation_without_distortion_is_applied():
    c = Calibration(
        *FULL, K=K, D=np.zeros(5), R=rotation([0, 1, 0], -4.0), P=np.eye(3, 4) @ np.eye(4)
    )
    P = np.hstack([K, np.zeros((3, 1))])
    assert_rectified_where_P_says(replace(c, P=P), lambda p: p, FULL)


@pytest.mark.parametrize("model", MODELS)
def test_roi_and_binning_are_honoured(model):
    P = np.array([[380.0, 0, 318.0, 0], [0, 390.0, 241.5, 0], [0, 0, 1, 0]])
    c = Calibration(
        *FULL, K=K, distortion_model=model, D=MODELS[model], P=P, binning_x=2, binning_y=3,
        roi_x=80, roi_y=60, roi_width=480, roi_height=360,
    )  # fmt: skip

    def to_image(full):  # centre of full pixel i lies at i + 0.5 of the sensor
        return (full - [80, 60] + 0.5) / [2, 3] - 0.5

    assert image_size(c) == (240, 120)
    assert_rectified_where_P_says(c, to_image, (240, 120), sigma=1.6, radius=6)


def test_binned_image_agrees_with_its_calibration():
    """The pixel rule is not a convention only: average real blocks and look where the blob is."""
    full = draw_blobs([(201.0, 150.0)], FULL, 8.0)
    binned = full.reshape(160, 3, 320, 2, 3).mean((1, 3))
    c = image_calibration(Calibration(*FULL, K=K, binning_x=2, binning_y=3))
    ray = np.linalg.solve(K, [201.0, 150.0, 1.0])
    expected = (c.K @ ray)[:2]
    np.testing.assert_allclose(blob_at(binned, expected, 15), expected, atol=0.02)


def test_undistorted_image_is_passed_through_untouched():
    image = draw_blobs([(50, 60)], FULL, 4)
    for D in (np.zeros(0), np.zeros(5)):
        P = np.array([[380.0, 0, 318.0, 0], [0, 390.0, 241.5, 0], [0, 0, 1, 0]])
        result = Rectifier()(image, Calibration(*FULL, K=K, D=D, P=P), False)
        assert result.image is image
        assert result.valid is None
        np.testing.assert_array_equal(result.K, corner_K(K))


def test_already_rectified_takes_P_and_ignores_D():
    image = draw_blobs([(50, 60)], FULL, 4)
    P = np.array([[380.0, 0, 318.0, -45.0], [0, 390.0, 241.5, 0], [0, 0, 1, 0]])
    c = Calibration(*FULL, K=K, D=PLUMB_BOB, R=rotation([0, 1, 0], 2.0), P=P)
    result = Rectifier()(image, c, True)
    assert result.image is image
    np.testing.assert_array_equal(result.K, corner_K(P[:, :3]))
    for no_P in (None, np.zeros((3, 4))):
        np.testing.assert_array_equal(Rectifier()(image, replace(c, P=no_P), True).K, corner_K(K))


def test_pixels_without_a_source_are_black_and_marked():
    P = np.array([[300.0, 0, 320.0, 0], [0, 300.0, 240.0, 0], [0, 0, 1, 0]])
    c = Calibration(*FULL, K=K, D=PLUMB_BOB, P=P)
    result = Rectifier()(np.full((480, 640, 3), 200, np.uint8), c, False)
    assert result.valid is not None
    assert 0.5 < result.valid.mean() < 0.999
    assert (result.image[result.valid] == 200).all()
    assert (result.image[~result.valid] == 0).all()
    u, v = np.meshgrid(np.arange(640), np.arange(480))
    rays = np.stack([(u - 320.0) / 300.0, (v - 240.0) / 300.0, np.ones_like(u)], -1)
    raw = raw_pixels("plumb_bob", PLUMB_BOB, K, rays.reshape(-1, 3)).reshape(480, 640, 2)
    inside = ((raw > -0.5) & (raw < [639.5, 479.5])).all(-1)
    assert (inside != result.valid).mean() < 1e-3


def test_no_second_copy_where_the_polynomial_folds_back():
    """No second copy of the scene where the polynomial folds back."""
    P = np.array([[90.0, 0, 320.0, 0], [0, 90.0, 240.0, 0], [0, 0, 1, 0]])
    c = Calibration(*FULL, K=K, D=np.array([-0.3, 0.0, 0, 0, 0.0]), P=P)
    valid = Rectifier()(np.full((480, 640, 3), 200, np.uint8), c, False).valid
    # r (1 - 0.3 r^2) grows up to r = 1 / sqrt(0.9) and then returns to zero
    u, v = np.meshgrid(np.arange(640), np.arange(480))
    radius = np.hypot(u - 320.0, v - 240.0) / 90.0
    assert valid[radius < 0.5].all()
    assert not valid[radius > 1.06].any()


def test_maps_are_kept_by_value_and_bounded(monkeypatch):
    from da3_ros.sensors import rectifier as module

    made = []
    original = module._maps
    monkeypatch.setattr(module, "_maps", lambda *a: made.append(1) or original(*a))
    rectify, image = Rectifier(kept=2), np.zeros((480, 640, 3), np.uint8)
    for _ in range(3):
        rectify(image, Calibration(*FULL, K=K.copy(), D=PLUMB_BOB.copy()), False)
    assert len(made) == 1
    for k in range(5):
        rectify(image, Calibration(*FULL, K=K + np.diag([k, k, 0]), D=PLUMB_BOB), False)
    assert len(rectify._recipes) == 2


def test_grey_images_are_rectified_too():
    c = Calibration(*FULL, K=K, D=PLUMB_BOB)
    colour = draw_blobs([(150, 160), (420, 300)], FULL, 5)
    grey = Rectifier()(np.ascontiguousarray(colour[..., 0]), c, False)
    np.testing.assert_array_equal(grey.image, Rectifier()(colour, c, False).image[..., 0])


# Pixel rules ------------------------------------------------------------------------------------


def test_corner_rule_is_half_a_pixel_from_the_ros_rule_and_back():
    np.testing.assert_allclose(corner_K(K) - K, [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    np.testing.assert_array_equal(ros_K(corner_K(K)), K)
    assert K[0, 2] == 322.3


def test_resizing_agrees_under_both_rules():
    to = (504, 378 + 14)
    resized = ros_K(resize_K(corner_K(K), FULL, to))
    sx, sy = to[0] / 640, to[1] / 480
    assert resized[0, 0] == pytest.approx(K[0, 0] * sx)
    assert resized[1, 1] == pytest.approx(K[1, 1] * sy)
    assert resized[0, 2] == pytest.approx((K[0, 2] + 0.5) * sx - 0.5)
    assert resized[1, 2] == pytest.approx((K[1, 2] + 0.5) * sy - 0.5)


def test_resized_image_agrees_with_its_calibration():
    """Resized image of area averages agrees with its calibration."""
    full = draw_blobs([(300.0, 200.0)], FULL, 9.0)
    small = full.reshape(120, 4, 160, 4, 3).mean((1, 3))
    resized = ros_K(resize_K(corner_K(K), FULL, (160, 120)))
    expected = (resized @ np.linalg.solve(K, [300.0, 200.0, 1.0]))[:2]
    np.testing.assert_allclose(blob_at(small, expected, 12), expected, atol=0.02)


def test_P_baseline_columns_scale_with_their_focal_row():
    P = np.array([[700.0, 0, 320.0, -84.0], [0, 710.0, 240.0, 3.0], [0, 0, 1, 0]])
    c = Calibration(*FULL, K=K, P=P, binning_x=2, roi_x=10, roi_width=600)
    image = image_calibration(c)
    np.testing.assert_allclose(image.P[:, 3], [-42.0, 3.0, 0.0])
    assert image.P[0, 2] == pytest.approx((320.0 - 10 + 0.5) / 2 - 0.5)
    assert image.P[0, 3] / image.P[0, 0] == pytest.approx(-84.0 / 700.0)  # metres do not change


def test_pinhole_calibration_describes_a_rectified_image():
    c = pinhole_calibration(corner_K(K), FULL)
    check_calibration(c, FULL)
    np.testing.assert_array_equal(c.P, np.hstack([K, np.zeros((3, 1))]))
    result = Rectifier()(np.zeros((480, 640, 3), np.uint8), c, False)
    np.testing.assert_allclose(result.K, corner_K(K))


@pytest.mark.parametrize("model", MODELS)
def test_pixel_rays_invert_the_distortion(model):
    c = Calibration(
        *FULL, K=K, distortion_model=model, D=MODELS[model], binning_x=4, binning_y=4,
        roi_x=40, roi_width=560, roi_height=480,
    )  # fmt: skip
    rays = pixel_rays(c)
    assert rays.shape == (120, 140, 2)
    points = np.concatenate([rays, np.ones((120, 140, 1))], -1).reshape(-1, 3)
    folded = image_calibration(c)
    back = raw_pixels(model, c.D, folded.K, points).reshape(120, 140, 2)
    u, v = np.meshgrid(np.arange(140), np.arange(120))
    np.testing.assert_allclose(back, np.stack([u, v], -1), atol=1e-6)
    np.testing.assert_allclose(distort(folded, rays), back, atol=1e-6)


# Errors -----------------------------------------------------------------------------------------

GOOD = Calibration(*FULL, K=K, D=PLUMB_BOB, P=np.hstack([K, np.zeros((3, 1))]))
NAN_K = K + np.array([[0, 0, np.nan], [0, 0, 0], [0, 0, 0]])
BAD = {
    "NaN": (replace(GOOD, K=NAN_K), "K has NaN or Inf"),
    "Inf in D": (replace(GOOD, D=np.array([np.inf, 0, 0, 0, 0])), "D has NaN or Inf"),
    "NaN in P": (replace(GOOD, P=np.full((3, 4), np.nan)), "P has NaN or Inf"),
    "uncalibrated": (replace(GOOD, K=np.zeros((3, 3))), "uncalibrated"),
    "negative fx": (replace(GOOD, K=K * [[-1], [1], [1]]), "must be positive"),
    "zero fy": (replace(GOOD, K=K * [[1], [0], [1]]), "fy=0"),
    "negative P": (replace(GOOD, P=-GOOD.P), "focal lengths of P"),
    "R": (replace(GOOD, R=2 * np.eye(3)), "R is not a rotation"),
    "mirror": (replace(GOOD, R=np.diag([1.0, 1.0, -1.0])), "R is not a rotation"),
    "model": (replace(GOOD, distortion_model="double_sphere"), "unknown distortion_model 'double"),
    "no model": (replace(GOOD, distortion_model=""), "unknown distortion_model ''"),
    "D count": (replace(GOOD, D=np.ones(3)), "takes 4 or 5 or no coefficients but D has 3"),
    "fisheye D": (replace(GOOD, distortion_model="equidistant"), "takes 4 or no coefficients"),
    "size": (replace(GOOD, width=1280, height=960), "1280x960 images"),
    "binning": (replace(GOOD, binning_x=2), "for 320x480 images (640x480, binning 2x1"),
    "roi": (replace(GOOD, roi_width=100, roi_height=50), "roi 100x50) but the image is 640x480"),
    "roi outside": (replace(GOOD, roi_x=600, roi_width=100, roi_height=50), "is outside"),
    "roi size": (replace(GOOD, roi_x=20), "has no size"),
    "normalised": (replace(GOOD, K=K / [[640], [480], [1]]), "if K is normalised, multiply its"),
    "normalised P": (replace(GOOD, P=GOOD.P / [[640], [480], [1]]), "if P is normalised"),
    "millimetres": (replace(GOOD, K=K / [[100], [100], [1]]), "must be in pixels"),
    "K of 1280x960": (replace(GOOD, K=K * [[2], [2], [1]]), "K is for another resolution"),
    "K of 848x480": (replace(GOOD, K=K * [[1.325], [1], [1]]), "K is for another resolution"),
    "K of 640x360": (replace(GOOD, K=K * [[1], [0.75], [1]]), "K is for another resolution"),
    "K of 320x240": (replace(GOOD, K=K / [[2], [2], [1]]), "K is for another resolution"),
    "cx outside": (
        replace(GOOD, K=K + [[0, 0, 400], [0, 0, 0], [0, 0, 0]]),
        "far from the middle",
    ),
    "cx negative": (
        replace(GOOD, K=K - [[0, 0, 400], [0, 0, 0], [0, 0, 0]]),
        "far from the middle",
    ),
    "P of 1280x960": (replace(GOOD, P=GOOD.P * [[2], [2], [1]]), "P is for another resolution"),
    "fy": (replace(GOOD, K=K * [[1], [0.1], [1]]), "no camera's pixels are so long"),
    "transposed": (replace(GOOD, K=K.T.copy()), "is it transposed?"),
    "k3": (replace(GOOD, D=np.array([0, 0, 0, 0, 900.0])), "stretches a part of the image"),
    "-k3": (replace(GOOD, D=np.array([0, 0, 0, 0, -900.0])), "turns back after 7 % of the image"),
    "overflow": (replace(GOOD, D=np.array([1e200, 0, 0, 0, 1e300])), "D is [1e+200,"),
}
# Of published data sets and cameras: size, focal length, principal point, D.
LENSES = {
    "EuRoC": (752, 480, 458.7, (367.2, 248.4), "plumb_bob", [-0.2834, 0.07396, 1.9e-4, 1.8e-5]),
    "TUM VI": (512, 512, 191.0, (254.9, 256.9), "equidistant", [0.0034, 8e-4, -0.0018, 3e-4]),
    "T265": (848, 800, 286.0, (421.0, 397.0), "equidistant", [-0.0087, 0.0447, -0.0418, 0.0076]),
    "Azure Kinect": (
        1920, 1080, 942.0, (959.0, 540.0), "rational_polynomial",
        [0.5, -2.7, 6e-4, -2e-4, 1.6, 0.38, -2.5, 1.5],
    ),
    "folds in the corners": (640, 480, 500.0, (330.0, 250.0), "plumb_bob", [-0.45, 0, 0, 0, 0]),
    # The image sees only the middle, where k3 bends nothing.
    "telephoto": (640, 480, 4000.0, (320.0, 240.0), "plumb_bob", [0, 0, 0, 0, 900.0]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_calibration_is_named_in_one_line_with_a_remedy(case):
    calibration, text = BAD[case]
    with pytest.raises(CalibrationError) as caught:
        Rectifier()(np.zeros((480, 640, 3), np.uint8), calibration, False)
    message = str(caught.value)
    assert text in message
    assert "\n" not in message
    assert (
        ";" in message or ":" in message.split("camera_info:")[-1] or "has the identity" in message
    )


@pytest.mark.parametrize("name", LENSES)
def test_calibrations_of_real_lenses_are_accepted(name):
    width, height, f, (cx, cy), model, D = LENSES[name]
    K = np.array([[f, 0, cx], [0, f, cy], [0, 0, 1]])
    c = Calibration(width, height, K, distortion_model=model, D=np.array(D, float))
    check_calibration(c, (width, height))


MODE_848 = np.array([[423.0, 0, 424], [0, 423.0, 240], [0, 0, 1]])
KITTI_360 = np.array([[552.55, 0, 682.05], [0, 552.55, 238.77], [0, 0, 1]])  # cut above
CUT = K - [[0, 0, 0], [0, 0, 100], [0, 0, 0]]  # 100 rows above


@pytest.mark.parametrize(
    ("K", "size"),
    [(MODE_848, FULL), (KITTI_360, (1408, 376)), (CUT, (640, 380))],
    ids=["K of 848x480", "KITTI-360", "cut"],
)
def test_a_principal_point_off_the_middle_in_one_direction_is_told(K, size, caplog):
    image, rectifier = np.zeros((*size[::-1], 3), np.uint8), Rectifier()
    for _ in range(3):
        assert np.allclose(rectifier(image, Calibration(*size, K), False).K, corner_K(K))
    (line,) = caplog.messages
    assert "far from the middle of images" in line
    caplog.clear()
    Rectifier()(np.zeros((480, 640, 3), np.uint8), GOOD, False)
    assert not caplog.messages


def test_a_region_of_interest_is_judged_in_the_full_image():
    corner = replace(GOOD, roi_x=400, roi_y=300, roi_width=200, roi_height=150)
    check_calibration(corner, (200, 150))


def test_empty_image_is_refused():
    with pytest.raises(CalibrationError, match="image is empty"):
        check_calibration(GOOD, (0, 480))


def test_what_drivers_commonly_leave_empty_is_accepted():
    check_calibration(replace(GOOD, D=np.zeros(0), distortion_model=""), FULL)
    check_calibration(replace(GOOD, R=np.zeros((3, 3))), FULL)
    check_calibration(replace(GOOD, P=np.zeros((3, 4))), FULL)
    check_calibration(replace(GOOD, binning_x=1, roi_width=640, roi_height=480), FULL)
    odd = replace(GOOD, width=641, binning_x=2, binning_y=2)
    check_calibration(odd, (320, 240))
    check_calibration(odd, (321, 240))
    assert is_calibrated(GOOD)
    assert not is_calibrated(replace(GOOD, K=np.zeros((3, 3))))
