"""`da3_ros fleet` with real workers: what is lost when one is killed, and what listens."""

import filecmp
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from da3_ros.cli import main
from da3_ros.cli.arguments import FAILED as EXIT_FAILED
from da3_ros.cli.arguments import INCOMPLETE, INTERRUPTED
from da3_ros.fleet.worker import LOG, OUTCOME, locked
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.synthetic import SyntheticCamera

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PARAMETERS = [
    word
    for value in ("model:=da3-tiny", "checkpoint:=random", "window.size:=5", "process_res:=140",
                  "mixed_precision:=off", "backend:=torch")
    for word in ("-p", value)
]  # fmt: skip
OWN = {LOG, OUTCOME, "measured.json"}  # files that a single replay has not, or with other times
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def bags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags")
    for seed, name in enumerate(("a", "site/b", "site/c", "long")):
        frames = 120 if name == "long" else 12
        camera = SyntheticCamera(seed=seed, size=(140, 112), frames=frames)
        write_synthetic_bag(folder / name, camera)
    (folder / "broken.mcap").write_bytes(bytes(5000))
    return folder


@pytest.fixture
def fleet(tmp_path):
    """Starts `da3_ros fleet` in a process of its own; all of it is killed at the end."""
    started = []

    def start(*words, script=""):
        code = f"{script}\nimport sys\nfrom da3_ros.cli import main\nsys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "fleet", *PARAMETERS, *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def children(pid, name):
    """Process ids below ``pid`` whose title begins with ``name``."""
    parents, titles = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            titles[int(stat.parent.name)] = (stat.parent / "cmdline").read_text()
            parents[int(stat.parent.name)] = int(fields[1])
        except OSError:
            continue
    found = {pid}
    for _ in range(len(parents)):
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            break
        found |= more
    return [one for one in found if titles.get(one, "").startswith(name)]


def wait_for(ready):
    end = time.monotonic() + PATIENCE_S
    while not (found := ready()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def listening(pids):
    """Local addresses of TCP sockets on which the processes accept connections."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    addresses = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                words = fields[1].rpartition(":")[0]
                raw = b"".join(
                    bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8)
                )
                kind = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
                addresses.add(socket.inet_ntop(kind, raw))
    return addresses


def equal_to_single(output, bag, folder):
    assert main(["replay", str(bag), "--output", str(folder), *PARAMETERS]) == 0
    files = [
        {str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} - OWN
        for f in (output, folder)
    ]
    assert files[0] == files[1]
    return not filecmp.cmpfiles(output, folder, sorted(files[0]), shallow=False)[1]


def test_a_killed_worker_and_a_broken_bag_cost_the_others_nothing(bags, fleet, tmp_path):
    output = tmp_path / "out"
    process = fleet(bags, "--output", output, "--cpus-per-task", 1, "--workers", 2)
    unfinished = output / "long" / "unfinished"
    wait_for(lambda: (unfinished / "trajectory.tum").exists() or process.poll() is not None)
    everything = children(process.pid, "")
    workers = children(process.pid, "ray::Worker")
    assert len(everything) > 4
    assert listening(everything) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert listening(everything)

    def busy_with_long():
        for pid in workers:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    if str(unfinished) in os.readlink(link):
                        return pid
                except OSError:
                    continue
        return None

    os.kill(wait_for(busy_with_long), signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == INCOMPLETE, err
    assert "died; long goes on elsewhere from its last checkpoint" in err
    report = json.loads((output / "fleet.json").read_text())
    assert (report["recordings"], report["done"], report["failed"]) == (5, 4, 1)
    states = {one["name"]: one for one in report["outcomes"]}
    assert states["broken"]["attempts"] == 2
    assert "broken.mcap" in states["broken"]["reason"]
    assert states["long"]["attempts"] == 2
    assert states["long"]["frames"] == 120
    assert len(report["workers"]) >= 3
    assert "4 of 5 recordings, 156 frames; 1 failed" in out
    for name in ("a", "site/b", "long"):
        assert equal_to_single(output / name, bags / name, tmp_path / name.replace("/", "_"))
    assert not list(output.glob("**/unfinished*"))

    # Once more: only what failed is done again, and only that.
    before = {p: p.stat().st_mtime_ns for p in output.rglob("report.json")}
    process = fleet(bags, "--output", output, "--cpus-per-task", 1)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == INCOMPLETE, err
    assert "4 were there already" in out
    assert before == {p: p.stat().st_mtime_ns for p in output.rglob("report.json")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_what_is_done_and_goes_on(bags, fleet, tmp_path, number):
    output = tmp_path / "out"
    arguments = (bags / "site", bags / "long", "--output", output, "--cpus-per-task", 1)
    process = fleet(*arguments)
    wait_for(lambda: (output / "b" / OUTCOME).exists() or (output / "c" / OUTCOME).exists())
    everything = children(process.pid, "")
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == INTERRUPTED, err
    assert "of 3 recordings are done; the same command goes on" in err
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in everything))
    done = json.loads((output / "fleet.json").read_text())["done"]
    process = fleet(*arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert f"3 of 3 recordings, 144 frames; 0 failed, {done} were there already" in out


def test_scenes_of_one_place_are_merged(fleet, tmp_path):
    camera = SyntheticCamera(seed=0, size=(140, 112), frames=12)
    for name in ("a", "b"):
        write_synthetic_bag(tmp_path / "bags" / name, camera)
    output = tmp_path / "out"
    process = fleet(tmp_path / "bags", "--output", output, "--cpus-per-task", 1, "--merge")
    out, err = process.communicate(timeout=PATIENCE_S)
    merged = json.loads((output / "fleet.json").read_text())["merged"]
    # The same walk twice has common frames, which `merge` refuses: its reason is passed on.
    assert process.returncode == INCOMPLETE, err
    assert "frames in common" in merged
    assert "not merged: a and b have" in out


def test_a_second_fleet_in_one_output_is_refused(bags, fleet, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    with locked(output):
        process = fleet(bags, "--output", output)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert f"another process works in {output}" in err


def test_more_cores_than_there_are_are_refused(bags, fleet, tmp_path):
    process = fleet(bags, "--output", tmp_path / "out", "--cpus-per-task", 4000)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "no machine has the 4000 cores and 0 GPUs of one worker, but" in err
    assert "lower --cpus-per-task" in err


def test_a_cluster_that_is_not_there_is_one_line(bags, fleet, tmp_path):
    words = (bags, "--output", tmp_path / "out", "--address", "127.0.0.1:1")
    process = fleet(*words)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "no Ray cluster at 127.0.0.1:1" in err


def test_without_ray_one_line_says_what_to_install(bags, fleet, tmp_path):
    words = (bags, "--output", tmp_path / "out")
    process = fleet(*words, script="import sys; sys.modules['ray'] = None")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "da3_ros: `da3_ros fleet` needs Ray: pip install 'da3_ros[fleet]'" in err


def test_a_missing_checkpoint_ends_the_fleet_at_once(bags, fleet, tmp_path):
    process = fleet(bags, "--output", tmp_path / "out", "-p", f"checkpoint:={tmp_path / 'none'}",
                    "--cpus-per-task", 1)  # fmt: skip
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "no worker could be started" in err
    assert str(tmp_path / "none") in err
