"""Where the submaps lie in the map of another SLAM: by its poses at the stamps of our frames.

Pure functions. Poses are rigid transforms ``T_map_submap`` [4, 4], metres.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from da3_ros.geometry.poses import between, interpolate, invert_pose
from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.graph_solution import Correction, Moves, Node
from da3_ros.mapping.slam_poses import mean_transform
from da3_ros.mapping.trajectory import MAX_GAP_NS
from da3_ros.types import Array

SubmapPoses = dict[int, Array]  # T_map_submap [4, 4], metres, by the submap's id


@dataclass(frozen=True, eq=False)
class OwnPoses:
    """Our own camera poses since the last time jump, in stamp order."""

    stamps: Array  # [N] ns
    submap: Array  # [N] ids
    T_submap_camera: Array  # [N, 4, 4] metres
    standing_ns: Array  # [N] how long the camera stood from there to the next pose; 0: it moved
    keyframe: Array  # [N] whether it is one

    @staticmethod
    def of(rows: Array, lengths: Mapping[int, float]) -> OwnPoses:
        """Returns poses of rows of a trajectory; lengths: metres per unit of each submap."""
        rows = rows[np.isin(rows["submap"], list(lengths))]
        back = np.flatnonzero(np.diff(rows["stamp_ns"]) < 0)
        rows = rows[back[-1] + 1 if len(back) else 0 :]
        T = np.tile(np.eye(4), (len(rows), 1, 1))
        T[:, :3] = rows["T"]
        T[:, :3, 3] *= _of(lengths, rows["submap"])[:, None]
        return OwnPoses(rows["stamp_ns"], rows["submap"], T, rows["standing_ns"], rows["keyframe"])

    def at(self, stamps: Array, poses: SubmapPoses, chain: Mapping[int, int]) -> tuple[
        Array, Array, Array
    ]:  # fmt: skip
        """Returns poses at other times: indices of those ``stamps`` [M] that have one, the ids of
        their submaps, and ``T_submap_camera`` [., 4, 4].

        A pose is interpolated between two frames of one chain (by submap), which are near in
        time, or between which the camera stood.
        """
        if not len(self.stamps):
            return np.zeros(0, int), np.zeros(0, int), np.zeros((0, 4, 4))
        after = np.searchsorted(self.stamps, stamps)
        inside = np.flatnonzero(after < len(self.stamps))
        exact = np.zeros(len(stamps), bool)
        exact[inside] = self.stamps[after[inside]] == stamps[inside]
        before = np.where(exact, after, after - 1)
        found = np.flatnonzero((before >= 0) & (after < len(self.stamps)))
        i, j = before[found], after[found]
        gap = self.stamps[j] - self.stamps[i]
        of = _of(chain, self.submap)
        known = (gap <= MAX_GAP_NS) | (gap == self.standing_ns[i])
        near = known & (of[i] == of[j])
        found, i, j, gap = found[near], i[near], j[near], gap[near]
        share = (stamps[found] - self.stamps[i]) / np.maximum(gap, 1)
        submap = np.where(share < 0.5, self.submap[i], self.submap[j])
        T_map_camera = between(self._placed(i, poses), self._placed(j, poses), share)
        back = {id: invert_pose(pose) for id, pose in poses.items()}
        return found, submap, _of(back, submap) @ T_map_camera

    def beside(self, stamp_ns: int, submap: int) -> int:
        """Returns the index of the pose in a submap that is nearest in time; of a keyframe, if
        there is one: a full path drops those last. The submap has at least one pose."""
        own = self.submap == submap
        keyframes = own & self.keyframe
        some = np.flatnonzero(keyframes if keyframes.any() else own)
        return int(some[np.argmin(np.abs(self.stamps[some] - stamp_ns))])

    def _placed(self, index: Array, poses: SubmapPoses) -> Array:
        return _of(poses, self.submap[index]) @ self.T_submap_camera[index]


def measured_poses_of(
    submap: Array, T_slam_camera: Array, T_submap_camera: Array, fewest: int
) -> SubmapPoses:
    """Returns ``T_slam_submap`` of each submap that has at least ``fewest`` poses [N, 4, 4]."""
    order = np.argsort(submap, kind="stable")
    ids, begins = np.unique(submap[order], return_index=True)
    return (
        {
            int(id): mean_transform(T_slam_camera[here], T_submap_camera[here])
            for id, here in zip(ids, np.split(order, begins[1:]), strict=True)
            if len(here) >= fewest
        }
        if len(ids)
        else {}
    )


def completed(
    measured: SubmapPoses, poses: SubmapPoses, chain: Mapping[int, int],
    component: Mapping[int, int], stays: Iterable[int],
) -> SubmapPoses:  # fmt: skip
    """Returns the new poses of all submaps; ``measured``: of some.

    A submap between two measured ones of its chain is interpolated, one after them moves with
    the last, one before them with the first, unless it is one that ``stays``. A chain without
    measured ones moves with the first measured submap of its component, or stays.
    """
    known, stays, out = sorted(measured), set(stays), {}
    for id, pose in poses.items():
        at = bisect_left(known, id)
        same = [k for k in known[max(at - 1, 0) : at + 1] if chain[k] == chain[id]]
        before = next((k for k in same if k <= id), None)
        after = next((k for k in same if k >= id), None)
        if id in measured:
            out[id] = measured[id]
        elif before is not None and after is not None:
            a, b = (measured[k] @ invert_pose(poses[k]) @ pose for k in (before, after))
            out[id] = interpolate(a, b, (id - before) / (after - before))
        elif before is None and id in stays:
            out[id] = pose
        else:
            near = [k for k in (before, after) if k is not None]
            one = next(iter(near or [k for k in known if component[k] == component[id]]), None)
            out[id] = pose if one is None else measured[one] @ invert_pose(poses[one]) @ pose
    return out


def largest_move(before: SubmapPoses, after: SubmapPoses) -> tuple[float, float]:
    """Returns the farthest move of a submap's origin, metres, and the largest turn, radians."""
    metres, turns = _moves(before, after)
    return float(metres.max(initial=0.0)), float(turns.max(initial=0.0))


