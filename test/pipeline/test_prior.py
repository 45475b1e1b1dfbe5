"""Known poses through the pipeline: what the network is given, and what comes out."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.geometry.similarity import IDENTITY
from da3_ros.mapping.alignment import Alignment
from da3_ros.mapping.covariance import PoseUncertainty
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.pose_conditioning import PriorPoseSubstitution
from da3_ros.refinement.refiner import WindowRefiner
from da3_ros.synthetic import SyntheticCamera, distance_to_surface
from da3_ros.synthetic.odometry import DriftingOdometry
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, ScaleMeasurement

SIZE = (140, 112)


def settings(**values):
    base = {
        "process_res": 140,
        "model": "da3-tiny",
        "checkpoint": "random",
        "refinement.enabled": False,
        "map.remove_movers": False,
        "window.size": 6,
        "pose_prior.source": "odometry",
    }
    return config_from_parameters({**base, **values})


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(seed=3, size=SIZE, walk="loop", frames=24, rate_hz=4.0)
    frames = list(camera)
    odometry = DriftingOdometry(frames[0].T_room_camera)
    priors = []
    for frame in frames:
        odometry.move(frame.T_room_camera, 0.25)
        priors.append(odometry.T_odom_camera.copy())
    return camera, frames, priors


class Spy(TruthSession):
    """Remembers what the network is given."""

    given = ()

    def infer(self, window):
        self.given = (*self.given, window.T_prior_camera)
        return super().infer(window)


def run(walk, config, keep=lambda i: True, noise=None):
    camera, frames, priors = walk
    session = Spy(frames, noise=noise)
    pipeline = Pipeline(config, session)
    results = []
    for i, (f, prior) in enumerate(zip(frames, priors, strict=True)):
        prior = prior if keep(i) else None
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    return pipeline, session, results


@pytest.mark.slow
def test_every_window_gets_the_poses_of_all_its_views(walk):
    pipeline, session, results = run(walk, settings())
    assert all(given is not None for given in session.given)
    assert [len(g) for g in session.given] == [len(r.window.view_ids) for r in results]
    assert pipeline.counters["windows_with_prior"] == len(results)
    np.testing.assert_array_equal(session.given[-1][-1], walk[2][-1])


def test_without_a_source_the_network_gets_nothing(walk):
    _, session, _ = run(walk, settings(**{"pose_prior.source": "none"}))
    assert all(given is None for given in session.given)


def test_a_gap_in_odometry_leaves_windows_without_poses(walk, caplog):
    """A gap in the odometry leaves windows without poses and is logged."""
    _, session, results = run(walk, settings(), keep=lambda i: i != 10)
    missing = [i for i, given in enumerate(session.given) if given is None]
    assert missing[0] == 10
    assert missing == [10]  # its successors do without it
    assert len(session.given[11]) == 5
    assert any("frames without a pose" in r.message for r in caplog.records)
    assert len(results) == 24


def test_the_map_has_the_poses_of_the_prior(walk):
    """Later windows see its views again, by the network's poses, which are worse."""
    config = settings(**{"scale.source": "odometry", "pose_prior.output": "prior"})
    pipeline, _, results = run(walk, config, noise=Noise(rotation_deg=0.5, translation=0.01))
    table = pipeline.map.table
    begin = next(k for k, r in enumerate(results) if r.scale.metric)
    assert 4 <= begin < 12
    begin -= 4  # the windows before shared these
    first, *later = [
        (submap.T_map_submap.pose(np.vstack((T, (0, 0, 0, 1)))), prior)
        for r, prior in zip(results[begin:], walk[2][begin:], strict=True)
        for id, submap in table.submaps.items()
        if (T := table.path.pose_of(r.stamp_ns, "", id)) is not None
    ]
    assert len(later) > 10
    for here, prior in later:
        T = invert_pose(first[0]) @ here
        T[:3, 3] *= table.metres
        np.testing.assert_allclose(T, invert_pose(first[1]) @ prior, atol=1e-3)


