"""The package itself: three ways to import it, what it declares, and how it sets itself up."""

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROS = re.compile(
    r"^(rclpy|\w+_msgs|\w+_interfaces|std_srvs|cv_bridge|sensor_msgs_py|tf2_\w+|message_filters|"
    r"ament_\w+|rosidl_\w+|launch|launch_ros|rosbag2_py|ros2\w+|diagnostic_updater)$"
)

# The contract with other programs, as in docs: changing a field changes the type's hash.
INTERFACES = {
    "msg/FramePose": "header std_msgs/Header, camera string, pose geometry_msgs/Pose, "
    "k float64[9], keyframe bool, confidence float32",
    "msg/Window": "header std_msgs/Header, id uint64, frames da3_ros/FramePose[], "
    "new_frames uint32, scale_source string, scale float64, scale_sigma float64, aligned bool, "
    "alignment_rms float32, alignment_inliers float32, loop_closed bool, inference_s float32, "
    "total_s float32",
    "msg/Status": "header std_msgs/Header, state string, model string, license string, "
    "device string, precision string, attention string, degraded string[], window_size uint32, "
    "process_size uint32[2], memory_budget_gb float32, memory_plan_gb float32, "
    "memory_peak_gb float32, frames_received uint64, frames_processed uint64, "
    "drop_causes string[], drop_counts uint64[], input_hz float32, output_hz float32, "
    "latency_median_s float32, latency_p95_s float32, scale_source string, scale float64, "
    "scale_sigma float64, map_points uint64, map_memory_mb float32, last_error string",
    "srv/ExportScene": "path string, format string, voxel_m float32, min_confidence float32, "
    "max_points uint64, crop float32[6], include_cameras bool, ---, success bool, message string, "
    "path string, points uint64, bytes uint64",
    "srv/SceneFile": "path string, ---, success bool, message string",
}


# Messages


def written_fields(text: str) -> str:
    """``name type, ...`` of a .msg or .srv text."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return ", ".join(" ".join(reversed(words)) for words in lines if words)


@pytest.mark.parametrize("name", INTERFACES)
def test_interface_has_exactly_the_promised_fields(name):
    file = next(ROOT.glob(f"{name}.*"))
    assert written_fields(file.read_text()) == INTERFACES[name]


def test_every_interface_file_is_promised_and_generated():
    files = {
        f"{f.parent.name}/{f.name}" for kind in ("msg", "srv") for f in (ROOT / kind).iterdir()
    }
    assert {f.partition(".")[0] for f in files} == set(INTERFACES)
    generated = set(re.findall(r"(?:msg|srv)/\w+\.\w+", (ROOT / "CMakeLists.txt").read_text()))
    assert generated == files


@pytest.mark.parametrize("name", INTERFACES)
def test_every_field_has_a_comment(name):
    lines = next(ROOT.glob(f"{name}.*")).read_text().splitlines()
    fields = [line for line in lines if line and line[0] not in "#-"]
    # `bool success` needs no comment.
    assert [f for f in fields if "#" not in f and f != "bool success"] == []


# Importing


def overlay_path() -> str:
    """The folder on PYTHONPATH that holds the generated messages."""
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if (Path(folder) / "da3_ros" / "msg" / "__init__.py").is_file():
            return folder
    if "AMENT_PREFIX_PATH" in os.environ:
        pytest.fail(
            "ROS is there but our overlay is not: source tools/env.sh or install/setup.bash"
        )
    pytest.skip("no ROS in this shell; `make test` brings it")


def python(code: str, cwd: Path, path: str | None = None) -> list[str]:
    """Lines printed by code in a new interpreter; ``path`` replaces the clone on PYTHONPATH."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [f for f in folders if f and not (Path(f) / "da3_ros").exists()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*([path] if path else []), *rest])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


WHERE = "import {0}; print({0}.__file__)"


@pytest.mark.process
def test_clone_and_overlay_are_one_package():
    code = ";".join(WHERE.format(m) for m in ("da3_ros.types", "da3_ros.msg", "da3_ros.srv"))
    types, msg, srv = python(code, ROOT, overlay_path())
    assert Path(types) == ROOT / "da3_ros" / "types.py"
    assert Path(msg).parents[2] == Path(srv).parents[2] == Path(overlay_path())


