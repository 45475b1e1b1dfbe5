"""How tests wait for programs: for as long as these make progress."""

import os
import subprocess
import sys

import pytest
from support import programs
from support.processes import delay_s, queued_s
from support.progress import cpu_s, wait_while_it_works


def waited(progress, ends_after, **limits):
    """Whether the wait for a process with this progress came to its end, ``ends_after`` looks."""
    looks = iter(range(ends_after))
    return wait_while_it_works(
        lambda wait_s: None, lambda: next(looks, None) is None, progress, **limits
    )


def test_a_slow_program_is_waited_for_while_it_works():
    made = iter(range(10_000))
    assert waited(lambda: (0.0, next(made)), 1000, stalled_s=0.0)


def test_a_program_without_progress_is_given_up():
    assert not waited(lambda: (1.0, 2.0), 10**9, stalled_s=0.01)


def test_a_program_that_runs_in_circles_is_given_up():
    made = iter(range(10_000))
    assert not waited(lambda: (float(next(made)),), 10**9, stalled_s=1e9, most_cpu_s=50.0)


def test_the_longest_wait_of_a_thread_for_a_processor_counts():
    assert delay_s({"1": 1.0, "2": 5.0}, {"1": 1.5, "3": 0.25}) == 0.5
    assert delay_s({"1": 1.0}, {}) == 0.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="Linux does not count it")
def test_waits_for_a_processor_are_those_of_all_threads():
    found = queued_s(os.getpid())
    assert set(found) >= {str(os.getpid())}
    assert min(found.values()) >= 0
    assert queued_s(2**22 + 1) == {}  # there is no such process


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_programs_processor_time_counts_that_of_its_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            while cpu_s(process.pid) < 1.0:  # of a child that never ends
                pass
        finally:
            subprocess.run(["kill", "--", f"-{process.pid}"], check=True)
    assert cpu_s(process.pid) == 0.0


@pytest.mark.process
def test_a_programs_status_and_output_come_back(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    for run in (programs.run, programs.run_alone):
        done = run(file)
        assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


@pytest.mark.long
@pytest.mark.process
def test_a_program_that_waits_for_ever_is_killed(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("print('so far', flush=True); import threading; threading.Event().wait()")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        programs.run(file, stalled_s=5.0)
    assert caught.value.output == b"so far\n"
