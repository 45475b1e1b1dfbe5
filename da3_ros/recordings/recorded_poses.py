"""The robot's own poses and transforms in a recording."""

from __future__ import annotations

from da3_ros.config import NodeConfig, prior_source
from da3_ros.messages.odometry_tf import (
    ALWAYS_S,
    ODOMETRY,
    add_odometry,
    add_transforms,
    log,
    open_prior,
)
from da3_ros.recordings import Recording, RecordingError
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.transform_tree import TransformTree


def prior_of_recording(
    recording: Recording, config: NodeConfig, transforms: TransformTree, topic: str | None = None
) -> PosePrior | None:
    """Read the robot's own poses of a whole recording; ``transforms``: all its transforms.

    ``topic``: the odometry topic; None: the only one. Returns None if no prior is selected.
    Raises RecordingError if the poses are missing.
    """
    if prior_source(config.pipeline) == "none":
        return None
    prior = open_prior(config, transforms, keep_s=float("inf"))
    assert prior is not None
    if prior.source == "odometry":
        name = topic or _only_odometry(recording)
        for _, message in recording.messages(name):
            try:
                add_odometry(prior, message)
            except PriorError as error:
                log.warning("%s: %s", name, error)
        log.info("pose prior: reading odometry from %s", name)
    return prior


def transforms_of(recording: Recording) -> TransformTree:
    """All transforms of a recording."""
    tree = TransformTree(keep_s=ALWAYS_S, jump_s=ALWAYS_S)
    for name in recording.topics_of("tf2_msgs/msg/TFMessage"):
        for _, message in recording.messages(name):
            static = name.endswith("tf_static")
            add_transforms(tree, message, static=static, warn=log.warning)
    return tree


def _only_odometry(recording: Recording) -> str:
    names = recording.topics_of(ODOMETRY)
    if len(names) == 1:
        return names[0]
    if not names:
        raise RecordingError(f"pose_prior.source is odometry: {recording.path.name} has none")
    choices = " | ".join(names)
    raise RecordingError(
        f"{recording.path.name} has several odometry topics: choose with --odometry {choices}"
    )
