"""Documents, container and workflow name what exists, and the reference agrees with the code."""

import ast
import importlib
import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
KINDS = ("How-to", "Explanation", "Figures", "Reference")
PAGES = sorted({ROOT / "README.md", *DOCS.glob("*.md"), *ROOT.glob("*/README.md")})
NO_PRESETS = ("da3", "nav2_costmap", "low_memory")  # the last one: an old name
PRESETS = sorted(f.stem for f in (ROOT / "config").glob("*.yaml") if f.stem not in NO_PRESETS)
PROSE = sorted({ROOT / "CONTRIBUTING.md", *PAGES})
LONGEST_SENTENCE = 40  # words
OURS = ("bench", "config", "docker", "docs", "launch", "rviz", "test", "tools", "da3_ros")


def test_reference_is_what_the_generator_makes_of_the_code():
    make = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))["reference_text"]
    current = (ROOT / "docs" / "reference.md").read_text()
    assert current == make(), "run: python tools/write_reference.py docs/reference.md"


def test_the_python_interface_is_what_the_generator_makes_of_the_code():
    tool = runpy.run_path(str(ROOT / "tools" / "write_api.py"))
    current = (DOCS / "api.md").read_text()
    assert current == tool["api_text"](), "run: python tools/write_api.py docs/api.md"
    for module, table, kind in tool["TABLES"]:
        assert f"`da3_ros.{module}.{table}` | `{kind}`" in current
        rows = getattr(importlib.import_module(f"da3_ros.{module}"), table)
        assert rows
        assert all(isinstance(name, str) for name in rows)


# Messages and commands are documented elsewhere, and rendered rooms are for the examples alone.
NOT_PYTHON = {"da3_ros.msg", "da3_ros.cli", "da3_ros.recordings.synthetic_bag"}


def test_examples_use_the_documented_python_interface():
    page = (DOCS / "api.md").read_text()
    listed = set(re.findall(r"^from (da3_ros\.\S+) import (\w+)$", page, re.M))
    listed |= {tuple(row.rsplit(".", 1)) for row in re.findall(r"^\| `(\S+)` \|", page, re.M)}
    assert len(listed) > 30
    used = set()
    for file in (ROOT / "examples").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("da3_ros"):
                used |= {(node.module, alias.name) for alias in node.names}
    others = {
        (module, name)
        for module, name in used - listed
        if module not in NOT_PYTHON and "synthetic" not in module and f"`{name}`" not in page
    }
    assert others == set()


def test_reference_lists_the_services_of_the_code():
    source = (ROOT / "da3_ros" / "ros" / "services.py").read_text()
    made = {
        node.value.removeprefix("~/")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and re.fullmatch(r"~/\w+", str(node.value))
    }
    listed = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))["SERVICES"]
    assert set(listed) == made


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}
            assert heading in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_named_in_the_text_exist(page):
    pattern = rf"(?<![\w./-])((?:{'|'.join(OURS)})/[\w./-]+\.(?:py|yaml|md|sh|xml|rviz|txt))"
    for name in re.findall(pattern, page.read_text()):
        assert (ROOT / name).is_file(), f"{page.name} names {name}"


def test_presets_are_explained():
    text = (ROOT / "docs" / "tuning.md").read_text()
    assert [p for p in PRESETS if f"| `{p}` |" not in text] == []


# Kinds of pages


def pages_by_kind():
    """Returns the names of pages below each heading of the index, as often as they are linked."""
    _, *sections = re.split(r"^## (.+)$", INDEX.read_text(), flags=re.M)
    kinds = dict(zip(sections[::2], sections[1::2], strict=True))
    return {kind: re.findall(r"\]\(([\w-]+\.md)\)", text) for kind, text in kinds.items()}


def tables_of(text):
    """Returns the sections of a page with their tables' rows."""
    sections = re.split(r"^(?=#{2,3} )", text, flags=re.M)
    return [(section, re.findall(r"^\|.*$", without_code(section), re.M)) for section in sections]


# What a table of measurements has and a table of settings has not.
MEASURED = re.compile(
    r"\d (?:ms|mm|cm|deg|frames/s)\b|\d\.\d+ (?:s|m)\b|\d\.\d+x\b|\d°|\d %(?! of)|\d -> "
    r"|\b(?:ATE|AbsRel|NEES|Chamfer|[Mm]edian)\b|, (?:ms|s|MiB|MB|%|cm|degrees)(?=[ :])"
)


def measured_rows(text):
    return [row for _, rows in tables_of(text) for row in rows if MEASURED.search(row)]


def test_index_lists_every_page_under_one_kind():
    kinds = pages_by_kind()
    assert tuple(kinds) == KINDS
    pages = {page.name for page in DOCS.glob("*.md")} - {INDEX.name}
    assert sorted(name for names in kinds.values() for name in names) == sorted(pages)


@pytest.mark.parametrize("page", pages_by_kind()["How-to"])
def test_a_how_to_has_no_table_of_measurements(page):
    assert measured_rows((DOCS / page).read_text()) == []


def test_measurements_are_found_in_most_tables_of_figures():
    text = "".join((DOCS / page).read_text() for page in pages_by_kind()["Figures"])
    found = [any(map(MEASURED.search, rows)) for _, rows in tables_of(text) if rows]
    assert len(found) > 20
    assert sum(found) > 0.8 * len(found)


@pytest.mark.parametrize("page", sorted({*DOCS.glob("*.md")}), ids=lambda p: p.name)
def test_only_figures_cite_results_of_benchmarks(page):
    if page.name not in pages_by_kind()["Figures"]:
        assert re.findall(r"bench/results/\S+|\S*bench_\w+\.py", page.read_text()) == []


