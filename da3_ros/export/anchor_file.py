"""The record of a saved scene with the global poses of the robot that hold it.

``docs/scene_file.md`` describes it. Damage costs the anchors, not the scene.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from da3_ros.keyframe_store.checks import check, is_near, is_rotation
from da3_ros.keyframe_store.journal import JournalReader, JournalWriter
from da3_ros.keyframe_store.store import CAMERA
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.types import Array, GlobalPose

POSES = ("T_frame_camera", "T_ros_base", "T_base_camera")
ANCHOR = np.dtype(
    [("stamp_ns", "<i8"), ("submap", "<i4"), ("camera", "<i2"), ("frame_ns", "<i8"),
     *((name, "<f8", (3, 4)) for name in POSES), ("covariance", "<f8", (6, 6))]
)  # fmt: skip


def append_anchors(journal: JournalWriter, anchors: Sequence[HeldAnchor]) -> int:
    """Appends the anchors; returns the offset of their record. Raises OSError."""
    cameras = sorted({a.frame[1] for a in anchors})
    rows = np.zeros(len(anchors), ANCHOR)
    for row, a in zip(rows, anchors, strict=True):
        row["stamp_ns"], row["submap"] = a.given.stamp_ns, a.submap
        row["frame_ns"], row["camera"] = a.frame[0], cameras.index(a.frame[1])
        row["T_frame_camera"] = a.T_frame_camera[:3]
        row["T_ros_base"], row["T_base_camera"] = a.given.T_ros_base[:3], a.given.T_base_camera[:3]
        row["covariance"] = a.given.covariance
    return journal.append({"kind": "anchors", "cameras": cameras}, rows.tobytes())


def load_anchors(
    journal: JournalReader, start: int, submaps: Collection[int]
) -> tuple[HeldAnchor, ...]:
    """Returns the anchors of the record at an offset, of a scene with these submaps.

    Raises OSError, JournalError, LookupError, TypeError, ValueError for damage.
    """
    record = journal.record(start)
    about = record.description
    check(about["kind"] == "anchors", "the record of anchors")
    cameras = about["cameras"]
    check(all(CAMERA.fullmatch(name) for name in cameras), "a camera's name")
    rows = np.frombuffer(journal.data(record), ANCHOR)
    known = (rows["camera"] >= 0) & (rows["camera"] < len(cameras))
    check(bool(known.all() and np.isin(rows["submap"], list(submaps)).all()), "anchors")
    check(is_near(*(rows[name] for name in (*POSES, "covariance"))), "the numbers of anchors")
    out = []
    for row in rows:
        frame, base, mount = (_pose(row[name]) for name in POSES)
        covariance = row["covariance"].copy()
        check(_is_covariance(covariance), "a covariance")
        given = GlobalPose(int(row["stamp_ns"]), base, covariance, mount)
        beside = int(row["frame_ns"]), cameras[row["camera"]]
        out.append(HeldAnchor(given, int(row["submap"]), beside, frame))
    return tuple(out)


def _is_covariance(C: Array) -> bool:
    """Whether all variances are positive, and none of a mixture is negative but for rounding."""
    variances = np.diag(C)
    if not (variances > 0).all():
        return False
    sigmas = np.sqrt(variances)
    return bool((np.linalg.eigvalsh(C / np.outer(sigmas, sigmas)) > -1e-9).all())


def _pose(rows: Array) -> Array:
    """Returns the pose [4, 4] with these three rows. Raises ValueError."""
    check(is_rotation(rows[:, :3]), "an anchor's rotation")
    return np.vstack((rows, (0.0, 0.0, 0.0, 1.0)))
