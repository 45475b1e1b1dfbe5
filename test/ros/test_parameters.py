"""What a user gives the node but no parameter takes is named, with what may be meant."""

import pytest
from ros import ros_testing as rt

from da3_ros.ros import parameters
from da3_ros.ros.qos_events import Endpoints


@pytest.fixture
def node_of():
    """A node that was given these command-line words, with our parameters declared."""
    made = []

    def make(*words):
        context = rt.rclpy.Context()
        rt.rclpy.init(args=["--ros-args", *words], context=context, domain_id=rt.domain())
        node = rt.rclpy.create_node("da3", context=context)
        parameters.declare(node)
        made.append((node, context))
        return node

    yield make
    for node, context in made:
        node.destroy_node()
        rt.rclpy.shutdown(context=context)


def test_unknown_keys_of_a_file_are_named_with_the_nearest(node_of, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("/**:\n  ros__parameters: {window: {sise: 4}, voxel_m: 0.1, q9: 1}\n")
    text = parameters.unknown_keys(node_of("--params-file", str(file)))
    assert "window.sise (did you mean window.size?)" in text
    assert "voxel_m (did you mean map.voxel_m?)" in text
    assert "q9," in text


def test_what_belongs_to_ros_is_not_unknown(node_of):
    words = ("-p", "use_sim_time:=true", "-p", "window.size:=4")
    override = ("-p", "qos_overrides./x.subscription.reliability:=reliable")
    assert parameters.unknown_keys(node_of(*words, *override)) == ""


def test_an_override_of_no_topic_is_named_with_the_nearest(node_of):
    right, wrong = (f"qos_overrides./{x}.publisher.reliability" for x in ("points", "pionts"))
    node = node_of("-p", f"{right}:=reliable", "-p", f"{wrong}:=reliable")
    Endpoints(node).advertise(
        rt.RclpyLibrary().type("std_msgs/msg/Header"), "/points", rt.RELIABLE
    )
    text = parameters.unknown_overrides(node)
    assert f"{wrong} (did you mean {right}?)" in text
    assert text.count("pionts") == 1


def test_every_preset_is_understood(node_of):
    folder = rt.ROOT / "config"
    for file in sorted(folder.glob("*.yaml")):
        node = node_of("--params-file", str(file))
        assert parameters.unknown_keys(node) == "", file.name
        parameters.read(node)


def test_off_needs_no_quotes(node_of):
    node = node_of("-p", "mixed_precision:=off", "-p", "compile:=off")
    config = parameters.read(node).pipeline.inference
    assert (config.mixed_precision, config.compile) == ("off", "off")
