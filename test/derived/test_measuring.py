"""Which keyframes of a growing map are measured, and when."""

import dataclasses
import functools

import cv2
import numpy as np
import pytest

from da3_ros.derived import measuring
from da3_ros.derived.measuring import IDLE, KEPT, LAST, LATER, DepthMeasurement, Measurable
from da3_ros.derived.plane_sweep import grey_of
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import DenseDepth

SIZE = (168, 126)
UNIT = 2.0  # of odometry, per unit of the submap


@functools.cache
def keyframes(count=12):
    """Keyframes of a rendered walk with depth that is smoothly wrong, and their poses."""
    camera = SyntheticCamera(seed=91, size=SIZE, walk="loop", frames=8 * count)
    frames = [camera[8 * i] for i in range(count)]
    out, poses = [], {}
    for id, f in enumerate(frames):
        noise = np.random.default_rng(id).standard_normal(f.depth.shape)
        noise = cv2.GaussianBlur(noise, (0, 0), 25)
        depth = (f.depth / UNIT * np.exp(0.08 * noise / noise.std())).astype(np.float32)
        out.append(Measurable(
            id, 0, 0, "", f.stamp_ns, f.image, f.K, depth, np.ones_like(depth)
        ))  # fmt: skip
        poses[id] = f.T_room_camera, UNIT
    return out, poses, frames


class Log:
    """Runs the jobs of a measurement; what was searched and found after each keyframe."""

    def __init__(self):
        self.measurement = DepthMeasurement()
        self.searched, self.measured, self.failed = [], [], 0
        self.poses = lambda k: keyframes()[1].get(k.id)

    def step(self, *added, ends=False):
        for one in added:
            self.measurement.add_keyframe(one)
        self.measurement.end_window()
        job = self.measurement.job(self.poses, ends=ends)
        if job is None:
            self.searched.append([])
            self.measured.append([])
            return None
        result = job.run()
        self.measurement.take(result)
        self.failed += len(result.failed)
        self.searched.append(sorted(result.searches))
        self.measured.append(result.measured)
        return job


@functools.cache
def steady():
    log = Log()
    for one in keyframes()[0]:
        log.step(one)
    log.step(ends=True)
    return log


@pytest.mark.long
def test_a_keyframe_is_searched_once_when_later_ones_are_there():
    log, count = steady(), len(keyframes()[0])
    assert log.searched[:LATER] == [[]] * LATER
    expected = [[k] for k in range(count - LATER)]
    expected[2].insert(0, 0)  # the first one had two neighbours, and has four
    expected[3].insert(0, 1)
    assert log.searched[LATER:count] == expected
    assert log.searched[count] == [count - 2, count - 1]


@pytest.mark.long
def test_each_keyframes_depth_stays_once():
    log, count = steady(), len(keyframes()[0])
    last = [one.keyframe.id for found in log.measured for one in found if one.stays]
    assert last == list(range(count))
    first = {one.keyframe.id: step for step, found in enumerate(log.measured[:-1])
             for one in reversed(found) if one.stays}  # fmt: skip
    assert first == {k: k + LAST for k in range(count - LAST)}
    assert log.step(ends=True) is None


def test_measured_depth_is_in_the_unit_of_the_submap_and_better():
    frames, errors = keyframes()[2], []
    for found in steady().measured:
        for one in found:
            if not one.stays or one.dense is None:
                continue
            truth = frames[one.keyframe.id].depth / UNIT
            at = one.dense.measured & np.isfinite(truth)
            before = np.abs(np.log(one.keyframe.depth / truth))[at].mean()
            after = np.abs(np.log(one.dense.depth / truth))[at].mean()
            errors.append((before, after, at.mean()))
    before, after, share = np.mean(errors, axis=0)
    assert len(errors) > 9
    assert after < before / 3
    assert share > 0.5


def test_the_last_result_has_more_than_the_first():
    shares = {}
    for found in steady().measured:
        for one in found:
            if one.dense is not None:
                shares.setdefault(one.keyframe.id, []).append(one.dense.measured.mean())
    twice = [s for s in shares.values() if len(s) > 1]
    assert len(twice) > 5
    assert np.mean([s[-1] for s in twice]) > 1.02 * np.mean([s[0] for s in twice])


