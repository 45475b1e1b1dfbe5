"""A recording becomes a mesh.

python examples/recording_to_mesh.py RECORDING OUTPUT    # none: a rendered room, room_mesh/

RECORDING is a ROS 2 bag, a video or a folder of images. OUTPUT gets all results of a replay and
`room.mesh.glb`, which any viewer of glTF opens. Needs scikit-image. The same in two commands:
`da3_ros replay RECORDING --output OUTPUT` and `da3_ros export OUTPUT room.mesh.glb`.
"""

import sys
from pathlib import Path

from da3_ros.cli.conversion import convert
from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.export.export import ExportError, Selection
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.recordings.synthetic_bag import write_synthetic_bag
from da3_ros.replay import ReplayError, ReplayOptions, replay
from da3_ros.synthetic.demo_settings import PARAMETERS, demo_camera

SETTINGS = {}  # da3-small, after `da3_ros models --get da3-small`
RENDERED = {**PARAMETERS, "backend": "torch"}  # da3-tiny


def main(recording: Path | None, output: Path) -> None:
    settings = RENDERED if recording is None else SETTINGS
    if recording is None:
        recording = output.with_name(f"{output.name}_bag")
        print(write_synthetic_bag(recording, demo_camera(), replace=True), end="")
    config = config_from_parameters(settings, NodeConfig)
    print(replay(ReplayOptions(recording, output), config).text(), end="")
    mesh = output / "room.mesh.glb"
    print(convert(output, mesh, Selection(), DepthFilters()), end="")
    print(f"open {mesh}")


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit("usage: recording_to_mesh.py [RECORDING OUTPUT]")
    given = [Path(word) for word in sys.argv[1:]] or [None, Path("room_mesh")]
    try:
        main(*given)
    except (ReplayError, ExportError) as error:
        sys.exit(f"recording_to_mesh: {error}")
