"""What an IMU measures between frames: interpolation, mounts, and data that must not be used."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from da3_ros.config import ImuConfig
from da3_ros.replay.object_state import load_state, save_state
from da3_ros.sensors.imu_input import ImuError, ImuHistory, ImuInput, ImuSample
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.types import ImuNoise

MS = 1_000_000
AXES = np.eye(3)
UP = np.array([0.0, 0.0, 9.8])  # specific force of an IMU at rest with z up


def sample(ms: float, gyro=(0.0, 0.0, 0.0), force=UP, frame="imu") -> ImuSample:
    return ImuSample(round(ms * MS), frame, np.concatenate((gyro, force)).astype(float))


def tree(R=AXES, t=(0.0, 0.0, 0.0)) -> TransformTree:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, t
    out = TransformTree()
    out.add("camera", "imu", T, 0, static=True)
    return out


class Warnings(list):
    def __call__(self, text: str, every_s: float = 0.0) -> None:
        self.append(text)


def run(samples, stamps_ms, transforms=None, live=True, **config):
    """Returns the stretch of each frame, the warnings and the input."""
    history = ImuHistory() if live else ImuHistory(iter(samples))
    imu = ImuInput(ImuConfig(**config), transforms or tree(), history)
    if live:
        for one in samples:
            imu.history.add(one)
    warned = Warnings()
    return [imu.stretch("", "camera", round(ms * MS), warned) for ms in stamps_ms], warned, imu


@pytest.mark.parametrize("live", [True, False])
def test_samples_between_two_frames_with_both_ends_interpolated(live):
    rising = [sample(10 * k, gyro=(k, 0, 0)) for k in range(12)]
    (first, second), warned, _ = run(rising, [15, 47], live=live)
    assert first is None  # nothing is before the first frame
    assert not warned
    assert (second.stamps_ns / MS).tolist() == [15, 20, 30, 40, 47]
    np.testing.assert_allclose(second.gyro[:, 0], [1.5, 2, 3, 4, 4.7])
    np.testing.assert_allclose(second.acceleration, np.tile(UP, (5, 1)))


def test_values_are_in_the_cameras_axes():
    # The IMU has z up; the camera looks along the IMU's x.
    R = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])
    samples = [sample(5 * k, gyro=(0, 0, 1.0)) for k in range(30)]
    (_, one), _, _ = run(samples, [10, 60], tree(R, (0.1, 0.2, 0.3)))
    np.testing.assert_allclose(one.gyro[0], [0, -1, 0])  # a turn to the left, y is down
    np.testing.assert_allclose(one.acceleration[0], [0, -9.8, 0])
    np.testing.assert_allclose(one.t_camera_imu, [0.1, 0.2, 0.3])


def test_stretches_have_the_noise_of_the_parameters():
    samples = [sample(5 * k) for k in range(30)]
    (_, one), _, _ = run(samples, [10, 60])
    assert one.noise == ImuNoise(), "the defaults of the parameters are those of the class"
    (_, one), _, _ = run(
        samples, [10, 60], accelerometer_noise_density=0.02, accelerometer_random_walk=0.003,
        gyroscope_noise_density=0.004, gyroscope_random_walk=0.0005,
    )  # fmt: skip
    assert one.noise == ImuNoise(
        gyro=0.004, gyro_walk=0.0005, acceleration=0.02, acceleration_walk=0.003
    )


def test_the_time_offset_is_added_to_the_samples_stamps():
    samples = [sample(5 * k, gyro=(k, 0, 0)) for k in range(40)]
    (_, one), _, _ = run(samples, [100, 150], time_offset_s=0.02)
    np.testing.assert_allclose(one.gyro[[0, -1], 0], [80 / 5, 130 / 5])
    assert one.stamps_ns[0] == 100 * MS
    assert one.stamps_ns[-1] == 150 * MS


@pytest.mark.parametrize("live", [True, False])
def test_a_gap_gives_nothing_and_is_named(live):
    samples = [sample(5 * k) for k in range(80) if not 20 < k < 40]
    (_, gap, after), warned, imu = run(samples, [80, 220, 300], live=live)
    assert gap is None
    assert "gap of 0.10 s" in warned[0]
    assert after is not None
    assert imu.without == 1


def test_a_late_imu_gives_nothing_and_a_slightly_late_one_its_last_value():
    samples = [sample(5 * k, gyro=(k, 0, 0)) for k in range(20)]  # up to 95 ms
    (_, slightly, late), warned, _ = run(samples, [50, 110, 210])
    assert slightly.gyro[-1, 0] == 19
    assert late is None
    assert "0.12 s older than the frame" in warned[0]


def test_no_samples_and_an_unknown_mount_are_named():
    (_, one), warned, _ = run([], [0, 50])
    assert one is None
    assert "no samples yet" in warned[0]
    (_, one), warned, _ = run([sample(5 * k) for k in range(20)], [5, 50], TransformTree())
    assert one is None
    assert "camera" in warned[0]
    assert "imu" in warned[0]


@pytest.mark.parametrize(
    ("force", "known"),
    [((0, 0, 1.0), False), ((0.1, 0, 0), False), ((0, 0, 9.79), True), ((0, 0, 14.0), False)],
    ids=["in g", "gravity removed", "m/s^2", "too much"],
)
def test_acceleration_must_be_in_metres_and_contain_gravity(force, known):
    samples = [sample(5 * k, force=np.array(force)) for k in range(800)]
    found, warned, _ = run(samples, range(0, 3900, 100))
    assert (found[-1] is not None) == known
    assert bool(warned) != known
    if warned:
        assert "m/s^2" in warned[-1]


def test_a_sensor_at_its_limit_is_not_used():
    def gyro(k: int) -> tuple[float, float, float]:
        return (min(34.9, 30 + k % 40), 0.0, 0.0)

    samples = [sample(5 * k, gyro=gyro(k)) for k in range(200)]
    found, warned, _ = run(samples, range(0, 900, 100))
    assert any(one is None for one in found[1:])
    assert "limit" in warned[0]
    resting = [sample(5 * k) for k in range(200)]  # a simulator without noise repeats its values
    found, warned, _ = run(resting, range(0, 900, 100))
    assert all(found[1:])
    assert not warned


def test_after_a_late_frame_the_next_one_follows_the_last():
    """The late one is dropped."""
    samples = [sample(5 * k) for k in range(80)]
    (_, one, late, again, after), warned, imu = run(samples, [50, 200, 120, 200, 300])
    assert one is not None
    assert late is again is None
    assert after.stamps_ns[[0, -1]].tolist() == [200 * MS, 300 * MS]
    assert not warned
    assert imu.without == 0


def test_stamps_that_jump_back_begin_anew():
    loop = [sample(5 * k, gyro=(k, 0, 0)) for k in range(600)]
    frames = [2500, 2550, 50, 100]
    for live in (True, False):
        if live:
            history = ImuHistory()
            for one in [*loop, *loop[:30]]:
                history.add(one)
            assert history.between(50 * MS, 100 * MS, 50 * MS)[1][0, 0] == 10
        else:
            found, _, _ = run([*loop, *loop], frames, live=False)
            assert [one is None for one in found] == [True, False, True, False]
            assert found[3].gyro[0, 0] == 10


def test_a_recording_is_read_no_further_than_needed():
    read = []

    def samples():
        for k in range(10**9):
            read.append(k)
            yield sample(5 * k)
            del read[:-1]

    found, _, imu = run(samples(), range(0, 60_000, 100), live=False)
    assert all(found[1:])
    assert read[-1] <= 60_000 / 5
    assert len(imu.history) < 4 * 10_000 / 5  # of the last ten seconds


def test_a_frame_far_after_the_last_one_gets_nothing():
    samples = [sample(5 * k) for k in range(3000)]
    (_, one), warned, _ = run(samples, [1000, 9000])
    assert one is None
    assert not warned  # the camera was silent, not the IMU


def test_samples_out_of_order_are_sorted_and_repeated_ones_dropped():
    samples = [sample(5 * k, gyro=(k, 0, 0)) for k in (0, 2, 1, 3, 3, 5, 4, 6, 7, 8)]
    (_, one), _, _ = run(samples, [2, 33])
    np.testing.assert_allclose(one.gyro[:, 0], one.stamps_ns / MS / 5)
    assert len(np.unique(one.stamps_ns)) == len(one.stamps_ns)


def test_a_frame_waits_for_samples_that_are_a_little_late():
    history = ImuHistory(wait_s=2.0)
    for k in range(20):
        history.add(sample(5 * k))
    late = threading.Timer(0.1, lambda: [history.add(sample(5 * k)) for k in range(20, 40)])
    late.start()
    stamps, _ = history.between(50 * MS, 150 * MS, 20 * MS)
    late.join()
    assert stamps[-1] == 150 * MS
    assert (np.diff(stamps) <= 5 * MS).all()


def test_a_frame_does_not_wait_again_and_again_for_samples_that_never_come(monkeypatch):
    history, waits = ImuHistory(wait_s=0.001), []
    for k in range(20):
        history.add(sample(5 * k))
    monkeypatch.setattr(history._arrived, "wait_for", lambda *a: waits.append(a))
    monkeypatch.setattr(time, "monotonic", lambda: history._received_s + 0.1)
    for _ in range(6):
        with pytest.raises(ImuError, match="older than the frame"):
            history.between(50 * MS, 150 * MS, 20 * MS)
    assert len(waits) == 3


def test_two_imus_on_one_topic_are_named():
    samples = [sample(5 * k, frame="imu" if k % 2 else "other") for k in range(40)]
    (_, one), warned, _ = run(samples, [50, 100])
    assert one is None
    assert "two IMUs" in warned[0]


def test_each_camera_has_a_mean_of_its_own():
    """A strong second is no mean over two, however many cameras see it."""
    up = np.array([0.0, 0.0, 14.9])
    samples = [sample(10 * k, force=up if 300 <= k < 370 else UP) for k in range(600)]
    for cameras in (1, 4):
        history, warned = ImuHistory(iter(samples)), Warnings()
        imu = ImuInput(ImuConfig(), tree(), history)
        for ms in range(0, 5900, 100):
            for k in range(cameras):
                imu.stretch(f"camera{k}", "camera", ms * MS, warned)
        assert not warned


@pytest.mark.parametrize("wrong", [0.0, 3_600_000.0])
def test_a_wrong_stamp_in_a_recording_loses_one_sample(wrong):
    samples = [sample(20_000 + 10 * k) for k in range(400)]
    samples[100] = sample(wrong)
    found, warned, _ = run(samples, range(20_000, 23_900, 100), live=False)
    assert all(found[1:])
    assert not warned


def two_passes():
    """Samples of a recording whose stamps jump back in its middle."""
    return [sample(5 * k, gyro=(k + 1000 * n, 0, 0)) for n in (0, 1) for k in range(600)]


def test_frames_behind_a_jump_get_no_samples_from_before_it():
    found, warned, _ = run(two_passes(), [2500, 2550, 50, 100], live=False)
    assert found[1].gyro[0, 0] == 500
    assert found[3].gyro[0, 0] == 1010
    assert not warned


@pytest.mark.parametrize("after_ms", [3000, 7000])
def test_samples_behind_a_gap_are_used(after_ms):
    """Of the recording, or before its first sample."""
    first = [sample(5 * k) for k in range(200)] if after_ms > 3000 else []
    behind = [sample(after_ms + 5 * k) for k in range(6000)]
    frames = [*range(0, after_ms + 1500, 50)]
    found, _, _ = run([*first, *behind], frames, live=False)
    there = [one is not None for one in found]
    assert all(there[frames.index(after_ms) + 1 :])
    assert sum(there) == 29 + (19 if first else 0)


def test_frames_alone_that_jump_back_end_nothing():
    """A camera's clock is wrong for a moment, or for good."""
    samples = [sample(5 * k, gyro=(k, 0, 0)) for k in range(12_000)]
    found, _, imu = run(samples, [20_000, 20_100, 15_000, 15_100, 20_400, 20_500], live=False)
    assert [one is not None for one in found] == [False, True, False, True, False, True]
    assert found[3].gyro[0, 0] == 3000
    assert imu.history.jumps == 0
    found, _, _ = run(iter(samples), [20_000, 20_100, 50_000, 20_200, 20_300], live=False)
    assert [one is not None for one in found] == [False, True, False, False, True]


