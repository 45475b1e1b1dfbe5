"""Advice comes from figures beyond their limits, and from nothing else."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from da3_ros.config import config_from_parameters
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose, Poses
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.reporting.advice import CHECKS, Evidence, advices_of
from da3_ros.reporting.figures import Figures
from da3_ros.reporting.guide import guide
from da3_ros.reporting.keyframes import ShownKeyframe
from da3_ros.reporting.run_files import KeptScene, Run
from da3_ros.reporting.timeline import NEWEST, ROW, coarser
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame

PLAIN = config_from_parameters({
    "model": "da3-tiny", "window.size": 6, "process_res": 224, "dense.enabled": False,
    "refinement.enabled": False,
})  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"
# A run in which all is well, and all that is said is known.
WELL = {
    "counts": {"received": 100, "processed": 100, "windows_refined": 95, "windows_few_tracks": 2,
               "bad_images": 0, "frames_without_prior": 0},
    "stopped_at": None,
    "refinement": {"windows": 95, "tracks": 250.0, "reprojection_px": 0.3,
                   "focal_source": {"": "camera_info"}},
    "dense": {"keyframes": 10, "keyframes_measured": 9, "share_measured": 0.6, "agreement": 0.8},
    "loops": {"joins_undone": 0},
    "scale": {"source": "odometry", "metres_per_unit": 1.2, "sigma": 0.01},
    "parameters": {"model": "da3-small"},
}  # fmt: skip


def timeline(frames=100, gap_s=0.1, focal_ratio=1.0):
    rows = np.zeros(frames, ROW)
    for name in NEWEST:
        rows[name] = np.nan
    rows["frames"] = rows["windows"] = 1
    rows["gap_s"], rows["focal_ratio"] = 0.1, focal_ratio
    rows["gap_s"][0], rows["gap_s"][-1] = 0, gap_s
    rows["first_ns"] = rows["last_ns"] = np.round(1e9 * np.cumsum(rows["gap_s"]))
    return rows


def evidence(changes=(), *, metric=True, baseline=0.1, rows=None, component=0):
    """The run where all is well, with values at dotted names replaced; None leaves them out."""
    report = {name: dict(v) if isinstance(v, dict) else v for name, v in WELL.items()}
    for name, value in dict(changes).items():
        table, _, key = name.partition(".")
        if key:
            report[table][key] = value
        else:
            report[table] = value
    poses = Poses.of([Pose(0, np.eye(4), np.eye(3), (2, 2), keyframe=True)])
    scene = Scene((), poses, component_of={0: component})
    kept = KeptScene("", scene, metric, timeline=timeline() if rows is None else rows)
    keyframe = ShownKeyframe(0, "", 1.0, 2.0, 1.0, 0.5, baseline, ())
    return Evidence(Run("run", Figures(report), Figures({}), [kept]), [keyframe])


def problems(*args, **changes):
    return [advice.check.problem for advice in advices_of(evidence(*args, **changes)).found]


def test_all_is_well():
    advices = advices_of(evidence())
    assert advices.found == []
    assert advices.known == len(CHECKS)
    assert advices.unknown == []


CASES = {
    "The recording is damaged": {"stopped_at": "cut"},
    "Images cannot be read": {"counts.bad_images": 1},
    "Frames were dropped": {"counts.dropped_late": 1},
    "Two cameras share one topic": {"counts.foreign_frames": 2},
    "Time jumps in the recording": {"counts.time_jumps": 1},
    "There are few frames": {"counts.processed": 7},
    "Images are blurred": {"counts.blind_blurred": 2},
    "Images are dark": {"counts.blind_dark": 2},
    "Images are overexposed": {"counts.blind_overexposed_left": 2},
    "Images are noise": {"counts.blind_noise": 2},
    "Images are frozen": {"counts.blind_frozen_left": 1, "counts.blind_frozen_right": 1},
    "The camera was lost": {"counts.blind_lost": 2},
    "The network was uncertain": {"counts.blind_uncertain": 2},
    "Windows contradict the scene": {"counts.blind_refused": 2},
    "Windows do not fit the scene": {"counts.windows_refused": 6},
    "Walls are bare, or images have no detail": {"counts.windows_few_tracks": 15},
    "There are few tracks": {"refinement.tracks": 40.0},
    "Tracks do not fit one camera": {"refinement.reprojection_px": 1.5},
    "The focal length is a guess": {"refinement.focal_source": {"left": "network"}},
    "The camera_info does not fit the images": {"refinement.focal_source": {"": "corrected"}},
    "The declared rig contradicts the images": {"counts.rig_contradicted": 3},
    "The scale is uncertain": {"scale.sigma": 0.2},
    "The robot's poses are missing for some frames": {"counts.frames_without_prior": 6},
    "The IMU is missing for some frames": {"counts.frames_without_imu": 6},
    "The IMU contradicts the camera": {"counts.gyro_contradicted": 1},
    "Little depth could be measured": {"dense.share_measured": 0.1},
    "Measured depth is not confirmed": {"dense.agreement": 0.4},
    "Places look alike": {"loops.joins_undone": 1},
    "Keyframes could not be stored": {"counts.keyframes_not_stored": 1},
    "Motion was lost when the images changed their size": {"counts.poses_held": 1},
    "The network is the small one for trying": {"parameters.model": "da3-tiny"},
}


@pytest.mark.parametrize("problem", CASES)
def test_a_figure_beyond_its_limit_is_advised(problem):
    assert problems(CASES[problem]) == [problem]


def test_a_scene_without_metres_is_advised():
    assert problems(metric=False) == ["There are no metres"]


def test_keyframes_from_one_location_are_advised():
    assert problems(baseline=0.001) == ["Views have little baseline"]


@pytest.mark.long
def test_a_blurred_walk_is_called_so_and_a_sharp_one_with_plain_walls_is_not():
    camera = SyntheticCamera(seed=0, frames=60, size=(320, 240), fov_deg=65.0, walk="loop")
    frames = list(camera)
    counts = []
    for blurred in (range(0), range(20, 26)):
        pipeline = Pipeline(PLAIN, TruthSession(frames))
        for i, f in enumerate(frames):
            image = cv2.GaussianBlur(f.image, (0, 0), 10) if i in blurred else f.image
            list(pipeline.push(Frame(f.stamp_ns, image, calibration=camera.calibration)))
        list(pipeline.flush())
        counts.append({f"counts.{name}": count for name, count in pipeline.counters.items()})
    sharp, soft = counts
    assert sharp["counts.suspect_blurred"] > 0.05 * len(frames)  # else nothing is tested
    about_blur = [[p for p in problems(found) if "blur" in p] for found in (sharp, soft)]
    assert about_blur == [[], ["Images are blurred"]]


def test_a_gap_in_the_recording_is_advised():
    assert problems(rows=timeline(gap_s=0.7)) == ["Frames are missing in the recording"]
    assert problems(rows=timeline(gap_s=0.45)) == []  # short


def rows_of(gaps):
    rows = timeline(len(gaps))
    rows["gap_s"] = gaps
    rows["first_ns"] = rows["last_ns"] = np.round(1e9 * np.cumsum(gaps))
    return rows


LOST_SINGLY = [0.2 if k % 20 == 0 else 0.1 for k in range(200)]
LOST_IN_A_ROW = [0.433 if k % 17 == 0 else 0.0333 for k in range(200)]
HALF_RATE = [0.1] * 100 + [0.2] * 50


@pytest.mark.parametrize("gaps", [LOST_SINGLY, LOST_IN_A_ROW, HALF_RATE])
@pytest.mark.parametrize("bins", [200, 100])
def test_frames_that_are_missing_now_and_then_are_advised(gaps, bins):
    assert problems(rows=coarser(rows_of(gaps), bins)) == ["Frames are missing now and then"]


def test_a_share_of_missing_frames_is_exact():
    (advice,) = advices_of(evidence(rows=rows_of([0.1, *LOST_SINGLY]))).found
    assert advice.value == pytest.approx(10 / 210)


def test_stamps_that_tremble_are_no_missing_frames():
    gaps = 0.1 + np.random.default_rng(0).uniform(-0.04, 0.04, 300)
    assert problems(rows=rows_of(gaps)) == []


def test_one_long_gap_is_not_now_and_then():
    gaps = [0.1] * 50 + [60.0] + [0.1] * 50
    assert problems(rows=rows_of(gaps)) == ["Frames are missing in the recording"]
    assert problems(rows=coarser(rows_of(gaps), 60)) == ["Frames are missing in the recording"]


def test_windows_that_were_held_count_in_the_share_of_refused_ones():
    """The timeline has the windows whose frames have depth."""
    counts = {"counts.windows_refused": 50, "counts.blind_refused": 100}
    found = advices_of(evidence(counts, rows=timeline(50))).found
    (share,) = [one.value for one in found if one.check.problem == "Windows do not fit the scene"]
    assert share == pytest.approx(0.5)


def test_evidence_shows_what_is_beyond_the_limit():
    (advice,) = advices_of(
        evidence({"counts.processed": 100_000, "counts.blind_dark": 1004})
    ).found
    assert advice.evidence == "share of frames that are dark: 1.004 % (limit: at most 1 %)"
    rows = timeline(gap_s=18_000.0)
    (advice,) = advices_of(evidence(rows=rows)).found
    assert "180\N{NARROW NO-BREAK SPACE}000 (limit" in advice.evidence


def test_a_calibration_that_the_network_contradicts_is_advised():
    for ratio in (1.5, 0.6):
        assert problems(rows=timeline(focal_ratio=ratio)) == ["The calibration may be wrong"]


def test_a_scene_in_pieces_is_advised():
    assert problems(component=1) == ["The scene is in pieces"]


def test_every_check_has_a_case():
    own = {"There are no metres", "Views have little baseline", "The scene is in pieces",
           "Frames are missing in the recording", "Frames are missing now and then",
           "The calibration may be wrong"}  # fmt: skip
    assert {check.problem for check in CHECKS} == set(CASES) | own


def test_evidence_names_figure_and_limit():
    (advice,) = advices_of(evidence({"dense.agreement": 0.4})).found
    assert advice.evidence == (
        "share of it that other keyframes confirm: 40 % (limit: at least 50 %)"
    )


def test_what_is_not_known_is_not_advised():
    empty = Evidence(Run("run", Figures({}), Figures({}), []), [])
    advices = advices_of(empty)
    assert advices.found == []
    assert advices.known == 0
    assert len(advices.unknown) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.problem)
def test_a_check_names_a_section_of_the_documents(check):
    headings = re.findall(r"^#+ (.+)$", (DOCS / check.page).read_text(), re.M)
    assert check.section in headings
    found = guide(check.page, check.section)
    assert len(found) > 100
    assert found in re.sub(r"^<!--.*\n", "", (DOCS / check.page).read_text(), flags=re.M)


def test_a_section_ends_at_the_next_heading_of_its_rank(tmp_path, monkeypatch):
    text = "# A\nfirst\n## B\n<!-- x -->\ntext\n```\n# no heading\n```\n### C\nmore\n## D\nlast\n"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(text)
    monkeypatch.setattr("da3_ros.reporting.guide.__file__", str(tmp_path / "a" / "guide.py"))
    assert guide("page.md", "B") == "text\n```\n# no heading\n```\n### C\nmore"
    assert guide("page.md", "D") == "last"
    assert guide("page.md", "no heading") == guide("other.md", "B") == ""
