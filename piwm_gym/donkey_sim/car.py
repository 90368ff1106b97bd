"""The car: richer than a bicycle on purpose, so that a bicycle is an approximation of it.

Between command and motion lie a delay, a servo with lag and limited rate, a motor whose torque
falls with speed, losses, understeer, a friction limit, side slip, grass and bumps.
"""

import math
from collections import deque
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from piwm_gym.checks import check_whole, is_number
from piwm_gym.courses import wrap_angle

GRAVITY = 9.81
PHYSICS_DT = 0.01
PHYSICS_STEPS = 5
FRAME_DT = PHYSICS_DT * PHYSICS_STEPS
TORQUE_CURVE = ((0.0, 1.0), (0.62, 0.9), (1.0, 0.5))
"""Share of the full torque at a share of ``rated_speed``."""


@dataclass(frozen=True)
class CarSettings:
    """Constants of the car, in SI units unless a name says otherwise.

    Attributes:
        delay: Telemetry frames between a command and the moment it reaches the car.
        wheelbase: m.
        max_steering: deg, steering angle of a full command.
        steering_bias: deg, added to every steering angle; positive to the left.
        servo_time: s, lag of the steering servo.
        servo_rate: deg/s, its greatest rate.
        acceleration: m/s^2, at full throttle and standstill, before losses.
        rated_speed: m/s, the end of the torque curve.
        motor_time: s, lag of the motor.
        rolling: m/s^2, resistance that does not depend on speed.
        viscous: 1/s, resistance proportional to speed.
        air: 1/m, resistance proportional to speed squared.
        cornering: 1/m, resistance proportional to speed squared and to tan(steering angle).
        braking: m/s^2, of the full brake.
        understeer_speed: m/s, at which a turn's radius has doubled.
        friction: Limit of the sideways acceleration, as a share of gravity.
        yaw_time: s, lag of yaw rate and side slip.
        slip: s, sideways speed per (speed x yaw rate).
        grass_friction: Share of ``friction`` left beside the road.
        grass_drag: 1/s, additional resistance there.
        bumps: Strength of random kicks; 1 stands for 0.02 m/s and 0.03 rad/s per frame.
    """

    delay: int = 1
    wheelbase: float = 0.20
    max_steering: float = 16.0
    steering_bias: float = 0.0
    servo_time: float = 0.08
    servo_rate: float = 120.0
    acceleration: float = 2.8
    rated_speed: float = 5.0
    motor_time: float = 0.1
    rolling: float = 0.10
    viscous: float = 0.15
    air: float = 0.03
    cornering: float = 0.35
    braking: float = 6.0
    understeer_speed: float = 1.35
    friction: float = 0.7
    yaw_time: float = 0.06
    slip: float = 0.04
    grass_friction: float = 0.6
    grass_drag: float = 0.8
    bumps: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_number(value) or (value < 0 and field.name != "steering_bias"):
                raise ValueError(f"{field.name} is {value}; expected a finite number, 0 or more")
        check_whole("delay", self.delay)
        for name in ("wheelbase", "servo_time", "rated_speed", "motor_time", "yaw_time"):
            if not getattr(self, name):
                raise ValueError(f"{name} is 0; expected more")


class Command(NamedTuple):
    """What a driver asks for: steering and throttle in [-1, 1], brake in [0, 1]."""

    steering: float = 0.0
    throttle: float = 0.0
    brake: float = 0.0


@dataclass
class Motion:
    """State of the car; right-handed, so that a turn to the left has a positive rate.

    Attributes:
        x: m.
        y: m.
        heading: rad, in [-pi, pi).
        speed: m/s, forward.
        lateral_speed: m/s, to the left.
        yaw_rate: rad/s.
        wheel: rad, steering angle of the front wheels, positive to the left.
        drive: m/s^2, acceleration from the motor.
    """

    x: float = 0.0
    y: float = 0.0
    heading: float = 0.0
    speed: float = 0.0
    lateral_speed: float = 0.0
    yaw_rate: float = 0.0
    wheel: float = 0.0
    drive: float = 0.0


