"""Depth and camera poses of a few images.

python examples/depth_and_poses.py IMAGE IMAGE ...     # none: images of a rendered room

Writes depth_and_poses.png: each image with its depth and confidence. The images need one size.
"""

import sys
from pathlib import Path

from da3_ros.config import DepthConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.scene_picture import write_png
from da3_ros.inference import InferenceConfig, InferenceSession, window_of_images
from da3_ros.messages.decode import decode_file
from da3_ros.synthetic.demo_settings import demo_camera

# da3-tiny is for rendered rooms. For photos: model="da3-small", process_res=504, after
# `da3_ros models --get da3-small`.
MODEL, SIZE = "da3-tiny", 224


def main(names: list[str]) -> None:
    images = [decode_file(Path(name).read_bytes()) for name in names]
    images = images or [demo_camera()[i].image for i in range(0, 16, 4)]

    session = InferenceSession(InferenceConfig(model=MODEL, process_res=SIZE, backend="torch"))
    window = window_of_images(images, SIZE)
    prediction = session.infer(window)

    sheet = ContactSheet(DepthConfig(), metric=False)
    print("view  position x, y, z in the unit of the window, and in the axes of the first camera")
    for i, view in enumerate(window.views):
        x, y, z = prediction.T_window_camera[i, :3, 3]
        print(f"{i:4}  {x:8.3f} {y:8.3f} {z:8.3f}")
        sheet.add(view.image, prediction.depth[i], prediction.confidence[i])
    write_png(Path("depth_and_poses.png"), sheet.picture())
    print("open depth_and_poses.png")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as error:
        sys.exit(f"depth_and_poses: {error}")
