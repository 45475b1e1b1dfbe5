"""A fleet hands IMU, range sensors and global poses on: its results are those of replays."""

import filecmp
import json
from pathlib import Path

import pytest

from da3_ros import __version__
from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.fleet.jobs import find_jobs
from da3_ros.fleet.worker import COMPLETE, FAILED, LOG, OUTCOME, FleetWorker
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount

FRAMES, NAMES = 12, ("front", "left")
PARAMETERS = (
    "model:=da3-tiny", "checkpoint:=random", "process_res:=84", "window.size:=5",
    "mixed_precision:=off", "backend:=torch", "cameras:=[front, left]", "odom_frame:=map",
    "refinement.enabled:=false",
    "scale.source:=[imu, range]", "level.source:=imu", "base_frame:=front_optical",
)  # fmt: skip
OWN = {LOG, OUTCOME, "measured.json"}  # files that a single replay has not, or with other times


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """A robot with all sensors, and one without global poses."""
    folder = tmp_path_factory.mktemp("bags")
    walk = {"seed": 3, "size": (84, 70), "walk": "carried", "frames": FRAMES}
    rig = {n: SyntheticCamera(mount=rig_mount(i, 0.3, -30), **walk) for i, n in enumerate(NAMES)}
    for name, poses in (("all", True), ("without", False)):
        write_synthetic_bag(
            folder / name, rig, tf=True, imu=True, lidar_hz=10.0, global_pose=poses
        )
    return folder


@pytest.mark.slow
def test_results_with_all_sensors_equal_those_of_single_replays(bags, tmp_path):
    settings = load_config(None, PARAMETERS)
    options = ReplayOptions(Path(), tmp_path / "fleet", imu="/imu", global_pose="/global_pose")
    (tmp_path / "fleet").mkdir()
    worker = FleetWorker(0, settings, options, 1.0)
    worker.open(__version__)
    jobs = {job.name: job for job in find_jobs([bags], options.output, options, settings)}
    found = {name: worker.run(jobs[name], 1) for name in ("without", "all")}
    assert found["all"].state == COMPLETE
    assert found["without"].state == FAILED
    assert "has no topic /global_pose of PoseWithCovarianceStamped" in found["without"].reason
    words = [word for value in PARAMETERS for word in ("-p", value)]
    words += ["--imu", "/imu", "--global-pose", "/global_pose", "--no-report"]
    assert main(["replay", str(bags / "all"), "--output", str(tmp_path / "one"), *words]) == 0
    folders = tmp_path / "fleet" / "all", tmp_path / "one"
    files = [{str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} - OWN for f in folders]
    assert files[0] == files[1]
    assert not filecmp.cmpfiles(*folders, sorted(files[0]), shallow=False)[1]
    counts = json.loads((folders[0] / "report.json").read_text())["counts"]
    assert counts["frames_with_returns"] > FRAMES
    assert counts.get("frames_without_imu", 0) == 0
