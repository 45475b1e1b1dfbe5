"""The tracks of a replay: kept, written, drawn."""

import dataclasses
import json

import cv2
import numpy as np
import pytest
from support.pipelines import to_frame

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.config import config_from_parameters
from da3_ros.drawing.tracks_file import LONGEST_SIDE, MOST_FRAMES, TrackSampler, load_tracks
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.refinement.track_history import LENGTH, TrackHistory
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (224, 168), 6


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(42, SIZE, walk="strafe", frames=FRAMES, rate_hz=3)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera)
    return path


def run(camera, bag, output, *assignments):
    values = ["process_res:=224", "window.size:=4", "map.voxel_m:=0.05", "dense.enabled:=false"]
    settings = load_config(None, [*values, *assignments])
    return replay(ReplayOptions(bag, output), settings, TruthSession(camera))


@pytest.fixture(scope="module")
def replayed(camera, bag, tmp_path_factory):
    output = tmp_path_factory.mktemp("replay") / "out"
    run(camera, bag, output)
    return output


def test_a_replay_keeps_the_tracks_of_refined_frames(camera, replayed):
    frames = load_tracks(replayed)
    true = list(camera)
    assert [f.stamp_ns for f in frames] == [f.stamp_ns for f in true[1:]]
    for read, frame in zip(frames, true[1:], strict=True):
        assert np.abs(read.image().astype(int) - frame.image).mean() < 6
        assert len(read.track_history) >= 30
        assert read.track_history.rms_px < 1


def test_points_of_tracks_are_drawn_in_the_colours_of_their_errors(replayed, tmp_path, capsys):
    target = tmp_path / "points.png"
    command = ["view", str(replayed), "--output", str(target), "--track-points"]
    assert main([*command, "--size", "320x240"]) == 0
    assert int(capsys.readouterr().out.split()[1]) > 30
    picture = cv2.imread(str(target)).astype(int)
    assert ((picture[..., 1] > 150) & (picture[..., 0] < 90)).sum() > 50, "green: small errors"


@pytest.mark.long
@pytest.mark.usefixtures("solved_each_time")
def test_two_replays_write_the_same_tracks(camera, bag, replayed, tmp_path):
    run(camera, bag, tmp_path)
    assert (tmp_path / "tracks.npz").read_bytes() == (replayed / "tracks.npz").read_bytes()


@pytest.mark.parametrize("source", ["", "tracks.npz"])
def test_the_tracks_are_drawn(replayed, tmp_path, capsys, source):
    target = tmp_path / "tracks.png"
    command = ["view", str(replayed / source), "--tracks", "--output", str(target)]
    assert main([*command, "--size", "160x120"]) == 0
    frames = load_tracks(replayed)
    mean = np.mean([len(f.track_history) for f in frames])
    said = f"{target}: {FRAMES - 1} frames, {mean:.0f} tracks a frame\n"
    assert capsys.readouterr().out == said
    picture = cv2.imread(str(target)).astype(int)
    assert picture.shape[1] == 3 * 160 + 2 * 8
    green = picture[..., 1] - picture[..., [0, 2]].max(axis=2) > 60
    assert 0.02 < green.mean() < 0.5
    assert [p.name for p in tmp_path.iterdir()] == ["tracks.png"]


def test_without_refined_windows_there_is_no_file_and_the_command_says_why(
    camera, bag, tmp_path, capsys
):
    output = tmp_path / "out"
    output.mkdir()
    (output / "tracks.npz").write_bytes(b"of an older replay")
    older = {"parameters": {"cameras": ["left"]}}
    (output / "report.json").write_text(json.dumps(older))
    for name in ("video.mp4", "video_left.mp4", "video_mine.mp4"):
        (output / name).write_bytes(b"of an older replay, or the user's")
    (output / "tracks.txt").write_bytes(b"of the user")
    summary = run(camera, bag, output, "refinement.enabled:=false")
    assert "tracks.npz" not in summary.files
    assert [p.name for p in sorted(output.glob("video*"))] == ["video_mine.mp4"]
    assert (output / "tracks.txt").exists()
    target = tmp_path / "a.png"
    assert main(["view", str(output), "--tracks", "--output", str(target)]) == 1
    said = capsys.readouterr().err
    assert "no tracks.npz: replay with refinement.enabled:=true" in said
    assert said.count("\n") == 1
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--output", "a.jpg"], 1, "must end with .png"),
        (["--output", "a.png", "--from", "top"], 2, "--tracks: --from is for scenes"),
        (["--output", "a.png", "--below", "0"], 2, "--tracks: --below is for scenes"),
        (["--output", "a.png", "--size", "9x"], 2, "write WIDTHxHEIGHT"),
        (["--output", "a.png", "--size", "9999x9"], 1, "at most"),
        (["--output", f"{__file__}/a.png"], 1, "cannot be written"),
    ],
)
def test_pictures_that_cannot_be_made(replayed, capsys, arguments, code, words):
    assert main(["view", str(replayed), "--tracks", *arguments]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "words"), [("none", "does not exist"), ("text.npz", "is damaged")]
)
def test_what_holds_no_tracks_is_reported_in_one_line(tmp_path, capsys, name, words):
    (tmp_path / "text.npz").write_text("tracks")
    target = tmp_path / "a.png"
    assert main(["view", str(tmp_path / name), "--tracks", "--output", str(target)]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not target.exists()


def test_a_long_stream_leaves_few_small_frames(camera, tmp_path):
    true = list(camera)
    config = config_from_parameters({"process_res": 224, "window.size": 4})
    frame = next(Pipeline(config, TruthSession(true)).push(to_frame(camera, true[0])))
    large = np.zeros((900, 1200, 3), np.uint8)
    asked = []

    def track_history(id):
        asked.append(id)
        return TrackHistory(np.full((3, LENGTH, 2), 0.5), np.zeros(3))

    track_sampler = TrackSampler(track_history)
    for id in range(400):  # every second one is refined
        window = dataclasses.replace(frame.window, refined=id % 2 == 1)
        track_sampler.add_frame(
            dataclasses.replace(frame, id=id, stamp_ns=id, image=large, window=window)
        )
    track_sampler.write(tmp_path / "tracks.npz")
    frames = load_tracks(tmp_path)
    assert len(frames) == MOST_FRAMES
    assert all(f.stamp_ns % 2 for f in frames)
    assert frames[-1].stamp_ns > 350
    assert frames[0].image().shape == (LONGEST_SIDE * 3 // 4, LONGEST_SIDE, 3)
    assert len(asked) < 100, "tracks of frames that are kept only"
