"""Imports OpenVINO without its telemetry.

Importing ``openvino`` reports the import to the vendor through the package ``openvino_telemetry``
if that can be imported, and so does every conversion of a model. Nothing may be sent from a robot,
so the package is hidden from this process first; OpenVINO then uses its own empty replacement.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

TELEMETRY = "openvino_telemetry"


class OpenVinoMissingError(ImportError):
    """OpenVINO is not installed or does not work here; the text is one line with the remedy."""


@functools.cache
def openvino() -> Any:
    """The module ``openvino``. Raises OpenVinoMissingError."""
    # None makes an import fail. A module that is loaded already cannot be hidden any more.
    sys.modules.setdefault(TELEMETRY, None)  # type: ignore[arg-type]
    try:
        import openvino as module
    except (ImportError, OSError, RuntimeError) as error:
        text = next(iter(str(error).splitlines()), type(error).__name__)
        raise OpenVinoMissingError(
            f"OpenVINO cannot be imported ({text}): `pip install openvino` or set backend to torch"
        ) from error
    return module
