"""The page of a replay and of a saved scene: what is in it, and that nothing else is."""

import contextlib
import itertools
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.export.scene_file import SceneFile
from da3_ros.export.tum import tum_line
from da3_ros.keyframe_store.journal import JournalReader
from da3_ros.keyframe_store.store import JOURNAL, SAVED_KINDS
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay.results import ReplayOptions
from da3_ros.replay.run import replay
from da3_ros.reporting.advice import DROPS
from da3_ros.reporting.course import poses_of
from da3_ros.reporting.figures import ReportError
from da3_ros.reporting.guide import guide
from da3_ros.reporting.keyframes import MOST_BYTES, MOST_OF_ALL, MOST_TRACKED_OF_ALL, picture
from da3_ros.reporting.page import write_page
from da3_ros.reporting.timeline import COLUMNS, MOST_BINS, STAMPS
from da3_ros.reporting.trajectory_errors import trajectory_errors
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

pytestmark = pytest.mark.slow  # plots

FRAMES = 10
VALUES = ("model:=da3-tiny", "checkpoint:=random", "process_res:=140", "window.size:=4",
          "window.new:=2", "mixed_precision:=off", "backend:=torch")  # fmt: skip
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
VOID = {"meta", "img", "br"}


@pytest.fixture(scope="module")
def camera():
    return SyntheticCamera(seed=2, size=(140, 112), walk="loop", frames=FRAMES)


@pytest.fixture(scope="module")
def output(camera, tmp_path_factory):
    """A replay with exact windows and its report."""
    folder = tmp_path_factory.mktemp("report")
    write_synthetic_bag(folder / "room", camera)
    options = ReplayOptions(folder / "room", folder / "out", report=True)
    replay(options, load_config(None, VALUES), TruthSession(camera))
    return folder / "out"


@pytest.fixture
def copied(output, tmp_path):
    shutil.copytree(output, tmp_path / "out")
    return tmp_path / "out"


