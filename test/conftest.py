"""Shared by all tests: where recordings are, what to skip, and one part of the machine for each
of the processes that run tests."""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest
from support import shared_memory
from support.domains import domain

RECORDINGS = Path(__file__).parents[2] / "shared" / "data"
WORKERS, WORKER_BYTES = 8, 3 * 2**30  # at most; each with the processes that it starts

# Before torch is imported, and for the processes that tests start: with the same number of threads
# results are the same on every machine, and several workers do not fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """`-n auto`: three workers for two cores, since tests of nodes often wait; `logical`: two."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    workers = cores if config.option.numprocesses == "logical" else (3 * cores + 1) // 2
    return max(1, min(workers, memory // WORKER_BYTES, WORKERS))


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("gpu"):
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def pytest_collection_finish():
    """What is there now stays to the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Killed nodes leave shared memory: a day of test runs would fill the machine's."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shared_memory.remove_abandoned(0.0)


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped: a line for each reason, with the number of tests."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5d}  {reason}")


@pytest.fixture(autouse=True, scope="session")
def own_domain():
    """A ROS domain of this process's own, also for what a test starts without naming one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain()))
        yield


@pytest.fixture(autouse=True, scope="session")
def engine_cache(tmp_path_factory):
    """The cache of engines of all workers of this run, instead of the user's."""
    from da3_ros.backends import engine_store

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    run = "raise SystemExit(main())"
    assert run in engine_store.START
    # In the background, an engine of ten seconds takes two minutes beside other workers.
    at_once = engine_store.START.replace(run, f"main.__globals__['NICENESS'] = 0\n{run}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setattr(engine_store, "START", at_once)
        yield root / "cache" / "da3_ros" / "engines"


@pytest.fixture(autouse=True, scope="session")
def rendered_once():
    """Every image that a test of this process has rendered before is copied, not rendered."""
    from support.renders import Renders

    from da3_ros.synthetic import camera, renderer

    renders = Renders(renderer.render_batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderer, "render_batch", renders)
        patch.setattr(camera, "render_batch", renders)
        yield renders


@pytest.fixture(autouse=True, scope="session")
def detected_once():
    """Features of every image are detected once in this process; not where the time counts."""
    from support.detections import Detections

    from da3_ros.refinement import solver_limits
    from da3_ros.refinement.features import FeatureDetector

    detect = FeatureDetector.__call__
    each_time = type("EachTime", (FeatureDetector,), {"__call__": detect})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver_limits, "FeatureDetector", each_time)
        patch.setattr(FeatureDetector, "__call__", Detections(detect))
        yield


@pytest.fixture(autouse=True, scope="session")
def solved_once():
    """Bundles and searches for depth of the same views are solved once in this process."""
    from support.kept_results import KeptResults

    from da3_ros.derived import measuring
    from da3_ros.export import measured_depth
    from da3_ros.refinement import map_bundle, self_calibration, sliding_graph

    adjust, search = KeptResults(sliding_graph.adjust), KeptResults(measuring.search_depth)
    with pytest.MonkeyPatch.context() as patch:
        for module in (map_bundle, self_calibration, sliding_graph):
            patch.setattr(module, "adjust", adjust)
        for module in (measured_depth, measuring):
            patch.setattr(module, "search_depth", search)
        yield adjust, search


@pytest.fixture(autouse=True, scope="session")
def random_networks_once():
    """Networks of random weights are copies of the first of their kind in this process."""
    from support.networks import EmptyNetworks, RandomWeights

    from da3_ros.inference import loading

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "empty_network", EmptyNetworks(loading.empty_network))
        patch.setattr(loading, "initialize_randomly", RandomWeights(loading.initialize_randomly))
        yield


@pytest.fixture
def solved_each_time(solved_once):
    """For tests of how long it takes, and of whether it gives the same each time."""
    for results in solved_once:
        results.paused = True
    yield
    for results in solved_once:
        results.paused = False


@pytest.fixture(autouse=True, scope="session")
def sessions_on_torch():
    """In this process `backend: auto` is torch: building an engine takes ten seconds.

    Tests marked ``openvino`` get what users get; programs that tests start get a parameter.
    """
    from da3_ros.inference import loading

    real, allowed = loading.backend_for, [False]

    def backend_for(wanted, device, precision):
        assert allowed[0] or wanted != "openvino", "mark this test with openvino"
        if wanted == "auto" and not allowed[0]:
            return "torch"
        return real(wanted, device, precision)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "backend_for", backend_for)
        yield allowed


@pytest.fixture(autouse=True)
def openvino_where_marked(request, sessions_on_torch):
    sessions_on_torch[0] = request.node.get_closest_marker("openvino") is not None
    yield
    sessions_on_torch[0] = False


@pytest.fixture
def recordings():
    """Folder of real recordings, which are never part of the repository."""
    if not RECORDINGS.is_dir():
        pytest.skip("real recordings are not on this machine")
    return RECORDINGS
