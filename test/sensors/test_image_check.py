"""Which images show nothing, and why."""

import bench_blind
import cv2
import numpy as np
import pytest
from support.cases import long_after

from da3_ros.inference.preprocess import resize_for_network
from da3_ros.sensors.image_check import LASTING, ImageCheck, _is_noise, covered_pixels
from da3_ros.synthetic import SyntheticCamera

SIZE = (320, 240)
TOTAL = {
    "black": "dark", "white": "overexposed", "noise": "noise", "shaded noise": "noise",
    "banded noise": "noise", "lens cap": "dark", "hand": "blurred",
}  # fmt: skip
RELATIVE = {"defocus": "blurred", "mostly black": "dark"}


@pytest.fixture(scope="module")
def images():
    return [f.image for f in SyntheticCamera(11, SIZE, walk="loop", frames=14)]


def judged(check, image, camera="", valid=None, T_prior=None):
    small, _ = resize_for_network(image, None, 224)
    return check(camera, small, image, valid, T_prior)


def after(images):
    check = ImageCheck()
    for image in images:
        assert judged(check, image).blind == ""
    return check


@pytest.mark.parametrize(("fault", "cause"), list(TOTAL.items()))
def test_an_image_that_shows_nothing_is_blind_at_once(images, fault, cause):
    image = bench_blind.fault_of(fault, 1)(images[0], 0, images[0])
    assert judged(ImageCheck(), image).blind == cause
    assert judged(after(images[:-1]), image).blind == cause


@pytest.mark.parametrize(("fault", "cause"), list(RELATIVE.items()))
def test_an_image_far_worse_than_those_before_is_blind(images, fault, cause):
    image = bench_blind.fault_of(fault, 1)(images[-1], 0, images[-2])
    assert judged(after(images[:-1]), image).blind == cause


@pytest.mark.parametrize("brightness", [0.5, 1.4])
def test_another_exposure_is_no_blindness(images, brightness):
    image = np.clip(images[-1] * brightness, 0, 255).astype(np.uint8)
    assert judged(after(images[:-1]), image).blind == ""


def test_light_that_is_nearly_gone_is_dark(images):
    assert judged(after(images[:-1]), (images[-1] * 0.1).astype(np.uint8)).blind == "dark"


def test_weak_light_and_slight_blur_are_suspect_only(images):
    weak = judged(after(images[:-1]), (images[-1] * 0.25).astype(np.uint8))
    assert (weak.blind, weak.suspect) == ("", "dark")
    soft = judged(after(images[:-1]), cv2.GaussianBlur(images[-1], (0, 0), 2))
    assert (soft.blind, soft.suspect) == ("", "blurred")


def blocks(rows, columns):
    values = np.random.default_rng(0).integers(0, 256, (rows, columns), dtype=np.uint8)
    return np.dstack([cv2.resize(values, SIZE, interpolation=cv2.INTER_NEAREST)] * 3)


@pytest.mark.parametrize(
    "noise",
    [blocks(60, 80), blocks(SIZE[1], 1), blocks(1, SIZE[0])],
    ids=["blocks", "rows", "columns"],
)
def test_noise_whose_neighbours_are_alike_is_suspect(images, noise):
    verdict = judged(after(images[:-1]), noise)
    assert (verdict.blind or verdict.suspect) == "noise"