class Page(HTMLParser):
    """The elements of a page with their attributes, its ids and its text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.ids, self.open, self.said = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.said.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.said).split())

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(source, truth=None):
    target = source.parent / "page.html"
    write_page(source, target, truth)
    return Page(target.read_text())


def check_alone(page):
    """Nothing is loaded from elsewhere, and nothing runs."""
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base", "video"}
    (policy,) = [m["content"] for m in page.named("meta") if "http-equiv" in m]
    assert policy.startswith("default-src 'none'; img-src data:;")
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "xlink:href"):
                assert value.startswith("#"), (tag, value)
                assert value[1:] in page.ids
            elif name in ("src", "srcset", "data", "action"):
                assert value.startswith("data:image/jpeg;base64,"), (tag, value[:80])
            elif name == "style":
                assert not re.search(r"url\((?!#)|@import", value)


def test_a_replay_writes_a_page_that_needs_nothing_else(output):
    text = (output / "report.html").read_text()
    page = Page(text)
    check_alone(page)
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"url\((?!#)|@import", text)
    assert len(text) < 5_000_000
    assert all(image["alt"] for image in page.named("img"))
    drawn = page.named("svg")
    assert len(drawn) == 5
    assert all(one["role"] == "img" and one["aria-label"] for one in drawn)


def test_a_page_says_what_the_run_was(output):
    page = Page((output / "report.html").read_text())
    assert "10 frames processed" in page.text
    assert "* /camera/image_raw" in page.text
    assert "calibration: /camera/camera_info" in page.text
    for title in ("What to do better next time", "What was recorded, and what was lost",
                  "Trajectory", "Keyframes", "Tracks and reprojection error", "Scale",
                  "Loops and components", "Time and memory of this run", "Settings"):  # fmt: skip
        assert f" {title} " in page.text, title
    assert "There are no metres." in page.text
    assert "scenes without a known scale: 1 (limit: at most 0)" in page.text
    assert "Images are dark" not in page.text
    for axis in ("x, forward at the start (units)", "y, left at the start (units)",
                 "z, height above the start (units)", "time (s)", "frames (%)",
                 "time per window (s)", "memory (MiB)"):  # fmt: skip
        assert axis in page.text, axis
    keyframes = [image["alt"] for image in page.named("img") if "keyframe" in image["alt"]]
    stored = json.loads((output / "report.json").read_text())["counts"]["keyframes_stored"]
    for kind in ("image", "depth of the network", "confidence"):
        assert sum(alt.startswith(f"{kind} of") for alt in keyframes) == stored >= 1


@pytest.mark.long
def test_the_same_files_give_the_same_page(output, tmp_path):
    for name in ("a.html", "b.html"):
        write_page(output, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.html").read_bytes() == (output / "report.html").read_bytes()


def test_texts_of_a_recording_are_only_texts(copied):
    report = json.loads((copied / "report.json").read_text())
    report |= {"input": EVIL, "camera": EVIL, "stopped_at": EVIL, "bad_images": [EVIL] * 200}
    report["counts"] |= {f"dropped_{EVIL}": 1, f"blind_{EVIL}": 2}
    report["parameters"][EVIL] = EVIL
    report["recording"] = [EVIL, 5]
    report["scenes"].append("_<b>&x")
    report["refinement"]["focal_source"] = {EVIL: EVIL}
    (copied / "report.json").write_text(json.dumps(report))
    for name in ("scene", "timeline.json"):
        new = (copied / name).with_stem(f"{name.split('.')[0]}_<b>&x")
        (shutil.copytree if name == "scene" else shutil.copy)(copied / name, new)
    page = page_of(copied)
    check_alone(page)
    assert EVIL in page.text
    assert "and 150 more, in report.json" in page.text
    assert "Trajectory: <b>&x" in page.text


def test_a_scene_alone_shows_what_is_there(output):
    page = page_of(output / "scene")
    check_alone(page)
    assert "Report of a saved scene" in page.text
    assert "frames processed" not in page.text
    assert "Time and memory" not in page.text
    assert "Its uncertainty is not known." in page.text
    assert [image["alt"] for image in page.named("img")]


@pytest.fixture
def _without_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("_without_matplotlib")
def test_many_cameras_share_the_pictures_of_a_page(copied):
    report = json.loads((copied / "report.json").read_text())
    report["scenes"] += [f"_c{number}" for number in range(7)]
    (copied / "report.json").write_text(json.dumps(report))
    for number in range(7):
        shutil.copytree(copied / "scene", copied / f"scene_c{number}")
        shutil.copy(copied / "tracks.npz", copied / f"tracks_c{number}.npz")
    alone = [image["alt"] for image in page_of(copied / "scene").named("img")]
    shared = [image["alt"] for image in page_of(copied).named("img")]
    assert sum("tracks" in alt for alt in shared) == 8
    assert len(shared) - 8 == 8 * len(alone)


def test_pictures_are_small_whatever_they_show():
    """Noise has the largest JPEG of all, and a page has a hundred of them."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (480, 480, 3), np.uint8)
    plain = np.full((240, 320, 3), 128, np.uint8)
    loud, quiet = picture("noise", noise), picture("plain", plain)
    assert len(loud.url) < 4 / 3 * MOST_BYTES + 100
    assert min(loud.size) > 100
    assert quiet.size == (320, 240)
    most = 4 * MOST_OF_ALL + MOST_TRACKED_OF_ALL
    assert most * (4 / 3 * MOST_BYTES + 100) < 3.5e6


def test_advice_has_the_section_of_the_documents_in_it(copied, monkeypatch):
    report = json.loads((copied / "report.json").read_text())
    report["counts"] |= {"dropped_late": 50, "received": 200}
    (copied / "report.json").write_text(json.dumps(report))
    page = page_of(copied)
    check_alone(page)
    assert "More: Dropped images, by cause (docs/troubleshooting.md)" in page.text
    assert " ".join(guide(*DROPS).split()) in page.text
    monkeypatch.setattr("da3_ros.reporting.guide.__file__", str(copied / "a" / "b" / "guide.py"))
    assert " ".join(guide(*DROPS).split()) == ""
    assert "More: Dropped images, by cause (docs/troubleshooting.md)" in page_of(copied).text


@pytest.mark.usefixtures("_without_matplotlib")
def test_without_matplotlib_there_are_no_plots(output, caplog):
    page = page_of(output)
    assert page.named("svg") == []
    assert "There are no plots: plots need matplotlib, which is missing: pip" in page.text
    assert "python3-matplotlib" in caplog.text


