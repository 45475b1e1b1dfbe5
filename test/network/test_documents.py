"""docs/models.md and docs/deviations.md agree with the code."""

import re
from pathlib import Path

import pytest

from da3_ros.cli.model_table import COLUMNS, model_table
from da3_ros.network import MODELS

ROOT = Path(__file__).parents[2]


def test_every_deviation_names_tests_that_exist():
    names = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "deviations.md").read_text()))
    code = "\n".join(path.read_text() for path in (ROOT / "test").rglob("test_*.py"))
    missing = [name for name in names if f"def {name}(" not in code]
    assert not missing
    assert len(names) > 10


@pytest.mark.parametrize("name", MODELS)
def test_the_page_on_models_equals_the_command(name):
    page = (ROOT / "docs" / "models.md").read_text().splitlines()
    (row,) = (line for line in page if line.startswith(f"| `{name}`"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    (printed,) = (line for line in model_table().splitlines() if line.startswith(f"{name} "))
    spec = MODELS[name]
    command = dict(zip(COLUMNS, re.split(r"\s{2,}", printed), strict=True))
    assert cells[1:3] == [command["hub name"], command["parameters"]]
    if name != "da3-tiny":  # its size is that of the file that ships
        assert cells[3] == command["weights"]
    assert cells[4] == command["licence"] == spec.license
    gives = [cell != "no" for cell in cells[5:]]
    assert gives == [spec.multi_view, spec.multi_view, spec.multi_view, spec.metric, spec.sky]
