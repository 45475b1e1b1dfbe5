"""The scripts of benchmarks without running them: what `make test` checks of each."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import same_results
from support import programs

ROOT = Path(__file__).parents[2]


def test_every_script_can_be_imported(tmp_path):
    """One that no test runs is noticed when a name that it uses is gone."""
    scripts = sorted(path.stem for path in (ROOT / "bench").glob("*.py"))
    importing = tmp_path / "importing.py"
    importing.write_text(
        f"import importlib, sys\nsys.path.insert(0, {str(ROOT / 'bench')!r})\n"
        f"for name in {scripts}: importlib.import_module(name)"
    )
    done = programs.run(importing)
    assert done.returncode == 0, done.stderr


def test_large_networks_are_measured_with_all_their_blocks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import bench_network

    seen = {}
    oracle = pytest.importorskip("support.oracle")
    monkeypatch.setattr(oracle, "DepthAnything3", lambda spec: seen.update(spec=spec) or stop())

    def stop():
        raise InterruptedError

    for name, blocks in (("da3-large", 24), ("da3-giant", 40)):
        with pytest.raises(InterruptedError):
            bench_network.networks(name)
        assert seen["spec"].blocks == blocks


@pytest.mark.parametrize(("flags", "amx"), [("sse2 amx_bf16 amx_tile", True), ("amx_tile", False)])
def test_a_result_says_whether_the_processor_has_amx(monkeypatch, flags, amx):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import results_file

    fields = {"flags": flags, "model name": "a processor"}
    monkeypatch.setattr(results_file, "cpu_field", fields.get)
    found = results_file.machine("cpu")
    assert (found["cpu"], found["amx"]) == ("a processor", amx)


def test_latencies_are_of_what_arrived_while_they_were_measured(monkeypatch):
    pytest.importorskip("rclpy")
    monkeypatch.syspath_prepend(ROOT / "bench")
    import bench_latency

    def window(second, inference_s, total_s):
        stamp = SimpleNamespace(sec=second, nanosec=0)
        header = SimpleNamespace(stamp=stamp)
        return SimpleNamespace(header=header, inference_s=inference_s, total_s=total_s)

    listener = SimpleNamespace(
        windows=[window(1, 0.1, 0.3), window(2, 0.2, 0.6), window(4, 0.3, 0.5)],
        # The window of second 4 arrived, its cloud did not; the frame of second 3 had no window.
        arrivals={1_000_000_000: 1_400_000_000, 2_000_000_000: 2_900_000_000,
                  3_000_000_000: 3_500_000_000},
        status=SimpleNamespace(device="cpu"), backend="torch",
        counts=lambda: {"received": 50, "busy": 12, "late": 3, "corrected": 7},
    )  # fmt: skip
    found = bench_latency.figures(
        listener, 2.0, {"received": 30, "busy": 5, "late": 3, "corrected": 3}
    )
    assert found["windows_per_s"] == 1.5
    assert found["latency_median_s"] == pytest.approx(0.5)
    assert found["latency_p95_s"] is None, "too few to tell"
    assert found["network_median_s"] == pytest.approx(0.2)
    assert found["placing_median_s"] == pytest.approx(0.2)
    assert found["rest_median_s"] == pytest.approx((0.1 + 0.3) / 2)
    assert (found["received"], found["drops"]) == (20, {"busy": 7})
    assert found["frames_corrected"] == 4
    listener.arrivals = {}
    with pytest.raises(RuntimeError, match=r"nothing was published in 2 s"):
        bench_latency.figures(listener, 2.0, {})


def test_depth_images_are_seen_through_the_colour_camera(recordings):
    import refinement_recordings

    walk = refinement_recordings.depth_camera(recordings / "redkitchen_24")
    first = walk.truth[0]
    assert len(walk.frames) == len(walk.truth) == 24
    assert first.K[0, 0] == 525
    assert first.depth.shape == walk.frames[0].image.shape[:2]
    # The depth camera has the longer focal length: it does not see the border of the image.
    assert np.isnan(first.depth[:20]).all()
    assert np.isfinite(first.depth).mean() > 0.5


def test_same_results_finds_what_differs(tmp_path):
    for name, off in (("a", 0.0), ("b", 0.0), ("c", 1e-3)):
        folder = tmp_path / name / "case"
        folder.mkdir(parents=True)
        poses = np.zeros((5, 8))
        poses[:, 0] = poses[:, 1] = np.arange(5)
        poses[-1, 2] = off
        np.savetxt(folder / "trajectory.tum", poses)
    assert same_results.compare(tmp_path / "a", tmp_path / "b") == []
    (wrong,) = same_results.compare(tmp_path / "a", tmp_path / "c")
    assert "trajectory.tum" in wrong
    assert same_results.compare(tmp_path / "a", tmp_path / "nothing") == ["case: missing"]
