"""Cameras that see nothing for a while: a frame that carries no information moves nothing."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import bench_blind
import cv2
import numpy as np
import pytest
from bench_covariance import NOISES, frames_of, there_and_back
from support.cases import long_after

from da3_ros.config import config_from_parameters
from da3_ros.geometry.poses import invert_pose
from da3_ros.inference import open_networks
from da3_ros.pipeline import window_refinement
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.pipeline.window_builder import PreparedView
from da3_ros.pipeline.window_odometry import REFUSALS
from da3_ros.pipeline.window_refinement import WindowRefinement
from da3_ros.refinement.refiner import WindowRefiner
from da3_ros.refinement.solver_limits import TimeLimit
from da3_ros.synthetic import Pace, SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.truth import TruthSession
from da3_ros.types import Frame, View

START, LENGTH = 10, 8
SIZE = (168, 126)
# Judged by the image alone.
ALONE = ("black", "noise", "hand", "white", "shaded noise", "banded noise", "lens cap")
TOTAL = ("frozen", "defocus", *ALONE, "blocks", "mostly black")
PARTIAL = ("flicker", "fading", "half black")
MAX_NEES = 2.6


@functools.cache
def walk(frames=22, laps=1, room=100, size=SIZE):
    camera, way = frames_of("loop", room, size, frames)
    return camera, bench_blind.without_repetition(there_and_back(way, laps))


def config(refine=False, **values):
    return config_from_parameters({
        "model": "da3-tiny", "window.size": 6, "process_res": SIZE[0], "map.voxel_m": 0.02,
        "refinement.enabled": refine, "dense.enabled": False, "map.remove_movers": False, **values,
    })  # fmt: skip


def run(frames, faulty, session=None, refine=False, size=SIZE, **values):
    camera, values = walk(size=size)[0], {"process_res": size[0], **values}
    blind = {f.stamp_ns for f, g in zip(faulty, frames, strict=True) if f.image is not g.image}
    session = session or bench_blind.BlindTruth(
        frames, blind, seed=1, noise=NOISES["of each view"]
    )
    pipeline, results = Pipeline(config(refine, **values), session), []
    for f in faulty:
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
    return pipeline, results + list(pipeline.flush())


@functools.cache
def faulty_run(fault, start=START, length=LENGTH, refine=False, size=SIZE):
    _, frames = walk(size=size)
    faulty = bench_blind.with_fault(frames, fault, start, length)
    removing = {"map.remove_movers": True}  # through what a blind camera sees, if it counted
    pipeline, results = run(frames, faulty, refine=refine, size=size, **removing)
    figures = bench_blind.measured(frames, results, pipeline, start, length)
    return pipeline, results, figures


def odom(result):
    return result.T_odom_map @ result.T_map_camera


def steps(results):
    return np.linalg.norm(np.diff([odom(r)[:3, 3] for r in results], axis=0), axis=1)


@pytest.mark.parametrize("fault", long_after(5, TOTAL))
def test_a_frame_that_shows_nothing_moves_nothing(fault):
    pipeline, results, _ = faulty_run(fault)
    assert [i for i, r in enumerate(results) if r.blind] == [*range(START, START + LENGTH)]
    for r in results[START : START + LENGTH]:
        assert np.isnan(r.depth_m).all()
        assert not r.keyframe
        np.testing.assert_allclose(odom(r), odom(results[START - 1]), atol=1e-12)
        np.testing.assert_allclose(r.T_map_camera, results[START - 1].T_map_camera)
    seen = pipeline.map.table.path.poses().rows["stamp_ns"]
    assert not set(seen.tolist()) & {r.stamp_ns for r in results if r.blind}


def test_images_that_are_suspect_by_themselves_are_counted():
    _, frames = walk()
    soft = [
        dataclasses.replace(f, image=cv2.GaussianBlur(f.image, (0, 0), 1.2)) if 12 <= i < 15 else f
        for i, f in enumerate(frames)
    ]
    pipeline, _ = run(frames, soft, TruthSession(frames))
    assert pipeline.counters["suspect_blurred"] == 3
    assert pipeline.counters["blind_blurred"] == 0


@pytest.mark.parametrize("refine", long_after(1, [False, True]))
@pytest.mark.parametrize("fault", long_after(1, ["black", "noise", *PARTIAL, "frozen", "defocus"]))
def test_odometry_and_map_stay_right(fault, refine):
    size = SIZE if fault == "black" else bench_blind.SIZE  # half an image of SIZE shows too little
    clean = faulty_run("none", length=0, refine=refine, size=size)
    _, results, found = faulty_run(fault, refine=refine, size=size)
    usual = np.median(steps(clean[1])[:START])
    assert steps(results)[START - 1 :].max() < 2 * max(usual, steps(clean[1]).max())
    assert found["nees"] < max(MAX_NEES, 1.2 * clean[2]["nees"])
    assert found["with depth"] == 0
    assert (found["found"], found["components"], found["place"]) == (1, 1, "known")
    assert found["ate_m"] < 1.3 * clean[2]["ate_m"] + 0.001


@pytest.mark.parametrize("fault", long_after(1, ["black", "frozen"]))
def test_the_stated_uncertainty_grows_while_nothing_is_seen(fault):
    _, results, _ = faulty_run(fault, refine=True)
    blind = results[START - 1 : START + LENGTH]
    for name in ("covariance_odom", "covariance_map"):
        variances = np.array([np.diag(getattr(r, name)) for r in blind])
        assert (np.diff(variances, axis=0) > 0).all()


@pytest.mark.parametrize("fault", long_after(1, ALONE))
def test_no_pose_is_invented_before_the_first_image(fault):
    pipeline, results, _ = faulty_run(fault, start=0)
    assert [bool(r.blind) for r in results] == [True] * LENGTH + [False] * (22 - LENGTH)
    for r in results[:LENGTH]:
        assert not r.posed
        assert np.isnan(r.depth_m).all()
    np.testing.assert_allclose(results[LENGTH].T_map_camera, np.eye(4), atol=1e-9)
    assert len(pipeline.map.table.path) == 22 - LENGTH


@pytest.mark.long
def test_results_are_the_same_without_the_blind_images(monkeypatch):
    """The network never sees them, and nothing learns from them."""
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "flicker", START, LENGTH)
    _, results = run(frames, faulty)
    kept = [f for f, r in zip(faulty, results, strict=True) if not r.blind]
    _, without = run(kept, kept)
    seen = [r for r in results if not r.blind]
    for one, other in zip(seen, without, strict=True):
        assert np.array_equal(one.T_map_camera, other.T_map_camera)
        assert np.array_equal(one.depth_m, other.depth_m, equal_nan=True)


@pytest.mark.long
def test_what_a_hand_hides_gets_no_depth():
    _, results, _ = faulty_run("half black", refine=True)
    hidden = [r for r in results[START : START + LENGTH] if not r.blind]
    for r in hidden:
        assert np.isnan(r.depth_m[:, : r.depth_m.shape[1] // 2]).all()


@pytest.mark.long
@pytest.mark.parametrize("refine", [False, True])
def test_a_camera_is_found_where_it_was_before(refine):
    """A lens cap for 60 images; the camera comes off it elsewhere on its way."""
    _, frames = walk(30, 3)
    faulty = bench_blind.with_fault(frames, "lens cap", 25, 42)  # 15 frames back on the way
    pipeline, results = run(frames, faulty, refine=refine)
    found = bench_blind.measured(frames, results, pipeline, 25, 42)
    assert 1 <= found["found"] <= 2
    assert (found["components"], found["place"]) == (1, "known")
    clean = bench_blind.measured(frames, *run(frames, frames, refine=refine)[::-1], 25, 0)
    assert found["ate_m"] < 1.5 * clean["ate_m"] + 0.002


class Described(bench_blind.BlindTruth):
    """With descriptors that are alike where the camera is alike."""

    def infer(self, window):
        out = super().infer(window)
        poses = [self._frames["", view.stamp_ns].T_room_camera for view in window.views]
        described = [np.concatenate((3 * T[:3, 2], T[:3, 3])) for T in poses]
        return dataclasses.replace(out, descriptor=np.array(described, np.float32))


@pytest.mark.long
@pytest.mark.parametrize("refine", [False, True])
def test_a_camera_that_returns_far_away_is_found_by_its_keyframes(refine):
    """The newest views show nothing of it: the second window shares keyframes that look alike."""
    camera, way = frames_of("spot", 100, SIZE, 44)
    frames = bench_blind.without_repetition(there_and_back(way, 2))
    dark = range(42, 80)  # back at frame 6
    faulty = bench_blind.with_fault(frames, "lens cap", dark.start, len(dark))
    session = Described(frames, {frames[i].stamp_ns for i in dark}, seed=1)
    pipeline, results, shared = Pipeline(config(refine), session), [], []
    for f in faulty:
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=camera.calibration))
        shared.append([a.view.id for a in pipeline.odometry.overlap_views.newest_views])
    assert [r.blind for r in results[dark.stop : dark.stop + 3]] == ["lost", "", ""]
    assert len(pipeline.map.components) == 1
    assert min(shared[dark.stop + 1]) > dark.stop  # of what was seen before, keyframes only
    true = [invert_pose(frames[0].T_room_camera) @ f.T_room_camera for f in frames]
    unit = float(np.nanmedian(results[0].depth_m / frames[0].depth))
    for r, T in list(zip(results, true, strict=True))[dark.stop + 1 :]:
        assert np.linalg.norm(r.T_map_camera[:3, 3] - unit * T[:3, 3]) < 0.05 * unit
        assert np.abs(r.T_map_camera[:3, :3] - T[:3, :3]).max() < 0.02


@pytest.mark.parametrize("refine", long_after(1, [False, True]))
def test_a_camera_carried_to_another_room_begins_a_new_component(refine, caplog):
    """Neither place nor motion is known then; nothing of the old map moves."""
    _, first = walk()
    _, other = walk(room=7)
    later = [
        dataclasses.replace(f, stamp_ns=f.stamp_ns + first[-1].stamp_ns + 10**8) for f in other
    ]
    far = np.eye(4)
    far[0, 3] = 50.0
    later = [dataclasses.replace(f, T_room_camera=far @ f.T_room_camera) for f in later]
    frames = [*first, *later]
    faulty = bench_blind.with_fault(frames, "lens cap", len(first) - 8, 8)
    pipeline, results = run(frames, faulty, refine=refine)
    causes = [r.blind for r in results[len(first) :]]
    assert causes[:2] == ["lost", "lost"]
    assert not any(causes[2:])
    assert len(pipeline.map.components) == 2
    assert not pipeline.map.pose_known
    assert pipeline.counters["sight_not_found"] == 1
    assert "a new chain begins" in caplog.text
    assert all(r.covariance_odom is None for r in results[len(first) + 2 :])
    assert steps(results).max() < 2 * steps(results[: len(first) - 8]).max()


def test_views_that_agree_with_each_other_only_are_lost():
    """After a gap a window must fit what is stored, not only itself."""

    class Elsewhere(TruthSession):
        def infer(self, window):
            out = super().infer(window)
            if window.views[-1].stamp_ns >= frames[START + LENGTH].stamp_ns:
                rows, columns = np.mgrid[: out.depth.shape[1], : out.depth.shape[2]]
                out.depth[:] = 2 + np.sin(rows / 20) * np.cos(columns / 15)
                out.T_window_camera[:] = np.eye(4)
                out.T_window_camera[:, 0, 3] = 0.01 * np.arange(len(window.views))
            return out

    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "black", START, LENGTH)
    pipeline, results = run(frames, faulty, Elsewhere(frames))
    causes = [r.blind for r in results[START + LENGTH :]]
    assert causes[:2] == ["lost", "lost"]
    assert len(pipeline.map.components) == 2


def test_what_is_switched_off_holds_nothing():
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "black", START, LENGTH)
    _, results = run(frames, faulty, TruthSession(frames), hold_when_blind=False)
    assert not any(r.blind for r in results)
    assert all(np.isfinite(r.depth_m).any() for r in results)


@pytest.mark.parametrize("new", [2, 3, 4])
def test_windows_of_several_new_frames_hold_the_frame_before(new):
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "flicker", START, LENGTH)
    pipeline, results = run(frames, faulty, **{"window.new": new, "window.size": 8})
    assert [r.stamp_ns for r in results] == [f.stamp_ns for f in frames]
    assert sum(r.ends_window for r in results) == len({r.window.id for r in results})
    blind = [i for i, r in enumerate(results) if r.blind]
    assert blind == [START, START + 3, START + 6]
    for i in blind:
        np.testing.assert_allclose(odom(results[i]), odom(results[i - 1]), atol=1e-12)
        before, held = (np.diag(results[k].covariance_odom) for k in (i - 1, i))
        assert (held > before).all()
    found = bench_blind.measured(frames, results, pipeline, START, LENGTH)
    assert found["nees"] < MAX_NEES


def test_blindness_is_counted_and_told(caplog):
    pipeline, results, _ = faulty_run.__wrapped__("black")
    assert pipeline.counters["blind_dark"] == LENGTH
    assert pipeline.counters["processed"] == len(results)
    assert caplog.text.count("shows nothing (dark)") == 1


def test_a_blind_camera_of_a_rig_moves_with_the_others():
    camera, frames = walk()
    names = ["front", "rear"]
    T_front_rear = np.eye(4)
    T_front_rear[0, 3] = 0.2
    rear = [dataclasses.replace(f, T_room_camera=f.T_room_camera @ T_front_rear) for f in frames]
    session = TruthSession({"front": frames, "rear": rear}, seed=2)
    pipeline = Pipeline(config(cameras=names, **{"window.size": 8}), session)
    dark, results = set(range(START, START + LENGTH)), []
    for i, f in enumerate(frames):
        black = np.zeros_like(f.image) if i in dark else f.image
        results += pipeline.push(
            Frame(f.stamp_ns, black, camera="front", calibration=camera.calibration),
            Frame(f.stamp_ns, f.image[:, ::-1].copy(), camera="rear",
                  calibration=camera.calibration),
        )  # fmt: skip
    front = [r for r in results if r.camera == "front"]
    assert [bool(r.blind) for r in front] == [i in dark for i in range(len(frames))]
    depth = float(np.nanmedian(front[0].depth_m))
    unit = depth / float(np.median(frames[0].depth))
    for r, f in zip(front, frames, strict=True):
        true = invert_pose(frames[0].T_room_camera) @ f.T_room_camera
        assert np.linalg.norm(r.T_map_camera[:3, 3] - unit * true[:3, 3]) < 0.01 * depth
    assert steps(front).max() < 1.5 * np.median(steps(front[:START])) + 0.01 * depth
    for r, other in zip(front, (r for r in results if r.camera == "rear"), strict=True):
        if r.blind:  # with the errors of both cameras
            own = front[START - 1].covariance_odom + 2 * other.covariance_odom
            assert (np.diag(r.covariance_odom) >= 0.99 * np.diag(own)).all()


class Doubting(TruthSession):
    """Right, and uncertain of all from frame ``START`` on."""

    def __init__(self, frames):
        super().__init__(frames)
        self.since_ns = frames[START].stamp_ns

    def infer(self, window):
        out = super().infer(window)
        for i, view in enumerate(window.views):
            if view.stamp_ns >= self.since_ns:
                out.confidence[i] = 1.0 + 0.05 * (out.confidence[i] - 1.0)
        return out


def test_a_network_that_stays_uncertain_is_used_again():
    """A camera that shows other things than before is not blind for ever."""

    _, frames = walk()
    pipeline, results = run(frames, frames, Doubting(frames))
    causes = [r.blind for r in results[START:]]
    assert causes[:3] == ["uncertain"] * 3
    assert causes[3:5] == ["lost"] * 2
    assert not any(causes[5:])
    assert len(pipeline.map.components) == 2


class Nonsense(TruthSession):
    """A few windows get depth and a motion that have nothing to do with the room."""

    count = 2

    def infer(self, window):
        out = super().infer(window)
        if not START <= window.id < START + self.count:
            return out
        rng = np.random.default_rng(window.id)
        depth = rng.uniform(0.2, 5, out.depth.shape).astype(np.float32)
        T = out.T_window_camera.copy()
        T[-1, :3, 3] += (1.0, -2.0, 1.5)
        return dataclasses.replace(out, depth=depth, T_window_camera=T)


@pytest.mark.long
def test_a_refused_window_whose_tracks_do_not_support_it_moves_nothing():
    _, frames = walk(size=bench_blind.SIZE)
    session = Nonsense(frames, seed=1, noise=NOISES["of each view"])
    pipeline, results = run(frames, frames, session, refine=True, size=bench_blind.SIZE)
    assert [i for i, r in enumerate(results) if r.blind == "refused"] == [START, START + 1]
    assert pipeline.counters["windows_refused"] == pipeline.counters["blind_refused"] == 2
    assert steps(results).max() < 3 * np.median(steps(results)[:START])
    assert pipeline.map.table.path.poses().rows["stamp_ns"].tolist() == [
        r.stamp_ns for r in results if not r.blind
    ]
    assert len(pipeline.map.components) == 1


@pytest.mark.long
def test_after_many_refused_windows_a_new_chain_begins():
    _, frames = walk(size=bench_blind.SIZE)
    session = Nonsense(frames, seed=1, noise=NOISES["of each view"])
    session.count = REFUSALS
    _, results = run(frames, frames, session, refine=True, size=bench_blind.SIZE)
    assert [i for i, r in enumerate(results) if r.blind] == [*range(START, START + REFUSALS)]
    assert [r.window.chain for r in results if not r.blind] == [0] * START + [1] * (
        len(frames) - START - REFUSALS
    )


@pytest.mark.long
def test_refused_windows_are_published_where_nothing_is_held():
    _, frames = walk(size=bench_blind.SIZE)
    session = Nonsense(frames, seed=1, noise=NOISES["of each view"])
    values = {"hold_when_blind": False, "size": bench_blind.SIZE}
    _, results = run(frames, frames, session, refine=True, **values)
    assert not any(r.blind for r in results)
    assert [r.id for r in results if not r.window.aligned] == [START, START + 1]


@pytest.mark.long
@pytest.mark.parametrize("skipped", long_after(1, [True, False]))
def test_after_refused_windows_one_without_tracks_that_fits_goes_on(monkeypatch, skipped):
    """They are no gap, after which tracks would have to find the camera."""
    _, frames = walk(size=bench_blind.SIZE)
    session = Nonsense(frames, seed=1, noise=NOISES["of each view"])
    session.count = 3
    refine, bare = WindowRefiner.refine, range(START, START + 8)
    monkeypatch.setattr(
        WindowRefiner, "refine",
        lambda self, window, *rest: None if window.id in bare else refine(self, window, *rest),
    )  # fmt: skip
    if skipped:  # for lack of time
        run_window, limit = WindowRefinement.run, SimpleNamespace(skips=lambda: True, add=None)

        def run_some(self, window, *rest):
            usual, self._limit = self._limit, limit if window.id in bare else self._limit
            try:
                return run_window(self, window, *rest)
            finally:
                self._limit = usual

        monkeypatch.setattr(WindowRefinement, "run", run_some)
    pipeline, results = run(frames, frames, session, refine=True, size=bench_blind.SIZE)
    held = [i for i, r in enumerate(results) if r.blind]
    assert held == [*range(START, START + 3)]
    assert {results[i].blind for i in held} == {"refused"}
    assert steps(results).max() < 3 * np.median(steps(results)[:START])
    assert len(pipeline.map.components) == 1


@pytest.mark.parametrize("what", ["match", "fails"])
def test_an_uncertain_network_does_not_blind_a_camera_whose_images_match(monkeypatch, what):
    """As with real images of a kind that it was not trained on: its depth means nothing there. Its
    own small images have too few features to tell."""

    class Nonsense(Doubting):
        def infer(self, window):
            out = super().infer(window)
            rng = np.random.default_rng(window.id)
            for i in range(len(window.views)):
                out.depth[i] = out.depth[i] * rng.uniform(0.2, 5, out.depth[i].shape)
            return out

    size = 336, 252
    frames = walk(size=size)[1][: START + 6]
    if what == "fails":
        monkeypatch.setattr(window_refinement, "shows_known", lambda *args: 1 / 0)
    pipeline, results = run(frames, frames, Nonsense(frames), True, size, process_res=56)
    if what == "fails":
        assert len(results) == len(frames)  # no frame is lost
        assert sum(r.blind == "uncertain" for r in results) > 1
        assert pipeline.counters["refinement_failed"] > 1
        return
    assert not any(r.blind for r in results)
    assert pipeline.counters["windows_refined"] > START
    ours, true = np.array([odom(r) for r in results]), [f.T_room_camera for f in frames]
    way = np.linalg.norm(np.diff([T[:3, 3] for T in true], axis=0), axis=1).sum()
    assert trajectory_error(ours, np.array(true)) < 0.02 * way


def shaded(image):
    """Light from one side: large areas differ more, so that there is less detail than usual."""
    return (0.6 * image + np.linspace(0, 80, image.shape[1])[:, None]).astype(np.uint8)


@pytest.mark.parametrize("what", ["match", "differ", "fails", "no time"])
def test_images_with_little_detail_are_judged_by_tracks_at_full_size(monkeypatch, what):
    """Those of a smooth wall near by; its small images have too few features to tell."""
    size = 336, 252
    frames = walk(size=size)[1][: START + 6]
    rows = slice(None, None, -1 if what == "differ" else 1)
    faulty = frames[:START] + [
        dataclasses.replace(f, image=shaded(f.image[rows])) for f in frames[START:]
    ]
    if what == "fails":
        monkeypatch.setattr(window_refinement, "joined_views", lambda *args: 1 / 0)
    if what == "no time":  # to refine the window either
        monkeypatch.setattr(TimeLimit, "is_behind", True)
        monkeypatch.setattr(TimeLimit, "skips", lambda self: False)
    session = TruthSession(frames, seed=1, noise=NOISES["of each view"])
    pipeline, results = run(frames, faulty, session, True, size, process_res=56)
    assert len(results) == len(frames)  # no frame is lost
    assert pipeline.counters["suspect_blurred"] == 6
    assert sum(r.blind == "blurred" for r in results) == (0 if what == "match" else 6)
    assert (pipeline.counters["refinement_failed"] > 0) == (what == "fails")
    if what == "match":
        assert pipeline.counters["windows_refined"] > START
        ours = np.array([odom(r) for r in results])
        assert trajectory_error(ours, np.array([f.T_room_camera for f in frames])) < 0.01


@pytest.mark.long
def test_a_network_that_doubts_plain_walls_does_not_blind_a_camera_whose_images_match():
    """Its own small images have too few features for tracks, and its depth is right."""

    size = 504, 378
    camera = SyntheticCamera(
        105, size, walk="handheld", frames=START + 4, rate_hz=6, pace=Pace(6.0, 0.3, 15.0),
        plain=True,
    )  # fmt: skip
    frames = list(camera)
    _, results = run(frames, frames, Doubting(frames), True, size, process_res=112)
    assert len(results) == len(frames)
    assert not any(r.blind for r in results)


def test_full_images_are_compared_with_their_own_calibration_and_without_masked_parts(monkeypatch):
    size = 336, 252
    frames = walk(size=size)[1]
    pipeline, _ = run(frames[:6], frames[:6], None, True, size, process_res=112)
    refinement, asked = pipeline.refinement, []
    monkeypatch.setattr(
        window_refinement, "shows_mostly_known", lambda *args: asked.append(args) or True
    )
    small = np.zeros((84, 112, 3), np.uint8)
    K = np.diag([1 / 3, 1 / 3, 1]) @ frames[6].K
    right = np.arange(size[0]) >= size[0] // 2
    prepared = PreparedView(
        View(99, 1, small, K), frames[6].image, np.broadcast_to(right, size[::-1])
    )
    ids = list(refinement.refiner.graph.views)
    depth = np.full(small.shape[:2], 2.0, np.float32)
    assert refinement.shows_known(prepared, depth, ids)
    features, log_depth, own, others = asked[0]
    np.testing.assert_allclose(log_depth, np.log(2))
    assert len(features) > 20
    assert features.pixel[:, 0].min() > size[0] / 2
    np.testing.assert_allclose(own, frames[6].K, atol=1e-6)
    assert [view.id for view in others] == ids[::-1]  # the newest first
    plain = dataclasses.replace(prepared, view=View(99, 1, small), full_valid=None)
    assert refinement.shows_known(plain, depth, [*ids, 12345])  # one that the graph has not
    assert asked[1][2] is None
    assert asked[1][0].pixel[:, 0].min() < size[0] / 4
    assert len(asked[1][3]) == len(ids)


@pytest.mark.parametrize("kind", long_after(1, ["repeats", "flickers"]))
def test_a_camera_that_repeats_or_flickers_is_not_blind_for_ever(kind):
    """Carried to another room; each second image there is frozen or black."""
    _, first = walk()
    _, other = walk(room=7)
    later = []
    for f in other:
        stamp = first[-1].stamp_ns + 10**8 * (1 + len(later))
        black = np.zeros_like(f.image)
        later.append(dataclasses.replace(f, stamp_ns=stamp))
        again = f.image if kind == "repeats" else black
        later.append(dataclasses.replace(f, stamp_ns=stamp + 10**8, image=again))
    far = np.eye(4)
    far[0, 3] = 50.0
    later = [dataclasses.replace(f, T_room_camera=far @ f.T_room_camera) for f in later]
    frames = [*first, *later]
    faulty = bench_blind.with_fault(frames, "lens cap", len(first) - 8, 8)
    pipeline, results = run(frames, faulty, TruthSession(frames))
    causes = [r.blind for r in results[len(first) :: 2]]
    assert causes[:2] == ["lost", "lost"]
    assert not any(causes[2:])
    assert len(pipeline.map.components) == 2


def test_a_gap_without_any_view_before_begins_a_new_component():
    """Also where keyframes were dropped meanwhile: the place is not known."""
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "black", START, LENGTH)
    pipeline = Pipeline(config(), TruthSession(frames))
    results = []
    for i, f in enumerate(faulty):
        if i == START + 4:
            pipeline.odometry.overlap_views.forget(
                {a.view.id for a in pipeline.odometry.overlap_views.all()}
            )
            pipeline.odometry.overlap_views.forget_newest()
        results += pipeline.push(Frame(f.stamp_ns, f.image, calibration=walk()[0].calibration))
    assert not pipeline.map.pose_known
    assert len(pipeline.map.components) == 2
    assert results[-1].covariance_map is None


def test_poses_of_the_robot_go_on_in_the_dark():
    """With the prior's own poses, the robot knows where its camera is."""
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "black", START, LENGTH)
    values = {
        "pose_prior.source": "odometry", "pose_prior.output": "prior", "scale.source": "odometry",
    }  # fmt: skip
    pipeline, results = Pipeline(config(**values), TruthSession(frames)), []
    for f in faulty:
        results += pipeline.push(Frame(
            f.stamp_ns, f.image, calibration=walk()[0].calibration, T_prior_camera=f.T_room_camera
        ))  # fmt: skip
    blind = [i for i, r in enumerate(results) if r.blind]
    assert blind == [*range(START, START + LENGTH)]
    for a, b in itertools.pairwise(range(START - 1, len(frames))):
        true = invert_pose(frames[a].T_room_camera) @ frames[b].T_room_camera
        step = invert_pose(odom(results[a])) @ odom(results[b])
        np.testing.assert_allclose(step[:3, 3], true[:3, 3], atol=0.01)