@pytest.mark.process
def test_overlay_alone_is_enough_anywhere_else(tmp_path):
    code = ";".join(WHERE.format(m) for m in ("da3_ros.types", "da3_ros.msg"))
    files = python(code, tmp_path, overlay_path())
    assert {Path(f).parents[i] for f, i in zip(files, (1, 2), strict=True)} == {
        Path(overlay_path())
    }


def modules_and_checkpoints() -> list[Path]:
    """Everything in the package's folder that an installation must have, relative to ROOT."""
    package = ROOT / "da3_ros"
    found = (*package.rglob("*.py"), package / "py.typed", *(package / "checkpoints").rglob("*"))
    return [f.relative_to(ROOT) for f in found if f.is_file()]


def documents() -> list[Path]:
    """The pages of docs/ as an installation must have them, for reports."""
    return [Path("da3_ros", "docs", page.name) for page in (ROOT / "docs").glob("*.md")]


def test_overlay_holds_every_module_and_checkpoint_file():
    overlay = Path(overlay_path())
    wanted = [*modules_and_checkpoints(), *documents()]
    missing = [str(f) for f in wanted if not (overlay / f).is_file()]
    assert missing == [], "run make setup"


@pytest.mark.parametrize("name", INTERFACES)
def test_generated_class_has_the_promised_fields(name):
    overlay_path()
    kind, name_only = name.split("/")
    generated = getattr(importlib.import_module(f"da3_ros.{kind}"), name_only)
    parts = [generated] if kind == "msg" else [generated.Request, generated.Response]
    promised = [re.findall(r"(\w+) \S+", part) for part in INTERFACES[name].split("---")]
    assert [list(p.get_fields_and_field_types()) for p in parts] == promised


@pytest.fixture(scope="module")
def pip_target(tmp_path_factory):
    """A folder into which pip has installed the package, from a copy: pip builds in the tree."""
    source = tmp_path_factory.mktemp("source") / "da3_ros"
    ours = ("da3_ros", "docs", "msg", "srv", "setup.py", "pyproject.toml", "README.md")
    source.mkdir()
    for name in ours:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.pyc"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    target = tmp_path_factory.mktemp("target")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, target, source], check=True)
    return target


@pytest.mark.long
@pytest.mark.process
def test_pip_installs_the_core_with_its_message_texts(pip_target, tmp_path):
    (types,) = python(WHERE.format("da3_ros.types"), tmp_path, str(pip_target))
    assert Path(types).parents[1] == pip_target
    for file in (f for kind in ("msg", "srv") for f in (ROOT / kind).iterdir()):
        copy = pip_target / "da3_ros" / "interfaces" / file.parent.name / file.name
        assert copy.read_text() == file.read_text()


@pytest.mark.long
@pytest.mark.process
def test_pip_installs_every_module_and_every_checkpoint_file(pip_target):
    wanted = [*modules_and_checkpoints(), *documents()]
    assert len(documents()) > 20
    assert [str(f) for f in wanted if not (pip_target / f).is_file()] == []


@pytest.mark.process
def test_pip_installs_a_command_that_runs_without_ros(pip_target, tmp_path):
    code = (
        "from importlib.metadata import distribution; import sys;"
        "(e,) = distribution('da3_ros').entry_points.select(group='console_scripts');"
        "main = e.load(); print(e.name); print('rclpy' in sys.modules); main(['--version'])"
    )
    name, with_ros, said = python(code, tmp_path, str(pip_target))
    assert (name, with_ros, said) == ("da3_ros", "False", f"da3_ros {declared_version()}")


