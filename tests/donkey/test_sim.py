import io
import math

import numpy as np
import pytest
from PIL import Image

from piwm_gym.courses import COURSES, get_course
from piwm_gym.donkey_sim import CameraSettings, CarSettings, Simulator
from piwm_gym.donkey_sim.camera import Rays
from piwm_gym.donkey_sim.colours import mix, pack, unpack
from piwm_gym.donkey_sim.scenery import beside_road, place_things
from piwm_gym.donkey_sim.sprites import KINDS


def follow(sim: Simulator) -> tuple[float, float]:
    """Pure pursuit at 0.8 m/s."""
    t, path = sim.telemetry, sim.course.path
    x, y = path[(t.node + 5) % len(path)]
    angle = math.atan2(y - t.y, x - t.x) - t.heading
    curvature = 2 * math.sin(angle) / math.hypot(x - t.x, y - t.y)
    wheel = curvature * 0.2 * (1 + (t.speed / 1.35) ** 2)
    return -wheel / math.radians(16), 0.5 * (0.8 - t.speed) + 0.14


@pytest.fixture(scope="module")
def sim() -> Simulator:
    return Simulator("meadow", seed=3)


# Camera


@pytest.mark.parametrize("settings", [CameraSettings(), CameraSettings(64, 48, 70, 0.3, 0, 30)])
def test_ground_points_project_to_their_pixels(settings):
    rays = Rays(settings)
    ahead, right = rays.ground()
    for row in range(0, len(ahead), 7):
        for column in (0, settings.width // 3, settings.width - 1):
            place = float(ahead[row, column]), float(right[row, column])
            expected = column + 0.5, rays.horizon + row + 0.5
            assert rays.pixel(*place, 0.0) == pytest.approx(expected, abs=1e-3)


def test_geometry_of_the_real_camera():
    rays = Rays(CameraSettings())
    assert rays.horizon == 44
    assert rays.focal == pytest.approx(60)
    _, far = rays.pixel(1e6, 0, 0)
    assert far == pytest.approx(60 - 60 * math.tan(math.radians(15)), abs=0.01)
    # 45 + 15 degrees below the horizon at the bottom edge of the picture.
    column, row = rays.pixel(0.2 / math.tan(math.radians(60)), 0.0, 0.0)
    assert (column, row) == pytest.approx((80, 120))


def test_the_picture_shows_a_line_where_it_is(sim):
    """The yellow line lies 0.25 m to the left of a car in the middle of its lane."""
    sim.reset()
    yellow = np.abs(sim.frame().astype(int) - (236, 190, 50)).sum(-1) < 60
    rays = sim.renderer.rays
    for row in (70, 80, 95):
        ahead = float(rays.ground()[0][row - rays.horizon, 0])
        expected, _ = rays.pixel(ahead, -0.25, 0.0)
        assert np.flatnonzero(yellow[row]).mean() + 0.5 == pytest.approx(expected, abs=1.0)


def test_things_stand_where_they_are(sim):
    """A thing's drawing spans the pixels of its foot and its top."""
    thing = next(t for t in sim.world.things if t.kind == "conifer")
    free = np.linspace(0, 2 * np.pi, 32, endpoint=False)
    poses = [(thing.x - 1.5 * math.cos(a), thing.y - 1.5 * math.sin(a), a) for a in free]
    seen = 0
    for x, y, heading in poses:
        others = [t for t in sim.world.things if t is not thing]
        near = min(math.hypot(t.x - x, t.y - y) for t in others)
        if near < 1.7:
            continue
        frame = sim.renderer.frame(x, y, heading)
        rays = sim.renderer.rays
        _, foot = rays.pixel(1.5 - 0.07, 0, 0)
        _, half = rays.pixel(1.5 - 0.07, 0, 0.55 * KINDS["conifer"].height)
        colour = np.array(thing.colours[0])
        body = frame[round(half), 79:81].astype(float).mean(0)
        assert np.abs(body / body.max() - colour / colour.max()).max() < 0.15
        assert foot < 120
        seen += 1
    assert seen


def test_camera_effects_are_drawn_per_episode():
    sim = Simulator("hall", camera=CameraSettings(light=0.3, tint=0.2, noise=4, blur=0.4))
    plain = Simulator("hall")
    first = sim.frame()
    assert not np.array_equal(first, plain.frame())
    sim.reset()
    assert abs(sim.frame().mean() - first.mean()) > 0.1
    sim.reset(seed=0)
    assert np.array_equal(sim.frame(), first)
    assert np.array_equal(plain.frame(), Simulator("hall", seed=9).frame())


@pytest.mark.parametrize(
    "change",
    [
        {"width": 4},
        {"width": 100.5},
        {"height": True},
        {"fov": 5},
        {"up": 0},
        {"up": math.nan},
        {"ahead": 1e300},
        {"haze": math.inf},
        {"pitch": "15"},
        {"tint": 1},
        {"noise": -1},
    ],
)
def test_impossible_cameras(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))}.*expected"):
        CameraSettings(**change)


