"""A worker: one network for many recordings, with the bytes of single replays."""

import dataclasses
import filecmp
import gc
import json
import os
from pathlib import Path

import pytest
from support.cases import long_after

from da3_ros import __version__
from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.fleet import worker as module
from da3_ros.fleet.jobs import FleetError, find_jobs
from da3_ros.fleet.worker import COMPLETE, DAMAGED, FAILED, LOG, OUTCOME, FleetWorker, read_outcome
from da3_ros.inference import session as session_module
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import checkpoint
from da3_ros.replay.results import ReplayOptions
from da3_ros.synthetic import SyntheticCamera

QUICK = ("model:=da3-tiny", "checkpoint:=random", "window.size:=5", "mixed_precision:=off",
         "backend:=torch")  # fmt: skip
PARAMETERS = [word for value in (*QUICK, "process_res:=84") for word in ("-p", value)]
PARAMETERS.append("--no-report")
FRAMES = 6  # of each recording
OWN = {LOG, OUTCOME, "measured.json"}  # files that a single replay has not, or with other times


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    """Two rooms in images of different size, and a bag that ends in the middle."""
    folder = tmp_path_factory.mktemp("bags")
    for name, size in (("a", (84, 70)), ("b", (84, 56))):
        write_synthetic_bag(folder / name, SyntheticCamera(seed=3, size=size, frames=FRAMES))
    whole = next((folder / "a").glob("*.mcap")).read_bytes()
    (folder / "cut.mcap").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "noise.mcap").write_bytes(bytes(5000))
    return folder


def opened(bags, output, **values):
    """A worker, and the jobs by name."""
    assignments = [*QUICK, "process_res:=84", *(f"{k}:={v}" for k, v in values.items())]
    settings = load_config(None, assignments)
    options = ReplayOptions(Path(), output)
    output.mkdir(exist_ok=True)
    worker = FleetWorker(0, settings, options, 1.0)
    worker.open(__version__)
    return worker, {job.name: job for job in find_jobs([bags], output, options, settings)}


def same(a, b):
    """Whether two folders hold the same files, but those of the fleet and times."""
    files = [{str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} - OWN for f in (a, b)]
    assert files[0] == files[1]
    assert "report.json" in files[0]
    return not filecmp.cmpfiles(a, b, sorted(files[0]), shallow=False)[1]


METRES = {"scale.source": "metric_model", "scale.metric_checkpoint": "random",
          "scale.metric_every": 3}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("values", long_after(1, [{}, {"mixed_precision": "bfloat16"}, METRES]))
def test_results_equal_those_of_single_replays(bags, tmp_path, monkeypatch, values):
    loads = []
    load = session_module.LoadedNetwork.__init__
    monkeypatch.setattr(
        session_module.LoadedNetwork, "__init__",
        lambda self, *given, **named: (loads.append(1), load(self, *given, **named))[1],
    )  # fmt: skip
    worker, jobs = opened(bags, tmp_path / "fleet", **values)
    found = {name: worker.run(jobs[name], 1) for name in ("a", "noise", "b", "cut")}
    assert [found[name].state for name in "ab"] == [COMPLETE, COMPLETE]
    assert found["a"].frames == FRAMES
    assert len(loads) == 1
    more = [word for name, value in values.items() for word in ("-p", f"{name}:={value}")]
    for name in "b" if values is METRES else "ab":  # the one after another recording
        single = tmp_path / name
        words = ["replay", str(bags / name), "--output", str(single), *PARAMETERS, *more]
        assert main(words) == 0
        assert same(tmp_path / "fleet" / name, single)


@pytest.mark.long
def test_no_file_stays_open(bags, tmp_path):
    worker, jobs = opened(bags, tmp_path)
    gc.disable()
    try:
        for name in ("a", "noise", "cut"):
            worker.run(jobs[name], 1)
        links = [link_of(path) for path in Path("/proc/self/fd").iterdir()]
    finally:
        gc.enable()
    assert not [link for link in links if str(tmp_path) in link]


def link_of(path):
    try:
        return os.readlink(path)
    except OSError:  # the folder that is listed
        return ""


def test_damaged_and_unreadable_recordings_say_why(bags, tmp_path):
    worker, jobs = opened(bags, tmp_path)
    cut, noise = worker.run(jobs["cut"], 1), worker.run(jobs["noise"], 2)
    assert cut.state == DAMAGED
    assert 0 < cut.frames < FRAMES
    assert cut.reason
    assert (noise.state, noise.frames, noise.attempts) == (FAILED, 0, 2)
    assert "noise.mcap" in noise.reason
    assert noise.worker_unhurt
    assert noise.reason in (tmp_path / "noise" / LOG).read_text()
    assert read_outcome(jobs["cut"]) == cut
    assert read_outcome(jobs["noise"]) is None


def test_an_unexpected_error_is_an_outcome_that_hurts_the_worker(bags, tmp_path, monkeypatch):
    worker, jobs = opened(bags, tmp_path)

    def broken(*_):
        raise RuntimeError("device-side\nassert")

    monkeypatch.setattr(worker.session, "infer", broken)
    outcome = worker.run(jobs["a"], 1)
    assert (outcome.state, outcome.reason) == (FAILED, "RuntimeError: device-side assert")
    assert not outcome.worker_unhurt
    assert "Traceback" in (tmp_path / "a" / LOG).read_text()


