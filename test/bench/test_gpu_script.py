"""bench/gpu.sh: what it asks of each benchmark on a GPU is what its toy run tries on a CPU."""

import itertools
import os
import re
import shlex
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from session_row import FEWEST

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "bench" / "gpu.sh"


def commands(tmp_path, *parts, toy=False, status=0):
    """The commands that the script would run, as lists of words, and how it ended."""
    log = tmp_path / "commands"
    log.write_text("")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexit {status}\n')
    python.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUT": str(tmp_path / "out")}
    done = subprocess.run(
        ["bash", SCRIPT, *parts], env=env | {"TOY": str(int(toy))}, capture_output=True, text=True
    )
    return [line.split() for line in log.read_text().splitlines()], done


def flags(found):
    """Options by script."""
    by = defaultdict(set)
    for script, *words in found:
        by[script] |= {word for word in words if word.startswith("--")}
    return by


def test_the_toy_run_has_every_flag_of_the_real_one(tmp_path):
    real, toy = (flags(commands(tmp_path, toy=toy)[0]) for toy in (False, True))
    assert len(real) >= 10
    assert {script: real[script] - toy[script] for script in real} == {s: set() for s in real}


@pytest.mark.parametrize("toy", [False, True])
def test_every_command_is_of_a_script_and_has_a_file_of_its_own(tmp_path, toy):
    found, done = commands(tmp_path, toy=toy)
    assert done.returncode == 0, done.stderr
    assert all((ROOT / script).is_file() for script, *_ in found)
    outs = [words[words.index("--out") + 1] for words in found]
    assert len(set(outs)) == len(outs)
    assert all(re.fullmatch(r"gpu-[\w-]+\.json", Path(out).name) for out in outs)


@pytest.mark.parametrize("limit", ["60", "540"])
def test_rows_of_a_matrix_begin_in_any_limit(tmp_path, monkeypatch, limit):
    monkeypatch.setenv("LIMIT", limit)
    found, _ = commands(tmp_path, "matrix")
    minutes = [float(words[words.index("--minutes") + 1]) for words in found]
    assert minutes == [pytest.approx(float(limit) / 80)] * len(found)


def test_each_model_runs_beside_the_references_call_and_with_each_kernel(tmp_path):
    """The reference's own call beside its network, and each kernel of attention."""
    models = {"da3-small", "da3-base", "da3-large", "da3-giant"}
    for part, flag in (("network", "--interfaces"), ("attention", "--precision")):
        found, _ = commands(tmp_path, part)
        assert {words[words.index("--models") + 1] for words in found} == models
        assert all(flag in words for words in found)


def test_long_windows_run_in_small_and_large_budgets(tmp_path):
    found, _ = commands(tmp_path, "many")
    options = [dict(itertools.pairwise(words)) for words in found]
    rows = {(o["--model"], o["--sizes"], o["--gib"]) for o in options}
    views = {"da3-small": "300", "da3-large": "100", "da3-giant": "100"}
    assert rows == {(model, n, gib) for model, n in views.items() for gib in ("6", "12")}
    assert all("--unseen" in words for words in found)


def test_each_part_that_a_card_must_confirm_is_there(tmp_path):
    found, _ = commands(tmp_path)
    scripts = {Path(script).stem.removeprefix("bench_") for script, *_ in found}
    assert scripts == {
        "network", "attention", "pieces", "matrix", "session", "precision", "shares", "yardstick",
        "loading", "overlap", "dense", "replay",
    }  # fmt: skip
    assert {words[1] for words in found if words[0].endswith("session.py")} == {
        "budgets", "windows"
    }  # fmt: skip
    compiled, _ = commands(tmp_path, "compiled")
    assert compiled
    assert all("--compile" in words for words in compiled)
    documents, _ = commands(tmp_path, "matrix-documents")
    assert all(int(w[w.index("--repeats") + 1]) >= FEWEST[99] for w in documents)


def test_parts_that_fail_are_named_at_the_end(tmp_path):
    _, done = commands(tmp_path, "dense", "shares", toy=True, status=1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "failed: shares dense"
    _, done = commands(tmp_path, "nothing", toy=True)
    assert done.returncode == 1
    assert "no part begins with nothing" in done.stderr
