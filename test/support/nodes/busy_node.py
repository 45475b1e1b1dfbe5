"""The live node, whose windows last as long as the test wants: until its file is there."""

import os
import sys
import time
from pathlib import Path

from da3_ros.inference.session import InferenceSession
from da3_ros.ros.node import main

infer = InferenceSession.infer


def infer_late(self, window):
    """As the real one, when the file that the test makes is there."""
    sys.stderr.write("a window runs\n")
    while not Path(os.environ["DA3_TEST_GO"]).exists():
        time.sleep(0.01)
    return infer(self, window)


InferenceSession.infer = infer_late
sys.exit(main())
