"""Launch files, parameter file and RViz: what can be read from them, and the node started so."""

import ast
import importlib.util
import runpy
import signal
import sys
from pathlib import Path

import pytest
import yaml

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.messages.outputs import FRAME_TOPICS, output_topics
from da3_ros.parameter_schema import flatten, parameters
from da3_ros.ros import launch_helpers
from da3_ros.ros.launch_helpers import PROFILE_VARIABLES, image_profile, interpreter_options

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "da3.yaml"
LAUNCH_FILES = sorted((ROOT / "launch").glob("*.launch.py"))
FORBIDDEN = {"eval", "exec", "compile", "__import__", "open", "system", "popen", "subprocess",
             "urlopen", "urlretrieve", "mkdir", "makedirs", "remove"}  # fmt: skip
LATCHED = {"path", "map/points", "status", "map/occupancy"}
each_launch_file = pytest.mark.parametrize("file", LAUNCH_FILES, ids=lambda f: f.name)


# Parameter file


def test_parameter_file_is_what_the_generator_makes():
    make = runpy.run_path(str(ROOT / "tools" / "write_config.py"))["config_text"]
    assert CONFIG.read_text() == make(), "run: python tools/write_config.py config/da3.yaml"


def file_values():
    document = yaml.safe_load(CONFIG.read_text())
    assert list(document) == ["/**"]
    return flatten(document["/**"]["ros__parameters"])


def test_parameter_file_holds_every_parameter_at_its_default():
    assert list(file_values()) == [p.name for p in parameters(NodeConfig())]
    assert config_from_parameters(file_values(), NodeConfig) == NodeConfig()


# Launch files, as text


def calls(file, name):
    tree = ast.walk(ast.parse(file.read_text()))
    return [n for n in tree if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]


def arguments(file):
    """Declared arguments: name -> keywords as values, or None where they are computed."""
    found = {}
    for call in calls(file, "DeclareLaunchArgument"):
        found[call.args[0].value] = {k.arg: k.value for k in call.keywords}
    return found


def choices_of(given):
    """The choices of an argument that has this source."""
    source = ast.unparse(given["choices"]) if "choices" in given else "[]"
    return eval(source)


