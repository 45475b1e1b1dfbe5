"""Replay of a data set: its own stamps and calibration, and nothing of its truth."""

import numpy as np
import pytest
from support.sequence_writers import write_euroc

from da3_ros.cli.arguments import load_config
from da3_ros.recordings.true_poses import read_true_poses
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

SIZE, FRAMES = (84, 70), 6
QUICK = ("process_res:=84", "window.size:=4", "refinement.enabled:=false")


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=3, size=SIZE, walk="straight", frames=FRAMES)


@pytest.fixture
def replayed(camera, tmp_path):
    """Replays a data set of the camera with exact windows."""

    def run(name, with_truth):
        folder = tmp_path / name / "V1_01"
        write_euroc(folder, camera, list(camera))
        if not with_truth:
            (folder / "mav0" / "state_groundtruth_estimate0" / "data.csv").unlink()
        options = ReplayOptions(folder, tmp_path / name / "out")
        replay(options, load_config(None, QUICK), TruthSession(camera))
        return folder, options.output

    return run


@pytest.mark.slow
def test_truth_changes_no_byte_of_a_replay(replayed):
    (_, with_truth), (_, without) = replayed("a", True), replayed("b", False)
    for name in ("trajectory.tum", "scene.ply", "output.mcap"):
        assert (with_truth / name).read_bytes() == (without / name).read_bytes()


@pytest.mark.slow
def test_poses_of_a_replay_meet_true_poses_at_their_stamps(replayed, camera):
    folder, output = replayed("a", True)
    rows = [line.split() for line in (output / "trajectory.tum").read_text().splitlines()]
    stamps = [int(row[0].replace(".", "")) for row in rows]
    assert stamps == [frame.stamp_ns for frame in camera]
    truth = read_true_poses(folder)
    true = np.array([truth.at(stamp)[:3, 3] for stamp in stamps])
    ours = np.array([[float(v) for v in row[1:4]] for row in rows])
    ours, true = (np.linalg.norm(points - points[0], axis=1)[1:] for points in (ours, true))
    np.testing.assert_allclose(ours / true, (ours / true)[0], rtol=1e-3)  # one unknown scale
