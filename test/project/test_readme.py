"""The README is short and agrees with the code; the models' page lists every model."""

import re
from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.network import MODELS
from da3_ros.parameter_schema import parameters

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_stays_short():
    assert len(README.splitlines()) <= 170


def test_parameters_in_the_readme_have_their_defaults():
    known = {p.name: p for p in parameters(NodeConfig())}
    section = README.split("## A robot")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \|", section, re.MULTILINE)
    assert len(rows) >= 5
    for name, default in rows:
        value = known[name].value
        assert default == str(list(value) if isinstance(value, tuple) else value), name


def test_readme_links_the_index_and_every_how_to():
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", README))
    how_to = (ROOT / "docs" / "README.md").read_text().split("## How-to")[1].split("\n## ")[0]
    pages = set(re.findall(r"\]\(([\w-]+\.md)\)", how_to))
    assert len(pages) > 10
    assert {"README.md", *pages} <= linked


def test_every_model_is_listed_with_its_licence():
    assert [name for name in MODELS if f"`{name}`" not in README] == []
    lines = (ROOT / "docs" / "models.md").read_text().splitlines()
    for spec in MODELS.values():
        (row,) = (line for line in lines if line.startswith(f"| `{spec.name}` | "))
        if spec.repo:
            assert spec.repo in row
            assert spec.license in row


def test_the_table_of_parameters_names_every_row_of_the_code():
    from da3_ros.backends import BACKENDS
    from da3_ros.scale_sources import SCALE_SOURCES

    rows = (*SCALE_SOURCES, *BACKENDS)
    assert [name for name in rows if name not in README.lower()] == []
