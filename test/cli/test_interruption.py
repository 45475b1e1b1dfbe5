"""Ctrl-C ends a command also where Python ignores what is raised."""

import subprocess
import sys

SCRIPT = """
import os, signal, sys, time
from da3_ros.cli import command_line

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def run(options):
    Finalized()
    time.sleep(60)
    return 0

command_line.add_plan = lambda commands: commands.add_parser("wait").set_defaults(run=run)
sys.exit(command_line.main(["wait"]))
"""


def test_an_interruption_that_python_ignores_is_repeated():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "da3_ros: interrupted, nothing was written\n"