@pytest.mark.long
def test_only_results_that_are_there_and_wanted_count(bags, tmp_path):
    worker, jobs = opened(bags, tmp_path)
    job = jobs["a"]
    outcome = worker.run(job, 1)
    assert read_outcome(job) == outcome
    assert read_outcome(dataclasses.replace(job, key="other")) is None
    text = (job.output / OUTCOME).read_text()
    (job.output / OUTCOME).write_text(json.dumps({"name": "a"}))
    assert read_outcome(job) is None
    (job.output / OUTCOME).write_text(text)
    assert read_outcome(job) == outcome
    (job.output / "report.json").unlink()
    assert read_outcome(job) is None


@pytest.fixture
def interrupted(bags, tmp_path, monkeypatch):
    """A worker, a job, and an attempt that was killed in its eighth window."""
    monkeypatch.setattr(checkpoint, "PERIOD_S", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", 1.0)
    worker, jobs = opened(bags, tmp_path / "fleet")
    infer, calls = worker.session.infer, []

    def killed(window):
        calls.append(window)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return infer(window)

    with monkeypatch.context() as patch:
        patch.setattr(worker.session, "infer", killed)
        with pytest.raises(KeyboardInterrupt):
            worker.run(jobs["a"], 1)
    assert list((tmp_path / "fleet" / "a").glob("unfinished*/checkpoint.da3k"))
    return worker, jobs["a"]


@pytest.mark.long
def test_the_next_attempt_goes_on_from_the_last_checkpoint(interrupted, bags, tmp_path):
    worker, job = interrupted
    windows = []
    infer = worker.session.infer
    worker.session.infer = lambda window: (windows.append(window), infer(window))[1]
    assert worker.run(job, 2).state == COMPLETE
    single = tmp_path / "single"
    assert main(["replay", str(bags / "a"), "--output", str(single), *PARAMETERS]) == 0
    assert same(job.output, single)
    assert windows[0].id == 2  # two windows were done before
    assert not list(job.output.glob("unfinished*"))


@pytest.mark.long
def test_other_parameters_begin_anew_and_leave_nothing_unfinished(interrupted, bags, tmp_path):
    _, job = interrupted
    worker, jobs = opened(bags, tmp_path / "fleet", process_res=70)
    assert worker.run(jobs["a"], 1).state == COMPLETE
    assert "beginning anew" in (job.output / LOG).read_text()
    assert not list(job.output.glob("unfinished*"))


def test_an_output_that_cannot_be_made_is_an_outcome(bags, tmp_path):
    worker, jobs = opened(bags, tmp_path)
    (tmp_path / "a").write_text("a file")
    outcome = worker.run(jobs["a"], 1)
    assert outcome.state == FAILED
    assert str(tmp_path / "a") in outcome.reason


@pytest.mark.long
def test_progress_counts_frames(bags, tmp_path, monkeypatch):
    worker, jobs = opened(bags, tmp_path)
    seen = []
    note = worker._note
    monkeypatch.setattr(worker, "_note", lambda *n: (note(*n), seen.append(worker.progress())))
    worker.run(jobs["a"], 1)
    assert seen == [(i + 1, FRAMES) for i in range(FRAMES)]


def test_a_worker_of_another_version_is_refused(tmp_path):
    worker = FleetWorker(0, load_config(None, QUICK), ReplayOptions(Path(), tmp_path), 1.0)
    with pytest.raises(FleetError, match=r"not 0\.0\.1: install the same"):
        worker.open("0.0.1")


def test_a_machine_that_does_not_see_the_output_is_refused(tmp_path):
    worker = FleetWorker(0, load_config(None, QUICK), ReplayOptions(Path(), tmp_path / "no"), 1.0)
    with pytest.raises(FleetError, match="storage that all machines share"):
        worker.open(__version__)


@pytest.mark.parametrize(
    ("share", "given", "wanted"), [(0.25, 0, 0.9 * 2), (1.0, 0, 0), (0.25, 3, 3)]
)
def test_workers_of_one_machine_share_its_memory(monkeypatch, share, given, wanted):
    class Half(module.open_device("cpu").__class__):
        def free(self):
            return 8 * 2**30

    monkeypatch.setattr(module, "open_device", lambda *_: Half())
    config = load_config(None, [*QUICK, f"memory_budget_gb:={given}"]).pipeline
    within = module._within_budget(config, share)
    assert within.inference.memory_budget_gb == pytest.approx(wanted)


@pytest.mark.long
def test_a_folder_in_which_another_works_is_left_alone(bags, tmp_path):
    worker, jobs = opened(bags, tmp_path)
    folder = jobs["a"].output
    folder.mkdir()
    with module.locked(folder):
        outcome = worker.run(jobs["a"], 1)
    assert outcome.state == FAILED
    assert f"another process works in {folder}" in outcome.reason
    assert worker.run(jobs["a"], 2).state == COMPLETE
