"""The benchmarks run, at toy size: a script that only a GPU would try out is not ready for one."""

import importlib
import json
from pathlib import Path

import pytest
from support import programs

# By progress, not by the clock: benchmarks take long on a loaded machine.
pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(0)]

ROOT = Path(__file__).parents[2]


def run(script, *arguments, tmp_path):
    out = tmp_path / "out.json"
    done = programs.run(ROOT / "bench" / script, *arguments, "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def test_network_against_the_reference(tmp_path):
    pytest.importorskip("depth_anything_3")
    report, text = run(
        "bench_network.py", "--models", "da3-tiny", "--sizes", "2x84x56", "--repeats", "1",
        "--device", "cpu", tmp_path=tmp_path,
    )  # fmt: skip
    variants = {row["variant"] for row in report["rows"]}
    assert {"reference fp32", "ours fp32", "ours bf16, per new frame"} <= variants
    assert report["machine"]["matmul_tflops"]["fp32"] > 0
    assert report["machine"]["torch"]
    assert all(row["blocks"] == 8 for row in report["rows"])
    assert "ours bf16" in text
    by = {row["variant"]: row for row in report["rows"]}
    alone = by["ours fp32, backbone"]
    peak = report["machine"]["matmul_tflops"]["fp32"]
    assert alone["share_of_peak"] == pytest.approx(alone["backbone_tflops"] / peak)
    assert alone["backbone_tflops"] / by["ours fp32"]["backbone_tflops"] == pytest.approx(
        by["ours fp32"]["median_s"] / alone["median_s"]
    )


def test_whole_calls_are_measured_beside_bare_networks(tmp_path):
    pytest.importorskip("depth_anything_3")
    report, _ = run(
        "bench_network.py", "--models", "da3-tiny", "--sizes", "2x84x56", "--repeats", "1",
        "--device", "cpu", "--precision", "fp32", "--interfaces", tmp_path=tmp_path,
    )  # fmt: skip
    variants = [row["variant"] for row in report["rows"]]
    assert any(variant.startswith("our session") for variant in variants)
    assert "reference interface" in variants


def test_the_whole_node_at_a_rate(tmp_path):
    pytest.importorskip("rclpy")
    report, _ = run(
        "bench_node.py", "--models", "da3-tiny", "--rates", "4", "--seconds", "4", "--way", "2",
        "--backend", "torch", tmp_path=tmp_path,
    )  # fmt: skip
    assert [row["extras"] for row in report["rows"]] == [
        "neither", "refinement", "refinement, dense"
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["backend"] == "torch"
        assert row["windows_per_s"] > 0
        assert row["latency_median_s"] > row["network_s"] > 0
        assert row["received"] > 0
    plain, refined, dense = report["rows"]
    assert refined["placing_s"] > plain["placing_s"]
    assert "frames_corrected" not in plain | refined
    assert dense["frames_corrected"] >= 0


def test_the_references_own_call_stands_beside_the_node(monkeypatch):
    pytest.importorskip("depth_anything_3")
    bench = load_bench_node(monkeypatch)
    monkeypatch.setattr(bench, "CALLS", {"on each window": (3, 1), "in chunks": (4, 2)})
    monkeypatch.setattr(bench, "RES", {"da3-tiny": 56})
    node = [
        {"model": "da3-tiny", "extras": "neither", "windows_per_s": 5.0},
        {"model": "da3-tiny", "extras": "neither", "windows_per_s": 8.0},
        {"model": "da3-tiny", "extras": "refinement", "windows_per_s": 9.0},
        {"model": "da3-small", "extras": "neither", "windows_per_s": 99.0},
        {"model": "da3-tiny", "extras": "neither", "refused": "no"},
    ]
    window, chunk = bench.reference_rows("da3-tiny", node)
    assert (window["views"], window["new"], chunk["views"], chunk["new"]) == (3, 1, 4, 2)
    assert window["image"] == "56x42"
    assert window["new_frames_per_s"] == pytest.approx(1 / window["call_s"])
    assert chunk["new_frames_per_s"] == pytest.approx(2 / chunk["call_s"])
    assert window["times"] == pytest.approx(8 / window["new_frames_per_s"])
    monkeypatch.setattr(bench, "CALLS", {"on each window": (3, 1)})
    (refused,) = bench.reference_rows("no-model", node)
    assert "no-model" in refused["refused"]
    assert "times" not in refused


def load_bench_node(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("bench_node")


def test_both_kinds_of_windows_are_compiled(tmp_path):
    report, _ = run(
        "bench_network.py", "--models", "da3-tiny", "--sizes", "4x28x28", "--repeats", "1",
        "--precision", "bf16", "--compile", "--backend", "eager", "--device",
        "cpu", tmp_path=tmp_path,
    )  # fmt: skip
    variants = {row["variant"] for row in report["rows"]}
    assert {"ours bf16 compiled", "ours bf16 compiled, per new frame"} <= variants


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("budgets", ("--models", "da3-tiny", "--gibs", "0.001", "1")),
        ("windows", ("--model", "da3-tiny", "--sizes", "3")),
        ("windows", ("--model", "da3-tiny", "--sizes", "3", "--unseen")),
    ],
)
def test_sessions(what, arguments, tmp_path):
    report, _ = run(
        "bench_session.py", what, *arguments, "--process-res", "84", "--image", "84x56",
        "--repeats", "1", "--device", "cpu", "--backend", "torch", tmp_path=tmp_path,
    )  # fmt: skip
    rows = report["rows"]
    assert report["machine"]["cores"] >= 1
    assert report["command"].startswith(f"python bench/bench_session.py {what} --model")
    assert len(rows) == (2 if what == "budgets" else 1)
    if what == "budgets":
        assert "raise memory_budget_gb" in rows.pop(0)["refused"]
    assert all(0 < row["peak_gib"] < 1 and row["median_s"] > 0 for row in rows)
    new = 3 if "--unseen" in arguments else 1
    assert all(r["images_per_s"] * r["mean_s"] == pytest.approx(new) for r in rows)


def test_windows_take_turns(tmp_path):
    report, _ = run(
        "bench_windows.py", "--model", "da3-tiny", "--cases", "3/1@84x56", "4/2@56x84",
        "--repeats", "1", tmp_path=tmp_path,
    )  # fmt: skip
    assert [row["window"] for row in report["rows"]] == ["3/1@84x56", "4/2@56x84"]
    assert report["rows"][0]["times_first"] == 1
    assert all(row["frame_s"] > 0 for row in report["rows"])
    assert report["rows"][1]["frame_s"] == report["rows"][1]["window_s"] / 2


def test_messages_go_out_while_a_window_runs(tmp_path):
    report, _ = run(
        "bench_overlap.py", "--model", "da3-tiny", "--process-res", "84", "--window", "3",
        "--frames", "9", "--device", "cpu", "--backend", "torch", "--trace",
        tmp_path / "trace.json", tmp_path=tmp_path,
    )  # fmt: skip
    threads = {row["span"]: row["thread"] for row in report["live"]["spans"]}
    assert {"read image", "prefix", "queue window", "window", "publish"} <= set(threads)
    assert threads["publish"] != threads["window"]
    threads = {row["span"]: row["thread"] for row in report["replay"]["spans"]}
    assert threads["prepare"] != threads["window"]
    assert report["replay"]["frames"] == 9
    assert "traceEvents" in (tmp_path / "trace.json").read_text()


def test_shares_of_a_windows_time_add_up(tmp_path):
    report, _ = run(
        "bench_shares.py", "--sizes", "2x84x56", "--precision", "fp32", "int8", "--device", "cpu",
        tmp_path=tmp_path,
    )  # fmt: skip
    for row in report["rows"]:
        assert {"attention", "matrix products", "convolutions"} <= set(row["shares"])
        assert 0.99 < sum(row["shares"].values()) < 1.01


def test_yardstick_sees_the_same_image(tmp_path):
    pytest.importorskip("transformers", reason="a yardstick only; pip install transformers")
    report, _ = run(
        "bench_yardstick.py", "--process-res", "56", "--repeats", "1", "--images", "8", "--device",
        "cpu", tmp_path=tmp_path,
    )  # fmt: skip
    rows = report["rows"]
    assert len({row["image"] for row in rows}) == 1
    assert rows[0]["times_the_first"] == 1
    assert len(rows) == 4
    for row in rows:
        assert row["extrapolated"]
        assert row["measured_images"] == 8
        assert min(row["load_s"], row["peak_mib"], row["seconds_for_1000"]) > 0


def test_attention_kernels_agree(tmp_path):
    report, _ = run(
        "bench_attention.py", "--device", "cpu", "--models", "da3-tiny", "--sizes", "2x84x56",
        "--repeats", "1", tmp_path=tmp_path,
    )  # fmt: skip
    rows = {(r["precision"], r["what"], r["kernel"]): r for r in report["rows"]}
    assert len(rows) == 2 * 3 * 5
    for (precision, _, kernel), row in rows.items():
        if kernel in ("efficient", "cudnn"):
            assert row["refused"]  # there are none on a CPU
        else:
            assert row["error"] < (1e-5 if precision == "fp32" else 0.05)
            assert row["median_ms"] > 0
    assert rows["bf16", "window", "math"]["error"] > 1e-5


def test_pieces_change_memory_and_not_the_result(tmp_path):
    report, _ = run(
        "bench_pieces.py", "--device", "cpu", "--models", "da3-tiny", "--sizes", "4x168x126",
        "--repeats", "1", tmp_path=tmp_path,
    )  # fmt: skip
    rows = {row["pieces"]: row for row in report["rows"]}
    assert {"head 1", "head 2", "blocks 1", "blocks 2", "tokens 1024"} <= set(rows)
    assert not {"head 4", "head 8", "blocks 4"} & set(rows)  # the whole window
    assert rows["nothing in pieces"]["overhead"] == 0
    assert all(row["difference"] < 1e-4 for row in rows.values())
    assert rows["head 1"]["peak_mib"] < rows["nothing in pieces"]["peak_mib"]


def test_a_replay_says_what_its_stages_take(tmp_path):
    report, _ = run(
        "bench_replay.py", "--device", "cpu", "--backend", "torch", "--size", "168x126",
        "--frames", "8", "--repeats", "1", tmp_path=tmp_path,
    )  # fmt: skip
    alone, refined, dense = report["rows"]
    assert alone["windows"] == refined["windows"] == 8
    assert alone["refined"] == alone["refinement_ms"] == refined["dense_ms"] == 0
    assert refined["refined"] > 4
    assert refined["network_ms"] + refined["refinement_ms"] <= refined["window_ms"]
    assert dense["keyframes"] > 0
    assert dense["dense_ms"] > 0


@pytest.mark.processor
def test_fewer_bits_stay_close_to_exact_fp32(tmp_path):
    report, _ = run("bench_precision.py", "--rooms", "1", tmp_path=tmp_path)
    rows = {row["mixed_precision"]: row for row in report["rows"]}
    assert rows["off"]["depth_p95_percent"] < 0.001
    assert rows["bfloat16"]["depth_median_percent"] < rows["int8"]["depth_median_percent"] < 1
    assert all(row["abs_rel"] < 0.3 for row in rows.values())


def test_alignment_beats_obvious_ways_and_nears_the_oracle(tmp_path):
    report, _ = run(
        "bench_alignment.py", "drift", "--frames", "60", "--walks", "straight",
        "--cases", "all", "outliers 40 %", tmp_path=tmp_path,
    )  # fmt: skip
    for case in ("all", "outliers 40 %"):
        rows = [row for row in report["rows"] if row["noise"] == case]
        place = {row["method"]: row["place_m"] for row in rows}
        turn = {row["method"]: row["turn_deg"] for row in rows}
        assert place["ours"] < 1.5 * place["oracle"]
        assert turn["ours"] < 1.5 * turn["oracle"]
        for other in ("least squares", "chain", "centres"):
            assert place["ours"] < place[other]
            assert turn["ours"] < turn[other]


def test_gaussians_equal_the_reference(tmp_path):
    pytest.importorskip("e3nn")
    report, _ = run("bench_gaussians.py", "--short", "--size", "56", "42", tmp_path=tmp_path)
    assert max(report["rows"][0]["errors"].values()) < 1e-4
    assert report["rows"][0]["cost"]["ratio"] > 0


def test_keyframes_lower_the_drift_of_windows_of_equal_size(tmp_path):
    report, _ = run(
        "bench_alignment.py", "keyframes", "--frames", "100", "--walks", "spot", tmp_path=tmp_path
    )
    by_count = {row["keyframes"]: row for row in report["rows"]}
    assert by_count[2]["place_m"] < by_count[0]["place_m"]
    assert by_count[2]["turn_deg"] < 0.7 * by_count[0]["turn_deg"]


def test_cost_of_a_join(tmp_path):
    report, _ = run("bench_alignment.py", "cost", "--frames", "14", tmp_path=tmp_path)
    assert all(row["median_ms"] > 0 for row in report["rows"])


def test_what_stored_keyframes_cost(tmp_path):
    report, _ = run(
        "bench_keyframes.py", "--frames", "4", "--process-res", "112", "--camera", "160", "120",
        "--rate", "100", tmp_path=tmp_path,
    )  # fmt: skip
    assert report["keyframes"] == 4
    assert report["kB per keyframe"] > 1


def test_what_the_map_and_its_exports_cost(tmp_path):
    report, text = run(
        "bench_map.py", "--points", "20000", "--keyframes", "4", "--jobs", "colmap", "ply:0.5",
        tmp_path=tmp_path,
    )  # fmt: skip
    assert report["growth"]["points"] > 100_000
    assert [row["job"] for row in report["exports"]] == ["colmap", "ply:0.5"]
    assert all(row["file_mb"] > 0 for row in report["exports"])
    assert "last: ratio" in text


def test_cost_of_loops_by_earlier_submaps(tmp_path):
    report, _ = run("bench_growth.py", "filled", "--filled", "4", "8", tmp_path=tmp_path)
    assert [row["submaps"] for row in report["rows"]] == [4, 8]
    assert all(row["mib"] > 0 for row in report["rows"])


def test_surfaces_and_dynamic_points_are_compared_with_the_room(tmp_path):
    pytest.importorskip("skimage")
    report, _ = run(
        "bench_surface.py", "rooms", "movers", "--walks", "strafe", "--frames", "20", "--rooms",
        "1", "--size", "168x126", "--process-res", "168", "--voxel", "0.06", "--backend", "torch",
        tmp_path=tmp_path,
    )  # fmt: skip
    ours = report["rooms"][0]
    assert ours["by"] == "ours"
    assert ours["chamfer_voxels"] < 1.5
    assert ours["covered"] > 0.9
    assert [row["what"] for row in report["movers"]] == ["map", "export", "surface"]
    for row in report["movers"]:
        assert row["ghosts_after"] <= row["ghosts_before"]
        assert row["room_lost"] < 0.01


def dense(table, *arguments, tmp_path):
    return run("bench_dense.py", table, "--quick", *arguments, tmp_path=tmp_path)[0]


def test_measured_depth_of_a_room_off_and_on(tmp_path):
    pytest.importorskip("skimage")
    scenes = tmp_path / "scenes"
    first = dense("rooms", "--keep", scenes, tmp_path=tmp_path)
    assert [path.name for path in scenes.iterdir()] == ["42-strafe"]
    again = dense("rooms", "--keep", scenes, tmp_path=tmp_path)  # only measured again
    (row,) = first["rows"]
    assert row["share"] > 0.2
    assert row["measured_on"] < row["measured_off"]
    assert row["cloud_median_m_on"] < row["cloud_median_m_off"]
    assert row["absrel_on"] == again["rows"][0]["absrel_on"]


@pytest.mark.slow
def test_faults_do_not_spoil_depth(tmp_path):
    for row in dense("faults", tmp_path=tmp_path)["table"]:
        assert row["absrel_on"] < 1.1 * row["absrel_off"]


def test_recorded_depth_is_registered_where_edges_agree(recordings, tmp_path):
    report = dense(
        "kitchen", "--folder", recordings / "redkitchen_24", "--focals", "560", tmp_path=tmp_path
    )
    assert report["table"]["best_offset_by_edges_m"] == 0.025  # of the two that are tried
    right, wrong, *others = report["rows"]
    assert [row["focal_px"] for row in report["rows"]] == [525, 525, 560, 560]
    assert others[0]["edge_agreement"] > others[1]["edge_agreement"]  # pixels stay what they are
    assert right["edge_agreement"] > 1.5 > 1.1 > wrong["edge_agreement"]
    assert 0 < right["absrel_off"] < 1


def test_a_car_is_measured_beside_sgbm(recordings, tmp_path):
    report = dense("kitti", "--folder", recordings / "kitti_stereo_10", tmp_path=tmp_path)
    assert [row["unit"] for row in report["table"]] == ["way", "fitted"]
    for row in report["rows"]:
        assert row["share_sgbm"] > 0.5
        assert row["warp_sgbm"] < row["warp_off"]  # grey levels


def test_the_plane_sweep_beside_sgbm_on_an_exact_pair(tmp_path):
    by = {row["by"]: row for row in dense("rectified", tmp_path=tmp_path)["table"]}
    assert list(by) == ["guess", "sgbm", "sweep 1", "sweep 2"]
    assert by["sweep 2"]["median"] < by["sgbm"]["median"] < by["guess"]["median"]


TINY_ROOM = ("--rooms", "1", "--size", "112x84", "--process-res", "112", "--backend", "torch")


def test_faults_do_not_spoil_what_refinement_gains(tmp_path):
    report, _ = run(
        "bench_refinement.py", "faults", "--walks", "strafe", "--frames", "8", "--networks",
        "truth", "--faults", "none", "hand as noise", "mover", "10 % wrong matches", *TINY_ROOM,
        tmp_path=tmp_path,
    )  # fmt: skip
    table = {(row["fault"], row["refined"]): row for row in report["table"]}
    for fault in ("none", "10 % wrong matches"):
        assert table[fault, True]["rotation_deg"] < table[fault, False]["rotation_deg"] / 2
        assert "ate_m" not in table[fault, True]["worse"]
        assert table[fault, "ratio"]["ate_m"] > 2
    clean, hand, mixed = (
        table[fault, True]["ate_m"] for fault in ("none", "hand as noise", "10 % wrong matches")
    )
    assert len({clean, hand, mixed}) == 3


def test_focal_lengths_are_compared_with_the_truth(tmp_path):
    report, _ = run(
        "bench_refinement.py", "focal", "--walks", "strafe", "--frames", "6", "--networks",
        "truth", "--factors", "1.1", *TINY_ROOM, tmp_path=tmp_path,
    )  # fmt: skip
    off, on = report["rows"]
    assert off["focal_percent"] == pytest.approx(10)
    assert not off["determined"]
    assert on["windows_refined"] == 5
    assert on["focal_percent"] == pytest.approx(10) or on["determined"]
    assert report["table"][0]["off_percent"] == pytest.approx(10)


def test_detectors_are_judged_by_true_depth(tmp_path):
    report, _ = run(
        "bench_refinement.py", "detectors", "--walks", "strafe", "--frames", "4", *TINY_ROOM,
        tmp_path=tmp_path,
    )  # fmt: skip
    found = {(r["detector"], r["matcher"], r["gap"]): r for r in report["table"]}
    ours = found["SIFT, spread (ours)", "ours", 1]
    assert ours["right_share"] > 0.7
    assert ours["error_px"] < 0.5
    assert ours["right_share"] > found["SIFT, spread (ours)", "cross check", 1]["right_share"]
    assert {"ORB", "GFTT + KLT", "GFTT + SIFT"} <= {detector for detector, _, _ in found}


def test_stereo_is_refined(recordings, tmp_path):
    (tmp_path / "kitti_stereo_10").symlink_to(recordings / "kitti_stereo_10")
    report, text = run(
        "bench_refinement.py", "recordings", "--data", tmp_path, "--runs", "1", "--networks",
        "truth", "--process-res", "224", "--backend", "torch", tmp_path=tmp_path,
    )  # fmt: skip
    assert "redkitchen_24" not in text
    off, on, ratio = report["table"]
    assert off["windows_refined"] == 0
    assert on["windows_refined"] == 9
    assert ratio["rotation_deg"] > 1.5
    assert ratio["ate_m"] > 1.5


@pytest.mark.parametrize("refine", [False, True])
def test_the_soak_of_keyframes_exports_all_of_the_way(tmp_path, monkeypatch, refine):
    monkeypatch.syspath_prepend(ROOT / "bench")
    import soak_keyframes as soak

    # So little that points leave memory.
    monkeypatch.setitem(soak.SETTINGS, "map.max_points", 60_000)
    monkeypatch.setattr(soak, "STEP_M", 0.2)
    pipeline, found, series = soak.run(120, tmp_path, refine=refine)
    path, took = soak.export(pipeline, tmp_path)
    if not refine:  # with it, such coarse images and steps bend the way
        assert soak.coverage(pipeline, 120, path) == (1.0, [])
    assert found["points"] > 60_000
    assert found["spilled_mb"] > 0
    assert len(series["mb"]) == len(series["ms"]) == soak.SAMPLES
    assert soak.checkpoint(pipeline, tmp_path)["checkpoint_mb"] > 1
    assert took["export_s"] > 0


def test_places_are_looked_for_in_saved_scenes(tmp_path):
    small = ("--rooms", "1", "--walk", "8", "--frames", "3", "--starts", "1", "--others", "1")
    report, text = run("bench_recognition.py", "restarts", *small, tmp_path=tmp_path)
    assert report["summary"]["restarts"] == len(report["rows"]) == 1
    measured, _ = run("bench_recognition.py", "restarts", "--measured", *small, tmp_path=tmp_path)
    assert len(measured["rows"]) == 1
    report, _ = run("bench_recognition.py", "others", *small, tmp_path=tmp_path)
    assert {row["kind"] for row in report["rows"]} == {"other", "look-alike"}
    report, text = run("bench_recognition.py", "cost", "--keyframes", "40", tmp_path=tmp_path)
    assert report["rows"][0]["all"]["median_ms"] > 0
    assert "40" in text


@pytest.mark.parametrize(
    ("what", "options"), [("walks", ("--rooms", "1")), ("others", ("--others", "1"))]
)
def test_scenes_of_short_walks_are_merged(what, options, tmp_path):
    report, _ = run("bench_merge.py", what, "--walk", "9", *options, tmp_path=tmp_path)
    summary = report["summary"]
    assert summary["pairs"] == (2 if what == "walks" else 1)
    assert what == "walks" or summary["joined"] == 0


def test_a_camera_that_sees_nothing(tmp_path):
    report, text = run(
        "bench_blind.py", "truth", "--frames", "12", "--laps", "1", "--starts", "6", "--lengths",
        "2", "--faults", "black", tmp_path=tmp_path,
    )  # fmt: skip
    assert [row["blind"] for row in report["rows"]] == [2]
    assert "fault black" in text


@pytest.mark.parametrize("what", ["twins", "recall"])
def test_loops(what, tmp_path):
    report, _ = run("bench_loops.py", what, "--seeds", "1", "--frames", "60", tmp_path=tmp_path)
    assert len(report["rows"]) == (1 if what == "twins" else 6)


def test_journal_and_sqlite_are_compared(tmp_path):
    report, _ = run(
        "bench_scene_file.py", "--keyframes", "60", "--kills", "1", "--cuts", "4",
        tmp_path=tmp_path,
    )  # fmt: skip
    journal, sqlite = report["rows"]
    assert (journal["kind"], sqlite["kind"]) == ("journal", "sqlite")
    assert journal["open"] == sqlite["open"] == 1.0  # after a kill
    assert journal["missing"] == sqlite["missing"] == 0


def test_real_recordings_without_and_with_refinement(tmp_path, recordings):
    report, _ = run(
        "bench_real.py", "--data", recordings, "--only", "kitti_mono_51", "dashcam_100",
        "--frames", "8", tmp_path=tmp_path,
    )  # fmt: skip
    rows = report["rows"]
    kinds = [(r["data"], r["refined"], r["adjusted"], r["camera_info"]) for r in rows]
    assert kinds == [
        ("kitti_mono_51", False, False, True), ("kitti_mono_51", True, False, True),
        ("kitti_mono_51", True, True, True), ("kitti_mono_51", True, True, False),
        ("dashcam_100", False, False, False), ("dashcam_100", True, False, False),
        ("dashcam_100", True, True, False),
    ]  # fmt: skip
    assert all(bool(r["map_adjustments"]) == r["adjusted"] for r in rows[:4])
    assert rows[1]["ate_m"] < rows[0]["ate_m"] / 10
    assert rows[2]["ate_m"] < rows[0]["ate_m"] / 10
    assert len(rows[1]["local_scale"]) == 10
    assert rows[1]["focal_px"] == pytest.approx([707.1, 707.1], abs=0.1)
    assert rows[3]["focal_px"][0] == pytest.approx(rows[3]["focal_px"][1])


def test_features_ahead(tmp_path):
    report, _ = run(
        "bench_refinement.py", "ahead", "--frames", "10", "--size", "112x84", tmp_path=tmp_path
    )
    (row,) = report["rows"]
    assert row["times"] == pytest.approx(row["off_ms"] / row["on_ms"])
    assert row["on_ms"] > row["wait_ms"]


@pytest.mark.long
@pytest.mark.parametrize("table", ["depth", "scale", "combined"])
def test_range_sensors_in_a_room(tmp_path, table):
    report, _ = run("bench_range.py", table, "--quick", tmp_path=tmp_path)
    if table == "depth":
        (row,) = report["rows"]
        assert row["on_5000"] < row["on_500"] < 1.05 * row["off"]
    elif table == "combined":
        assert len(report["rows"]) == 7
        by = {row["sensor"]: row for row in report["rows"]}
        assert by["odometry"]["metric_from"] < 24
        assert by["range, imu, odometry"]["metric_from"] < 24
    else:
        assert [row["sensor"] for row in report["rows"]] == ["lidar", "rain", "beam"]
        assert abs(report["rows"][0]["way_error"]) < 0.3


def test_plans_for_a_gpu_that_is_not_here(tmp_path):
    report, _ = run(
        "bench_plan.py", "--models", "da3-small", "--gibs", "0.5", "2", "--views", "8",
        tmp_path=tmp_path,
    )  # fmt: skip
    small, many_small, usual, _ = report["rows"]
    assert small["refused"].startswith("da3-small does not fit into 0.50 GiB")
    assert many_small["views"] == many_small["new"] == 300
    assert usual["runs"] == "8 x 504x378 bfloat16"
    assert 1 < usual["predicted_gib"] < 2


def test_planned_memory_stands_beside_measured(tmp_path):
    report, _ = run(
        "bench_memory.py", "--models", "da3-tiny", "--sizes", "84x56", "--views", "3",
        "--backends", "torch", "--precisions", "off", "bfloat16", tmp_path=tmp_path,
    )  # fmt: skip
    rows = report["rows"]
    assert [(row["backend"], row["precision"]) for row in rows] == [
        ("torch", "float32"), ("torch", "bfloat16")
    ]  # fmt: skip
    for row in rows:
        assert (row["size"], row["views"]) == ("84x56", 3)
        assert row["measured_mib"] > 5, "its weights alone are more"
        ratio = row["predicted_mib"] / row["measured_mib"]
        assert row["predicted_to_measured"] == pytest.approx(ratio)


def test_backends_take_turns(tmp_path):
    pytest.importorskip("openvino")
    pytest.importorskip("depth_anything_3")
    report, _ = run(
        "bench_backends.py", "--models", "da3-tiny", "--sizes", "84x56", "--views", "3",
        "--repeats", "2", tmp_path=tmp_path,
    )  # fmt: skip
    rows = {row["variant"]: row for row in report["rows"]}
    assert list(rows) == [
        "reference float32, whole window", "torch float32", "torch bfloat16", "torch int8",
        "openvino float32", "openvino bfloat16",
    ]  # fmt: skip
    base, reference = rows["torch float32"], rows["reference float32, whole window"]
    assert base["times_torch_fp32"] == reference["times_reference"] == 1
    for row in rows.values():
        assert 0 < row["min_s"] <= row["median_s"]
        for name, other in (("times_torch_fp32", base), ("times_reference", reference)):
            assert row[name] == pytest.approx(other["median_s"] / row["median_s"])
    assert all(row["first_window_s"] > row["min_s"] for row in rows.values() if row != reference)


def test_global_poses_hold_a_walk(tmp_path):
    report, _ = run(
        "bench_anchors.py", "truth", "--rooms", "0", "--frames", "60", "--kinds", "none", "tags",
        tmp_path=tmp_path,
    )  # fmt: skip
    none, tags = report["rows"]
    assert (none["come"], tags["come"], tags["used"], tags["wrong"]) == (0, 2, 2, 0)
    assert tags["nees"] > 0
    assert tags["path_m"] < 1


def test_global_poses_give_the_metres_of_a_walk(tmp_path):
    report, _ = run(
        "bench_anchors.py", "truth", "--scale", "global_pose", "--rooms", "0", "--frames", "100",
        "--laps", "0.5", "--kinds", "none", "often", tmp_path=tmp_path,
    )  # fmt: skip
    none, often = report["rows"]
    assert (none["metric_walks"], often["metric_walks"]) == (0, 1)
    assert often["known_s"] < 15
    assert often["way_error"] < 4 * often["scale_sigma"] < 0.3


def test_sources_of_metres_take_turns(tmp_path):
    report, _ = run("bench_metres.py", "--runs", "1", "--frames", "8", tmp_path=tmp_path)
    by = {row["source"]: row for row in report["rows"]}
    assert by["none"]["extra_ms"] == 0
    assert by["range, one beam"]["largest_ms"] >= by["range, one beam"]["ms"] > 0
    assert len(by) == 6
