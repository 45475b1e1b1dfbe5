"""Drawings of the robot in its own images: files that are refused, and sizes."""

import cv2
import numpy as np
import pytest

from da3_ros.parameter_schema import ConfigError
from da3_ros.sensors.ego_mask import EgoMask


def drawing(width=40, height=30):
    """White, with a black left half."""
    drawn = np.full((height, width), 255, np.uint8)
    drawn[:, : width // 2] = 0
    return drawn


def saved(path, pixels):
    assert cv2.imwrite(str(path), pixels)
    return str(path)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (None, "No such file or directory: give the path of an image"),
        (b"", "cannot be read as an image"),
        (b"no image at all", "cannot be read as an image"),
        (np.zeros((8, 8), np.uint8), "all of it is black"),
        (np.arange(256, dtype=np.uint8).reshape(16, 16), "not black and white"),
    ],
)
def test_a_file_that_is_no_mask_is_one_line(tmp_path, pixels, message):
    path = tmp_path / "mask.png"
    if isinstance(pixels, bytes):
        path.write_bytes(pixels)
    elif pixels is not None:
        saved(path, pixels)
    with pytest.raises(ConfigError, match=message) as caught:
        EgoMask(str(path))
    assert str(caught.value).startswith(f"mask is '{path}'")
    assert "\n" not in str(caught.value)


def test_a_folder_or_an_impossible_name_is_one_line(tmp_path):
    for path in (str(tmp_path), "a\0b", "~nobody_of_this_name/mask.png"):
        with pytest.raises(ConfigError, match=r"^mask is '.*: give the path of an image"):
            EgoMask(path)


def test_colour_alpha_and_depth_of_a_file_do_not_matter(tmp_path):
    drawn = drawing()
    kinds = (
        np.repeat(drawn[..., None], 3, axis=2),
        np.dstack([drawn, drawn, drawn, np.full_like(drawn, 9)]),
        drawn.astype(np.uint16) * 257,
    )
    for pixels in kinds:
        mask = EgoMask(saved(tmp_path / "mask.png", pixels))
        np.testing.assert_array_equal(mask.at("", (40, 30)), drawn)


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    saved(tmp_path / "mask.png", drawing())
    assert EgoMask("~/mask.png").at("", (40, 30)).shape == (30, 40)


@pytest.mark.parametrize("size", [(20, 15), (80, 60), (241, 180)])
def test_a_drawing_of_another_resolution_is_resized(tmp_path, size):
    seen = EgoMask(saved(tmp_path / "mask.png", drawing())).at("", size)
    assert seen.shape == size[::-1]
    assert set(np.unique(seen)) == {0, 255}
    assert (seen[:, : size[0] // 2 - 1] == 0).all()
    assert (seen[:, size[0] // 2 + 1 :] == 255).all()


def test_a_drawing_of_another_shape_names_both_sizes(tmp_path):
    mask = EgoMask(saved(tmp_path / "mask.png", drawing()))
    with pytest.raises(ValueError, match=r"^mask is .* of 40x30, but .* are 40x32: ") as caught:
        mask.at("", (40, 32))
    assert "\n" not in str(caught.value)


def test_each_camera_has_the_file_of_its_name(tmp_path):
    """A name with a slash is a folder and a file."""
    (tmp_path / "arm").mkdir()
    saved(tmp_path / "front.png", drawing())
    saved(tmp_path / "arm" / "left.png", 255 - drawing())
    mask = EgoMask(f"{tmp_path}/{{camera}}.png", ("front", "arm/left"))
    assert mask.at("front", (40, 30))[0, 0] == 0
    assert mask.at("arm/left", (40, 30))[0, 0] == 255
    with pytest.raises(ConfigError, match=r"right\.png"):
        EgoMask(f"{tmp_path}/{{camera}}.png", ("front", "right"))


def test_one_file_serves_all_cameras(tmp_path):
    mask = EgoMask(saved(tmp_path / "mask.png", drawing()), ("front", "left"))
    assert mask.at("front", (40, 30)) is mask.at("left", (40, 30))