def test_every_table_of_figures_names_its_command():
    command = r"(?:python|bash) bench/|bench_\w+\.py|`da3_ros |test/\w+/|time\.process_time"
    text = "".join((DOCS / page).read_text() for page in pages_by_kind()["Figures"])
    tables = [(section, rows) for section, rows in tables_of(text) if rows]
    without = [s.splitlines()[0] for s, _ in tables if not re.search(command, s)]
    assert without == ["### Filter of depth edges"]  # says that no command was kept


# Sentences


def without_code(text):
    """Removes blocks of code: fenced ones, and indented ones behind a blank line."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    return re.sub(r"(?<=\n\n)(?: {4,}.*\n)+", "", text)


def blocks_of(text):
    """Returns paragraphs, items of lists and cells of tables; code in a line is one word."""
    text = re.sub(r"`[^`]+`", "`code`", without_code(text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    text = re.sub(r"^\|.*$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.M)
    return re.split(r"\n\s*\n|^ *(?:[*+-]|\d+\.) ", text, flags=re.M)


def sentences_of(text):
    """Returns the sentences of a page.

    After . ! ? a space is enough. After : ; a sentence begins only with a capital, a bracket, an
    asterisk or code: what goes on in small letters, or with a number, is read as one sentence.
    """
    closing = r"[*)\]\"]{0,3}"
    full = rf"(?<=[^.][.!?])(?<!e\.g\.)(?<!i\.e\.)({closing})\s+"
    end = rf"{full}|(?<=[:;])({closing})\s+(?=[A-Z\[(*`])"
    blocks = (re.sub(end, r"\1\2\n\n", block) for block in blocks_of(text))
    return [" ".join(s.split()) for block in blocks for s in block.split("\n\n") if words_of(s)]


def words_of(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def long_sentences(text):
    counts = {sentence: len(words_of(sentence)) for sentence in sentences_of(text)}
    return {sentence: n for sentence, n in counts.items() if n > LONGEST_SENTENCE}


@pytest.mark.parametrize("page", PROSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_sentence_is_long(page):
    assert long_sentences(page.read_text()) == {}


@pytest.mark.parametrize(
    "page",
    [
        "{}.",
        "# Title\n\n* An item.\n* {}\n  over lines.\n",
        "| cell | {} | cell |",
        "{}, `code of\nseveral words`: 5 more; and [a link](to/a/file.md).",
    ],
)
def test_a_sentence_of_41_words_is_long(page):
    around = len(words_of(max(sentences_of(page.format("here")), key=len))) - 1
    fits, long = (" ".join(["word"] * (n - around)) for n in (40, 41))
    assert long_sentences(page.format(fits)) == {}
    assert list(long_sentences(page.format(long)).values()) == [41]


def test_sentences_end_where_they_do():
    text = """# A title is none

A **first one.** Its ratio is 0.5, e.g.
in `a b. C` (or [here](x.md#y. Z)). 16 bits: small; letters: `Code` ends it.

    python code. Of many words.

| A cell. Another | `a|b` |
|---|---|

1. An item
   goes on.
   ```sh
   # Fenced. Code.
   ```
- The last
"""
    assert sentences_of(text) == [
        "A **first one.**",
        "Its ratio is 0.5, e.g. in `code` (or [here]).",
        "16 bits: small; letters:",
        "`code` ends it.",
        "A cell.",
        "Another",
        "`code`",
        "An item goes on.",
        "The last",
    ]


# Container and workflow


def test_dockerfile_copies_what_exists():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    sources = re.findall(r"^COPY (.+) \S+$", text, re.M)
    for source in " ".join(sources).split():
        assert (ROOT / source).exists(), source
    for name in set(re.findall(r"src/da3_ros/(\S+?\.txt)", text)):
        assert (ROOT / name).is_file(), name
    assert (ROOT / "docker" / "entrypoint.sh").stat().st_mode & 0o111


def test_compose_gives_images_room_in_shared_memory():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    for service in services.values():
        assert service.get("ipc") == "host" or "shm_size" in service
        file = re.search(r"da3_ros (\w+\.launch\.py)", service["command"]).group(1)
        assert (ROOT / "launch" / file).is_file()
    assert (ROOT / "docker" / services["demo"]["build"]["context"]).resolve() == ROOT


def test_workflow_covers_every_distribution_and_python():
    text = (ROOT / ".github" / "workflows" / "ci.yaml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["ros"]["strategy"]["matrix"]["distro"] == ["humble", "jazzy", "kilted"]
    pythons = runpy.run_path(str(ROOT / "tools" / "set_up.py"))["PYTHONS"]
    assert jobs["pip"]["strategy"]["matrix"]["python"] == [f"{a}.{b}" for a, b in pythons]
    targets = set(re.findall(r"(?:run: |&& )make (\w+)", text))
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert targets | {"test", "test-all"} <= known


def test_workflow_runs_all_tests_every_night_and_the_short_ones_for_a_change():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    (night,) = workflow[True]["schedule"]  # YAML reads `on` as true
    assert re.fullmatch(r"\d+ \d+ \* \* \*", night["cron"])
    choice = "${{ github.event_name == 'schedule' && 'test-all' || 'test' }}"
    assert workflow["env"]["TESTS"] == choice
    for job in ("ros", "pip"):
        assert "if" not in workflow["jobs"][job]
        commands = [step.get("run", "") for step in workflow["jobs"][job]["steps"]]
        assert sum('make "$TESTS"' in command for command in commands) == 1
    rules = (ROOT / "Makefile").read_text()
    short, every = (
        re.search(rf"^{name}: .*\n\t(.+)", rules, re.M)[1] for name in ("test", "test-all")
    )
    assert short.replace(' -m "not long"', "") == every
