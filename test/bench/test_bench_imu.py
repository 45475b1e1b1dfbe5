"""The benchmark of an IMU on a recording in EuRoC's layout, made from a simulated walk."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support import programs
from support.inertial import BODY, InertialWalk

from da3_ros.geometry.poses import invert_pose

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(0)]
SCRIPT = Path(__file__).parents[2] / "bench" / "bench_imu.py"


def write_euroc(folder, walk):
    """A recording whose body is the IMU."""
    for name in ("cam0", "imu0", "state_groundtruth_estimate0"):
        (folder / "mav0" / name).mkdir(parents=True)
    lines = "".join(f"{stamp},{stamp}.png\n" for stamp in walk.at)
    (folder / "mav0/cam0/data.csv").write_text("#timestamp [ns],filename\n" + lines)
    T_BS = invert_pose(BODY).reshape(-1).tolist()
    (folder / "mav0/cam0/sensor.yaml").write_text(f"T_BS:\n  cols: 4\n  rows: 4\n  data: {T_BS}\n")
    body = walk.true @ BODY
    turns = Rotation.from_matrix(body[:, :3, :3]).as_quat()[:, [3, 0, 1, 2]]
    write(folder, "state_groundtruth_estimate0", walk.at, body[:, :3, 3], turns)
    s = walk.samples
    write(folder, "imu0", s.stamps_ns, s.gyro, s.acceleration)


def write(folder, name, stamps, *columns):
    rows = zip(stamps, np.column_stack(columns), strict=True)
    lines = [f"{stamp}," + ",".join(f"{x:.12g}" for x in row) for stamp, row in rows]
    (folder / "mav0" / name / "data.csv").write_text("#timestamp [ns]\n" + "\n".join(lines) + "\n")


def test_a_recording_in_eurocs_layout_is_judged(tmp_path):
    write_euroc(tmp_path / "carried", InertialWalk("carried", 3, 12))
    out = tmp_path / "out.json"
    done = programs.run(SCRIPT, "--euroc", tmp_path / "carried", "--out", out)
    assert done.returncode == 0, done.stderr
    exact = json.loads(out.read_text())["rows"][0]
    assert exact["walk"] == "carried"
    assert exact["10 s"]["error_largest"] < 1.0
    assert exact["10 s"]["tilt_95_deg"] < 1.0


def test_walks_give_a_row_per_noise(tmp_path):
    out = tmp_path / "out.json"
    done = programs.run(
        SCRIPT, "poses", "--runs", "1", "--seconds", "6", "--walks", "drone", "--out", out
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["poses"] for row in rows][:2] == ["exact", "1 % of the way"]
    assert rows[0]["5 s"]["error_largest"] < 2.0
    assert "| drone | exact |" in done.stdout
