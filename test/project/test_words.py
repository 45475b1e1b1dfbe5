"""One word per concept: names that were replaced do not come back (docs/architecture.md,
words)."""

import io
import re
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "da3_ros"
# What a name must not contain, what it is called instead, and files in which it means another
# thing.
WORDS = {
    "the frame of the map": (r"world", "map, or room, window, prior", ()),
    "the map as ROS has it": (r"(?<![a-z])T_map_(world|optical|odom)(?![a-z])", "T_ros_...", ()),
    "a frame that has no name": (
        r"T_\w+_ref$|T_ref_|T_(vo|segment)_|T_\w+_(vo|segment)$", "the frame's name", ()
    ),
    "aligned windows": (
        r"segment", "chain",
        (
            "export/camera_frusta.py", "export/glb.py",  # lines
            "viewer/scene_page.py",  # of viser
            "keyframe_store/array_spill.py",  # of a file
        ),
    ),
    "a component of the map": (
        r"(?<![a-z])parts?_(of_scene|of_poses|count|note|of_map)"
        r"|(?<![a-z])(begin|merge|all|by|first|new|scene|joined)_parts?(?![a-z])"
        r"|(Scene|Joined|Map)Parts?(?![a-z])",
        "component", (),
    ),
    "an unconnected component": (
        r"guessed_(place|part)|begin_guessed|only_guesses|parts?_guessed|places?_guessed",
        "unconnected", (),
    ),
    "a pose": (
        r"(?<![a-z])(measured_|forget_|has_|map_|stored_|known_|saved_)places?$"
        r"|(?<![a-z])place_(known|search|hint|of)$|Places?(Hint|Search)|^Places?$|NodePlaces",
        "pose", (),
    ),
    "the frames of one time": (r"(?<![a-z])instants?(?![a-z])|^Instant", "frameset", ()),
    "what moves": (r"(?<!remove_)movers?(?![a-z])|Mover", "dynamic points", ()),
    "where tracks were": (r"(?<![a-z])trails?(?![a-z])|Trails|TrackFilm", "track history", ()),
}  # fmt: skip


def names():
    """Yields path, line and text of each identifier of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield path.relative_to(PACKAGE).as_posix(), token.start[0], token.string


@pytest.fixture(scope="module")
def identifiers():
    return list(names())


@pytest.mark.parametrize("what", WORDS)
def test_a_replaced_word_does_not_come_back(identifiers, what):
    pattern, instead, elsewhere = WORDS[what]
    found = [
        f"{path}:{line}: {name}: say {instead}"
        for path, line, name in identifiers
        if path not in elsewhere and re.search(pattern, name)
    ]
    assert found == []
