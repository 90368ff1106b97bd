"""Donkey Car: drives in the embedded simulator, seen through the JPEG that a client would get.

The simulator runs in this process, without the network: the same physics, camera and compression
as behind gym-donkeycar's client, several times as fast. Its car is richer than any model of it
(delay, servo, torque curve, slip); nothing of its numbers is recorded.
"""

import io
import math

import numpy as np
from PIL import Image

from piwm_gym.courses import DEFAULT_COURSE, Course, get_course
from piwm_gym.donkey_sim import Simulator
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import DonkeyCar, System
from training.collectors.collector import Collector, Trajectory
from training.controllers import Controller
from training.drivers import Driver, RandomWheel, pure_pursuit

FURTHEST = 1.15
"""Largest distance from the path (m) in a kept drive: a little beyond the 1 m at which an episode
ends, so that the model has seen the frames in which it does."""
MAX_TRIES = 1_000
SETTLING = 8
"""Steps before a drive is recorded: lags and slip then belong to the controls."""
EXPERT = {"lookahead": 0.6, "throttle": 0.28, "caution": 0.5}
"""Slow enough for the tightest turns: the car stays within 0.6 m of the path."""

Pose = tuple[float, float, float, float]
"""x (m), y (m), heading (rad), speed (m/s)."""


class DonkeyCarCollector(Collector):
    """Drives that start anywhere along the course and stay within reach of it.

    - ``driver``: pure pursuit of wandering targets, all over the road and at all speeds;
    - ``racer``: the same close to the path with less bias, where good policies drive;
    - ``random``: random controls, soon off the road unless slow;
    - ``turned``: a driver that starts at any heading and finds back, because learning policies
      spin.

    Args:
        course: What they drive; default: "meadow".
    """

    system = DonkeyCar()
    controllers = {  # noqa: RUF012
        "driver": 0.45,
        "racer": 0.25,
        "random": 0.15,
        "turned": 0.15,
    }

    def __init__(self, course: Course | None = None) -> None:
        self._course = get_course(DEFAULT_COURSE) if course is None else course
        self._simulator = Simulator(course=self._course)

    @classmethod
    def on(cls, course: Course) -> "DonkeyCarCollector":
        """New collector on a course."""
        return cls(course)

    def trajectory(self, rng: np.random.Generator, num_steps: int) -> Trajectory:
        """Record one trajectory of exactly ``num_steps`` actions."""
        name = self.draw_controller(rng)
        for _ in range(MAX_TRIES):
            start, controller = self._start(name, rng), self._controller(name)
            seed = int(rng.integers(2**31))
            driven = self._drive(start, controller, seed, rng, SETTLING + num_steps)
            if driven is not None:
                states, actions = driven
                frames = self._film(start, seed, actions)
                return Trajectory(frames, actions[SETTLING:], states[SETTLING:], name)
        raise RuntimeError(
            f"no drive of {num_steps} steps by controller {name!r} stayed within {FURTHEST} m of "
            f"the path in {MAX_TRIES} tries; ask for fewer steps"
        )

    @staticmethod
    def expert(states: np.ndarray, system: System) -> np.ndarray:
        """Follow the system's path by pure pursuit, seeing nothing but what one frame shows."""
        assert system.asset is not None
        course = Course("of the system", system.asset.double().numpy())
        return pure_pursuit(states, course, **EXPERT)

    def _start(self, name: str, rng: np.random.Generator) -> Pose:
        """Somewhere along the course."""
        course = self._course
        i = int(rng.integers(len(course.path)))
        heading = float(course.headings[i])
        offset, off_heading, fastest = {
            "driver": (0.9, 0.6, 2.0),
            "racer": (0.3, 0.2, 2.0),
            "random": (0.7, 0.6, 1.0),
            "turned": (0.9, math.pi, 0.6),
        }[name]
        aside = rng.uniform(-offset, offset)
        x, y = course.path[i] + aside * np.array((math.sin(heading), -math.cos(heading)))
        heading += rng.uniform(-off_heading, off_heading)
        return float(x), float(y), heading, rng.uniform(0.0, fastest)

    def _controller(self, name: str) -> Controller:
        if name == "random":
            return RandomWheel(max_hold=15)
        if name == "racer":
            return Driver(self._course, max_offset=0.2, max_bias=0.15, max_hold=30)
        return Driver(self._course, max_offset=0.8, max_bias=0.5, max_hold=20)

    def _drive(
        self, start: Pose, controller: Controller, seed: int, rng: np.random.Generator, steps: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """States of every step and the actions; nothing when the car gets too far off."""
        simulator = self._simulator
        simulator.reset(start, seed=seed)
        states, actions = [self._state(0.0)], []
        for _ in range(steps):
            action = np.asarray(controller(states[-1], rng), dtype=np.float32)
            arc = self._arc()
            telemetry = simulator.step(float(action[0]), float(action[1]))
            if abs(telemetry.cte) > FURTHEST or telemetry.hit != "none":
                return None
            actions.append(action)
            states.append(self._state(states[-1][5] + self._course.advance(arc, self._arc())))
        return np.stack(states), np.stack(actions)

    def _state(self, progress: float) -> np.ndarray:
        """(6,) the system's state; the wheels' angle is the car's own."""
        t = self._simulator.telemetry
        wheels = -self._simulator.car.motion.wheel  # the system counts to the right
        return np.array([t.x, t.y, t.heading, t.speed, wheels, progress])

    def _arc(self) -> float:
        """Arc length of the nearest point of the path, m."""
        telemetry = self._simulator.telemetry
        return float(self._course.project(np.array([telemetry.x, telemetry.y]))[0])

    def _film(self, start: Pose, seed: int, actions: np.ndarray) -> np.ndarray:
        """Drive again, and look: uint8 (T+1, H, W, 3) from the settled moment on."""
        simulator, spec = self._simulator, self.system.frame
        simulator.reset(start, seed=seed)
        frames = []
        for t in range(len(actions) + 1):
            if t >= SETTLING:
                with Image.open(io.BytesIO(simulator.jpeg())) as image:
                    frames.append(preprocess_frame(np.asarray(image), spec))
            if t < len(actions):
                simulator.step(float(actions[t, 0]), float(actions[t, 1]))
        return np.stack(frames)
