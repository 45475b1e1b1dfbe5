"""A running replay: what it has read, its scenes, and its files."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

from da3_ros.config import NodeConfig
from da3_ros.drawing.tracks_file import TrackSampler
from da3_ros.pipeline.pipeline import Pipeline
from da3_ros.replay.checkpoint import Written
from da3_ros.replay.object_state import load_state
from da3_ros.replay.result_bag import ResultBag
from da3_ros.replay.results import ReplayOptions, ReplayScene, SceneResults, WrittenScene
from da3_ros.sensors.frame_annotator import FrameAnnotator
from da3_ros.sensors.rig_sync import RigSync
from da3_ros.types import Frame


class ReplayState:
    """Takes the frames of a recording, one after the other.

    All that decides about later results is in here, so that a checkpoint can save it.
    """

    def __init__(
        self, scenes: dict[str, ReplayScene], annotator: FrameAnnotator, bag: ResultBag, every: int
    ) -> None:
        """every: number of framesets of which one is used."""
        self.scenes, self.every, self.read = scenes, every, 0
        self._annotator, self._bag = annotator, bag
        self._sync: RigSync[Frame] = RigSync.of(self.first.pipeline.config)
        self._taken: Counter[str] = Counter()  # number of framesets of each scene

    @staticmethod
    def open(
        stack: contextlib.ExitStack, folder: Path, options: ReplayOptions, settings: NodeConfig,
        annotator: FrameAnnotator, pipelines: dict[str, Pipeline], written: Written | None,
    ) -> ReplayState:  # fmt: skip
        """Begins the files in ``folder``, or continues those that were ``written``.

        Raises OSError, JournalError.
        """
        bag = stack.enter_context(ResultBag(folder, None if written is None else written.bag))
        scenes = {}
        for i, (name, pipeline) in enumerate(pipelines.items()):
            before = WrittenScene() if written is None else written.scenes[name]
            results = SceneResults(
                folder, bag, options, settings, annotator, pipeline.scene_map,
                TrackSampler(pipeline.refinement.refiner.track_history), name, additional=i > 0,
                written=before,
            )  # fmt: skip
            stack.enter_context(results)
            stack.callback(pipeline.scene_map.finish_recording)
            results.store(pipeline, before)
            scenes[name] = ReplayScene(pipeline, results)
        every = 1 if not settings.pipeline.cameras else options.every
        return ReplayState(scenes, annotator, bag, every)

    @property
    def first(self) -> ReplayScene:
        """The scene of the first camera, or of all."""
        return next(iter(self.scenes.values()))

    def pipeline_of(self, frame: Frame) -> Pipeline:
        """Returns the pipeline that a frame belongs to."""
        return self.scenes.get(frame.camera, self.first).pipeline

    def push(self, frame: Frame) -> None:
        """Processes the next frame of the recording."""
        for frameset in self._sync.add(frame):
            self._push(frameset.frames)
        self.read += 1

    def flush(self) -> None:
        """Processes what still waits, at the end of the recording."""
        for frameset in self._sync.flush():
            self._push(frameset.frames)
        for scene in self.scenes.values():
            for result in scene.pipeline.flush():
                scene.take(result)

    def _push(self, frames: tuple[Frame, ...]) -> None:
        name = frames[0].camera if len(self.scenes) > 1 else ""
        if self._taken[name] % self.every == 0:
            self.scenes.get(name, self.first).push(self._annotator.annotate(frames))
        self._taken[name] += 1

    # Checkpoints ---------------------------------------------------------------------------------

    def written(self) -> Written:
        """Returns how much of the files was written; it is on the disk then. Raises OSError."""
        scenes = {name: scene.results.written() for name, scene in self.scenes.items()}
        return Written(self._bag.state(), scenes)

    def services(self) -> dict[str, Any]:
        """Returns the objects that are no part of the state: files, and what is read at start."""
        found = {
            "bag": self._bag, "library": self._bag.library,
            "transforms": self._annotator.transforms, "prior": self._annotator.prior,
            "slam": self._annotator.slam,
        }  # fmt: skip
        if (ranges := self._annotator.ranges) is not None:
            found["range feed"] = ranges.feed
            found |= {f"range {topic}": history for topic, history in ranges.topics.items()}
        if self._annotator.imu is not None:
            found["imu"] = self._annotator.imu.history
        for name, scene in self.scenes.items():
            found[f"trajectory {name}"] = scene.results.trajectory
            if scene.results.video is not None:
                found[f"pictures {name}"] = scene.results.video.spill
            found[f"recorder {name}"] = scene.results.recorder
            found[f"spill {name}"] = scene.results.spill
            found[f"saved keyframes {name}"] = scene.pipeline.loops.saved_keyframes
        return {name: service for name, service in found.items() if service is not None}

    def load(self, path: Path, services: dict[str, Any]) -> None:
        """Takes over the state of a checkpoint. Raises StateError."""
        load_state(path, "state", self, services)