class Car:
    """The car's motion under commands.

    Args:
        settings: Its constants.
    """

    def __init__(self, settings: CarSettings) -> None:
        self.settings = settings
        self.motion = Motion()
        self.pending: deque[Command] = deque()
        self.place(0.0, 0.0, 0.0, 0.0)

    def place(self, x: float, y: float, heading: float, speed: float) -> None:
        """Put the car at a pose, rolling straight, with no command under way."""
        self.motion = Motion(x, y, float(wrap_angle(heading)), speed)
        self.pending = deque([Command()] * self.settings.delay)

    def step(self, command: Command, on_road: bool, rng: np.random.Generator) -> None:
        """Advance by one telemetry frame.

        Args:
            command: Takes effect after the delay.
            on_road: Whether the ground is asphalt, not grass.
            rng: Where bumps come from.
        """
        self.pending.append(command)
        active = self.pending.popleft()
        kicks = np.zeros((PHYSICS_STEPS, 2))
        if self.settings.bumps:
            scale = self.settings.bumps / math.sqrt(PHYSICS_STEPS)
            kicks = rng.standard_normal((PHYSICS_STEPS, 2)) * (0.02 * scale, 0.03 * scale)
        for push, twist in kicks.tolist():
            self._physics_step(active, on_road, push, twist)

    def _physics_step(self, command: Command, on_road: bool, push: float, twist: float) -> None:
        m = self.motion
        self._turn_wheels(command.steering)
        self._drive(command, on_road)
        moving = min(1.0, abs(m.speed) / 0.2)  # a standing car meets no bumps
        m.speed += push * moving
        self._yaw(on_road)
        m.yaw_rate += twist * moving
        m.heading = float(wrap_angle(m.heading + m.yaw_rate * PHYSICS_DT))
        forward_x, forward_y = math.cos(m.heading), math.sin(m.heading)
        m.x += (m.speed * forward_x - m.lateral_speed * forward_y) * PHYSICS_DT
        m.y += (m.speed * forward_y + m.lateral_speed * forward_x) * PHYSICS_DT

    def _turn_wheels(self, steering: float) -> None:
        c, m = self.settings, self.motion
        wanted = math.radians(c.steering_bias - steering * c.max_steering)
        limit = math.radians(c.servo_rate)
        rate = (wanted - m.wheel) / max(c.servo_time, PHYSICS_DT)
        m.wheel += max(-limit, min(limit, rate)) * PHYSICS_DT

    def _drive(self, command: Command, on_road: bool) -> None:
        c, m = self.settings, self.motion
        pull = c.acceleration * torque(abs(m.speed) / c.rated_speed) * command.throttle
        m.drive += (pull - m.drive) * min(1.0, PHYSICS_DT / c.motor_time)
        m.speed += m.drive * PHYSICS_DT
        v = abs(m.speed)
        loss = c.viscous * v + (c.air + c.cornering * abs(math.tan(m.wheel))) * v * v
        loss += c.rolling + c.braking * command.brake
        if not on_road:
            loss += c.grass_drag * v
        m.speed -= math.copysign(min(v, loss * PHYSICS_DT), m.speed)  # losses never push back

    def _yaw(self, on_road: bool) -> None:
        c, m = self.settings, self.motion
        v = m.speed
        slowed = 1.0 + (v / c.understeer_speed) ** 2 if c.understeer_speed else 1.0
        rate = v * math.tan(m.wheel) / (c.wheelbase * slowed)
        grip = c.friction * (1.0 if on_road else c.grass_friction) * GRAVITY
        if abs(v * rate) > grip:
            rate = math.copysign(grip / abs(v), rate)
        share = min(1.0, PHYSICS_DT / c.yaw_time)
        m.yaw_rate += (rate - m.yaw_rate) * share
        m.lateral_speed += (-c.slip * v * m.yaw_rate - m.lateral_speed) * share


def torque(share: float) -> float:
    """Share of the full torque at a share of the rated speed, straight between the points."""
    for (low, first), (high, second) in pairwise(TORQUE_CURVE):
        if share <= high:
            return first + (second - first) * (share - low) / (high - low)
    return TORQUE_CURVE[-1][1]


__all__ = ["FRAME_DT", "Car", "CarSettings", "Command", "Motion", "torque"]
