"""Metres from the known geometry of a rig, on windows of rendered rooms."""

import dataclasses
import logging

import numpy as np
import pytest
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.pipeline import map_adjustment
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.refinement import sliding_graph
from da3_ros.refinement.measured_poses import SETTLED
from da3_ros.scale_sources.rig import RigBaselines
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame

SIZE = (140, 112)
NAMES = ("front", "left")
NOISE = Noise(independent=0.02, smooth=0.03, per_frame=0.01, rotation_deg=0.2, translation=0.003)


def make(baseline_m, walk="loop", frames=30, yaw_deg=-30.0, size=SIZE):
    options = {"seed": 3, "size": size, "walk": walk, "frames": frames, "rate_hz": 5.0}
    mounts = {n: rig_mount(i, baseline_m, yaw_deg) for i, n in enumerate(NAMES)}
    cameras = {n: SyntheticCamera(mount=T, **options) for n, T in mounts.items()}
    return mounts, cameras, {n: list(c) for n, c in cameras.items()}


@pytest.fixture(scope="module")
def rig():
    return make(0.3)


def settings(**values):
    base = {
        "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 8,
        "cameras": list(NAMES), "scale.source": "rig", "refinement.enabled": False,
        "map.remove_movers": False, "dense.enabled": False,
        "hold_when_blind": False,  # images of a rig that stands are equal
    }  # fmt: skip
    return config_from_parameters({**base, **values})


def run(rig, *, noise=None, mounts=None, seed=0, session=TruthSession, **values):
    """Results, and for each the true metres per unit of its window's chain."""
    known, cameras, frames = rig
    known = known if mounts is None else mounts
    known = known if callable(known) else known.get
    session = session(frames, noise=noise, seed=seed)
    pipeline = Pipeline(settings(**values), session)
    results, true = [], []
    for i in range(len(frames["front"])):
        frameset = [
            Frame(
                frames[n][i].stamp_ns, frames[n][i].image, f"{n}_optical", n,
                cameras[n].calibration, T_rig_camera=known(n),
            )
            for n in NAMES
        ]  # fmt: skip
        for r in pipeline.push(*frameset):
            results.append(r)
            true.append(1 / (session.unit * r.window.unit))
    return pipeline, results, np.array(true)


def errors(results, true):
    """Relative errors of the scale, and the same in standard deviations, where it is metric."""
    metric = [i for i, r in enumerate(results) if r.scale.metric]
    error = np.array([np.log(results[i].scale.value / true[i]) for i in metric])
    return error, error / [results[i].scale.sigma for i in metric]


@pytest.mark.slow
def test_a_clean_rig_makes_metres_within_the_first_windows(rig):
    pipeline, results, true = run(rig)
    error, _ = errors(results, true)
    assert len(error) > len(results) - 12
    assert np.abs(error).max() < 0.005
    assert pipeline.scale.known


@pytest.mark.slow
def test_also_when_the_rig_stands():
    _, results, true = run(make(0.3, walk="still", frames=8))
    error, _ = errors(results, true)
    assert len(error) >= 8
    assert np.abs(error).max() < 0.005


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scale_of_a_noisy_network_is_within_its_sigma(rig, seed):
    _, results, true = run(rig, noise=NOISE, seed=seed)
    error, z = errors(results, true)
    assert len(error) > 40
    assert np.abs(error[-20:]).mean() < 0.04
    assert np.abs(z).max() < 4
    values = np.array([r.scale.value for r in results if r.scale.metric])
    assert np.abs(np.diff(np.log(values))).max() <= np.log(1.02) + 1e-9
    sigmas = [r.scale.sigma for r in results if r.scale.metric]
    assert np.median(sigmas) < 0.06


