"""Selects the views whose depth a window needs: the new ones, and shared ones for alignment."""

from __future__ import annotations

from collections.abc import Sequence

# Overlap views whose depth is computed for alignment; of the others only the pose is used.
ALIGNING = 3


def wanted_views(keyframes: Sequence[bool], cameras: Sequence[str], new: int) -> tuple[int, ...]:
    """Ascending indices of the views whose depth a window needs, as in ``Window.wanted``.

    ``keyframes`` (is it a keyframe) and ``cameras`` (its camera) describe the overlap views,
    oldest first; ``new`` new views follow. Order of preference among overlap views: keyframes,
    the newest view, the newest view of each other camera, the first view, the middle one.
    """
    count, last = len(keyframes), len(keyframes) - 1
    newest = {camera: i for i, camera in enumerate(cameras)}
    others = sorted(set(newest.values()) - {last}, reverse=True)
    chosen = [i for i, keyframe in enumerate(keyframes) if keyframe][: ALIGNING - 1]
    order = [*chosen, last, *others, 0, last // 2] if count else []
    aligning = sorted(list(dict.fromkeys(order))[:ALIGNING])
    return (*aligning, *range(count, count + new))


def usual_wanted(views: int, new: int) -> tuple[int, ...]:
    """``wanted_views`` for a window of ``views`` views of one camera, without keyframes."""
    shared = views - new
    return wanted_views([False] * shared, [""] * shared, new)
