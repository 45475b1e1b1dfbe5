"""Images of every encoding, built by hand here, come out as the colours that went in."""

import array
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from da3_ros.messages.camera_info import calibration_from_msg
from da3_ros.messages.decode import (
    ImageError,
    decode,
    decode_compressed,
    decode_file,
    decode_image,
    image_size,
    is_depth,
    stamp_ns,
)

H, W = 12, 16


def raw(encoding, pixels, step=None, big=0, pad=0, width=W, height=H):
    rows = pixels.reshape(height, -1).view(np.uint8) if pixels.ndim > 1 else pixels
    if pad:
        rows = np.pad(rows, ((0, 0), (0, pad)), constant_values=77)
    return SimpleNamespace(
        encoding=encoding, width=width, height=height, is_bigendian=big,
        step=step or rows.shape[1], data=rows.tobytes(),
    )  # fmt: skip


def compressed(text, data):
    return SimpleNamespace(format=text, data=np.frombuffer(data, np.uint8))


@pytest.fixture
def picture():
    """Random colours, so that any swapped channel or shifted pixel shows."""
    return np.random.default_rng(1).integers(0, 256, (H, W, 3), np.uint8)


@pytest.fixture
def flat():
    """One strong colour, for encodings that mix neighbours."""
    return np.full((H, W, 3), (200, 100, 30), np.uint8)


def smooth():
    y, x = np.mgrid[0:48, 0:64]
    return np.stack([x * 4, y * 5, 255 - x * 2], -1).astype(np.uint8)


@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize(
    ("encoding", "to"),
    [
        ("rgb8", lambda p: p),
        ("bgr8", lambda p: p[..., ::-1]),
        ("8UC3", lambda p: p[..., ::-1]),
        ("rgba8", lambda p: np.dstack([p, p[..., :1]])),
        ("bgra8", lambda p: np.dstack([p[..., ::-1], p[..., :1]])),
    ],
)
def test_colour_encodings_keep_every_pixel(picture, encoding, to, pad):
    message = raw(encoding, np.ascontiguousarray(to(picture)), pad=pad)
    out = decode_image(message)
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    assert out.flags.writeable
    np.testing.assert_array_equal(out, picture)


@pytest.mark.parametrize("encoding", ["mono8", "8UC1"])
def test_grey_is_the_same_in_all_channels(picture, encoding):
    grey = np.ascontiguousarray(picture[..., 0])
    out = decode_image(raw(encoding, grey, pad=3))
    np.testing.assert_array_equal(out, np.repeat(grey[..., None], 3, -1))


@pytest.mark.parametrize("big", [0, 1])
def test_sixteen_bits_scale_by_their_full_range(big):
    values = np.linspace(0, 65535, H * W).round().astype(">u2" if big else "<u2").reshape(H, W)
    out = decode_image(raw("mono16", values, big=big, pad=1))
    assert out[0, 0, 0] == 0
    assert out[-1, -1, 0] == 255
    np.testing.assert_array_equal(out[..., 1], np.round(values.astype(float) / 257))


def test_rgb16_big_endian(picture):
    out = decode_image(raw("rgb16", (picture.astype(">u2") * 257), big=1))
    np.testing.assert_array_equal(out, picture)


def yuv(rgb):
    """BT.601 limited range, by its definition."""
    r, g, b = (rgb[..., i].astype(float) / 255 for i in range(3))
    y = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = (b - y) / 1.772, (r - y) / 1.402
    return [np.round(c).astype(np.uint8) for c in (16 + 219 * y, 128 + 224 * u, 128 + 224 * v)]


@pytest.mark.parametrize(
    ("encoding", "order"),
    [("yuv422", "UYVY"), ("uyvy", "UYVY"), ("yuv422_yuy2", "YUYV"), ("yuyv", "YUYV")],
)
def test_yuv422_orders(flat, encoding, order):
    planes = dict(zip("YUV", yuv(flat), strict=True))
    packed = np.zeros((H, W * 2), np.uint8)
    for i, name in enumerate(order):
        packed[:, i::4] = planes[name][0, 0]
    out = decode_image(raw(encoding, packed, pad=6))
    np.testing.assert_allclose(out.astype(int), flat, atol=3)


