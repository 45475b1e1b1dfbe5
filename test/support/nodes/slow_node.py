"""The live node, whose windows last until the test makes a file."""

import os
import sys
import time
from pathlib import Path

from da3_ros.inference.session import InferenceSession
from da3_ros.ros.node import main

infer = InferenceSession.infer


def infer_late(self, window):
    """As the real one, when the file that the test makes is there."""
    Path(os.environ["DA3_TEST_GO"]).with_name("begun").touch()
    while not Path(os.environ["DA3_TEST_GO"]).exists():
        time.sleep(0.01)
    return infer(self, window)


InferenceSession.infer = infer_late
sys.exit(main())
