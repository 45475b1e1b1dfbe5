"""Official files load strictly, and every way they can be wrong gives one line with the remedy."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.tiny_networks import tiny_metric_spec, tiny_nested_spec

from da3_ros.network import (
    MODELS,
    CheckpointError,
    build_network,
    initialize_randomly,
    load_checkpoint,
    save_checkpoint,
)
from da3_ros.network.build import network_of
from da3_ros.network.checkpoint import (
    ALIASES,
    aliases,
    check_config,
    find_checkpoint,
    make_config,
    shipped_folder,
)

# SHA-256 of the published config.json files, collected from public lock files.
CONFIG_SHA = {
    "da3-small": "a486e29e82b7ab4a7d4cefc1ea4526cfe2ae438a572c8ca98917cfbcde7447d2",
    "da3-base": "5e34115ebc17bd2d8d43033c5f72e9446ac8833fd61d3fa160b7e67e0bb5b7b5",
    "da3-large": "744dcaf53859490ed92fc6cb98d68d3daf624b8c54533aaf604bdb53f06321f5",
    "da3-giant": "74626a50d6dee2a11820291a4305c1a34aa5adc4f7260908bbdbc9a939ba8e93",
    "da3metric-large": "a336f3e76fe375aaae17a9aed9130c9f2aa061535d317ec57dcb2f1f02e1dd53",
    # Computed from the reference's own table; no lock file was found that holds it.
    "da3mono-large": "649809acdfe99631293430bfb8bcd85620a1bba47bb4e27689bd204c645a4204",
    "da3nested-giant-large": "09adf89474017e717bc05aa86fd3a378708ba8914b036d61874eced328069468",
}
# Bytes of the published weights: they pin every name, shape and the alias metadata.
SMALL_BYTES = 137_248_940


def official_config(name: str) -> str:
    """The published config.json, made from the reference's packaged YAML."""
    pytest.importorskip("depth_anything_3", reason="the reference package holds the YAML")
    from depth_anything_3.cfg import load_config, to_dict_recursive
    from depth_anything_3.registry import MODEL_REGISTRY

    config = to_dict_recursive(load_config(MODEL_REGISTRY[name]))
    return json.dumps({"model_name": name, "config": config}, indent=2)


def tiny_folder(folder: Path, seed: int = 1) -> Path:
    network = build_network("da3-tiny")
    initialize_randomly(network, seed)
    return save_checkpoint(network, folder)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty hub cache, and a machine without network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_in_cache(cache: Path, repo: str, folder: Path) -> None:
    """Lay files out as huggingface_hub does."""
    entry = cache / ("models--" + repo.replace("/", "--"))
    snapshot = entry / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0" * 40)
    for file in folder.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("name", CONFIG_SHA)
def test_published_config_is_accepted(name):
    text = official_config(name)
    assert hashlib.sha256(text.encode()).hexdigest() == CONFIG_SHA[name]
    check_config(MODELS[name], json.loads(text))


@pytest.mark.parametrize("name", [n for n, spec in MODELS.items() if not spec.metric_branch])
def test_numbers_of_a_config_fit_no_model_of_other_sizes(name):
    config = make_config(MODELS[name])
    check_config(MODELS[name], {"model_name": name, "config": config})
    for other in (spec for spec in MODELS.values() if not spec.metric_branch):
        if make_config(other) != config:
            with pytest.raises(CheckpointError, match="belong to another model"):
                check_config(other, {"model_name": other.name, "config": config})


def test_numbers_of_both_parts_of_a_nested_config_are_checked():
    spec = MODELS["da3nested-giant-large"]
    for path in ("anyview.net.alt_start", "metric.head.dim_in"):
        config = make_config(spec)
        part, node, key = path.split(".")
        config[part][node][key] = 7
        with pytest.raises(CheckpointError, match=f"{path} is 7"):
            check_config(spec, {"model_name": spec.name, "config": config})