def constant(file, name):
    """The value of a constant at the top of a file, with types as their names."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return eval(compile(ast.Expression(node.value), file.name, "eval"))
    raise AssertionError(f"{file.name} has no {name}")


def test_all_launch_files_are_there():
    names = ["da3", "demo", "multi_camera", "replay"]
    assert [f.name.partition(".")[0] for f in LAUNCH_FILES] == names


@each_launch_file
def test_every_argument_has_a_text_and_a_default(file):
    assert arguments(file)
    for name, given in arguments(file).items():
        assert {"description", "default_value"} <= set(given), name
        text = ast.literal_eval(given["description"])
        assert len(text) > 10, name


def nodes_of(file, kind):
    return [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, kind)]


@each_launch_file
def test_every_launch_configuration_in_use_is_declared(file):
    used = [c.args[0] for c in calls(file, "LaunchConfiguration")]
    # All files read all their arguments into `values`.
    used += [n.slice for n in nodes_of(file, ast.Subscript) if ast.unparse(n.value) == "values"]
    names = {n.value for n in used if isinstance(n, ast.Constant)}
    tables = {"demo": "CAMERA", "replay": "PASSED_ON"}
    table = tables.get(file.name.partition(".")[0], "PARAMETERS")
    assert names | set(constant(file, table)) <= set(arguments(file))


@each_launch_file
def test_launch_files_have_no_side_effects(file):
    names = {n.id for n in nodes_of(file, ast.Name)}
    names |= {n.attr for n in nodes_of(file, ast.Attribute)}
    names |= {a.name.split(".")[0] for n in nodes_of(file, ast.Import) for a in n.names}
    assert names & FORBIDDEN == set()


def test_arguments_offer_the_choices_of_their_parameters():
    file = ROOT / "launch" / "da3.launch.py"
    known = {p.name: p for p in parameters(NodeConfig())}
    for name, kind in constant(file, "PARAMETERS").items():
        given = arguments(file)[name]
        assert ast.literal_eval(given["default_value"]) == "", "empty: not given"
        if name == "use_sim_time":
            continue
        assert kind is type(known[name].value), name
        if kind is str:
            allowed = () if known[name].pattern else known[name].choices
            assert choices_of(given) == (["", *allowed] if allowed else []), name


def test_arguments_for_several_cameras_offer_the_parameters():
    file = ROOT / "launch" / "multi_camera.launch.py"
    known = {p.name: p for p in parameters(NodeConfig())}
    for name, (parameter, kind) in constant(file, "PARAMETERS").items():
        given = arguments(file)[name]
        assert ast.literal_eval(given["default_value"]) == "", "empty: not given"
        if name == "use_sim_time":
            continue
        assert kind is type(known[parameter].value), name
        allowed = () if known[parameter].several else known[parameter].choices
        assert choices_of(given) == (["", *allowed] if allowed else []), name
    known = {p.name: p for p in parameters(
        pytest.importorskip("da3_ros.ros.synthetic_camera").CameraConfig())}  # fmt: skip
    (rig,) = [n for n in nodes_of(file, ast.FunctionDef) if n.name == "synthetic_rig"]
    (fixed,) = [n for n in ast.walk(rig) if isinstance(n, ast.Dict)]
    for key, value in zip(fixed.keys, fixed.values, strict=True):
        parameter = known[ast.literal_eval(key)]
        if isinstance(value, ast.Constant):
            assert type(value.value) is type(parameter.value), parameter.name


def test_demo_passes_node_parameters_and_sets_the_cameras():
    camera_config = pytest.importorskip("da3_ros.ros.synthetic_camera").CameraConfig()
    known = {p.name: p for p in parameters(camera_config)}
    demo, node = ROOT / "launch" / "demo.launch.py", ROOT / "launch" / "da3.launch.py"
    for name, kind in constant(demo, "CAMERA").items():
        assert kind is type(known[name].value)
    walks = ast.literal_eval(arguments(demo)["walk"]["choices"])
    assert tuple(walks) == known["walk"].choices
    (update,) = [n for n in nodes_of(demo, ast.Call) if ast.unparse(n.func) == "parameters.update"]
    given = {k.arg: k.value for k in update.keywords}
    answer = given.pop("pace_topic")
    assert ast.unparse(answer) == "ANSWER"
    assert constant(demo, "ANSWER").removeprefix("/da3/") in FRAME_TOPICS
    assert FRAME_TOPICS["depth/camera_info"].type == "sensor_msgs/msg/CameraInfo"
    fixed = {name: ast.literal_eval(value) for name, value in given.items()}
    for name, value in fixed.items():
        assert type(value) is type(known[name].value), name
    assert set(arguments(demo)) - set(constant(demo, "CAMERA")) <= set(arguments(node))


def test_replay_hands_on_the_nodes_arguments_and_choices():
    replay, node = (ROOT / "launch" / f"{name}.launch.py" for name in ("replay", "da3"))
    for name in constant(replay, "PASSED_ON"):
        assert name in arguments(node)
    presets = {f.stem for f in CONFIG.parent.glob("*.yaml")} - {"da3", "nav2_costmap"}
    assert set(launch_helpers.PRESETS) == presets
    several = ROOT / "launch" / "multi_camera.launch.py"
    for file in (node, replay, several):
        choices = arguments(file)["preset"]["choices"]
        assert ast.unparse(choices) == "['', *launch_helpers.PRESETS]"


# RViz


RVIZ = sorted((ROOT / "rviz").glob("*.rviz"))
PLUGINS = {"Image": "sensor_msgs/msg/Image", "PointCloud2": "sensor_msgs/msg/PointCloud2",
           "Path": "nav_msgs/msg/Path", "Odometry": "nav_msgs/msg/Odometry",
           "Map": "nav_msgs/msg/OccupancyGrid"}  # fmt: skip
CAMERAS = ("front", "left")
each_rviz = pytest.mark.parametrize("file", RVIZ, ids=lambda f: f.stem)


def rviz_displays(file):
    return yaml.safe_load(file.read_text())["Visualization Manager"]


def shown_in(file):
    """The topics of a config by name, without /da3/."""
    displays = [d for d in rviz_displays(file)["Displays"] if "Topic" in d]
    return {d["Topic"]["Value"].removeprefix("/da3/"): d for d in displays}


def updated_in(file):
    """The topics of a config that change what other topics have shown."""
    displays = rviz_displays(file)["Displays"]
    return {d["Update Topic"]["Value"] for d in displays if "Update Topic" in d}


def of_node(topic):
    """The row of a topic's name, which may begin with a camera's."""
    camera, _, rest = topic.partition("/")
    name = rest if camera in CAMERAS else topic
    assert name in (FRAME_TOPICS if camera in CAMERAS else output_topics()), topic
    return name, output_topics()[name]


@each_rviz
def test_rviz_shows_existing_topics_with_their_durability(file):
    for topic, display in shown_in(file).items():
        name, row = of_node(topic)
        package, plugin = display["Class"].split("/")
        assert package == "rviz_default_plugins"
        # Cloud lies in Map, and Clearing covers the floor: they are there to be switched on.
        shown = display["Name"] not in ("Cloud", "Clearing")
        assert display["Enabled"] is display["Value"] is shown
        qos = display["Topic"]
        assert row.type == PLUGINS[plugin]
        assert qos["Durability Policy"] == (
            "Transient Local" if name in LATCHED else "Volatile"
        ), topic
        assert qos["Reliability Policy"] == "Reliable", "as the node publishes"
        assert qos["History Policy"] == "Keep Last"


def test_the_launch_file_gives_rviz_the_names_in_the_namespace():
    moved = constant(ROOT / "launch" / "da3.launch.py", "DISPLAYED")
    assert all(absolute == f"/{relative}" for absolute, relative in moved)
    files = [ROOT / "rviz" / f"{name}.rviz" for name in ("da3", "navigation")]
    shown = {f"/da3/{topic}" for file in files for topic in shown_in(file)}
    updates = updated_in(files[1])
    assert updates == {"/da3/map/occupancy_updates"}
    assert shown | updates == {absolute for absolute, _ in moved}
    wanted = "rgb/image depth/image_color confidence/image_color points map/points path odom"
    assert set(wanted.split()) == set(shown_in(files[0]))
    own = {"map/occupancy", "points/obstacles", "points/clearing"}
    assert set(shown_in(files[1])) - set(wanted.split()) == own


def test_several_cameras_are_shown_by_the_names_of_the_launch_file():
    file = ROOT / "launch" / "multi_camera.launch.py"
    assert arguments(file)["cameras"]["default_value"].value == ",".join(CAMERAS)
    found = set(shown_in(ROOT / "rviz" / "several_cameras.rviz"))
    own = constant(file, "DISPLAYED")
    expected = {f"{camera}/{topic}" for camera in CAMERAS for topic in own}
    assert expected | {"front/odom", *constant(file, "OF_SCENE")} == found


@each_rviz
def test_rviz_stands_in_the_map(file):
    manager = rviz_displays(file)
    assert manager["Global Options"]["Fixed Frame"] == NodeConfig().map_frame
    assert {"Grid", "TF"} <= {d["Class"].split("/")[1] for d in manager["Displays"]}
    tools = [t["Class"] for t in manager["Tools"]]
    assert all(t.startswith("rviz_default_plugins/") for t in tools)


def test_a_pose_set_by_hand_goes_to_the_nodes_topic():
    tools = rviz_displays(ROOT / "rviz" / "navigation.rviz")["Tools"]
    (tool,) = [t for t in tools if t["Class"].endswith("/SetInitialPose")]
    assert tool["Topic"]["Value"] == "/initialpose"


# What the launch files share


def test_our_processes_get_our_profile_unless_the_user_has_one():
    ours = str(ROOT / "config" / "fastdds_images.xml")
    new, old = PROFILE_VARIABLES
    assert image_profile({}) == {new: ours}
    assert image_profile({"ROS_DISTRO": "jazzy"}) == {new: ours}
    assert image_profile({"ROS_DISTRO": "humble"}) == {old: ours}
    for name in PROFILE_VARIABLES:
        assert image_profile({name: "/etc/mine.xml"}) == {}


def test_interpreter_with_a_space_in_its_path_stays_one_word():
    assert interpreter_options("") == {}
    assert interpreter_options("/my venv/bin/python") == {"prefix": "'/my venv/bin/python'"}
    assert "~" not in interpreter_options("~/venv/bin/python")["prefix"]


# The node as launch starts it


@pytest.fixture
def ros_testing():
    pytest.importorskip("rclpy", reason="needs ROS 2: source tools/env.sh or a ROS set-up")
    from support import ros_testing

    return ros_testing


def parameters_of(rt, node, name, names):
    from rcl_interfaces.srv import GetParameters
    from rclpy.parameter import parameter_value_to_python

    client = node.create_client(GetParameters, f"{name}/get_parameters")
    assert rt.spin_until(node, client.service_is_ready)
    future = client.call_async(GetParameters.Request(names=names))
    assert rt.spin_until(node, future.done)
    return dict(zip(names, map(parameter_value_to_python, future.result().values), strict=True))


@pytest.mark.process
def test_node_is_active_on_the_file_and_parameters_win(ros_testing):
    rt = ros_testing
    domain = rt.domain()
    single = ("model:=da3-tiny", "checkpoint:=random", "process_res:=140", "backend:=torch")
    command = ["--params-file", str(CONFIG), *(part for p in single for part in ("-p", p))]
    environment = rt.environment(domain)
    with (
        rt.start("da3_ros.ros.node", *command, env=environment) as process,
        rt.session(domain) as node,
    ):
        status = rt.collect(node, "da3_ros/msg/Status", "/da3/status", rt.LATCHED)
        active = rt.spin_until(node, lambda: status and status[-1].state == "active", 60)
        assert active, process.output()
        assert status[-1].model == "da3-tiny"
        names = [p.name for p in parameters(NodeConfig())]
        values = parameters_of(rt, node, "/da3", names)
        assert process.stop(signal.SIGINT, timeout_s=20.0) == 0
    expected = file_values() | {
        "model": "da3-tiny", "checkpoint": "random", "process_res": 140, "backend": "torch",
    }  # fmt: skip
    values = {n: list(v) if hasattr(v, "tolist") else v for n, v in values.items()}
    # ROS knows no type of an empty list in a file.
    lists = {p.name for p in parameters(NodeConfig()) if p.items is not None}
    values.update({n: [] for n in lists if values[n] is None})
    assert values == expected


@pytest.mark.process
@pytest.mark.parametrize("users", ["/**", "/da3", "da3", "/**/da3"])
def test_full_name_behind_a_file_wins(users, ros_testing, tmp_path):
    """What the launch file relies on: rclpy's order of values, and names without autostart."""
    rclpy = pytest.importorskip("rclpy")
    file = tmp_path / "users.yaml"
    section = "{}:\n  ros__parameters: {{model: {}}}\n"
    # A section for all nodes, then one for ours: there `-p` alone loses.
    file.write_text("/**:\n  ros__parameters: {device: cpu}\n"
                    + (section.format(users, "file") if users != "/**" else ""))  # fmt: skip
    ours = tmp_path / "ours.yaml"
    ours.write_text(section.format("/da3", "launch"))
    context = rclpy.Context()
    rclpy.init(
        args=["--ros-args", "--params-file", str(file), "--params-file", str(ours)],
        context=context,
        domain_id=ros_testing.domain(),
    )
    node = rclpy.create_node("da3", context=context)
    try:
        assert node.declare_parameter("model", "default").value == "launch"
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)


