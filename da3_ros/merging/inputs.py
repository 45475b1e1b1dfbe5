"""The scenes to merge, with ids and names that no two of them share.

Points and images stay in their files until the merged scene is written.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from da3_ros.export.scene_file import SceneFile
from da3_ros.export.scene_folder import MAX_ORIGIN, find_scene, scene_name
from da3_ros.keyframe_store.checks import MAX_INTEGER
from da3_ros.keyframe_store.journal import JournalError
from da3_ros.mapping.anchors import HeldAnchor
from da3_ros.mapping.floor_view import FloorView
from da3_ros.mapping.map_table import ViewRow
from da3_ros.mapping.recognition import Recognition
from da3_ros.mapping.scene import Shot
from da3_ros.mapping.submap_spill import Submap
from da3_ros.mapping.submaps import Snapshot
from da3_ros.mapping.trajectory import Poses

COMMON = 3  # frames of two scenes, from which on one continues the other, or is a copy of it


class MergeError(RuntimeError):
    """Scenes that cannot be merged; one line with the cause and the remedy."""


@dataclass(frozen=True, eq=False)
class InputScene:
    """A scene to merge. Numbers are added to its ids, and its cameras may have new names."""

    name: str
    reader: SceneFile
    saved: Snapshot  # the scene as it was saved, without points and images
    first_submap: int = 0
    first_chain: int = 0
    first_component: int = 0
    origins: Mapping[str, str] | None = None  # new names of the origins of its submaps
    cameras: Mapping[str, str] | None = None  # new names of its cameras; None: as they are

    @property
    def submaps(self) -> list[Submap]:
        """Its submaps with new ids, in its own frame, without points and images."""
        return [self._renumbered(submap) for submap in self.saved.submaps]

    @property
    def submap_count(self) -> int:
        """How many ids of submaps it takes."""
        return 1 + max(self._submap_ids, default=-1)

    @property
    def chain_count(self) -> int:
        """How many numbers of chains it takes."""
        return 1 + max(self.saved.chain, *(s.chain for s in self.saved.submaps), 0)

    @property
    def component_count(self) -> int:
        """How many numbers of components it takes."""
        return 1 + max((s.component for s in self.saved.submaps), default=0)

    @property
    def _submap_ids(self) -> Iterable[int]:
        known = self.saved.recognition
        nodes = [] if known is None else [n.last for n in known.nodes]
        return itertools.chain((s.id for s in self.saved.submaps), nodes)

    def camera(self, name: str) -> str:
        """Returns the new name of a camera."""
        return name if self.cameras is None else self.cameras[name]

    def filled(self, submap: int) -> Submap:
        """Returns a submap, by its new id, with points and images. Raises SceneFileError."""
        old = self.reader.filled(submap - self.first_submap)
        images = {(self.camera(c), stamp): data for (c, stamp), data in old.images.items()}
        return replace(self._renumbered(old), images=images)

    def _renumbered(self, submap: Submap) -> Submap:
        origins = self.origins or {}
        return replace(
            submap,
            id=submap.id + self.first_submap,
            chain=submap.chain + self.first_chain,
            component=submap.component + self.first_component,
            origin=origins.get(submap.origin, self.name),
        )

    def poses(self) -> Poses:
        """Returns its poses with new ids, in the frames of their submaps."""
        rows = self.saved.poses.rows.copy()
        rows["submap"] += self.first_submap
        return replace(
            self.saved.poses, rows=rows, cameras=tuple(map(self.camera, self.saved.poses.cameras))
        )

    def floor(self) -> tuple[FloorView, ...]:
        """Returns what its keyframes saw of the floor, with new ids."""
        return tuple(
            replace(v, submap=v.submap + self.first_submap, camera=self.camera(v.camera))
            for v in self.saved.floor.views
        )

    def anchors(self) -> tuple[HeldAnchor, ...]:
        """Returns the global poses that hold it, with new ids."""
        return tuple(
            replace(a, submap=a.submap + self.first_submap,
                    frame=(a.frame[0], self.camera(a.frame[1])))
            for a in self.saved.anchors
        )  # fmt: skip

    def recognition(self) -> Recognition | None:
        """Returns what recognises its locations, with new ids; None: nothing does."""
        known = self.saved.recognition
        if known is None or not known.keyframes:
            return None
        by = self.first_submap
        return replace(
            known,
            nodes=tuple(replace(n, first=n.first + by, last=n.last + by) for n in known.nodes),
            edges=tuple(replace(e, first=e.first + by, second=e.second + by) for e in known.edges),
            keyframes=tuple(map(self._renamed, known.keyframes)),
            T_map_submap={id + by: T for id, T in known.T_map_submap.items()},
        )

    def _renamed(self, keyframe: ViewRow) -> ViewRow:
        view = replace(keyframe.view, camera=self.camera(keyframe.view.camera))
        return replace(keyframe, view=view, submap=keyframe.submap + self.first_submap)


@dataclass(frozen=True)
class Copy:
    """A scene that is left out, since another one has frames of it."""

    name: str
    of: str  # the scene that stays
    common: int  # frames that both have
    frames: int  # that it has itself, counted alike

    @property
    def is_whole(self) -> bool:
        """Whether the other scene has all of its frames."""
        return self.common == self.frames


def open_inputs(folders: Sequence[Path]) -> list[InputScene]:
    """Opens the scenes in ``folders`` (or ``scene`` in them), the reference first: the first
    metric one, else the first. Raises SceneFileError; MergeError, also if two have frames in
    common."""
    given = _opened(folders)
    for one, kept, common in _with_common_frames(given):
        a, b = sorted((one, kept))
        raise MergeError(
            f"{scene_name(given[a][0])} and {scene_name(given[b][0])} have {common} frames in "
            "common, as when one continues the other: what both have would be in the result "
            "twice; leave one of them out"
        )
    return _numbered(given)


def open_without_copies(folders: Sequence[Path]) -> tuple[list[InputScene], list[Copy]]:
    """As ``open_inputs``, but of scenes with common frames leaves out the smaller ones; one
    without metres is left out rather than one with metres. Raises SceneFileError, MergeError."""
    given = _opened(folders)
    copies = {one: (kept, common) for one, kept, common in _with_common_frames(given)}
    left_out = [
        Copy(scene_name(given[one][0]), scene_name(given[kept][0]), common,
             len(_frames(given[one][1])))
        for one, (kept, common) in sorted(copies.items())
    ]  # fmt: skip
    if len(given) - len(copies) < 2:
        said = "; ".join(f"{c.name} has {c.common} frames in common with {c.of}" for c in left_out)
        raise MergeError(f"there is one scene only, nothing to merge: {said}")
    return _numbered([one for i, one in enumerate(given) if i not in copies]), left_out


def _opened(folders: Sequence[Path]) -> list[tuple[Path, SceneFile]]:
    """Opens scenes, none of them twice and none empty. Raises SceneFileError, MergeError."""
    paths = [find_scene(folder) for folder in folders]
    real = [os.path.realpath(path) for path in paths]
    for i, path in enumerate(real):
        if path in real[:i]:
            raise MergeError(f"{folders[i]} is given twice: name each scene once")
    readers = [SceneFile(path) for path in paths]
    for folder, reader in zip(folders, readers, strict=True):
        if not len(reader.saved.poses):
            raise MergeError(f"the scene in {folder} is empty: leave it out")
    return list(zip(folders, readers, strict=True))


def _numbered(given: Sequence[tuple[Path, SceneFile]]) -> list[InputScene]:
    """Returns the scenes with ids of their own, the reference first. Raises MergeError."""
    first = next((i for i, (_, r) in enumerate(given) if r.saved.metric), 0)
    return _without_common_ids(_with_names([given[first], *given[:first], *given[first + 1 :]]))


def _with_common_frames(
    given: Sequence[tuple[Path, SceneFile]],
) -> Iterator[tuple[int, int, int]]:
    """Yields scenes that have frames in common with one that stays: one continues the other, or
    both continue a third one, or they are of one recording. Both by their index, and how many
    frames. Scenes in metres stay, then the larger ones."""
    frames = [_frames(reader) for _, reader in given]
    order = sorted(
        range(len(given)), key=lambda i: (not given[i][1].saved.metric, -len(frames[i]), i)
    )
    stay: list[int] = []
    for one in order:
        shared = ((len(frames[one] & frames[kept]), kept) for kept in stay)
        common, kept = max(shared, key=lambda pair: pair[0], default=(0, one))
        if common < COMMON:
            stay.append(one)
        else:
            yield one, kept, common


def _frames(one: SceneFile) -> set[tuple[int, bytes]]:
    """Returns stamp and pose in the submap of all frames that are not at its origin: there every
    submap begins, and videos all begin at stamp 0. Merging renames cameras, so that their names
    tell nothing."""
    rows = one.saved.poses.rows
    moved = rows[(rows["T"] != np.eye(3, 4)).any(axis=(1, 2))]
    return {(int(r["stamp_ns"]), r["T"].tobytes()) for r in moved}


def _with_names(given: Sequence[tuple[Path, SceneFile]]) -> list[InputScene]:
    """Returns the scenes with names and origins that no two of them share."""
    inputs: list[InputScene] = []
    names: set[str] = set()
    for folder, reader in given:
        origins = dict.fromkeys(s.origin for s in reader.saved.submaps if s.origin)
        new = {}
        for origin in origins:
            new[origin] = _unused(origin, names)
            names.add(new[origin])
        name = _unused(scene_name(folder), names)
        names.add(name)
        inputs.append(InputScene(name, reader, reader.saved, origins=new))
    return inputs


def _unused(name: str, used: Collection[str]) -> str:
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in used)


def _without_common_ids(inputs: Sequence[InputScene]) -> list[InputScene]:
    """Returns the scenes with ids and cameras that no two of them share. Raises MergeError."""
    out: list[InputScene] = []
    submaps = chains = components = 0
    used: set[Shot] = set()
    leaders, followers = set[str](), set[str]()
    for one in inputs:
        shots, own = _shots(one), one.saved.poses
        leading = {own.cameras[i] for i in own.leaders}
        following = set(own.cameras) - leading
        cameras = None
        if shots & used or leading & followers or following & leaders:
            taken = {camera for camera, _ in used} | leaders | followers
            cameras = _prefixed(one, taken, shots)
            shots = {(cameras[c], stamp) for c, stamp in shots}
            leading, following = ({cameras[c] for c in some} for some in (leading, following))
        out.append(
            replace(
                one, cameras=cameras, first_submap=submaps, first_chain=chains,
                first_component=components,
            )
        )  # fmt: skip
        submaps += one.submap_count
        chains += one.chain_count
        components += one.component_count
        used |= shots
        leaders, followers = leaders | leading, followers | following
    if max(submaps, chains, components) > MAX_INTEGER:
        raise MergeError("the scenes have too many submaps together: merge fewer of them")
    return out


def _shots(one: InputScene) -> set[Shot]:
    """Returns camera and stamp of all that a scene has. Raises MergeError."""
    poses = one.saved.poses
    found = set[Shot]()
    for index, camera in enumerate(poses.cameras):
        stamps = poses.rows["stamp_ns"][poses.rows["camera"] == index]
        found.update((camera, stamp) for stamp in np.unique(stamps).tolist())
    known = one.saved.recognition
    views = [] if known is None else [k.view for k in known.keyframes]
    found.update((view.camera, view.stamp_ns) for view in views)
    for submap in one.saved.submaps:
        found.update(one.reader.shots(submap.id))
    return found | (_stored_shots(one, found) if one.reader.has_keyframes else set())


def _stored_shots(one: InputScene, known: Collection[Shot]) -> set[Shot]:
    """Returns camera and stamp of the stored frames; ``known``: those of the scene. Raises
    MergeError."""
    remedy = "leave the scene out, or load and save it to merge it without stored keyframes"
    try:
        with one.reader.keyframes() as stored:
            found = {frame.key for frame in stored.frames}
    except JournalError as error:
        raise MergeError(f"{error}: {remedy}") from error
    if found and not found & set(known):
        raise MergeError(
            f"the stored keyframes of {one.name} are those of another scene: {remedy}"
        )
    return found


def _prefixed(one: InputScene, taken: Collection[str], shots: Iterable[Shot]) -> Mapping[str, str]:
    """Returns new names of a scene's cameras: those that they had, below the scene's name."""
    names = {*one.saved.poses.cameras, *(camera for camera, _ in shots)}
    begin = re.sub(r"[^A-Za-z0-9_]", "_", one.name)[:MAX_ORIGIN] or "scene"
    for number in itertools.count(1):
        prefix = begin if number == 1 else f"{begin}_{number}"
        new = {name: f"{prefix}/{name}" if name else prefix for name in names}
        if not set(new.values()) & set(taken):
            return new
    raise AssertionError


def check_folders(folders: Sequence[Path], output: Path) -> None:
    """Raises MergeError if ``output`` is one of the scenes, in one, or around one."""
    target = Path(os.path.realpath(output))
    for folder in folders:
        for path in (folder, find_scene(folder)):
            real = Path(os.path.realpath(path))
            if target == real or real in target.parents or target in real.parents:
                raise MergeError(f"--output {output} and {folder} overlap: name another folder")