def test_a_camera_that_jumps_later_than_another_one_costs_nothing():
    imu = ImuInput(ImuConfig(), tree(), ImuHistory(iter(two_passes())))
    found = {"a": [], "b": []}
    warned = Warnings()
    for name, ms in [("a", 2400), ("b", 2400), ("a", 2500), ("b", 2500), ("a", 50), ("b", 2600),
                     ("a", 100), ("b", 100), ("a", 200), ("b", 200)]:  # fmt: skip
        found[name].append(imu.stretch(name, "camera", ms * MS, warned))
    assert [one is not None for one in found["a"]] == [False, True, False, True, True]
    assert [one is not None for one in found["b"]] == [False, True, False, False, True]
    assert found["a"][4].gyro[0, 0] == found["b"][4].gyro[0, 0] == 1020
    assert len(warned) == 1


@pytest.mark.parametrize("before", [1, 2])
def test_a_replay_that_is_continued_at_a_jump_passes_it(tmp_path, before):
    """The last frame before a checkpoint is the last one before the jump, or the one after it."""
    frames = [2500, 2550, 50, 100]
    _, _, first = run(two_passes(), frames[: 1 + before], live=False)
    save_state(tmp_path / "state", {"imu": first}, services(first))
    again = ImuInput(ImuConfig(), tree(), ImuHistory(iter(two_passes())))
    load_state(tmp_path / "state", "imu", again, services(again))
    found = [again.stretch("", "camera", ms * MS, Warnings()) for ms in frames[1 + before :]]
    assert found[-1].gyro[0, 0] == 1010


def test_a_replay_that_is_continued_behind_a_jump_reads_on_to_it(tmp_path):
    _, _, first = run(two_passes(), [2500, 2550, 50, 100], live=False)
    save_state(tmp_path / "state", {"imu": first}, services(first))
    again = ImuInput(ImuConfig(), tree(), ImuHistory(iter(two_passes())))
    load_state(tmp_path / "state", "imu", again, services(again))
    warned = Warnings()
    assert again.stretch("", "camera", 150 * MS, warned).gyro[0, 0] == 1020
    assert not warned


def services(imu):
    return {"history": imu.history, "transforms": imu._transforms}
