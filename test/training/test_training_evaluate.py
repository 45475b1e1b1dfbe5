"""The table: perfect for the truth, right for known errors, and the weights that get shipped."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from support.training_toy import SPEC, generator, network, pool

from da3_ros.network import MODELS, build_network, load_checkpoint
from training import evaluate as ev
from training.data import Bucket, draw_batch
from training.export import averaged_network
from training.export import main as export_main
from training.train import Config, Trainer


@pytest.fixture(scope="module")
def truth():
    return draw_batch(pool(), Bucket(4, 56, 70), 4, 0.4, generator(4))


def turn(degrees):
    a = torch.deg2rad(torch.tensor(float(degrees)))
    T = torch.eye(4)
    T[0, 0], T[0, 1], T[1, 0], T[1, 1] = a.cos(), -a.sin(), a.sin(), a.cos()
    return T


def test_the_truth_in_another_unit_is_perfect(truth):
    T = truth.T_window_camera.clone()
    T[..., :3, 3] *= 3
    estimate = ev.Estimate(truth.depth * 3, T)
    figures = ev.summarize([(slice(0, 4), estimate, truth)], torch.ones(4, 4, 4))
    assert figures["AbsRel"] == pytest.approx(0, abs=1e-5)
    assert figures["delta1"] == pytest.approx(1)
    assert figures["rotation, deg"] < 0.01
    assert figures["AUC@5"] > 0.99
    assert figures["pairs"] == 24


def test_known_errors_are_measured(truth):
    T = truth.T_window_camera.clone()
    T[:, 1:] = T[:, 1:] @ turn(3)
    depth = truth.depth.clone()
    depth[..., ::2, :] *= 1.2  # half of the rows
    estimate = ev.Estimate(depth, T)
    errors = ev.pose_errors(estimate, truth, torch.ones(4, 4, 4))
    from_reference = ev.angle_between(
        (truth.T_window_camera @ turn(3))[..., :3, :3], T[..., :3, :3]
    )
    assert torch.allclose(from_reference[:, 0], torch.tensor(3.0), atol=1e-3)
    assert errors.rotation.max() < 3.1 + 3
    absolute = ev.depth_errors(estimate, truth, per_frame=False)[0].mean()
    assert 0.07 < float(absolute) < 0.13


def test_pairs_that_share_little_or_do_not_move_do_not_count(truth):
    estimate = ev.Estimate(truth.depth, truth.T_window_camera)
    assert not len(ev.pose_errors(estimate, truth, torch.zeros(4, 4, 4)).rotation)
    still = replace(truth, T_window_camera=torch.eye(4).expand(4, 4, 4, 4))
    errors = ev.pose_errors(estimate, still, torch.ones(4, 4, 4))
    assert len(errors.rotation) == 24
    assert not len(errors.direction)


def test_translation_counts_in_the_unit_of_the_depth(truth):
    T = truth.T_window_camera.clone()
    T[..., :3, 3] *= 3
    everything = torch.ones(4, 4, 4)
    in_step = ev.pose_errors(ev.Estimate(truth.depth * 3, T), truth, everything)
    assert in_step.translation.max() < 1e-4
    too_long = ev.pose_errors(ev.Estimate(truth.depth, T), truth, everything)
    assert torch.allclose(too_long.translation, torch.tensor(2.0, dtype=torch.double), atol=1e-3)


def test_area_under_the_curve():
    errors = torch.tensor([0.0, 2.5, 100.0])
    assert ev.auc(errors, 5) == pytest.approx(0.5)
    thresholds = torch.linspace(0, 5, 10001)
    share = (errors[None] <= thresholds[:, None]).float().mean()
    assert ev.auc(errors, 5) == pytest.approx(float(share), abs=1e-3)


def test_no_motion_points_nowhere():
    zero, ahead = torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])
    assert ev.direction_error(zero, ahead) == 90
    assert ev.direction_error(ahead, torch.tensor([1.0, 0.0, 1.0])) == pytest.approx(45)


@pytest.fixture(scope="module")
def report():
    return ev.evaluate(network(), 2, (56, 70), torch.device("cpu"))


@pytest.mark.long
def test_table_has_every_row_and_the_same_frames(report):
    rows = report.rows
    assert len(rows) == 2 * 4 * 3
    blind = [r["AbsRel, scale per frame"] for r in rows if r["given"] == "blind"]
    assert blind[:4] == pytest.approx([blind[0]] * 4)  # whatever the windows, the same frames
    json.dumps(asdict(report))


def test_text_compares_every_figure_with_not_looking(report):
    """The text shows the result of not looking beside every figure, and compares rows."""
    text = ev.to_markdown(report)
    assert "nan" not in text
    body = [line for line in text.splitlines() if "| images" in line]
    assert len(body) == 2 * 4 * 2
    one, blind = (
        next(r for r in report.rows if r["given"] == given) for given in ("images", "blind")
    )
    assert f"{one['AbsRel']:.3f} / {blind['AbsRel']:.3f}" in body[0]
    assert text.count("from one view") == 2
    assert text.count("of the blind one") == 2 * 3


def test_noise_curve_names_the_errors_of_the_poses_themselves(report):
    rows = report.noise
    assert [r["noise up to"] for r in rows][:2] == ["no poses", "0 deg, 0 %"]
    own = [r["rotation, deg of the poses"] for r in rows[1:]]
    assert own[0] == pytest.approx(0, abs=1e-2)
    assert own == sorted(own)
    assert len(rows) == 1 + len(ev.NOISE_CURVE)


@pytest.mark.long
@pytest.mark.slow
def test_shipped_weights_are_the_average_in_half_precision(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "toy", SPEC)
    config = Config(steps=4, tokens=40, rooms=2, clips=1, frames=4)
    from support.training_toy import PHASES

    trainer = Trainer(config, torch.device("cpu"), network=build_network("toy"), phases=PHASES)
    trainer.advance()
    trainer.save(tmp_path / "run")
    export_main(["--run", str(tmp_path / "run"), "--to", str(tmp_path / "out"), "--model", "toy"])
    loaded = build_network("toy")
    load_checkpoint(loaded, tmp_path / "out")
    average = averaged_network(tmp_path / "run", "toy")
    for name, value in loaded.state_dict().items():
        assert torch.allclose(value, average.state_dict()[name], rtol=1e-3, atol=1e-6), name
    first = "cam_dec.fc_t.bias"
    trainer.ema[first] += 1.0
    trainer.save(tmp_path / "run")
    words = ["--to", str(tmp_path / "mean"), "--mean-with", str(tmp_path / "out")]
    export_main(["--run", str(tmp_path / "run"), "--model", "toy", *words])
    load_checkpoint(loaded, tmp_path / "mean")
    assert torch.allclose(loaded.state_dict()[first], average.state_dict()[first] + 0.5, atol=1e-3)
    trainer.ema["cam_dec.fc_t.bias"][0] = 1e6
    trainer.save(tmp_path / "run")
    with pytest.raises(OverflowError, match="fc_t"):
        averaged_network(tmp_path / "run", "toy")
