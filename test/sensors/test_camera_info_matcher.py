"""The camera_info rule: wait, pair, take over what comes later, and say so."""

from dataclasses import replace

import numpy as np
import pytest

from da3_ros.sensors.camera_info_matcher import CameraInfoMatcher
from da3_ros.types import Calibration

S = 1_000_000_000
INFO = Calibration(640, 480, np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]]))


@pytest.fixture
def keeper():
    return CameraInfoMatcher("/camera/camera_info", timeout_s=2.0, max_waiting=4)


def feed(keeper, name, now_s, frame_id="cam", width=640, height=480):
    keeper.add_image(name, frame_id, width, height, int(now_s * S))
    return keeper.ready(int(now_s * S))


def test_images_wait_in_order_until_the_info_comes(keeper):
    assert feed(keeper, "a", 0) == []
    assert feed(keeper, "b", 1) == []
    assert keeper.waiting == 2
    keeper.add_info(INFO, "cam")
    assert keeper.ready(1 * S) == [("a", INFO), ("b", INFO)]
    assert feed(keeper, "c", 9) == [("c", INFO)]
    assert keeper.notices() == []


def test_a_late_info_is_taken_over_with_one_line(keeper):
    feed(keeper, "a", 0)
    assert feed(keeper, "b", 2) == [("a", None), ("b", None)]
    (notice,) = keeper.notices()
    assert "/camera/camera_info" in notice
    assert "none was received" in notice
    keeper.add_info(INFO, "cam")
    keeper.add_info(INFO, "cam")
    assert feed(keeper, "c", 3) == [("c", INFO)]
    (notice,) = keeper.notices()
    assert "arrived late" in notice
    keeper.reset()
    assert feed(keeper, "d", 4) == [("d", INFO)]
    assert keeper.notices() == []


def test_a_change_in_mid_stream_holds_for_later_images(keeper):
    keeper.add_info(INFO, "cam")
    feed(keeper, "a", 0)
    keeper.add_info(replace(INFO, K=INFO.K.copy()), "cam")
    keeper.add_info(replace(INFO, K=INFO.K * (1 + 1e-6 * (INFO.K != 1))), "cam")
    assert keeper.notices() == []
    assert feed(keeper, "same", 0.5) == [("same", INFO)]
    other = replace(INFO, K=INFO.K * [[1.1], [1.1], [1]])
    keeper.add_info(other, "cam")
    keeper.add_info(other, "cam")
    assert feed(keeper, "b", 1) == [("b", other)]
    (notice,) = keeper.notices()
    assert "has changed (fx 500 to 550; change 1)" in notice


def test_a_lens_that_zooms_all_the_time_fills_no_log(keeper):
    keeper.add_info(INFO, "cam")
    feed(keeper, "a", 0)
    said = []
    for n in range(1, 101):
        zoomed = replace(INFO, K=INFO.K * np.array([[1 + n / 100], [1 + n / 100], [1]]) - 0)
        zoomed.K[:2, 2] = INFO.K[:2, 2]
        keeper.add_info(zoomed, "cam")
        assert feed(keeper, n, n / 30) == [(n, zoomed)]
        said += keeper.notices()
    assert len(said) == 7  # 1, 2, 4 ... 64


def test_an_unusable_info_in_mid_stream_changes_nothing(keeper):
    keeper.add_info(INFO, "cam")
    feed(keeper, "a", 0)
    for bad in (np.zeros((3, 3)), np.full((3, 3), np.nan), np.zeros((3, 3))):
        keeper.add_info(replace(INFO, K=bad), "cam")
    keeper.add_info(replace(INFO, width=320, height=240), "cam")
    assert feed(keeper, "b", 1) == [("b", INFO)]
    assert len(keeper.notices()) == 3  # each fault once


@pytest.mark.parametrize(
    ("width", "frame_id", "words"), [(320, "cam", "is for 320x480"), (640, "lens", "'lens'")]
)
def test_info_of_another_size_or_frame_is_not_used(keeper, width, frame_id, words):
    K = np.diag([width / INFO.width, 1, 1]) @ INFO.K
    keeper.add_info(replace(INFO, width=width, K=K), frame_id)
    assert feed(keeper, "a", 0) == []
    assert feed(keeper, "b", 5) == [("a", None), ("b", None)]
    (notice,) = keeper.notices()
    assert words in notice
    assert "\n" not in notice


def test_newest_valid_info_wins(keeper):
    feed(keeper, "a", 0)
    keeper.add_info(replace(INFO, width=100), "cam")
    assert keeper.ready(1) == []
    keeper.add_info(INFO, "cam")
    assert keeper.ready(1) == [("a", INFO)]


def test_binning_and_roi_decide_the_size(keeper):
    binned = replace(INFO, binning_x=2, binning_y=2, roi_width=400, roi_height=200)
    keeper.add_info(binned, "cam")
    assert feed(keeper, "a", 0, width=200, height=100) == [("a", binned)]


@pytest.mark.parametrize("K", [np.zeros((3, 3)), np.full((3, 3), np.nan)])
def test_useless_intrinsics_get_one_notice_naming_the_topic(keeper, K):
    for _ in range(3):
        keeper.add_info(replace(INFO, K=K), "cam")
    (notice,) = keeper.notices()
    assert notice.startswith("/camera/camera_info: ")
    assert feed(keeper, "a", 0) == []
    keeper.add_info(INFO, "cam")
    assert keeper.ready(0) == [("a", INFO)]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (replace(INFO, K=INFO.K / [[640], [480], [1]]), "if K is normalised"),
        (replace(INFO, K=INFO.K * [[2], [2], [1]]), "K is for another resolution"),
        (replace(INFO, D=np.array([0, 0, 0, 0, 900.0])), "stretches a part of the image"),
    ],
)
def test_what_is_no_cameras_calibration_is_left_out_and_named(keeper, info, words):
    keeper.add_info(info, "cam")
    feed(keeper, "a", 0)
    assert feed(keeper, "b", 5) == [("a", None), ("b", None)]
    fault, without = keeper.notices()
    assert words in fault
    assert "using the network's own intrinsics" in without


def test_a_new_resolution_is_decided_about_anew(keeper):
    keeper.add_info(INFO, "cam")
    assert feed(keeper, "a", 0) == [("a", INFO)]
    assert feed(keeper, "b", 1, width=320) == []
    assert feed(keeper, "c", 3.5) == [("b", None), ("c", INFO)]


def test_waiting_is_bounded(keeper):
    for i in range(4):
        assert feed(keeper, i, i / 1000) == []
    assert len(feed(keeper, 4, 0.005)) == 5


def test_the_end_and_a_clock_that_jumps_back_release_images(keeper):
    feed(keeper, "a", 100)
    assert keeper.ready(1 * S) == [("a", None)]
    keeper.reset()
    feed(keeper, "b", 100)
    assert keeper.ready(100 * S, final=True) == [("b", None)]