def test_short_baselines_make_no_metres_and_one_line(caplog):
    _, results, _ = run(make(0.02, frames=8), noise=NOISE)
    assert not any(r.scale.metric for r in results)
    assert caplog.text.count("rig are 0.02 m apart") == 1
    assert "farther apart" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "words"),
    long_after(
        1,
        [
            (rig_mount(1, -0.3, -30.0), "directions between the cameras"),
            (rig_mount(1, 0.3, 40.0), "rotations between the cameras"),
            (rig_mount(1, 0.0, -30.0), "the same position"),
        ],
    ),
)
def test_a_rig_with_implausible_mounts_gives_no_metres(rig, wrong, words, caplog):
    short = (rig[0], rig[1], {n: f[:8] for n, f in rig[2].items()})
    _, results, _ = run(short, mounts={"front": np.eye(4), "left": wrong})
    assert not any(r.scale.metric for r in results)
    assert caplog.text.count(words) == 1


def test_without_known_places_nothing_is_called_metres(rig):
    short = (rig[0], rig[1], {n: f[:8] for n, f in rig[2].items()})
    _, results, _ = run(short, mounts={})
    assert not any(r.scale.metric for r in results)


class Shrinking(TruthSession):
    """Sees the cameras too near to each other, as a weak network does; its depths are right."""

    def infer(self, window):
        prediction = super().infer(window)
        poses = prediction.T_window_camera.copy()
        middle = poses[:, :3, 3].mean(axis=0)
        poses[:, :3, 3] = middle + 0.75 * (poses[:, :3, 3] - middle)
        return dataclasses.replace(prediction, T_window_camera=poses)


@pytest.mark.long
@pytest.mark.slow
def test_depths_against_the_baselines_make_scale_unsure():
    mounts, cameras, frames = make(0.3, frames=16, yaw_deg=0.0)
    pipeline = Pipeline(settings(), Shrinking(frames))
    errors, sigmas = [], []
    for i in range(16):
        frameset = [
            Frame(
                frames[n][i].stamp_ns, frames[n][i].image, f"{n}_optical", n,
                cameras[n].calibration, T_rig_camera=mounts[n],
            )
            for n in NAMES
        ]  # fmt: skip
        for r in pipeline.push(*frameset):
            if r.scale.metric:
                unit = pipeline.session.unit * r.window.unit
                errors.append(np.log(r.scale.value * unit))
                sigmas.append(r.scale.sigma)
    # By the baselines alone it would be 29 % too large, and sure of it.
    assert len(errors) > 4
    assert np.abs(np.array(errors) / sigmas).max() < 2.5


TRACKED = {"process_res": 224, "refinement.enabled": True}


@pytest.mark.long
@pytest.mark.parametrize(
    "declared",
    long_after(1, [rig_mount(1, 0.12, 0.0), rig_mount(1, 0.12, 3.0)]),
    ids=("exact", "turned"),
)
def test_tracks_measure_a_stereo_pair_that_the_network_places_wrongly(declared, caplog):
    """Its baseline is 4 % of the depth, and the network's are a quarter too short."""
    rig = make(0.12, "strafe", frames=12, yaw_deg=0.0, size=(224, 168))
    mounts = {"front": np.eye(4), "left": declared}
    pipeline, results, _ = run(rig, noise=NOISE, session=Shrinking, mounts=mounts, **TRACKED)
    metric = [r for r in results if r.scale.metric]
    assert len(metric) > 10
    way, true = (np.array(p)[-6:, :3, 3] for p in (
        [r.T_map_camera for r in metric if r.camera == "front"],
        [f.T_room_camera for f in rig[2]["front"]],
    ))  # fmt: skip
    ratio = np.linalg.norm(way[-1] - way[0]) / np.linalg.norm(true[-1] - true[0])
    assert ratio == pytest.approx(1.0, abs=0.02)
    assert abs(np.log(ratio)) < 3 * metric[-1].scale.sigma
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert pipeline.counters["rig_contradicted"] == 0


@pytest.mark.long
def test_windows_and_map_share_the_metre(monkeypatch):
    """And the network is not asked once they know it."""
    given, asked = [], []

    def adjusted(*args, **options):
        given.append(options["metre"])
        return adjust(*args, **options)

    def measure(self, window, estimate, by_prior):
        asked.append(window.id)

    adjust = map_adjustment.adjusted_map
    monkeypatch.setattr(map_adjustment, "adjusted_map", adjusted)
    monkeypatch.setattr(RigBaselines, "measure", measure)
    rig = make(0.12, "strafe", frames=12, yaw_deg=0.0, size=(224, 168))
    pipeline, results, _ = run(rig, noise=NOISE, **TRACKED)
    assert given[-1].sigma <= SETTLED
    assert max(asked) < 8
    assert any(r.scale.metric for r in results)
    assert pipeline.refinement.knows_metre
    pipeline.reset()
    assert not pipeline.refinement.knows_metre


