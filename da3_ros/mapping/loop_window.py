"""The window that verifies a loop: two keyframes with their neighbours, in one image size."""

from __future__ import annotations

from da3_ros.mapping.loop_keyframes import LoopKeyframes
from da3_ros.mapping.overlap_view import ViewRow
from da3_ros.mapping.resizing import Cut
from da3_ros.mapping.submap_graph import SubmapGraph
from da3_ros.types import Window

VIEWS_PER_SIDE = 3  # views of each side in the window that verifies a loop


def loop_window(
    keyframes: LoopKeyframes, graph: SubmapGraph, old: ViewRow, new: ViewRow, id: int,
    each: int,
) -> tuple[Window, list[ViewRow], int]:  # fmt: skip
    """Returns a window of an old and a new keyframe and their neighbours, its views' keyframes,
    and the index of the first one of the new side.

    All images have the size of the new one. each: most views per side. Raises OSError.
    """
    first = [_in_size_of(new, one) for one in _neighbours(keyframes, graph, old, new, each)]
    second = [_in_size_of(new, one) for one in _neighbours(keyframes, graph, new, new, each)]
    views = tuple(one.view for one in first + second)
    return Window(id, views, 0), first + second, len(first)


def cut_to(old: ViewRow, new: ViewRow) -> Cut | None:
    """Returns the cut from a keyframe's image to one of the size of another's; None: too little
    would remain."""
    cut = Cut.of(old.view.image.shape, new.view.image.shape)
    return cut if cut is not None and cut.fits(old) else None


def _neighbours(
    keyframes: LoopKeyframes, graph: SubmapGraph, keyframe: ViewRow, new: ViewRow,
    most: int,
) -> list[ViewRow]:  # fmt: skip
    """Returns a keyframe first, then the kept ones nearest to it in time, at most ``most``, whose
    images can have the size of the new one's."""
    at = keyframes.index(keyframe.id)
    found = [keyframe]
    for away in range(1, len(keyframes)):
        around = [keyframes[i] for i in (at - away, at + away) if 0 <= i < len(keyframes)]
        near = [one for one in around if abs(one.submap - keyframe.submap) <= 1]
        if not near or len(found) >= min(VIEWS_PER_SIDE, most):
            break
        found += [
            one
            for one in near
            if graph.in_one_segment(keyframe.submap, one.submap) and cut_to(one, new)
        ]
    return found[: min(VIEWS_PER_SIDE, most)]


def _in_size_of(new: ViewRow, keyframe: ViewRow) -> ViewRow:
    """Returns a keyframe with its arrays, and with an image of the size of another's. Raises
    OSError."""
    keyframe, cut = keyframe.loaded(), cut_to(keyframe, new)
    if keyframe.view.image.shape == new.view.image.shape:
        return keyframe
    assert cut is not None
    return cut.row(keyframe)
