"""Parameters: one place, outside names, ranges, and messages that name the parameter."""

import pytest

from da3_ros.cli import main
from da3_ros.cli.arguments import load_config
from da3_ros.config import NodeConfig, PipelineConfig, config_from_parameters
from da3_ros.network import MODELS
from da3_ros.parameter_schema import ConfigError, parameters


def test_every_parameter_has_a_text_and_an_allowed_default():
    for p in parameters(NodeConfig()):
        assert p.text, p.name
        p.check()


def test_outside_names_reach_the_right_field():
    config = config_from_parameters(
        {"model": "da3-tiny", "window.size": 4, "depth.color_range_m": [1, 5], "max_late_s": 1}
    )
    assert config.inference.model == "da3-tiny"
    assert config.window.size == 4
    assert config.depth.color_range_m == (1.0, 5.0)
    assert config.max_late_s == 1.0
    assert config.window.new == PipelineConfig().window.new


def test_an_empty_list_may_come_as_ros_hands_it_over():
    for empty in ([], None, b""):
        config = config_from_parameters({"cameras": empty, "rig.poses": empty})
        assert config.cameras == ()
        assert config.rig.poses == ()
    config = config_from_parameters(
        {"cameras": ["front", "left"], "rig.poses": [0, 0, 0, 0, 0, 0, 1] * 2}
    )
    assert config.cameras == ("front", "left")
    assert config.rig.poses[6] == 1.0
    assert isinstance(config.rig.poses[6], float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window.sise": 3}, r"unknown parameter 'window.sise' \(did you mean window.size\?\)"),
        ({"voxel_m": 3}, r"unknown parameter 'voxel_m' \(did you mean map.voxel_m\?\)"),
        ({"zz": 3, "modell": "a"}, r"'modell' \(did you mean model\?\), 'zz'"),
        ({"window.size": "8"}, "window.size is '8'"),
        ({"window.size": True}, "window.size is True"),
        ({"depth.edge_filter": 1}, "depth.edge_filter is 1"),
        ({"window.size": 1}, "window.size is 1: must be at least 2"),
        ({"window.size": 4, "window.new": 4}, "window.new is 4, but must be below window.size"),
        (
            {"scale.source": "guess"},
            "scale.source is 'guess': must be one of none, fixed, global_pose, imu, metric_model, "
            "odometry, range, rig",
        ),
        ({"map.voxel_m": float("nan")}, "map.voxel_m is NaN"),
        ({"depth.color_range_m": [5, 1]}, "depth.color_range_m"),
        ({"dense.size": 60}, "dense.size is 60, but must be 0 or at least 112"),
        ({"depth.color_range_m": [5]}, "depth.color_range_m"),
        ({"cameras": "front"}, "cameras is 'front': must be a list of texts"),
        ({"cameras": [1, 2]}, "cameras is [1, 2]: must be a list of texts"),
        ({"cameras": ["front", "front"]}, "cameras is ['front', 'front']: names must be distinct"),
        ({"cameras": ["/front"]}, "cameras contains '/front'"),
        ({"cameras": ["map"]}, "cameras contains 'map'"),
        ({"cameras": ["a", "b"], "window.size": 3}, "2 cameras need at least 4"),
        ({"cameras": ["a", "b"], "window.size": 6, "window.new": 3}, "2 cameras need at least 8"),
        ({"cameras": ["a"], "rig.poses": [0, 0, 0]}, "rig.poses has 3 numbers"),
        ({"cameras": ["a"], "rig.poses": [0] * 7}, "zero quaternion"),
        ({"cameras": ["a"], "rig.poses": [float("inf")] + [0, 0, 0, 0, 0, 1]}, "non-finite"),
        ({"mask": "m/{camara}.png", "cameras": ["a"]}, "{camara} has no meaning, only {camera}"),
        ({"mask": "m/{camera.png", "cameras": ["a"]}, "{camera.png has no meaning"),
        ({"mask": "m/{camera}.png"}, "mask is 'm/{camera}.png', but `cameras` is empty"),
        ({"mask": 3}, "mask is 3: must be a str"),
        ({"scale.source": "rig"}, "needs two or more `cameras`"),
    ],
)
def test_a_bad_value_gives_one_line_that_names_the_parameter(values, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")) as caught:
        config_from_parameters(values)
    assert "\n" not in str(caught.value)


def test_command_line_wins_over_a_ros_parameter_file(tmp_path):
    file = tmp_path / "da3.yaml"
    file.write_text(
        "/**:\n  ros__parameters:\n    model: da3-base\n    window: {size: 6, new: 2}\n"
    )
    config = load_config(file, ["window.new:=3", "checkpoint:=random"])
    pipeline = config.pipeline
    assert pipeline.inference.model == "da3-base"
    assert (pipeline.window.size, pipeline.window.new) == (6, 3)
    assert pipeline.inference.checkpoint == "random"


def test_plain_yaml_serves_too(tmp_path):
    file = tmp_path / "plain.yaml"
    file.write_text("window.size: 5\nmap:\n  voxel_m: 0.1\n")
    assert load_config(file, []).pipeline.map.voxel_m == 0.1


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "just words"])
def test_a_broken_file_is_named(tmp_path, text):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        load_config(file, [])


def test_models_lists_every_model_with_its_licence(capsys):
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    for spec in MODELS.values():
        (row,) = (line for line in out.splitlines() if line.startswith(f"{spec.name} "))
        assert spec.license in row
        assert spec.repo in row
        assert ", ".join(spec.gives) in row
    (small,) = (line for line in out.splitlines() if line.startswith("da3-small "))
    assert "34 M" in small
    assert "137 MB" in small


def test_models_get_of_an_unknown_name_lists_the_known_ones(capsys):
    assert main(["models", "--get", "da4"]) == 2
    assert "da3-small" in capsys.readouterr().err


def test_off_needs_no_quotes():
    settings = load_config(None, ["mixed_precision:=off", "compile:=on"])
    assert settings.pipeline.inference.mixed_precision == "off"
    assert settings.pipeline.inference.compile == "on"
    with pytest.raises(ConfigError, match="must be a str, for example 'auto'"):
        load_config(None, ["mixed_precision:=true"])  # no word of this one
