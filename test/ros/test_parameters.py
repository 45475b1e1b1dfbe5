"""What a user gives the node but no parameter takes is named, with what may be meant."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from support import ros_testing as rt

from da3_ros.inference import BudgetError
from da3_ros.live.worker import WorkerStoppedError
from da3_ros.ros import parameters
from da3_ros.ros.qos import Endpoints

pytestmark = pytest.mark.process


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


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("odometry", "odometry"),
        ("[odometry, metric_model]", "odometry+metric_model"),
        ("odometry+metric_model", "odometry+metric_model"),
    ],
)
def test_sources_of_metres_are_a_word_or_a_list(node_of, tmp_path, given, value):
    """From the command line, from a file, and set later."""
    from rclpy.parameter import Parameter

    file = tmp_path / "mine.yaml"
    file.write_text(f"/**:\n  ros__parameters: {{scale: {{source: {given}}}}}\n")
    for words in (("-p", f"scale.source:={given}"), ("--params-file", str(file))):
        node = node_of(*words)
        assert parameters.read(node).pipeline.scale.source == value
    later = node_of()
    new = given.strip("[]").split(", ") if given.startswith("[") else given
    assert later.set_parameters([Parameter("scale.source", value=new)])[0].successful
    assert parameters.read(later).pipeline.scale.source == value


@pytest.fixture
def da3():
    """The node itself, unconfigured."""
    from rclpy.parameter import Parameter

    from da3_ros.ros.node import Da3Node

    context = rt.rclpy.Context()
    rt.rclpy.init(context=context, domain_id=rt.domain())
    node = Da3Node(context=context, parameter_overrides=[Parameter("autostart", value=False)])
    yield node
    node.runner = None
    node.destroy_node()
    rt.rclpy.shutdown(context=context)


def change(node, name, value):
    from rclpy.parameter import Parameter

    (answer,) = node.set_parameters([Parameter(name, value=value)])
    return answer


def test_a_closing_node_loads_no_network(da3):
    """Requests that the executor takes after SIGINT, and autostart, must not delay the end."""
    from rclpy import lifecycle

    da3.close()
    before = da3._state_machine.current_state
    da3._start_timer = SimpleNamespace(cancel=lambda: None)
    da3._autostart()
    assert da3._state_machine.current_state == before
    assert da3.trigger_configure() == lifecycle.TransitionCallbackReturn.FAILURE
    assert da3.runner is None


class Broken:
    """The runner of a stream that cannot check a budget."""

    def __init__(self):
        self.stream = self.session = self.memory = self
        self.applied = []

    def check_budget(self, memory_budget_gb):
        raise RuntimeError("nobody foresaw it")

    def reconfigure(self, config, *, budget):
        self.applied.append((config.depth.min_confidence, budget))

    def submit(self, job):
        job()
        return Future()


def test_a_budget_whose_check_breaks_is_refused_and_not_raised(da3):
    da3.runner = Broken()
    answer = change(da3, "memory_budget_gb", 1.0)
    assert not answer.successful
    assert answer.reason.endswith("cannot be checked: RuntimeError: nobody foresaw it")
    assert da3.get_parameter("memory_budget_gb").value == 0.0


def test_a_budget_is_checked_only_when_it_changes(da3):
    da3.runner = Broken()
    assert change(da3, "depth.min_confidence", 1.5).successful
    assert da3.runner.applied == [(1.5, False)]


@pytest.fixture
def runner():
    """A runner without work, and the errors that it logs."""
    from da3_ros.ros.node_log import NodeLog
    from da3_ros.ros.stream_runner import StreamRunner

    logged = []
    log = NodeLog(SimpleNamespace(error=logged.append))
    stream = SimpleNamespace(
        step=lambda: False,
        tick=lambda: False,
        finish_recording=lambda timeout_s: True,
        close=lambda: None,
    )
    runner = StreamRunner(stream, log)
    yield runner, logged
    runner.stop(1.0, 1.0)


def failing(error):
    def job():
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "said"),
    [(BudgetError("nothing fits"), "nothing fits"), (KeyError("x"), "KeyError: 'x'")],
)
def test_a_change_that_the_worker_could_not_apply_is_reported(runner, error, said):
    runner, logged = runner
    done = runner.submit(failing(error))
    assert done.exception(10.0) is error
    runner.stop(10.0, 1.0)  # its callbacks are over then
    assert logged == [said]


def test_errors_of_an_ending_worker_are_not_reported(runner):
    runner, logged = runner
    runner.worker.stop(1.0)
    assert isinstance(runner.submit(lambda: None).exception(10.0), WorkerStoppedError)
    assert not logged
