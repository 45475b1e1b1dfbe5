"""The pages of figures are what bench/report.py makes of the stored results, and cite all of
them."""

import json
import re
from pathlib import Path

import pytest
import report
import report_performance
from report_plots import Axis, Panel, Series, picture
from report_tables import Column, Note, ReportError, Result, listing, number, read, table, title_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
MARK = "<!-- table: {}, by bench/report.py -->"
MACHINE = {
    "device": "cpu", "cpu": "A processor", "cores": 12, "threads": 12, "load": 0.25,
    "torch": "2.13.0", "openvino": "2026.4.1", "python": "3.12.1", "amx": False,
}  # fmt: skip


# The repository


def test_pages_and_plots_are_what_the_results_give():
    assert report.Report(ROOT).differences(write=False) == [], "run: python bench/report.py"


def citing_pages():
    return "".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))


def test_every_result_is_cited_by_a_page():
    text = citing_pages()
    files = [file.name for file in RESULTS.iterdir()]
    assert len(files) > 50
    assert [name for name in files if not re.search(rf"(?<![\w-]){re.escape(name)}", text)] == []


def test_every_cited_result_is_there():
    pages = citing_pages() + (ROOT / "bench" / "README.md").read_text()
    cited = set(re.findall(r"bench/results/([\w.-]+\.(?:json|gz))", pages))
    assert len(cited) > 30
    assert [name for name in sorted(cited) if not (RESULTS / name).is_file()] == []


def test_every_entry_has_a_place_in_a_page_or_in_the_list_at_the_top():
    used = report.Report(ROOT).names() | set(re.findall(r"{([\w-]+)}", " ".join(report.FACTS)))
    assert sorted(set(report.ENTRIES) - used) == []


def test_notes_are_of_files_that_are_there_and_lack_what_they_add():
    for name, note in report.NOTES.items():
        result = read(RESULTS / name)
        assert not (note.command and result.data.get("command")), name


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({}, True), ({"image": [504, 504]}, True), ({"model": "da3-base"}, False),
        ({"views": 8}, False), ({"image": "504x378"}, False), ({"unseen": False}, False),
    ],
)  # fmt: skip
def test_only_the_published_setting_stands_beside_published_figures(other, same):
    setting = {"model": "da3-large", "views": 5, "image": "504x504", "unseen": True} | other
    assert report_performance.documents(Result("a.json", {"setting": setting}, [])) is same


# A small clone with its own results