@pytest.mark.parametrize("rows", [False, True])
def test_noise_along_one_direction_only_is_suspect(images, rows):
    """Not blind: fine grass looks like that."""
    image = blocks(SIZE[1], SIZE[0] // 4) if rows else blocks(SIZE[1] // 4, SIZE[0])
    verdict = judged(after(images[:-1]), image)
    assert (verdict.blind, verdict.suspect) == ("", "noise")


SIZES = [(320, 240), (224, 168), (96, 72), ((1280, 720),), ((1920, 1080),)]


@pytest.mark.parametrize("size", long_after(3, SIZES))
@pytest.mark.parametrize("fault", ["noise", "shaded noise", "banded noise"])
def test_noise_is_blind_at_any_size(fault, size):
    """By its cells' equal means, where they have many pixels."""
    for k in range(3):
        image = bench_blind.fault_of(fault, 3)(np.zeros((size[1], size[0], 3), np.uint8), k, None)
        assert judged(ImageCheck(), image).blind in ("noise", "blurred")


@pytest.mark.parametrize("size", [(640, 480), (224, 168)])
@pytest.mark.parametrize("fault", ["noise", "shaded noise", "banded noise"])
def test_noise_of_a_colour_sensor_is_blind(fault, size):
    """Demosaicing and JPEG make neighbouring pixels alike."""
    for k in range(3):
        raw = bench_blind.fault_of(fault, 3)(np.zeros((size[1], size[0], 3), np.uint8), k, None)
        image = cv2.cvtColor(np.ascontiguousarray(raw[..., 0]), cv2.COLOR_BayerRG2RGB)
        _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 60])
        assert judged(ImageCheck(), image).blind == "noise"
        assert judged(ImageCheck(), cv2.imdecode(data, cv2.IMREAD_COLOR)).blind == "noise"


