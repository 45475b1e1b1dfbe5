"""`da3_ros view`: pictures of scenes from each side, from every kind of file."""

import subprocess
import sys

import cv2
import numpy as np
import pytest
import trimesh
from support.scenes import full_store

from da3_ros.cli.command_line import build_parser, main
from da3_ros.drawing.scene_drawing import Drawing
from da3_ros.drawing.scene_picture import render
from da3_ros.drawing.scene_renderer import BACKGROUND, CAMERA_COLOR
from da3_ros.drawing.viewpoint import SIDES
from da3_ros.export.camera_frusta import frustum
from da3_ros.export.export import export_scene
from da3_ros.export.mesh import Mesh
from da3_ros.export.mesh_file import write_mesh
from da3_ros.export.scene_file import save_scene
from da3_ros.mapping.trajectory import Pose

FLOOR, CEILING, AHEAD, BEHIND, LEFT, RIGHT = np.eye(3, dtype=int).tolist() + [
    [0, 1, 1], [1, 0, 1], [1, 1, 0]
]  # fmt: skip
COLORS = dict(zip("fcabLR", np.array([FLOOR, CEILING, AHEAD, BEHIND, LEFT, RIGHT]), strict=True))
K = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])


def room(scale=1.0):
    """A room of 6 x 4 x 3 m whose sides differ in colour; a camera in it looks along x."""
    rng = np.random.default_rng(0)
    low, high = np.array([-3.0, -2.0, -1.5]), np.array([3.0, 2.0, 1.5])
    points, rgb = [], []
    for name, axis, place in (
        ("f", 2, low), ("c", 2, high), ("a", 0, high), ("b", 0, low), ("L", 1, high), ("R", 1, low)
    ):  # fmt: skip
        side = rng.uniform(low, high, (20_000, 3))
        side[:, axis] = place[axis]
        points.append(side)
        rgb.append(np.tile(200 * COLORS[name], (len(side), 1)))
    T = np.eye(4)
    T[:3, :3] = [[0, 0, 1], [-1, 0, 0], [0, -1, 0]]  # optical axes: z along the map's x
    camera = frustum(Pose(0, T, K, (320, 240), True), 0.3)
    return Drawing(
        scale * np.concatenate(points).astype(np.float32),
        np.concatenate(rgb).astype(np.uint8),
        scale * camera,
        np.zeros((0, 2, 3)),
    )


def share(picture, name):
    """Of the picture that has the hue of a side of the room, however dark."""
    color = COLORS[name].astype(bool)
    bright = picture > BACKGROUND + 40
    return float((bright == color).all(axis=2).mean())


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("side", "seen", "left_out"),
    [("behind", "faLR", "cb"), ("side", "fRab", "cL"), ("top", "fabLR", "c")],
)
def test_a_room_is_seen_from_outside_as_a_dolls_house(side, seen, left_out, scale):
    picture = render(room(scale), (240, 180), [side])[0]
    for name in seen:
        assert share(picture, name) > 0.035, name
    for name in left_out:  # but for a strip in the corners, where no side is alone
        assert share(picture, name) < 0.03, name
    assert share(picture, "f") > 0.2
    assert (np.abs(picture.astype(int) - CAMERA_COLOR).max(axis=2) < 80).any()


def test_the_whole_room_is_in_the_picture_and_fills_it():
    picture = render(room(), (240, 180), ["corner"])[0]
    rows, columns = np.nonzero((picture > BACKGROUND + 20).any(axis=2))
    assert min(rows.min(), columns.min(), 179 - rows.max(), 239 - columns.max()) >= 0
    assert max(np.ptp(rows) / 180, np.ptp(columns) / 240) > 0.85


