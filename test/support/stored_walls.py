"""Stored keyframes of a plain wall, with a box before it in some of them."""

import numpy as np

from da3_ros.geometry.similarity import Similarity
from da3_ros.keyframe_store.keyframe import FramePose, Keyframe
from da3_ros.keyframe_store.store import MapState, StoredSubmap, StoreWriter

SIZE = (80, 60)
K = np.array([[100.0, 0, 40], [0, 100, 30], [0, 0, 1]])
WALL, BOX = 4.03, 2.0  # depths; the wall lies in no plane of voxels
IN_BOX = (slice(20, 40), slice(30, 50))


def write_walls(folder, count=8, boxes=(), confidence=None, grey=None, step=0.05, unit=1.0):
    """Cameras beside each other, ``step`` apart, that look along z; returns the folder.

    boxes: keyframes that see the box. confidence [h, w]. grey: of each keyframe's image. unit: of
    the map per unit of the submap.
    """
    writer = StoreWriter(folder)
    writer.place([StoredSubmap(0, 0, 0, Similarity(unit, np.eye(3), np.zeros(3)))])
    writer.set_map(MapState(T_ros_map=np.eye(4)))
    for stamp in range(count):
        T = np.eye(4)
        T[0, 3] = step * stamp / unit
        depth = np.full(SIZE[::-1], WALL / unit, np.float32)
        if stamp in boxes:
            depth[IN_BOX] = BOX / unit
        sure = np.ones_like(depth) if confidence is None else confidence.astype(np.float32)
        image = np.full((*SIZE[::-1], 3), 90 if grey is None else grey[stamp], np.uint8)
        pose = FramePose(stamp, "", 0, T, K, SIZE, True)
        writer.add_keyframe(Keyframe(pose, depth, sure, image))
    writer.journal.close()
    return folder