def test_a_camera_that_stands_is_measured_with_what_there_is():
    log, (ones, _, _) = Log(), keyframes()
    log.step(ones[0])
    log.step(ones[1])
    log.step(ones[2])
    steps = [log.step() for _ in range(5)]
    assert IDLE < 5
    assert sum(step is not None for step in steps) == 1
    assert log.searched[-len(steps) :].count([1, 2]) == 1
    log.step(ones[3])
    assert log.searched[-1] == [1]  # again, with neighbours on both sides
    log.step(ones[4])
    assert log.searched[-1] == [0, 2]  # 0 for the sake of two more neighbours
    for one in ones[5:9]:
        log.step(one)
    searches = [k for step in log.searched for k in step]
    assert searches.count(1) == measuring.SEARCHES  # with two neighbours, three and five
    assert searches.count(2) == 2


def test_another_chain_ends_the_one_before():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:4]:
        log.step(one)
    other = [dataclasses.replace(one, chain=1) for one in ones[4:7]]
    log.step(other[0])
    last = [one.keyframe.id for one in log.measured[-1] if one.stays]
    assert last == [0, 1, 2, 3]
    log.step(other[1])
    log.step(other[2])
    job = log.step(ends=True)
    assert all(j >= 4 for ids in job.due.values() for j in ids)


@pytest.mark.long
def test_memory_is_bounded_and_what_is_left_can_be_neighbours():
    log, (ones, _, _) = Log(), keyframes()
    sizes = []
    for round in range(2):
        for one in ones:
            id = one.id + round * len(ones)
            log.poses = lambda k: keyframes()[1][k.id % len(ones)]
            log.step(dataclasses.replace(one, id=id))
            sizes.append(log.measurement.nbytes)
    assert len(log.measurement._entries) == KEPT
    assert max(sizes[KEPT:]) < 1.2 * sizes[KEPT - 1]


@pytest.mark.long
def test_keyframes_without_pose_or_neighbours_keep_their_depth():
    log, (ones, poses, _) = Log(), keyframes()
    log.poses = lambda k: None if k.id == 1 else poses[0] if k.id == 2 else poses[k.id]
    for one in ones[:7]:
        log.step(one)
    log.step(ends=True)
    found = {one.keyframe.id: one for step in log.measured for one in step if one.stays}
    assert sorted(found) == list(range(7))
    assert found[1].dense is None
    small = Log()
    for one in ones[:7]:
        small.step(dataclasses.replace(
            one, image=one.image[:28, :42], depth=one.depth[:28, :42]
        ))  # fmt: skip
    assert small.searched == [[]] * 7


def test_dropped_keyframes_are_not_searched_and_their_depth_stays():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:6]:
        log.measurement.add_keyframe(one)
    assert log.measurement.drop_waiting(2) == 2  # of 0 to 3
    assert log.measurement.drop_waiting(2) == 0
    assert log.measurement.job(log.poses, again=False).due.keys() == {2, 3}
    for entry in log.measurement._entries.values():
        entry.searched_at = -1  # that job was not run
    log.step(*ones[6:])
    assert 0 not in log.searched[0]
    assert 1 not in log.searched[0]
    assert {2, 3} <= set(log.searched[0])
    stays = {one.keyframe.id: one for one in log.measured[0] if one.stays}
    assert stays[0].dense is None


def test_cameras_of_a_rig_wait_for_keyframes_of_their_own():
    log, (ones, _, _) = Log(), keyframes()
    for k in range(3):  # three cameras see the walk alike
        log.step(*(
            dataclasses.replace(ones[3 * k + n], camera=str(n)) for n in range(3)
        ))  # fmt: skip
        assert log.searched[-1] == [[], [], [0, 1, 2]][k]
    assert not any(one.stays for found in log.measured for one in found)


def test_keyframes_of_a_camera_that_sends_no_more_do_not_wait_for_ever():
    measurement, (ones, _, _) = DepthMeasurement(), keyframes()
    small = dataclasses.replace(ones[0], image=ones[0].image[:28, :42],
                                depth=ones[0].depth[:28, :42])  # fmt: skip
    measurement.add_keyframe(dataclasses.replace(small, camera="gone"))
    for id in range(1, 2 * measuring.PASSED):
        measurement.add_keyframe(dataclasses.replace(small, id=id, camera="here"))
        job = measurement.job(lambda one: (np.eye(4), 1.0))
        if job is not None:
            measurement.take(job.run())
    assert 0 not in measurement._entries
    assert len(measurement._entries) == KEPT