@pytest.mark.parametrize(("output", "expected"), [("prior", False), ("refined", True)])
def test_windows_with_the_priors_poses_wait_for_no_refinement(walk, monkeypatch, output, expected):
    """So that their covariance has the network's error once."""
    seen, add_window = [], PoseUncertainty.add_window

    def add(self, window):
        seen.append(window.refined_later)
        add_window(self, window)

    monkeypatch.setattr(PoseUncertainty, "add_window", add)
    config = settings(**{"refinement.enabled": True, "pose_prior.output": output})
    run((walk[0], walk[1][:4], walk[2][:4]), config)
    assert seen == [expected] * len(seen) != []


def test_where_the_prior_stops_tracks_keep_its_unit(walk):
    """Also with a network whose motion is a quarter too short for its depth."""

    class Short(TruthSession):
        def infer(self, window):
            out = super().infer(window)
            T = out.T_window_camera.copy()
            T[:, :3, 3] *= 0.75
            return dataclasses.replace(out, T_window_camera=T)

    camera, frames, priors = walk
    config = settings(**{"scale.source": "odometry", "refinement.enabled": True})
    pipeline, results = Pipeline(config, Short(frames)), []
    for k, (f, prior) in enumerate(zip(frames, priors, strict=True)):
        prior = prior if k < 12 else None
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    assert pipeline.counters["windows_refined"] > 9
    ours, true = (
        np.array([np.linalg.norm((invert_pose(a) @ b)[:3, 3]) for a, b in itertools.pairwise(T)])
        for T in ([r.T_map_camera for r in results[11:]], [f.T_room_camera for f in frames[11:]])
    )
    assert np.median(ours / true) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(ours / true, 1, atol=0.15)


def test_no_frame_is_lost_where_views_of_the_prior_cannot_be_taken_up(walk, monkeypatch, caplog):
    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(WindowRefiner, "take_up", broken)
    config = settings(**{"scale.source": "odometry", "refinement.enabled": True})
    part = tuple(frames[:9] for frames in walk[1:])
    _, _, results = run((walk[0], *part), config, lambda k: k < 5)
    assert len(results) == 9
    assert sum("no tracks of earlier views" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize(("accepted", "new"), [(False, 1), (True, 1), (False, 3)])
def test_no_prior_is_aligned_by_a_refused_window(accepted, new):
    """Its scale is a guess; the first window of a chain has nothing to fit to."""
    poses = np.array([np.eye(4)] * 3)
    window = SimpleNamespace(
        new=new, T_prior_camera=poses,
        views=[SimpleNamespace(id=k, T_prior_camera=T) for k, T in enumerate(poses)],
    )  # fmt: skip
    prior = PriorPoseSubstitution("prior")
    estimate = SimpleNamespace(T_window_camera=poses)
    prior._measure = ScaleMeasurement(2.0, 0.1)
    prior.place(window, estimate, Alignment(IDENTITY, accepted, 1.0, 0.0))
    assert prior.replaces_poses == (accepted or new == 3)


@pytest.mark.parametrize("gap", [3, 10], ids=["before it was aligned", "after"])
def test_a_prior_that_begins_anew_after_a_gap_moves_no_older_view(walk, gap):
    """As a driver that is started again: its poses have another frame."""
    camera, frames, priors = walk
    anew = np.eye(4)
    anew[:3, :3] = Rotation.from_euler("z", 30, degrees=True).as_matrix()
    anew[:3, 3] = 3, 1, 0
    priors = [T if k < gap else anew @ T for k, T in enumerate(priors)]
    config = settings(**{"scale.source": "odometry", "pose_prior.output": "prior"})
    pipeline, _, results = run(
        (camera, frames, priors), config, lambda k: k != gap,
        Noise(rotation_deg=0.5, translation=0.01),
    )  # fmt: skip
    table = pipeline.map.table
    found = [
        (submap.T_map_submap.pose(np.vstack((T, (0, 0, 0, 1)))), f.T_room_camera)
        for r, f in zip(results, frames, strict=True)
        for id, submap in table.submaps.items()
        if (T := table.path.pose_of(r.stamp_ns, "", id)) is not None
    ]
    assert len(found) == len(frames)
    for (a, true_a), (b, true_b) in itertools.pairwise(found):
        turn = (invert_pose(a) @ b)[:3, :3].T @ (invert_pose(true_a) @ true_b)[:3, :3]
        assert np.degrees(Rotation.from_matrix(turn).magnitude()) < 5
        assert np.linalg.norm(a[:3, 3] - b[:3, 3]) * table.metres < 0.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    long_after(1, [{"pose_prior.source": "none"}, {"pose_prior.output": "prior"},
                   {"pose_prior.output": "refined"}]),
)  # fmt: skip
@pytest.mark.parametrize("case", ["spinning wheels", "frozen odometry"])
def test_odometry_that_the_camera_contradicts_gives_no_metres(case, values):
    """The wheels turn and the camera stands, or it moves and the odometry stands. The network's
    noise looks like motion; with output ``prior`` a window that took it for that was enough."""
    spins = case == "spinning wheels"
    camera = SyntheticCamera(
        seed=3, size=SIZE, walk="still" if spins else "loop", frames=50, rate_hz=5.0
    )
    priors = [np.eye(4) for _ in range(50)]
    for i, T in enumerate(priors):
        T[0, 3] = 0.1 * i * spins
    noise = Noise(0.01, 0.01, 0.01, 0.3, 0.01)
    config = settings(**{"scale.source": "odometry", "window.size": 5, **values})
    _, _, results = run((camera, list(camera), priors), config, noise=noise)
    assert len(results) == 50
    assert not [r.stamp_ns for r in results if r.scale.metric]


