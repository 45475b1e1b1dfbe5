"""The page about other packages names topics, parameters and flags that exist."""

import re
from pathlib import Path

import numpy as np
import yaml

from da3_ros.config import NodeConfig
from da3_ros.messages.outputs import topics
from da3_ros.parameter_schema import parameters

PAGE = (Path(__file__).parents[2] / "docs" / "plug_into.md").read_text()


def test_every_topic_of_the_node_exists():
    known = {f"/da3/{name}" for name, _ in topics(["", "front", "left"], [""])}
    # The left side of a remapping is what the other program asks for.
    named = [name for name, left in re.findall(r"(/da3/[\w/]+)(:=)?", PAGE) if not left]
    assert len(set(named)) > 8
    assert set(named) - known == set()


def test_every_parameter_that_is_given_to_the_node_exists():
    known = {p.name: p for p in parameters(NodeConfig())}
    commands = re.findall(r"^ros2 run da3_ros (?:.*\\\n)*.*", PAGE, re.MULTILINE)
    given = [match for c in commands for match in re.findall(r"-p ([\w.]+):=(\S+)", c)]
    given += re.findall(r"`-p ((?:tf|depth)\.\w+):=(\w+)`", PAGE)
    assert {"scale.source", "base_frame", "tf.publish", "depth.size"} <= {n for n, _ in given}
    for name, value in given:
        choices = known[name].choices
        assert not choices or value in choices, name


def test_the_filter_takes_the_pose_and_not_the_velocity_of_the_camera():
    """robot_localization: odomN_config is x y z, roll pitch yaw, then velocities, accelerations.

    In differential mode the flags of the pose become those of a velocity in the child's axes
    (ros_filter.cpp, preparePose, 7d), so that an optical frame needs all six.
    """
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    values = yaml.safe_load(text)["ekf_filter_node"]["ros__parameters"]
    assert values["odom1"] == "/da3/odom"
    flags = np.array(values["odom1_config"])
    assert flags.tolist() == [True] * 6 + [False] * 9
    assert values["odom1_differential"]
    assert values["odom1_pose_use_child_frame"]
    assert len(values["odom0_config"]) == 15
