"""The next frames are begun with while a window runs, and results do not depend on it."""

import dataclasses
import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.cases import long_after
from support.streams import VALUES, as_messages, stream_of

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.inference import InferenceConfig, InferenceSession
from da3_ros.inference import session as module
from da3_ros.inference.feature_cache import Download
from da3_ros.inference.session import ImageEncoder
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings import RecordingError
from da3_ros.recordings.read_ahead import ReadAhead
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.types import Frame, ResizeRule


class Slow(Download):
    """Results of a device that works beside us: not there before they were asked for thrice."""

    queued = True

    def __init__(self, values):
        super().__init__(values)
        self.asked = 0

    def done(self):
        self.asked += 1
        return self.asked > 3


@pytest.fixture
def beside_us(monkeypatch):
    """A device that works beside us, as far as the session can see."""
    monkeypatch.setattr(module, "Download", Slow)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=8)


@pytest.fixture
def story(monkeypatch):
    """What the session does, in order: begins of prefixes and ends of windows."""
    told = []
    encode, finish = ImageEncoder.encode, module.to_prediction
    monkeypatch.setattr(
        ImageEncoder, "encode",
        lambda self, images, size: told.append(f"prefix {len(images)}")
        or encode(self, images, size),
    )  # fmt: skip
    monkeypatch.setattr(
        module, "to_prediction", lambda *a, **k: told.append("window") or finish(*a, **k)
    )
    return told


def frames_of(camera):
    return [
        Frame(f.stamp_ns, f.image, calibration=camera.calibration, rectified=True) for f in camera
    ]


def run_live(camera, **changes):
    stream, host = stream_of(**changes)
    for pending in as_messages(camera, host.lib):
        stream.put(pending)
        stream.step()
    return host.sent


def test_live_frames_are_begun_with_while_a_window_runs(camera, beside_us, story, monkeypatch):
    stream, host = stream_of()
    frames = list(as_messages(camera, host.lib))
    arriving = iter(frames[1:])

    def done(self):  # two frames come while each window runs
        self.asked += 1
        if self.asked == 1:
            for pending in itertools.islice(arriving, 2):
                stream.put(pending)
        return self.asked > 3

    monkeypatch.setattr(Slow, "done", done)
    monkeypatch.setattr("da3_ros.live.stream.POLL_S", 0.0)
    stream.put(frames[0])
    assert stream.step()
    assert story == ["prefix 1", "prefix 1", "window"]
    (chosen,) = stream._chooser.ahead.framesets
    assert chosen[0].stamp_ns == frames[2].stamp_ns  # the newest, not the first that came
    stream.step()
    assert story[3:] == ["prefix 1", "window"]  # the next one's again; its own was there
    assert stream.frame_counts.drop_counts() == {"busy": 2}


@pytest.mark.long
@pytest.mark.slow
def test_live_results_do_not_depend_on_beginning_early(camera, monkeypatch):
    plain = run_live(camera)
    monkeypatch.setattr(module, "Download", Slow)
    assert run_live(camera) == plain
    assert len(plain) > 8


def test_a_reset_forgets_what_was_chosen_and_counts_it(camera, beside_us, monkeypatch):
    stream, host = stream_of()
    frames = list(as_messages(camera, host.lib))
    monkeypatch.setattr(
        Slow, "done", lambda self: stream.put(frames[1]) if not stream._chooser.ahead else True
    )
    monkeypatch.setattr("da3_ros.live.stream.POLL_S", 0.0)
    stream.put(frames[0])
    stream.step()
    assert stream._chooser.ahead is not None
    stream.reset()
    assert stream.frame_counts.drop_counts()["cleared"] == 1
    assert not stream.step()


@pytest.mark.slow
@pytest.mark.parametrize("new", long_after(1, [2, 1]))
@pytest.mark.parametrize("failing", long_after(1, [(2, 3), ((),), ((2,),)]))
def test_images_taken_while_a_window_runs_are_counted(
    camera, beside_us, monkeypatch, new, failing
):
    stream, host = stream_of(**{"window.new": new})
    coming, finish = as_messages(camera, host.lib), module.to_prediction
    windows = itertools.count(1)

    def done(self):  # the next window's images come while this one runs
        self.asked += 1
        if self.asked == 1:
            for pending in itertools.islice(coming, new):
                stream.put(pending)
        return stream._chooser.ahead is not None

    def prediction(*args, **options):
        if next(windows) in failing:
            raise RuntimeError("of this window")
        return finish(*args, **options)

    monkeypatch.setattr(Slow, "done", done)
    monkeypatch.setattr(module, "to_prediction", prediction)
    monkeypatch.setattr("da3_ros.live.stream.POLL_S", 0.0)
    for pending in itertools.islice(coming, new):
        stream.put(pending)
    for n in range(1, 4):
        try:
            stream.step()
        except RuntimeError:
            assert n in failing
        assert sum(map(len, stream._chooser.ahead.framesets)) == new  # taken, and in no count yet
        failed = new * len([number for number in failing if number <= n])
        assert stream.frame_counts.drop_counts() == ({"failed": failed} if failed else {})
        assert stream.frame_counts.received == stream.frame_counts.processed + failed + new
    stream.reset()
    assert stream.frame_counts.drop_counts() == {"cleared": new} | (
        {"failed": failed} if failed else {}
    )
    assert stream.frame_counts.received == stream.frame_counts.processed + failed + new == 4 * new


def test_without_a_device_of_its_own_nothing_is_chosen_early(camera, story):
    stream, host = stream_of()
    for pending in as_messages(camera, host.lib):
        stream.put(pending)
    assert stream.step()
    assert story == ["prefix 1", "window"]


def run_replay(camera, tmp_path, name):
    bag = tmp_path / "bag"
    if not bag.exists():
        write_synthetic_bag(bag, camera)
    settings = config_from_parameters(VALUES, NodeConfig)
    replay(ReplayOptions(bag, tmp_path / name), settings)
    return (tmp_path / name / "output.mcap").read_bytes()


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
def test_replay_begins_the_next_frame_and_writes_the_same_bytes(
    camera, tmp_path, story, monkeypatch
):
    plain = run_replay(camera, tmp_path, "plain")
    assert story[:4] == ["prefix 1", "window", "prefix 1", "window"]
    del story[:]
    monkeypatch.setattr(module, "Download", Slow)
    whole = ReadAhead.waiting

    def waiting(self, most):  # of a reader that has had time
        deadline = time.monotonic() + 30
        while not (self._frames or self._done) and time.monotonic() < deadline:
            time.sleep(0.001)
        return whole(self, most)

    monkeypatch.setattr(ReadAhead, "waiting", waiting)
    assert run_replay(camera, tmp_path, "early") == plain
    assert story == ["prefix 1", *["prefix 1", "window"] * (len(camera) - 1), "window"]


@pytest.mark.long
@pytest.mark.slow
def test_the_usual_time_of_a_window_is_reported(camera, beside_us):
    session = InferenceSession(InferenceConfig("da3-tiny", "random", "cpu", process_res=112))
    pipeline = Pipeline(config_from_parameters({**VALUES}, NodeConfig).pipeline, session)
    told = []
    session.on_window_running = lambda running: told.append(running.ends - time.perf_counter())
    for frame in frames_of(camera):
        list(pipeline.push(frame))
    assert told[0] <= 0  # nothing is known of the first
    assert len(told) == len(camera)


def test_prepared_frames_give_the_same_and_bad_ones_come_back(camera):
    config = config_from_parameters(VALUES, NodeConfig).pipeline
    pipeline, frame = Pipeline(config), frames_of(camera)[0]
    ready = pipeline.builder.prepare(frame)
    assert ready.ready.image.shape[0] % 14 == 0
    assert pipeline.builder._view(ready).view.image is ready.ready.image
    plain = pipeline.builder._view(frame).view
    np.testing.assert_array_equal(plain.image, ready.ready.image)
    pipeline.builder.rule = ResizeRule(84)  # the plan changes
    assert pipeline.builder._view(ready).view.image.shape[1] == 84
    wrong = dataclasses.replace(frame, image=frame.image[:40])  # not what the calibration is for
    assert pipeline.builder.prepare(wrong) is wrong


class Source:
    """A recording as far as a reader needs one."""

    def __init__(self, frames, error=None):
        self.frames, self.error, self.read = frames, error, 0

    def __iter__(self):
        for frame in self.frames:
            self.read += 1
            yield frame
        if self.error:
            raise self.error


def test_the_reader_keeps_order_and_its_bound():
    source, main = Source(range(50)), threading.get_ident()
    threads = set()

    def work(frame):
        threads.add(threading.get_ident())
        return frame * 2

    with ReadAhead(source, work, 3) as reader:
        got = []
        for frame in reader:
            got.append(frame)
            assert source.read <= len(got) + 3 + 1
            assert all(w > frame for w in reader.waiting(2))
    assert got == list(range(0, 100, 2))
    assert main not in threads


def test_an_error_comes_where_the_frame_would_have_come():
    with ReadAhead(Source(range(3), RecordingError("torn")), lambda f: f, 2) as reader:
        frames = iter(reader)
        assert [next(frames) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(RecordingError, match="torn"):
            next(frames)


def test_the_reader_ends_with_whoever_leaves():
    source = Source(itertools.count())
    with ReadAhead(source, lambda f: f, 3) as reader:
        next(iter(reader))
    assert not reader._thread.is_alive()
    assert source.read <= 6


@pytest.mark.long
@pytest.mark.slow
def test_database_bags_are_read_from_another_thread(camera, tmp_path: Path):
    write_synthetic_bag(tmp_path / "bag", camera, storage="sqlite3")
    settings = config_from_parameters(VALUES, NodeConfig)
    summary = replay(ReplayOptions(tmp_path / "bag", tmp_path / "out"), settings)
    assert summary.counts["processed"] == len(camera)
