"""The live node, whose files take as long to write as the test wants: until its file is there."""

import os
import sys
import time
from pathlib import Path

from da3_ros.export import export
from da3_ros.ros.node import main

write = export.FORMATS["ply"]


def write_late(scene, points, path, progress):
    """As the real one, when the file that the test makes is there."""
    while not Path(os.environ["DA3_TEST_GO"]).exists():
        progress("waiting", 0.0)
        time.sleep(0.01)
    write(scene, points, path, progress)


export.FORMATS["ply"] = write_late
sys.exit(main())
