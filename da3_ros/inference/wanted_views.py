"""Whose depth a window needs: that of new views, and of the shared views that align it."""

from __future__ import annotations

from collections.abc import Sequence

ALIGNING = 3  # shared views whose depth aligns a window; their poses all do


def wanted_views(keyframes: Sequence[bool], cameras: Sequence[str], new: int) -> tuple[int, ...]:
    """Ascending indices of the views whose depth a window needs, as in ``Window.wanted``.

    ``keyframes`` and ``cameras`` are of the shared views, oldest first; ``new`` views follow. Of
    the shared ones: keyframes and the newest view, then the newest of other cameras, the first and
    the middle one.
    """
    count, last = len(keyframes), len(keyframes) - 1
    newest = {camera: i for i, camera in enumerate(cameras)}
    others = sorted(set(newest.values()) - {last}, reverse=True)
    chosen = [i for i, keyframe in enumerate(keyframes) if keyframe][: ALIGNING - 1]
    order = [*chosen, last, *others, 0, last // 2] if count else []
    aligning = sorted(list(dict.fromkeys(order))[:ALIGNING])
    return (*aligning, *range(count, count + new))


def usual_wanted(views: int, new: int) -> tuple[int, ...]:
    """``wanted_views`` of a window of ``views`` from one camera, without keyframes."""
    shared = views - new
    return wanted_views([False] * shared, [""] * shared, new)
