"""Training of `da3-tiny` on rendered rooms. Not part of the installed package."""

import da3_ros  # noqa: F401 (before torch: it settles how OpenMP's threads wait)