def test_what_is_nearer_hides_what_is_farther():
    drawing = room()
    table = np.random.default_rng(1).uniform(-0.5, 0.5, (20_000, 3)).astype(np.float32)
    table[:, 2] = -0.7
    above = Drawing(
        np.concatenate((table, drawing.points)),  # first, so that order alone would hide it
        np.concatenate((np.full((20_000, 3), 120, np.uint8), drawing.rgb)),
        drawing.cameras, drawing.path,
    )  # fmt: skip
    picture = render(above, (240, 180), ["top"])[0].astype(int)
    grey = np.ptp(picture, axis=2) == 0
    table_seen = grey & (picture[..., 0] > BACKGROUND + 40)
    assert table_seen.mean() > 0.01


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """What a replay leaves: the saved scene, and exports beside it."""
    folder = tmp_path_factory.mktemp("replayed")
    snapshot = full_store().snapshot(metric=True)
    save_scene(snapshot, folder / "scene")
    for name in ("scene.glb", "scene.ply"):
        export_scene(snapshot.scene(), folder / name)
    return folder


def test_every_kind_of_scene_gives_the_same_picture(replayed, tmp_path, capsys):
    pictures = {}
    for source in ("", "scene", "scene.glb", "scene.ply"):
        target = tmp_path / "a.png"
        command = ["view", str(replayed / source), "--output", str(target)]
        assert main([*command, "--size", "160x120"]) == 0
        assert str(target) in capsys.readouterr().out
        pictures[source] = cv2.imread(str(target)).astype(int)
    assert pictures[""].shape == (120, 160, 3)
    assert (pictures[""] == pictures["scene"]).all()
    off = np.abs(pictures["scene.glb"] - pictures["scene"]).max(axis=2)
    assert (off > 10).mean() < 0.02, "positions are rounded to float32 otherwise"
    assert (pictures["scene.ply"] > BACKGROUND + 20).any(), "points without cameras"
    assert {p.name for p in tmp_path.iterdir()} == {"a.png"}


def test_several_views_stand_beside_each_other(replayed, tmp_path):
    target = tmp_path / "new" / "a.png"
    arguments = ["--from", "top", "corner", "side", "--size", "80x60"]
    assert main(["view", str(replayed), "--output", str(target), *arguments]) == 0
    assert cv2.imread(str(target)).shape == (60, 3 * 80 + 2 * 8, 3)


def test_every_side_can_be_asked_for():
    command = ["view", "scene", "--output", "a.png", "--from", *SIDES]
    assert build_parser().parse_args(command).sides == list(SIDES)


def test_points_of_other_programs_without_colours_are_drawn(tmp_path):
    points = np.random.default_rng(0).uniform(-1, 1, (500, 3))
    (tmp_path / "a.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 500\nproperty float x\nproperty float y\n"
        "property float z\nend_header\n" + "\n".join(" ".join(map(str, p)) for p in points) + "\n"
    )
    target = tmp_path / "a.png"
    command = ["view", str(tmp_path / "a.ply"), "--output", str(target), "--below", "0"]
    assert main([*command, "--size", "80x60"]) == 0
    assert (cv2.imread(str(target)) > BACKGROUND + 20).any()


def sphere(folder):
    """A surface beside a scene, as two kinds of files."""
    ball = trimesh.creation.icosphere(subdivisions=2, radius=0.7)
    colors = np.full((len(ball.vertices), 3), (30, 200, 60), np.uint8)
    mesh = Mesh(np.asarray(ball.vertices, np.float32), np.asarray(ball.faces), colors)
    for suffix in (".glb", ".ply"):
        write_mesh(mesh, folder / f"ball.mesh{suffix}", suffix)