def test_what_is_not_known_is_said(tmp_path):
    """All values are null, of wrong types, or not there."""
    out = tmp_path / "out"
    out.mkdir()
    nothing = dict.fromkeys(("counts", "refinement", "dense", "loops", "scale", "parameters"))
    for value in (None, {}, float("nan"), "text", [1], 10**400, True):
        (out / "report.json").write_text(json.dumps({**dict.fromkeys(nothing, value), "input": 5}))
        (out / "measured.json").write_text(json.dumps({"wall_s": value, "timelines": value}))
        columns = {name: [0] if name in STAMPS else [None] for name in COLUMNS}
        (out / "timeline.json").write_text(json.dumps({"version": 1, "columns": columns}))
        page = page_of(out)
        check_alone(page)
        assert "There are no poses." in page.text
        assert "No keyframes are stored." in page.text
        assert "nan" not in page.text.lower()


def test_a_run_of_days_fits_into_the_page(copied):
    """As many bins as there can be, of 10 000 frames each."""
    content = json.loads((copied / "timeline.json").read_text())
    columns, rng = content["columns"], np.random.default_rng(0)
    count = len(columns["frames"])
    for name, values in columns.items():
        columns[name] = [values[k % count] for k in range(MOST_BINS)]
    stamps = 10**18 + 10**9 * np.arange(MOST_BINS) * 200
    columns["first_ns"], columns["last_ns"] = stamps.tolist(), (stamps + 10**9).tolist()
    columns["tracks"] = rng.uniform(0, 300, MOST_BINS).tolist()
    columns["loops"] = [k % 2 for k in range(MOST_BINS)]
    columns["frames"] = [10_000] * MOST_BINS
    (copied / "timeline.json").write_text(json.dumps(content))
    page = page_of(copied)
    assert (copied.parent / "page.html").stat().st_size < 5_000_000
    assert "time (h)" in page.text
    assert "and 950 more" in page.text


def test_what_cannot_be_read_is_named(copied):
    journal = copied / "scene" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:2000])
    (copied / "timeline.json").write_text("{")
    (copied / "measured.json").write_text("{")
    page = page_of(copied)
    assert page.text.count("Cannot be read: ") == 3
    assert "There are no poses." in page.text


def test_keyframes_of_a_run_that_did_not_end_are_shown(output, tmp_path):
    """As a crash leaves them: the journal ends before the saved scene."""
    with contextlib.closing(JournalReader(output / "scene" / JOURNAL)) as journal:
        kept = itertools.takewhile(lambda r: r.description["kind"] not in SAVED_KINDS,
                                   journal.records())  # fmt: skip
        last = max(record.start + record.size for record in kept)
    (tmp_path / "scene").mkdir()
    data = (output / "scene" / JOURNAL).read_bytes()
    (tmp_path / "scene" / JOURNAL).write_bytes(data[:last])
    page = page_of(tmp_path / "scene")
    assert "its run did not end, only keyframes are there" in page.text
    assert "There are no poses." in page.text
    assert len(page.named("img")) >= 3


@pytest.mark.usefixtures("_without_matplotlib")
def test_of_a_declared_scale_the_factor_is_shown(copied):
    report = json.loads((copied / "report.json").read_text())
    report["scale"] = {"source": "fixed", "metres_per_unit": 1.0, "sigma": 0.0}
    report["parameters"]["scale.factor"] = 2.5
    (copied / "report.json").write_text(json.dumps(report))
    said = page_of(copied).text
    assert "scale.factor: metres per unit of the first window 2.5" in said
    assert "metres per unit of the scene, last window 1 " in said


@pytest.mark.usefixtures("_without_matplotlib")
def test_figures_of_all_cameras_are_called_so(copied):
    assert "Of all cameras together:" not in page_of(copied).text
    report = json.loads((copied / "report.json").read_text())
    report["scenes"].append("_right")
    (copied / "report.json").write_text(json.dumps(report))
    shutil.copy(copied / "timeline.json", copied / "timeline_right.json")
    assert page_of(copied).text.count("Of all cameras together:") == 1


