"""Training as a whole: it learns, stops and goes on as if it had not, and keeps its schedule."""

import json
from dataclasses import replace

import pytest
import torch
from support.training_toy import PHASES, generator, network, pool

from da3_ros.network import save_checkpoint
from training.data import Bucket, draw_batch
from training.losses import Weights, total_loss
from training.model import TrainingNetwork
from training.schedule import PHASES as REAL
from training.schedule import Schedule
from training.train import CURVE, STATE, Config, Trainer, read_config, read_state
from training.train import main as train_main

TOY = Config(steps=6, tokens=80, rooms=2, clips=1, frames=4, refresh=2)


def toy_trainer(**changes):
    return Trainer(TOY, torch.device("cpu"), network=network(), phases=PHASES, **changes)


@pytest.mark.long
@pytest.mark.slow
def test_stopping_and_going_on_changes_nothing(tmp_path):
    whole, first, second = toy_trainer(), toy_trainer(), toy_trainer()
    curve = [whole.advance()["loss"] for _ in range(6)]
    again = [first.advance()["loss"] for _ in range(3)]
    first.save(tmp_path)
    second.restore(tmp_path)
    again += [second.advance()["loss"] for _ in range(3)]
    assert curve == again
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    for name, value in whole.ema.items():
        assert torch.equal(value, second.ema[name]), name


def test_a_state_of_other_settings_is_refused(tmp_path):
    toy_trainer().save(tmp_path)
    other = Config(steps=7, tokens=80, rooms=2, clips=1, frames=4)
    trainer = Trainer(other, torch.device("cpu"), network=network(), phases=PHASES)
    with pytest.raises(ValueError, match="other settings"):
        trainer.restore(tmp_path)


def test_a_run_can_begin_with_trained_weights(tmp_path):
    other = network(seed=7)
    save_checkpoint(other, tmp_path, dtype=torch.float32)
    config = replace(TOY, start=str(tmp_path))
    trainer = Trainer(config, torch.device("cpu"), network=network(), phases=PHASES)
    begun = {k: v.clone() for k, v in trainer.model.network.state_dict().items()}
    for name, value in other.state_dict().items():
        assert torch.equal(value, begun[name]), name
    probes = [p.weight.clone() for p in trainer.model.probes]
    trainer.advance()
    for name, value in trainer.model.network.state_dict().items():
        assert torch.equal(value, begun[name]), name  # until the new probes can read them
    for before, probe in zip(probes, trainer.model.probes, strict=True):
        assert not torch.equal(before, probe.weight)
    assert trainer.schedule.trust(0) == 1.0  # the head's confidence is trained


@pytest.mark.long
@pytest.mark.slow
def test_one_batch_is_learned():
    torch.manual_seed(0)
    batch = draw_batch(pool(), Bucket(2, 56, 70), 2, 0.5, generator(2))
    model = TrainingNetwork(network()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    history = []
    for _ in range(40):
        guess = model(batch.images, rays=True)
        loss, terms = total_loss(guess, batch, Weights())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append({k: float(v.detach()) for k, v in {**terms, "all": loss}.items()})
    assert history[-1]["all"] < 0.5 * history[0]["all"]
    for name in ("depth", "attention", "probe"):
        assert history[-1][name] < 0.8 * history[0][name], name


def test_rate_rises_stays_and_falls():
    schedule = Schedule(10_000)
    rates = [schedule.rate(s) for s in range(10_000)]
    assert rates[0] < 0.01
    assert rates[1000] == rates[5000] == 1.0
    assert rates[6999] == pytest.approx(1.0)
    assert 0.4 < rates[8500] < 0.6
    assert rates[-1] == pytest.approx(0.01, abs=1e-3)
    assert rates[6000] < 0.02  # the second phase begins gently


def test_phases_follow_each_other_without_a_hole():
    schedule = Schedule(1000)
    phases = [schedule.at(s).phase for s in range(1000)]
    assert phases == sorted(phases)
    assert [phases.count(k) for k in range(3)] == [600, 280, 120]
    with pytest.raises(ValueError, match="beyond the last"):
        schedule.at(1000)


def test_pairs_drift_apart_and_trust_grows():
    schedule = Schedule(1000)
    assert schedule.near(0) > schedule.near(200) > schedule.near(300) == REAL[0].near[1]
    assert schedule.trust(700) == 0
    assert 0 < schedule.trust(770) < 1
    assert schedule.trust(999) == 1


def test_buckets_of_a_phase_fit_its_pool():
    for phase in REAL:
        assert all(b.height <= phase.size[0] and b.width <= phase.size[1] for b in phase.buckets)
        assert max(b.views for b in phase.buckets) <= Config().frames


@pytest.mark.slow
def test_command_trains_resumes_and_keeps_one_curve(tmp_path, monkeypatch):
    monkeypatch.setattr("training.train.PHASES", PHASES)
    monkeypatch.setattr("training.train.build_network", lambda name: network())
    toy = [
        "--tokens",
        "80",
        "--rooms",
        "2",
        "--clips",
        "1",
        "--frames",
        "4",
        "--steps",
        "4",
        "--shares",
        ".5",
        ".5",
    ]
    out = ["--out", str(tmp_path), "--device", "cpu"]
    train_main([*out, *toy, "--minutes", "0"])
    assert read_state(tmp_path)["step"] == 0
    with pytest.raises(SystemExit, match="--resume"):
        train_main([*out, *toy])
    (tmp_path / CURVE).write_text('{"step": 3, "loss": 1.0}\n{"step": ')  # a run that was killed
    train_main([*out, "--resume"])
    steps = [json.loads(line)["step"] for line in (tmp_path / CURVE).read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    state = read_state(tmp_path)
    assert state["step"] == 4
    assert read_config(state).tokens == 80
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(STATE)] == [STATE]