# What the code may import, and what the package declares


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or later; of one that has no line
    like an import of ROS, none."""
    found: set[str] = set()
    text = file.read_text()
    if not any(map(ROS.match, re.findall(r"^\s*(?:from|import)\s+(\w+)", text, re.MULTILINE))):
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def manifest() -> ElementTree.Element:
    return ElementTree.parse(ROOT / "package.xml").getroot()


def declared_version() -> str:
    text = (ROOT / "da3_ros" / "__init__.py").read_text()
    return re.search(r'__version__ = "(.+)"', text)[1]


def test_version_is_the_same_everywhere():
    assert manifest().findtext("version") == declared_version()
    assert f"## {declared_version()} " in (ROOT / "CHANGELOG.md").read_text()


def test_manifest_is_of_an_interface_package_of_ament_cmake():
    root = manifest()
    assert (root.tag, root.get("format")) == ("package", "3")
    assert root.findtext("name") == "da3_ros"
    assert root.findtext("export/build_type") == "ament_cmake"
    assert root.findtext("member_of_group") == "rosidl_interface_packages"
    assert root.findtext("license") == "Apache-2.0"


@pytest.mark.slow
def test_every_ros_package_in_use_is_declared():
    declared = {e.text for e in manifest() if e.tag.endswith("depend")}
    used = {n.split(".")[0] for f in (ROOT / "da3_ros").rglob("*.py") for n in imported(f)}
    found = re.findall(r"find_package\((\w+) REQUIRED", (ROOT / "CMakeLists.txt").read_text())
    assert {n for n in used if ROS.match(n)} | set(found) <= declared


def test_installed_executables_start_with_the_paths_python():
    installed = set(re.findall(r"scripts/(\w+)", (ROOT / "CMakeLists.txt").read_text()))
    scripts = {f.name: f for f in (ROOT / "scripts").iterdir() if f.is_file()}
    assert installed == set(scripts)
    for file in scripts.values():
        assert os.access(file, os.X_OK)
        assert file.read_text().startswith("#!/usr/bin/env python3\n")


# Set-up


@pytest.fixture
def set_up(monkeypatch, tmp_path):
    """tools/set_up.py as a module, working on an empty folder."""
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "tools" / "set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("VENV", "UNDERLAY", "INSTALL"):
        monkeypatch.setattr(module, name, tmp_path / name.lower())
    monkeypatch.delenv("ROS_DISTRO", raising=False)
    return module


def test_missing_prerequisites_are_named_in_one_line(set_up, monkeypatch):
    monkeypatch.setattr(set_up.shutil, "which", lambda name: None)
    with pytest.raises(set_up.SetUpError) as error:
        set_up.check_prerequisites()
    assert "apt install g++ make cmake" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_interrupted_step_is_redone_a_finished_one_not(set_up, monkeypatch):
    done = []

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(set_up, "check_prerequisites", lambda: None)
    monkeypatch.setattr(set_up, "make_venv", lambda: set_up.VENV.mkdir(exist_ok=True))
    monkeypatch.setattr(set_up, "install_packages", lambda: done.append("packages"))
    monkeypatch.setattr(set_up, "build_underlay", interrupted)
    monkeypatch.setattr(set_up, "colcon", lambda *_: done.append("colcon"))
    with pytest.raises(KeyboardInterrupt):
        set_up.set_up()
    monkeypatch.setattr(set_up, "build_underlay", lambda: done.append("underlay"))
    for _ in range(2):
        set_up.set_up()
    assert done == ["packages", "underlay", "colcon"]


def test_changed_inputs_repeat_only_what_depends_on_them(set_up, monkeypatch):
    done = []
    monkeypatch.setattr(set_up, "check_prerequisites", lambda: None)
    monkeypatch.setattr(set_up, "make_venv", lambda: None)
    monkeypatch.setattr(set_up, "install_packages", lambda: done.append("packages"))
    monkeypatch.setattr(set_up, "build_underlay", lambda: done.append("underlay"))
    monkeypatch.setattr(set_up, "colcon", lambda *_: done.append("colcon"))
    set_up.set_up()
    monkeypatch.setattr(set_up, "python_and_shared_files", lambda: ["da3_ros/new.py"])
    set_up.set_up()
    assert done == ["packages", "underlay", "colcon", "colcon"]
    monkeypatch.setenv("TORCH_SPEC", "torch==2.4.0")
    set_up.set_up()
    assert done[4:] == ["packages", "underlay", "colcon"]


@pytest.mark.process
def test_sourcing_the_environment_brings_the_command(tmp_path):
    """What the README promises: after `source tools/env.sh`, `da3_ros` works from anywhere."""
    script = f"source '{ROOT}/tools/env.sh' && da3_ros --version"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("da3_ros ")


def test_the_manifest_makes_up_no_address():
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    assert not manifest.findall("url")
    people = manifest.findall("maintainer") + manifest.findall("author")
    assert {p.get("email") for p in people} == {"maintainers@example.com"}
