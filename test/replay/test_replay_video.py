"""`da3_ros replay --video`: what it shows, and that an interrupted one goes on."""

import contextlib
import sys
from fractions import Fraction

import cv2
import numpy as np
import pytest

from da3_ros.cli.arguments import load_config
from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.drawing.dense_sheet import fitted
from da3_ros.drawing.scene_renderer import BACKGROUND
from da3_ros.drawing.video_sheet import TITLE
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import checkpoint
from da3_ros.replay.picture_spill import PictureSpill
from da3_ros.replay.results import ReplayError, ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import TruthSession

pytest.importorskip("av", reason="needs PyAV: pip install av")
SIZE, FRAMES = (112, 84), 12
CELL = (640, 480)
QUICK = ("model:=da3-tiny", "checkpoint:=random", "process_res:=112", "window.size:=5",
         "mixed_precision:=off", "backend:=torch", "refinement.enabled:=false")  # fmt: skip


class Interrupted(TruthSession):
    """Exact windows; one of them is interrupted."""

    def __init__(self, truth, at=-1):
        super().__init__(truth)
        self.at = at

    def infer(self, window):
        if window.id == self.at:
            raise KeyboardInterrupt
        return super().infer(window)


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=SIZE, walk="strafe", frames=FRAMES, rate_hz=4.0)


@pytest.fixture(scope="module")
def bag(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("bags") / "room"
    write_synthetic_bag(path, camera)
    return path


def run(bag, output, truth, *assignments, at=-1, **options):
    config = load_config(None, [*QUICK, *assignments])
    with contextlib.suppress(KeyboardInterrupt):
        replay(ReplayOptions(bag, output, video=True, **options), config, Interrupted(truth, at))


def shown(path):
    """Frames a second, and the pictures RGB."""
    video, found = cv2.VideoCapture(str(path)), []
    while (read := video.read())[0]:
        found.append(read[1][..., ::-1].astype(int))
    return video.get(cv2.CAP_PROP_FPS), np.array(found)


@pytest.fixture(scope="module")
def whole(bag, camera, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    run(bag, output, camera)
    return output


def cell(picture, row, column):
    top, left = row * (CELL[1] + TITLE) + TITLE, column * CELL[0]
    return picture[top : top + CELL[1], left : left + CELL[0]]


@pytest.mark.long
@pytest.mark.slow
def test_each_frame_is_shown_with_depth_confidence_and_map(whole, camera):
    rate, pictures = shown(whole / "video.mp4")
    assert rate == pytest.approx(4.0)
    assert len(pictures) == FRAMES
    mapped = []
    for frame, picture in zip(camera, pictures, strict=True):
        off = np.abs(cell(picture, 0, 0) - fitted(frame.image, CELL))
        assert np.median(off) < 6
        for place in ((0, 1), (1, 0)):
            assert cell(picture, *place).max(axis=2).mean() > 100
        above = cell(picture, 1, 1)
        mapped.append((above.max(axis=2) > BACKGROUND + 30).mean())
        white = above.min(axis=2) > 200
        assert white.any(), "the camera is in the map"
    assert mapped[0] > 0.02
    path = [(cell(p, 1, 1) @ [-1, 0, 1] > 120).sum() for p in pictures]
    assert path[0] < 5
    assert path[-1] > 50


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("checkpoints_are_saved")
def test_a_continued_replay_gives_the_same_video(whole, bag, camera, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    output = tmp_path / "parts"
    run(bag, output, camera, at=2)
    assert [p.name for p in output.iterdir()] == ["unfinished"]
    left = output / "unfinished" / "pictures.spill"
    with left.open("ab") as file:  # what was written after the checkpoint
        file.write(b"more")
    run(bag, output, camera, go_on=True)
    expected, found = shown(whole / "video.mp4"), shown(output / "video.mp4")
    assert expected[0] == found[0]
    assert expected[1].shape == found[1].shape
    # The encoder may give other bytes for the same pictures.
    assert np.abs(expected[1] - found[1]).mean(axis=(1, 2, 3)).max() < 0.5
    assert not list(output.glob("*.spill"))


def test_pictures_that_are_lost_are_not_continued(tmp_path):
    spill = PictureSpill(tmp_path / "a.spill")
    spill.add(0, np.zeros((8, 8, 3), np.uint8))
    size = spill.written()
    spill.file.close()
    with pytest.raises(OSError, match="is not complete"):
        PictureSpill(tmp_path / "a.spill", size + 1)


@pytest.mark.parametrize(
    ("stamps_s", "rate"),
    [((0, 0.05, 0.1, 9.0), 20), ((0, 1e-4, 2e-4), 60), ((0, 100, 200), 2), ((5,), 10)],
)
def test_the_pace_is_that_of_most_stamps_within_limits(tmp_path, stamps_s, rate):
    spill = PictureSpill(tmp_path / "a.spill")
    for stamp in stamps_s:
        spill.add(round(1e9 * stamp), np.full((16, 16, 3), 100, np.uint8))
    spill.encode(tmp_path / "a.mp4")
    spill.file.close()
    fps, pictures = shown(tmp_path / "a.mp4")
    assert Fraction(fps).limit_denominator(1000) == rate
    assert len(pictures) == len(stamps_s)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "names"), [("joint", [""]), ("independent", ["", "_left"])])
def test_cameras_with_windows_of_their_own_have_videos_of_their_own(tmp_path, mode, names):
    walk = {"seed": 2, "size": SIZE, "walk": "straight", "frames": 6}
    rig = {
        name: SyntheticCamera(mount=rig_mount(i, 0.2, -30), **walk)
        for i, name in enumerate(("front", "left"))
    }
    write_synthetic_bag(tmp_path / "rig", rig)
    run(tmp_path / "rig", tmp_path / "out", rig, "cameras:=[front, left]", f"window.mode:={mode}")
    found = sorted((tmp_path / "out").glob("video*"))
    assert found == [tmp_path / "out" / f"video{name}.mp4" for name in names]
    for video in found:
        assert len(shown(video)[1]) == 6


@pytest.mark.long
def test_frames_without_poses_are_shown_beside_an_empty_map(tmp_path, bag, camera):
    values = {"model": "da3metric-large", "checkpoint": "random", "process_res": 84}
    settings = config_from_parameters({**values, "device": "cpu"}, NodeConfig)
    replay(ReplayOptions(bag, tmp_path / "out", video=True, end_s=0.6), settings)
    _, pictures = shown(tmp_path / "out" / "video.mp4")
    assert len(pictures) == 3
    for picture in pictures:
        assert np.abs(cell(picture, 1, 1) - BACKGROUND).mean() < 2
        assert cell(picture, 0, 1).max() > 100


def test_without_an_encoder_a_replay_says_so_before_it_begins(bag, camera, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    options = ReplayOptions(bag, tmp_path / "out", video=True)
    with pytest.raises(ReplayError, match="pip install av"):
        replay(options, load_config(None, QUICK), TruthSession(camera))
    assert not (tmp_path / "out").exists()
