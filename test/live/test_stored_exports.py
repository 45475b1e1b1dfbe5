"""Meshes of a running stream, without a middleware."""

import dataclasses
import errno
import math
import shutil
import threading
from concurrent.futures import Future

import pytest
from support.cases import long_after
from support.streams import as_messages, stream_of

pytest.importorskip("skimage", reason="needs scikit-image: pip install scikit-image")

from da3_ros.cli import main
from da3_ros.export import stored_mesh
from da3_ros.export.formats import MESH, MeshFormat
from da3_ros.export.selection import ExportError, Selection, silent
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.keyframe_store.store import StoredScene
from da3_ros.live.stored_exports import StoredExports, StoredSoFar
from da3_ros.synthetic import SyntheticCamera
from da3_ros.synthetic.truth import TruthSession

FILTERS = DepthFilters(voxel=0.1)
FRAMES = 8
VALUES = {
    "map.store": "night", "keyframe.rotation_deg": 0.0, "keyframe.parallax": 0.0, "window.size": 3,
    "dense.enabled": False,
}  # fmt: skip


@pytest.fixture
def exports():
    found = StoredExports()
    yield found
    assert found.worker.stop(10)


def camera(frames=FRAMES):
    return SyntheticCamera(seed=2, size=(112, 84), walk="straight", frames=frames)


def stream_in(folder, **values):
    stream, host = stream_of(
        TruthSession(camera(2 * FRAMES)), export_dir=str(folder), **{**VALUES, **values}
    )
    show(stream, host, list(camera(2 * FRAMES))[:FRAMES])
    return stream, host


def show(stream, host, frames):
    class Some:
        calibration = camera().calibration

        def __iter__(self):
            return iter(frames)

    for raw in as_messages(Some(), host.lib):
        stream.put(raw)
        while stream.step():
            pass


def made(exports, stream, path, selection=Selection(), progress=silent):  # noqa: B008
    with exports.begun(path) as job:
        return job.run(MESH, stream.stored_scenes(), selection, FILTERS, progress)


@pytest.mark.long
def test_the_mesh_has_all_that_was_seen_and_is_that_of_the_command(tmp_path, exports):
    stream, host = stream_in(tmp_path, **{"dense.enabled": True})
    done, missing = made(exports, stream, tmp_path / "room.mesh.ply")
    assert missing == 0
    assert done.keyframes == stream.pipeline.counters["keyframes_stored"] >= FRAMES - 2
    assert done.bytes == (tmp_path / "room.mesh.ply").stat().st_size
    assert main(["export", str(tmp_path / "night" / "000001"), str(tmp_path / "c.mesh.ply"),
                 "--voxel", "0.1"]) == 0  # fmt: skip
    assert (tmp_path / "c.mesh.ply").read_bytes() == (tmp_path / "room.mesh.ply").read_bytes()
    show(stream, host, list(camera(2 * FRAMES))[FRAMES:])  # the recorder goes on
    again, _ = made(exports, stream, tmp_path / "room.mesh.ply")
    assert again.keyframes > done.keyframes
    assert stream.finish_recording(10)


@pytest.mark.long
def test_moved_places_and_poses_are_those_of_now(tmp_path, exports):
    """What moves is written late, with the next keyframe: an export must not miss it."""
    stream, _ = stream_in(tmp_path)
    recording, submap = stream.pipeline.scene_map.recording, stream.pipeline.map.submaps[0]
    submap.T_map_submap.t[:] = (100, 0, 0)
    recording.place([submap])
    made(exports, stream, tmp_path / "room.mesh.ply")
    with StoredScene.open(tmp_path / "night" / "000001") as stored:
        assert stored.submaps[0].T_map_submap.t[0] == 100
    assert stream.finish_recording(10)


def test_a_second_mesh_is_refused_meanwhile(tmp_path, exports):
    stream, _ = stream_in(tmp_path)
    with exports.begun(tmp_path / "a.mesh.ply") as job:
        job.share = 0.43
        with pytest.raises(ExportError, match=r"a\.mesh\.ply is being made \(43 %\).*~/reset"):
            made(exports, stream, tmp_path / "b.mesh.ply")
        assert exports.percent == 43
    assert math.isnan(exports.percent)
    made(exports, stream, tmp_path / "b.mesh.ply")


def test_the_percentage_grows_to_the_end(tmp_path, exports):
    stream, _ = stream_in(tmp_path)
    seen = []
    made(exports, stream, tmp_path / "a.mesh.glb",
         progress=lambda step, share: seen.append(exports.percent))  # fmt: skip
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert any(20 < percent < 90 for percent in seen)
    assert seen[-1] == 100


def test_the_percentage_never_goes_back(tmp_path, exports, monkeypatch):
    """Not even where a step begins with less than the last one had."""
    seen = []

    def work(self, stored, path, selection, filters, progress):
        for share in (0.0, 0.6, 0.2, 0.7):
            progress("fusing", share)
            seen.append(exports.percent)
        raise ExportError("enough")

    monkeypatch.setattr(MeshFormat, "write", work)
    stream, _ = stream_in(tmp_path)
    with pytest.raises(ExportError, match="enough"):
        made(exports, stream, tmp_path / "a.mesh.glb")
    assert seen == pytest.approx([0, 60, 60, 70])


