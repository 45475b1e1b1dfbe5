"""Processes of a benchmark end with it, and so do those that they have started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import child
import pytest

BENCH = Path(__file__).parents[2] / "bench"
SLEEP = "import time; time.sleep(600)"
# Starts a process of its own, says its number, and stays.
PARENT = (
    "import subprocess, sys\n"
    f"p = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
    "print(p.pid, flush=True)\n"
    "open(sys.argv[1], 'w').write(str(p.pid))\n"
    "p.wait()\n"
)
pytestmark = pytest.mark.process


def ends(pid):
    """Whether a process ends; waits for it."""
    for _ in range(500):
        state = Path(f"/proc/{pid}/stat")
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    return False


def read_number(file):
    while not (file.exists() and file.read_text()):
        time.sleep(0.02)
    return int(file.read_text())


def test_output_and_exit_code_are_returned():
    done = child.run([sys.executable, "-c", "print('x'); raise SystemExit(3)"])
    assert (done.stdout, done.returncode) == ("x\n", 3)


def test_a_time_limit_ends_the_process_and_its_children(tmp_path):
    file = tmp_path / "number"
    with pytest.raises(subprocess.TimeoutExpired):
        child.run([sys.executable, "-c", PARENT, str(file)], timeout=3)
    assert ends(read_number(file))


def test_a_benchmark_whose_program_is_missing_can_be_ended():
    code = (
        f"import sys, time; sys.path.insert(0, {str(BENCH)!r}); import child\n"
        "try: child.run(['/no/such/program'])\n"
        "except FileNotFoundError: print('x', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout.read(1) == b"x"
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(60) == 128 + signal.SIGTERM


def test_a_benchmark_that_is_ended_takes_its_children_along(tmp_path):
    file = tmp_path / "number"
    code = (
        f"import sys; sys.path.insert(0, {str(BENCH)!r}); import child\n"
        f"child.run([sys.executable, '-c', {PARENT!r}, {str(file)!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as benchmark:
        number = read_number(file)
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(30) == 128 + signal.SIGTERM
    assert ends(number)