@pytest.mark.parametrize("change", [{"pitch": -45}, {"pitch": -44.5}, {"up": 125e3}, {"up": 100}])
def test_cameras_that_see_no_ground(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} {'is ' * (name == 'pitch')}{value}.*see the gro"):
        CameraSettings(**change)


def test_every_camera_that_is_accepted_draws():
    sim, rng, drawn = Simulator("hall"), np.random.default_rng(0), 0
    for _ in range(60):
        try:
            camera = CameraSettings(
                *rng.integers(8, 40, 2).tolist(),
                fov=rng.uniform(10, 150),
                up=10 ** rng.uniform(-6, 2.4),
                ahead=rng.uniform(-60, 60),
                pitch=rng.choice([rng.uniform(-90, 90), 0, 45, 89.99]),
                haze=10 ** rng.uniform(-9, 9),
            )
        except ValueError:
            continue
        sim.set_camera(camera)
        for pose in rng.uniform(-4, 4, (3, 3)).tolist():
            assert sim.renderer.frame(*pose).shape == (camera.height, camera.width, 3)
        drawn += 1
    assert drawn > 20


def test_packed_pixels():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 50, 3)).astype(np.uint8)
    assert np.array_equal(unpack(pack(first)), first)
    share = rng.integers(0, 257, 50).astype(np.uint64)
    weight = share[:, None].astype(float) / 256
    exact = first * (1 - weight) + second * weight
    assert np.array_equal(unpack(mix(pack(first), pack(second), share)), np.floor(exact))


# The world


@pytest.mark.parametrize("name", [*COURSES, "random-1"])
def test_things_stand_beside_the_road(name):
    course = get_course(name)
    things = [t for t in place_things(course) if t.kind != "arch"]
    places = np.array([(t.x, t.y) for t in things])
    radii = np.array([KINDS[t.kind].radius for t in things])
    assert (beside_road(course, places) > radii + 0.2).all()
    assert len({t.colours for t in things}) == len({t.name for t in things}) == len(things)
    assert len(things) > course.length / 1.2


def views(sim: Simulator, poses: np.ndarray) -> np.ndarray:
    """Frames at (n, 3) poses, area-averaged to 24 x 40."""
    frames = np.array([sim.renderer.frame(*pose)[24:] for pose in poses.tolist()])
    return frames.reshape(-1, 24, 4, 40, 4, 3).mean((2, 4)).reshape(len(poses), -1)


@pytest.mark.parametrize("name", COURSES)
def test_no_two_places_look_alike(name):
    """A coarse frame is nearest to those of its own place, also from a little further on."""
    sim = Simulator(name)
    poses = np.column_stack([sim.course.path, sim.course.headings])
    heading = poses[::7, 2]
    ahead = np.stack([np.cos(heading), np.sin(heading), np.ones_like(heading)], 1)
    elsewhere = poses[::7] + 0.05 * ahead
    known, asked = views(sim, poses), views(sim, elsewhere)
    nearest = np.argmin((known**2).sum(1) - 2 * asked @ known.T, axis=1)
    error = np.hypot(*(poses[nearest] - elsewhere)[:, :2].T)
    assert error.max() < 0.3


# The simulator


