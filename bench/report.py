"""Writes the tables, plots and short lists of the documentation from the files of bench/results.

    python bench/report.py            # rewrites what differs, and names it
    python bench/report.py --check    # writes nothing; exit code 1 if something differs

A page has pairs of marks around what is generated, on lines of their own or within a line:

    <!-- table: NAME, by bench/report.py -->
    <!-- end -->

NAME is a row of ``ENTRIES``: the files that it reads, and the function that makes Markdown of
them. A file that comes later (``matrix-*.json``) appears by itself; a new kind of file needs a row
here and a pair of marks. Where no file is there yet, the page says that it was not run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import report_figures as figures
import report_performance as performance
from report_tables import UNRUN, Column, Maker, Note, ReportError, Result, listing, number, read

ROOT = Path(__file__).resolve().parents[1]
MARKS = re.compile(
    r"(<!-- (?:table|plot|list|value): ([\w-]+)(?:, by bench/report\.py)? -->)(.*?)(<!-- end -->)",
    re.S,
)
ANY_MARK = re.compile(r"<!-- (?:(?:table|plot|list|value):|end\b)[^>]*-->")

# What benchmarks of earlier versions did not write into their files.
AMX = "two virtual cores with AVX512-BF16 and AMX, otherwise idle"
NO_AMX = "two virtual cores with AVX512-BF16 and without AMX, otherwise idle"
WINDOWS = (
    "python bench/bench_session.py windows --model da3-small --process-res 280 --image 280x210 "
    "--sizes {} --repeats 3 --device cpu"
)
NETWORK = "python bench/bench_network.py --models "
NO_AMX_KINDS = " --precision fp32 bf16 int8 --repeats "
NOTES = {
    "cpu-network-small.json": Note(AMX, NETWORK + "da3-small --repeats 4"),
    "cpu-network-base.json": Note(AMX, NETWORK + "da3-base --sizes 8x504x280 --repeats 1"),
    "cpu-network-no-amx-small.json": Note(
        NO_AMX, NETWORK + "da3-small --sizes 8x280x210 8x504x280" + NO_AMX_KINDS + "3"
    ),
    "cpu-network-no-amx-base.json": Note(
        NO_AMX, NETWORK + "da3-base --sizes 8x280x210" + NO_AMX_KINDS + "2"
    ),
    "cpu-windows-small.json": Note(
        AMX + ", torch 2.13.0", WINDOWS.format("1 2 4 8 16"), "da3-small, bfloat16, with AMX"
    ),
    "cpu-windows-no-amx-small.json": Note(
        NO_AMX + ", torch 2.13.0", WINDOWS.format("1 2 4 8 16 32 64"),
        "da3-small, fp32, without AMX",
    ),
    "cpu-shares.json": Note(
        NO_AMX,
        "python bench/bench_shares.py --models da3-small da3-base --precision fp32 int8",
    ),
    "cpu-precision.json": Note("two virtual cores", "python bench/bench_precision.py"),
    "overlap.json": Note(NO_AMX),
    "map.json": Note(
        "core 0 of a shared two-core machine that other work kept busy",
        "taskset -c 0 env OMP_NUM_THREADS=1 python bench/bench_map.py",
    ),
    "loops-rings.json": Note("two virtual cores", "python bench/bench_loops.py rings --seeds 10"),
    "growth-pipeline.json": Note("two virtual cores", "python bench/bench_growth.py pipeline"),
    "growth-filled.json": Note("two virtual cores", "python bench/bench_growth.py filled"),
    "alignment-drift.json": Note("two virtual cores", "python bench/bench_alignment.py drift"),
    "alignment-keyframes.json": Note(
        "two virtual cores", "python bench/bench_alignment.py keyframes"
    ),
}  # fmt: skip

MATRIX_FILES = ("matrix*.json", "*-matrix*.json")
WINDOW_FILES = ("cpu-windows*.json",)  # of one setting: others are in tables of their own


# Single values and the list at the top


@dataclass(frozen=True)
class Source:
    """A value of one row of one file, and how it is written."""

    file: str
    key: str
    where: Mapping[str, object]
    text: str = "{}"
    times: float = 1.0
    digits: int = 3

    def of(self, results: Sequence[Result]) -> str:
        """Returns the value as text. Raises ReportError if the file or the row is missing."""
        for result in results:
            if result.name == self.file:
                value = self.times * result.value(self.key, **self.where)
                return self.text.format(number(value, self.digits))
        raise ReportError(f"bench/results has no {self.file}")


CPU = "backends-small-280.json"
GPU = "gpu-network-da3-base.json"
GPU_WINDOW = "8 x 504x280"
AMX_CPU = "backends-amx-small-280.json"
IMU = ("imu-poses.json", "imu-carried.json", "imu-drone.json")
NODE, LIVE = "node.json", {"model": "da3-tiny", "rate_hz": 10.0}
METRES = {  # what a source costs per frame: name of the value, source in the file
    "cost-odometry": "odometry", "cost-rig": "rig, 0.3 m", "cost-lidar": "range, LiDAR",
    "cost-beam": "range, one beam", "cost-global-poses": "global poses, one a second",
}  # fmt: skip
VALUES = {
    **{
        name: Source("metres-cost.json", "extra_ms", {"source": source}, "{} ms", digits=2)
        for name, source in METRES.items()
    },
    "cpu-frame": Source(CPU, "median_s", {"variant": "openvino bfloat16"}, "{} s", digits=2),
    "cpu-reference": Source(
        CPU, "median_s", {"variant": "reference float32, whole window"}, "{} s"
    ),
    "cpu-times": Source(
        CPU, "times_reference", {"variant": "openvino bfloat16"}, "{} times", digits=2
    ),
    "gpu-frame": Source(
        GPU, "median_s", {"size": GPU_WINDOW, "variant": "ours bf16, per new frame"}, "{} ms", 1e3
    ),
    "gpu-reference": Source(
        GPU, "median_s", {"size": GPU_WINDOW, "variant": "reference autocast"}, "{} ms", 1e3
    ),
    "gpu-memory": Source(
        GPU, "peak_mb", {"size": GPU_WINDOW, "variant": "ours bf16, per new frame"}, "{} MB"
    ),
    "amx-frame": Source(AMX_CPU, "median_s", {"variant": "openvino bfloat16"}, "{} s", digits=2),
    "amx-times": Source(
        AMX_CPU, "times_reference", {"variant": "openvino bfloat16"}, "{} times", digits=2
    ),
    "amx-torch": Source(  # as the node runs it: its threads sleep while they wait
        "matrix-da3-small.json", "median_s",
        {"mode": "balanced", "precision": "auto", "compile": "off", "backend": "torch"}, "{} s",
        digits=2,
    ),
    "live-plain": Source(NODE, "windows_per_s", LIVE | {"extras": "neither"}, digits=2),
    "live-plain-age": Source(
        NODE, "latency_median_s", LIVE | {"extras": "neither"}, "{} ms", 1e3, 2
    ),
    "live-refined": Source(NODE, "windows_per_s", LIVE | {"extras": "refinement"}, digits=2),
    "live-refined-age": Source(
        NODE, "latency_median_s", LIVE | {"extras": "refinement"}, "{} ms", 1e3, 2
    ),
    "live-dense": Source(NODE, "windows_per_s", LIVE | {"extras": "refinement, dense"}, digits=2),
    "live-dense-age": Source(
        NODE, "latency_median_s", LIVE | {"extras": "refinement, dense"}, "{} ms", 1e3, 2
    ),
    "memory-cpu": Source(
        "memory-cpu.json", "measured_mib",
        {"model": "da3-small", "size": "280x210", "views": 8, "backend": "openvino",
         "precision": "bfloat16"}, "{} MiB",
    ),
    "plan-giant": Source(
        "plan-cuda.json", "predicted_gib",
        {"model": "da3-giant", "views": 8, "new": 1, "budget_gib": 12.0}, "{} GiB",
    ),
    "kitchen-ate": Source(
        "real.json", "ate_m",
        {"data": "redkitchen_200", "refined": True, "adjusted": True, "camera_info": True},
        "{} m", digits=2,
    ),
}  # fmt: skip
# Sentences with values in braces. One is left out where a file that it needs is missing.
FACTS = (
    "**Two CPU cores without AMX, OpenVINO**: a new frame of da3-small at 280x210 in a window of "
    "eight takes {cpu-frame} in bfloat16, {cpu-times} as fast as the reference's network takes "
    "the window ([table](#openvino-and-pytorch)).",
    "**Two CPU cores with AMX**: the same frame takes {amx-frame}, {amx-times} as fast as the "
    "reference's network; on PyTorch, as the node runs it, {amx-torch}.",
    "**One H200**: a new frame of da3-base at 504x280 in a window of eight takes {gpu-frame} in "
    "bfloat16. The reference's network takes {gpu-reference} for the window. "
    "The frame takes {gpu-memory} beside the weights ([table](#on-a-gpu)).",
    "**The live node** with OpenVINO on two CPU cores, da3-tiny and a camera at 10 Hz, publishes "
    "{live-refined} windows/s with refined poses. Their clouds arrive {live-refined-age} "
    "after the image's stamp. With measured depth too it publishes {live-dense} windows/s after "
    "{live-dense-age}, with neither {live-plain} after {live-plain-age} "
    "([table](#latency-of-the-live-node)).",
    "**Memory**: da3-small with eight views of 280x210 takes {memory-cpu} on a CPU "
    "([table](#predicted-and-measured-on-cpus)). On a GPU, da3-giant with eight views of 504x378 "
    "is predicted to take {plan-giant} ([table](#what-fits-on-a-gpu)).",
)


def facts(results: Sequence[Result]) -> str:
    """Returns the list at the top of a page."""
    there = {result.name for result in results}
    lines = []
    for sentence in FACTS:
        names = re.findall(r"{([\w-]+)}", sentence)
        if all(VALUES[name].file in there for name in names):
            values = {name: VALUES[name].of(results) for name in names}
            lines.append(sentence.format(**values))
    lines += [performance.documents_fact(results), performance.quality_fact(results)]
    return "".join(f"* {line}\n" for line in lines if line)


# The registry


@dataclass(frozen=True)
class Entry:
    """What stands between a pair of marks.

    ``files``: names in bench/results, or patterns of names. ``make``: makes Markdown of those that
    are there. ``image``: a file of docs/images, which ``draw`` makes of the same ones.
    """

    files: tuple[str, ...]
    make: Maker
    image: str = ""
    draw: Maker | None = None
    inline: bool = False


def _value_entries() -> dict[str, Entry]:
    return {name: Entry((v.file,), v.of, inline=True) for name, v in VALUES.items()}


PUBLISHED = "published.json"  # lies beside this script: nothing of it was measured here
ENTRIES: dict[str, Entry] = {
    **_value_entries(),
    "in-short": Entry(
        (*sorted({v.file for v in VALUES.values()}), "quality.json", *MATRIX_FILES), facts
    ),
    # docs/performance.md
    "quality": Entry(
        ("quality.json",), performance.quality, "speed_accuracy.svg", performance.quality_plot
    ),
    "backends": Entry(("backends-*.json",), performance.backends),
    "node": Entry(("node*.json",), performance.node),
    "node-reference": Entry(("node*.json",), performance.node_reference),
    "network-cpu": Entry(("cpu-network-*.json",), performance.network_table("s", 1.0)),
    "network-gpu": Entry(
        ("gpu-network-*.json", "gpu-compiled-*.json"), performance.network_table("ms", 1e3)
    ),
    "matrix": Entry(MATRIX_FILES, performance.matrix),
    "devices": Entry((PUBLISHED, *MATRIX_FILES), performance.devices),
    "published-images": Entry((PUBLISHED,), performance.published_images),
    "published-memory": Entry((PUBLISHED,), performance.published_memory),
    "windows-plot": Entry(
        WINDOW_FILES, performance.windows_figure, "windows.svg", performance.windows_plot
    ),
    "windows": Entry(WINDOW_FILES, performance.windows),
    "windows-gpu": Entry(("gpu-windows*.json", "gpu-many-*.json"), performance.many),
    "lengths": Entry(("*lengths*.json",), performance.lengths),
    "frames100": Entry(("*frames100*.json",), performance.chunks),
    "shares": Entry(("*-shares.json",), performance.shares),
    "attention": Entry(("*attention*.json",), performance.attention),
    "precision": Entry(("*-precision.json",), performance.precision),
    "yardstick": Entry(("*yardstick*.json",), performance.yardstick),
    "pieces": Entry(("*pieces*.json",), performance.pieces),
    "loading": Entry(("*loading*.json",), performance.loading),
    "refinement-cost": Entry(("refinement-cost.json",), performance.refinement_cost),
    "refinement-ahead": Entry(("refinement-ahead.json",), performance.refinement_ahead),
    "stages": Entry(
        ("stages.json",), listing(Column("name", "Stage"), Column("value", "ms, median"))
    ),
    "replay": Entry(("*replay-*.json",), listing()),
    "window-stages": Entry(("*window-stages.json",), performance.window_stages),
    "postprocessing": Entry(("*postprocessing.json",), performance.postprocessing),
    "overlap": Entry(("overlap.json", "gpu-overlap.json"), performance.overlap),
    "viewer": Entry(("viewer.json",), performance.viewer),
    "plan": Entry(("plan-cuda.json",), performance.plan),
    "memory": Entry(("memory-*.json",), performance.memory),
    "budgets": Entry(("*budgets*.json",), performance.budgets),
    # docs/figures.md
    "standing": Entry(("standing.json",), figures.standing),
    "following": Entry(("following.json",), figures.following),
    "range-scale": Entry(("range-scale.json",), figures.range_scale),
    "range-combined": Entry(("range-combined.json",), figures.range_combined),
    "range-depth": Entry(("range-depth.json", "range-depth-plain.json"), figures.range_depth),
    "range-cost": Entry(("range-cost.json",), figures.range_cost),
    "prior": Entry(("prior.json",), figures.prior),
    "imu-scale": Entry(IMU, figures.imu_scale),
    "imu-up": Entry(IMU, figures.imu_up),
    "imu-gyro": Entry(("imu-gyro.json",), figures.imu_gyro),
    "imu-level": Entry(("imu-level.json",), figures.imu_level),
    "metres-cost": Entry(("metres-cost.json",), figures.metres_cost),
    "anchors": Entry(("anchors.json", "anchors-da3-tiny.json"), figures.anchors),
    "anchors-scale": Entry(
        ("anchors-scale.json", "anchors-scale-da3-tiny.json"), figures.anchors_scale
    ),
    "exports": Entry(("map.json",), figures.exports),
    "rings": Entry(("loops-rings.json",), figures.rings),
    "growth": Entry(("growth-pipeline.json", "growth-filled.json"), figures.growth),
    "alignment-drift": Entry(("alignment-drift.json",), figures.drift),
    "alignment-worst": Entry(("alignment-drift.json",), figures.drift_worst),
    "refinement-nees": Entry(
        (
            "refinement-nees-truth.json",
            "refinement-nees-laps.json",
            "refinement-nees-da3-tiny.json",
            "refinement-nees-plain.json",
        ),
        figures.nees,
    ),
    "real": Entry(("real.json",), figures.real),
    "lenses": Entry(("refinement-lens.json",), figures.lenses),
    "dense-rooms": Entry(("dense-rooms.json",), figures.dense_rooms),
    "navigation": Entry(("navigation.json", "navigation_tiny.json"), figures.navigation),
    "fleet": Entry(("fleet.json",), figures.fleet),
    "alignment-keyframes": Entry(("alignment-keyframes.json",), figures.keyframes),
    "scene-file": Entry(("scene-file.json",), figures.scene_file),
    "dense-rectified": Entry(("dense-rectified.json", "gpu-dense.json"), figures.sweeps),
    "dense-faults": Entry(("dense-faults.json",), figures.dense_faults),
}


# Pages


class Report:
    """The pages of a clone, and what they and the pictures should be.

    ``root``: of the clone. Raises ReportError where a page's marks or a file are broken.
    """

    def __init__(self, root: Path, entries: Mapping[str, Entry] = ENTRIES) -> None:
        self.root, self.entries = root, entries
        self.results = root / "bench" / "results"
        self._read: dict[Path, Result] = {}

    def found(self, entry: Entry) -> list[Result]:
        """Returns the files of an entry that are there, in the order of its patterns."""
        paths: dict[Path, None] = {}
        for pattern in entry.files:
            folder = self.results.parent if pattern == PUBLISHED else self.results
            paths.update(dict.fromkeys(sorted(folder.glob(pattern))))
        return [self._result(path) for path in paths]

    def _result(self, path: Path) -> Result:
        if path not in self._read:
            self._read[path] = read(path, NOTES.get(path.name, Note()))
        return self._read[path]

    def text(self, name: str) -> str:
        """Returns what stands between the marks of a name. Raises ReportError."""
        if name not in self.entries:
            raise ReportError(f"no entry is called {name!r}: one of {', '.join(self.entries)}")
        entry = self.entries[name]
        made = self._made(name, entry.make, self.found(entry))
        return made or "unrun" if entry.inline else f"\n\n{made or UNRUN}\n"

    def _made(self, name: str, make: Maker, results: Sequence[Result]) -> str | None:
        """Returns what a function makes of results; None if there are none. Raises ReportError."""
        try:
            return make(results) if results else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            files = ", ".join(result.name for result in results)
            raise ReportError(f"{name}, of {files}: {type(error).__name__} {error}") from error

    def page(self, text: str) -> tuple[str, list[str]]:
        """Returns a page with its parts made anew, and the names of those that differed."""
        if len(ANY_MARK.findall(text)) != 2 * len(MARKS.findall(text)):
            raise ReportError("a mark has no partner: each needs its <!-- end -->")
        differing = []

        def made(match: re.Match[str]) -> str:
            new = self.text(match[2])
            if new != match[3]:
                differing.append(match[2])
            return f"{match[1]}{new}{match[4]}"

        return MARKS.sub(made, text), differing

    def pages(self) -> list[Path]:
        """Returns the pages that may have marks."""
        return [self.root / "README.md", *sorted((self.root / "docs").glob("*.md"))]

    def names(self) -> set[str]:
        """Returns the names of all marks of all pages."""
        return {m[1] for page in self.pages() for m in MARKS.findall(page.read_text())}

    def pictures(self) -> dict[Path, str | None]:
        """Returns the text of each picture; None: it has no results, and must not be there."""
        folder = self.root / "docs" / "images"
        drawn: dict[Path, str | None] = {}
        for name, entry in self.entries.items():
            if entry.draw is not None and name in self.names():
                results = self.found(entry)
                drawn[folder / entry.image] = self._made(name, entry.draw, results)
        return drawn

    def wanted(self) -> tuple[dict[Path, str | None], list[str]]:
        """Returns the files that differ with their texts, and the names of what differs."""
        files: dict[Path, str | None] = {}
        names: list[str] = []
        for path in self.pages():
            old = path.read_text()
            try:
                new, differing = self.page(old)
            except ReportError as error:
                raise ReportError(f"{path.relative_to(self.root)}: {error}") from error
            names += differing
            files |= {path: new} if new != old else {}
        for path, text in self.pictures().items():
            if (path.read_text() if path.exists() else None) != text:
                names.append(path.name)
                files[path] = text
        return files, names

    def differences(self, write: bool) -> list[str]:
        """Returns the names of parts and pictures that differ; ``write``: makes them equal.

        Nothing is written if anything is broken. Raises ReportError.
        """
        files, names = self.wanted()
        for path, text in files.items() if write else ():
            path.unlink() if text is None else path.write_text(text)
        return names


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command. Returns the exit code: 1 if something differs, 2 if it is broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if needed"
    )
    options = parser.parse_args(arguments)
    try:
        differing = Report(root).differences(write=not options.check)
    except ReportError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    for name in differing:
        sys.stdout.write(f"{'differs' if options.check else 'written'}: {name}\n")
    if options.check and differing:
        sys.stderr.write("report: run python bench/report.py\n")
    return 1 if options.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
