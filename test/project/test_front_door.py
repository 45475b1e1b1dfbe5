"""What a code host and a contributor's tools read: citation, issue templates, hooks."""

import re
from pathlib import Path

import pytest
import yaml

import da3_ros

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_citation_names_this_version_and_the_paper_of_the_network():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == da3_ros.__version__
    assert {"message", "title", "authors", "license"} <= citation.keys()
    (paper,) = citation["references"]
    assert paper["url"].endswith("2511.10647")
    assert len(paper["authors"]) == 8


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: p.stem)
def test_an_issue_template_has_the_parts_of_a_form(template):
    form = yaml.safe_load(template.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert {part["type"] for part in form["body"]} <= KINDS
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids)
    for name in re.findall(r"`?(docs/\S+\.md|CONTRIBUTING\.md)", template.read_text()):
        assert (ROOT / name).is_file()


def test_a_bug_report_asks_for_version_status_and_recording():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    asked = {p["id"]: p["attributes"]["description"] for p in form["body"] if "id" in p}
    assert "da3_ros --version" in asked["version"]
    assert "/da3/status" in asked["status"]
    assert "ros2 bag record" in asked["recording"]


def test_the_hook_runs_what_lint_runs_and_downloads_nothing():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    (hook,) = repos[0]["hooks"]
    assert (hook["entry"], hook["language"]) == ("make lint", "system")