def test_surfaces_are_drawn_alone_and_in_their_scene(replayed, tmp_path, capsys):
    sphere(tmp_path)
    pictures = []
    for suffix in (".glb", ".ply"):
        file = tmp_path / f"ball.mesh{suffix}"
        alone = ["view", str(file), "--output", str(tmp_path / "a.png")]
        assert main([*alone, "--size", "160x120"]) == 0
        assert "320 triangles" in capsys.readouterr().out
        pictures.append(cv2.imread(str(tmp_path / "a.png")).astype(int))
        green = pictures[-1][..., 1] > pictures[-1][..., 2] + 40
        assert 0.3 < green.mean() < 0.6, "a ball fills the picture's height"
    assert np.abs(pictures[0] - pictures[1]).mean() < 2
    command = ["view", str(replayed), "--output", str(tmp_path / "b.png"), "--surface", str(file)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "triangles" in said
    assert ", 0 keyframes" not in said, "the cameras of the scene"


def test_what_is_no_surface_is_refused(replayed, tmp_path, capsys):
    cloud = str(replayed / "scene.ply")
    command = ["view", str(replayed), "--output", str(tmp_path / "a.png"), "--surface", cloud]
    assert main(command) == 1
    assert "has no triangles" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_points_are_coloured_by_their_height(replayed, tmp_path):
    shown = {}
    for name in ("viridis", "grey"):
        command = ["view", str(replayed), "--output", str(tmp_path / "a.png"), "--color-map", name]
        assert main([*command, "--size", "160x120", "--from", "side"]) == 0
        shown[name] = cv2.imread(str(tmp_path / "a.png")).astype(int)
    painted = shown["grey"].max(axis=2) > 0
    assert np.median(np.ptp(shown["grey"], axis=2)[painted]) == 0
    assert np.ptp(shown["viridis"], axis=2).max() > 100


def test_points_of_tracks_need_stored_keyframes(replayed, tmp_path, capsys):
    command = ["view", str(replayed), "--output", str(tmp_path / "a.png"), "--track-points"]
    assert main(command) == 1
    assert "has no stored keyframes" in capsys.readouterr().err


def spoilt(folder, name):
    """A file that cannot be shown."""
    path = folder / name
    whole = folder / "whole.glb"
    export_scene(full_store().snapshot(metric=True).scene(), whole)
    if name == "cut.glb":
        path.write_bytes(whole.read_bytes()[:-100])
    elif name == "other.glb":
        trimesh.creation.box().export(path)
    elif name == "face.ply":
        trimesh.creation.box().export(path)
        path.write_bytes(path.read_bytes()[:-4] + b"\xff\0\0\0")
    elif name == "cut.ply":
        axes = "".join(f"property float {axis}\n" for axis in "xyz")
        head = "ply\nformat binary_little_endian 1.0\nelement vertex 9\n"
        path.write_text(f"{head}{axes}end_header\nab")
    elif name == "no.ply":
        path.write_text("x y z")
    elif name == "empty":
        path.mkdir()
    elif name == "scene.obj":
        path.write_text("v 0 0 0")
    whole.unlink()
    return path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut.glb", "truncated or not a GLB"),
        ("other.glb", "was not written by da3_ros"),
        ("cut.ply", "cannot be read"),
        ("face.ply", "cannot be read"),
        ("no.ply", "is not a PLY file"),
        ("empty", "contains no scene"),
        ("scene.obj", ".glb or .ply file"),
        ("nothing", "does not exist"),
    ],
)
def test_what_cannot_be_shown_is_reported_in_one_line(tmp_path, capsys, name, words):
    target = tmp_path / "a.png"
    assert main(["view", str(spoilt(tmp_path, name)), "--output", str(target)]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--output", "a.jpg"], 1, "must end with .png"),
        (["--output", "a.png", "--size", "9x"], 2, "write WIDTHxHEIGHT"),
        (["--output", "a.png", "--size", "99999x9"], 1, "at most"),
        (["--output", f"{__file__}/a.png"], 1, "cannot be written"),
    ],
)
def test_pictures_that_cannot_be_made(replayed, capsys, arguments, code, words):
    assert main(["view", str(replayed), *arguments]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.process
def test_viewing_needs_neither_torch_nor_ros(replayed, tmp_path):
    code = (
        "import sys; from da3_ros.cli import main; "
        f"code = main(['view', {str(replayed)!r}, '--output', {str(tmp_path / 'a.png')!r}, "
        "'--size', '80x60']); "
        "sys.exit(code or 10 * ('torch' in sys.modules) + 20 * ('rclpy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
