"""Messages when no or not every input arrives. Without ROS."""

from types import SimpleNamespace

import numpy as np
import pytest

from da3_ros.live.missing_input_hints import (
    CAMERA_INFO,
    COMPRESSED,
    IMAGE,
    Awaited,
    GapMeter,
    Graph,
    RemotePublisher,
    WaitingReport,
    discovery_settings,
    profile_file,
    read_graph,
    waiting_text,
)

RAW = Awaited("/image", IMAGE, "image")
JPEG = Awaited("/image/compressed", COMPRESSED, "image")
INFO = Awaited("/camera_info", CAMERA_INFO, "camera_info")
ODOMETRY = "nav_msgs/msg/Odometry"


def graph(**topics):
    """A graph of ``a__b=type`` as /a/b from one driver; a RemotePublisher stands for itself."""
    publishers = {
        "/" + name.replace("__", "/"): [
            kind if isinstance(kind, RemotePublisher) else RemotePublisher("/driver", kind)
        ]
        for name, kind in topics.items()
    }
    return Graph(publishers, 1)


def line(item, on_graph, *others):
    """The message about one topic."""
    lines = waiting_text([item, *others], on_graph).splitlines()
    assert lines[0] == "no message received for 5 s; waiting for"
    return lines[1]


# What is reported


def test_every_awaited_topic_has_a_line_with_type_and_qos():
    lines = waiting_text([RAW, INFO], Graph({}, 1)).splitlines()
    assert len(lines) == 3
    assert f"/image ({IMAGE}, best_effort, volatile): it has no publisher" in lines[1]
    assert f"/camera_info ({CAMERA_INFO}, best_effort, volatile): it has no" in lines[2]


def test_image_of_another_name_gives_the_remap_argument():
    said = line(RAW, graph(camera__image_raw=IMAGE, chatter="std_msgs/msg/String"))
    assert "/camera/image_raw (reliable, from /driver)" in said
    assert said.endswith("--ros-args -r image:=/camera/image_raw")
    assert "chatter" not in said


def test_one_camera_of_several_is_remapped_by_its_own_name():
    said = line(Awaited("/front/image", IMAGE, "front/image"), graph(cam0__image_raw=IMAGE))
    assert said.endswith("-r front/image:=/cam0/image_raw")


def test_likeliest_of_many_images_is_proposed_and_depth_is_not():
    on_graph = graph(a__depth__image=IMAGE, b__image_raw=IMAGE, c__thumbnail=IMAGE, d__debug=IMAGE)
    said = line(RAW, on_graph)
    assert said.endswith("-r image:=/b/image_raw")
    assert "/a/depth/image" not in said  # three are named


def test_compressed_image_only_gives_the_transport():
    said = line(RAW, graph(image__compressed=COMPRESSED))
    assert said.endswith("--ros-args -p image_transport:=compressed")


def test_compressed_image_gives_remap_of_base_and_transport():
    """Compressed image of another name gives remap of the base and transport."""
    said = line(RAW, graph(camera__image_raw__compressed=COMPRESSED))
    assert said.endswith("-r image:=/camera/image_raw -p image_transport:=compressed")


def test_raw_image_only_gives_the_transport_back():
    said = line(JPEG, graph(image=IMAGE))
    assert said.endswith("--ros-args -p image_transport:=raw")


def test_compressed_wanted_and_there_under_another_name():
    said = line(JPEG, graph(cam__image_raw=IMAGE, cam__image_raw__compressed=COMPRESSED))
    assert said.endswith("--ros-args -r image:=/cam/image_raw")


@pytest.mark.parametrize(
    ("item", "arguments"),
    [(JPEG, ""), (RAW, " -p image_transport:=compressed")],
)
def test_compressed_image_without_suffix_is_remapped_in_full(item, arguments):
    said = line(item, graph(jpeg=COMPRESSED))
    assert said.endswith(f"--ros-args -r /image/compressed:=/jpeg{arguments}")


def test_raw_wanted_where_the_very_name_is_compressed():
    said = line(RAW, graph(image=COMPRESSED))
    assert "its type is" in said
    assert said.endswith("-r /image/compressed:=/image -p image_transport:=compressed")


def test_forgotten_namespace_is_named():
    said = line(
        Awaited("/camera/image", IMAGE, "camera/image"), graph(robot1__camera__image=IMAGE)
    )
    assert "-r camera/image:=/robot1/camera/image" in said
    assert said.endswith("(or in its namespace: -r __ns:=/robot1)")


