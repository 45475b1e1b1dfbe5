"""Writes a rendered walk as public data sets."""

import struct

import cv2
import numpy as np
import yaml

from da3_ros.geometry.poses import quaternion_from_matrix

INFO = {
    "image_width": 0,
    "image_height": 0,
    "camera_name": "rendered",
    "distortion_model": "plumb_bob",
    "distortion_coefficients": {"rows": 1, "cols": 5, "data": [0.0] * 5},
    "rectification_matrix": {"rows": 3, "cols": 3, "data": [1.0, 0, 0, 0, 1, 0, 0, 0, 1]},
}


def write_calibration(folder, calibration):
    """camera_info.yaml as camera_calibration writes it."""
    K = calibration.K
    P = np.column_stack((K, np.zeros(3)))
    content = {
        **INFO,
        "image_width": calibration.width,
        "image_height": calibration.height,
        "camera_matrix": {"rows": 3, "cols": 3, "data": K.ravel().tolist()},
        "projection_matrix": {"rows": 3, "cols": 4, "data": P.ravel().tolist()},
    }
    (folder / "camera_info.yaml").write_text(yaml.safe_dump(content))


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))


def write_depth(path, depth, step_m):
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = np.where(np.isfinite(depth), np.rint(depth / step_m), 0)
    assert cv2.imwrite(str(path), steps.clip(0, 65534).astype(np.uint16))


def seconds(stamp_ns):
    return f"{stamp_ns // 10**9}.{stamp_ns % 10**9:09d}"


def write_tum(folder, camera, frames):
    """TUM RGB-D; true poses between the images, as a tracking system gives them."""
    lists = {"rgb": ["# colour"], "depth": ["# depth"], "groundtruth": ["# timestamp tx ..."]}
    for frame in frames:
        stamp = seconds(frame.stamp_ns)
        write_image(folder / "rgb" / f"{stamp}.png", frame.image)
        write_depth(folder / "depth" / f"{stamp}.png", frame.depth, 1 / 5000)
        lists["rgb"].append(f"{stamp} rgb/{stamp}.png")
        lists["depth"].append(f"{seconds(frame.stamp_ns + 3_000_000)} depth/{stamp}.png")
        T = frame.T_room_camera
        numbers = " ".join(f"{v:.9f}" for v in (*T[:3, 3], *quaternion_from_matrix(T[:3, :3])))
        lists["groundtruth"].append(f"{stamp} {numbers}")
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    write_calibration(folder, camera.calibration)


def write_seven_scenes(folder, camera, frames):
    """7-Scenes."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, frame in enumerate(frames):
        write_image(folder / f"frame-{i:06d}.color.png", frame.image)
        write_depth(folder / f"frame-{i:06d}.depth.png", frame.depth, 1 / 1000)
        np.savetxt(folder / f"frame-{i:06d}.pose.txt", frame.T_room_camera, fmt="%.9e")
    write_calibration(folder, camera.calibration)


def write_euroc(folder, camera, frames, name="cam0", mount=None):
    """EuRoC: the body is not the camera, and its poses have a table of their own. ``mount``: the
    camera's pose in cam0."""
    T_body_camera = np.eye(4)
    T_body_camera[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    T_body_camera[:3, 3] = [0.1, 0.02, -0.05]
    T_body_camera = T_body_camera if mount is None else T_body_camera @ mount
    where = folder / "mav0" / name
    images, poses = ["#timestamp [ns],filename"], ["#timestamp, p_x, p_y, p_z, q_w, q_x, ..."]
    for frame in frames:
        write_image(where / "data" / f"{frame.stamp_ns}.png", frame.image)
        images.append(f"{frame.stamp_ns},{frame.stamp_ns}.png")
        T = frame.T_room_camera @ np.linalg.inv(T_body_camera)
        x, y, z, w = quaternion_from_matrix(T[:3, :3])
        numbers = ",".join(f"{v:.9f}" for v in (*T[:3, 3], w, x, y, z, *[0.0] * 9))
        poses.append(f"{frame.stamp_ns},{numbers}")
    (where / "data.csv").write_text("\n".join(images) + "\n")
    truth = folder / "mav0" / "state_groundtruth_estimate0"
    truth.mkdir(exist_ok=True)
    (truth / "data.csv").write_text("\n".join(poses) + "\n")
    c = camera.calibration
    sensor = {
        "sensor_type": "camera",
        "T_BS": {"rows": 4, "cols": 4, "data": T_body_camera.ravel().tolist()},
        "resolution": [c.width, c.height],
        "camera_model": "pinhole",
        "intrinsics": focal_and_centre(c.K),
        "distortion_model": ASL[c.distortion_model],
        "distortion_coefficients": [*c.D.tolist(), 0.0, 0.0, 0.0, 0.0][:4],
    }
    (where / "sensor.yaml").write_text(yaml.safe_dump(sensor))


def write_euroc_imu(folder, samples):
    """EuRoC's IMU, which is the body: samples of a simulated one with the camera's mount there."""
    where = folder / "mav0" / "imu0"
    where.mkdir(parents=True)
    lines = ["#timestamp [ns],w_RS_S_x [rad s^-1],...,a_RS_S_z [m s^-2]"]
    for row in zip(samples.stamps_ns, samples.gyro, samples.acceleration, strict=True):
        lines.append(",".join([str(row[0]), *(f"{v:.9f}" for v in (*row[1], *row[2]))]))
    (where / "data.csv").write_text("\n".join(lines) + "\n")


ASL = {"plumb_bob": "radial-tangential", "equidistant": "equidistant"}


def focal_and_centre(K):
    return [float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])]


