"""The trajectory: a bounded table of camera poses.

Poses are stored in the frames of their submaps, so that they move with the map. While a camera
stands, its first pose there is stored once, with how long it was held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from da3_ros.geometry.similarity import Similarity
from da3_ros.mapping.frames import LocalFrame, PoseInSubmap
from da3_ros.types import Array

MAX_POSES = 100_000
NEWEST = 1024  # poses that are looked at for that of a frame, or of a standing camera
BLOCK = 512  # rows in which a frame is looked for first
STILL_PX = 0.5  # a camera whose image moves by less than this stands
MAX_GAP_NS = 2 * 10**9  # longest time between two frames of a camera in which its way is known
# K is fx fy cx cy by the corner rule; T is [R t]; size is (width, height) that K belongs to.
SAVED = np.dtype(  # columns of a saved scene
    [("stamp_ns", "<i8"), ("T", "<f8", (3, 4)), ("K", "<f8", (4,)), ("size", "<i4", (2,)),
     ("submap", "<i4"), ("camera", "<i2"), ("keyframe", "?")]
)  # fmt: skip
# For how long the camera stood at the pose; 0 if it did not, or if that is not known.
ROW = np.dtype([*SAVED.descr, ("standing_ns", "<i8")])


@dataclass(frozen=True, eq=False)
class Pose:
    """One camera pose in the map."""

    stamp_ns: int
    T_map_camera: Array  # [4, 4]
    K: Array  # [3, 3] corner rule
    size: tuple[int, int]  # (width, height) that K belongs to
    keyframe: bool
    camera: str = ""  # name within a rig; empty for a single camera


@dataclass(frozen=True, eq=False)
class Poses:
    """Camera poses as one table, each camera's in the order in which they were added.

    Where a camera stood there are two rows with one pose: the first one has ``standing_ns``, and
    the camera's next one has the stamp at which that time ends.
    """

    rows: NDArray[np.void]  # [N] of ROW
    cameras: tuple[str, ...]  # names that the column ``camera`` indexes
    leaders: tuple[int, ...] = (0,)  # cameras whose poses are the path; several if scenes merged

    @staticmethod
    def of(poses: list[Pose]) -> Poses:
        """Returns the table of single poses."""
        cameras = tuple(dict.fromkeys(p.camera for p in poses))
        rows = np.zeros(len(poses), ROW)
        for row, p in zip(rows, poses, strict=True):
            row["stamp_ns"], row["keyframe"], row["size"] = p.stamp_ns, p.keyframe, p.size
            row["T"], row["camera"] = p.T_map_camera[:3], cameras.index(p.camera)
            row["K"] = p.K[0, 0], p.K[1, 1], p.K[0, 2], p.K[1, 2]
        return Poses(rows, cameras)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Pose]:
        for row in self.rows:
            T, K = np.eye(4), np.eye(3)
            T[:3] = row["T"]
            K[0, 0], K[1, 1], K[0, 2], K[1, 2] = row["K"]
            stamp, (width, height) = int(row["stamp_ns"]), row["size"].tolist()
            camera = self.cameras[row["camera"]]
            yield Pose(stamp, T, K, (width, height), bool(row["keyframe"]), camera)

    def leading(self) -> Poses:
        """Returns the poses of the leading cameras: a rig's path, or those of several sessions."""
        return self.take(np.isin(self.rows["camera"], self.leaders))

    def newest(self) -> dict[str, Array]:
        """Returns the last pose [4, 4] of each camera."""
        last = {int(c): i for i, c in enumerate(self.rows["camera"])}
        return {p.camera: p.T_map_camera for p in self.take(sorted(last.values()))}

    def take(self, index: Array | list[int] | slice) -> Poses:
        """Returns the poses at ``index``."""
        return replace(self, rows=self.rows[index])

    def with_frames(self, stamps_ns: Array) -> Poses:
        """Returns the poses of one camera with a row for each of its frames.

        stamps_ns: of all its frames [M], in order; those at which it stood have no rows yet.
        """
        stamps = np.asarray(stamps_ns, np.int64)
        order = np.argsort(stamps, kind="stable")
        by_stamp, ahead = stamps[order], len(stamps)
        frames, at = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        # From the end: a recording that was played again, over a saved scene, repeats stamps.
        for i in np.flatnonzero(self.rows["standing_ns"])[::-1]:
            first_ns = self.rows["stamp_ns"][i]
            ends = first_ns, first_ns + self.rows["standing_ns"][i]
            low, high = (
                order[slice(*(np.searchsorted(by_stamp, end, side) for side in ("left", "right")))]
                for end in ends
            )
            last = high[high < ahead][-1:]
            first = low[low < last[0]][-1:] if len(last) else last
            if len(first):
                ahead = first[0]
                frames.append(stamps[first[0] + 1 : last[0]])
                at.append(np.full(len(frames[-1]), i))
        where = np.concatenate(at[::-1])
        return replace(
            self, rows=_inserted(self.rows, where, np.concatenate(frames[::-1]), where + 1)
        )

    def moved(self, T: Mapping[int, Similarity]) -> Poses:
        """Returns the poses in the frame of ``T``, where submap ``i`` has the pose ``T[i]``."""
        rows = self.rows.copy()
        if not len(rows):
            return replace(self, rows=rows)
        ids = np.array(sorted(T))
        at = np.searchsorted(ids, rows["submap"])
        R = np.array([T[i].R for i in ids])[at]
        scale = np.array([T[i].scale for i in ids])[at]
        t = np.array([T[i].t for i in ids])[at]
        local = self.rows["T"]
        rows["T"][:, :, :3] = R @ local[:, :, :3]
        rows["T"][:, :, 3] = scale[:, None] * np.einsum("nij,nj->ni", R, local[:, :, 3]) + t
        return replace(self, rows=rows)


