"""The recordings of a fleet, their names and keys."""

import dataclasses
import os
from pathlib import Path

import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.fleet import jobs as module
from da3_ros.fleet.jobs import FleetError, find_jobs
from da3_ros.replay.results import ReplayOptions

OPTIONS = ReplayOptions(Path(), Path())


def jobs(inputs, output, options=OPTIONS, **values):
    settings = config_from_parameters(values, NodeConfig)
    return find_jobs(inputs, output, options, settings)


@pytest.fixture
def folder(tmp_path):
    for name in ("site/run1.mcap", "site/run2.mcap", "other/run1.mcap"):
        path = tmp_path / "bags" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    return tmp_path / "bags"


def test_recordings_in_a_folder_are_named_by_their_path(folder, tmp_path):
    found = jobs([folder], tmp_path / "out")
    assert [job.name for job in found] == ["other/run1", "site/run1", "site/run2"]
    assert found[0].output == tmp_path / "out" / "other" / "run1"
    assert found[0].size == 1000 * len("other/run1.mcap")


def test_the_same_recording_twice_is_one_job(folder, tmp_path):
    given = folder / "site" / "run1.mcap"
    assert [job.name for job in jobs([given, given], tmp_path / "out")] == ["run1"]


def test_two_recordings_of_one_name_are_refused(folder, tmp_path):
    given = [folder / "site" / "run1.mcap", folder / "other" / "run1.mcap"]
    with pytest.raises(FleetError, match="would both be written to"):
        jobs(given, tmp_path / "out")


def test_results_are_not_processed_again(folder, tmp_path):
    out = folder / "out"
    for result in (out / "site" / "run1", folder / "older"):
        result.mkdir(parents=True)
        (result / "output.mcap").write_bytes(b"x")
        (result / "report.json").write_text('{"da3_ros": "0.1.0"}')
    (out / "site" / "run2").mkdir()
    (out / "site" / "run2" / "output.mcap").write_bytes(b"x")  # of one that is not complete
    assert len(jobs([folder], out)) == 3
    assert len(jobs([folder / "older", folder / "site"], tmp_path / "elsewhere")) == 2 + 1


@pytest.mark.parametrize("text", ["{}", "[1]", "no JSON", '{"frames": 3}'])
def test_reports_of_others_hide_no_recording(folder, tmp_path, text):
    (folder / "site" / "report.json").write_text(text)
    assert len(jobs([folder], tmp_path / "out")) == 3


def test_a_bag_folder_with_a_report_is_a_recording(tmp_path):
    bag = tmp_path / "bags" / "run"
    bag.mkdir(parents=True)
    (bag / "metadata.yaml").write_text("")
    (bag / "report.json").write_text('{"da3_ros": "0.1.0"}')
    assert [job.name for job in jobs([tmp_path / "bags"], tmp_path / "out")] == ["run"]


def bag_in(folder):
    folder.mkdir(parents=True)
    (folder / "metadata.yaml").write_text("")
    (folder / "run_0.mcap").write_bytes(b"x" * 100)
    return folder


@pytest.mark.parametrize("output", [".", "run", "run/deeper"])
def test_results_inside_a_recording_are_refused(tmp_path, output):
    bag_in(tmp_path / "bags" / "run")
    with pytest.raises(FleetError, match="choose another --output"):
        jobs([tmp_path / "bags"], tmp_path / "bags" / output)


@pytest.mark.parametrize("names", [("0001.jpg", "0002.jpg"), ("run_0.mcap", "run_1.mcap")])
@pytest.mark.parametrize("output", ["run", "run/deeper/still"])
def test_an_output_in_a_recording_of_any_kind_is_refused(folder, tmp_path, names, output):
    (tmp_path / "more" / "run").mkdir(parents=True)
    for name in names:
        (tmp_path / "more" / "run" / name).write_bytes(b"x")
    for given in (tmp_path / "more", folder):  # also where it is not one of the inputs
        with pytest.raises(FleetError, match=r"lies in the recording .*more/run: choose another"):
            jobs([given], tmp_path / "more" / output)


def test_merged_scenes_are_no_recordings(folder, tmp_path):
    for merged in (folder / "merged", folder / "older" / "merged", folder / "by_hand"):
        (merged / "images" / "b").mkdir(parents=True)
        (merged / "scene.json").write_text('{"format": "da3_ros scene"}')
        for name in ("1.jpg", "2.jpg"):
            (merged / "images" / "b" / name).write_bytes(b"x")
    assert len(jobs([folder], folder)) == 3
    assert len(jobs([folder], tmp_path / "out")) == 3


def test_recordings_of_one_stem_keep_their_suffixes(tmp_path):
    for name in ("rig/foo.mcap", "rig/foo.mp4", "rig/bar.mcap", "a.mcap", "a/b.mcap"):
        path = tmp_path / "bags" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    found = [job.name for job in jobs([tmp_path / "bags"], tmp_path / "out")]
    assert found == ["a.mcap", "a/b", "rig/bar", "rig/foo.mcap", "rig/foo.mp4"]


def test_names_that_no_table_can_show_are_left_out(folder, tmp_path, caplog):
    for name in (b"b\xff.mcap", b"two\nlines.mcap"):
        (folder / "site" / os.fsdecode(name)).write_bytes(b"x")
    assert len(jobs([folder], tmp_path / "out")) == 3
    assert caplog.text.count("is left out: rename it") == 2


@pytest.mark.parametrize("space", ["\u202f", "\u00a0", "\u3000"])
def test_spaces_of_any_kind_are_names(tmp_path, space):
    path = tmp_path / f"my{space}bags" / f"Recording 1.23{space}PM.mcap"
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert [job.name for job in jobs([path.parent], tmp_path / "out")] == [path.stem]


