import math
from dataclasses import replace

import numpy as np
import pytest

from piwm_gym.donkey_sim import CarSettings
from piwm_gym.donkey_sim.car import FRAME_DT, GRAVITY, Car, Command, torque

SMOOTH = CarSettings(bumps=0.0)


def drive(car: Car, command: Command, frames: int, on_road: bool = True) -> None:
    rng = np.random.default_rng(0)
    for _ in range(frames):
        car.step(command, on_road, rng)


@pytest.mark.parametrize("throttle", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("steering", [-0.4, 1.0])
def test_steady_circles_have_the_understeering_radius(steering, throttle):
    car = Car(SMOOTH)
    drive(car, Command(steering, throttle), 600)
    v, angle = car.motion.speed, math.radians(16 * abs(steering))
    radius = 0.2 * (1 + (v / 1.35) ** 2) / math.tan(angle)
    assert v / abs(car.motion.yaw_rate) == pytest.approx(radius, rel=1e-3)
    assert math.copysign(1, car.motion.yaw_rate) == -math.copysign(1, steering)  # to the right
    assert car.motion.lateral_speed == pytest.approx(-0.04 * v * car.motion.yaw_rate, rel=1e-3)

    start, places = car.motion.heading, []
    while len(places) < 20 or abs(car.motion.heading - start) > 0.1:
        drive(car, Command(steering, throttle), 1)
        places.append((car.motion.x, car.motion.y))
    diameter = np.ptp(places, axis=0)
    speed = math.hypot(v, car.motion.lateral_speed)
    assert diameter == pytest.approx(2 * speed / abs(car.motion.yaw_rate), rel=0.02)


@pytest.mark.parametrize("throttle", [0.2, 1.0, -0.5])
def test_top_speed_balances_torque_and_losses(throttle):
    car = Car(SMOOTH)
    drive(car, Command(0.0, throttle), 1000)
    v = abs(car.motion.speed)
    assert 2.8 * torque(v / 5) * abs(throttle) == pytest.approx(
        0.10 + 0.15 * v + 0.03 * v * v, rel=0.01
    )
    assert math.copysign(1, car.motion.speed) == math.copysign(1, throttle)
    assert car.motion.y == pytest.approx(0, abs=1e-12)


def test_torque_curve():
    assert [torque(s) for s in (0, 0.31, 0.62, 1.0, 2.0)] == pytest.approx([1, 0.95, 0.9, 0.5, 0.5])


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_commands_arrive_late(delay):
    car = Car(replace(SMOOTH, delay=delay))
    for frame in range(4):
        drive(car, Command(1.0, 1.0), 1)
        assert (car.motion.speed > 0) == (frame >= delay)
        assert (car.motion.wheel < 0) == (frame >= delay)
    car.place(0, 0, 0, 0)  # nothing is under way any more
    for _ in range(3):
        drive(car, Command(0.0, 0.0), 1)
        assert car.motion.speed == car.motion.wheel == 0


def test_the_servo_is_slow():
    car = Car(replace(SMOOTH, delay=0))
    drive(car, Command(1.0), 1)
    assert math.degrees(car.motion.wheel) == pytest.approx(-120 * FRAME_DT, rel=0.02)
    drive(car, Command(1.0), 20)
    assert math.degrees(car.motion.wheel) == pytest.approx(-16, rel=1e-3)


def test_friction_limits_the_sideways_acceleration():
    grippy = CarSettings(bumps=0.0, understeer_speed=0.0)
    for on_road, share in ((True, 1.0), (False, 0.6)):
        car = Car(grippy)
        car.place(0, 0, 0, 4.0)
        drive(car, Command(1.0, 1.0), 12, on_road)
        limit = grippy.friction * share * GRAVITY
        assert car.motion.speed * abs(car.motion.yaw_rate) == pytest.approx(limit, rel=0.1)


def test_brake_grass_and_rest():
    braked, coasting, grass = Car(SMOOTH), Car(SMOOTH), Car(SMOOTH)
    for car in (braked, coasting, grass):
        car.place(0, 0, 0, 2.0)
    drive(braked, Command(brake=1.0), 5)
    drive(coasting, Command(), 5)
    drive(grass, Command(), 5, on_road=False)
    assert braked.motion.speed < grass.motion.speed < coasting.motion.speed < 2.0
    drive(braked, Command(brake=1.0), 20)
    assert braked.motion.speed == 0.0
    drive(braked, Command(throttle=0.03), 20)  # less than it takes to roll
    assert braked.motion.speed == 0.0


def test_bumps_do_not_move_a_standing_car():
    car = Car(CarSettings(bumps=1.0))
    drive(car, Command(), 20)
    assert (car.motion.x, car.motion.speed) == (0.0, 0.0)
    car.place(0, 0, 0, 1.0)
    drive(car, Command(0.0, 0.15), 40)
    assert abs(car.motion.y) > 1e-4


@pytest.mark.parametrize("change", [{"friction": -1}, {"delay": -1}, {"slip": math.nan}])
def test_impossible_constants(change):
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"{name} is .*; expected a finite number, 0 or more"):
        CarSettings(**change)
    with pytest.raises(ValueError, match="wheelbase is 0; expected more"):
        CarSettings(wheelbase=0)