@pytest.fixture
def clone(tmp_path):
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("# Start\n")

    def make(*names, **results):
        marks = "\n\n".join(f"{MARK.format(name)}\n<!-- end -->" for name in names)
        (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{marks}\n\nProse.\n")
        for name, data in results.items():
            folder = tmp_path / "bench" / ("" if name == "published" else "results")
            (folder / f"{name.replace('__', '-')}.json").write_text(json.dumps(data))
        return tmp_path

    return make


def page_of(root):
    assert report.main([], root) == 0
    return (root / "docs" / "page.md").read_text()


def matrix_rows(**changes):
    fast = {
        "mode": "balanced", "precision": "bfloat16", "compile": "off", "backend": "torch",
        "runs": "5 x 504x504 bfloat16 torch", "mean_s": 10.0, "std_s": 0.5, "median_s": 9.9,
        "images_per_s": 0.5, "stability": 0.0, "peak_gib": 2.0, "load_s": 3.0,
        "cold_start_s": 15.0,
    }  # fmt: skip
    slow = {**fast, "precision": "off", "mean_s": 25.0, "images_per_s": 0.2}
    not_run = {"mode": "max", "precision": "float16", "compile": "on", "refused": "no | kernel"}
    return {
        "machine": MACHINE,
        "command": "python bench/matrix.py --documents --out bench/results/matrix-a.json",
        "setting": {
            "model": "da3-large", "views": 5, "unseen": True, "image": [504, 504], **changes,
        },
        "rows": [fast, slow, not_run],
        "summary": {
            "success": [2, 3], "by_mode": {"balanced": 0.35}, "by_precision": {"off": 0.2},
            "best": fast, "slowest": slow,
        },
    }  # fmt: skip


PUBLISHED = {
    "benchmark": {
        "rows": [
            {"what": "best", "device": "cuda", "hardware": "not named", "images_per_s": 8.14},
            {"what": "best", "device": "cpu", "hardware": "12 cores", "images_per_s": 0.54},
        ]
    },
    "one_image": [{"model": "da3-small", "size": "518x518", "ms_per_image": 25.25}],
    "memory": {
        "presets": [{"name": "Balanced", "model": "da3-large", "frames": [10, 20], "gb": [6, 8]}],
        "rule_of_thumb": [{"frames": [200, None], "model": ["da3-base", "da3-large"]}],
        "rtx_3090_100_frames": {"rows": [{"model": "da3-giant", "gb": 16.2}]},
    },
}


def test_a_matrix_of_several_versions_says_so(clone):
    data = matrix_rows()
    assert "commits" not in page_of(clone("matrix", matrix__a=data))
    for row, commit in zip(data["rows"], ("abc1", "abc2", "abc1"), strict=True):
        row["commit"] = commit
    page = page_of(clone("matrix", matrix__a=data))
    assert "* The rows are of commits abc1, abc2: compare those of one." in page
    assert [line.split(" | ")[-2] for line in page.splitlines() if line.startswith("| ba")] == [
        "abc1", "abc2"
    ]  # fmt: skip


def test_a_matrix_names_its_machine_its_setting_and_what_did_not_run(clone):
    page = page_of(clone("matrix", matrix__a=matrix_rows()))
    assert (
        "* `python bench/matrix.py --documents` "
        "([matrix-a.json](../bench/results/matrix-a.json)): A processor, 12 cores, no AMX, "
        "load 0.250, torch 2.13.0, openvino 2026.4.1, python 3.12.1."
    ) in page
    setting = "* Setting: model da3-large, views 5, all views new yes, image 504x504."
    assert setting in page
    assert (
        "| balanced | bfloat16 | off | torch | 5 x 504x504 bfloat16 torch | 10.0 | 0.500 |" in page
    )
    assert re.search(r"^\| max \| float16 \| on \|.*\| no / kernel \|$", page, re.M)
    assert "* Rows: 2 of 3 ran." in page
    assert "* Mean images/s by mode: balanced 0.350." in page
    assert "* Best: balanced, bfloat16, off, torch: 0.500 images/s." in page


def test_ours_stand_beside_the_published_rows_of_the_same_setting_only(clone):
    others = {
        "matrix__b": matrix_rows(model="da3-small"),
        "matrix__c": matrix_rows(unseen=False),  # a sliding window
    }
    root = clone("devices", published=PUBLISHED, matrix__a=matrix_rows(), **others)
    page = page_of(root)
    lines = re.findall(r"^\| ((?:cpu|cuda) .*) \|$", page, re.M)
    assert [[cells[k] for k in (0, 1, 4, 5, -1)] for cells in (x.split(" | ") for x in lines)] == [
        ["cpu", "best", "ours", "A processor, 12 cores", "0.500"],
        ["cpu", "best", "published", "12 cores", "0.54"],
        ["cpu", "slowest", "ours", "A processor, 12 cores", "0.200"],
        ["cpu", "average by precision", "ours", "A processor, 12 cores", "0.200"],
        ["cpu", "average by mode", "ours", "A processor, 12 cores", "0.350"],
        ["cuda", "best", "published", "not named", "8.14"],
    ]
    assert "matrix-a.json" in page
    assert "matrix-b.json" not in page


def test_a_row_that_memory_made_smaller_stands_beside_no_published_row(clone):
    """It is the fastest, of fewer or smaller images."""
    data = matrix_rows()
    data["rows"].append({**data["rows"][0], "images_per_s": 99.0, "reduced": ["224 pixels"]})
    page = page_of(clone("devices", "in-short", published=PUBLISHED, matrix__a=data))
    assert "99.0" not in page
    assert re.search(r"^\| cpu \| best \|.*\| 0\.500 \|$", page, re.M)


def test_the_list_at_the_top_has_the_published_setting_and_accuracy_once_they_are_there(clone):
    page = page_of(clone("in-short", matrix__a=matrix_rows(), quality=QUALITY))
    first, second = re.findall(r"^\* (.*)$", page, re.M)
    assert "0.500 images/s (torch, bfloat16, balanced) on A processor, 12 cores." in first
    assert "da3-tiny at 252x189 processes 10.0 new frames/s (openvino, bfloat16)" in second
    assert "with an AbsRel of 8.0 %" in second


def test_published_figures_say_that_they_are_not_ours(clone):
    page = page_of(clone("published-images", "published-memory", published=PUBLISHED))
    assert page.count("([published.json](../bench/published.json)): not measured here.") == 2
    assert "| da3-small | 518x518 | 25.25 |" in page
    assert "| preset Balanced | da3-large | 10 to 20 | 6 to 8 |" in page
    assert "| rule | da3-base, da3-large | more than 200 |  |" in page
    assert "| measured on an RTX 3090 | da3-giant | 100 | 16.2 |" in page


QUALITY = {
    "machine": MACHINE,
    "command": "python bench/bench_quality.py",
    "rows": [
        *(
            {"model": "da3-tiny", "process_res": 252, "size": "252x189", "views": views,
             "precision": kind, "backend": "openvino", "frames_per_s": rate, "peak_gib": 0.1,
             "abs_rel": 0.08, "abs_rel_refined": 0.05, "way_m": 4.0, "ate_m": 0.02,
             "ate_refined_m": 0.01}
            for kind, rate, views in (
                ("float32", 4.0, 8), ("bfloat16", 10.0, 8), ("float32", 5.0, 4)
            )
        ),
        {"model": "da3-large", "process_res": 252, "size": "252x189", "views": 8,
         "precision": "bfloat16", "backend": "torch", "planned_gib": 2.0},
        {"process_res": 504, "precision": "off", "refused": "nothing fits"},
    ],
}  # fmt: skip


def test_speed_against_accuracy_is_a_plot_and_a_table(clone):
    root = clone("quality", quality=QUALITY)
    page = page_of(root)
    assert "![Speed against accuracy](images/speed_accuracy.svg)" in page
    assert (
        "| da3-tiny | 252 | 252x189 | 8 | float32 | openvino | 4.00 | 0.100 |  | 0.0800 |" in page
    )
    assert "|  | 504 |  |  | off |" in page
    assert "| nothing fits |" in page
    plot = (root / "docs" / "images" / "speed_accuracy.svg").read_text()
    assert plot.count(">252x189</text>") == 6  # two points in each of three panels
    assert plot.count(">252x189, 4 views</text>") == 3
    assert ">da3-tiny, bfloat16, openvino</text>" in plot
    assert "da3-large" not in plot
    assert ">ATE over the way, %</text>" in plot


def test_a_plot_whose_results_are_gone_goes_too(clone):
    root = clone("quality", quality=QUALITY)
    page_of(root)
    (root / "bench" / "results" / "quality.json").unlink()
    assert report.main(["--check"], root) == 1
    assert "Unrun" in page_of(root)
    assert not (root / "docs" / "images" / "speed_accuracy.svg").exists()


ROWS = {
    "pieces": (
        {"model": "da3-small", "pieces": "head 1", "median_s": 0.5, "overhead": 0.071},
        "| Model | In pieces | Median, s | Overhead, % |", "| da3-small | head 1 | 0.500 | 7.10 |",
    ),
    "loading": (
        {"model": "da3-small", "state": "cold", "gb": 0.1, "read_s": 0.2, "read_gb_per_s": 0.5},
        "| Model | Read from | File, GB | Read, s | Read, GB/s |",
        "| da3-small | cold | 0.100 | 0.200 | 0.500 |",
    ),
    "yardstick": (
        {"model": "small", "variant": "ours", "median_ms": 160.0, "extrapolated": True},
        "| Model | Variant | Median, ms | Extrapolated |", "| small | ours | 160 | yes |",
    ),
    "attention": (
        {"what": "network", "kernel": "math", "median_ms": 10.5, "times_chosen": 2.1},
        "| What | Kernel | Median, ms | Times that of the chosen one |",
        "| network | math | 10.5 | 2.10 |",
    ),
    "node": (
        {"model": "da3-tiny", "rate_hz": 30.0, "windows_per_s": 9.5, "latency_median_s": 0.0851},
        "| Model | Camera, Hz | Windows/s | Stamp to arrival, ms: median |",
        "| da3-tiny | 30.0 | 9.50 | 85.1 |",
    ),
    "frames100": (
        {"method": "chunks of 8", "seconds": 12.5, "peak_gib": 0.1234, "ate_m": None},
        "| Method | Seconds of all | Peak, GiB |", "| chunks of 8 | 12.5 | 0.123 |",
    ),
    "window-stages": (
        {"model": "da3-small", "stage": "head", "ms": 50.25, "mib": 12.5},
        "| Model | Stage | ms per window | Memory, MiB |", "| da3-small | head | 50.2 | 12.5 |",
    ),
    "postprocessing": (
        {"variant": "flips", "abs_rel": 0.0886, "rooms_better": 7},
        "| Variant | AbsRel | Rooms with better depth |", "| flips | 0.0886 | 7 |",
    ),
}  # fmt: skip


def test_columns_of_a_file_of_no_known_kind_are_named_by_its_keys():
    rows = [{"model": "da3-small", "read_gb_per_s": 1.5, "peak_gib": 0.1234, "p95_ms": 1234.5}]
    head, _, line = table(rows).splitlines()
    assert head == "| Model | Read, GB/s | Peak, GiB | 95 %, ms |"
    assert line == "| da3-small | 1.50 | 0.123 | 1234 |"


@pytest.mark.parametrize("name", ROWS)
def test_a_new_file_becomes_a_table(clone, name):
    row, head, line = ROWS[name]
    data = {"machine": MACHINE, "command": "python bench/x.py", "rows": [row]}
    page = page_of(clone(name, **{name: data}))
    assert head in page
    assert line in page


def test_a_gpus_table_has_its_slowest_runs_and_its_share_of_the_peak(clone):
    row = {"model": "da3-base", "size": "8 x 504x280", "variant": "ours bf16", "p99_s": 0.0125,
           "share_of_peak": 0.41}  # fmt: skip
    data = {"machine": MACHINE, "command": "python bench/x.py", "rows": [row]}
    page = page_of(clone("network-gpu", **{"gpu-network-da3-base": data}))
    assert "| Model | Window | Variant | 99 %, ms | Share of the measured peak, % |" in page
    assert "| da3-base | 8 x 504x280 | ours bf16 | 12.5 | 41.0 |" in page


def test_a_result_without_rows_is_a_table_of_its_names(clone):
    stages = {"machine": MACHINE, "command": "python bench/x.py", "decode": 0.02, "rectify": 0.81}
    page = page_of(clone("stages", stages=stages))
    assert "| Stage | ms, median |" in page
    assert "| rectify | 0.810 |" in page


# Checking and writing


def test_a_check_writes_nothing_and_names_what_differs(clone, capsys):
    root = clone("pieces", "loading", pieces={"rows": [{"pieces": "head 1", "median_s": 0.5}]})
    before = (root / "docs" / "page.md").read_text()
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().out == "differs: pieces\ndiffers: loading\n"
    assert (root / "docs" / "page.md").read_text() == before
    page = page_of(root)
    assert page.endswith("<!-- end -->\n\nProse.\n")
    assert report.main(["--check"], root) == 0
    (root / "docs" / "page.md").write_text(page.replace("0.500", "0.400"))
    capsys.readouterr()
    assert report.main(["--check"], root) == 1
    assert capsys.readouterr().out == "differs: pieces\n"


def test_a_value_stands_within_a_line(clone, monkeypatch):
    value = report.Source("pieces.json", "median_s", {"head_frames": 2}, "{} ms", 1e3, 2)
    root = clone(pieces={"rows": [{"head_frames": n, "median_s": 0.1 * n} for n in (1, 2)]})
    (root / "README.md").write_text("| a <!-- value: cpu-frame --><!-- end --> b |\n")
    monkeypatch.setitem(
        report.ENTRIES, "cpu-frame", report.Entry((value.file,), value.of, inline=True)
    )
    assert report.main([], root) == 0
    text = (root / "README.md").read_text()
    assert text == "| a <!-- value: cpu-frame -->200 ms<!-- end --> b |\n"


BROKEN = {
    "an unknown name": ("pices", {}, "no entry is called 'pices'"),
    "no JSON": ("pieces", {"pieces": "{"}, "pieces.json: "),
    "no number": (
        "pieces",
        {"pieces": {"rows": [{"median_s": float("nan")}]}},
        "nan is no number",
    ),
    "another kind": ("shares", {"cpu__shares": {"rows": [{"model": "x"}]}}, "shares, of cpu-sh"),
    "no rows": ("pieces", {"pieces": {"rows": []}}, "no row has one of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_in_one_line_and_nothing_is_written(clone, capsys, name):
    entry, results, message = BROKEN[name]
    root = clone(entry, **results)
    for file in (root / "bench" / "results").iterdir():
        file.write_text("{" if file.read_text() == '"{"' else file.read_text())
    before = (root / "docs" / "page.md").read_text()
    assert report.main([], root) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert (root / "docs" / "page.md").read_text() == before


@pytest.mark.parametrize("text", [MARK.format("pieces"), "<!-- end -->"])
def test_a_mark_without_its_partner_is_refused(clone, capsys, text):
    root = clone()
    (root / "docs" / "page.md").write_text(f"{text}\n")
    assert report.main([], root) == 2
    assert "docs/page.md: a mark has no partner" in capsys.readouterr().err


# Cells, columns, lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.27085, "0.271"), (17.181, "17.2"), (1059.2, "1059"), (0.0, "0"), (8e-17, "0"),
        (1.4057e-6, "1.41e-6"), (-0.0911, "-0.0911"), (12, "12"), (True, "yes"), (None, ""),
        ([10, 0.5], "10, 0.500"), ("text", "text"),
    ],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_titles_have_the_unit_of_the_key():
    titles = {
        "median_s": "Median, s", "p95_ms": "95 %, ms", "images_per_s": "Images/s",
        "peak_gib": "Peak, GiB", "std_s": "Standard deviation, s", "mode": "Mode",
        "backbone_tflops": "Backbone, TFLOP/s", "rotation_deg": "Rotation, degrees",
    }  # fmt: skip
    assert {key: title_of(key) for key in titles} == titles


def test_columns_scale_and_those_without_values_are_left_out():
    rows = [{"a": {"b": 0.5}, "c": "x"}, {"c": "y"}]
    made = table(rows, ["c", Column("a.b", "Half, %", 100.0), "absent"])
    assert made == "| C | Half, % |\n| --- | ---: |\n| x | 50.0 |\n| y |  |\n"


def test_commands_lose_the_file_to_write_and_folders_of_data():
    command = "python bench/x.py --data /some/where --runs 2 --out a.json"
    result = Result("a.json", {"command": command}, [])
    assert result.command == "python bench/x.py --data DIR --runs 2"


def test_what_a_file_lacks_is_noted_by_hand():
    note = Note("two cores", "python bench/x.py")
    text = listing("a")([Result("a.json", {"machine": {"torch": "2"}}, [{"a": 1}], note)])
    assert text.startswith("* `python bench/x.py` ([a.json](../bench/results/a.json)): torch 2; ")
    assert "noted by hand: two cores." in text


def test_an_ambiguous_value_is_refused():
    result = Result("a.json", {}, [{"a": 1, "b": 2.0}, {"a": 1, "b": 3.0}])
    with pytest.raises(ReportError, match=r"a.json: wanted one row with {'a': 1} and b: 2"):
        result.value("b", a=1)


# Plots


def panel(points, **axis):
    return Panel(Axis("x"), Axis("y", **axis), [Series("one & two", points)])


def test_a_plot_is_the_same_bytes_and_its_points_lie_where_they_belong():
    drawn = picture([panel([(1, 1.0), (10, 100.0)])], "A title")
    assert drawn == picture([panel([(1, 1.0), (10, 100.0)])], "A title")
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "<title>A title</title>" in drawn
    assert "one &amp; two" in drawn
    (line,) = re.findall(r'<polyline points="([^"]+)"', drawn)
    (x0, y0), (x1, y1) = (map(float, p.split(",")) for p in line.split())
    assert (x0, x1) == (64.0, 696.0)
    assert y0 > y1  # larger values are higher
    assert re.findall(r'text-anchor="middle">(\d+)<', drawn) == ["1", "2", "5", "10"]


def test_one_point_has_a_place_and_zero_has_none_on_a_logarithmic_axis():
    assert "<circle" in picture([panel([(1, 1.0)])], "")
    assert "<circle" in picture([panel([(1, 0.0)], log=False)], "")
    with pytest.raises(ValueError, match="y: 0 has no place"):
        picture([panel([(1, 0)])], "")