def test_depth_at_the_camera_size_is_unknown_too():
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, "black", START, 2)
    _, results = run(frames, faulty, **{"depth.size": "input", "process_res": 112})
    assert results[START].depth_m.shape == frames[0].image.shape[:2]
    assert np.isnan(results[START].depth_m).all()


@functools.cache
def shipped_run(fault, start, refine):
    """The walk with the shipped weights."""
    _, frames = walk()
    faulty = bench_blind.with_fault(frames, fault, start, 6)
    return run(frames, faulty, open_networks(config(refine))[0], refine)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("refine", long_after(1, [True, False]))
@pytest.mark.parametrize(
    ("fault", "start"),
    long_after(1, [("black", START), ("noise", START), ("flicker", START), ("shaded noise", 0)]),
)
def test_the_shipped_network_is_not_misled(fault, start, refine):
    _, frames = walk()
    clean, found = (
        bench_blind.measured(frames, *of[::-1], start, 6)
        for of in (shipped_run("none", START, refine), shipped_run(fault, start, refine))
    )
    assert found["step"] < 2 * clean["step"]
    assert found["nees"] < MAX_NEES
    assert (found["with depth"], found["components"], found["place"]) == (0, 1, "known")
    assert found["found"] == 1
    assert found["ate_m"] < 1.5 * clean["ate_m"] + 0.002
