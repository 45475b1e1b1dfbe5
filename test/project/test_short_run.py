"""What `make test` must run of everything: one test of each subject and, from end to end, of each
kind."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
KINDS = {
    "ros/test_node.py": "test_live_without_drops_equals_replay_bit_by_bit",
    "ros/test_several_cameras.py": "test_two_cameras_share_a_window_and_keep_their_names",
    "ros/test_lifecycle.py": "test_deactivated_it_hears_nothing_and_goes_on_where_it_was",
    "ros/test_services.py": "test_a_saved_scene_is_loaded_shown_and_gone_on_in",
    "ros/test_demo.py": "test_demo_ends_with_files_and_errors_against_the_exact_room",
    "replay/test_replay.py": "test_every_frame_has_every_topic_with_its_exact_stamp",
    "replay/test_continued.py": "test_a_killed_replay_goes_on",
    "fleet/test_fleet.py": "test_a_worker_makes_of_a_recording_what_a_replay_makes",
    "cli/test_merge_command.py": "test_the_result_is_viewed_exported_and_merged_again",
    "network/test_oracle.py": "test_shortened_model_equals_the_reference",
    "pipeline/test_blind.py": "test_a_frame_that_shows_nothing_moves_nothing",
    "backends/test_openvino.py": "test_a_walk_runs_on_openvino",
    "backends/test_compiled.py": "test_inductors_encoder_equals_plain_code",
    "backends/test_network_export.py": "test_the_examples_reference_is_the_packages",
    "export/test_export.py": "test_glb_is_upright_and_has_points_cameras_and_path",
    "bench/test_scripts.py": "test_every_script_can_be_imported",
}
# Files of long tests alone, and what shows in short what they show.
LONG_ALONE = {
    "bench/test_bench_imu.py": "bench/test_scripts.py",
    "bench/test_benchmarks.py": "bench/test_scripts.py",
    "end_to_end/test_real_images.py": "pipeline/test_blind.py",
    "replay/test_replay_sensors.py": "fleet/test_fleet_sensors.py",
    "ros/test_backend_live.py": "backends/test_openvino.py",
    "ros/test_blind_live.py": "pipeline/test_blind.py",
    "ros/test_conflicts.py": "live/test_graph_conflicts.py",
    "ros/test_following_live.py": "pipeline/test_map_following.py",
    "ros/test_grid_live.py": "live/test_grid_feed.py",
    "ros/test_mesh_service.py": "live/test_stored_exports.py",
    "ros/test_ranges_live.py": "replay/test_replay_ranges.py",
    "ros/test_splat_service.py": "splats/test_splat_export.py",
    "ros/test_toys_live.py": "scale_sources/test_source_table.py",
    "scale_sources/test_combined_sensors.py": "scale_sources/test_combined.py",
}


def short_tests(file):
    """Names of the file's tests that are not long."""
    tree, found = ast.parse((TESTS / file).read_text()), []
    of_all = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_all += [ast.unparse(mark) for mark in getattr(node.value, "elts", [node.value])]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = of_all + [ast.unparse(decorator) for decorator in node.decorator_list]
            found += [node.name] * ("pytest.mark.long" not in marks)
    return found


@pytest.mark.parametrize("file", KINDS)
def test_one_of_each_kind_is_not_long(file):
    assert KINDS[file] in short_tests(file)


def test_one_of_each_file_is_not_long():
    files = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    assert {file for file in files if not short_tests(file)} == set(LONG_ALONE)
    assert all(short_tests(other) for other in LONG_ALONE.values())
