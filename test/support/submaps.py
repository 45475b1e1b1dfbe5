"""Frames and submaps for tests of what needs no more of them."""

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame
from da3_ros.mapping.graph_solution import Correction, Moves
from da3_ros.mapping.map_table import MapTable
from da3_ros.mapping.submap_spill import Submap
from da3_ros.pipeline.delivery import NO_WINDOW
from da3_ros.types import Scale


def local_frame(stamp_ns, camera, image, depth, confidence, K, T, keyframe=True):
    """A frame at the pose ``T`` of odometry."""
    return LocalFrame(
        stamp_ns, stamp_ns, "", camera, image, depth, confidence, K, T, Scale(), NO_WINDOW,
        keyframe=keyframe,
    )  # fmt: skip


def table_of(poses):
    """A table of submaps with these poses, in their order."""
    return MapTable(Submap(id, 0, pose) for id, pose in enumerate(poses))


def add_keyframe(closure, overlap_view, descriptor):
    """Adds a keyframe that windows share, and no other view."""
    table, id = closure._submaps, overlap_view.view.id
    table.set_view(overlap_view)
    table.share([id])
    closure.add_keyframe(id, descriptor)


def add_submap(submaps, id, T):
    """Adds a submap at the pose ``T`` [4, 4], unless it is there."""
    if id not in submaps.submaps:
        submaps.add_submap(Submap(id, 0, Similarity.from_pose(T)))


def adjust(table, frames):
    """Gives frames other poses in their submaps, which stay where they are: a correction, as one
    of keyframes that were adjusted together."""
    T, ids = table.T_map_local, frozenset(f.submap for f in frames)
    table.correct(Correction(Moves((), ()), T, T, adjusted=ids), frames=frames)