@pytest.mark.parametrize(
    "size", [SIZE, (224, 168), pytest.param((1920, 1080), marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("light", "noise"), [(0.3, 15), (0.2, 10), (1.0, 60), (0.12, 8)])
def test_a_scene_with_much_noise_of_the_sensor_is_not_blind(size, light, noise):
    rng = np.random.default_rng(0)
    for frame in SyntheticCamera(100, size, walk="loop", frames=3):
        grey = light * frame.image.mean(-1) + rng.normal(0, noise, size[::-1])
        noisy = np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)
        assert judged(ImageCheck(), noisy).blind == ""


def shade(size, kind):
    """Grey values without texture: what plain walls, floors and skies look like, exactly level."""
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    return {
        "horizon": np.where(y < 0.5, 178.0, 120.0),
        "wall": np.where(y < 0.3, 178.0, np.where(y < 0.7, 150.0, 110.0)),
        "gradient": 60 + 100 * x,
        "doors": 60 + 100.0 * (np.floor(8 * x) % 2),
        "lamp": 90 + 60 * np.exp(-((y - 0.3) ** 2 + (x - 0.6) ** 2) / 0.5),
        "faint": 140 + 8 * x,
    }[kind]


@pytest.mark.parametrize(
    "size", long_after(3, [SIZE, (641, 479), (224, 68), ((640, 480),), ((1280, 720),)])
)
@pytest.mark.parametrize("noise", [0.0, 1.8, 6.0])
@pytest.mark.parametrize("kind", ["horizon", "wall", "gradient", "doors", "lamp", "faint"])
def test_plain_walls_and_level_horizons_are_not_blind(size, noise, kind):
    rng = np.random.default_rng(0)
    grey = (shade(size, kind) + rng.normal(0, noise, size[::-1])).clip(0, 255).astype(np.uint8)
    assert judged(ImageCheck(), np.dstack([grey] * 3)).blind == ""


def body(size, kind):
    """The pixels [H, W] of a robot's own body."""
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    ring = np.hypot(x - 0.5, y - 0.5) > 0.5
    return {"corner": x + 2 * y > 2, "ring": ring, "half": y > 0.5}[kind]


@pytest.mark.parametrize("size", long_after(3, [(112, 84), SIZE, (640, 480), ((1440, 1080),)]))
@pytest.mark.parametrize("kind", ["corner", "ring", "half"])
@pytest.mark.parametrize("light", [0, 255])
def test_what_the_robot_hides_does_not_make_noise_a_scene(size, kind, light):
    rng, hidden = np.random.default_rng(0), body(size, kind)
    raw = rng.normal(40, 15, size[::-1]) + rng.normal(0, 6, (size[1], 1))
    raw += 60 * np.linspace(0, 1, size[0]) * (size[0] > 128)  # a glow, not of too small images
    image = np.dstack([raw.clip(0, 255).astype(np.uint8)] * 3)
    image[hidden] = light
    small, _ = resize_for_network(image, None, 224)
    valid = cv2.resize((~hidden).astype(np.float32), small.shape[1::-1]) > 0.99
    assert ImageCheck()("", small, image, valid, None).blind == "noise"


def openings(size, kind):
    """The pixels [H, W] that a camera sees between the parts of a robot."""
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    r = np.hypot((x - 0.5) * size[0] / size[1], y - 0.5)
    return {
        "bars": y * 6 % 1 > 0.1, "strip": np.abs(x - 0.5) < 0.1, "ring": (r > 0.25) & (r < 0.5),
        "circle": r < 0.3,
        "window": (np.abs(x - 0.5) < 0.13) & (np.abs(y - 0.5) < 0.15),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("size", long_after(2, [SIZE, (640, 480), ((1440, 1080),)]))
@pytest.mark.parametrize("kind", ["bars", "strip", "ring", "circle", "window"])
def test_a_scene_in_an_opening_is_not_blind(images, size, kind):
    """However few cells count: with them alone, bands would be what the image shows."""
    rng, seen = np.random.default_rng(0), openings(size, kind)
    rooms = [next(iter(SyntheticCamera(k, SIZE, walk="loop", frames=2))).image for k in (3, 7, 1)]
    for image in (*rooms, *images[::5]):
        grey = 0.3 * cv2.resize(image, size).mean(-1)
        grey += rng.normal(0, 0.6 * grey[seen].std(), size[::-1])
        grey[~seen] = 0
        dim = np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)
        small, _ = resize_for_network(dim, None, 504)
        valid = cv2.resize(seen.astype(np.float32), small.shape[1::-1]) > 0.99
        assert ImageCheck()("", small, dim, valid, None).blind != "noise"


@pytest.mark.parametrize("size", long_after(2, [(224, 168), SIZE, ((640, 480),)]))
@pytest.mark.parametrize(("width", "height"), [(0.5, 0.5), (0.44, 1.0), (1.0, 0.35)])
def test_a_window_of_few_cells_shows_a_scene(size, width, height):
    """Of little more contrast than noise: few cells may differ as little as those of noise."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    for room in (1, 3, 5, 7):
        image = next(iter(SyntheticCamera(room, (640, 480), walk="loop", frames=3))).image
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        grey = 0.3 * cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
        for left in (0.3, 0.5, 0.7):
            seen = (np.abs(x - left) < width / 2) & (np.abs(y - 0.7) < height / 2)
            noisy = grey + rng.normal(0, grey[seen].std() / 1.25, grey.shape)
            noisy = noisy.clip(0, 255).astype(np.uint8)
            noisy[~seen] = 0
            assert not _is_noise(np.dstack([noisy] * 3), seen)


def test_weak_noise_of_a_large_image_is_blind():
    """Means of its cells differ by less than a grey level."""
    size, rng = (1920, 1080), np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(-1, 1, size[0]), np.linspace(-1, 1, size[1]))
    grey = (1 - 0.2 * np.hypot(x, y)) * rng.normal(20, 4, x.shape)
    image = np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)
    assert judged(ImageCheck(), image).blind == "noise"


def test_an_image_whose_every_cell_is_hidden_in_part_is_not_noise():
    black = np.zeros((*SIZE[::-1], 3), np.uint8)
    noise, valid = bench_blind.shaded_noise(black, 0, black), np.ones((42, 56), np.bool_)
    valid[::4, ::4] = False
    assert ImageCheck()("", cv2.resize(noise, (56, 42)), noise, valid, None).blind != "noise"


@pytest.mark.parametrize("kind", ["corner", "ring", "half"])
def test_a_dim_scene_beside_a_body_is_not_blind(images, kind):
    rng, hidden = np.random.default_rng(0), body(SIZE, kind)
    for image in images[:3]:
        dim = 0.3 * image.mean(-1) + rng.normal(0, 15, SIZE[::-1])
        dim[hidden] = 255
        noisy = np.dstack([dim.clip(0, 255).astype(np.uint8)] * 3)
        small, _ = resize_for_network(noisy, None, 224)
        valid = cv2.resize((~hidden).astype(np.float32), small.shape[1::-1]) > 0.99
        assert ImageCheck()("", small, noisy, valid, None).blind == ""


@pytest.mark.parametrize("size", [SIZE, (640, 480), (1280, 720)])
@pytest.mark.parametrize(
    ("glow", "rows"), [(0, 0), (80, 0), (0, 6), (80, 6)], ids=["plain", "glow", "rows", "both"]
)
@pytest.mark.parametrize(("mean", "noise"), [(40, 10), (60, 10), (16, 8)])
def test_dark_noise_is_blind_under_glow_and_bands(size, glow, rows, mean, noise):
    """Also weak noise of a colour sensor, of which its demosaicing takes half."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(0, 1, size[0]), np.linspace(0, 1, size[1]))
    raw = rng.normal(mean, noise, x.shape) + rng.normal(0, rows, (size[1], 1))
    raw += glow * np.exp(-10 * np.hypot(x, y))  # of an amplifier in a corner
    raw = raw.clip(0, 255).astype(np.uint8)
    for image in (np.dstack([raw] * 3), cv2.cvtColor(raw, cv2.COLOR_BayerRG2RGB)):
        assert judged(ImageCheck(), image).blind in ("noise", "dark", "blurred")


@pytest.mark.parametrize("kind", ["gradient", "doors"])
def test_stripes_much_stronger_than_their_noise_are_not_blind(kind):
    rng = np.random.default_rng(0)
    grey = shade((640, 480), kind)
    grey += rng.normal(0, 0.13 * grey.mean(), grey.shape)
    assert judged(ImageCheck(), np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)).blind == ""


