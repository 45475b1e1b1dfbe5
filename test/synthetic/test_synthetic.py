"""Rendered rooms against ray casting written out here, and what training and demos rely on."""

import cv2
import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree
from support.cases import long_after

from da3_ros.sensors.calibration import CalibrationError
from da3_ros.sensors.rectifier import Rectifier
from da3_ros.synthetic import (
    SKY,
    WALKS,
    Pace,
    SyntheticCamera,
    clearance,
    distance_to_surface,
    intrinsics,
    make_room,
    make_walk,
    render,
    render_batch,
    stack_rooms,
)
from da3_ros.synthetic.rooms import COLUMN
from da3_ros.synthetic.texture import octaves, patches, tiles, value_noise
from da3_ros.types import Calibration

SIZE = (160, 120)
K = intrinsics(SIZE, 70.0)


def pixel_rays(K, size):
    """Rays (x, y, 1) [H, W, 3] through pixel centres under the corner rule."""
    u, v = np.meshgrid(np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5)
    return np.stack([(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], np.ones_like(u)], -1)


def cast(room, T, rays):
    """Brute-force z-depth, float64: every face of every block as a rectangle in space."""
    origin, directions = T[:3, 3], rays @ T[:3, :3].T
    nearest, is_sky = np.full(rays.shape[:2], np.inf), np.zeros(rays.shape[:2], bool)
    for block in range(len(room.yaw)):
        c, s = np.cos(float(room.yaw[block])), np.sin(float(room.yaw[block]))
        axes = np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]])  # local axes in the room
        centre, half = room.centre[block].numpy(), room.half[block].numpy()
        for face in range(6):
            axis, sign = face // 2, 2 * (face % 2) - 1
            u, v = [a for a in range(3) if a != axis]
            with np.errstate(divide="ignore", invalid="ignore"):
                along = (centre - origin) @ axes[axis] + sign * half[axis]
                z = along / (directions @ axes[axis])
                local = (origin + z[..., None] * directions - centre) @ axes.T
            hit = (np.abs(local[..., u]) <= half[u]) & (np.abs(local[..., v]) <= half[v])
            hit &= (z > 0.0) & (z < nearest)
            nearest[hit] = z[hit]
            w = room.material[6 * block + face, COLUMN["window_u"] :][:4].numpy()
            beside_u = np.abs(local[..., u] - w[0]) - w[2]
            hole = np.maximum(beside_u, np.abs(local[..., v] - w[1]) - w[3])
            is_sky[hit] = hole[hit] < 0.0
    return np.where(is_sky, np.inf, nearest)


def room_points(T, K, depth):
    """Points [H, W, 3] in the room of a depth image."""
    depth = np.where(np.isinf(depth), np.nan, depth)
    points = pixel_rays(K, depth.shape[::-1]) * depth[..., None]
    return points @ T[:3, :3].T + T[:3, 3]


@pytest.fixture(scope="module")
def views():
    """Rooms, one hand-held walk of four frames each, and their rendering."""
    made = []
    for seed in range(1, 9):
        room = make_room(seed)
        T = make_walk(room, "handheld", 4, seed, Pace(rate_hz=2.0))
        made.append((room, T, render(room, T, K, SIZE)))
    return made


@pytest.mark.long
@pytest.mark.slow
def test_depth_equals_brute_force_in_double_precision(views):
    for room, T, seen in views:
        for i in (0, 3):
            truth, depth = cast(room, T[i], pixel_rays(K, SIZE)), seen.depth[i].double().numpy()
            finite = np.isfinite(truth) & np.isfinite(depth)
            error = np.abs(depth[finite] / truth[finite] - 1.0)
            # A ray that grazes an edge within rounding may take either side.
            assert (error > 1e-5).sum() <= 3
            assert (np.isfinite(truth) != np.isfinite(depth)).sum() <= 3
            assert np.median(error) < 1e-7


