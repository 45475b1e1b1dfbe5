"""da3_ros: live multi-view 3D from cameras with Depth Anything 3.

The generated messages (``da3_ros.msg``, ``da3_ros.srv``) live in the colcon overlay under the same
package name; extending the search path makes them importable from the root of a clone too.
"""

import os
from pkgutil import extend_path

# Before torch loads its OpenMP: by default a thread that waits for its siblings spins. Beside
# other busy processes (a robot is full of them) that makes convolutions up to nine times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__path__ = extend_path(__path__, __name__)
__version__ = "0.1.0"