class Trajectory:
    """Poses in the order of stamps; when full, every second one is dropped, keyframes last.

    A frame that is no keyframe is not stored if the camera has stood since its last stored pose.
    """

    def __init__(self, max_poses: int = MAX_POSES) -> None:
        self.max_poses = max_poses
        self._rows = np.zeros(64, ROW)
        self._size = 0
        self._cameras: list[str] = []
        self._leaders: tuple[int, ...] = (0,)  # indices of cameras
        self._newest_ns = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory held, bytes."""
        return self._rows.nbytes

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras, the first one that had a pose first."""
        return tuple(self._cameras)

    @property
    def newest_stamp_ns(self) -> int:
        """Stamp of the newest pose. Raises IndexError if there is none."""
        if not self._size:
            raise IndexError("no pose yet")
        return self._newest_ns

    def poses(self, camera: str = "", since_ns: int | None = None) -> Poses:
        """Returns a copy of all poses, in the frames of their submaps.

        since_ns: only from the last one of ``camera`` on that is not later; None: all.
        """
        rows = self._rows[: self._size]
        if since_ns is not None and camera in self._cameras:
            own = rows["camera"] == self._cameras.index(camera)
            before = np.flatnonzero(own & (rows["stamp_ns"] <= since_ns))
            rows = rows[before[-1] if len(before) else 0 :]
        stood = np.flatnonzero(rows["standing_ns"])
        ends = rows["stamp_ns"][stood] + rows["standing_ns"][stood]
        rows = _inserted(rows, stood, ends, _next_of_camera(rows["camera"])[stood])
        return Poses(rows, tuple(self._cameras), self._leaders)

    def sample(self, submaps: Collection[int], most: int, keyframes: int) -> Poses:
        """Returns an even choice of at most about ``most`` poses of the leading cameras in some
        submaps, of ``keyframes`` keyframes among them, and the newest one.

        In the frames of their submaps; without the ends of times in which a camera stood. The cost
        of a long path is that of two of its columns.
        """
        rows = self._rows[: self._size]
        # By id and one more: poses that stay in the map have -1 (``submaps.SETTLED``).
        largest = max([-1, *submaps, int(rows["submap"].max(initial=-1))])
        known = np.zeros(largest + 2, bool)
        known[np.array([*submaps], int) + 1] = True
        leads = np.isin(np.arange(len(self._cameras)), self._leaders)
        at = np.flatnonzero(known[rows["submap"] + 1] & leads[rows["camera"]])
        keys = at[rows["keyframe"][at]]
        chosen = np.concatenate((_even(at, most), _even(keys, keyframes), at[-1:]))
        return Poses(rows[np.unique(chosen)], tuple(self._cameras), self._leaders)

    def add_pose(
        self, frame: LocalFrame, T_submap_camera: Array, submap: int, unit: float = 1.0
    ) -> None:
        """Adds the pose of a frame, in the frame of its submap; unit: of odometry, per unit of
        the submap."""
        if frame.camera not in self._cameras:
            self._cameras.append(frame.camera)
        self._newest_ns = frame.stamp_ns
        if not frame.keyframe and self._hold(frame, T_submap_camera, submap, unit):
            return
        height, width = frame.depth.shape
        if self._size == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        K = (frame.K[0, 0], frame.K[1, 1], frame.K[0, 2], frame.K[1, 2])
        camera = self._cameras.index(frame.camera)
        row = (frame.stamp_ns, T_submap_camera[:3], K, (width, height))
        self._rows[self._size] = (*row, submap, camera, frame.keyframe, 0)
        self._size += 1
        if self._size > self.max_poses:
            self._thin()

    def _hold(self, frame: LocalFrame, T: Array, submap: int, unit: float) -> bool:
        """Returns whether a frame's camera has stood since its last stored pose; holds that."""
        rows = self._rows[max(0, self._size - NEWEST) : self._size]
        own = np.flatnonzero(rows["camera"] == self._cameras.index(frame.camera))
        if not len(own):
            return False
        row = rows[own[-1]]
        passed = frame.stamp_ns - int(row["stamp_ns"])
        known = 0 < passed - int(row["standing_ns"]) <= MAX_GAP_NS  # neither a jump nor a gap
        stands = (
            known and row["submap"] == submap and _motion_px(row["T"], T, frame, unit) < STILL_PX
        )
        if stands:
            row["standing_ns"] = passed
        return bool(stands)

    def pose_of(self, stamp_ns: int, camera: str, submap: int) -> Array | None:
        """Returns the pose [3, 4] of one of the newest frames in the frame of its submap; None if
        it is not stored."""
        rows = self._newest_rows(camera, submap)
        found = rows["T"][rows["stamp_ns"] == stamp_ns]
        return found[-1].copy() if len(found) else None

    def pose_at(self, stamp_ns: int, camera: str, submap: int) -> Array | None:
        """Returns the pose [3, 4] of one of the newest frames in the frame of its submap, that at
        which its camera stood then if it is not stored itself; None: neither is."""
        rows = self._newest_rows(camera, submap)
        passed = stamp_ns - rows["stamp_ns"]
        found = rows["T"][(passed >= 0) & (passed <= rows["standing_ns"])]
        return found[-1].copy() if len(found) else None

    def _newest_rows(self, camera: str, submap: int) -> NDArray[np.void]:
        """Returns a copy of a camera's rows in a submap, of the newest ones."""
        rows = self._rows[max(0, self._size - NEWEST) : self._size]
        if camera not in self._cameras:
            return rows[:0]
        own = rows["camera"] == self._cameras.index(camera)
        return rows[own & (rows["submap"] == submap)]

    def move(self, frames: Sequence[PoseInSubmap]) -> None:
        """Replaces the poses of frames; one that is not stored stays so."""
        rows = self._rows[: self._size]
        oldest = min((f.submap for f in frames), default=0)
        at = self._index({(f.stamp_ns, f.camera) for f in frames}, oldest)
        for f in frames:
            k = at.get((f.stamp_ns, f.camera))
            if k is not None and rows["submap"][k] == f.submap:
                rows["T"][k] = f.T_submap_camera[:3]

    def frames_of(self, submaps: Collection[int], most: int) -> list[PoseInSubmap]:
        """Returns the poses of keyframes in these submaps, and of the newest ``most`` frames."""
        rows = self._rows[: self._size]
        rows = rows[np.isin(rows["submap"], list(submaps))]
        out = []
        for row in rows[rows["keyframe"] | (np.arange(len(rows)) >= len(rows) - most)]:
            T = np.eye(4)
            T[:3] = row["T"]
            name = self._cameras[row["camera"]]
            out.append(PoseInSubmap(int(row["stamp_ns"]), name, int(row["submap"]), T))
        return out

    def _index(
        self, frames: Collection[tuple[int, str]], oldest: int = 0
    ) -> dict[tuple[int, str], int]:
        """Returns the indices of the newest rows of frames (stamp, camera) in submaps from
        ``oldest`` on.

        Looks from the end on: most frames that are asked for are new ones, in a path of any
        length. Submaps follow each other in it, so that one that is not stored ends the search.
        """
        missing, found = set(frames), dict[tuple[int, str], int]()
        end, length = self._size, BLOCK
        while missing and end and self._rows["submap"][end - 1] >= oldest:
            begin = max(0, end - length)
            rows = self._rows[begin:end]
            stamps = np.array([stamp for stamp, _ in missing], np.int64)
            for k in np.flatnonzero(np.isin(rows["stamp_ns"], stamps))[::-1].tolist():
                key = int(rows["stamp_ns"][k]), self._cameras[rows["camera"][k]]
                if key in missing:
                    missing.remove(key)
                    found[key] = begin + k
            end, length = begin, 2 * length
        return found

    def rows_of(self, frames: Sequence[tuple[int, str]]) -> list[tuple[int, Array] | None]:
        """Returns submap and pose [4, 4] in it of frames (stamp, camera); None if not stored."""
        rows, at = self._rows[: self._size], self._index(frames)
        out: list[tuple[int, Array] | None] = []
        for frame in frames:
            k = at.get(frame)
            if k is None:
                out.append(None)
                continue
            T = np.eye(4)
            T[:3] = rows["T"][k]
            out.append((int(rows["submap"][k]), T))
        return out

    def poses_in(self, frames: Sequence[tuple[int, str, int]]) -> list[Array | None]:
        """Returns the poses [4, 4] of frames (stamp, camera, submap) in their submaps; None if not
        stored. Of frames with one stamp, as where a clock begins again, each has its own."""
        rows, at = self._rows[: self._size], dict[tuple[int, str, int], int]()
        stamps = np.array([stamp for stamp, *_ in frames], np.int64)
        for k in np.flatnonzero(np.isin(rows["stamp_ns"], stamps)).tolist():
            camera = self._cameras[rows["camera"][k]]
            at[int(rows["stamp_ns"][k]), camera, int(rows["submap"][k])] = k
        out: list[Array | None] = []
        for frame in frames:
            T = np.eye(4)
            if frame in at:
                T[:3] = rows["T"][at[frame]]
            out.append(T if frame in at else None)
        return out

    def settle(self, submap: int, pose: Similarity, into: int) -> None:
        """Gives the poses of a submap in the frame of its ``pose`` from now on, with ``into`` as
        their submap."""
        rows = self._rows[: self._size]
        here = np.flatnonzero(rows["submap"] == submap)
        moved = Poses(rows[here], tuple(self._cameras)).moved({submap: pose}).rows
        moved["submap"] = into
        rows[here] = moved

    def forget(self, submap: int) -> None:
        """Removes the poses of a submap."""
        kept = self._rows[: self._size]
        kept = kept[kept["submap"] != submap]
        self._size = len(kept)
        self._rows[: self._size] = kept
        if len(kept):  # the last row of one camera may be older than the time another one stood
            newest = [kept[kept["camera"] == camera][-1] for camera in np.unique(kept["camera"])]
            self._newest_ns = max(int(row["stamp_ns"] + row["standing_ns"]) for row in newest)

    def extend(self, poses: Poses) -> None:
        """Appends the poses of a saved scene, in the frames of their submaps."""
        names = self._cameras + [c for c in poses.cameras if c not in self._cameras]
        rows = poses.rows.copy()
        rows["standing_ns"] = 0  # the poses at which such times end have rows
        at = np.array([names.index(c) for c in poses.cameras], np.int16)
        rows["camera"] = at[rows["camera"]] if len(rows) else 0
        self._rows = np.concatenate((self._rows[: self._size], rows, np.zeros(64, ROW)))
        self._size, self._cameras = self._size + len(rows), names
        if len(rows):
            self._newest_ns = int(rows["stamp_ns"][-1])
            self._leaders = tuple(sorted({*self._leaders, *(int(at[i]) for i in poses.leaders)}))
        while self._size > self.max_poses:
            self._thin()

    def _thin(self) -> None:
        rows = self._rows[: self._size]
        thinned = rows[rows["keyframe"] | (np.arange(len(rows)) % 2 == 0)]
        if len(thinned) > self.max_poses:
            thinned = rows[::2]
        self._size = len(thinned)
        self._rows[: self._size] = thinned