@pytest.mark.parametrize(
    "at", long_after(1, ["writing", "fusing", "finding blocks", "extracting"])
)
def test_a_cancelled_mesh_leaves_no_file(tmp_path, exports, at):
    stream, _ = stream_in(tmp_path)

    def cancel(step, share):
        if step == at:
            exports.cancel()

    with pytest.raises(ExportError, match=r"cancelled by ~/reset"):
        made(exports, stream, tmp_path / "a.mesh.glb", progress=cancel)
    assert [p.name for p in tmp_path.iterdir()] == ["night"]
    made(exports, stream, tmp_path / "a.mesh.glb")


def test_an_ending_node_ends_the_mesh(tmp_path):
    exports, (stream, _) = StoredExports(), stream_in(tmp_path)
    begun = threading.Event()

    def slow(step, share):
        begun.set()
        threading.Event().wait(0.01)

    with exports.begun(tmp_path / "a.mesh.glb") as job:
        scenes = stream.stored_scenes()
        done = exports.worker.submit(lambda: job.run(MESH, scenes, Selection(), FILTERS, slow))
        begun.wait(10)
        exports.worker.stop(10)
        with pytest.raises(ExportError, match="shutting down"):
            done.result(10)
    assert [p.name for p in tmp_path.iterdir()] == ["night"]


def test_a_deleted_store_and_a_full_disk_are_one_line(tmp_path, exports, monkeypatch):
    stream, _ = stream_in(tmp_path)
    with monkeypatch.context() as patch:

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(stored_mesh, "write_mesh", full)
        with pytest.raises(ExportError, match="No space left") as error:
            made(exports, stream, tmp_path / "a.mesh.glb")
        assert "\n" not in str(error.value)
    shutil.rmtree(tmp_path / "night")
    with pytest.raises(ExportError, match="holds no scene") as error:
        made(exports, stream, tmp_path / "a.mesh.glb")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written_is_named(tmp_path, exports):
    failed = Future()
    failed.set_result(False)
    with exports.begun(tmp_path / "a.mesh.glb") as job:
        scenes = {"": StoredSoFar(tmp_path / "night", failed, 3)}
        with pytest.raises(ExportError, match="storing keyframes is paused"):
            job.run(MESH, scenes, Selection(), FILTERS, silent)


def test_keyframes_that_are_not_stored_are_counted(tmp_path, exports):
    stream, _ = stream_in(tmp_path)
    scenes = stream.stored_scenes()
    more = {k: StoredSoFar(s.folder, s.flushed, s.keyframes + 3) for k, s in scenes.items()}
    with exports.begun(tmp_path / "a.mesh.glb") as job:
        assert job.run(MESH, more, Selection(), FILTERS, silent)[1] == 3


@pytest.mark.long
def test_cameras_with_scenes_of_their_own_get_a_mesh_each(tmp_path, exports):
    names = ("front", "side/left")
    values = {"cameras": list(names), "window.mode": "independent"}
    stream, host = stream_of(
        TruthSession({name: camera() for name in names}), export_dir=str(tmp_path),
        **{**VALUES, **values},
    )  # fmt: skip
    for raw in as_messages(camera(), host.lib):
        for name in names:
            stream.put(dataclasses.replace(raw, camera=name))
            while stream.step():
                pass
    made(exports, stream, tmp_path / "room.mesh.glb")
    assert sorted(p.name for p in tmp_path.glob("*.glb")) == [
        "room.mesh.glb", "room_side_left.mesh.glb",
    ]  # fmt: skip
    assert stream.finish_recording(10)


def test_a_choice_of_points_is_refused(tmp_path, exports):
    stream, _ = stream_in(tmp_path)
    with pytest.raises(ExportError, match="a mesh is not made of points: leave out max_points"):
        made(exports, stream, tmp_path / "a.mesh.glb", Selection(max_points=5))


def test_without_a_store_there_is_nothing(tmp_path):
    stream, _ = stream_in(tmp_path, **{"map.store": ""})
    assert stream.stored_scenes() == {}


@pytest.mark.parametrize(
    ("asked", "path"),
    [("room", "room.mesh.glb"), ("a/room", "a/room.mesh.glb"), ("room.ply", "room.ply"), ("", "")],
)
def test_a_name_without_a_suffix_gets_one(asked, path):
    assert MESH.named(asked) == path


def test_the_mesh_of_another_camera_has_its_name(tmp_path):
    named = MESH.path_for_camera(tmp_path / "room.mesh.obj", "front/left")
    assert named == tmp_path / "room_front_left.mesh.obj"
    assert MESH.path_for_camera(tmp_path / "room.obj", "left") == tmp_path / "room_left.obj"
