"""The live node with a camera model, a format, a backend, a topic and a source of metres from
outside."""

import sys

from support.toys import ROWS

from da3_ros.ros.node import main

for table, name, row in ROWS:
    table[name] = row
sys.exit(main())
