"""`da3_ros fleet` beside a shell loop of `da3_ros replay`, and what a broken bag and a killed
worker cost.

    python bench/bench_fleet.py --data DIR --out bench/results/fleet.json

Twelve recordings: rendered rooms, real ones of DIR where it has them, and one that is damaged.
Each is replayed alone, with the threads of a worker: results of the fleet must equal these byte
by byte. Then once more with all threads (the shell loop), by one worker with all threads, and by
a worker per core; in the last of these runs one worker is killed in the longest recording after
its first checkpoint. Ratios are of times of one run of this script.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import results_file

from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.synthetic import SyntheticCamera

COUNT, LONG, SIZE = 12, "long", (320, 240)
REAL = ("dashcam_100", "redkitchen_24")  # with one camera
TIMES = {"measured.json", "outcome.json", "log.txt"}


def make_bags(folder: Path, data: Path | None, frames: int) -> None:
    """Writes the recordings: real ones as links, ``LONG`` twelve times as long as the others."""
    folder.mkdir()
    for name in REAL:
        if data is not None and (data / name).is_dir():
            (folder / name).symlink_to((data / name).resolve())
    write_synthetic_bag(folder / LONG, SyntheticCamera(seed=99, size=SIZE, frames=12 * frames))
    (folder / "noise.mcap").write_bytes(bytes(100_000))
    seed = 0
    while len(list(folder.iterdir())) < COUNT:
        camera = SyntheticCamera(seed=seed, size=SIZE, frames=frames)
        write_synthetic_bag(folder / f"room{seed}", camera)
        seed += 1


def timed(command: Sequence[str], threads: int) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Runs `da3_ros` with a number of threads; returns its seconds."""
    start, environment = time.monotonic(), {**os.environ, "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-m", "da3_ros", *command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    return time.monotonic() - start, done


def loop(bags: Path, output: Path, parameters: Sequence[str], threads: int) -> dict[str, float]:
    """Replays all recordings one after the other; returns the seconds of each."""
    seconds = {}
    for bag in sorted(bags.iterdir()):
        words = ["replay", str(bag), "--output", str(output / bag.stem), *parameters]
        seconds[bag.stem], done = timed(words, threads)
        assert (done.returncode == 0) == (bag.stem != "noise"), done.stderr
    return seconds


def different(one: Path, other: Path) -> list[str]:
    """Returns the names of files that differ between two results, but times."""
    files = [
        {str(p.relative_to(f)) for p in f.rglob("*") if p.is_file()} - TIMES for f in (one, other)
    ]
    common = sorted(files[0] & files[1])
    return sorted(files[0] ^ files[1]) + filecmp.cmpfiles(one, other, common, shallow=False)[1]


def kill_worker(process: subprocess.Popen[str], output: Path) -> bool:
    """Kills the worker that has the longest recording, once this has a checkpoint."""
    work = output / LONG / "unfinished"
    while process.poll() is None:
        time.sleep(0.2)
        if not (work / "checkpoint.da3k").exists():
            continue
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title = (folder / "cmdline").read_text()
                links = [os.readlink(link) for link in (folder / "fd").iterdir()]
            except OSError:
                continue
            if title.startswith("ray::FleetWorker") and any(str(work) in link for link in links):
                os.kill(int(folder.name), 9)
                return True
    return False


def memory_of_ray(process: subprocess.Popen[str]) -> dict[str, float]:
    """Returns MB of Ray's own processes (proportional set size), and of one worker."""
    own, workers = 0.0, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_text().replace("\0", " ")
            rollup = (folder / "smaps_rollup").read_text()
        except OSError:
            continue
        size = int(re.search(r"^Pss:\s+(\d+)", rollup, re.M).group(1)) / 1024  # type: ignore[union-attr]
        if title.startswith("ray::FleetWorker"):
            workers.append(size)
        elif "ray" in title and int(folder.name) not in (os.getpid(), process.pid):
            own += size
    return {"ray_mb": round(own), "worker_mb": round(max(workers, default=0.0))}


def fleet(
    bags: Path, output: Path, parameters: Sequence[str], cpus: int, kill: bool = False
) -> dict[str, Any]:
    """Runs a fleet with workers of ``cpus`` cores; returns its report and its seconds."""
    start = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "da3_ros", "fleet", str(bags), "--output", str(output),
         "--cpus-per-task", str(cpus), *parameters],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    killed = kill_worker(process, output) if kill else False
    memory: dict[str, float] = {}
    while not kill and process.poll() is None:
        time.sleep(2.0)
        if any(output.glob("*/unfinished")):
            memory = max(memory, memory_of_ray(process), key=lambda m: m.get("worker_mb", 0.0))
    _, err = process.communicate()
    assert process.returncode == 3, err  # the damaged one
    report: dict[str, Any] = json.loads((output / "fleet.json").read_text())
    return report | {"seconds": time.monotonic() - start, "killed": killed} | memory


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with real recordings")
    parser.add_argument("--frames", type=int, default=20, help="of a rendered room")
    parser.add_argument("--process-res", type=int, default=252)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="bfloat16", help="mixed_precision")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    parameters = ["-p", "model:=da3-tiny", "-p", f"process_res:={options.process_res}",
                  "-p", f"backend:={options.backend}",
                  # auto measures the processor, which other work disturbs.
                  "-p", f"mixed_precision:={options.precision}"]  # fmt: skip
    cores = os.cpu_count() or 1
    folder = Path(tempfile.mkdtemp())
    try:
        bags = folder / "bags"
        make_bags(bags, options.data, options.frames)
        alone = loop(bags, folder / "alone", parameters, 1)
        whole = loop(bags, folder / "whole", parameters, cores)
        one = fleet(bags, folder / "one", parameters, cores)
        many = fleet(bags, folder / "many", parameters, 1)
        hurt = fleet(bags, folder / "hurt", parameters, 1, kill=True)
        names = sorted(bag.stem for bag in bags.iterdir() if bag.stem != "noise")
        differ = {
            f"{run}/{name}": files
            for run in ("many", "hurt") for name in names
            if (files := different(folder / "alone" / name, folder / run / name))
        }  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    frames = many["frames"]
    single = sum(o["wall_s"] for o in many["outcomes"])
    row = {
        "recordings": len(names) + 1,
        "frames": frames,
        "workers": cores,
        "shell_loop_s": round(sum(whole.values()), 1),
        "shell_loop_one_thread_s": round(sum(alone.values()), 1),
        "one_worker_s": round(one["seconds"], 1),
        "fleet_s": round(many["seconds"], 1),
        "fleet_to_shell_loop": round(sum(whole.values()) / many["seconds"], 2),
        "one_worker_to_shell_loop": round(sum(whole.values()) / one["seconds"], 2),
        "open_s": [w["opened_s"] for w in many["workers"]],
        # Of a recording, what a worker takes beside the replay's own time.
        "overhead_per_recording_s": round(
            (sum(w["busy_s"] for w in many["workers"]) - single) / len(names), 2
        ),
        "start_and_end_s": round(
            many["seconds"] - max(w["opened_s"] + w["busy_s"] for w in many["workers"]), 1
        ),
        "ray_mb": many.get("ray_mb"),
        "worker_mb": many.get("worker_mb"),
        "killed": hurt["killed"],
        "killed_s": round(hurt["seconds"], 1),
        "failed": [o["name"] for o in hurt["outcomes"] if o["state"] == "failed"],
        "attempts": {o["name"]: o["attempts"] for o in hurt["outcomes"] if o["attempts"] > 1},
        "differ_from_single_replays": differ,
    }
    print(json.dumps(row, indent=1))
    results_file.write(options.out, {"rows": [row]}, "cpu")
    return 0 if not differ and hurt["killed"] and row["failed"] == ["noise"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
