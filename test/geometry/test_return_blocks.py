"""How sure returns are of where their sensor is."""

import numpy as np
import pytest

from da3_ros.geometry.return_blocks import DOUBT, SINGLE, Blocks, MountErrors, mount_errors


def blocks(count, seed):
    rng = np.random.default_rng(seed)
    return Blocks(
        0.02 * rng.standard_normal(count),
        rng.uniform(0, 2, count),
        rng.standard_normal((count, 6)),
    )


@pytest.mark.parametrize(("count", "alike"), [(24, 10), (1, 3)])
def test_images_in_a_row_err_alike(count, alike):
    """Ten of many blocks, or three of one beam, say as much as one; the blocks of an image are
    independent."""
    images = [blocks(count, seed) for seed in range(40)]
    many, one = mount_errors(images), mount_errors([Blocks.joined(images)])
    assert many.noise == one.noise == SINGLE
    ratio = np.sqrt(np.diag(many.covariance) / np.diag(one.covariance))
    np.testing.assert_allclose(ratio, np.sqrt(alike), rtol=0.1)


def test_a_mount_that_seems_wrong_leaves_a_doubt_of_all_that_is_measured():
    """Also where that error changes nothing: it may be one of the network."""
    covariance = 1e-6 * np.eye(6)
    for sigmas, doubt in ((0.0, 0.0), (2.0, DOUBT / 4), (4.0, DOUBT), (9.0, DOUBT)):
        values = np.array([sigmas * 1e-3, 0, 0, 0, 0, 0])
        assert MountErrors(values, covariance, SINGLE).effect(np.zeros(6)) == pytest.approx(doubt)
    assert pytest.approx(0.05) == DOUBT