@pytest.mark.parametrize("size", [(96, 72), (160, 120)])
def test_small_images_of_a_scene_are_not_blind(images, size):
    for image in images[:3]:
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        assert judged(ImageCheck(), small).blind == ""


@pytest.mark.parametrize(("size", "radius"), [(SIZE, 1.0), ((224, 168), 1.0), ((1280, 720), 0.8)])
def test_gravel_of_stones_of_some_pixels_is_not_blind(size, radius):
    rng, shade = np.random.default_rng(0), np.linspace(0.6, 1.0, size[1])[:, None]
    stones = cv2.GaussianBlur(rng.normal(size=size[::-1]), (0, 0), radius)
    grey = (128 + 40 * stones / stones.std()) * shade
    assert judged(ImageCheck(), np.dstack([grey.clip(0, 255).astype(np.uint8)] * 3)).blind == ""


@pytest.mark.parametrize("along", [(1, 7), (7, 1)], ids=["columns", "rows"])
def test_fine_grass_is_not_blind(along):
    values = cv2.blur(np.random.default_rng(0).normal(size=SIZE[::-1]), along)
    grass = (128 + 50 * values / values.std()).clip(0, 255).astype(np.uint8)
    assert judged(ImageCheck(), np.dstack([grass] * 3)).blind == ""


def gravel():
    rng = np.random.default_rng(0)
    values = cv2.GaussianBlur(rng.integers(0, 256, (400, 480), dtype=np.uint8), (0, 0), 1.5)
    return cv2.normalize(values, None, 0, 255, cv2.NORM_MINMAX)


def slats():
    """Of a width at which far pixels are on the next one."""
    return np.tile(np.uint8(110 + 90 * np.sign(np.sin(np.arange(480) * 2 * np.pi / 10))), (400, 1))


@pytest.mark.parametrize("texture", [gravel(), slats()], ids=["gravel", "slats"])
def test_where_far_pixels_are_never_alike_they_are_not_suspect(images, texture):
    check = ImageCheck()
    shade = np.linspace(0.6, 1.0, 480)
    views = [
        np.dstack([(texture * shade)[k : k + 240, 2 * k : 2 * k + 320].astype(np.uint8)] * 3)
        for k in range(40)
    ]
    verdicts = [judged(check, view) for view in views]
    assert {(v.blind, v.suspect) for v in verdicts} == {("", "")}