def test_images_of_two_calibrations_of_a_camera_are_not_compared():
    log, (ones, _, _) = Log(), keyframes()
    early = [dataclasses.replace(one, K=1.1 * one.K) for one in ones[:3]]
    job = log.step(*early, *ones[3:6])
    assert set(job.due[3]) <= {4, 5}
    assert 0 not in job.due or not {3, 4, 5} & set(job.due[0])


def test_a_keyframe_is_searched_again_when_its_poses_were_not_good():
    """The first windows of a walk may be refined by a lot later."""
    log, (ones, poses, _) = Log(), keyframes()
    wrong = dict(poses)
    T = poses[1][0].copy()
    T[:3, 3] += 0.03
    wrong[1] = T, UNIT
    log.poses = lambda k: wrong[k.id]
    for one in ones[:4]:
        log.step(one)
    assert [k for found in log.searched for k in found] == [0, 1]
    wrong[1] = poses[1]
    log.step(ones[4])
    assert log.searched[-1] == [0, 1, 2]  # 2 for the first time
    log.step()
    assert log.searched[-1] == []
    for n in range(6):  # poses that never settle: a bounded number of searches
        wrong[1] = wrong[1][0] + np.pad([[0.03 * (-1) ** n]], ((0, 3), (3, 0))), UNIT
        log.step()
    log.step(*ones[5:9])
    searches = [k for found in log.searched for k in found]
    assert searches.count(1) == measuring.SEARCHES


def test_poses_that_change_with_the_unit_have_not_moved():
    log, (ones, poses, _) = Log(), keyframes()
    for one in ones[:5]:
        log.step(one)
    before = sum(map(len, log.searched))
    halved = {}
    for id, (T, unit) in poses.items():
        small = T.copy()
        small[:3, 3] *= 0.5
        halved[id] = small, 0.5 * unit
    log.poses = lambda k: halved[k.id]
    log.step()
    assert sum(map(len, log.searched)) == before


@pytest.mark.long
def test_poses_that_move_late_still_bring_another_search():
    log, (ones, poses, _) = Log(), keyframes()
    for one in ones[:8]:
        log.step(one)
    moved = {id: (T.copy(), unit) for id, (T, unit) in poses.items()}
    for id in (1, 3, 5):
        moved[id][0][:3, 3] += 0.1
    log.poses = lambda k: moved[k.id]
    log.step()
    assert log.searched[-1][:3] == [0, 1, 2]


def test_what_was_found_with_other_poses_confirms_nothing():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:7]:
        log.step(one)
    log.measurement.add_keyframe(ones[7])
    job = log.measurement.job(log.poses)
    (id,) = job.due
    stale = set(job.due[id][:2]) & job.found.keys()
    assert stale

    def moved(search, by):
        T = search.T_neighbour_view.copy()
        T[:, :3, 3] *= 1 + by
        found = search.search.scaled(1 + by)
        return dataclasses.replace(search, search=found, T_neighbour_view=T)

    def depth_of(job):
        (one,) = (m for m in job.run().measured if m.keyframe.id == id)
        return one.dense.depth

    others = {j: s for j, s in job.found.items() if j not in stale}
    expected = depth_of(dataclasses.replace(job, found=others))
    old = {j: moved(job.found[j], 0.1) for j in stale}
    np.testing.assert_array_equal(depth_of(dataclasses.replace(job, found=others | old)), expected)
    hardly = {j: moved(job.found[j], 0.001) for j in stale}
    assert (depth_of(dataclasses.replace(job, found=others | hardly)) != expected).any()
    # Where there are no others, the old ones are better than nothing.
    turned = {j: dataclasses.replace(s, T_neighbour_view=moved(s, 0.1).T_neighbour_view)
              for j, s in job.found.items()}  # fmt: skip
    np.testing.assert_array_equal(depth_of(dataclasses.replace(job, found=turned)), depth_of(job))


