"""Training of `da3-tiny` on rendered rooms. Not part of the installed package."""

import da3_ros  # noqa: F401 (before torch: sets how OpenMP's threads wait)
