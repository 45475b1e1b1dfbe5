"""The live node with a small network in the place of da3-giant: all its kinds of layers, and its
Gaussian head."""

import dataclasses
import sys

from da3_ros.network import MODELS
from da3_ros.ros.node import main

MODELS["da3-giant"] = dataclasses.replace(MODELS["da3-tiny"], name="da3-giant", gaussians=True)
sys.exit(main())
