"""A source of metres from outside: a class and a row, and parameters, sensors, networks and
pipeline know it."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cases import long_after
from support.pipelines import odometry_of, to_frame
from support.toys import Spacing

import da3_ros
from da3_ros.config import NodeConfig, PipelineConfig, config_from_parameters, prior_source
from da3_ros.inference import open_networks
from da3_ros.parameter_schema import ConfigError, parameters
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.scale_sources import SCALE_SOURCES, scale_choices
from da3_ros.scale_sources.estimates import Estimate, MeasurementFilter
from da3_ros.scale_sources.interface import ScaleSource
from da3_ros.sensors.frame_annotator import RigGeometry
from da3_ros.sensors.transform_tree import TransformTree
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.evaluation import trajectory_error
from da3_ros.synthetic.rig import rig_mount
from da3_ros.synthetic.truth import Noise, TruthSession
from da3_ros.types import Frame, ScaleMeasurement

SIZE = (140, 112)
NAMES = ("front", "left")
ROOT = Path(da3_ros.__file__).parent


def settings(**values):
    base = {
        "process_res": 140, "model": "da3-tiny", "checkpoint": "random", "window.size": 6,
        "refinement.enabled": False, "scale.source": "toy", "map.remove_movers": False,
        "dense.enabled": False,
    }  # fmt: skip
    return config_from_parameters({**base, **values})


@pytest.fixture
def add(monkeypatch):
    """Adds a toy by a row."""
    return lambda source: monkeypatch.setitem(SCALE_SOURCES, "toy", source)


@pytest.fixture(scope="module")
def rig():
    """Two cameras, 0.3 m apart, on a walk."""
    cameras = {
        name: SyntheticCamera(
            3, SIZE, walk="loop", frames=14, rate_hz=5.0, mount=rig_mount(i, 0.3, -30.0)
        )
        for i, name in enumerate(NAMES)
    }
    return cameras, {name: list(camera) for name, camera in cameras.items()}


@pytest.fixture(scope="module")
def walk():
    camera = SyntheticCamera(3, SIZE, walk="loop", frames=30, rate_hz=5.0)
    return camera, list(camera)


def run_rig(rig, session, **values):
    """Results of both cameras, with the truth of each."""
    cameras, frames = rig
    pipeline = Pipeline(settings(cameras=list(NAMES), **values), session)
    out = []
    for frameset in zip(*frames.values(), strict=True):
        given = [
            Frame(f.stamp_ns, f.image, name, name, cameras[name].calibration)
            for name, f in zip(NAMES, frameset, strict=True)
        ]
        out += pipeline.push(*given)
    truth = {(n, f.stamp_ns): f for n in NAMES for f in frames[n]}
    return pipeline, [(r, truth[r.camera, r.stamp_ns]) for r in out]


def run_walk(walk, session=None, metric_model=None, **values):
    """Results of one camera that knows its poses, with the truth of each."""
    camera, frames = walk
    pipeline = Pipeline(settings(**values), session or TruthSession(frames), metric_model)
    out = []
    for f, T in zip(frames, odometry_of(camera, frames), strict=True):
        out += pipeline.push(to_frame(camera, f, T_prior_camera=T))
    return pipeline, list(zip(out, frames, strict=True))


def assert_metric(pairs, least):
    """Depths and ways of all frames with a known scale are those of the room."""
    known = [(r, f) for r, f in pairs if r.scale.metric]
    assert len(known) >= least
    assert {r.scale.source for r, _ in known} == {"toy"}
    for r, f in known:
        assert np.nanmedian(r.depth_m / f.depth) == pytest.approx(1.0, rel=0.03)
    ours, true = (
        np.linalg.norm(np.diff([p[:3, 3] for p in poses], axis=0), axis=1).sum()
        for poses in ([r.T_map_camera for r, _ in known], [f.T_room_camera for _, f in known])
    )
    assert ours == pytest.approx(true, rel=0.03)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("refined", long_after(1, [True, False]))
def test_poses_and_depth_of_a_toy_source_are_metric(rig, add, refined):
    add(Spacing)
    noise = Noise(independent=0.01, rotation_deg=0.05, translation=0.0005)
    session = TruthSession(rig[1], seed=1, noise=noise)
    pipeline, pairs = run_rig(rig, session, **{"refinement.enabled": refined})
    assert_metric(pairs, 20)
    assert any(r.window.refined for r, _ in pairs) == refined
    assert abs(np.log(pipeline.map.table.metres)) > 0.1  # the scene's own unit is another one


def test_the_parameter_lists_the_toy(add):
    add(Spacing)
    (row,) = (p for p in parameters(PipelineConfig()) if p.name == "scale.source")
    assert row.choices == scale_choices()
    assert row.choices[-1] == "toy"
    assert set(row.choices) == {*SCALE_SOURCES, "none"} | {"toy"}
    with pytest.raises(ConfigError, match=r"must be one of none, .*, rig, toy"):
        settings(**{"scale.source": "sonar"})


def test_without_its_row_the_toy_is_unknown():
    with pytest.raises(ConfigError, match=r"scale\.source is 'toy': must be one of none"):
        settings()


def test_what_a_toy_needs_is_asked_of_the_parameters(add):
    class Pair(Spacing):
        def unsuited(self, cameras):
            return "" if cameras == 2 else "this needs a pair of cameras"

    add(Pair)
    with pytest.raises(ConfigError, match=r"^scale.source is toy: this needs a pair of cameras$"):
        settings()
    with pytest.raises(ConfigError, match="a pair of cameras"):
        settings(cameras=["a", "b"], **{"window.mode": "independent"})
    settings(cameras=["a", "b"])


@pytest.mark.parametrize("needed", [False, True])
def test_a_toy_gets_the_rigs_poses_and_the_robots_if_it_needs_them(add, needed):
    class Needy(Spacing):
        needs_rig = needs_prior = needed

    add(Needy)
    config = settings(cameras=["a", "b"])
    assert prior_source(config) == ("odometry" if needed else "none")
    tree = TransformTree()
    tree.add("a_optical", "b_optical", np.eye(4), 0, static=True)
    geometry = RigGeometry(config, tree, warn=lambda text: None)
    geometry.camera("a", "a_optical", 0)
    assert (geometry.camera("b", "b_optical", 0) is not None) == needed


class Ruler:
    """A metric model: measures the unit of a window by its exact depth."""

    def __init__(self, session):
        self.session, self.asked = session, []

    def measure(self, window, prediction):
        self.asked.append(window.id)
        return replace(prediction, measure=ScaleMeasurement(1 / self.session.unit, 0.02))


@pytest.mark.slow
@pytest.mark.parametrize("needed", long_after(1, [True, False]))
def test_a_metric_model_runs_for_a_toy_that_needs_it(walk, add, needed):
    class Half(ScaleSource):
        needs_metric_model = needed

        def measure(self, window, prediction, by_prior):
            measure = prediction.measure
            return measure and replace(measure, value=measure.value / 2)

    add(Half)
    session = TruthSession(walk[1])
    model = Ruler(session)
    _, pairs = run_walk(walk, session, model, **{"scale.metric_every": 7})
    assert model.asked == ([0, 1, 2, 7, 14, 21, 28] if needed else [])
    ratio = [np.nanmedian(r.depth_m / f.depth) for r, f in pairs if r.scale.metric]
    assert len(ratio) == (len(pairs) - 2 if needed else 0)
    np.testing.assert_allclose(ratio, 0.5, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("error", long_after(1, [1.5, 1.0]))
def test_a_toy_measures_as_a_member_of_a_list(walk, add, caplog, error):
    """Beside odometry, and a metric model that decides between them."""
    true = {f.stamp_ns: f.T_room_camera[:3, 3] for f in walk[1]}

    class Tape(ScaleSource):
        def measure(self, window, estimate, by_prior):
            if len(window.views) < 4:
                return None
            seen = np.diff(estimate.T_window_camera[:, :3, 3], axis=0)
            room = np.diff([true[view.stamp_ns] for view in window.views], axis=0)
            ratio = np.linalg.norm(room, axis=1).sum() / np.linalg.norm(seen, axis=1).sum()
            return ScaleMeasurement(error * ratio, 0.02)

    add(Tape)
    session = TruthSession(walk[1])
    sources = ["toy", "odometry", "metric_model"]
    given = {"scale.source": sources, "scale.metric_every": 3, "window.size": 5}
    pipeline, pairs = run_walk(walk, session, Ruler(session), **given)
    newest = pairs[-1][0].scale
    assert newest.source == ("toy+" * (error == 1.0) + "odometry+metric_model")
    known = [(r, f) for r, f in pairs if r.scale.metric]
    assert len(known) > 20
    assert np.nanmedian(known[-1][0].depth_m / known[-1][1].depth) == pytest.approx(1.0, rel=0.03)
    for r, f in known:  # never wrong by more than it states
        assert abs(np.log(np.nanmedian(r.depth_m / f.depth))) < max(0.03, 3 * r.scale.sigma)
    assert ("toy differs by 5" in caplog.text) == (error > 1)
    said = {s.name: s for s in pipeline.scale.filter.estimator.states}
    assert said["toy"].state == ("left out" if error > 1 else "counts")


def test_what_a_single_image_network_cannot_measure_is_refused(add):
    add(Spacing)
    with pytest.raises(ConfigError, match=r"scale\.source toy cannot measure its scale"):
        open_networks(settings(model="da3metric-large", checkpoint="/nowhere"))


@pytest.mark.slow
def test_a_toy_estimates_by_the_way_along_its_chain(walk, add):
    """A wheel counts the way, of which a window knows nothing."""
    frames = walk[1]
    steps = np.linalg.norm(np.diff([f.T_room_camera[:3, 3] for f in frames], axis=0), axis=1)
    metres = dict(zip([f.stamp_ns for f in frames], np.cumsum([0, *steps]), strict=True))

    class Wheel(MeasurementFilter):
        def __init__(self):
            super().__init__()
            self.way, self.last, self.begin = 0.0, None, None

        def add_motion(self, view, T_local_camera, depth):
            here = T_local_camera[:3, 3]
            if self.last is None:
                self.begin = metres[view.stamp_ns]
            else:
                self.way += np.linalg.norm(here - self.last)
            self.last, self.turned = here, metres[view.stamp_ns] - self.begin

        def estimate(self):
            return Estimate(np.log(self.turned / self.way), 0.01) if self.way > 0.5 else None

    class Turning(ScaleSource):
        def estimator(self):
            return Wheel()

    add(Turning)
    _, pairs = run_walk(walk)
    assert_metric(pairs, 20)


@pytest.mark.long
@pytest.mark.slow
def test_a_toy_gets_refined_poses_of_earlier_frames(add):
    """They are nearer to the truth than those that were given first."""
    camera = SyntheticCamera(42, (224, 168), walk="strafe", frames=12, rate_hz=3)
    frames = list(camera)

    class Path(MeasurementFilter):
        given, refined = {}, {}

        def add_motion(self, view, T_local_camera, depth):
            self.given[view.id] = T_local_camera

        def refine(self, poses):
            self.refined.update(poses)

    class Remembering(ScaleSource):
        def estimator(self):
            return Path()

    add(Remembering)
    noise = Noise(independent=0.01, rotation_deg=0.3, translation=0.01)
    session = TruthSession(frames, seed=1, noise=noise)
    run_walk((camera, frames), session, **{"refinement.enabled": True, "process_res": 224})
    both = sorted(Path.given.keys() & Path.refined)
    assert len(both) > 5
    true = np.stack([frames[i].T_room_camera for i in both])
    before, after = (np.stack([p[i] for i in both]) for p in (Path.given, Path.refined))
    assert trajectory_error(after, true) < 0.7 * trajectory_error(before, true)


@pytest.mark.slow
def test_a_toy_declares_the_scale_of_the_first_chain(walk, add, caplog):
    class Told(ScaleSource):
        declared_by = "toy.factor"

    add(Told)
    pipeline, pairs = run_walk(walk)
    assert {r.scale.source for r, _ in pairs} == {"toy"}
    pipeline._steps.start_chain(pipeline.odometry.newest)
    assert "toy.factor holds for the first chain only: lengths are not metric" in caplog.text
    assert "begin a new scene with toy.factor" in caplog.text


# Only the table and the sources name a source


def source_names(code, names, own):
    """Texts in which code names a source: by one of its ``own`` names, which nothing else has, or
    where any of the ``names`` is compared with scale.source."""
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    aliases = {alias for node in nodes for alias in aliases_of(node)}
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in own:
            yield f"{node.lineno}: {node.value}"
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            sides = [node.subject, *node.cases]
        elif isinstance(node, ast.Subscript):
            sides = [node.value, node.slice]
        else:
            continue
        asked = any(is_source(side, aliases) for side in sides)
        said = [n for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant)]
        if asked and names.intersection(n.value for n in said if isinstance(n.value, str)):
            yield f"{node.lineno}: {ast.unparse(node)}"


def is_source(node, aliases):
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    text = ast.unparse(node)
    return text in aliases or text.endswith(("scale.source", "config.source"))


def aliases_of(node):
    """Names that an assignment gives to scale.source."""
    if not isinstance(node, ast.Assign):
        return
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    yield from (ast.unparse(one) for one, given in pairs if is_source(given, ()))


def own_names():
    """Names of sources that no other parameter has as a value."""
    others = {c for p in parameters(NodeConfig()) if p.name != "scale.source" for c in p.choices}
    return set(SCALE_SOURCES) - others - {"range"}  # a key of the viewer's values too


FILES = [
    *(f for f in sorted(ROOT.rglob("*.py")) if f.parent.name != "scale_sources"),
    *sorted((ROOT.parent / "launch").glob("*.py")),
]


@pytest.mark.slow
def test_only_the_table_and_the_sources_name_a_source():
    named, names, own = {}, set(SCALE_SOURCES), own_names()
    for file in FILES:
        text = file.read_text()
        if "source" not in text and not any(name in text for name in own):
            continue  # nothing to find: most files, whose syntax trees take seconds
        found = list(source_names(text, names, own))
        if file.name == "planner.py":  # a column of memory
            found = [text for text in found if not text.endswith(": fixed")]
        if found:
            named[str(file.relative_to(ROOT.parent))] = found
    assert named == {}


@pytest.mark.parametrize(
    "code",
    [
        'if self.config.scale.source == "rig": pass',
        'source = config.scale.source\nif source != "none": pass',
        'name, source = model, config.scale.source\nif source not in ("none", "odometry"): pass',
        'self._source = config.scale.source\nif self._source == "odometry": pass',
        'return_if = "none" == self._scale_filter.config.source',
        'match config.scale.source:\n    case "odometry": pass',
        'unit = {"odometry": 1, "none": 2}[config.scale.source]',
        'Scale("metric_model", 1.0)',
        'choices = ("none", "fixed")',
    ],
)
def test_a_name_of_a_source_is_found(code):
    assert list(source_names(code, set(SCALE_SOURCES), own_names()))


@pytest.mark.parametrize(
    "code",
    [
        'if config.pose_prior.source == "odometry": pass',
        'if prior.source == "none": pass',
        'if scale.source == "map": pass',
        'log.info("metric_model measures", config.scale.source)',
    ],
)
def test_what_only_looks_like_a_source_is_not_found(code):
    assert not list(source_names(code, set(SCALE_SOURCES), own_names()))
