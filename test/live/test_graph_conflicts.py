"""Warnings about nodes that disturb this one, from a graph of plain data."""

from types import SimpleNamespace

from da3_ros.live.graph_conflicts import LEASE_S, SEEN_S, Conflict, Conflicts, read_conflicts

IMAGE = "sensor_msgs/msg/Image"


class Graph:
    """A node that sees these publishers: topic to (node, namespace, type)."""

    def __init__(self, publishers, nodes=(("da3", "/robot"),)):
        self.publishers, self.nodes = publishers, list(nodes)

    def get_name(self):
        return "da3"

    def get_namespace(self):
        return "/robot"

    def get_node_names_and_namespaces(self):
        return self.nodes

    def count_publishers(self, topic):
        return len(self.publishers.get(topic, ()))

    def get_publishers_info_by_topic(self, topic):
        return [
            SimpleNamespace(node_name=name, node_namespace=space, topic_type=kind)
            for name, space, kind in self.publishers.get(topic, ())
        ]


OWN = ("da3", "/robot", IMAGE)


def texts(graph, outputs=("/robot/da3/pose", "/robot/da3/depth"), images=(("/image", IMAGE),)):
    return [conflict.text for conflict in read_conflicts(graph, outputs, images)]


def test_a_node_alone_has_no_conflicts():
    graph = Graph({"/robot/da3/pose": [OWN], "/image": [("camera", "/", IMAGE)]})
    assert texts(graph) == []


def test_a_second_node_of_this_name_is_named():
    twice = {"/robot/da3/pose": [OWN, OWN]}
    (text,) = texts(Graph(twice, [("da3", "/robot"), ("da3", "/robot"), ("da3", "/other")]))
    assert text.startswith("/robot/da3: another node has this name")
    assert "-r __node:=NAME" in text


def test_a_second_publisher_of_outputs_is_named_once():
    other = ("fake", "/", IMAGE)
    (text,) = texts(Graph({t: [OWN, other] for t in ("/robot/da3/pose", "/robot/da3/depth")}))
    assert text.startswith("/robot/da3/depth: /fake publishes it too and 1 more of this node's")


def test_two_publishers_of_one_image_topic_are_named_after_a_lease():
    two = [("left", "/", IMAGE), ("right", "/", IMAGE)]
    (conflict,) = read_conflicts(Graph({"/image": two}), [], [("/image", IMAGE)])
    assert "/image: /left and /right publish it" in conflict.text
    assert conflict.after_s == LEASE_S
    odd = [("left", "/", IMAGE), ("text", "/", "std_msgs/msg/String")]
    assert texts(Graph({"/image": odd})) == []


def test_a_conflict_is_reported_once_when_it_has_lasted():
    one, conflicts = Conflict("a: b publishes it too"), Conflicts()
    assert conflicts.update([one], 0.0) == []
    assert conflicts.update([one], SEEN_S) == [one.text]
    assert conflicts.update([one], 100.0) == []
    assert conflicts.lasting == (one.text,)
    assert conflicts.update([], 101.0) == []  # gone
    assert conflicts.lasting == ()
    assert conflicts.update([one], 102.0) == []
    assert conflicts.update([one], 102.0 + SEEN_S) == [one.text]
