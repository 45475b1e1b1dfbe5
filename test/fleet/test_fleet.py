"""`da3_ros fleet` with real workers: what is lost when one is killed, and what listens."""

import fcntl
import filecmp
import json
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest
from support import programs

from da3_ros.cli import main
from da3_ros.cli.arguments import FAILED as EXIT_FAILED
from da3_ros.cli.arguments import INCOMPLETE, INTERRUPTED
from da3_ros.export.scene_file import load_scene
from da3_ros.fleet.worker import LOG, OUTCOME, locked
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.demo_settings import PACE, RATE_HZ, SEED, SIZE, WALK
from da3_ros.synthetic.demo_settings import PARAMETERS as DEMO

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PARAMETERS = [
    word
    for value in ("model:=da3-tiny", "checkpoint:=random", "window.size:=5", "process_res:=140",
                  "mixed_precision:=off", "backend:=torch")
    for word in ("-p", value)
]  # fmt: skip
PARAMETERS.append("--no-report")
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

    def start(*words, script="", stderr=subprocess.PIPE, parameters=PARAMETERS):
        code = f"{script}\nimport sys\nfrom da3_ros.cli import main\nsys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "fleet", *parameters, *map(str, words)],
            stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
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


def test_a_worker_makes_of_a_recording_what_a_replay_makes(fleet, tmp_path):
    """The shortest way through a fleet with a real worker."""
    write_synthetic_bag(tmp_path / "a", SyntheticCamera(seed=0, size=(140, 112), frames=4))
    process = fleet(tmp_path / "a", "--output", tmp_path / "out", "--cpus-per-task", 1)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "1 of 1 recordings, 4 frames; 0 failed" in out
    assert equal_to_single(tmp_path / "out" / "a", tmp_path / "a", tmp_path / "single")


@pytest.mark.long
def test_a_killed_worker_and_a_broken_bag_cost_the_others_nothing(bags, fleet, tmp_path):
    output = tmp_path / "out"
    process = fleet(bags, "--output", output, "--cpus-per-task", 1, "--workers", 2)
    unfinished = output / "long" / "unfinished"
    wait_for(lambda: (unfinished / "trajectory.tum").exists() or process.poll() is not None)
    everything = children(process.pid, "")
    workers = children(process.pid, "ray::FleetWorker")
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


