#!/bin/bash
# The environment of ROS, of Python's packages and of this one, then the command.
set -e
source "/opt/ros/$ROS_DISTRO/setup.bash"
source /ws/venv/bin/activate
source /ws/install/setup.bash
exec "$@"