def with_poses_that_moved_late():
    """A log whose oldest keyframes would be decided on now, keyframes, and their newest poses."""
    log, (ones, poses, _) = Log(), keyframes()
    for one in ones[:LAST]:
        log.step(one)
    moved = {id: (T.copy(), unit) for id, (T, unit) in poses.items()}
    for id in (1, 3, 5):
        moved[id][0][:3, 3] += 0.1
    log.measurement.add_keyframe(ones[LAST])
    return log, ones, moved


def test_what_is_left_to_be_searched_again_stays_open():
    log, _, moved = with_poses_that_moved_late()
    job = log.measurement.job(lambda k: moved[k.id], most=2)
    assert 0 not in [*job.due, *job.last]
    log.measurement.take(job.run())
    assert 0 in log.measurement.job(lambda k: moved[k.id]).last


def test_a_keyframe_does_not_wait_for_ever_to_be_searched_again():
    log, ones, moved = with_poses_that_moved_late()
    for later, last in ((KEPT - 1, [0]), (KEPT, [0, 1])):  # 0 is repeated
        log.measurement._entries[1].later = later
        assert log.measurement.job(lambda k: moved[k.id], most=1).last == last
    log.measurement.add_keyframe(
        dataclasses.replace(ones[LAST + 1], chain=1)
    )  # none of this one follows
    log.measurement._entries[1].later = 0
    assert set(range(LAST - LATER)) <= set(log.measurement.job(lambda k: moved[k.id], most=1).last)


def test_beside_first_searches_the_oldest_one_is_repeated():
    log, (ones, poses, _) = Log(), keyframes()
    for one in ones[:6]:
        log.step(one)
    moved = {id: (T.copy(), unit) for id, (T, unit) in poses.items()}
    for id in (1, 3, 5):
        moved[id][0][:3, 3] += 0.1
    for one in ones[6:8]:
        log.measurement.add_keyframe(one)
    job = log.measurement.job(lambda k: moved[k.id], most=2)
    assert list(job.due) == [5, 4, 0]