@pytest.mark.long
@pytest.mark.slow
def test_given_poses_make_metres_once_the_camera_moves(walk):
    """Given poses make metres from the first windows that move."""
    _, _, results = run(walk, settings(**{"scale.source": "odometry"}))
    metric = [r for r in results if r.scale.metric]
    _, _, later = run(walk, settings(**{"scale.source": "odometry", "pose_prior.source": "none"}))
    assert len(metric) > 10
    # Given poses are no witness for themselves, so that metres may come a frame later than by the
    # camera's own motion.
    assert len(metric) >= sum(r.scale.metric for r in later) - 1
    truth = {f.stamp_ns: f for f in walk[1]}
    errors = [np.nanmedian(r.depth_m / truth[r.stamp_ns].depth) - 1 for r in metric]
    assert np.abs(errors).max() < 0.02


@pytest.mark.parametrize("keep", [lambda i: True, lambda i: i not in (0, 1, 12)])
def test_the_priors_own_poses_go_out_when_asked_for(walk, keep):
    values = {"scale.source": "odometry", "pose_prior.output": "prior"}
    noise = Noise(rotation_deg=0.5, translation=0.005)
    _, session, results = run(walk, settings(**values), keep, noise)
    given = [g is not None for g in session.given]
    stretch = [i for i in range(16, 24) if given[i] and results[i].scale.metric]
    assert len(stretch) > 4
    a, b = stretch[1], stretch[-1]
    ours = invert_pose(results[a].T_map_camera) @ results[b].T_map_camera
    theirs = invert_pose(walk[2][a]) @ walk[2][b]
    np.testing.assert_allclose(ours[:3, :3], theirs[:3, :3], atol=1e-6)
    length = np.linalg.norm(theirs[:3, 3])
    assert np.linalg.norm(ours[:3, 3]) == pytest.approx(length, rel=0.05)


def test_a_standing_robot_gives_rotation_only(caplog):
    camera = SyntheticCamera(seed=4, size=SIZE, walk="spot", frames=8)
    frames = list(camera)
    priors = [f.T_room_camera.copy() for f in frames]
    for prior in priors:
        prior[:3, 3] = 0
    config = settings(**{"scale.source": "odometry"})
    _, session, results = run((camera, frames, priors), config)
    assert all(given is not None for given in session.given[1:])
    assert not any(r.scale.metric for r in results)
    assert any("no scale" in r.message for r in caplog.records)


