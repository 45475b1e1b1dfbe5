"""Ctrl-C ends a command also where Python ignores what is raised."""

import os
import signal
import subprocess
import sys

import pytest
from support.cases import long_after
from support.processes import PATIENCE_S

SCRIPT = """
import os, signal, sys, time
from da3_ros.cli import command_line

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def run(options):
    Finalized()
    time.sleep(600)
    return 0

command_line.add_plan = lambda commands: commands.add_parser("wait").set_defaults(run=run)
sys.exit(command_line.main_process(["wait"]))
"""


def test_an_interruption_that_python_ignores_is_repeated():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "da3_ros: interrupted, nothing was written\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_session_ends_a_command(number):
    heard = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # also under nohup
    code = heard + SCRIPT.replace("    Finalized()\n", "    print(1, flush=True)\n")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "1\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err


THREADS = """
import atexit, threading, cv2, numpy as np

def work():
    image = np.zeros((1000, 1000, 3), np.uint8)
    while True:
        cv2.resize(image, (700, 700))  # drops the lock of Python, and takes it again

def busy():
    atexit.register(print, "cleaned", flush=True)
    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_threads_in_native_code_do_not_abort_an_interrupted_command():
    """A signal may come just after the start of a thread, before anything can end it."""
    code = THREADS + SCRIPT.replace("    Finalized()\n", "    busy()\n")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "da3_ros: interrupted, nothing was written\n"
    assert done.stdout == "cleaned\n"


def test_nohup_keeps_a_command_alive():
    code = SCRIPT.replace("    Finalized()\n", "    print(1, flush=True)\n").replace("600", "2")
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("unbuffered", long_after(1, ["", "1"]))
@pytest.mark.parametrize("end", long_after(1, ["| true", "2> >(true)", "2>&1 | true"]))
def test_output_that_nobody_reads_changes_no_exit_code(end, unbuffered):
    """As `| head` does, which ends before the command; 2: wrong usage, with a line about it."""
    for arguments, code in (("models", 0), ("plan -p nothing:=1", 2)):
        command = f'"{sys.executable}" -m da3_ros {arguments} {end}; exit ${{PIPESTATUS[0]}}'
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Broken pipe" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("closed", ["2>&-", ">&-"])
def test_a_closed_output_is_no_error(closed):
    command = f'"{sys.executable}" -m da3_ros models {closed}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
