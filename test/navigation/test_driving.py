"""What a robot's costmap has after a way: pipeline, messages and Nav2's rules together."""

import dataclasses

import numpy as np
import pytest
from support.cases import long_after
from support.costmap import LETHAL
from support.driving import DrivenRoom, drive, robots_frames, total
from support.pipelines import settings
from support.solids import SIZE, K, Solid, camera_at, depth_of

from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.camera import intrinsics
from da3_ros.synthetic.evaluation import resize_nearest
from da3_ros.synthetic.rooms import make_room
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Scale, TrackedFrame, WindowReport

NOISE = Noise(independent=0.02)


def driven(seed, walk, size, frames):
    """A way on exact windows with noise, in metres: the first window's unit is measured."""
    camera = SyntheticCamera(seed, size, walk=walk, frames=frames)
    truth = list(camera)
    given = list(robots_frames(camera, truth))
    values = {"process_res": size[0], "scale.source": "fixed", "hold_when_blind": False}
    first = Pipeline(settings(**values), TruthSession(truth, noise=NOISE))
    one = next(frame for frame in given for frame in first.push(frame))
    exact = next(f for f in truth if f.stamp_ns == one.stamp_ns).depth
    exact = resize_nearest(exact, one.depth_m.shape)
    factor = float(np.nanmedian(exact / one.depth_m))
    config = settings(**values, **{"scale.factor": factor})
    room = DrivenRoom(camera.room, config, float(truth[0].T_room_camera[2, 3]))
    return drive(room, Pipeline(config, TruthSession(truth, noise=NOISE)), given, truth)


def test_obstacles_are_marked_and_the_floor_is_free():
    found = driven(4, "loop", (252, 189), 8)
    assert found.seen > 40
    assert found.missed <= 0.01 * found.seen
    assert found.false <= 0.02 * found.known


@pytest.mark.long
def test_few_cells_of_many_rooms_are_wrong():
    found = total(
        driven(seed, walk, (504, 378), 15)
        for seed, walk in ((101, "loop"), (102, "straight"), (103, "spot"))
    )
    assert found.seen > 300
    assert found.missed < 0.01 * found.seen
    assert found.false < 0.02 * found.known


def frame(depth, T, number):
    stamp_ns = 1_000_000_000 + 200_000_000 * number  # 5 Hz
    report = WindowReport(number, stamp_ns, (number,), 1, True, 0.0, 1.0, 1.0)
    return TrackedFrame(
        number, stamp_ns, "camera_optical", "", np.zeros((*depth.shape, 3), np.uint8), depth,
        np.ones_like(depth), K, np.eye(4), True, Scale("fixed", 1.0, 0.0), report,
        T_level_camera=T,
    )  # fmt: skip


HIGH, LOW = camera_at(1.0, 10.0), camera_at(0.3)
GONE = long_after(1, [
    (1.5, 3.0, HIGH), (3.5, 4.3, LOW), (3.6, 50.0, LOW), (3.6, 50.0, HIGH), (3.5, 4.3, HIGH),
    (1.5, 50.0, LOW), (1.5, 50.0, HIGH), (1.5, 3.0, LOW),
])  # fmt: skip


@pytest.mark.parametrize("noise", long_after(1, [0.02, 0.0]))
@pytest.mark.parametrize(("thing_m", "wall_m", "T"), GONE)
def test_a_thing_that_is_gone_is_cleared_within_a_second(thing_m, wall_m, T, noise):
    """Also by a camera that stands, whose rays pass the same voxels each time."""
    assert_cleared(thing_m, wall_m, T, noise, K)


@pytest.mark.long
@pytest.mark.parametrize("fov_deg", long_after(1, [110.0, 100.0]))
def test_a_wide_field_of_view_clears_too(fov_deg):
    wide = intrinsics(SIZE, fov_deg)
    assert_cleared(3.5, 50.0, camera_at(1.0, 10.0), 0.02, wide)
    assert_cleared(3.5, 50.0, camera_at(0.3), 0.0, wide)


def assert_cleared(thing_m, wall_m, T, noise, K):
    """A thing marks, and does not any more a second after it is gone. K: of the camera."""
    room = DrivenRoom(make_room(1), settings(), float(T[2, 3]))
    rng = np.random.default_rng(0)
    place = room.origin + np.array([0.3, 0.05 * room.shape[0] / 2])
    T_room = T.copy()
    T_room[:2, 3] += place
    wall = Solid((wall_m, -60, 0), (wall_m + 0.2, 60, 2.5))
    thing = Solid((thing_m, -0.2, 0), (thing_m + 0.3, 0.2, 1.2))

    def marked_at_thing(first, solids):
        for number in range(first, first + 5):
            depth = depth_of(T, solids, K=K)
            depth = depth * np.exp(noise * rng.normal(size=depth.shape))
            one = dataclasses.replace(frame(depth.astype(np.float32), T, number), K=K)
            room.receive(one, T_room)
        x, y = np.meshgrid(*((np.arange(n) + 0.5) * 0.05 for n in room.shape[::-1]))
        x, y = x + room.origin[0] - place[0], y + room.origin[1] - place[1]
        near = (np.abs(x - thing_m - 0.1) < 0.4) & (np.abs(y) < 0.4) & (x < wall_m - 0.2)
        costs = room.costmap.costs[: room.shape[0], : room.shape[1]]
        return int((costs[near] == LETHAL).sum())

    assert marked_at_thing(0, [thing, wall]) > 5
    assert marked_at_thing(5, [wall]) == 0
