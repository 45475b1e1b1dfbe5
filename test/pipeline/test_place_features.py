"""Keyframes of one location are found by features of their images."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from da3_ros.mapping.loop_candidates import depths_agree
from da3_ros.mapping.map_table import OverlapView, ViewRow
from da3_ros.pipeline import place_features
from da3_ros.pipeline.place_features import KeyframePlacing, PlaceFeatures
from da3_ros.refinement.solver_limits import SolverLimits
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import View

SIZE = (224, 168)
EFFORT = SolverLimits.full(400)


def rows(seed, first, count=6):
    camera = SyntheticCamera(seed, SIZE, walk="loop", frames=60, rate_hz=5.0)
    K = camera.calibration.K.copy()
    K[:2, 2] += 0.5
    return [
        ViewRow(View(first + k, k, f.image), K, np.eye(4), *[np.zeros(0)] * 3)
        for k, (_, f) in enumerate(zip(range(count), camera, strict=False))
    ]


@pytest.fixture(scope="module")
def room():
    return rows(3, 0)


@pytest.fixture(scope="module")
def others():
    return [one for seed in (4, 5, 6) for one in rows(seed, 100 * seed, 3)]


def ids(found):
    rows = found[0] if isinstance(found, tuple) else found
    return [one.view.id for one in rows]


def test_the_same_location_is_found_and_no_other(room, others):
    places, near = PlaceFeatures(), [*others, *room[1:]]
    assert not places.matching(room[0], near)[1]  # some are left
    found = places.matching(room[0], near)
    assert found[1]
    assert set(ids(found)) <= set(ids(room[1:]))
    assert len(ids(found)) >= 3
    assert ids(found)[0] in (1, 2)  # the most certain first


def views(seed, depth_noise=0.03, count=10):
    """Keyframes of a walk as they are kept, with their true poses."""
    camera = SyntheticCamera(seed, SIZE, walk="strafe", frames=count, rate_hz=3)
    out, rng = [], np.random.default_rng(seed)
    for k, f in enumerate(camera):
        index = np.arange(0, f.depth.size, 37)
        depth = f.depth.reshape(-1)[index] * np.exp(rng.normal(0, depth_noise, len(index)))
        view = View(k, k, f.image, f.K)
        out.append(OverlapView(view, f.K, f.T_room_camera, index, depth, np.ones(len(index))))
    return out


def moved(view, metres, degrees):
    T = np.eye(4)
    T[:3, :3] = Rotation.from_euler("y", degrees, degrees=True).as_matrix()
    T[:3, 3] = metres, 0, metres
    return dataclasses.replace(view, T_local_camera=view.T_local_camera @ T)


@pytest.mark.parametrize("pixels", [800_000, 20_000])
def test_a_keyframe_is_placed_among_others_by_tracks(pixels):
    """Also where features are detected in smaller images."""
    *others, new = views(42)
    effort = dataclasses.replace(EFFORT, pixels=pixels)
    start = dataclasses.replace(moved(new, 0.1, 3.0), depth=new.depth / 1.03)
    found = KeyframePlacing().placed(start, others, effort, 0.0)
    away = np.linalg.norm(found.T_local_camera[:3, 3] - new.T_local_camera[:3, 3])
    turn = Rotation.from_matrix(new.T_local_camera[:3, :3].T @ found.T_local_camera[:3, :3])
    assert away < min(4 * found.sigma[2], 0.008)
    assert turn.magnitude() < min(4 * found.sigma[1], np.radians(0.3))
    assert 0 < found.log_scale < 0.05
    assert found.tracks >= 20


def test_what_shows_another_location_is_not_placed():
    *others, new = views(42)
    other = dataclasses.replace(views(7)[-1], T_local_camera=new.T_local_camera)
    assert KeyframePlacing().placed(other, others, EFFORT, 0.0) is None


def test_depth_tells_a_room_from_another_one_with_the_same_picture_on_its_wall():
    *others, new = views(42)
    larger = dataclasses.replace(new, depth=1.15 * new.depth)
    assert any(depths_agree(larger, other) for other in others)
    elsewhere = dataclasses.replace(views(7)[-1], T_local_camera=new.T_local_camera)
    same = np.isin(new.pixels % SIZE[0], range(60, 120)) & (new.pixels // SIZE[0] < 80)
    depth = np.where(same, new.depth, elsewhere.depth)  # a tenth of the image
    assert not any(
        depths_agree(dataclasses.replace(elsewhere, depth=depth), other) for other in others
    )
    away = dataclasses.replace(new, T_local_camera=moved(new, 0.0, 120.0).T_local_camera)
    assert not any(depths_agree(away, other) for other in others)
    none = dataclasses.replace(new, pixels=new.pixels[:0], depth=new.depth[:0])
    assert not depths_agree(none, others[0])
    assert not depths_agree(new, none)


@pytest.mark.parametrize("count", [0, 1])
def test_a_keyframe_without_depth_is_placed_by_that_of_others(count):
    *others, new = views(42)
    few = dataclasses.replace(
        new, pixels=new.pixels[:count], depth=new.depth[:count], confidence=new.confidence[:count]
    )
    found = KeyframePlacing().placed(few, others, EFFORT, 0.0)
    away = np.linalg.norm(found.T_local_camera[:3, 3] - new.T_local_camera[:3, 3])
    assert away < 0.02
    assert abs(found.log_scale) < 0.05


def test_many_are_looked_at_one_after_the_other(room, others, monkeypatch):
    monkeypatch.setattr(place_features, "MOST_NEW", 4)
    places, detected = PlaceFeatures(), []
    detector = places._detector
    places._detector = lambda *image: detected.append(1) or detector(*image)
    near = [*others, *room[1:]]
    counts = []
    for _ in range(5):
        found = places.matching(room[0], near)
        counts.append(len(detected))
    assert counts[0] == 5  # its own too
    assert counts[-1] == len(near) + 1  # each once
    monkeypatch.setattr(place_features, "MOST_NEW", 99)
    assert ids(found) == ids(PlaceFeatures().matching(room[0], near))


def test_few_are_kept(room, others, monkeypatch):
    monkeypatch.setattr(place_features, "KEPT", 3)
    places = PlaceFeatures()
    for _ in range(3):
        places.matching(room[0], [*others, *room[1:]])
    assert len(places._features) == 3


def test_another_map_may_have_the_same_ids(room, others):
    places = PlaceFeatures()
    here = room[0]
    assert ids(places.matching(here, room[1:3]))
    renamed = [
        dataclasses.replace(o, view=dataclasses.replace(o.view, id=k))
        for k, o in enumerate(others[:2], 1)
    ]
    places.on_clear()
    assert not ids(places.matching(here, renamed))


def test_what_cannot_be_read_matches_nothing(room):
    class Lost:
        def arrays(self, _):
            raise OSError("gone")

    lost = dataclasses.replace(room[1], file=Lost(), index=0)
    assert ids(PlaceFeatures().matching(room[0], [lost, room[2]])) == [2]


def test_the_robots_own_body_is_no_place(room, others):
    """It looks the same everywhere."""
    body = np.random.default_rng(0).integers(0, 256, (5, 28, 3), np.uint8)
    body = np.kron(body, np.ones((12, 8, 1), np.uint8))
    valid = np.ones(SIZE[::-1], bool)
    valid[-len(body) :] = False

    def with_body(row, mask):
        image = row.view.image.copy()
        image[-len(body) :] = body
        view = dataclasses.replace(row.view, image=image, valid=mask)
        return dataclasses.replace(row, view=view)

    masked = [with_body(o, valid) for o in (room[0], *others)]
    bare = [with_body(o, None) for o in (room[0], *others)]
    for rows, found in ((masked, False), (bare, True)):
        places = PlaceFeatures()
        assert bool(ids(places.matching(rows[0], rows[1:9]))) is found