# With launch_ros


@pytest.fixture
def launch_file():
    """A launch file as a module; skips where there is no launch_ros or the overlay lacks it."""
    pytest.importorskip("launch_ros", reason="needs a ROS with launch_ros")
    share = pytest.importorskip("ament_index_python.packages").get_package_share_directory
    if not (Path(share("da3_ros")) / "config" / "da3.yaml").is_file():
        pytest.fail("the overlay is older than the launch files: run make setup")

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / "launch" / f"{name}.launch.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def command_of(module, **given):
    """Command lines of the processes of a launch file, by executable."""
    from launch.actions import ExecuteProcess
    from launch.utilities import perform_substitutions
    from launch_ros.actions import Node

    from launch import LaunchContext

    context = LaunchContext()
    context.launch_configurations.update(given)
    description = module.generate_launch_description()
    commands, waiting = {}, list(description.entities)
    while waiting:
        entity = waiting.pop(0)
        if isinstance(entity, Node):
            # As Node.execute does before it starts the process.
            entity._perform_substitutions(context)
            context.extend_locals({"ros_specific_arguments": {
                "name": "__node:=" + entity.node_name.rpartition("/")[2],
                "ns": f"__ns:={entity.expanded_node_namespace}",
            }})  # fmt: skip
            executable = entity.node_executable
            commands[executable] = (
                [perform_substitutions(context, part) for part in entity.cmd[1:]], entity
            )  # fmt: skip
        elif isinstance(entity, ExecuteProcess):
            words = [perform_substitutions(context, part) for part in entity.cmd]
            commands[words[0]] = (words, entity)
        else:
            waiting = list(entity.visit(context) or []) + waiting
    return commands


