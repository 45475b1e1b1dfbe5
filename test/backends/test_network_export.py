"""Exported networks: other runtimes give the package's own numbers, and damage is noticed."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.cases import long_after
from support.tiny_networks import tiny_metric_spec, tiny_nested_spec

pytest.importorskip("openvino", reason="needs OpenVINO: pip install openvino")
pytest.importorskip("onnxscript", reason="needs onnx: pip install onnx onnxscript")

import onnx

from da3_ros.backends import export_example, network_export
from da3_ros.backends.engine_builder import load_network
from da3_ros.backends.export_example import ExportedNetwork, metres_per_unit, reference_view
from da3_ros.backends.network_export import (
    ExportRequest,
    NetworkExportError,
    check_tools,
    export_network,
)
from da3_ros.inference.preprocess import normalize
from da3_ros.network import metric
from da3_ros.network.backbone import STRATEGIES, select_reference
from da3_ros.network.checkpoint import WEIGHTS, shipped_folder
from da3_ros.network.specs import MODELS, PATCH

pytestmark = [pytest.mark.openvino, pytest.mark.slow]

SIZE, VIEWS = (56, 70), 3  # H, W
CHECKPOINT = "" if shipped_folder("da3-tiny") else "random"
# What TensorRT 10.0 reads, of that which could occur in a transformer.
TENSORRT = {
    "Add", "And", "Concat", "Conv", "ConvTranspose", "Div", "Erf", "Exp", "Expand", "Gather",
    "Gemm", "Greater", "Less", "LayerNormalization", "MatMul", "Mul", "Neg", "Pow", "Reciprocal",
    "ReduceL2", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "Split", "Sqrt",
    "Squeeze", "Sub", "Tan", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


# Every kind of layer of da3-tiny, and fewer of each: what is called da3-tiny in the first export.
SHORT = {"blocks": 5, "alt_start": 1, "taps": (1, 2, 3, 4)}


def request_for(form, model="da3-tiny", checkpoint=CHECKPOINT):
    return ExportRequest(model, checkpoint, form, SIZE, VIEWS)


@pytest.fixture(scope="module", params=long_after(0, ["short onnx", "onnx", "openvino"]))
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    *short, form = request.param.split()
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        if short:
            patch.setitem(MODELS, "da3-tiny", dataclasses.replace(MODELS["da3-tiny"], **SHORT))
        given = request_for(form, checkpoint="random" if short else CHECKPOINT)
        lines = export_network(given, folder, steps.append)
        assert "exporting decode" in steps
        assert all(line.startswith("differences from PyTorch in ") for line in lines)
        yield folder


@pytest.fixture
def copied(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "copy")


@pytest.fixture(scope="module")
def tiny(exported):
    """The network that was exported."""
    weights = json.loads((exported / "manifest.json").read_text())["weights"]
    return load_network("da3-tiny", CHECKPOINT if weights["sha256"] else "random")


@pytest.fixture(scope="module")
def pictures():
    """Images uint8 RGB [N, H, W, 3] of which the last ones resemble each other."""
    rng = np.random.default_rng(4)
    base = rng.integers(0, 256, (VIEWS, *SIZE, 3))
    base[2] = 0.8 * base[1] + 0.2 * base[2]
    return base.astype(np.uint8)


def runtimes(folder):
    """Runtimes that are here and read the files of an export."""
    if not (folder / "decode.onnx").exists():
        return ["openvino"]
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return ["openvino"]
    return ["openvino", "onnxruntime"]


def run_example(folder, *words):
    words = [sys.executable, folder / "example.py", *words]
    return subprocess.run(words, cwd="/", capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.parametrize("strategy", long_after(1, ["saddle_balanced", "first", "middle"]))
def test_windows_equal_the_packages_for_every_strategy(exported, tiny, pictures, strategy):
    images = normalize(torch.from_numpy(pictures))
    with torch.inference_mode():
        expected = tiny(images[None], ref_view=strategy)
    for runtime in runtimes(exported):
        found = ExportedNetwork(exported, runtime).window(images.numpy(), strategy)
        depth = found["depth"] / expected.depth[0].numpy() - 1
        assert np.percentile(np.abs(depth), 99) < 1e-5
        for name in ("confidence", "extrinsics", "intrinsics"):
            theirs = getattr(expected, name)[0].numpy()
            np.testing.assert_allclose(found[name], theirs, rtol=1e-4, atol=1e-5)


def test_fixed_tables_change_no_result(tiny, pictures):
    images = normalize(torch.from_numpy(pictures))[None]
    vit = tiny.backbone.pretrained
    with torch.inference_mode():
        expected = tiny(images, ref_view="first")
        vit.fix_tables(SIZE[0] // PATCH, SIZE[1] // PATCH, VIEWS)
        found = tiny(images, ref_view="first")
        vit.forget_tables()
        again = tiny(images[:, :2], ref_view="first")  # another number of views works again
    assert again.depth.shape[1] == 2
    for a, b in zip(found[:4], expected[:4], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_images_are_normalized_as_in_the_package(exported, pictures):
    network = ExportedNetwork(exported, "openvino")
    expected = normalize(torch.from_numpy(pictures)).numpy()
    found = np.stack([network.normalized(image) for image in pictures])
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_the_examples_reference_is_the_packages(strategy, n):
    for seed in range(20):
        c = np.random.default_rng(seed).normal(size=(n, 32)).astype(np.float32) + 0.5
        order = select_reference(torch.from_numpy(c)[None], strategy)
        expected = 0 if order is None else int(order[0, 0])
        found = reference_view(c, strategy)
        if strategy == "saddle_sim_range" and found != expected:
            # The two views that are most alike score the same: rounding decides between them.
            u = c / np.linalg.norm(c, axis=1)[:, None]
            other = u @ u.T - np.eye(n)
            spread = np.ptp(other, axis=1)
            assert spread[found] == pytest.approx(spread[expected], abs=1e-6)
        else:
            assert found == expected


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="unknown strategy"):
        reference_view(np.ones((3, 4), np.float32), "best")


def test_the_examples_scale_is_the_packages():
    rng = np.random.default_rng(1)
    depth, confidence, sky = (rng.uniform(0.1, 1, (2, 20, 30)).astype(np.float32) for _ in "abc")
    metres = depth * 3.7 * rng.uniform(0.9, 1.1, depth.shape).astype(np.float32)
    given = [torch.from_numpy(x)[None] for x in (depth, confidence, metres, sky)]
    expected = float(metric.align_depth(*given).scale)
    assert metres_per_unit(depth, confidence, metres, sky) == pytest.approx(expected, rel=1e-5)
    assert np.isnan(metres_per_unit(depth, confidence, metres, np.ones_like(sky)))


def test_the_manifest_states_shapes_weights_and_conventions(exported):
    text = (exported / "manifest.json").read_text()
    facts = json.loads(text)
    H, W = SIZE
    assert facts["size"] == {"width": W, "height": H}
    assert facts["views"] == VIEWS
    assert facts["reference_view"].startswith("the first of the given order")
    assert (facts["licence"], facts["commercial_use"]) == ("Apache-2.0", True)
    shapes = {o["name"]: o["shape"] for p in facts["parts"].values() for o in p["outputs"]}
    assert shapes["depth"] == shapes["confidence"] == [VIEWS, H, W]
    assert shapes["extrinsics"] == [VIEWS, 3, 4]
    assert shapes["intrinsics"] == [VIEWS, 3, 3]
    assert {f.name for f in exported.iterdir()} - {"manifest.json"} == set(facts["files"])
    if facts["weights"]["sha256"]:
        weights = shipped_folder("da3-tiny") / WEIGHTS
        assert facts["weights"]["sha256"] == export_example.sha256(weights)
    assert {"da3_ros", "torch"} < set(facts["versions"])


def test_no_file_names_this_machine(exported):
    paths = re.compile(rb"site-packages|backends/\w+\.py|/home/|" + str(exported).encode())
    assert [f.name for f in exported.iterdir() if paths.search(f.read_bytes())] == []


def test_tensorrt_has_every_operator(exported):
    if not (exported / "decode.onnx").exists():
        pytest.skip("of ONNX files")
    for name in ("encode", "decode"):
        model = onnx.load(exported / f"{name}.onnx")
        assert [x.version for x in model.opset_import if x.domain == ""] == [18]
        assert {node.op_type for node in model.graph.node} <= TENSORRT
    exact = {n.op_type for n in model.graph.node if n.name.startswith("fp32/")}
    assert {"Exp", "Tan", "MatMul"} <= exact  # the head's end and the camera decoder
    ends = [n.name for n in model.graph.node if set(n.output) & {"depth", "extrinsics"}]
    assert all(name.startswith("fp32/") for name in ends)


@pytest.mark.process
def test_the_example_runs_anywhere_and_agrees(exported):
    for runtime in runtimes(exported):
        done = run_example(exported, runtime)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "the results are PyTorch's"
    assert run_example(exported, "tensorrt").returncode == 2


@pytest.mark.process
def test_a_flipped_byte_of_the_weights_is_noticed(copied):
    file = next(f for f in copied.iterdir() if f.name in ("decode.onnx", "decode.bin"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # the lowest bits of a weight: results hardly change
    file.write_bytes(content)
    done = run_example(copied)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, f"CHANGED FILES: {file.name}")


def test_other_results_than_pytorchs_are_noticed(copied, monkeypatch, capsys):
    with np.load(copied / "golden.npz") as stored:
        golden = dict(stored)
    np.savez(copied / "golden.npz", **golden | {"depth": golden["depth"] * 1.001})
    facts = json.loads((copied / "manifest.json").read_text())
    facts["files"]["golden.npz"] = export_example.sha256(copied / "golden.npz")
    (copied / "manifest.json").write_text(json.dumps(facts))
    monkeypatch.setattr(export_example, "__file__", str(copied / "example.py"))
    monkeypatch.setattr(sys, "argv", ["example.py"])
    assert export_example.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "WRONG RESULTS: decode.depth"


@pytest.mark.long
def test_nested_networks_have_a_part_for_metres_and_large_files(tmp_path, monkeypatch):
    branch = dataclasses.replace(tiny_metric_spec(), blocks=4, alt_start=4, taps=(0, 1, 2, 3))
    spec = dataclasses.replace(
        tiny_nested_spec(), blocks=5, alt_start=1, taps=(1, 2, 3, 4), metric_branch=branch
    )
    monkeypatch.setitem(MODELS, spec.name, spec)
    monkeypatch.setattr(network_export, "LARGEST_FILE", 2_000_000)
    export_network(request_for("onnx", spec.name, "random"), tmp_path, lambda step: None)
    facts = json.loads((tmp_path / "manifest.json").read_text())
    assert list(facts["parts"]) == ["encode", "decode", "image"]
    assert facts["parts"]["image"]["outputs"][0]["meaning"].endswith("pixels / 300")
    assert (facts["views"], facts["commercial_use"]) == (VIEWS, False)
    assert {"decode.onnx", "decode.onnx.data"} < set(facts["files"])
    assert (tmp_path / "decode.onnx").stat().st_size < 1_000_000
    graphs = [onnx.load(tmp_path / f"{name}.onnx").graph for name in facts["parts"]]
    assert {node.op_type for graph in graphs for node in graph.node} <= TENSORRT  # SwiGLU too


def test_files_that_differ_from_pytorch_are_refused(copied):
    with np.load(copied / "golden.npz") as stored:
        golden = dict(stored)
    np.savez(copied / "golden.npz", **golden | {"extrinsics": golden["extrinsics"] + 1e-3})
    form = "onnx" if (copied / "decode.onnx").exists() else "openvino"
    with pytest.raises(
        NetworkExportError, match=r"in openvino .* differ .* decode\.extrinsics by"
    ):
        network_export._checked(copied, form, lambda step: None)


def test_missing_libraries_are_named(monkeypatch):
    real = network_export.find_spec
    monkeypatch.setattr(network_export, "find_spec", lambda n: None if n == "onnx" else real(n))
    with pytest.raises(NetworkExportError, match="needs onnx: `pip install onnx onnxscript`"):
        check_tools("onnx")
    check_tools("openvino")