def test_topic_of_another_type_is_named_with_its_publisher():
    said = line(RAW, graph(image="sensor_msgs/msg/PointCloud2"))
    assert "its type is sensor_msgs/msg/PointCloud2 from /driver" in said


def test_similar_name_of_another_type_is_not_proposed():
    said = line(RAW, graph(images="std_msgs/msg/String"))
    assert "/images (std_msgs/msg/String, reliable" in said
    assert "-r image" not in said


def test_wrong_type_under_our_name_points_to_the_right_one():
    said = line(RAW, graph(image="std_msgs/msg/String", camera__image=IMAGE))
    assert "-r image:=/camera/image" in said


@pytest.mark.parametrize(
    ("offered", "item", "words"),
    [
        (
            RemotePublisher("/driver", IMAGE, "best_effort"),
            Awaited("/image", IMAGE, "image", "reliable", "volatile", "image_reliability"),
            "/driver offers best_effort, this node requests reliable. "
            "Set -p image_reliability:=best_effort",
        ),
        (
            RemotePublisher("/driver", IMAGE, "best_effort"),
            Awaited("/image", IMAGE, "image", "reliable"),
            "Have /driver offer reliable",
        ),
        (
            RemotePublisher("/driver", IMAGE, "reliable", "volatile"),
            Awaited("/image", IMAGE, "image", "reliable", "transient_local"),
            "/driver offers volatile, this node requests transient_local. Have /driver",
        ),
    ],
)
def test_incompatible_qos_names_the_side_and_the_policy(offered, item, words):
    said = line(item, graph(image=offered))
    assert "incompatible QoS" in said
    assert words in said


def test_one_fitting_publisher_is_enough():
    publishers = [
        RemotePublisher("/a", IMAGE, "best_effort"),
        RemotePublisher("/b", IMAGE, "reliable"),
    ]
    item = Awaited("/image", IMAGE, "image", "reliable")
    said = line(item, Graph({"/image": publishers}, 2))
    assert "published by /b (reliable) with the right type and QoS, but silent" in said


def test_missing_best_effort_images_name_the_profile():
    """The text names the Fast DDS profile and the process that needs it."""
    said = line(RAW, graph(image=RemotePublisher("/driver", IMAGE, "best_effort")))
    assert "fastdds_images.xml" in said
    assert "driver's process" in said
    assert "fastdds" not in line(RAW, graph(image=IMAGE))


def test_camera_info_beside_the_image_needs_no_remap():
    on_graph = graph(cam__image_raw=IMAGE, cam__camera_info=CAMERA_INFO, x__info=CAMERA_INFO)
    text = waiting_text([RAW, INFO], on_graph)
    assert "/cam/camera_info will be used once the image is /cam/image_raw" in text
    assert "-r camera_info" not in text


def test_camera_info_of_another_name_gives_its_remap():
    said = line(INFO, graph(image=IMAGE, cam__info=CAMERA_INFO))
    assert said.endswith("-r camera_info:=/cam/info")


def test_other_awaited_types_are_found_too():
    said = line(Awaited("/odometry", ODOMETRY, "odometry"), graph(wheel__odom=ODOMETRY, i=IMAGE))
    assert said.endswith("-r odometry:=/wheel/odom")


