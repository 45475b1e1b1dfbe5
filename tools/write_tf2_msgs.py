"""Writes the source of a `tf2_msgs` package, for ROS installations without it.

The definitions are those of the `rosbags` library; the type hash of the generated package equals
the official one. Usage: write_tf2_msgs.py FOLDER
"""

import sys
from pathlib import Path

from rosbags.typesys import Stores, get_typestore

MESSAGES = ("TF2Error", "TFMessage")

PACKAGE_XML = """<?xml version="1.0"?>
<package format="3">
  <name>tf2_msgs</name>
  <version>0.0.0</version>
  <description>Generated from the standard definitions, for a ROS without it.</description>
  <maintainer email="nobody@example.org">generated</maintainer>
  <license>BSD-3-Clause</license>
  <buildtool_depend>ament_cmake</buildtool_depend>
  <buildtool_depend>rosidl_default_generators</buildtool_depend>
  <depend>geometry_msgs</depend>
  <exec_depend>rosidl_default_runtime</exec_depend>
  <member_of_group>rosidl_interface_packages</member_of_group>
  <export><build_type>ament_cmake</build_type></export>
</package>
"""

CMAKE = """cmake_minimum_required(VERSION 3.20)
project(tf2_msgs)
find_package(ament_cmake REQUIRED)
find_package(geometry_msgs REQUIRED)
find_package(rosidl_default_generators REQUIRED)
rosidl_generate_interfaces(${PROJECT_NAME}
  msg/TF2Error.msg
  msg/TFMessage.msg
  DEPENDENCIES geometry_msgs
)
ament_export_dependencies(rosidl_default_runtime)
ament_package()
"""


def definition(message: str) -> str:
    """Returns the .msg text of one tf2_msgs message, without the types it refers to."""
    store = get_typestore(Stores.LATEST)
    text, _ = store.generate_msgdef(f"tf2_msgs/msg/{message}", ros_version=2)
    return text.split("=" * 80)[0]


def main(folder: Path) -> None:
    """Writes package.xml, CMakeLists.txt and the messages below ``folder``."""
    (folder / "msg").mkdir(parents=True, exist_ok=True)
    (folder / "package.xml").write_text(PACKAGE_XML)
    (folder / "CMakeLists.txt").write_text(CMAKE)
    for message in MESSAGES:
        (folder / "msg" / f"{message}.msg").write_text(definition(message))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