@pytest.mark.long
@pytest.mark.parametrize(
    "declared", long_after(1, [rig_mount(1, -0.12, 0.0), rig_mount(1, 0.12, 12.0)])
)
def test_a_rig_that_tracks_contradict_gives_no_metres_and_one_line(declared, caplog):
    """Also if the network would take it (12 degrees)."""
    rig = make(0.12, "strafe", frames=8, yaw_deg=0.0, size=(224, 168))
    mounts = {"front": np.eye(4), "left": declared}
    pipeline, results, _ = run(rig, noise=NOISE, mounts=mounts, **TRACKED)
    assert not any(r.scale.metric for r in results)
    assert pipeline.counters["rig_contradicted"] >= 5
    assert caplog.text.count("otherwise than declared") == 1


@pytest.mark.long
def test_a_knocked_rig_holds_its_metres_as_uncertain(monkeypatch):
    """They may be wrong since then."""
    monkeypatch.setattr(sliding_graph, "MOST_CONTRADICTIONS", 3)
    rig = make(0.12, "strafe", frames=14, yaw_deg=0.0, size=(224, 168))
    asked = []

    def declared(name):
        asked.append(name)
        turn = 12.0 * (len(asked) > 14)  # the second half of all frames
        return np.eye(4) if name == "front" else rig_mount(1, 0.12, turn)

    _, results, _ = run(rig, noise=NOISE, mounts=declared, **TRACKED)
    sigmas = [r.scale.sigma for r in results if r.scale.metric and r.camera == "front"]
    assert min(sigmas) < 0.02
    assert sigmas[-1] >= 0.1


class DeepSession(TruthSession):
    """All depth is too large for the poses of its window."""

    def infer(self, window):
        prediction = super().infer(window)
        return dataclasses.replace(prediction, depth=prediction.depth * np.float32(1.25))


@pytest.mark.long
def test_metres_follow_the_poses_that_tracks_have_refined():
    """Refinement brings depth into the unit of the motion: metres must not follow the old one."""
    rig = make(0.15, "strafe", frames=12, yaw_deg=0.0, size=(224, 168))
    noise = dataclasses.replace(NOISE, rotation_deg=0.3)
    values = {"process_res": 224, "refinement.enabled": True}
    _, results, _ = run(rig, noise=noise, session=DeepSession, **values)
    pairs = list(zip(results[::2], results[1::2], strict=True))[6:]
    between = [np.linalg.norm(a.T_map_camera[:3, 3] - b.T_map_camera[:3, 3]) for a, b in pairs]
    assert np.median(between) == pytest.approx(0.15, rel=0.03)
    true = {(name, f.stamp_ns): f.depth for name, fs in rig[2].items() for f in fs}
    ratio = [np.nanmedian(r.depth_m / true[r.camera, r.stamp_ns]) for r in results[12:]]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.04)


@pytest.mark.long
@pytest.mark.parametrize("walk", ["still", "spot"])
def test_metres_follow_them_when_the_rig_stays_where_it_is(walk):
    """Then only the distances between the cameras show what refinement has done to the unit."""
    rig = make(0.3, walk, frames=10, yaw_deg=-30.0, size=(224, 168))
    values = {"process_res": 224, "refinement.enabled": True}
    _, results, _ = run(rig, noise=NOISE, session=DeepSession, **values)
    metric = [r for r in results if r.scale.metric]
    assert len(metric) > 8
    true = {(name, f.stamp_ns): f.depth for name, fs in rig[2].items() for f in fs}
    ratio = [np.nanmedian(r.depth_m / true[r.camera, r.stamp_ns]) for r in metric]
    assert np.abs(np.log(ratio)).max() < 0.06