def test_sky_is_infinite_and_marked_as_sky(views):
    sky = [(seen.surface == SKY) for _, _, seen in views]
    assert any(bool(s.any()) for s in sky), "no window in any of the test rooms: choose seeds"
    for (_, _, seen), mask in zip(views, sky, strict=True):
        assert torch.equal(torch.isinf(seen.depth), mask)
        assert (seen.depth[~mask] > 0.0).all()


def test_surface_number_names_the_face_that_was_hit(views):
    _, T, seen = views[0]
    floor = seen.surface[0].numpy() == 4
    assert floor.any()
    points = room_points(T[0], K, seen.depth[0].double().numpy())
    np.testing.assert_allclose(points[floor][:, 2], 0.0, atol=1e-5)
    assert (points[~floor & np.isfinite(points[..., 2])][:, 2] > 1e-4).all()


def test_rendered_points_lie_on_the_surfaces(views):
    for room, T, seen in views:
        for i in range(len(T)):
            depth = seen.depth[i].double().numpy()
            points = room_points(T[i], K, depth)[np.isfinite(depth)]
            assert distance_to_surface(room, points).max() < 1e-4


def sample(image, pixels):
    """Bilinear samples [N, C] of image [H, W, C] at corner-rule pixels [N, 2]."""
    x, y = (pixels - 0.5).T
    u, v = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = (x - u)[:, None], (y - v)[:, None]
    top = image[v, u] * (1 - a) + image[v, u + 1] * a
    return top * (1 - b) + (image[v + 1, u] * (1 - a) + image[v + 1, u + 1] * a) * b


def test_a_point_has_the_same_colour_and_depth_in_another_view():
    room = make_room(7)
    T = make_walk(room, "strafe", 3, 2, Pace(rate_hz=8.0))
    size, k = (320, 240), intrinsics((320, 240), 65.0)
    seen = render(room, T, k, size)
    depth = seen.depth.double().numpy()
    points = room_points(T[0], k, depth[0])[np.isfinite(depth[0])]
    colours = seen.image[0].numpy()[np.isfinite(depth[0])].astype(float)
    camera = (points - T[2][:3, 3]) @ T[2][:3, :3]
    pixels = camera @ k.T
    pixels = pixels[:, :2] / pixels[:, 2:]
    inside = (camera[:, 2] > 0) & (pixels > 1).all(1) & (pixels < np.array(size) - 1).all(1)
    assert inside.mean() > 0.5
    # inverse depth is what is linear between pixels of one plane
    there = 1.0 / sample((1.0 / depth[2])[..., None], pixels[inside]).ravel()
    visible = np.abs(there / camera[inside, 2] - 1.0) < 0.02
    assert visible.mean() > 0.8
    relative = np.abs(there[visible] / camera[inside, 2][visible] - 1.0)
    assert np.median(relative) < 1e-5
    other = sample(seen.image[2].double().numpy(), pixels[inside][visible])
    difference = np.abs(other - colours[inside][visible]).mean(1)
    assert np.median(difference) < 4.0
    shuffled = np.abs(np.roll(other, 997, 0) - colours[inside][visible]).mean(1)
    assert np.median(shuffled) > 4 * np.median(difference)