def kept(before: SubmapPoses, after: SubmapPoses, metres: float, turn: float) -> SubmapPoses:
    """Returns ``after``, with the old poses of submaps that move by less than ``metres`` and turn
    by less than ``turn``, radians."""
    moved, turned = _moves(before, after)
    stays = (moved < metres) & (turned < turn)
    return {id: before[id] if stay else after[id] for id, stay in zip(before, stays, strict=True)}


def _moves(before: SubmapPoses, after: SubmapPoses) -> tuple[Array, Array]:
    """Returns by how much each submap moves, metres [N], and turns, radians [N]."""
    a = np.array(list(before.values())).reshape(-1, 4, 4)
    b = np.array([after[id] for id in before]).reshape(-1, 4, 4)
    turn = Rotation.from_matrix(a[:, :3, :3].transpose(0, 2, 1) @ b[:, :3, :3]).magnitude()
    return np.linalg.norm(b[:, :3, 3] - a[:, :3, 3], axis=1), np.asarray(turn)


def correction_to(
    before: Mapping[int, Similarity], after: Mapping[int, Similarity], T_map_local: Similarity,
    ties: tuple[tuple[int, int], ...] = (), adjusted: Collection[int] = (),
) -> Correction:  # fmt: skip
    """Returns the correction that moves submaps from poses in the map to others.

    adjusted: submaps whose keyframes ask for it; none: another SLAM does. ties: (older, newer)
    submap whose components become one. What a graph has of submaps that are gone moves with the
    submap before them.
    """
    ids = sorted(before)
    newest = ids[-1]
    T_new = after[newest] @ before[newest].inverse() @ T_map_local
    last = [*(id - 1 for id in ids[1:]), newest]
    first = [0, *ids[1:]]
    nodes, moves = [], []
    for k, id in enumerate(ids[:-1]):
        pose = T_map_local.inverse() @ before[id]
        nodes.append(Node(first[k], last[k]))
        moves.append(T_new.inverse() @ after[id] @ pose.inverse())
    moved = Moves(tuple(nodes), tuple(moves))
    ids_of = frozenset(adjusted)
    return Correction(moved, T_new, T_map_local, ties, followed=not ids_of, adjusted=ids_of)


def _of(values: Mapping[int, Any], ids: Array) -> Array:
    """Returns the values of ids [N] as one array [N, ...]."""
    table = np.array(list(values.values()))
    order = np.argsort(known := np.array(list(values)))
    return np.asarray(table[order][np.searchsorted(known[order], ids)])
