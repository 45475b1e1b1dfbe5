"""`python -m da3_ros`."""

import sys

from da3_ros.cli import main_process

sys.exit(main_process())