class Wobbling(Spy):
    """Depths that no two windows agree about, beside good poses."""

    def infer(self, window):
        found = super().infer(window)
        if window.id < 10:
            return found
        wild = np.random.default_rng(window.id).uniform(0.5, 2, found.depth.shape)
        return dataclasses.replace(found, depth=(found.depth * wild).astype(np.float32))


def test_a_trusted_prior_leads_whatever_the_depths_are(walk):
    """Else windows whose depths do not fit would end the scene although the robot has poses."""
    values = {"scale.source": "odometry", "pose_prior.output": "prior"}
    camera, frames, priors = walk
    pipeline = Pipeline(settings(**values), Wobbling(frames))
    results = []
    for f, prior in zip(frames, priors, strict=True):
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    after = range(9, len(results))
    assert {r.window.chain for r in results} == {0}
    assert all(results[i].window.aligned for i in after)
    for i, j in itertools.pairwise(after):
        ours = invert_pose(results[i].T_map_camera) @ results[j].T_map_camera
        np.testing.assert_allclose(
            ours[:3, :3], (invert_pose(priors[i]) @ priors[j])[:3, :3], atol=1e-6
        )
    assert all(results[i].covariance_odom is None for i in after)


class HalfBroken(Spy):
    """Two windows whose depths are wrong on one side."""

    def infer(self, window):
        found = super().infer(window)
        if window.id not in (12, 13) or not window.new:
            return found
        depth = found.depth.copy()
        depth[:, :, : depth.shape[2] * 6 // 10] *= 2.2
        return dataclasses.replace(found, depth=depth)


def test_a_refused_window_is_not_kept_despite_its_prior(walk):
    """Its depths would stand in the map as walls, and later windows would be joined to them."""
    values = {"scale.source": "odometry", "pose_prior.output": "prior", "map.voxel_m": 0.05}
    camera, frames, _ = walk
    pipeline = Pipeline(settings(**values), HalfBroken(frames))
    results = []
    for f in frames:
        frame = Frame(
            f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=f.T_room_camera
        )
        results += list(pipeline.push(frame))
    assert {r.window.chain for r in results} == {0}
    assert not any(r.keyframe for r in results[12:14])
    truth = {f.stamp_ns: f for f in frames}
    ratios = [np.nanmedian(r.depth_m / truth[r.stamp_ns].depth) for r in results[14:]]
    np.testing.assert_allclose(ratios, 1, atol=0.02)
    T = frames[0].T_room_camera
    points = pipeline.map.table.metres * pipeline.map.cloud().xyz @ T[:3, :3].T + T[:3, 3]
    assert np.mean(distance_to_surface(camera.room, points) > 0.1) < 0.02


class Changed(Spy):
    """From window 10 on depths agree with each other, but not with what was before."""

    def infer(self, window):
        found = super().infer(window)
        if window.id < 10:
            return found
        rows = np.linspace(0.5, 2.0, found.depth.shape[1], dtype=np.float32)[:, None]
        return dataclasses.replace(found, depth=found.depth * rows)


@pytest.mark.parametrize("missing", [None, 16])
def test_a_prior_goes_on_alone_where_nothing_fits_any_more(walk, missing):
    """The map goes on too, and what comes is joined to the new views."""
    values = {"scale.source": "odometry", "pose_prior.output": "prior"}
    camera, frames, priors = walk
    pipeline = Pipeline(settings(**values), Changed(frames))
    results = []
    for i, (f, prior) in enumerate(zip(frames, priors, strict=True)):
        prior = None if i == missing else prior
        frame = Frame(f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=prior)
        results += list(pipeline.push(frame))
    assert not any(r.keyframe for r in results[10:15])
    assert results[15].keyframe
    assert {r.window.chain for r in results} == {0}
    assert all(r.window.aligned for r in results[11:])
    assert all(r.window.alignment_inliers > 0.9 for r in results[17:])
    assert all(r.covariance_odom is None for r in results[10:])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("source", ["odometry", "none"])
def test_depth_keeps_one_scale_beside_the_priors_own_poses(source):
    """A window's motion gives its unit only roughly; the depth that it shares gives it better."""
    camera = SyntheticCamera(seed=5, size=SIZE, walk="straight", frames=40)
    frames = list(camera)
    values = {"window.size": 8, "scale.source": source, "pose_prior.output": "prior"}
    priors = [f.T_room_camera for f in frames]
    noise = Noise(0.005, 0.0, 0.005, 0.2, 0.005)
    _, _, results = run((camera, frames, priors), settings(**values), noise=noise)
    scales = [
        np.log(np.nanmedian(r.depth_m / f.depth))
        for r, f in zip(results[10:], frames[10:], strict=True)
        if r.scale.metric == (source == "odometry")
    ]
    assert len(scales) > 15
    assert np.std(scales) < 0.02


class Torn(TruthSession):
    """Sees half of a picture in another unit, in the windows ``torn``."""

    torn: tuple[int, ...] = ()

    def infer(self, window):
        found = super().infer(window)
        if window.id in self.torn:
            found.depth[:, :, : found.depth.shape[2] // 2] *= 2.2
        return found


@pytest.fixture(scope="module")
def stop():
    """A walk of 20 frames and a stand of 20, seen by a camera whose poses are known exactly."""
    camera = SyntheticCamera(seed=5, size=SIZE, walk="straight", frames=20)
    frames = list(camera)
    period = frames[1].stamp_ns - frames[0].stamp_ns
    last = frames[-1]
    frames += [
        dataclasses.replace(last, stamp_ns=last.stamp_ns + k * period) for k in range(1, 21)
    ]
    return camera, frames


def stopped(stop, source, torn):
    camera, frames = stop
    session = Torn(frames)
    session.torn = torn
    values = {"scale.source": source, "pose_prior.output": "prior"}
    pipeline, looks, results = Pipeline(settings(**values), session), [], []
    look = pipeline.loops.try_close_loop
    pipeline.loops.try_close_loop = lambda window, *rest: (
        looks.append(window),
        look(window, *rest),
    )
    for f in frames:
        frame = Frame(
            f.stamp_ns, f.image, calibration=camera.calibration, T_prior_camera=f.T_room_camera
        )
        results += list(pipeline.push(frame))
    return pipeline, looks, results


@pytest.mark.slow
@pytest.mark.parametrize("source", long_after(1, ["odometry", "fixed"]))
def test_refused_standing_windows_publish_no_metric_depth(stop, source):
    """Its motion gives no unit, and what it shares contradicts the window."""
    torn = tuple(range(30, 38))
    pipeline, looks, results = stopped(stop, source, torn)
    assert all(r.scale.metric for r in results[25:])
    assert all(np.isnan(r.depth_m).all() for r in results[30:38])
    assert pipeline.counters["windows_refused"] == len(torn)
    assert not set(looks) & set(torn)
    # What is shared stays as it was, however long it lasts: the unit of what follows is right.
    before, after = (np.nanmedian(results[i].depth_m / stop[1][i].depth) for i in (28, 39))
    assert after == pytest.approx(before, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("source", long_after(1, ["odometry", "fixed"]))
def test_a_refused_moving_window_has_the_unit_of_its_motion(stop, source):
    _, _, results = stopped(stop, source, (15,))
    right = slice(results[15].depth_m.shape[1] * 2 // 3, None)  # the half that is not torn
    ratios = [
        np.nanmedian((results[i].depth_m / stop[1][i].depth)[:, right]) for i in (14, 15, 16)
    ]
    assert np.isfinite(ratios).all()
    assert ratios[1] == pytest.approx(ratios[0], rel=0.25)