def test_keyframes_of_many_cameras_stay_open_as_long_as_those_of_one():
    measurement, (ones, poses, _) = DepthMeasurement(), keyframes()
    for k in range(LAST):
        for n in range(10):
            measurement.add_keyframe(dataclasses.replace(ones[k], id=10 * k + n, camera=str(n)))
    assert 10 * LAST > measuring.PASSED
    assert not measurement.job(lambda k: poses[k.id // 10]).last


def test_what_is_measured_no_more_is_withdrawn():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.step(one)
    newest = log.measured[-1][-1]
    assert newest.keyframe.id == 2
    assert newest.dense is not None
    assert not newest.is_withdrawn
    log.poses = lambda k: None  # of a submap that is gone
    log.step(ends=True)
    ends = {one.keyframe.id: one for one in log.measured[-1]}
    assert all(one.stays and one.dense is None for one in ends.values())
    was = {one.keyframe.id for found in log.measured[:-1] for one in found if one.dense}
    assert {id for id, one in ends.items() if one.is_withdrawn} == was >= {2}


def test_depth_that_was_not_compared_is_not_called_measured():
    """A pole, and the edge beside it, are too thin for the smaller image."""
    height, width = 64, 96
    depth = np.full((height, width), 4.0, np.float32)
    depth[:, 48:] = 2.0
    depth[:, 20] = 1.0  # between two of the smaller image's pixels
    image = np.zeros((height, width, 3), np.uint8)
    one = Measurable(0, 0, 0, "", 0, image, np.eye(3), depth, np.ones_like(depth))
    small = measuring._reduced(one, 48)
    assert (small.depth != 1).all()
    correction = np.where(small.depth < 3, 1.2, 0.9).astype(np.float32)
    dense = DenseDepth(small.depth * correction, np.full_like(small.depth, 0.01),
                       np.ones_like(small.depth, bool))  # fmt: skip
    out = measuring._enlarged(dense, small, one)
    expected = depth * np.where(depth < 3, 1.2, 0.9)
    np.testing.assert_allclose(out.depth[out.measured], expected[out.measured], rtol=1e-5)
    assert not out.measured[:, 20].any()
    assert not out.measured[:, 46:50].any()
    assert out.measured.mean() > 0.85
    np.testing.assert_allclose(out.depth[:, 48:], 2.4, rtol=1e-5)  # no mixture at the edge


def test_nothing_is_measured_beside_a_hole_of_the_smaller_image():
    depth = np.full((64, 96), 4.0, np.float32)
    depth[20:28, 20:28] = np.nan
    image = np.zeros((64, 96, 3), np.uint8)
    one = Measurable(0, 0, 0, "", 0, image, np.eye(3), depth, np.ones_like(depth))
    small = measuring._reduced(one, 48)
    dense = DenseDepth(1.1 * small.depth, np.full_like(small.depth, 0.01), small.known)
    out = measuring._enlarged(dense, small, one)
    assert not out.measured[18:30, 18:30].any()
    assert out.measured.mean() > 0.9
    np.testing.assert_allclose(out.depth[out.measured], 4.4, rtol=1e-5)


def test_a_keyframe_that_fails_costs_no_other(monkeypatch):
    log, (ones, _, _) = Log(), keyframes()
    whole, failing = measuring.search_depth, grey_of(ones[1].image)

    def fails(view, *args):
        if np.array_equal(view.grey, failing):
            raise RuntimeError("no memory")
        return whole(view, *args)

    monkeypatch.setattr(measuring, "search_depth", fails)
    for one in ones[:9]:
        log.step(one)
    log.step(ends=True)
    last = {one.keyframe.id: one for step in log.measured for one in step if one.stays}
    assert sorted(last) == list(range(9))
    assert last[1].dense is None
    measured = [k for k, one in last.items() if one.dense is not None]
    assert len(measured) >= 7
    assert sum(k == 1 for step in log.searched for k in step) == 0
    assert log.failed <= measuring.SEARCHES


def test_a_keyframe_that_cannot_be_decided_costs_no_other(monkeypatch):
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.step(one)
    whole, calls = measuring.confirmed_depth, []

    def fails(*args):
        calls.append(0)
        if len(calls) == 1:
            raise ValueError("odd")
        return whole(*args)

    monkeypatch.setattr(measuring, "confirmed_depth", fails)
    log.step(ends=True)
    assert log.failed == 1
    ends = [one for one in log.measured[-1] if one.stays]
    assert len(ends) == 5
    assert sum(one.dense is not None for one in ends) >= 3


def test_a_job_that_stops_leaves_out_what_is_not_searched():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.measurement.add_keyframe(one)
    lost, asked = log.measurement.job(log.poses), []
    job = log.measurement.job(log.poses)  # the first one was interrupted
    assert list(lost.due) == list(job.due) == [2, 1, 0]  # the newest first
    result = job.run(stopping=lambda: asked.append(0) or len(asked) > 2)
    assert list(result.searches) == [2, 1]
    assert result.left_out == [0]
    assert [one.keyframe.id for one in result.measured] == [1, 2]
    log.measurement.take(result)
    assert 0 in log.measurement.job(log.poses).due  # it is still to be done


def test_a_job_that_stops_decides_on_no_keyframe_that_it_has_not_searched():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:9]:
        log.measurement.add_keyframe(one)
    job = log.measurement.job(log.poses, ends=True)
    assert list(job.due) == list(reversed(range(9)))
    assert set(job.last) == set(range(9))
    result = job.run(stopping=lambda: True)
    assert not result.measured
    log.measurement.take(result)
    log.step(ends=True)
    assert sum(one.stays and one.dense is not None for one in log.measured[-1]) >= 7


def test_a_job_has_as_many_searches_as_are_asked_for_first_ones_first():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.measurement.add_keyframe(one)
    job = log.measurement.job(log.poses, most=2)
    assert list(job.due) == [2, 1]
    log.measurement.take(job.run())
    moved = {id: (T.copy(), unit) for id, (T, unit) in keyframes()[1].items()}
    moved[2][0][:3, 3] += 0.1
    job = log.measurement.job(lambda k: moved[k.id], most=2)
    assert list(job.due) == [0, 2]  # what was never searched comes before what is searched again
    for one in ones[5:9]:
        log.measurement.add_keyframe(one)
    job = log.measurement.job(log.poses, most=2)
    assert list(job.due) == [6, 5]
    assert 0 not in job.last  # it has eight later ones, and still waits


def test_the_cameras_of_a_rig_are_searched_in_turn():
    """Also a slow one, whatever their order."""
    measurement, (ones, poses, _) = DepthMeasurement(), keyframes()
    for k in range(7):
        for n in range(3):
            if n or k % 2 == 0:
                measurement.add_keyframe(dataclasses.replace(ones[k], id=3 * k + n, camera=str(n)))
    job = measurement.job(lambda one: poses[one.id // 3], most=4)
    assert {id % 3 for id in job.due} == {0, 1, 2}
    assert [id // 3 for id in list(job.due)[:3]] == [4, 4, 2]  # the newest of each
    measurement._searches.update("1")
    job = measurement.job(lambda one: poses[one.id // 3], most=1)
    assert [id % 3 for id in job.due] in ([0, 2, 1], [2, 0, 1])  # one of each, who had more last


def test_keyframes_for_which_a_job_takes_too_long_are_forgotten():
    measurement, (ones, _, _) = DepthMeasurement(), keyframes()
    for k in range(measuring.MOST_KEPT):
        measurement.add_keyframe(dataclasses.replace(ones[k % 12], id=k))
    assert measurement.forget_late() == ([], 0)
    for k in range(measuring.MOST_KEPT, measuring.MOST_KEPT + 3):  # also of another chain
        measurement.add_keyframe(dataclasses.replace(ones[k % 12], id=k, chain=1))
    measurement._entries[1].is_dropped = True  # counted before
    late, skipped = measurement.forget_late()
    assert [one.keyframe.id for one in late] == [0, 1, 2]
    assert skipped == 2
    assert all(one.stays and one.dense is None for one in late)
    assert 2 not in measurement
    assert 3 in measurement


def test_what_is_measured_stays_so_when_it_is_forgotten():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:6]:
        log.step(one)
    first = [one for found in log.measured for one in found if one.keyframe.id == 2][-1]
    assert first.dense is not None
    assert not first.stays
    for k in range(6, measuring.MOST_KEPT + 3):
        log.measurement.add_keyframe(dataclasses.replace(ones[k % 12], id=k))
    late = {one.keyframe.id: one for one in log.measurement.forget_late()[0]}
    assert set(late) == {0, 1, 2}
    assert late[2].dense is first.dense
    assert late[2].found == first.found
    assert late[2].stays
    assert not late[2].is_withdrawn


def test_a_search_that_cannot_be_decided_on_counts_once(monkeypatch):
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.measurement.add_keyframe(one)

    def broken(*_):
        raise ValueError

    monkeypatch.setattr(measuring, "confirmed_depth", broken)
    result = log.measurement.job(log.poses).run()
    assert result.failed.keys() == result.searches.keys() == {0, 1, 2}
    log.measurement.take(result)
    assert [log.measurement._entries[id].searches for id in (0, 1, 2, 3)] == [1, 1, 1, 0]


def test_where_the_device_fails_the_cpu_searches(monkeypatch):
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.measurement.add_keyframe(one)
    whole, devices = measuring.search_depth, []

    def search(view, others, depth, device="cpu"):
        devices.append(device)
        if device != "cpu" and len(devices) > 1:
            raise RuntimeError("out of memory")
        return whole(view, others, depth, "cpu")

    monkeypatch.setattr(measuring, "search_depth", search)
    result = log.measurement.job(log.poses).run("cuda")
    assert devices == ["cuda", "cuda", "cpu", "cpu"]
    assert sorted(result.searches) == [0, 1, 2]
    assert str(result.device_error) == "out of memory"
    assert not result.failed
    log.measurement.take(result)

    for kind in (ValueError, RuntimeError):

        def odd(*args, kind=kind):
            raise kind("odd")

        for one in ones[5:8]:
            log.measurement.add_keyframe(one)
        monkeypatch.setattr(measuring, "search_depth", odd)
        result = log.measurement.job(log.poses).run("cuda")
        assert result.failed
        assert result.device_error is None  # this is not the device's fault


def test_of_each_camera_the_newest_keyframes_wait():
    measurement, (ones, _, _) = DepthMeasurement(), keyframes()
    for k in range(6):
        for n in range(3):
            measurement.add_keyframe(dataclasses.replace(ones[k], id=3 * k + n, camera=str(n)))
    assert measurement.drop_waiting(1) == 9  # of 12 with two later ones of their camera
    kept = [k for k, e in measurement._entries.items() if e.later >= LATER and not e.is_dropped]
    assert kept == [9, 10, 11]


def test_without_time_no_keyframe_is_searched_again():
    log, (ones, poses, _) = Log(), keyframes()
    for one in ones[:4]:
        log.step(one)
    moved = {id: (T.copy(), unit) for id, (T, unit) in poses.items()}
    moved[1][0][:3, 3] += 0.1
    log.measurement.add_keyframe(ones[4])
    log.poses = lambda k: moved[k.id]
    assert log.measurement.job(log.poses, again=False).due.keys() == {2}
    assert {0, 1} <= log.measurement.job(log.poses).due.keys()


def test_keyframes_of_an_older_map_are_ignored():
    log, (ones, _, _) = Log(), keyframes()
    for one in ones[:5]:
        log.measurement.add_keyframe(one)
    job = log.measurement.job(log.poses)
    other = DepthMeasurement()
    other.take(job.run())
    assert other.nbytes == 0
    assert other.job(log.poses) is None


@pytest.mark.long
def test_smaller_images_give_most_of_the_correction():
    log, (ones, _, frames) = Log(), keyframes()
    log.measurement = DepthMeasurement(SIZE[0] // 2)
    for one in ones[:9]:
        log.step(one)
    log.step(ends=True)
    errors = []
    for found in log.measured:
        for one in found:
            if one.stays and one.dense is not None:
                truth = frames[one.keyframe.id].depth / UNIT
                assert one.dense.depth.shape == one.dense.measured.shape == SIZE[::-1]
                at = one.dense.measured & np.isfinite(truth)
                before = np.abs(np.log(one.keyframe.depth / truth))[at].mean()
                errors.append((before, np.abs(np.log(one.dense.depth / truth))[at].mean()))
    assert len(errors) > 5
    before, after = np.mean(errors, axis=0)
    assert after < before / 2
    (search, *_) = [e.search for e in log.measurement._entries.values() if e.search]
    assert max(search.search.depth.shape) == SIZE[0] // 2


@pytest.mark.usefixtures("solved_each_time")
def test_it_gives_the_same_twice():
    again = Log()
    for one in keyframes()[0][:6]:
        again.step(one)
    for a, b in zip(steady().measured[:6], again.measured, strict=True):
        assert [x.keyframe.id for x in a] == [x.keyframe.id for x in b]
        for x, y in zip(a, b, strict=True):
            assert (x.dense is None) == (y.dense is None)
            if x.dense is None or y.dense is None:
                continue
            np.testing.assert_array_equal(x.dense.depth, y.dense.depth)
            np.testing.assert_array_equal(x.dense.sigma, y.dense.sigma)


def test_constants_fit_together():
    assert KEPT > LAST + 6  # neighbours of one that is decided on are still there
    assert measuring.PASSED > 4 * KEPT  # rigs of four cameras and more
    assert measuring.SEARCHES == 3


def test_memory_is_predicted():
    """Of the keyframes that are kept; test_plane_sweep has that of a sweep."""
    log, (ones, _, _) = Log(), keyframes()
    for one in ones:
        log.step(one)
    held = log.measurement.nbytes
    predicted = measuring.MeasuringLoad().kept_bytes(SIZE)
    assert 0.6 * predicted < held < 1.1 * predicted
    half, rig = measuring.MeasuringLoad(SIZE[0] // 2), measuring.MeasuringLoad(cameras=4)
    whole = measuring.MeasuringLoad()
    assert half.kept_bytes(SIZE) < 0.8 * whole.kept_bytes(SIZE)
    assert half.search_bytes(SIZE) < 0.3 * whole.search_bytes(SIZE)
    assert rig.kept_bytes(SIZE) == 4 * whole.kept_bytes(SIZE)
    assert rig.search_bytes(SIZE) == whole.search_bytes(SIZE)
    assert measuring.MeasuringLoad(1000).search_bytes(SIZE) == whole.search_bytes(SIZE)