KITTI_OFFSET_M = np.array([-0.06, 0.003, 0.001])  # of the frames' camera (2) in camera 0


def write_kitti(folder, camera, frames):
    """KITTI odometry: ``folder`` is sequences/NN. The frames are those of camera 2, which is
    beside camera 0; the poses are camera 0's, relative to its first."""
    K, T_0_2 = camera.calibration.K, np.eye(4)
    T_0_2[:3, 3] = KITTI_OFFSET_M
    P = {"P0": np.column_stack((K, np.zeros(3))), "P2": K @ np.linalg.inv(T_0_2)[:3]}
    poses, times = [], []
    for i, frame in enumerate(frames):
        write_image(folder / "image_2" / f"{i:06d}.png", frame.image)
        write_image(folder / "image_0" / f"{i:06d}.png", 255 - frame.image)
        T = [one.T_room_camera @ np.linalg.inv(T_0_2) for one in (frames[0], frame)]
        T_first_0 = np.linalg.inv(T[0]) @ T[1]
        poses.append(" ".join(f"{v:e}" for v in T_first_0[:3].ravel()))
        times.append(f"{(frame.stamp_ns - frames[0].stamp_ns) / 1e9:e}")
    lines = [f"{name}: " + " ".join(f"{v:.12e}" for v in M.ravel()) for name, M in P.items()]
    (folder / "calib.txt").write_text("\n".join(lines) + "\n")
    (folder / "times.txt").write_text("\n".join(times) + "\n")
    truth = folder.parent.parent / "poses"
    truth.mkdir(exist_ok=True)
    (truth / f"{folder.name}.txt").write_text("\n".join(poses) + "\n")


def write_scannet(folder, camera, frames):
    """ScanNet, exported."""
    for i, frame in enumerate(frames):
        write_image(folder / "color" / f"{i}.png", frame.image)
        write_depth(folder / "depth" / f"{i}.png", frame.depth, 1 / 1000)
        (folder / "pose").mkdir(exist_ok=True)
        np.savetxt(folder / "pose" / f"{i}.txt", frame.T_room_camera, fmt="%.9e")
    (folder / "intrinsic").mkdir()
    K = np.eye(4)
    K[:3, :3] = camera.calibration.K
    np.savetxt(folder / "intrinsic" / "intrinsic_color.txt", K, fmt="%.9e")


def write_colmap(folder, camera, frames, lens=("PINHOLE", 1), parameters=None, model="sparse/0"):
    """A COLMAP model in both formats, the text one in ``sparse/0`` (``model``) and the binary one
    in ``binary/sparse/0`` with images of its own. ``parameters``: of the lens, else those of a
    pinhole."""
    c = camera.calibration
    if parameters is None:
        fx, fy, cx, cy = focal_and_centre(c.K)
        parameters = [fx, fy, cx + 0.5, cy + 0.5]
    rows, records = [], [struct.pack("<Q", len(frames))]
    for i, frame in enumerate(frames):
        for base in (folder, folder / "binary"):
            write_image(base / "images" / f"{i + 8}.png", frame.image)
        T = np.linalg.inv(frame.T_room_camera)
        x, y, z, w = (float(v) for v in quaternion_from_matrix(T[:3, :3]))
        pose = (w, x, y, z, *T[:3, 3].tolist())
        points = "" if i % 2 else "1.5 2.5 -1 3.5 4.5 7"
        rows += [f"{i + 1} {' '.join(map(repr, pose))} 1 {i + 8}.png", points]
        records += [struct.pack("<i7di", i + 1, *pose, 1), f"{i + 8}.png\0".encode()]
        count = len(points.split()) // 3
        records += [struct.pack("<Q", count), struct.pack("<ddq", 1.5, 2.5, -1) * count]
    name, number = lens
    text = f"# cameras\n1 {name} {c.width} {c.height} {' '.join(map(repr, parameters))}\n"
    cameras = struct.pack("<QiiQQ", 1, 1, number, c.width, c.height)
    cameras += struct.pack(f"<{len(parameters)}d", *parameters)
    for where in (folder / model, folder / "binary" / model):
        where.mkdir(parents=True, exist_ok=True)
    (folder / model / "cameras.txt").write_text(text)
    (folder / model / "images.txt").write_text("# images\n" + "\n".join(rows) + "\n")
    (folder / "binary" / model / "cameras.bin").write_bytes(cameras)
    (folder / "binary" / model / "images.bin").write_bytes(b"".join(records))