@pytest.mark.usefixtures("_without_matplotlib")
def test_scenes_of_an_earlier_run_in_the_folder_are_left_out(copied):
    alone = page_of(copied)
    shutil.copytree(copied / "scene", copied / "scene_right")
    for name in ("timeline.json", "trajectory.tum"):
        shutil.copy(copied / name, (copied / name).with_stem(name.split(".")[0] + "_right"))
    assert page_of(copied).text == alone.text
    (copied / "report.json").unlink()  # as a replay leaves it that did not end
    assert "Trajectory: right" in page_of(copied).text


@pytest.mark.usefixtures("_without_matplotlib")
def test_of_few_known_figures_none_says_that_all_is_well(copied):
    """As a killed replay leaves its folder, with a scene of which no figure is beyond a limit."""
    for file in copied.iterdir():
        if file.name not in ("scene", "timeline.json"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.rmtree(copied / "scene")
    page = page_of(copied)
    assert "All is well" not in page.text
    assert re.search(r"Figures that are known: \d of \d\d\. None of these is beyond", page.text)


def test_a_page_that_cannot_be_drawn_costs_no_results(camera, tmp_path, monkeypatch, caplog):
    write_synthetic_bag(tmp_path / "room", camera)
    options = ReplayOptions(tmp_path / "room", tmp_path / "out", report=True)

    def fail(*_, **__):
        raise ZeroDivisionError("no\nfont")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    summary = replay(options, load_config(None, VALUES), TruthSession(camera))
    assert {"trajectory.tum", "scene", "report.json"} <= set(summary.files)
    assert "report.html" not in summary.files
    (said,) = [r.message for r in caplog.records if "report.html" in r.message]
    assert said.endswith("could not be written, all else was: ZeroDivisionError: no font")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ReportError, match="holds neither a scene nor a report"):
        write_page(tmp_path, tmp_path / "report.html")
    with pytest.raises(ReportError, match="give the output folder of a replay"):
        write_page(tmp_path, tmp_path / "report.html")
    with pytest.raises(ReportError, match="is no folder"):
        write_page(tmp_path / "no", tmp_path / "report.html")
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(ReportError, match=r"report.json is damaged"):
        write_page(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.fixture(scope="module")
def true_file(camera, tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "poses.tum"
    path.write_text("".join(tum_line(f.stamp_ns, f.T_room_camera) for f in camera))
    return path


def test_errors_against_true_poses_are_shown(output, camera, true_file):
    page = page_of(output, true_file)
    scene = SceneFile(output / "scene").saved.scene()
    _, poses, _ = poses_of(scene)
    errors = trajectory_errors(poses, np.array([f.T_room_camera for f in camera]), metric=False)
    said = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert f"ATE (root mean square) {errors.sim3.ate_m:.3g} m" in said
    assert f"scale of the fit {errors.sim3.T_truth_map.scale:.3g}" in said
    assert said.count("ATE (root mean square)") == 2  # of the map, and as published
    assert "SE(3)" not in said  # lengths are not metres
    assert "true path" in said
    assert "error of the position (m)" in said


def test_the_command_writes_the_page(output, true_file, tmp_path, capsys):
    target = tmp_path / "page.html"
    words = ["report", str(output), "--output", str(target)]
    assert main([*words, "--truth", str(true_file)]) == 0
    assert capsys.readouterr().out.startswith(f"{target}: ")
    assert "Against the true poses" in target.read_text()


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["{out}", "--output", "{tmp}/page.pdf"], 2, "must end with .html"),
        (["{tmp}/none"], 1, "is no folder: give a replay's output"),
        (["{out}", "--output", "{out}/scene/page.html"], 1, "is inside the saved scene"),
        (["{out}", "--output", "{out}/report.json/page.html"], 1, "cannot be written"),
        (["{out}", "--output", "{tmp}/x.html", "--truth", "{out}/report.json"], 1, "no true pose"),
        (["{out}", "--output", "{tmp}/x.html", "--truth", "{tmp}/none"], 1, "no true poses: give"),
    ],
)
def test_wrong_use_is_one_line(output, tmp_path, capsys, words, code, why):
    before = sorted(output.rglob("*"))
    assert main(["report", *(word.format(out=output, tmp=tmp_path) for word in words)]) == code
    said = capsys.readouterr()
    assert why in said.err
    assert said.err.strip().count("\n") == 0
    assert said.out == ""
    assert sorted(output.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []
