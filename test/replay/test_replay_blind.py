"""Replays of recordings in which the camera sees nothing for a while."""

import contextlib
import dataclasses
import json

import bench_blind
import numpy as np
import pytest
from support.file_readers import messages

from da3_ros.cli.arguments import load_config
from da3_ros.recordings.base import RecordingError
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import checkpoint
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import Noise, TruthSession

SIZE, FRAMES, START, LENGTH = (140, 112), 16, 7, 4
VALUES = [
    "model:=da3-tiny", "checkpoint:=random", "process_res:=140", "window.size:=4",
    "mixed_precision:=off", "backend:=torch", "refinement.enabled:=false",
]  # fmt: skip


class Faulty(SyntheticCamera):
    """A camera whose lens is covered for some frames."""

    covered = range(START, START + LENGTH)

    def __iter__(self):
        for i, f in enumerate(super().__iter__()):
            black = bench_blind.lens_cap(f.image, i, f.image)
            yield dataclasses.replace(f, image=black) if i in self.covered else f


def replayed(tmp_path, camera, **options):
    write_synthetic_bag(tmp_path / "room", camera)
    settings = load_config(None, VALUES)
    given = ReplayOptions(tmp_path / "room", tmp_path / "out", **options)
    return tmp_path / "out", replay(
        given, settings, TruthSession(SyntheticCamera.__iter__(camera))
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    camera = Faulty(seed=2, size=SIZE, walk="straight", frames=FRAMES)
    return replayed(tmp_path_factory.mktemp("blind"), camera)


def test_the_files_hold_no_pose_of_blind_images(run):
    output, summary = run
    assert len((output / "trajectory.tum").read_text().splitlines()) == FRAMES - LENGTH
    counts = json.loads((output / "report.json").read_text())["counts"]
    assert counts["blind_dark"] == LENGTH
    assert counts["processed"] == FRAMES
    assert f"without depth, pose held: dark {LENGTH}" in summary.text()


def test_topics_have_held_poses_and_no_depth(run):
    def of(topic):
        return list(messages(run[0], f"/da3/{topic}"))

    poses = [m.pose for m in of("pose")]
    assert len(poses) == FRAMES
    places = np.array([[p.pose.position.x, p.pose.position.y, p.pose.position.z] for p in poses])
    assert np.ptp(places[START - 1 : START + LENGTH], axis=0).max() < 1e-9
    variances = np.array([p.covariance.reshape(6, 6)[0, 0] for p in poses])
    assert (np.diff(variances[START - 1 : START + LENGTH]) > 0).all()
    depth = [np.frombuffer(bytes(m.data), np.float32) for m in of("depth/image")]
    known = [bool(np.isfinite(d).any()) for d in depth]
    assert [i for i, k in enumerate(known) if not k] == [*range(START, START + LENGTH)]
    assert len(of("window")) == FRAMES - LENGTH


def test_a_recording_without_any_sight_says_so(tmp_path):
    class Dark(Faulty):
        covered = range(FRAMES)

    camera = Dark(seed=2, size=SIZE, walk="straight", frames=FRAMES)
    with pytest.raises(
        (ReplayError, RecordingError), match=r"no image shows anything \(dark 16\)"
    ):
        replayed(tmp_path, camera)
    assert not (tmp_path / "out").exists()


class Numbered(TruthSession):
    """Noise that depends on the number of a window only."""

    def infer(self, window):
        self._rng = np.random.default_rng(window.id)
        return super().infer(window)


def whole(folder):
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {str(name): data for name, data in files.items() if name.name != "measured.json"}


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
@pytest.mark.slow
@pytest.mark.parametrize("refine", ["false", "true"])
def test_a_replay_interrupted_in_the_dark_goes_on_with_the_same_bytes(
    checkpoints_are_saved, tmp_path, monkeypatch, refine
):
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    camera = Faulty(seed=2, size=SIZE, walk="straight", frames=FRAMES)
    write_synthetic_bag(tmp_path / "room", camera)
    settings = load_config(None, [*VALUES[:-1], f"refinement.enabled:={refine}"])

    def run(output, until=FRAMES, **options):
        def stop(done, total):
            if done == until < total:
                raise KeyboardInterrupt

        truth = SyntheticCamera.__iter__(camera)
        session = Numbered(truth, noise=Noise(0.01, 0.02, 0.02, 0.5, 0.02))
        with contextlib.suppress(KeyboardInterrupt):
            replay(ReplayOptions(tmp_path / "room", output, **options), settings, session,
                   on_frame=stop)  # fmt: skip

    run(tmp_path / "whole")
    for until in (START + 2, START + LENGTH, FRAMES):
        run(tmp_path / "parts", until, go_on=until > START + 2)
    assert whole(tmp_path / "whole") == whole(tmp_path / "parts")
