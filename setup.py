"""`pip install .`: the ROS-free core and the `da3_ros` command; colcon uses CMakeLists.txt.

The packages are named, not left to discovery, which would also find what colcon put into build/
and install/.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def version() -> str:
    """Read, not imported: importing needs the dependencies."""
    text = (HERE / "da3_ros" / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)[1]


setup(
    name="da3_ros",
    version=version(),
    description="Live multi-view 3D from cameras with Depth Anything 3",
    license="Apache-2.0",
    python_requires=">=3.10",
    # Message texts live in msg/ and srv/ for rosidl; as package data they serve `rosbags`.
    packages=[
        *find_packages(include=["da3_ros", "da3_ros.*"]),
        "da3_ros.interfaces.msg",
        "da3_ros.interfaces.srv",
        "da3_ros.docs",  # sections of which stand in a report
    ],
    package_dir={
        "da3_ros.interfaces.msg": "msg",
        "da3_ros.interfaces.srv": "srv",
        "da3_ros.docs": "docs",
    },
    package_data={
        "da3_ros": ["checkpoints/**", "py.typed"],
        "da3_ros.interfaces.msg": ["*.msg"],
        "da3_ros.interfaces.srv": ["*.srv"],
        "da3_ros.docs": ["*.md"],
    },
    install_requires=[
        "huggingface_hub>=0.24",
        "mcap>=1.1",
        "numpy>=1.26",
        # Not opencv-python: it needs libGL, which servers lack. Both provide the module cv2.
        "opencv-python-headless>=4.8",
        "openvino>=2025.4",
        "pyyaml>=5.4",
        "rosbags>=0.11.9",
        "safetensors>=0.4",
        "scipy>=1.10",
        "torch>=2.4",
        "tqdm>=4.57",
        "trimesh>=4",
        "zstandard>=0.21",
    ],
    extras_require={
        "viewer": ["viser>=1.1,<2"],  # the view in a browser
        "fleet": ["ray>=2.60"],  # `da3_ros fleet`
        "report": ["matplotlib>=3.5"],  # plots of `da3_ros report` and of a replay's report
        "mesh": ["scikit-image>=0.22"],  # `da3_ros export SCENE room.mesh.glb`
        # `da3_ros export-network --format onnx` and its check.
        "onnx": ["onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.5"],
        "video": ["av>=12"],  # `da3_ros view SCENE --video room.mp4`, `da3_ros replay --video`
    },
    # build/ itself is colcon's.
    options={"build": {"build_base": "build/pip"}},
    entry_points={"console_scripts": ["da3_ros = da3_ros.cli:main_process"]},
)
