"""Documents, container and workflow name what exists, and the reference agrees with the code."""

import ast
import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")])
PRESETS = sorted(f.stem for f in (ROOT / "config").glob("*.yaml") if f.stem != "da3")
OURS = ("bench", "config", "docker", "docs", "launch", "rviz", "test", "tools", "da3_ros")


def test_reference_is_what_the_generator_makes_of_the_code():
    make = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))["reference_text"]
    current = (ROOT / "docs" / "reference.md").read_text()
    assert current == make(), "run: python tools/write_reference.py docs/reference.md"


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
