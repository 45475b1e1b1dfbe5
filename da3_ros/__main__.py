"""`python -m da3_ros`."""

import sys

from da3_ros.cli import main

sys.exit(main())
