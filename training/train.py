"""Trains `da3-tiny`: ``python -m training.train --out RUN``; with ``--resume`` a run continues.

The state is kept in that folder; git ignores ``RUN/`` in the clone. All random numbers of a step
are drawn from the run's seed and the step's number, so an interrupted and resumed run takes the
same steps as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from da3_ros.network import build_network, load_checkpoint
from da3_ros.network.model import DepthAnything3
from training.data import (
    FIRST_TRAINING_SEED,
    Batch,
    Pool,
    conditioning_extrinsics,
    draw_batch,
    draw_clips,
    noisy_poses,
    render_pool,
)
from training.losses import Weights, total_loss
from training.model import TrainingNetwork, initialize
from training.schedule import PHASES, Phase, Schedule

STATE, CURVE = "training.pt", "loss.jsonl"
SAVE_EVERY_S = 60.0
POSE_NOISE = (2.0, 0.06)  # degrees; share of the distance
PROBES_FIRST = 150  # first steps, which train only the probes, of a run from trained weights
_ROOMS_PER_SEED = 1 << 40  # room seeds per run; runs and pools never share a room


@dataclass(frozen=True)
class Config:
    """Settings of a run; they are stored with its state and cannot be changed later."""

    steps: int = 40_000
    seed: int = 0
    tokens: int = 2048  # patches per batch
    rooms: int = 300  # in a pool
    clips: int = 2  # per room
    frames: int = 12  # per clip
    refresh: int = 2000  # steps after which the pool is replaced by other rooms
    rate: float = 7e-4
    decay: float = 0.03
    ema: float = 0.999
    precision: str = "float32"  # or bfloat16
    start: str = ""  # checkpoint folder of the weights that the run starts from
    shares: tuple[float, ...] = tuple(p.share for p in PHASES)


class Trainer:
    """The state of a run, and one step of it."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        *,
        network: DepthAnything3 | None = None,
        phases: tuple[Phase, ...] | None = None,
        workers: int = 0,
        progress: bool = False,
    ) -> None:
        self.config, self.device, self.step = config, device, 0
        self.workers, self.progress = workers, progress
        if phases is None:
            pairs = zip(PHASES, config.shares, strict=True)
            phases = tuple(replace(p, share=share) for p, share in pairs)
        self.schedule = Schedule(config.steps, phases, trained=bool(config.start))
        self._pool: tuple[tuple[int, int], Pool] | None = None
        torch.manual_seed(config.seed)
        network = network or build_network("da3-tiny")
        size = phases[0].size
        initialize(network, torch.randn(4, 3, *size))
        if config.start:
            load_checkpoint(network, config.start)
        self.model = TrainingNetwork(network).to(device).train()
        self.ema = {k: v.clone() for k, v in network.state_dict().items()}
        self.optimizer = make_optimizer(self.model, config)

    # One step

    def advance(self) -> dict[str, float]:
        """Takes a step. Returns the terms of its loss, learning rate, gradient norm and shape."""
        batch, posed = self._batch()
        rate = self.config.rate * self.schedule.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(group, rate)
        # The probes' loss gets less weight when the head is trained, which reads the same taps.
        phase = self.schedule.phases[self.schedule.at(self.step).phase]
        probe = 0.2 if phase.dense else 0.5
        weights = Weights(trust=self.schedule.trust(self.step), probe=probe)
        loss, terms = self._loss(batch, posed, weights)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if torch.isfinite(norm):  # a batch with infinite gradients is skipped
            self.optimizer.step()
        self._average()
        self.step += 1
        figures = {"loss": loss, "norm": norm, **terms}
        values = torch.stack([v.detach().float() for v in figures.values()]).tolist()
        shape = {"views": batch.depth.shape[1], "height": batch.size[0], "posed": int(posed)}
        return {"step": self.step, "rate": rate, **dict(zip(figures, values, strict=True))} | shape

    def _rate(self, group: dict[str, Any], rate: float) -> float:
        """Returns the learning rate of a parameter group.

        Checkpoints have no probes, so a run from trained weights first trains only the new probes.
        """
        if self.config.start and self.step < PROBES_FIRST:
            return self.config.rate if group["probes"] else 0.0
        return rate

    def _loss(
        self, batch: Batch, posed: bool, weights: Weights
    ) -> tuple[Tensor, dict[str, Tensor]]:
        phase = self.schedule.phases[self.schedule.at(self.step).phase]
        poses = ()
        if posed:
            noisy = noisy_poses(batch, *POSE_NOISE, seed=self._seed(2))
            poses = (conditioning_extrinsics(noisy), batch.K)
        with self._autocast(), self._attention():
            guess = self.model(batch.images, *poses, dense=phase.dense, rays=phase.dense)
        return total_loss(guess, batch, weights)

    def _autocast(self) -> torch.autocast:
        wanted = self.config.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=wanted)

    def _attention(self) -> AbstractContextManager[None]:
        """Selects the plain attention formula on CPUs: the fused backward pass is slower there."""
        if self.device.type == "cpu":
            return sdpa_kernel(SDPBackend.MATH)
        return nullcontext()

    def _batch(self) -> tuple[Batch, bool]:
        moment = self.schedule.at(self.step)
        phase = self.schedule.phases[moment.phase]
        dice = torch.Generator().manual_seed(self._seed(1))
        number = int(torch.randint(len(phase.buckets), (), generator=dice))
        posed = bool(torch.rand((), generator=dice) < phase.posed)
        bucket = phase.buckets[number]
        windows = bucket.windows(self.config.tokens)
        near = self.schedule.near(self.step)
        generator = torch.Generator(self.device).manual_seed(self._seed(0))
        pool = self.pool(moment.phase, moment.step // self.config.refresh)
        return draw_batch(pool, bucket, windows, near, generator), posed

    def _seed(self, purpose: int) -> int:
        return (self.config.seed * 100_000_007 + self.step) * 4 + purpose

    @torch.no_grad()
    def _average(self) -> None:
        keep = min(self.config.ema, (1 + self.step) / (10 + self.step))
        for name, value in self.model.network.state_dict().items():
            self.ema[name].lerp_(value, 1 - keep)

    # Pool

    def pool(self, phase: int, generation: int) -> Pool:
        """Returns the rendered pool of a phase and generation; renders it if it is not current."""
        key = (phase, generation)
        if self._pool is None or self._pool[0] != key:
            self._pool = None  # frees the old one first
            config, size = self.config, self.schedule.phases[phase].size
            first = config.seed * _ROOMS_PER_SEED + (phase * 10_000 + generation) * (1 << 20)
            clips = draw_clips(
                FIRST_TRAINING_SEED + first,
                config.rooms,
                clips=config.clips,
                frames=config.frames,
                workers=self.workers,
            )
            pool = render_pool(clips, size, self.device, progress=self.progress)
            self._pool = key, pool
        return self._pool[1]

    # State

    def save(self, folder: Path) -> None:
        """Writes the state into ``folder`` atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "config": asdict(self.config),
            "step": self.step,
            "model": self.model.state_dict(),
            "ema": self.ema,
            "optimizer": self.optimizer.state_dict(),
        }
        new = folder / (STATE + ".new")
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / STATE)

    def restore(self, folder: Path) -> None:
        """Loads the state that ``save`` wrote. Raises ValueError for other settings."""
        state = read_state(folder)
        if read_config(state) != self.config:
            raise ValueError(f"{folder} contains a run with other settings: {state['config']}")
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ema = {k: v.to(self.device) for k, v in state["ema"].items()}


def make_optimizer(model: nn.Module, config: Config) -> torch.optim.AdamW:
    """Returns AdamW with weight decay for matrices and kernels only."""
    free = {n: p for n, p in model.named_parameters() if p.requires_grad}
    groups = []
    for probes in (False, True):
        some = [p for n, p in free.items() if n.startswith("probes.") == probes]
        for decay, matrix in ((config.decay, True), (0.0, False)):
            params = [p for p in some if (p.ndim in (2, 4)) == matrix]
            groups.append({"params": params, "weight_decay": decay, "probes": probes})
    return torch.optim.AdamW(groups, lr=config.rate, betas=(0.9, 0.98))


def read_state(folder: Path) -> dict[str, Any]:
    """Returns the state of a run, on the CPU. Raises FileNotFoundError if there is none."""
    state: dict[str, Any] = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return state


def read_config(state: dict[str, Any]) -> Config:
    """Returns the configuration in a state."""
    return Config(**{**state["config"], "shares": tuple(state["config"]["shares"])})


# Command ----------------------------------------------------------------------------------------


def run(trainer: Trainer, folder: Path, minutes: float) -> None:
    """Trains until steps or minutes are over, or until SIGINT or SIGTERM; then saves."""
    stop: list[int] = []
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda number, frame: stop.append(number))
    begun = saved = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    _cut_curve(folder / CURVE, trainer.step)
    total = trainer.config.steps
    with (folder / CURVE).open("a") as curve, tqdm(total=total, initial=trainer.step) as bar:
        while trainer.step < total and not stop and time.monotonic() - begun < 60 * minutes:
            figures = trainer.advance()
            figures["seconds"] = round(time.monotonic() - begun, 2)
            curve.write(json.dumps({k: _short(v) for k, v in figures.items()}) + "\n")
            bar.update()
            bar.set_postfix(loss=f"{figures['loss']:.3f}", q=f"{figures['quaternion']:.4f}")
            if time.monotonic() - saved > SAVE_EVERY_S:
                curve.flush()
                trainer.save(folder)
                saved = time.monotonic()
    trainer.save(folder)


def _short(value: float) -> float:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _cut_curve(path: Path, step: int) -> None:
    """Removes lines that an interrupted run wrote after its last saved state."""
    if path.exists():
        lines = [x for x in _complete_lines(path) if json.loads(x)["step"] <= step]
        path.write_text("".join(lines))


def _complete_lines(path: Path) -> Iterator[str]:
    with path.open() as file:
        yield from (line for line in file if line.endswith("}\n"))


def pick_device(name: str) -> torch.device:
    """Returns a device by name; ``auto``: a GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the run's state, e.g. RUN"
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: torch's default")
    parser.add_argument("--workers", type=int, default=0, help="processes that make rooms")
    for field in fields(Config):
        kind = {"steps": int, "rate": float}.get(field.name, type(field.default))
        if field.name == "shares":
            parser.add_argument("--shares", type=float, nargs=len(PHASES), metavar="SHARE")
        elif field.name == "precision":
            parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"))
        else:
            parser.add_argument(f"--{field.name}", type=kind, help=f"default {field.default}")
    return parser.parse_args(argv)


def choose_config(args: argparse.Namespace, device: torch.device) -> Config:
    """Returns the settings of the command line, or those of the run that is resumed.

    Raises SystemExit if the command line differs from the settings of a resumed run.
    """
    given = {f.name: getattr(args, f.name) for f in fields(Config)}
    given = {k: v for k, v in given.items() if v is not None}
    if given.get("precision", "auto") == "auto":
        given.pop("precision", None)
        if not args.resume:
            given["precision"] = best_precision(device)
    if "shares" in given:
        given["shares"] = tuple(given["shares"])
    if not args.resume:
        return Config(**given)
    stored = read_config(read_state(args.out))
    if replace(stored, **given) != stored:
        raise SystemExit(f"{args.out} was started with other settings; omit them to resume it")
    return stored


def best_precision(device: torch.device) -> str:
    """Returns bfloat16 if the device computes in it natively, else float32.

    On a CPU with AVX512-BF16, a step took two thirds of its time in float32.
    """
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported()
    else:
        native = any(
            getattr(torch.cpu, f"_is_{name}_supported", bool)()
            for name in ("avx512_bf16", "amx_tile")
        )
    return "bfloat16" if native else "float32"


def main(argv: list[str] | None = None) -> None:
    """Runs the command."""
    args = parse(argv)
    device = pick_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    if (args.out / STATE).exists() and not args.resume:
        raise SystemExit(f"{args.out} contains a run: pass --resume to continue, or another --out")
    args.resume = args.resume and (args.out / STATE).exists()
    trainer = Trainer(choose_config(args, device), device, workers=args.workers, progress=True)
    if args.resume:
        trainer.restore(args.out)
    run(trainer, args.out, args.minutes)


if __name__ == "__main__":
    main()
