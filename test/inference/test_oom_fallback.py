"""The fallbacks after memory ran out, without a network."""

import pytest

from da3_ros.inference import WindowTooLargeError
from da3_ros.inference.memory_governor import OOM_FALLBACKS, STABLE_WINDOWS, FallbackLevel


def test_each_step_gives_up_more_until_none_is_left():
    fallback = FallbackLevel()
    seen = [fallback.current]
    for _ in OOM_FALLBACKS[1:]:
        fallback.apply_next(4)
        seen.append(fallback.current)
    assert tuple(seen) == OOM_FALLBACKS
    with pytest.raises(WindowTooLargeError, match="out of memory with 4 views"):
        fallback.apply_next(4)
    assert fallback.level == len(OOM_FALLBACKS) - 1


def test_only_calm_without_a_break_takes_a_step_back():
    fallback = FallbackLevel()
    fallback.apply_next(4)
    assert not any(fallback.undo_when_stable() for _ in range(STABLE_WINDOWS - 1))
    fallback.apply_next(4)
    taken = [fallback.undo_when_stable() for _ in range(3 * STABLE_WINDOWS)]
    assert [k for k, back in enumerate(taken, 1) if back] == [STABLE_WINDOWS, 2 * STABLE_WINDOWS]
    assert fallback.level == 0
