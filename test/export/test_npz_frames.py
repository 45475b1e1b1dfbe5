"""NPZ files of stored keyframes: the filters of depth count as in other exports."""

import numpy as np
import pytest
from support.stored_walls import BOX, IN_BOX, SIZE, WALL, write_walls

from da3_ros.cli import main
from da3_ros.keyframe_store.store import StoredScene

UNIT = 1.5


def frames_of(scene, target, *options):
    assert main(["export", str(scene), str(target), *options]) == 0
    return [dict(np.load(file)) for file in sorted(target.glob("*.npz"))]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """A box stands before the wall in the third and fourth of ten keyframes."""
    return write_walls(tmp_path_factory.mktemp("crossed"), 10, boxes=(2, 3), unit=UNIT)


def test_without_a_filter_depth_is_the_stored_one(crossed, tmp_path):
    found = frames_of(crossed, tmp_path / "x.npz")
    expected = np.full(SIZE[::-1], WALL)
    np.testing.assert_allclose(found[0]["depth"], expected, rtol=1e-3)
    expected[IN_BOX] = BOX
    np.testing.assert_allclose(found[2]["depth"], expected, rtol=1e-3)


def test_what_later_keyframes_look_through_is_unknown(crossed, tmp_path):
    gone = frames_of(crossed, tmp_path / "gone.npz", "--remove-movers", "--no-edge-filter")
    kept = frames_of(crossed, tmp_path / "kept.npz", "--no-remove-movers", "--no-edge-filter")
    for index in (2, 3):
        inside = tuple(slice(s.start + 3, s.stop - 3) for s in IN_BOX)
        np.testing.assert_allclose(kept[index]["depth"][inside], BOX, rtol=1e-3)
        assert np.isnan(gone[index]["depth"][inside]).all()
    for index in (0, 9):
        np.testing.assert_allclose(gone[index]["depth"], WALL, rtol=1e-3)


@pytest.mark.parametrize("more", [[], ["--remove-movers"]])
def test_depth_below_the_least_confidence_is_unknown(tmp_path, more):
    sure = np.tile(np.linspace(1, 3, SIZE[0]), (SIZE[1], 1))
    scene = write_walls(tmp_path / "scene", confidence=sure)
    for one in frames_of(scene, tmp_path / "x.npz", "--min-confidence", "2", *more):
        np.testing.assert_array_equal(np.isnan(one["depth"]), one["confidence"] < 2)
        assert 0.4 < np.isnan(one["depth"]).mean() < 0.6


def test_confidence_is_the_stored_one(tmp_path):
    sure = np.tile(np.linspace(1, 3, SIZE[0]), (SIZE[1], 1))
    scene = write_walls(tmp_path / "scene", 2, confidence=sure)
    with StoredScene.open(scene) as stored:
        for one, key in zip(frames_of(scene, tmp_path / "x.npz"), stored.images, strict=True):
            np.testing.assert_array_equal(one["confidence"], stored.load(key).confidence)
            np.testing.assert_allclose(one["confidence"], sure, rtol=1e-3)


def test_an_own_folder_with_a_foreign_file_is_not_replaced(crossed, tmp_path, capsys):
    target = tmp_path / "x.npz"
    frames_of(crossed, target)
    frames_of(crossed, target)
    (target / "labels.npz").write_text("mine")
    assert main(["export", str(crossed), str(target)]) == 1
    assert "other contents (labels.npz)" in capsys.readouterr().err
    assert (target / "labels.npz").read_text() == "mine"