def test_same_seed_gives_the_same_room_and_another_seed_another():
    one, same, other = make_room(3), make_room(3), make_room(4)
    for name in ("centre", "half", "yaw", "material", "texture_seed", "sky"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert one.size.tolist() != other.size.tolist()
    T = make_walk(one, "spot", 2, 0)
    a, b = render(one, T, K, SIZE, supersample=True), render(same, T, K, SIZE, supersample=True)
    assert torch.equal(a.image, b.image)
    assert torch.equal(a.depth, b.depth)
    c = render(other, make_walk(other, "spot", 2, 0), K, SIZE)
    assert (c.image.int() - a.image.int()).abs().float().mean() > 10


def test_chunks_and_batches_do_not_change_a_pixel(monkeypatch):
    import da3_ros.synthetic.renderer as module

    rooms = [make_room(s) for s in (11, 12, 13)]
    T = np.stack([make_walk(r, "still", 1, 5)[0] for r in rooms])
    Ks = np.stack([intrinsics(SIZE, fov) for fov in (50.0, 65.0, 80.0)])
    together = render_batch(rooms, T, Ks, SIZE, supersample=True)
    monkeypatch.setattr(module, "CPU_CHUNK", 5000)
    batch = stack_rooms(rooms)
    again = render_batch(batch, T[::-1].copy(), Ks[::-1].copy(), SIZE, room_index=[2, 1, 0],
                         supersample=True)  # fmt: skip
    for i in range(3):
        alone = render(rooms[i], T[i : i + 1], Ks[i], SIZE, supersample=True)
        for name in ("image", "depth", "surface"):
            assert torch.equal(getattr(together, name)[i], getattr(alone, name)[0])
            assert torch.equal(getattr(together, name)[i], getattr(again, name)[2 - i])


def test_supersampling_smooths_edges_and_leaves_depth_alone(views):
    room, T, plain = views[1]
    smooth = render(room, T, K, SIZE, supersample=True)
    assert torch.equal(smooth.depth, plain.depth)
    changed = (smooth.image != plain.image).any(-1)
    assert 0.0 < changed.float().mean() < 0.3
    k4 = K * np.array([[4.0], [4.0], [1.0]])
    fine = render(room, T, k4, (SIZE[0] * 4, SIZE[1] * 4)).image.float()
    fine = fine.reshape(len(T), SIZE[1], 4, SIZE[0], 4, 3).mean((2, 4))
    before = (plain.image.float() - fine)[changed].abs().mean()
    assert (smooth.image.float() - fine)[changed].abs().mean() < 0.7 * before


def test_textures_do_not_alias(views):
    """A small image is close to a large one averaged down: it holds nothing finer than a pixel."""
    for room, T, seen in views[:4]:
        k4 = K * np.array([[4.0], [4.0], [1.0]])
        fine = render(room, T[:1], k4, (SIZE[0] * 4, SIZE[1] * 4)).image[0].float()
        fine = fine.reshape(SIZE[1], 4, SIZE[0], 4, 3).mean((1, 3))
        difference = (seen.image[0].float() - fine).abs().mean(-1)
        assert difference.median() < 6.0
        contrast = (fine - fine.mean((0, 1))).abs().mean()
        assert difference.mean() < 0.4 * contrast


def test_noise_has_no_period_and_octaves_below_a_pixel_are_gone():
    u = torch.linspace(0.0, 400.0, 160_001)
    noise = value_noise(u, torch.full_like(u, 0.3), torch.zeros(len(u), dtype=torch.int32))
    noise = noise - noise.mean()
    power = torch.fft.rfft(noise, 2 * len(noise)).abs() ** 2
    correlation = torch.fft.irfft(power)[: len(noise) // 2]
    correlation = correlation / correlation[0]
    assert correlation[800:].abs().max() < 0.25  # two cells and more apart: independent
    one = torch.ones_like(u)
    seed = torch.zeros(len(u), dtype=torch.int32)
    even, odd = octaves(u, u * 0.7, 2.0 * one, one, 0.9 * one, seed, 0.0)
    assert even.abs().max() == 0.0
    assert odd.abs().max() == 0.0
    _, joint = tiles(u, u * 0.7, 50.0 * one, one, seed)
    assert joint.max() < 0.01
    cover, _ = patches(u, u * 0.7, 5.0 * one, one, one, seed)
    assert cover.max() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(1, [31, 32, 33, 34]))
def test_a_matcher_finds_correspondences_ten_centimetres_apart(seed):
    camera = SyntheticCamera(seed, walk="strafe", frames=40)
    place = camera.T_room_camera[:, :3, 3]
    far = int((np.linalg.norm(place - place[10], axis=1) > 0.1)[10:].argmax()) + 10
    orb = cv2.ORB_create(2000)
    found = [
        orb.detectAndCompute(cv2.cvtColor(camera[i].image, cv2.COLOR_RGB2GRAY), None)
        for i in (10, far)
    ]
    matches = cv2.BFMatcher(cv2.NORM_HAMMING, True).match(found[0][1], found[1][1])
    frame, pose = camera[10], camera.T_room_camera[far]
    correct = 0
    for m in matches:  # true ones only: where the exact geometry puts the point
        p = np.array(found[0][0][m.queryIdx].pt) + 0.5
        z = frame.depth[int(p[1]), int(p[0])]
        ray = np.linalg.solve(frame.K, [*p, 1.0])
        point = frame.T_room_camera[:3, :3] @ (ray * z) + frame.T_room_camera[:3, 3]
        q = frame.K @ (pose[:3, :3].T @ (point - pose[:3, 3]))
        seen = np.array(found[1][0][m.trainIdx].pt) + 0.5
        correct += bool(np.isfinite(z) and np.linalg.norm(q[:2] / q[2] - seen) < 3.0)
    assert correct > 200


# Distances --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_distance_to_surface_equals_the_nearest_of_samples():
    room = make_room(2)
    rng = np.random.default_rng(0)
    samples = []
    for block in range(len(room.yaw)):
        c, s = np.cos(float(room.yaw[block])), np.sin(float(room.yaw[block]))
        out = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
        half = room.half[block].numpy()
        for face in range(6):
            local = rng.uniform(-1, 1, (40_000 if block == 0 else 4000, 3)) * half
            local[:, face // 2] = half[face // 2] * (2 * (face % 2) - 1)
            w = room.material[6 * block + face, COLUMN["window_u"] :][:4].double().numpy()
            uv = np.delete(local, face // 2, 1)
            local = local[(np.abs(uv - w[:2]) > w[2:]).any(1)]
            samples.append(local @ out.T + room.centre[block].numpy())
    points = rng.uniform(-0.2, 1.2, (200, 3)) * room.size
    brute = cKDTree(np.concatenate(samples)).query(points)[0]
    exact = distance_to_surface(room, points)
    assert (exact <= brute + 1e-9).all()
    assert np.abs(exact - brute).max() < 0.08  # as dense as the samples are
    assert np.median(brute - exact) < 0.01


# Walks ------------------------------------------------------------------------------------------


def turns_and_steps(T):
    """Rotation (radians) and translation (metres) between neighbouring poses."""
    relative = np.swapaxes(T[:-1, :3, :3], 1, 2) @ T[1:, :3, :3]
    angle = np.arccos(np.clip((np.trace(relative, axis1=1, axis2=2) - 1) / 2, -1, 1))
    return angle, np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1)


@pytest.mark.parametrize("kind", WALKS)
@pytest.mark.parametrize("frames", long_after(2, [2, 25, 200]))
def test_walks_are_smooth_free_of_collisions_and_upright(kind, frames):
    pace = Pace(rate_hz=10.0, max_speed_m_s=0.8, max_turn_deg_s=40.0)
    for seed in range(6):
        room = make_room(seed)
        T = make_walk(room, kind, frames, seed, pace)
        assert T.shape == (frames, 4, 4)
        R = T[:, :3, :3]
        np.testing.assert_allclose(R @ np.swapaxes(R, 1, 2), np.eye(3)[None] + 0 * R, atol=1e-12)
        np.testing.assert_allclose(np.linalg.det(R), 1.0, atol=1e-12)
        angle, step = turns_and_steps(T)
        assert angle.max() <= pace.turn_rad + 1e-9
        assert step.max() <= pace.step_m + 1e-9
        assert clearance(room, T[:, :3, 3]).min() > 0.25
        assert ((T[:, :3, 3] > 0) & (T[:, :3, 3] < room.size)).all()
        assert (R[:, 2, 1] < -0.8).all()  # the image's down is the room's down
        np.testing.assert_array_equal(T, make_walk(room, kind, frames, seed, pace))


def test_walks_do_what_their_names_promise():
    room = make_room(5)
    for seed in range(4):
        loop = make_walk(room, "loop", 300, seed)
        np.testing.assert_allclose(loop[-1], loop[0], atol=1e-9)
        assert np.linalg.norm(loop[:, :3, 3] - loop[0, :3, 3], axis=1).max() > 0.4
        still = make_walk(room, "still", 9, seed)
        np.testing.assert_array_equal(still, np.broadcast_to(still[0], still.shape))
        spot = make_walk(room, "spot", 200, seed)
        np.testing.assert_allclose(spot[:, :3, 3], spot[:1, :3, 3] + 0 * spot[:, :3, 3])
        assert turns_and_steps(spot)[0].sum() > np.radians(55)
        for kind, low, high in (("straight", 0.8, 1.01), ("strafe", -0.5, 0.5)):
            T = make_walk(room, kind, 60, seed)
            move = T[-1, :3, 3] - T[0, :3, 3]
            forward = T[0, :3, 2] * [1, 1, 0]
            cosine = move @ forward / np.linalg.norm(move) / np.linalg.norm(forward)
            assert low < cosine < high
        shaky = np.diff(make_walk(room, "handheld", 60, seed)[:, :3, 3], 2, axis=0)
        smooth = np.diff(make_walk(room, "straight", 60, seed)[:, :3, 3], 2, axis=0)
        assert np.abs(shaky).mean() > 2 * np.abs(smooth).mean()


@pytest.mark.slow
def test_every_room_has_a_place_for_every_walk():
    for seed in range(100, 130):
        room = make_room(seed)
        for kind in WALKS:
            assert clearance(room, make_walk(room, kind, 20, 1)[:, :3, 3]).min() > 0.25


def test_unknown_walks_and_no_frames_are_refused():
    room = make_room(1)
    with pytest.raises(ValueError, match="unknown walk 'fly': must be one of loop, straight"):
        make_walk(room, "fly", 3)
    with pytest.raises(ValueError, match="a walk needs at least one"):
        make_walk(room, "loop", 0)


# Camera -----------------------------------------------------------------------------------------


def test_synthetic_camera_gives_stamped_frames_with_truth():
    camera = SyntheticCamera(4, size=(96, 72), fov_deg=70, walk="straight", frames=6, rate_hz=30)
    frames = list(camera)
    assert len(camera) == len(frames) == 6
    steps = np.diff([f.stamp_ns for f in frames])
    assert set(steps.tolist()) <= {33_333_333, 33_333_334}
    f = frames[2]
    assert f.image.shape == (72, 96, 3)
    assert f.image.dtype == np.uint8
    assert f.depth.dtype == np.float32
    assert f.K[0, 2] == 48.0  # corner rule
    assert camera.calibration.K[0, 2] == 47.5  # ROS rule
    assert 2 * np.degrees(np.arctan(48 / f.K[0, 0])) == pytest.approx(70)
    truth = cast(camera.room, f.T_room_camera, pixel_rays(f.K, (96, 72)))
    np.testing.assert_allclose(f.depth, truth, rtol=1e-5)
    np.testing.assert_array_equal(camera[2].image, f.image)
    with pytest.raises(IndexError):
        camera[6]


def test_noise_and_exposure_change_the_image_only():
    """Noise and exposure change the image only and repeatably."""
    clean = SyntheticCamera(4, size=(96, 72), walk="spot", frames=8)
    noisy = SyntheticCamera(4, size=(96, 72), walk="spot", frames=8, noise_sigma=4.0)
    drift = SyntheticCamera(4, size=(96, 72), walk="spot", frames=8, exposure_drift=0.3)
    a, b, c = list(clean), list(noisy), list(drift)
    for one, two, three in zip(a, b, c, strict=True):
        np.testing.assert_array_equal(one.depth, two.depth)
        np.testing.assert_array_equal(one.T_room_camera, three.T_room_camera)
    middle = (a[3].image > 30) & (a[3].image < 225)
    assert (b[3].image.astype(float) - a[3].image)[middle].std() == pytest.approx(4.0, rel=0.1)
    ratios = [x.image.mean() / y.image.mean() for x, y in zip(c, a, strict=True)]
    assert max(ratios) / min(ratios) > 1.2
    np.testing.assert_array_equal(noisy[3].image, b[3].image)


LENSES = {
    "plumb_bob": [-0.25, 0.07, 0.001, -0.0008, -0.008],
    "equidistant": [-0.02, 0.01, -0.004, 0.0008],
}


@pytest.mark.parametrize("model", LENSES)
def test_distorted_images_rectify_to_the_pinhole_image(model):
    settings = {"size": (320, 240), "walk": "still", "frames": 1}
    straight = SyntheticCamera(9, **settings)
    bent = SyntheticCamera(9, distortion_model=model, D=LENSES[model], **settings)
    assert bent.calibration.distortion_model == model
    raw, truth = bent[0], straight[0]
    assert np.abs(raw.image.astype(float) - truth.image).mean() > 8  # it is bent
    rectified = Rectifier()(raw.image, bent.calibration, False)
    np.testing.assert_allclose(rectified.K, truth.K)
    valid = np.ones((240, 320), bool) if rectified.valid is None else rectified.valid
    difference = np.abs(rectified.image.astype(float) - truth.image).mean(-1)[valid]
    assert np.median(difference) < 3.0


def test_depth_of_a_distorted_pixel_is_that_of_its_own_ray():
    bent = SyntheticCamera(9, size=(96, 72), walk="still", frames=1, D=LENSES["plumb_bob"])
    raw, c = bent[0], bent.calibration
    points = np.array([[u, v] for v in range(0, 72, 9) for u in range(0, 96, 8)], np.float64)
    criteria = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 200, 1e-14)
    rays = cv2.undistortPoints(points, c.K, c.D, None, None, None, criteria).reshape(1, -1, 2)
    rays = np.concatenate([rays, np.ones((1, rays.shape[1], 1))], -1)
    truth = cast(bent.room, raw.T_room_camera, rays)[0]
    found = raw.depth[points[:, 1].astype(int), points[:, 0].astype(int)]
    agrees = (np.abs(found / truth - 1) < 1e-4) | (np.isinf(found) & np.isinf(truth))
    assert agrees.mean() > 0.98  # edges aside


def test_wrong_requests_are_refused_with_a_reason():
    room = make_room(1)
    T = make_walk(room, "still", 2)
    with pytest.raises(ValueError, match="room_index"):
        render_batch([room, make_room(2), make_room(3)], T, K, SIZE, room_index=[0, 7])
    with pytest.raises(ValueError, match="K must be"):
        render(room, T, np.eye(4), SIZE)
    c = Calibration(*SIZE, K=K, D=np.array([-0.2, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="calibration is for"):
        render(room, T, K, (80, 60), calibration=c)
    wild = Calibration(*SIZE, K=K, D=np.array([-3.0, 0, 0, 0, 0]))
    with pytest.raises(CalibrationError, match="cannot be inverted"):
        render(room, T, K, SIZE, calibration=wild)


@pytest.mark.gpu
def test_gpu_renders_what_the_cpu_renders():
    room = make_room(6)
    T = make_walk(room, "handheld", 3, 1)
    here, there = render(room, T, K, SIZE), render(room, T, K, SIZE, device="cuda")
    close = (here.depth - there.depth.cpu()).abs() < 1e-5 * here.depth
    assert (close | torch.isinf(here.depth)).float().mean() > 0.9999
    assert (here.image.float() - there.image.cpu().float()).abs().mean() < 0.1
