"""One word per concept: names that were replaced do not come back (docs/architecture.md,
words)."""

import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("da3_ros", "training", "bench", "test", "tools", "examples")
IDENTIFIER = re.compile(r"[^\W\d]\w*")
OLD_SCENES = (  # which have chains and the map under other names
    "test/end_to_end/test_earlier_versions.py", "test/export/test_old_scenes.py",
    "test/support/scene_digest.py",
)  # fmt: skip
# What a name must not contain, what it is called instead, and files in which it means another
# thing.
WORDS = {
    "the frame of the map": (r"world", "map, or room, window, prior", OLD_SCENES),
    "the map as ROS has it": (
        r"(?<![a-z])T_map_(world|optical|odom)(?![a-z])", "T_ros_...", OLD_SCENES
    ),
    "a frame that has no name": (
        r"T_\w+_(ref|vo|scene|segment)$|T_(ref|vo|scene|segment)_", "the frame's name", ()
    ),
    "aligned windows": (
        r"segment", "chain",
        (
            "da3_ros/export/camera_frusta.py", "da3_ros/export/glb.py",  # lines
            "da3_ros/viewer/scene_page.py",  # of viser
            # of a file
            "da3_ros/keyframe_store/array_spill.py", "test/keyframe_store/test_array_spill.py",
            *OLD_SCENES,
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
# Methods of the package that a search cannot tell apart: name what is added, and of what. Fewer
# is better: lower the numbers when you can.
MOST_METHODS = {"add": 51, "of": 25}


@functools.cache
def texts():
    """The Python files of the repository: path below it, and text."""
    files = (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


@functools.cache
def words(path):
    """The words of a file: its identifiers, and those of its comments and strings."""
    return frozenset(IDENTIFIER.findall(texts()[path]))


@functools.cache
def identifiers(path):
    """Line and text of each identifier of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(texts()[path]).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME]


@pytest.mark.parametrize("what", WORDS)
def test_a_replaced_word_does_not_come_back(what):
    pattern, instead, elsewhere = WORDS[what]
    assert set(elsewhere) <= texts().keys()
    replaced = re.compile(pattern).search
    found = [
        f"{path}:{line}: {name}: say {instead}"
        for path in texts()
        if path not in elsewhere and any(map(replaced, words(path)))
        for line, name in identifiers(path)
        if replaced(name)
    ]
    assert found == []


@pytest.mark.parametrize("name", MOST_METHODS)
def test_few_methods_have_a_name_that_says_nothing(name):
    defined = re.compile(rf"^ +def {name}\(", re.MULTILINE)
    package = [text for path, text in texts().items() if path.startswith("da3_ros/")]
    assert sum(len(defined.findall(text)) for text in package) <= MOST_METHODS[name]