def after(words, flag):
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]


@each_launch_file
def test_listing_shows_every_argument(file, launch_file):
    module = launch_file(file.name.partition(".")[0])
    listed = {a.name: a for a in module.generate_launch_description().get_launch_arguments()}
    assert set(arguments(file)) <= set(listed)
    assert all(a.description and a.default_value is not None for a in listed.values())


def test_nothing_given_means_the_file_alone(launch_file):
    (words, _) = command_of(launch_file("da3"))["da3_node"]
    assert [Path(p).name for p in after(words, "--params-file")] == ["da3.yaml"]
    assert after(words, "-p") == []
    assert sorted(after(words, "-r")) == ["__node:=da3", "__ns:=/"]
    assert after(words, "--log-level") == ["info"]


def test_given_values_come_behind_the_file_in_full_names(launch_file):
    given = {
        "namespace": "front", "model": "da3-tiny", "checkpoint": "123", "autostart": "False",
        "process_res": "140", "image_topic": "/cam/image", "use_sim_time": "true",
        "python": sys.executable, "rviz": "true",
    }  # fmt: skip
    commands = command_of(launch_file("da3"), **given)
    words, _ = commands["da3_node"]
    file, ours = after(words, "--params-file")
    assert Path(file).name == "da3.yaml"
    assert yaml.safe_load(Path(ours).read_text()) == {"/front/da3": {"ros__parameters": {
        "model": "da3-tiny", "checkpoint": "123", "autostart": False, "process_res": 140,
        "use_sim_time": True,
    }}}  # fmt: skip
    assert "image:=/cam/image" in after(words, "-r")
    assert not any(r.startswith("camera_info:=") for r in after(words, "-r"))
    words, _ = commands["rviz2"]
    assert "/da3/points:=da3/points" in after(words, "-r")
    assert "__ns:=/front" in after(words, "-r")


