# Source this in bash, from anywhere, to get a shell in which `da3_ros` and ROS 2 work:
#     source tools/env.sh
# It needs `make setup` once. Sourcing it twice changes nothing.

_da3_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
_da3_venv="$_da3_root/.venv"

# Put $2 in front of the path list named $1, unless it is in there already.
_da3_prepend() {
  case ":${!1}:" in
    *":$2:"*) ;;
    *) export "$1=$2${!1:+:${!1}}" ;;
  esac
}

if [ ! -x "$_da3_venv/bin/python" ]; then
  echo "da3_ros: not set up yet, please run: make -C $_da3_root setup" >&2
  unset -f _da3_prepend
  unset _da3_root _da3_venv
  return 1
fi

if [ -d "$_da3_venv/share/rclpy" ]; then
  # ROS 2 from wheels. ROS_DISTRO stays unset: with it, set-up would look for an installed ROS.
  _da3_prepend AMENT_PREFIX_PATH "$_da3_venv"
  # The wheels start Python a second time to set LD_LIBRARY_PATH; done here, once is enough.
  for _da3_folder in "$_da3_venv"/lib/python3*/site-packages/ros_*.libs "$_da3_venv/lib"; do
    _da3_prepend LD_LIBRARY_PATH "$_da3_folder"
  done
  export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1
elif [ -z "$ROS_DISTRO" ]; then
  _da3_distro="$(sed -n 's/^ROS //p' "$_da3_venv/made-for")"
  [ -f "/opt/ros/$_da3_distro/setup.bash" ] && . "/opt/ros/$_da3_distro/setup.bash"
fi

# local_setup, not setup: the latter would also source every prefix that was known at build time.
# Those scripts name .venv's Python without quotes; the one behind it has no spaces in its path.
_da3_colcon_python="$COLCON_PYTHON_EXECUTABLE"
COLCON_PYTHON_EXECUTABLE="$(readlink -f "$_da3_venv/bin/python")"
for _da3_folder in "$_da3_root/underlay/install" "$_da3_root/install"; do
  [ -f "$_da3_folder/local_setup.bash" ] && . "$_da3_folder/local_setup.bash"
done
COLCON_PYTHON_EXECUTABLE="$_da3_colcon_python"

# The clone goes before the overlay, so that what runs is what is being edited.
_da3_prepend PYTHONPATH "$_da3_root"
_da3_prepend PATH "$_da3_venv/bin"
_da3_prepend PATH "$_da3_root/scripts"
export VIRTUAL_ENV="$_da3_venv"

# Large images get lost without it; config/fastdds_images.xml says why. One of the two names only:
# newer ROS warns about the older name.
if [ -z "$FASTDDS_DEFAULT_PROFILES_FILE$FASTRTPS_DEFAULT_PROFILES_FILE" ]; then
  case "$ROS_DISTRO" in
    humble) export FASTRTPS_DEFAULT_PROFILES_FILE="$_da3_root/config/fastdds_images.xml" ;;
    *) export FASTDDS_DEFAULT_PROFILES_FILE="$_da3_root/config/fastdds_images.xml" ;;
  esac
fi

unset -f _da3_prepend
unset _da3_root _da3_venv _da3_folder _da3_distro _da3_colcon_python