def test_same_seed_same_bytes():
    runs = []
    for seed in (1, 1, 2):
        sim = Simulator("meadow", seed=seed, camera=CameraSettings(noise=2))
        rng = np.random.default_rng(0)
        run = []
        for _ in range(25):
            telemetry = sim.step(rng.uniform(-1, 1), rng.uniform(0, 1))
            run.append((telemetry, sim.jpeg()))
        runs.append(run)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_reset_with_a_seed_starts_anew(sim):
    sim.reset(seed=8)
    first = [sim.step(0.5, 0.5) for _ in range(10)]
    assert first[0].time == 0.05
    sim.reset(seed=8)
    assert [sim.step(0.5, 0.5) for _ in range(10)] == first


def test_reset_to_a_pose_clears_lags(sim):
    for _ in range(10):
        sim.step(1.0, 1.0)
    time = sim.telemetry.time
    t = sim.reset((1.0, -2.5, 7.0, 0.8))
    assert (t.time, t.x, t.y, t.speed) == (time, 1.0, -2.5, 0.8)
    assert t.heading == pytest.approx(7.0 - 2 * math.pi)
    assert (t.yaw_rate, t.lateral_speed, t.hit, t.steering) == (0, 0, "none", 0)
    assert sim.car.motion.wheel == sim.car.motion.drive == 0
    with pytest.raises(ValueError, match=r"pose is \(0, 0, nan, 0\); expected x, y, heading"):
        sim.reset((0, 0, math.nan, 0))


@pytest.mark.parametrize("name", [*COURSES, "random-2"])
def test_a_driver_gets_round(name):
    sim = Simulator(name, seed=5)
    frames, furthest = 0, 0.0
    while sim.telemetry.laps < 1:
        t = sim.step(*follow(sim))
        frames += 1
        furthest = max(furthest, abs(t.cte - sim.course.road_offset))
        assert t.hit == "none"
        assert frames < 1500
    assert furthest < sim.course.road_half_width
    assert frames * 0.05 * 0.8 == pytest.approx(sim.course.length, rel=0.2)


def test_cte_is_positive_to_the_right(sim):
    x, y, heading = sim.course.spawn
    for aside in (-0.5, 0.25):
        place = x + aside * math.sin(heading), y - aside * math.cos(heading)
        assert sim.reset((*place, heading, 0.0)).cte == pytest.approx(aside, abs=1e-6)
    sim.reset((x, y, heading, 1.0))
    for _ in range(12):
        sim.step(1.0, 0.3)
    assert sim.telemetry.cte > 0.02


def test_hits_stop_the_car():
    sim = Simulator("meadow", car=CarSettings(bumps=0.0))
    thing = next(t for t in sim.world.things if t.kind == "barn")
    sim.reset((thing.x - 0.8, thing.y, 0.0, 2.0))
    hits = [sim.step(0.0, 1.0).hit for _ in range(12)]
    assert hits[0] == "none"
    assert hits[-1] == thing.name
    assert sim.telemetry.speed == 0.0
    assert math.hypot(sim.telemetry.x - thing.x, sim.telemetry.y - thing.y) > 0.49
    sim.reset((-6.0, 0.0, math.pi, 2.0))
    assert "barrier" in [sim.step(0.0, 1.0).hit for _ in range(30)]
    assert sim.frame().shape == (120, 160, 3)


def test_commands_are_clipped_and_checked(sim):
    sim.reset()
    t = sim.step(3.0, -7.0, -1.0)
    assert (t.steering, t.throttle, t.brake) == (1.0, -1.0, 0.0)
    with pytest.raises(ValueError, match="steering is nan, throttle 0.0, brake 0.0"):
        sim.step(math.nan, 0.0)


def test_frames_and_jpeg(sim):
    sim.reset()
    frame = sim.frame()
    assert (frame.dtype, frame.shape) == (np.uint8, (120, 160, 3))
    picture = Image.open(io.BytesIO(sim.jpeg()))
    assert (picture.format, picture.size) == ("JPEG", (160, 120))
    assert np.abs(np.asarray(picture).astype(float) - frame).mean() < 10
    small = Simulator("meadow", camera=CameraSettings(width=80, height=60))
    assert small.frame().shape == (60, 80, 3)
