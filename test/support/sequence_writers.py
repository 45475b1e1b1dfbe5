"""Writes a rendered walk as the data sets that `bench/accuracy.py` reads."""

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


def write_euroc(folder, camera, frames):
    """EuRoC: the body is not the camera, and its poses come twice as often."""
    T_body_camera = np.eye(4)
    T_body_camera[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]
    T_body_camera[:3, 3] = [0.1, 0.02, -0.05]
    cam0 = folder / "mav0" / "cam0"
    images, poses = ["#timestamp [ns],filename"], ["#timestamp, p_x, p_y, p_z, q_w, q_x, ..."]
    for frame in frames:
        write_image(cam0 / "data" / f"{frame.stamp_ns}.png", frame.image)
        images.append(f"{frame.stamp_ns},{frame.stamp_ns}.png")
        T = frame.T_room_camera @ np.linalg.inv(T_body_camera)
        x, y, z, w = quaternion_from_matrix(T[:3, :3])
        numbers = ",".join(f"{v:.9f}" for v in (*T[:3, 3], w, x, y, z, *[0.0] * 9))
        poses.append(f"{frame.stamp_ns},{numbers}")
    (cam0 / "data.csv").write_text("\n".join(images) + "\n")
    truth = folder / "mav0" / "state_groundtruth_estimate0"
    truth.mkdir(parents=True)
    (truth / "data.csv").write_text("\n".join(poses) + "\n")
    K = camera.calibration.K
    sensor = {
        "T_BS": {"rows": 4, "cols": 4, "data": T_body_camera.ravel().tolist()},
        "resolution": [camera.calibration.width, camera.calibration.height],
        "intrinsics": [float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])],
        "distortion_model": "radial-tangential",
        "distortion_coefficients": [0.0] * 4,
    }
    (cam0 / "sensor.yaml").write_text(yaml.safe_dump(sensor))