@pytest.mark.parametrize(("encoding", "first"), [("nv12", "U"), ("nv21", "V")])
def test_nv12_and_nv21_with_padded_rows(flat, encoding, first):
    y, u, v = yuv(flat)
    chroma = np.zeros((H // 2, W), np.uint8)
    chroma[:, 0::2], chroma[:, 1::2] = (u[0, 0], v[0, 0]) if first == "U" else (v[0, 0], u[0, 0])
    message = raw(encoding, np.concatenate([y, chroma]), pad=4, height=H * 3 // 2)
    message.height = H
    np.testing.assert_allclose(decode_image(message).astype(int), flat, atol=3)


def test_nv24_gives_each_pixel_its_own_colour(picture):
    y, u, v = yuv(picture)
    chroma = np.stack([u, v], -1).reshape(2 * H, W)
    message = raw("nv24", np.concatenate([y, chroma]), height=3 * H)
    message.height = H
    np.testing.assert_allclose(decode_image(message).astype(int), picture, atol=4)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer_patterns_are_named_by_their_first_two_rows(pattern, bits):
    truth = smooth()
    height, width = truth.shape[:2]
    mosaic = np.zeros((height, width), np.uint8)
    for i, letter in enumerate(pattern):
        row, column = divmod(i, 2)
        mosaic[row::2, column::2] = truth[row::2, column::2, "rgb".index(letter)]
    if bits == 16:
        mosaic = mosaic.astype("<u2") * 257
    message = raw(f"bayer_{pattern}{bits}", mosaic, width=width, height=height)
    out = decode_image(message).astype(int)
    # Red, green and blue differ by up to 255 here: swapped colours would be far off.
    assert np.abs(out - truth)[2:-2, 2:-2].max() <= 6


def test_rclpy_style_arrays_are_read(picture):
    message = raw("rgb8", picture)
    message.data = array.array("B", message.data)
    np.testing.assert_array_equal(decode(message), picture)


def test_rosbags_messages_are_read(picture):
    types = get_typestore(Stores.ROS2_JAZZY).types
    header = types["std_msgs/msg/Header"](
        stamp=types["builtin_interfaces/msg/Time"](sec=17, nanosec=999_999_999), frame_id="c"
    )
    message = types["sensor_msgs/msg/Image"](
        header=header, height=H, width=W, encoding="rgb8", is_bigendian=0, step=3 * W,
        data=picture.reshape(-1),
    )  # fmt: skip
    np.testing.assert_array_equal(decode(message), picture)
    assert stamp_ns(message.header.stamp) == 17_999_999_999


def change(**fields):
    message = raw("rgb8", np.zeros((H, W, 3), np.uint8))
    vars(message).update(fields)
    return message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (change(width=0), "empty"),
        (change(height=0, data=b""), "empty"),
        (change(data=b""), "data has 0 bytes"),
        (change(step=W), "step is 16"),
        (change(data=bytes(10)), "data has 10 bytes"),
        (change(encoding="strange"), "unknown image encoding 'strange'"),
        (change(encoding="32FC1"), "depth image"),
        (change(encoding="16UC1"), "depth image, not a camera's: choose a colour topic"),
        (change(width=100_000, height=100_000), "over the limit of 64 megapixels"),
        (change(encoding="yuv422", width=15), "even width"),
        (change(encoding="nv12", height=11), "even sides"),
        (change(encoding="nv24", step=4), "step is 4"),
        (change(encoding="nv24"), "data has 576 bytes"),
    ],
)
def test_bad_images_give_one_line(message, words):
    with pytest.raises(ImageError, match=words) as caught:
        decode_image(message)
    assert "\n" not in str(caught.value)


def encode(pixels, suffix):
    return cv2.imencode(suffix, pixels)[1].tobytes()


@pytest.mark.parametrize("text", ["jpeg", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed"])
def test_jpeg(text):
    truth = smooth()
    message = compressed(text, encode(truth[..., ::-1], ".jpg"))
    assert image_size(message) == (64, 48)
    np.testing.assert_allclose(decode(message).astype(int), truth, atol=14)


@pytest.mark.parametrize("text", ["png", "bgr8; png compressed bgr8"])
def test_png(picture, text):
    message = compressed(text, encode(picture[..., ::-1], ".png"))
    assert image_size(message) == (W, H)
    np.testing.assert_array_equal(decode(message), picture)


def test_png_compressed_as_rgb_has_red_and_blue_swapped_back(picture):
    message = compressed("rgb8; png compressed rgb8", encode(picture, ".png"))
    np.testing.assert_array_equal(decode_compressed(message), picture)


def test_sixteen_bit_and_grey_and_transparent_png(picture):
    deep = compressed("bgr16; png compressed bgr16", encode(
        picture[..., ::-1].astype(np.uint16) * 257, ".png"
    ))  # fmt: skip
    np.testing.assert_array_equal(decode(deep), picture)
    grey = compressed("mono16; png compressed ", encode(
        picture[..., 0].astype(np.uint16) * 257, ".png"
    ))  # fmt: skip
    np.testing.assert_array_equal(decode(grey)[..., 2], picture[..., 0])
    clear = compressed("png", encode(np.dstack([picture[..., ::-1], picture[..., 0]]), ".png"))
    np.testing.assert_array_equal(decode(clear), picture)


def test_compressed_mosaic_of_a_bayer_camera_is_interpolated():
    truth = smooth()
    mosaic = truth[..., 1].copy()
    mosaic[0::2, 0::2], mosaic[1::2, 1::2] = truth[0::2, 0::2, 0], truth[1::2, 1::2, 2]
    out = decode(compressed("bayer_rggb8; png compressed ", encode(mosaic, ".png")))
    assert np.abs(out.astype(int) - truth)[2:-2, 2:-2].max() <= 6


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated_files_are_rejected_not_half_grey(suffix, share):
    data = encode(np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8), suffix)
    with pytest.raises(ImageError) as caught:
        decode(compressed(suffix[1:], data[: int(len(data) * share)]))
    assert "\n" not in str(caught.value)


def test_thumbnail_does_not_hide_a_missing_end():
    data = encode(smooth(), ".jpg")
    thumbnail = encode(smooth()[:8, :8], ".jpg")
    app1 = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = data[:2] + app1 + data[2:]
    assert decode(compressed("jpeg", whole)).shape == (48, 64, 3)
    with pytest.raises(ImageError, match="cut off"):
        decode(compressed("jpeg", whole[:-40]))


def test_header_claiming_gigapixels_is_rejected_undecoded(picture):
    data = bytearray(encode(picture, ".png"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(ImageError, match="over the limit"):
        decode(compressed("png", bytes(data)))


@pytest.mark.parametrize(
    ("text", "data", "words"),
    [
        ("16UC1; compressedDepth png", b"x" * 40, "depth image"),
        ("16UC1; png compressed ", b"x" * 40, "depth image"),
        ("jpeg", b"", "empty"),
        ("jpeg", b"hello, this is no image", "neither a JPEG nor a PNG"),
        ("png", b"\x89PNG\r\n\x1a\n", "neither a JPEG nor a PNG"),
    ],
)
def test_bad_compressed_images_give_one_line(text, data, words):
    with pytest.raises(ImageError, match=words):
        decode(compressed(text, data))


def test_image_files_of_other_kinds(picture):
    np.testing.assert_array_equal(decode_file(encode(picture[..., ::-1], ".bmp")), picture)
    with pytest.raises(ImageError):
        decode_file(b"nothing")


def test_depth_and_camera_topics_are_distinguished():
    assert is_depth(change(encoding="16UC1"))
    assert is_depth(compressed("32FC1; compressedDepth rvl", b"x"))
    assert not is_depth(change(encoding="mono16"))
    assert not is_depth(compressed("jpeg", b"x"))


def test_calibration_equals_the_message():
    roi = SimpleNamespace(x_offset=2, y_offset=4, width=60, height=40, do_rectify=True)
    message = SimpleNamespace(
        width=64, height=48, distortion_model="plumb_bob", d=[0.1, 0, 0, 0, 0],
        k=[50.0, 0, 32, 0, 51, 24, 0, 0, 1], r=np.eye(3).reshape(9), p=np.zeros(12),
        binning_x=2, binning_y=1, roi=roi,
    )  # fmt: skip
    c = calibration_from_msg(message)
    assert (c.K[0, 0], c.K[1, 1], c.K[0, 2], c.D[0]) == (50, 51, 32, 0.1)
    assert c.P is None
    assert (c.width, c.binning_x, c.roi_x, c.roi_height, c.roi_do_rectify) == (64, 2, 2, 40, True)
