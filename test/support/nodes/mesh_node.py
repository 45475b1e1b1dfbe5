"""The live node, whose surfaces take as long as the test wants: until its file is there."""

import os
import sys
import time
from pathlib import Path

from da3_ros.export import stored_mesh
from da3_ros.ros.node import main

fuse = stored_mesh.fused_surface


def fuse_late(stored, filters, progress, **options):
    """As the real one, when the file that the test makes is there."""
    while not Path(os.environ["DA3_TEST_GO"]).exists():
        progress("waiting", 0.4)
        time.sleep(0.01)
    return fuse(stored, filters, progress, **options)


stored_mesh.fused_surface = fuse_late
sys.exit(main())
