"""The README says what the code has."""

from pathlib import Path

from da3_ros.config import NodeConfig
from da3_ros.network import MODELS
from da3_ros.parameter_schema import parameters

README = (Path(__file__).parents[2] / "README.md").read_text()


def table_rows():
    """Rows of the parameter table, made from the one config."""
    for p in parameters(NodeConfig()):
        value = list(p.value) if isinstance(p.value, tuple) else p.value
        shown = str(value).lower() if isinstance(value, bool) else value
        text = '""' if value == "" else shown
        yield f"| `{p.name}` | `{text}` | {p.text} |"


def test_parameter_table_equals_the_config():
    missing = [row for row in table_rows() if row not in README]
    assert not missing, "\n".join(missing)
    section = README.split("### Parameters")[1].split("\n### ")[0]
    names = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert names == [p.name for p in parameters(NodeConfig())]


def test_every_model_is_listed_with_its_licence():
    for spec in MODELS.values():
        (row,) = (line for line in README.splitlines() if line.startswith(f"| `{spec.name}`"))
        if spec.repo:
            assert spec.repo in row
            assert spec.license in row