def test_a_parameter_file_that_is_not_there_is_an_error(launch_file):
    with pytest.raises(RuntimeError, match=r"none\.yaml is not a file"):
        command_of(launch_file("da3"), params_file="/none.yaml")


def test_several_cameras_come_by_their_names(launch_file):
    given = {"cameras": "front, left", "image_topic": "/{camera}/rgb", "scale_source": "rig"}
    words, _ = command_of(launch_file("multi_camera"), **given)["da3_node"]
    (text,) = [Path(p).read_text() for p in after(words, "--params-file")[1:]]
    ours = yaml.safe_load(text.replace("!!python/tuple", ""))  # a tag that ROS's parser skips
    assert ours["/da3"]["ros__parameters"] == {"cameras": ["front", "left"], "scale.source": "rig"}
    assert {"front/image:=/front/rgb", "left/image:=/left/rgb"} <= set(after(words, "-r"))
    commands = command_of(launch_file("multi_camera"), synthetic="true")
    assert set(commands) == {"da3_node", "da3_synthetic_camera"}
    words, _ = commands["da3_node"]
    assert "left/image:=left/image_raw" in after(words, "-r")


def files_of(words):
    return [Path(p).name for p in after(words, "--params-file")]


def test_a_preset_overrides_the_defaults_and_no_file_of_the_users(tmp_path, caplog):
    share, mine = ROOT, tmp_path / "mine.yaml"
    mine.write_text("{}")
    default = str(share / "config" / "da3.yaml")
    preset = str(share / "config" / "cpu.yaml")

    def files(name, file):
        return launch_helpers.parameter_files({"preset": name, "params_file": file}, str(share))

    assert files("", default) == [default]
    assert files("cpu", default) == [default, preset]
    assert files("cpu", str(mine)) == [preset, str(mine)]
    with pytest.raises(RuntimeError, match="is not a file"):
        files("cpu", str(tmp_path / "none.yaml"))
    assert not caplog.records
    old = str(share / "config" / "low_memory.yaml")
    assert files("low_memory", default) == [default, old]
    assert files("", old) == [old]
    assert caplog.messages == 2 * ["low_memory is an old preset: take budget_4gb instead"]


