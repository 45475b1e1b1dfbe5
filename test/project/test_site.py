"""The documentation site: its pages are those that README.md leads to, and it loads nothing."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "stage_site.py"))


class Loader(yaml.SafeLoader):
    """Reads the configuration without making its Python objects."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)  # a SafeLoader


def pages_of(nav):
    for entry in nav:
        (value,) = entry.values()
        yield from [value] if isinstance(value, str) else pages_of(value)


def write(root, **pages):
    for name, text in pages.items():
        (root / f"{name}.md").write_text(text)


def test_the_menu_has_every_page_that_the_readme_leads_to_once():
    pages = {str(f) for f in TOOL["linked_files"](ROOT) if f.suffix == ".md"}
    assert sorted(pages_of(SITE["nav"])) == sorted(pages)
    assert pages >= {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}


def test_readers_load_nothing_from_elsewhere_and_warnings_are_errors():
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    assert "http" not in re.sub(r"#.*", "", (ROOT / "mkdocs.yml").read_text())
    for name in SITE["extra_css"]:
        assert "url(" not in (ROOT / name).read_text()
        assert name == str(TOOL["STYLE"])


def test_the_site_is_built_in_a_continuous_check():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())["jobs"]
    assert "make docs" in [step.get("run") for step in jobs["docs"]["steps"]]
    rule = (ROOT / "Makefile").read_text().split("\ndocs:")[1].split("\n\n")[0]
    assert "mkdocs build\n" in rule  # with --quiet, warnings would not count


def test_pages_and_pictures_keep_their_paths(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "site.css").write_text("")
    (tmp_path / "picture.svg").write_text("<svg/>")
    code = "```\n[no](code.md)\n```\n"
    readme = f"[a](other.md#part), [web](https://a.b)\n\n{code}"
    write(tmp_path, README=readme, other="[back](README.md) ![it](picture.svg)", unlinked="")
    for _ in range(2):  # the second one replaces the first
        assert TOOL["stage"](tmp_path, tmp_path / "site") == 4
    staged = {str(f.relative_to(tmp_path / "site")) for f in (tmp_path / "site").rglob("*.*")}
    assert staged == {"README.md", "other.md", "picture.svg", "tools/site.css"}


@pytest.mark.parametrize("target", ["missing.md", "docs", "../outside.md"])
def test_a_link_that_the_site_cannot_have_is_refused(tmp_path, target):
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("")
    write(root, README=f"[x]({target})")
    with pytest.raises(TOOL["StageError"], match=re.escape(f"README.md: {target} is no file")):
        TOOL["stage"](root, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_folder_of_somebody_else_is_not_removed(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(TOOL["StageError"], match="not from an earlier run"):
        TOOL["stage"](ROOT, tmp_path)
    assert (tmp_path / "mine.txt").exists()
