#!/usr/bin/env python3
"""Copies the pages of the documentation site to one folder: README.md, and all that it links to.

Usage: stage_site.py FOLDER; the folder is made anew. Pages keep their paths relative to each
other, so that one and the same link works here, on a code host and in the site. mkdocs.yml builds
the site from this folder.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "README.md"
STYLE = Path("tools/site.css")  # mkdocs.yml names it
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


class StageError(RuntimeError):
    """A page links to what the site cannot have; one line with page and link."""


def linked_files(root: Path) -> set[Path]:
    """Returns the start page and all files that pages link to, relative to ``root``.

    Raises StageError for a link to what is missing, outside ``root`` or a folder.
    """
    found, waiting = {Path(START)}, [Path(START)]
    while waiting:
        page = waiting.pop()
        for target in _targets(root / page):
            file = (root / page).parent.joinpath(target).resolve()
            if not file.is_relative_to(root) or not file.is_file():
                raise StageError(f"{page}: {target} is no file of the repository: link to one")
            if (name := file.relative_to(root)) not in found:
                found.add(name)
                if name.suffix == ".md":
                    waiting.append(name)
    return found


def _targets(page: Path) -> list[str]:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]


def stage(root: Path, folder: Path) -> int:
    """Copies the files to ``folder``, which is made anew; returns their number.

    Raises StageError, also where the folder has something else than an earlier copy.
    """
    files = linked_files(root) | {STYLE}
    if folder.exists() and not (folder / START).is_file():
        raise StageError(f"{folder} is not from an earlier run: name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    for name in sorted(files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, folder / name)
    return len(files)


def main(arguments: list[str]) -> int:
    """Copies the files. Returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(f"{__doc__}")
        return 2
    try:
        count = stage(ROOT, Path(arguments[0]))
    except StageError as error:
        sys.stderr.write(f"stage_site: {error}\n")
        return 1
    sys.stdout.write(f"{count} files\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