def test_a_number_that_was_written_as_a_word_is_one():
    config = make_config(MODELS["da3-giant"])
    config["gs_adapter"]["gaussian_scale_min"] = "1e-5"
    check_config(MODELS["da3-giant"], {"model_name": "da3-giant", "config": config})
    config["net"]["alt_start"] = "13"
    with pytest.raises(CheckpointError, match=r"net.alt_start is 13"):
        check_config(MODELS["da3-giant"], {"model_name": "da3-giant", "config": config})


def test_config_of_another_model_names_the_parameter_to_change():
    with pytest.raises(CheckpointError, match="set `model` to da3-base"):
        check_config(MODELS["da3-small"], {"model_name": "da3-base", "config": {}})


def test_config_whose_numbers_disagree_is_refused():
    config = {"model_name": "da3-small", "config": {"net": {"alt_start": 8}}}
    with pytest.raises(CheckpointError, match=r"net.alt_start is 8"):
        check_config(MODELS["da3-small"], config)


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].repo])
def test_names_and_shapes_equal_the_published_files(name, state_dict_lists):
    with torch.device("meta"):
        ours = {f"model.{k}": list(v.shape) for k, v in build_network(name).state_dict().items()}
    published = {
        k: v
        for k, v in state_dict_lists(name).items()
        if k.removeprefix("model.") not in aliases(MODELS[name]) and ".gs_head." not in k
    }
    assert ours == published


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].repo])
def test_number_of_parameters_is_that_of_the_published_files(name, state_dict_lists):
    shapes = {k.removeprefix("model."): v for k, v in state_dict_lists(name).items()}
    stored = [v for k, v in shapes.items() if k not in aliases(MODELS[name])]
    assert MODELS[name].parameters == sum(math.prod(shape) for shape in stored)


@pytest.fixture
def state_dict_lists():
    folder = Path(__file__).parents[3] / "shared" / "docs" / "state_dict"
    if not folder.is_dir():
        pytest.skip("the lists of published tensors are not on this machine")
    return lambda name: json.loads((folder / f"{name}.json").read_text())


def test_saved_small_has_the_published_bytes_and_tensors(tmp_path):
    save_checkpoint(build_network("da3-small"), tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert len(file.keys()) == 437
    # The published header also carries the alias table; only its JSON spelling may differ.
    assert abs((tmp_path / "model.safetensors").stat().st_size - SMALL_BYTES) < 1024


def test_round_trip_restores_every_tensor(tmp_path):
    folder = tiny_folder(tmp_path)
    network = build_network("da3-tiny")
    assert load_checkpoint(network, folder) == folder
    stored = load_file(folder / "model.safetensors")
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, stored[f"model.{name}"]), name


def test_aliases_of_the_shared_norm_are_accepted_if_equal(tmp_path):
    """Aliases of the shared norm are accepted when equal and refused when not."""
    folder = tiny_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    for alias, kept in ALIASES.items():
        weights[f"model.{alias}"] = weights[f"model.{kept}"].clone()
    save_file(weights, folder / "model.safetensors")
    load_checkpoint(build_network("da3-tiny"), folder)
    weights[f"model.{alias}"] += 1
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="differs from"):
        load_checkpoint(build_network("da3-tiny"), folder)


def test_the_gaussian_head_is_left_out_and_logged(tmp_path, caplog):
    folder = tiny_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.gs_head.projects.0.bias"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors")
    network = build_network("da3-tiny")
    with caplog.at_level("INFO"):
        load_checkpoint(network, folder)
    assert torch.equal(network.cam_dec.fc_t.weight, weights["model.cam_dec.fc_t.weight"])
    (line,) = (m for m in caplog.messages if "Gaussian" in m)
    assert "da3-tiny" in line
    assert "1 tensors" in line