@pytest.mark.parametrize("name", ["da3", "multi_camera"])
def test_preset_comes_between_defaults_and_the_users_file(launch_file, tmp_path, name):
    def files(**given):
        words, _ = command_of(launch_file(name), **given)["da3_node"]
        return files_of(words)

    assert files()[0] == "da3.yaml"
    assert files(preset="realtime", model="da3-base")[:2] == ["da3.yaml", "realtime.yaml"]
    mine = tmp_path / "mine.yaml"
    mine.write_text("{}")
    assert files(preset="realtime", params_file=str(mine))[:2] == ["realtime.yaml", "mine.yaml"]


def test_republish_decodes_and_the_node_hears_that(launch_file):
    """Republish decodes beside the original and the node hears that."""
    given = {"republish": "theora", "image_topic": "/cam/image_raw"}
    commands = command_of(launch_file("da3"), **given)
    decoder, _ = commands["republish"]
    assert "in/theora:=/cam/image_raw/theora" in after(decoder, "-r")
    assert "out:=/cam/image_raw_decoded" in after(decoder, "-r")
    words, _ = commands["da3_node"]
    assert "image:=/cam/image_raw_decoded" in after(words, "-r")


def test_replay_plays_on_the_bags_clock_and_the_node_too(launch_file, tmp_path):
    module = launch_file("replay")
    commands = command_of(module, bag=str(tmp_path), image_topic="/cam/image", loop="true")
    player, _ = commands["ros2"]
    assert player[:4] == ["ros2", "bag", "play", str(tmp_path)]
    assert {"--clock", "--loop", "--delay"} <= set(player)
    words, _ = commands["da3_node"]
    ours = yaml.safe_load(Path(after(words, "--params-file")[-1]).read_text())
    assert ours["/da3"]["ros__parameters"] == {"use_sim_time": True}
    assert "image:=/cam/image" in after(words, "-r")
    with pytest.raises(RuntimeError, match="give bag:=FOLDER"):
        command_of(module)


def test_demo_starts_a_camera_and_the_node_that_hears_it(launch_file):
    commands = command_of(launch_file("demo"))
    assert set(commands) == {"da3_node", "da3_synthetic_camera"}
    camera, _ = commands["da3_synthetic_camera"]
    node, _ = commands["da3_node"]
    assert "image_raw:=/demo/image_raw" in after(camera, "-r")
    assert "image:=/demo/image_raw" in after(node, "-r")
    (ours,) = [yaml.safe_load(Path(p).read_text()) for p in after(node, "--params-file")[1:]]
    assert ours["/da3"]["ros__parameters"] == {"model": "da3-tiny", "process_res": 224}
