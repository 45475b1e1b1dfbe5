"""An own export format: a floor plan, a grey image of the map from above.

python examples/export_floor_plan.py                        # a camera in a rendered room
python examples/export_floor_plan.py SCENE room.png ...     # as `da3_ros export`, with its options

Up in the image is forward of the first camera, which is the cross. The darker, the more points lie
above each other: walls are dark, floors are light, and what was not seen is white. A class and its
row are enough: command, service and replay know the format, and select points for it.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from da3_ros.cli import main
from da3_ros.config import config_from_parameters
from da3_ros.drawing.scene_picture import write_png
from da3_ros.export.export import ExportError
from da3_ros.export.formats import FORMATS, SceneFormat
from da3_ros.pipeline import Pipeline
from da3_ros.synthetic.demo_settings import PARAMETERS, demo_camera
from da3_ros.types import Frame

CELLS = 200  # along the longer side
SETTINGS = {**PARAMETERS, "backend": "torch", "refinement.enabled": False, "dense.enabled": False}


class FloorPlan(SceneFormat):
    name, title, suffixes = "plan", "floor plan", (".png",)

    def write(self, scene, points, path, progress):
        if not len(points):
            raise ExportError("a floor plan needs points, and the scene has none")
        low, high = (np.r_[corner[:2], 0] for corner in points.box())
        low, high = np.minimum(low, 0)[:2], np.maximum(high, 0)[:2]  # with the first camera
        cell = float((high - low).max()) / CELLS
        counts = np.zeros(np.ceil((high - low) / cell).astype(int) + 1)
        for chunk in points.chunks(progress):  # x forward, y left, z up
            np.add.at(counts, tuple(((chunk["xyz"][:, :2] - low) / cell).astype(int).T), 1)
        grey = 255 - 255 * np.minimum(counts / np.percentile(counts[counts > 0], 95), 1)
        plan = cv2.cvtColor(grey[::-1, ::-1].astype(np.uint8), cv2.COLOR_GRAY2RGB)
        camera = (high[::-1] / cell).astype(int)
        write_png(path, cv2.drawMarker(plan, camera.tolist(), (255, 0, 0), cv2.MARKER_CROSS, 9))


def map_of_a_rendered_room(path: Path) -> None:
    camera, pipeline = demo_camera(), Pipeline(config_from_parameters(SETTINGS))
    for seen in camera:
        list(pipeline.push(Frame(seen.stamp_ns, seen.image, calibration=camera.calibration)))
    list(pipeline.flush())
    print(f"open {pipeline.export(path)}")


if __name__ == "__main__":
    FORMATS["plan"] = FloorPlan()
    if len(sys.argv) > 1:
        sys.exit(main(["export", *sys.argv[1:]]))
    map_of_a_rendered_room(Path("floor_plan.png"))
