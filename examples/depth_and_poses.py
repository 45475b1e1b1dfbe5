"""Depth and camera poses of a few images.

python examples/depth_and_poses.py                      # images of a rendered room, da3-tiny
python examples/depth_and_poses.py IMAGE IMAGE ...      # photos of one size, da3-small

Writes depth_and_poses.png: each image with its depth and confidence. Once before photos:
`da3_ros models --get da3-small`; `--model` names another network.
"""

import argparse
import sys
from pathlib import Path

from da3_ros.config import DepthConfig
from da3_ros.drawing.contact_sheet import ContactSheet
from da3_ros.drawing.scene_picture import write_png
from da3_ros.inference import InferenceConfig, InferenceSession, window_of_images
from da3_ros.messages.decode import decode_file
from da3_ros.network import MODELS, CheckpointError
from da3_ros.synthetic.demo_settings import demo_camera


def main(names: list[str], model: str) -> None:
    images = [decode_file(Path(name).read_bytes()) for name in names]
    images = images or [demo_camera()[i].image for i in range(0, 16, 4)]
    size = 224 if model == "da3-tiny" else 504  # as in training

    window = window_of_images(images, size)
    session = InferenceSession(InferenceConfig(model=model, process_res=size, backend="torch"))
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
    parser = argparse.ArgumentParser()
    parser.add_argument("images", nargs="*")
    parser.add_argument("--model", choices=[m for m, spec in MODELS.items() if spec.multi_view])
    given = parser.parse_args()
    try:
        main(given.images, given.model or ("da3-small" if given.images else "da3-tiny"))
    except (OSError, ValueError, CheckpointError) as error:
        sys.exit(f"depth_and_poses: {error}")