def test_empty_graph_points_to_domain_and_discovery():
    here = discovery_settings(
        {"ROS_DOMAIN_ID": "7", "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}, "rmw_x"
    )
    said = waiting_text([RAW], Graph(), here)
    assert "ROS_DOMAIN_ID=7, ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST, rmw_x" in said
    assert "No other node" not in waiting_text([RAW], Graph({}, 1), here)


def test_no_domain_set_means_zero():
    assert discovery_settings({}) == "ROS_DOMAIN_ID=0"


# The graph


class FakeNode:
    """The methods that read_graph uses, answering as rclpy does."""

    def get_name(self):
        return "da3"

    def get_namespace(self):
        return "/"

    def get_topic_names_and_types(self):
        return [("/image", [IMAGE]), ("/rosout", ["rcl_interfaces/msg/Log"]), ("/imag", ["x/y/Z"])]

    def get_node_names_and_namespaces(self):
        return [("da3", "/"), ("driver", "/cam"), ("_ros2cli_daemon_0", "/")]

    def get_publishers_info_by_topic(self, topic):
        assert topic != "/rosout"
        qos = SimpleNamespace(
            reliability=SimpleNamespace(name="BEST_EFFORT"),
            durability=SimpleNamespace(name="VOLATILE"),
        )
        kind = dict(self.get_topic_names_and_types())[topic][0]
        return [
            SimpleNamespace(node_name=n, node_namespace=ns, topic_type=kind, qos_profile=qos)
            for n, ns in (("da3", "/"), ("driver", "/cam"))
        ]


def test_graph_is_what_others_publish_of_like_type_or_name():
    seen = read_graph(FakeNode(), [RAW])
    assert seen.publishers == {
        "/image": [RemotePublisher("/cam/driver", IMAGE, "best_effort", "volatile")],
        "/imag": [RemotePublisher("/cam/driver", "x/y/Z", "best_effort", "volatile")],
    }
    assert seen.other_nodes == 1


# When it is reported


def test_report_speaks_after_five_seconds_and_on_a_new_text():
    report = WaitingReport(now_s=100.0)
    said = [report.due(100.0 + t, lambda: "a") for t in (1.0, 4.9, 5.0, 10.0, 60.0)]
    assert said == ["", "", "a", "", ""]
    assert report.due(161.0, lambda: "b") == "b"
    assert report.due(162.0, lambda: "b") == ""


def test_report_asks_for_no_text_while_input_flows():
    report = WaitingReport(now_s=0.0)

    def fail():
        pytest.fail("the graph was asked without need")

    for t in np.arange(0.0, 60.0, 0.5):
        report.received(float(t))
        assert report.due(float(t) + 0.4, fail) == ""


def test_report_speaks_again_when_a_stream_stops():
    report = WaitingReport(now_s=0.0)
    assert report.due(6.0, lambda: "a") == "a"
    for t in np.arange(7.0, 20.0, 0.5):
        report.received(float(t))
    assert report.due(30.0, lambda: "a") == "a"


def test_report_speaks_once_of_a_camera_slower_than_that():
    report = WaitingReport(now_s=0.0)
    said = []
    for t in range(10, 100, 10):
        said.append(report.due(t - 1.0, lambda: "a"))
        report.received(float(t))
    assert said.count("a") == 1


def test_report_begins_anew_at_activation():
    report = WaitingReport(now_s=0.0)
    assert report.due(6.0, lambda: "a") == "a"
    report.restart(10.0)
    assert report.due(14.0, lambda: "a") == ""
    assert report.due(15.0, lambda: "a") == "a"


# Gaps

PERIOD = 33_333_333


def feed(meter, slots, **options):
    """Warnings of frames that come in these slots of a 30 Hz camera."""
    return [
        text
        for slot in slots
        if (text := meter.add(round(slot * PERIOD) + 10**18, 921_600, **options))
    ]


def lossy(share, count, seed=3):
    """Slots of a stream of which this share is lost."""
    kept = np.random.default_rng(seed).random(count) >= share
    return np.flatnonzero(kept)


def meter(**options):
    return GapMeter("/camera/image_raw", "/opt/share/fastdds_images.xml", **options)


def test_complete_stream_with_jitter_has_no_gaps():
    jitter = np.random.default_rng(0).normal(0.0, 0.1, 1000)
    m = meter()
    assert feed(m, np.arange(1000) + jitter) == []
    assert m.missing == 0


@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize("share", [0.06, 0.15, 0.3])
def test_missing_frames_of_a_steady_camera_are_counted(share, jitter):
    m, slots = meter(), lossy(share, 2000)
    warnings = feed(m, slots + np.random.default_rng(0).normal(0.0, jitter, len(slots)))
    lost = 2000 - len(slots)
    assert m.missing == pytest.approx(lost, rel=0.1)
    assert len(warnings) == 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("drifts", [False, True])
def test_jitter_is_no_loss(seed, drifts):
    """30 Hz with a standard deviation of 8 ms: single intervals are longer than 1.5 periods."""
    jitter = np.random.default_rng(seed).normal(0.0, 0.24, 1800)
    m = meter()
    assert feed(m, np.arange(1800) + (np.cumsum(jitter) if drifts else jitter)) == []
    assert m.missing == 0


@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize(("burst", "pause"), [(10, 10), (5, 10), (10, 4), (20, 3), (8, 2.5)])
def test_bursts_with_pauses_lose_nothing(burst, pause, jitter):
    slots = np.concatenate([k * (burst + pause) + np.arange(burst) for k in range(400 // burst)])
    m = meter()
    assert feed(m, slots + np.random.default_rng(0).normal(0.0, jitter, len(slots))) == []
    assert m.missing == 0


def numbered(meter, numbers, publisher=b"a", size=921_600):
    """Warnings of messages with these numbers, with stamps that say nothing."""
    return [t for n in numbers if (t := meter.add(0, size, numbered=(publisher, int(n))))]


@pytest.mark.parametrize("share", [0.06, 0.3, 0.9])
def test_numbers_that_are_left_out_are_lost(share):
    m, numbers = meter(), lossy(share, 2000)
    assert len(numbered(m, numbers)) == 1
    assert m.missing == np.ptp(numbers) + 1 - len(numbers)


def test_numbers_decide_and_not_the_stamps():
    m = meter()
    said = [m.add(round(slot * PERIOD), 921_600, numbered=(b"a", n))
            for n, slot in enumerate(lossy(0.3, 1000))]  # fmt: skip
    assert m.missing == 0
    assert not any(said)


def test_each_publisher_has_its_own_numbers():
    """Also one that begins again, or that was heard before the subscription was made anew."""
    m = meter()
    for n in range(100):
        numbered(m, [n], b"a")
        numbered(m, [1000 + n], b"b")
    numbered(m, range(1, 50), b"a again")
    m.restart()
    numbered(m, range(500, 600), b"b again")
    numbered(m, [5000], b"a")
    assert m.missing == 0
    for n in range(1000):
        numbered(m, [n], str(n).encode())
    assert len(m._numbers) <= 16


def test_small_images_get_no_remedy_for_large_ones():
    (text,) = numbered(meter(), lossy(0.2, 400), size=20_000)
    assert "FASTDDS" not in text
    assert "network loses them, or this computer is too busy" in text


def test_single_losses_are_counted_and_not_worth_a_warning():
    m = meter()
    slots = [i for i in range(1000) if i % 50 != 45]
    assert feed(m, slots) == []
    assert m.missing == 20


def test_warning_names_topic_share_size_cure_and_whose_process():
    m = meter()
    (text,) = feed(m, [i for i in range(300) if i % 10 != 5])
    assert text.startswith("/camera/image_raw: 10 % of the last 100 best-effort images (921600")
    assert "the camera driver), not in this one" in text
    assert "FASTDDS_DEFAULT_PROFILES_FILE=/opt/share/fastdds_images.xml" in text
    for word in ("net.core.rmem_max", "MaxMessageSize", "Zenoh", "reliable"):
        assert word in text


def test_warning_keeps_to_the_middleware_in_use():
    (text,) = feed(meter(middleware="rmw_cyclonedds_cpp"), lossy(0.2, 400))
    assert "MaxMessageSize" in text
    assert "Fast DDS" not in text


def test_reliable_stream_is_counted_and_not_warned_about():
    m = meter()
    assert feed(m, lossy(0.2, 500), best_effort=False) == []
    assert m.missing > 50


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_stream_without_a_period_loses_nothing(spread):
    """Triggered by an encoder, or paced by who computes."""
    gaps, stamp, rng = meter(), 0, np.random.default_rng(0)
    for _ in range(500):
        stamp += int(1e8 * np.exp(rng.normal(0, spread)))
        gaps.add(stamp, 10**6)
    assert gaps.missing == 0


def test_long_intervals_off_the_grid_of_a_steady_camera_are_no_loss():
    """It was triggered later, or its clock was set: a lost image leaves a whole interval."""
    intervals = np.ones(600)
    intervals[9::10] = np.random.default_rng(0).choice([1.56, 2.44], 60)
    m = meter()
    assert feed(m, np.cumsum(intervals)) == []
    assert m.missing == 0


def test_time_jumps_pauses_and_repeated_stamps_are_no_loss():
    m = meter()
    slots = [*range(200), *range(100), *range(5000, 5200), 5199, *range(5200, 5300)]
    assert feed(m, slots) == []
    assert m.missing == 0


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0])
def test_camera_that_changes_its_rate_loses_nothing(factor):
    slots = np.concatenate([np.arange(200.0), 200 + np.arange(300) * factor])
    m = meter()
    assert feed(m, slots) == []
    assert m.share == 0.0
    assert m.missing == 0


# The profile


def test_profile_is_found_installed_or_else_in_the_clone(tmp_path):
    installed = tmp_path / "share" / "da3_ros" / "config" / "fastdds_images.xml"
    clone = profile_file()
    assert clone.endswith("/config/fastdds_images.xml")
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert profile_file(f"/nowhere:{tmp_path}") == str(installed)
    assert profile_file("/nowhere") == clone