@pytest.mark.parametrize("fault", long_after(1, ["defocus", "blocks"]))
def test_a_lasting_change_becomes_usual(images, fault):
    check = after(images)
    rng, worse = np.random.default_rng(0), bench_blind.fault_of(fault, 1)(images[-1], 0, None)
    causes = []
    for _ in range(LASTING + 10):
        noisy = np.clip(worse + rng.normal(0, 0.6, worse.shape), 0, 255).astype(np.uint8)
        verdict = judged(check, noisy)
        causes.append(verdict.blind or verdict.suspect)
    cause = "blurred" if fault == "defocus" else "noise"
    assert causes == [cause] * LASTING + [""] * 10
    assert LASTING > 100  # a lens that is covered for 100 images is held throughout


@pytest.mark.parametrize("lit", long_after(1, [0.3, 0.6]))
def test_a_dark_place_with_a_light_is_usual_after_a_while(images, lit):
    check, width = after(images), images[0].shape[1]
    rng, verdicts = np.random.default_rng(0), []
    for k in range(LASTING + 10):
        image = np.zeros_like(images[0])
        part = slice(0, round(lit * width))
        image[:, part] = images[k % len(images)][:, part]
        image = np.clip(image + rng.integers(0, 3, image.shape), 0, 255).astype(np.uint8)
        verdicts.append(judged(check, image))
    assert all(v.blind == "dark" or v.covered is not None for v in verdicts[:LASTING])
    assert not any(v.blind or v.covered is not None for v in verdicts[LASTING:])


def test_the_image_before_again_is_frozen(images):
    check = after(images[:3])
    assert [judged(check, images[2]).blind for _ in range(3)] == ["frozen"] * 3
    assert judged(check, images[3]).blind == ""


def test_equal_images_of_a_robot_that_stands_are_not_frozen(images):
    check, here, there = ImageCheck(), np.eye(4), np.eye(4)
    there[0, 3] = 0.05
    assert judged(check, images[0], T_prior=here).blind == ""
    assert judged(check, images[0], T_prior=here).blind == ""
    assert judged(check, images[0], T_prior=there).blind == "frozen"


def test_slow_motion_of_the_robot_unfreezes_nothing(images):
    """Each step is that of a robot that stands; all together they are not."""
    check, causes = ImageCheck(), []
    for step in range(5):
        T = np.eye(4)
        T[0, 3] = 0.0015 * step
        causes.append(judged(check, images[0], T_prior=T).blind)
    assert causes == ["", "", "frozen", "frozen", "frozen"]


def test_cameras_are_judged_apart(images):
    check = ImageCheck()
    assert judged(check, images[0], "left").blind == ""
    assert judged(check, images[0], "right").blind == ""
    assert judged(check, images[0], "left").blind == "frozen"


def test_pixels_that_show_the_robot_do_not_count(images):
    image, valid = np.zeros_like(images[0]), np.ones((168, 224), bool)
    image[120:] = images[0][120:]
    valid[84:] = False
    assert judged(ImageCheck(), image).blind == ""
    assert judged(ImageCheck(), image, valid=valid).blind == "dark"


def test_a_part_that_became_black_is_covered(images):
    verdict = judged(after(images[:-1]), bench_blind.half_black(images[-1], 0, images[-2]))
    assert verdict.blind == ""
    pixels = covered_pixels(verdict.covered, (240, 320))
    assert pixels[:, :160].all()
    assert not pixels[:, 180:].any()


def test_what_was_always_black_is_not_covered(images):
    """A frame around the image, or a black robot."""
    halves = [bench_blind.half_black(image, 0, image) for image in images]
    check = ImageCheck()
    assert all(judged(check, image).covered is None for image in halves)


@pytest.mark.parametrize("seed", long_after(1, [3, 100, 102]))
@pytest.mark.parametrize("walk", ["loop", "straight", "spot", "strafe"])
def test_images_of_rooms_show_something(walk, seed):
    check = ImageCheck()
    for f in SyntheticCamera(seed, SIZE, walk=walk, frames=8):
        assert judged(check, f.image).blind == ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [(1, 1), (2, 40), (40, 2), (8, 8), (40, 300)])
def test_tiny_images_are_judged_without_a_warning(size):
    check, rng = ImageCheck(), np.random.default_rng(0)
    for _ in range(10):
        image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        judged(check, image)
