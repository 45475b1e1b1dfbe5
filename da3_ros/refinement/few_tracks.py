"""Views with few tracks of features: placed by the edges of older views.

Plain walls have few features. A view with few is aligned directly to older views of its camera;
the points of their edges are then followed into it, and become tracks like others. The alignment
itself is only a start: brightness alone is too sure of what it hardly shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from da3_ros.geometry.projection import resize_K
from da3_ros.refinement.bundle import NETWORK
from da3_ros.refinement.direct_alignment import AlignmentImage, aligned_pose
from da3_ros.refinement.edge_points import EdgePoints, followed, new_edge_points
from da3_ros.refinement.track_noise import TrackNoise
from da3_ros.refinement.tracked_view import TrackedView, TrackPoints
from da3_ros.types import Array

# A view has few tracks with less than this share of the most that are used, or if they lie in a
# smaller share of the cells of a grid with so many per side.
MANY_TRACKS, CELLS, WELL_COVERED = 0.4, 6, 0.5
# Edge points that show a pose: number, and least share of them that lie across the direction that
# most of them lie across. Parallel edges leave a direction to noise, where the network is better.
FEWEST_EDGES, LEAST_ACROSS = 30, 0.1
NO_PLACE = 12  # tracks that place no view: brightness does
ALIGNED = (1, 2, 4, 7)  # to these of its camera's views before it; the newest is the first


def has_few_tracks(view: TrackedView, most: int) -> bool:
    """Whether a view has few tracks, or only in a part of its image. most: tracks of a bundle."""
    seen = view.track >= 0
    height, width = view.features.shape
    cell = (view.features.pixel[seen] * CELLS / (width, height)).astype(int).clip(0, CELLS - 1)
    covered = len(np.unique(cell[:, 1] * CELLS + cell[:, 0])) / CELLS**2
    return bool(seen.sum() < MANY_TRACKS * most or covered < WELL_COVERED)


def align_directly(
    view: TrackedView, known: Sequence[TrackedView], points: TrackPoints, noise: TrackNoise
) -> None:
    """Aligns a view to known ones of its camera, and follows their edges into it.

    Sets ``view.edges``, and the pose of a view that tracks do not place.
    known: oldest first.
    """
    image = view.image
    own = {v.id: (v, v.image) for v in known if v.camera == view.camera and v.image is not None}
    if image is None or not own:
        return
    ids = list(own)
    aligned: dict[int, Array] = {}
    for other, there in (own[ids[-k]] for k in ALIGNED if k <= len(ids)):
        T = np.linalg.inv(other.T_local_camera) @ view.T_local_camera
        T[:3, 3] /= other.depth_unit
        K_there, K = _K(other, there), _K(view, image)
        found = aligned_pose(
            there, image, K_there, K, T, noise.depth, noise.poses[NETWORK]
        )  # fmt: skip
        if found is None:
            continue
        if not aligned and (view.track >= 0).sum() < NO_PLACE:
            T = found.copy()
            T[:3, 3] *= other.depth_unit
            view.T_local_camera = other.T_local_camera @ T
        aligned[other.id] = found
    edges = EdgePoints.none()
    for id in sorted(aligned):  # the oldest first, so that tracks do not drift
        edges = edges.joined(_followed(view, image, *own[id], aligned[id], edges.track, points))
    if not _show_pose(edges):
        edges = EdgePoints.none()
    view.edges = _with_new(edges, image, points)
    for _, there in own.values():
        there.release()
    image.release()


def _show_pose(edges: EdgePoints) -> bool:
    """Whether edge points are many, and not all on parallel edges."""
    if len(edges) < FEWEST_EDGES:
        return False
    least = np.linalg.eigvalsh(edges.normal.T @ edges.normal)[0]
    return bool(least >= LEAST_ACROSS * len(edges))


def _followed(
    view: TrackedView, image: AlignmentImage, other: TrackedView, there: AlignmentImage,
    T_other_view: Array, found: Array, points: TrackPoints,
) -> EdgePoints:  # fmt: skip
    """Returns the edge points of another view that a view sees, of other tracks than ``found``."""
    if not len(other.edges):
        other.edges = _with_new(other.edges, there, points)
    track = other.edges.track
    missing = other.edges.where((track >= 0) & ~np.isin(track, found))
    at = points.of(missing.track) - other.T_local_camera[:3, 3]
    z = at @ other.T_local_camera[:3, 2]
    with np.errstate(invalid="ignore"):
        depth = np.where(z > 0, z / other.depth_unit, np.exp(missing.log_depth))
    pixel, normal, good = followed(
        there, image, missing, depth, _K(other, there), _K(view, image),
        T_other_view,
    )  # fmt: skip
    return EdgePoints(
        pixel[good], normal[good], image.log_depth_at(pixel[good]), missing.track[good]
    )


def _with_new(edges: EdgePoints, image: AlignmentImage, points: TrackPoints) -> EdgePoints:
    """Returns edge points of an image, and new ones where there are few."""
    pixel, normal = new_edge_points(image, edges.pixel)
    ids = points.new_ids(len(pixel))
    return edges.joined(EdgePoints(pixel, normal, image.log_depth_at(pixel), ids))


def _K(view: TrackedView, image: AlignmentImage) -> Array:
    """Returns K [3, 3] in pixels of the small image."""
    height, width = view.features.shape
    return resize_K(view.K, (width, height), (image.grey.shape[1], image.grey.shape[0]))
