"""The robot's own poses, its IMU and its transforms in a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from da3_ros.config import NodeConfig, needs_global_poses, prior_source, uses_imu
from da3_ros.messages.global_pose import POSE, GlobalPoseError, given_pose, open_global_poses
from da3_ros.messages.imu import IMU, open_imu, read_imu
from da3_ros.messages.odometry_tf import (
    ALWAYS_S,
    ODOMETRY,
    add_odometry,
    add_transforms,
    log,
    open_corrections,
    open_prior,
)
from da3_ros.messages.slam_path import PATH, PathReader, SlamPathError
from da3_ros.recordings import Recording, RecordingError
from da3_ros.sensors.global_poses import GlobalPoses
from da3_ros.sensors.imu_input import ImuError, ImuHistory, ImuInput, ImuSample
from da3_ros.sensors.pose_prior import PosePrior, PriorError
from da3_ros.sensors.slam_corrections import SlamCorrections
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
        why = "pose_prior.source is odometry"
        name = topic or _only(recording, ODOMETRY, why, "--odometry")
        for _, message in recording.messages(name):
            try:
                add_odometry(prior, message)
            except PriorError as error:
                log.warning("%s: %s", name, error)
        log.info("pose prior: reading odometry from %s", name)
    return prior


def corrections_of_recording(
    recording: Recording, config: NodeConfig, transforms: TransformTree, prior: PosePrior | None,
    topic: str | None = None,
) -> SlamCorrections | None:  # fmt: skip
    """Read what another SLAM says in a whole recording; ``transforms``: all its transforms.

    ``topic``: of its paths; None: the only one. Returns None if none is followed. Raises
    RecordingError if the paths are missing.
    """
    slam = open_corrections(config, transforms, prior)
    if slam is None or slam.kind != "path":
        return slam
    name = topic or _only(recording, PATH, "pose_prior.corrections is path", "--slam-path")
    reader, paths = PathReader(slam.map_frame), []
    for _, message in recording.messages(name):
        try:
            path, note = reader.read(message)
        except SlamPathError as error:
            log.warning("%s: not used: %s", name, error)
            continue
        paths.append(path)
        if note:
            log.warning("%s: %s", name, note)
    log.info("another SLAM is followed: reading %d paths from %s", len(paths), name)
    slam.set_paths(paths)
    return slam


def imu_of_recording(
    recording: Recording, config: NodeConfig, transforms: TransformTree, topic: str | None = None
) -> ImuInput | None:
    """Returns the input of a recording's IMU, which is read along with the frames; None if the
    parameters use none.

    ``topic``: its topic; None: the only one. Raises RecordingError if there is none.
    """
    if not uses_imu(config.pipeline):
        return None
    own = recording.imu()
    if own is not None and topic is None:
        log.info("imu: reading that of the data set")
        return open_imu(config, transforms, ImuHistory(own.samples), own.T_camera_imu)
    name = topic or _only(recording, IMU, "an IMU is to be used", "--imu")
    messages = recording.along(name)
    log.info("imu: reading %s", name)
    return open_imu(config, transforms, ImuHistory(_samples(name, messages)))


def _samples(topic: str, messages: Iterable[Any]) -> Iterator[ImuSample]:
    """Yields the samples of a topic; logs each fault once."""
    known = set[str]()
    for message in messages:
        try:
            yield read_imu(message)
        except ImuError as error:
            if str(error) not in known:
                known.add(str(error))
                log.warning("%s: %s", topic, error)


def anchors_of_recording(
    recording: Recording, config: NodeConfig, transforms: TransformTree, topic: str | None
) -> GlobalPoses | None:
    """Read the global poses of the robot in a whole recording; ``transforms``: all its transforms.

    ``topic``: of them; None: the only one if the source of metres needs them, else none are used.
    Raises RecordingError if the recording has no such topic.
    """
    if topic is None:
        if not needs_global_poses(config.pipeline):
            return None
        topic = _only(recording, POSE, "global poses are to give metres", "--global-pose")
    if topic not in recording.topics_of(POSE):
        names = ", ".join(recording.topics_of(POSE)) or "none"
        raise RecordingError(
            f"{recording.path.name} has no topic {topic} of PoseWithCovarianceStamped: it has "
            f"{names}"
        )
    found, recorded_ns, faults = [], [], 0
    for log_ns, message in recording.messages(topic):
        try:
            found.append(given_pose(message))
            recorded_ns.append(log_ns)
        except GlobalPoseError as error:
            faults += 1
            if faults == 1:
                log.warning("%s: not used: %s", topic, error)
    log.info("global poses: %d from %s, %d not used", len(found), topic, faults)
    poses = open_global_poses(config, transforms)
    poses.set_all(found, recorded_ns)
    return poses


def transforms_of(recording: Recording) -> TransformTree:
    """All transforms of a recording."""
    tree = TransformTree(keep_s=ALWAYS_S, jump_s=ALWAYS_S)
    for name in recording.topics_of("tf2_msgs/msg/TFMessage"):
        for _, message in recording.messages(name):
            static = name.endswith("tf_static")
            add_transforms(tree, message, static=static, warn=log.warning)
    return tree


def _only(recording: Recording, kind: str, why: str, flag: str) -> str:
    """Returns the only topic of a type. Raises RecordingError."""
    names = recording.topics_of(kind)
    if len(names) == 1:
        return names[0]
    what = kind.rpartition("/")[2]
    if not names:
        raise RecordingError(f"{why}: {recording.path.name} has no {what}")
    choices = " | ".join(names)
    raise RecordingError(
        f"{recording.path.name} has several topics of {what}: choose with {flag} {choices}"
    )