def test_files_of_a_recording_may_have_any_name(tmp_path):
    shots = tmp_path / "bags" / "shots"
    shots.mkdir(parents=True)
    for name in (b"1.png", b"\xff.png"):
        (shots / os.fsdecode(name)).write_bytes(b"x")
    (job,) = jobs([tmp_path / "bags"], tmp_path / "out")
    assert job.key
    assert not job.unreadable


def test_a_name_that_leads_out_of_the_output_is_refused(tmp_path):
    (tmp_path / "...mcap").write_bytes(b"x")
    with pytest.raises(FleetError, match="rename it"):
        jobs([tmp_path / "...mcap"], tmp_path / "out")


def test_a_folder_with_a_fault_hides_no_other(folder, tmp_path, monkeypatch, caplog):
    (folder / "lost").mkdir()
    listed = os.scandir

    def broken(path="."):
        if Path(os.fspath(path)).name == "lost":
            raise OSError(5, "Input/output error")
        return listed(path)

    monkeypatch.setattr(os, "scandir", broken)
    monkeypatch.setattr(os, "listdir", lambda path=".": [e.name for e in broken(path)])
    assert len(jobs([folder], tmp_path / "out")) == 3
    assert "lost is left out" in caplog.text


@pytest.mark.parametrize("given", ["nothing", "empty"])
def test_no_recording_is_an_error(tmp_path, given):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FleetError, match=r"nothing does not exist|no recording in"):
        jobs([tmp_path / given], tmp_path / "out")


def test_ros_1_bags_are_named(folder, tmp_path, caplog):
    (folder / "old.bag").write_bytes(b"x")
    assert len(jobs([folder], tmp_path / "out")) == 3
    assert "1 ROS 1 bags are left out" in caplog.text


def test_the_key_changes_with_all_that_results_depend_on(folder, tmp_path):
    given, out = folder / "site" / "run1.mcap", tmp_path / "out"
    plan = tmp_path / "plan.json"
    plan.write_text("{}")

    def key(options=OPTIONS, **values):
        return jobs([given], out, options, **values)[0].key

    keys = [
        key(), key(process_res=280), key(dataclasses.replace(OPTIONS, every=2)),
        key(dataclasses.replace(OPTIONS, plan=plan)),
    ]  # fmt: skip
    plan.write_text("{ }")
    keys.append(key(dataclasses.replace(OPTIONS, plan=plan)))
    given.write_bytes(b"other contents" * 1000)
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_the_key_changes_with_new_weights_and_masks_of_a_name(folder, tmp_path):
    given, weights, mask = folder / "site" / "run1.mcap", tmp_path / "weights", tmp_path / "m.png"
    weights.mkdir()
    keys = []
    for number in range(3):
        (weights / "config.json").write_text("{}")
        (weights / "model.safetensors").write_bytes(bytes([min(number, 1)]) * 9)
        mask.write_bytes(bytes([number]))
        keys += [
            jobs([given], tmp_path / "out", checkpoint=str(weights))[0].key,
            jobs([given], tmp_path / "out", mask=str(mask))[0].key,
            jobs([given], tmp_path / "out", **{"scale.metric_checkpoint": str(weights)})[0].key,
        ]
    # The weights of the last two rounds are the same.
    assert len(set(keys)) == 3 + 3 + 1
    assert keys[3] == keys[6]
    assert keys[5] == keys[8]


def test_the_key_changes_with_the_version(folder, tmp_path, monkeypatch):
    given = folder / "site" / "run1.mcap"
    before = jobs([given], tmp_path / "out")[0].key
    monkeypatch.setattr(module, "__version__", "99.0")
    assert jobs([given], tmp_path / "out")[0].key != before


def test_the_key_does_not_change_with_what_results_do_not_depend_on(folder, tmp_path):
    given = folder / "site" / "run1.mcap"
    one, other = (jobs([given], tmp_path / "out", cache_dir=c)[0].key for c in ("a", "b"))
    assert one == other


def test_the_key_is_the_same_in_another_folder(folder, tmp_path):
    given = folder / "site" / "run1.mcap"
    assert jobs([given], tmp_path / "a")[0].key == jobs([given], tmp_path / "b")[0].key


def test_a_recording_that_cannot_be_read_has_no_key(folder, tmp_path, monkeypatch):
    def broken(path, output):
        if path.name == "run2.mcap":
            raise OSError(5, "Input/output error")
        return "hash"

    monkeypatch.setattr(module, "fingerprint", broken)
    found = {job.name: job for job in jobs([folder], tmp_path / "out")}
    assert "run2.mcap: [Errno 5] Input/output error" in found["site/run2"].unreadable
    assert found["site/run1"].key
    assert not found["site/run1"].unreadable


def test_links_make_no_second_recording(folder, tmp_path):
    (folder / "again").symlink_to(folder / "site")
    (folder / "site" / "loop").symlink_to(folder)
    (folder / "zz.mcap").symlink_to(folder / "other" / "run1.mcap")
    assert len(jobs([folder], tmp_path / "out")) == 3


@pytest.mark.parametrize("name", ["merged.mcap", "fleet.json.mcap", "merged/a.mcap"])
def test_names_of_the_fleets_own_files_are_refused(tmp_path, name):
    path = tmp_path / "bags" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(FleetError, match="is a name of the fleet's: rename it"):
        jobs([tmp_path / "bags"], tmp_path / "out")


def test_results_inside_those_of_another_are_refused(folder, tmp_path):
    bag_in(tmp_path / "one" / "x" / "b")
    (tmp_path / "one" / "x.mcap").write_bytes(b"x")
    bag_in(tmp_path / "two" / "x.mcap" / "b")
    with pytest.raises(FleetError, match="would lie among those of"):
        jobs([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
