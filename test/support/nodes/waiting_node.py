"""The live node, whose files take as long to write as the test wants: until its file is there."""

import os
import sys
import time
from pathlib import Path

from da3_ros.export.formats import Ply
from da3_ros.ros.node import main

write = Ply.write


def write_late(self, scene, points, path, progress):
    """As the real one, when the file that the test makes is there."""
    while not Path(os.environ["DA3_TEST_GO"]).exists():
        progress("waiting", 0.0)
        time.sleep(0.01)
    write(self, scene, points, path, progress)


Ply.write = write_late
sys.exit(main())
