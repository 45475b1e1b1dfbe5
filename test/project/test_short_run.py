"""What `make test` must run of everything: from end to end, one test of each kind."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KINDS = {
    "ros/test_node.py": "test_live_without_drops_equals_replay_bit_by_bit",
    "ros/test_several_cameras.py": "test_two_cameras_share_a_window_and_keep_their_names",
    "ros/test_demo.py": "test_demo_ends_with_files_and_errors_against_the_exact_room",
    "replay/test_replay.py": "test_every_frame_has_every_topic_with_its_exact_stamp",
    "replay/test_continued.py": "test_a_killed_replay_goes_on",
    "fleet/test_fleet.py": "test_a_worker_makes_of_a_recording_what_a_replay_makes",
    "cli/test_merge_command.py": "test_the_result_is_viewed_exported_and_merged_again",
    "backends/test_openvino.py": "test_a_walk_runs_on_openvino",
    "backends/test_compiled.py": "test_inductors_encoder_equals_plain_code",
    "backends/test_network_export.py": "test_the_example_runs_anywhere_and_agrees",
    "export/test_export.py": "test_glb_is_upright_and_has_points_cameras_and_path",
    "bench/test_scripts.py": "test_every_script_can_be_imported",
}


@pytest.mark.parametrize("file", KINDS)
def test_one_of_each_kind_is_not_long(file):
    tree = ast.parse((TESTS / file).read_text())
    (test,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == KINDS[file])
    marks = [ast.unparse(decorator) for decorator in test.decorator_list]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks += [ast.unparse(mark) for mark in getattr(node.value, "elts", [node.value])]
    assert "pytest.mark.long" not in marks
