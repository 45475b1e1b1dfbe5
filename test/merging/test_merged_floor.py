"""What keyframes saw of the floor is merged with their scenes."""

import dataclasses

from support.floors import square_view
from support.scenes import full_store

from da3_ros.mapping.floor_view import FloorViews
from da3_ros.merging.inputs import InputScene


def test_views_of_the_floor_get_the_new_ids_of_their_keyframes():
    saved = full_store().snapshot(metric=True)
    submap = saved.submaps[0].id
    view = square_view(0, 0, 0, (5, "", submap))
    saved = dataclasses.replace(saved, floor=FloorViews(0.05, (view,)))
    one = InputScene("b", None, saved, first_submap=7, cameras={"": "b"})
    (moved,) = one.floor()
    assert (moved.submap, moved.key) == (submap + 7, ("b", 5))
    assert moved.marks is view.marks
    assert moved.submap in {s.id for s in one.submaps}