@pytest.mark.long
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
    # One may have ended since the fleet last looked.
    done = len(list(output.glob(f"*/{OUTCOME}")))
    assert 0 < done < 3
    process = fleet(*arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert f"3 of 3 recordings, 144 frames; 0 failed, {done} were there already" in out


@pytest.fixture
def walks(tmp_path):
    """Bags of two walks in one room, the second one back beside the first."""
    for number, name in enumerate(("monday", "tuesday")):
        camera = SyntheticCamera(
            SEED, SIZE, walk=WALK, frames=24, rate_hz=RATE_HZ, pace=PACE,
            start_ns=(number + 1) * 10**13,
        )  # fmt: skip
        if number:
            camera.T_room_camera = camera.T_room_camera[20:3:-1].copy()
            camera.T_room_camera[:, :3, 3] += (0.1, -0.05, 0.05)
        write_synthetic_bag(tmp_path / "walks" / name, camera)
    return tmp_path / "walks"


def read_terminal(handle, text):
    """Reads what a process writes to a terminal until ``text`` comes, or the process ends."""
    got = ""
    while text not in got:
        try:
            got += os.read(handle, 4096).decode(errors="replace")
        except OSError:  # its other end is closed
            break
    return got


@pytest.mark.long
def test_scenes_of_one_place_are_joined_also_after_an_interruption(walks, fleet, tmp_path):
    output = tmp_path / "out"
    settings = [word for name, value in DEMO.items() for word in ("-p", f"{name}:={value}")]
    settings += ["-p", "backend:=torch", "-p", "mixed_precision:=off"]
    arguments = [walks, "--output", output, "--cpus-per-task", 1, "--merge"]
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    process = fleet(*arguments, stderr=end, parameters=settings)
    os.close(end)
    shown = read_terminal(terminal, "merging 2 scenes")
    process.send_signal(signal.SIGINT)
    shown += read_terminal(terminal, "\0")
    os.close(terminal)
    assert process.wait(PATIENCE_S) == INTERRUPTED, shown
    assert "2 of 2 recordings are done; the same command goes on" in shown
    # Bars: of the whole, and of both workers.
    assert "0/2 recordings:" in shown
    assert "1/2 recordings:" in shown
    assert re.search(r"monday: +\d+%.* \d+/24 ", shown)
    assert re.search(r"tuesday: +\d+%.* \d+/17 ", shown)
    assert sorted(p.name for p in output.iterdir()) == ["fleet.json", "monday", "tuesday"]

    process = fleet(*arguments, parameters=settings)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    report = json.loads((output / "fleet.json").read_text())
    assert report["from_earlier_runs"] == 2
    assert report["merged"]["output"] == str(output / "merged")
    assert [one["name"] for one in report["merged"]["scenes"]] == ["monday", "tuesday"]
    assert "tuesday" in out.rpartition("2 of 2 recordings")[2]
    scene = load_scene(output / "merged")
    assert len(list(scene.scene().poses)) == 24 + 17

    # Once more, with a copy of the larger one's recording: nothing is merged; then it is left out.
    merged = (output / "merged" / "scene.da3k").stat()
    process = fleet(*arguments, parameters=settings)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "merging" not in err
    assert "holds these 2 scenes already" in err
    assert (output / "merged" / "scene.da3k").stat() == merged
    assert json.loads((output / "fleet.json").read_text())["merged"] == report["merged"]
    shutil.copytree(walks / "monday", walks / "again")
    process = fleet(*arguments, parameters=settings)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "monday: left out, it has " in out
    assert len(load_scene(output / "merged").poses) == 24 + 17


@pytest.mark.long
def test_what_hinders_merging_is_said(fleet, tmp_path):
    camera = SyntheticCamera(seed=0, size=(140, 112), frames=12)
    for name in ("a", "b"):
        write_synthetic_bag(tmp_path / "bags" / name, camera)
    output = tmp_path / "out"
    process = fleet(tmp_path / "bags", "--output", output, "--cpus-per-task", 1, "--merge")
    out, err = process.communicate(timeout=PATIENCE_S)
    merged = json.loads((output / "fleet.json").read_text())["merged"]
    # The same walk twice: without the copy there is one scene only.
    assert process.returncode == INCOMPLETE, err
    assert "frames in common" in merged
    assert "not merged: there is one scene only, nothing to merge: b has" in out


SLOW_MERGE = """
import time
from da3_ros.fleet import cluster
from da3_ros.fleet.worker import locked

class FleetWorker(cluster.FleetWorker):
    def merge(self, scenes, folder):
        super().merge(scenes, folder)
        with locked(folder):
            (folder / "done").touch()
            time.sleep(600)

cluster.FleetWorker = FleetWorker
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_merge_ends_at_once_without_a_scene(bags, fleet, tmp_path, number):
    output = tmp_path / "out"
    words = (bags / "site", "--output", output, "--cpus-per-task", 1, "--merge")
    process = fleet(*words, script=SLOW_MERGE)
    wait_for(lambda: list(output.glob(".merged-*/done")) or process.poll() is not None)
    workers = children(process.pid, "ray::FleetWorker")
    assert workers
    # As any process: no nicer than this one.
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in workers} == {os.nice(0)}
    for _ in range(3):
        process.send_signal(number)
        time.sleep(0.1)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == INTERRUPTED, err
    assert "2 of 2 recordings are done; the same command goes on" in err
    assert sorted(p.name for p in output.iterdir()) == ["b", "c", "fleet.json"]
    assert json.loads((output / "fleet.json").read_text())["merged"] is None


def test_a_second_fleet_in_one_output_is_refused(tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    write_synthetic_bag(tmp_path / "a", SyntheticCamera(seed=0, size=(140, 112), frames=2))
    with locked(output):
        done = programs.run(
            "-m", "da3_ros", "fleet", *PARAMETERS, tmp_path / "a", "--output", output
        )
    assert done.returncode == EXIT_FAILED
    assert f"another process works in {output}" in done.stderr


@pytest.mark.long
def test_more_cores_than_there_are_are_refused(bags, fleet, tmp_path):
    process = fleet(bags, "--output", tmp_path / "out", "--cpus-per-task", 4000)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "no machine has the 4000 cores and 0 GPUs of one worker, but" in err
    assert "lower --cpus-per-task" in err


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The address of a cluster, on this machine and with a token in the home folder."""
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("12ab" * 16)
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    temporary = tempfile.mkdtemp(prefix="ray_", dir="/tmp")
    head = subprocess.Popen(
        [Path(sys.executable).with_name("ray"), "start", "--head", "--block",
         "--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false",
         "--num-cpus=2", "--disable-usage-stats", f"--temp-dir={temporary}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said = ""
        while "--block" not in said:
            line = head.stdout.readline()
            assert line, said
            said += line
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.communicate()
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.long
def test_a_cluster_processes_recordings_and_asks_for_its_token(cluster, bags, fleet, tmp_path):
    output = tmp_path / "out"
    words = (bags / "site", "--output", output, "--cpus-per-task", 1, "--address", cluster)
    process = fleet(*words)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "2 of 2 recordings, 24 frames; 0 failed" in out
    assert equal_to_single(output / "b", bags / "site" / "b", tmp_path / "b")

    (tmp_path / ".ray" / "auth_token").unlink()
    process = fleet(*words, "--every", 2)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert f"da3_ros: the Ray cluster at {cluster} cannot be used" in err
    assert "copy ~/.ray/auth_token of its head" in err


def test_a_cluster_that_is_not_there_is_one_line(tmp_path):
    write_synthetic_bag(tmp_path / "a", SyntheticCamera(seed=0, size=(140, 112), frames=2))
    words = (tmp_path / "a", "--output", tmp_path / "out", "--address", "127.0.0.1:1")
    done = programs.run("-m", "da3_ros", "fleet", *PARAMETERS, *words)
    assert done.returncode == EXIT_FAILED
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr


def test_without_ray_one_line_says_what_to_install(tmp_path):
    write_synthetic_bag(tmp_path / "a", SyntheticCamera(seed=0, size=(140, 112), frames=2))
    without = tmp_path / "without_ray.py"
    without.write_text(
        "import sys; sys.modules['ray'] = None\n"
        "from da3_ros.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = (tmp_path / "a", "--output", tmp_path / "out")
    done = programs.run(without, "fleet", *PARAMETERS, *words)
    assert done.returncode == EXIT_FAILED
    assert "da3_ros: `da3_ros fleet` needs Ray: pip install 'da3_ros[fleet]'" in done.stderr


@pytest.mark.long
def test_a_missing_checkpoint_ends_the_fleet_at_once(bags, fleet, tmp_path):
    process = fleet(bags, "--output", tmp_path / "out", "-p", f"checkpoint:={tmp_path / 'none'}",
                    "--cpus-per-task", 1)  # fmt: skip
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED
    assert "no worker could be started" in err
    assert str(tmp_path / "none") in err
