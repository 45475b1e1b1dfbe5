"""Meshes that cannot be: each is one line with the right remedy, before the work if possible."""

import types
from pathlib import Path

import numpy as np
import pytest
from support.stored_walls import write_walls

pytest.importorskip("skimage", reason="needs scikit-image: pip install scikit-image")

from da3_ros.cli import main
from da3_ros.export import stored_mesh
from da3_ros.export.selection import ExportError, Selection
from da3_ros.export.stored_depth import DepthFilters
from da3_ros.export.stored_mesh import export_mesh
from da3_ros.export.surface import fused_surface
from da3_ros.keyframe_store.store import StoredScene

NO_SURFACE = types.SimpleNamespace(faces=())


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (1, [], "it needs 2 keyframes that see the same location, and the scene has 1"),
        (4, ["--crop", "50", "50", "50", "51", "51", "51"], "none is inside crop [50.0"),
        (4, ["--voxel", "100"], "voxel is 100, and typical depth is 4: choose a smaller one"),
        (4, ["--max-depth", "1"], "no depth passes the filters: choose a larger max_depth"),
        (4, ["--min-confidence", "9"], "or a smaller min_confidence"),
    ],
)
def test_no_surface_names_the_cause(tmp_path, capsys, count, options, words):
    scene = write_walls(tmp_path / "scene", count)
    target = tmp_path / "x.mesh.ply"
    assert main(["export", str(scene), str(target), "--voxel", "0.1", *options]) == 1
    said = capsys.readouterr().err
    assert "no surface: " in said
    assert words in said
    assert said.count("\n") == 1
    assert "larger one" not in said
    assert not target.exists()


def test_looking_for_the_cause_ends_when_it_is_cancelled(tmp_path, monkeypatch):
    scene, steps = write_walls(tmp_path / "scene", 6, step=50), []

    def progress(step, share):
        steps.append(step)
        if step == "looking for the cause" and steps.count(step) == 2:
            raise ExportError("cancelled")

    loads = []
    with StoredScene.open(scene) as stored:
        load = type(stored).load
        monkeypatch.setattr(
            type(stored), "load", lambda self, key: loads.append(key) or load(self, key)
        )
        monkeypatch.setattr(stored_mesh, "fused_surface", lambda *_, **__: NO_SURFACE)
        with pytest.raises(ExportError, match="cancelled"):
            export_mesh(
                stored, tmp_path / "x.mesh.ply", Selection(), DepthFilters(voxel=0.1), progress
            )
    assert len(loads) == 1


def test_keyframes_that_see_different_places_make_no_surface(tmp_path):
    scene = write_walls(tmp_path / "scene", 3, step=50)
    with (
        StoredScene.open(scene) as stored,
        pytest.raises(ExportError, match="no location was seen"),
    ):
        export_mesh(stored, tmp_path / "x.mesh.ply", Selection(), DepthFilters(voxel=0.1))


@pytest.mark.parametrize(
    "kind", ["folder", "file as a parent", "link to a file", "no folder for files"]
)
def test_what_cannot_be_written_is_refused_before_fusing(tmp_path, monkeypatch, kind):
    def fused(*_, **__):
        raise AssertionError("fused")

    monkeypatch.setattr(stored_mesh, "fused_surface", fused)
    scene = write_walls(tmp_path / "scene", 2)
    path = tmp_path / "x.mesh.ply"
    if kind == "folder":
        path.mkdir()
    elif kind == "file as a parent":
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "x.mesh.ply"
    elif kind == "no folder for files":
        path = Path("/proc/x.mesh.ply")  # not even root may write there
    else:
        (tmp_path / "link").symlink_to(tmp_path / "file")
        (tmp_path / "file").write_text("")
        path = tmp_path / "link" / "x.mesh.ply"
    with (
        StoredScene.open(scene) as stored,
        pytest.raises(ExportError, match=r"x\.mesh\.ply cannot be written"),
    ):
        export_mesh(stored, path, Selection(), DepthFilters(voxel=0.1))


def test_progress_never_goes_back(tmp_path):
    shares = []
    with StoredScene.open(write_walls(tmp_path / "scene")) as stored:
        export_mesh(stored, tmp_path / "x.mesh.ply", Selection(), DepthFilters(voxel=0.02),
                    lambda step, share: shares.append(share))  # fmt: skip
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(set(shares)) > 10


def test_vertices_of_one_place_are_one(tmp_path):
    """Of neighbouring blocks too: the wall is one sheet, whose inner edges have two triangles."""
    voxel = 0.05
    with StoredScene.open(write_walls(tmp_path / "scene")) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=voxel))
    assert np.ptp(mesh.vertices[:, 0]) > 2 * 16 * voxel  # across blocks
    grid = np.rint(mesh.vertices / voxel * 100).astype(int)
    assert len(np.unique(grid, axis=0)) == len(mesh.vertices)
    edges = np.sort(mesh.faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    _, count = np.unique(edges, axis=0, return_counts=True)
    assert count.max() == 2
    # Of a sheet with e outer edges and f triangles, (3 f - e) / 2 are inner: few are outer.
    assert (count == 1).sum() < 0.1 * len(mesh.faces)


def test_what_one_keyframe_alone_saw_is_no_surface(tmp_path):
    with StoredScene.open(write_walls(tmp_path / "scene", 2, step=1.0)) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.05))
    # At 4 m a camera sees 1.6 m to both sides, and the second one is 1 m further.
    assert mesh.vertices[:, 0].min() == pytest.approx(1 - 1.6, abs=0.1)
    assert mesh.vertices[:, 0].max() == pytest.approx(1.6, abs=0.1)


def test_a_vertex_has_the_mean_colour_of_all_looks(tmp_path):
    with StoredScene.open(write_walls(tmp_path / "scene", 4, grey=[20, 60, 100, 220])) as stored:
        mesh = fused_surface(stored, DepthFilters(voxel=0.05))
    seen_by_all = np.abs(mesh.vertices[:, 0]) < 1
    assert seen_by_all.sum() > 100
    np.testing.assert_allclose(mesh.rgb[seen_by_all], 100, atol=3)