def test_nested_round_trip_with_norms_and_gaussian_head(tmp_path, caplog):
    """Nested round trip with repeated norms and a gaussian head."""
    spec = tiny_nested_spec()
    first, second = network_of(spec), network_of(spec)
    initialize_randomly(first, 1)
    folder = save_checkpoint(first, tmp_path)
    weights = load_file(folder / "model.safetensors")
    for alias, kept in aliases(spec).items():
        weights[f"model.{alias}"] = weights[f"model.{kept}"].clone()
    weights["model.da3.gs_head.projects.0.bias"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors")
    with caplog.at_level("INFO"):
        load_checkpoint(second, folder)
    assert any("Gaussian" in m for m in caplog.messages)
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_weights_of_one_monocular_model_do_not_fit_the_other(tmp_path):
    """They have the same tensors: only config.json distinguishes them."""
    metric = tiny_metric_spec()
    network = network_of(metric)
    folder = save_checkpoint(network, tmp_path)
    network.spec = dataclasses.replace(metric, name="da3mono-large")
    with pytest.raises(CheckpointError, match="set `model` to da3metric-large"):
        load_checkpoint(network, folder)


@pytest.mark.parametrize("change", ["missing", "extra", "shape"])
def test_a_file_that_does_not_fit_names_the_tensor(tmp_path, change):
    folder = tiny_folder(tmp_path)
    weights = load_file(folder / "model.safetensors")
    key = "model.cam_dec.fc_t.bias"
    if change == "missing":
        del weights[key]
    elif change == "shape":
        weights[key] = torch.zeros(4)
    else:
        weights["model.cam_dec.more"] = torch.zeros(1)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"cam_dec\.(fc_t\.bias|more).* da3-tiny$") as caught:
        load_checkpoint(build_network("da3-tiny"), folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_truncated_files_give_the_remedy(tmp_path, name):
    folder = tiny_folder(tmp_path)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="download it again"):
        load_checkpoint(build_network("da3-tiny"), folder)


def test_missing_file_is_named(tmp_path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        load_checkpoint(build_network("da3-tiny"), folder)


def test_empty_checkpoint_reads_the_local_hub_cache_only(hub_cache, tmp_path):
    spec = dataclasses.replace(MODELS["da3-tiny"], name="da3-tiny-on-hub", repo="someone/tiny")
    with pytest.raises(
        CheckpointError, match=r"models --get .* `(model: da3-tiny|checkpoint: random)`$"
    ):
        find_checkpoint(spec, "")
    put_in_cache(hub_cache, "someone/tiny", tiny_folder(tmp_path / "files"))
    assert (find_checkpoint(spec, "") / "config.json").is_file()


def test_hub_name_is_found_in_the_cache_without_network(hub_cache, tmp_path):
    put_in_cache(hub_cache, "someone/tiny", tiny_folder(tmp_path / "files"))
    folder = load_checkpoint(build_network("da3-tiny"), "someone/tiny")
    assert hub_cache in folder.parents


def test_hub_name_without_network_or_cache_names_remedies(hub_cache):
    """Hub name without network or cache names the three remedies."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(build_network("da3-small"), "depth-anything/DA3-SMALL")
    message = str(caught.value)
    assert "\n" not in message
    trying = "model: da3-tiny" if shipped_folder("da3-tiny") else "checkpoint: random"
    for remedy in ("da3_ros models --get", "`checkpoint` to a folder", trying):
        assert remedy in message


def test_pickles_are_never_read(tmp_path):
    folder = tiny_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        load_checkpoint(build_network("da3-tiny"), folder)


def test_random_weights_depend_on_the_seed_alone():
    a, b, c = (build_network("da3-tiny") for _ in range(3))
    initialize_randomly(a, 1), initialize_randomly(b, 1), initialize_randomly(c, 2)
    x = torch.zeros(1, 1, 3, 14, 14)
    with torch.inference_mode():
        assert torch.equal(a(x).depth, b(x).depth)
        assert not torch.equal(a(x).depth, c(x).depth)
