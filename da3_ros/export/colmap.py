"""Writes a COLMAP text model, the input of tools for 3D Gaussian splatting.

``cameras.txt`` (PINHOLE), ``images.txt`` (world to camera, quaternions w first) and
``points3D.txt`` (no tracks) as in COLMAP's documentation of its text format; COLMAP's pixel
centres are at 0.5, the corner rule of ``types``. Its world is the ROS map frame. The folder
``images`` holds the keyframes' images, at the network's size, that the map has kept.
"""

from __future__ import annotations

from pathlib import Path

from da3_ros.export.selection import ExportError, Points, Progress
from da3_ros.geometry.poses import invert_pose, quaternion_from_matrix
from da3_ros.mapping.scene import Scene
from da3_ros.mapping.trajectory import Pose

FILES = ("cameras.txt", "images.txt", "points3D.txt")
ROW = "%d %.6f %.6f %.6f %d %d %d 0\n"


def write_colmap(scene: Scene, points: Points, folder: Path, progress: Progress) -> None:
    """Writes a model into an empty folder. Raises ExportError if the scene has no keyframe."""
    poses = [p for p in scene.poses if p.keyframe]
    shown = [p for p in poses if (p.camera, p.stamp_ns) in scene.images]
    poses = shown or poses
    if not poses:
        raise ExportError("the scene has no keyframe: a COLMAP model needs cameras")
    cameras = _write_cameras(folder / "cameras.txt", poses)
    _write_images(folder / "images.txt", poses, cameras, scene)
    for pose in shown:
        file = folder / "images" / image_name(pose.camera, pose.stamp_ns, "jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(scene.images[pose.camera, pose.stamp_ns])
    with (folder / "points3D.txt").open("w") as text:
        text.write("# POINT3D_ID X Y Z R G B ERROR TRACK[] (IMAGE_ID POINT2D_IDX)\n")
        if scene.guessed:
            parts, guessed = len(scene.parts), scene.guessed
            text.write(f"# parts {parts}, of which {guessed} at guessed places\n")
        first = 1
        for chunk in points.chunks(progress):
            ids = range(first, first + len(chunk))
            columns = (*chunk["xyz"].T.tolist(), *chunk["rgb"].T.tolist())
            # Twice as fast as NumPy's savetxt.
            text.writelines(map(ROW.__mod__, zip(ids, *columns, strict=True)))
            first += len(chunk)


def image_name(camera: str, stamp_ns: int, suffix: str) -> str:
    """Returns a keyframe's file name below ``images``: its stamp, in a folder per camera."""
    return f"{camera}/{stamp_ns}.{suffix}" if camera else f"{stamp_ns}.{suffix}"


def is_model(folder: Path) -> bool:
    """True if a folder holds a COLMAP text model and nothing else."""
    names = {p.name for p in folder.iterdir()}
    return names >= set(FILES) and names <= {*FILES, "images"}


def _write_cameras(path: Path, poses: list[Pose]) -> list[int]:
    """Writes each distinct camera once; returns the camera number of each pose."""
    numbers: dict[str, int] = {}
    chosen = []
    for p in poses:
        K = " ".join(f"{v:.6f}" for v in (p.K[0, 0], p.K[1, 1], p.K[0, 2], p.K[1, 2]))
        # With the name: two cameras of a rig stay two, even with equal intrinsics.
        line = f"PINHOLE {p.size[0]} {p.size[1]} {K}"
        chosen.append(numbers.setdefault(f"{p.camera}\n{line}", len(numbers) + 1))
    rows = (f"{number} {key.partition(chr(10))[2]}\n" for key, number in numbers.items())
    header = "# CAMERA_ID MODEL WIDTH HEIGHT PARAMS[] (fx fy cx cy)\n"
    path.write_text(header + "".join(rows))
    return chosen


def _write_images(path: Path, poses: list[Pose], cameras: list[int], scene: Scene) -> None:
    suffix = "jpg" if any((p.camera, p.stamp_ns) in scene.images for p in poses) else "png"
    with path.open("w") as text:
        text.write("# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, then POINTS2D[] (none)\n")
        for number, (pose, camera) in enumerate(zip(poses, cameras, strict=True), start=1):
            T_camera_map = invert_pose(scene.T_map_world @ pose.T_world_camera)
            x, y, z, w = quaternion_from_matrix(T_camera_map[:3, :3])
            values = " ".join(f"{v:.9f}" for v in (w, x, y, z, *T_camera_map[:3, 3]))
            name = image_name(pose.camera, pose.stamp_ns, suffix)
            text.write(f"{number} {values} {camera} {name}\n\n")