def _even(rows: Array, most: int) -> Array:
    """Returns every n-th of ``rows``, at most ``most``."""
    return rows[:: max(1, -(-len(rows) // most))]


def _motion_px(T_before: Array, T: Array, frame: LocalFrame, unit: float) -> float:
    """Returns by how many pixels a frame's image moves between two poses, [3, 4] or [4, 4] in a
    submap of ``unit``, at the median depth; NaN without depth."""
    stride = max(1, min(frame.depth.shape) // 32)
    depth = frame.depth[::stride, ::stride]
    depth = depth[np.isfinite(depth)]
    if not len(depth):
        return np.nan
    # For small angles the norm of the difference is sqrt(2) times the angle.
    turn = np.linalg.norm(T[:3, :3] - T_before[:3, :3]) / np.sqrt(2.0)
    way = unit * np.linalg.norm(T[:3, 3] - T_before[:3, 3]) / np.median(depth)
    return float(max(frame.K[0, 0], frame.K[1, 1]) * (turn + way))


def _next_of_camera(cameras: Array) -> Array:
    """Returns for each row [N] the index of the next one of its camera, N if it is the last."""
    after = np.full(len(cameras), len(cameras))
    for camera in np.unique(cameras):
        own = np.flatnonzero(cameras == camera)
        after[own[:-1]] = own[1:]
    return after


def _inserted(
    rows: NDArray[np.void], index: Array, stamps_ns: Array, before: Array
) -> NDArray[np.void]:
    """Returns a copy of ``rows`` with further ones [M] of the poses at ``index``, at other stamps
    and no keyframes, each one ``before`` the row of that index."""
    more = rows[index]
    more["stamp_ns"], more["standing_ns"], more["keyframe"] = stamps_ns, 0, False
    return np.insert(rows, before, more)
