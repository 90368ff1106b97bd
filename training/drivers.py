"""Controllers of Donkey Car: steering and throttle, as :mod:`training.controllers` has them."""

import math

import numpy as np

from piwm_gym.courses import Course, wrap_angle

EFFECTIVE_WHEELBASE, FULL_STEERING = 0.32, math.radians(16)
"""m and rad: what :func:`pure_pursuit` believes of the car; it drives well with any roughly right
pair, as it looks again at every step."""


def pure_pursuit(
    states: np.ndarray,
    course: Course,
    offset: float = 0.0,
    lookahead: float = 0.7,
    throttle: float = 0.6,
    caution: float = 0.35,
) -> np.ndarray:
    """Steer towards a point of the path ahead; less throttle where the way there is bent.

    The arc through a point at distance d and bearing a has the curvature 2 sin(a) / d (Coulter,
    "Implementation of the pure pursuit path tracking algorithm", 1992).

    Args:
        states: float (..., D), SI units, as :class:`piwm_gym.systems.DonkeyCar` orders them; only
            place and heading are looked at.
        course: Whose path to follow.
        offset: How far to the right of the path to drive, m.
        lookahead: Distance along the path to the point, m.
        throttle: On a straight.
        caution: Share of it that a bend of 1/m takes away; tighter ones at most half as much more.

    Returns:
        float32 (..., 2), steering to the right and throttle.
    """
    x, y, theta = np.moveaxis(np.asarray(states)[..., :3], -1, 0)
    place = np.stack((x, y), axis=-1)
    goal = _point_ahead(place, course, offset, lookahead)
    away = goal - place
    bearing = wrap_angle(np.arctan2(away[..., 1], away[..., 0]) - theta)
    curvature = 2 * np.sin(bearing) / np.maximum(np.hypot(away[..., 0], away[..., 1]), 0.1)
    steering = -np.arctan(EFFECTIVE_WHEELBASE * curvature) / FULL_STEERING
    # Facing away from the goal, the full lock turns fastest.
    steering = np.where(np.abs(bearing) > math.pi / 2, -np.sign(bearing), steering)
    eased = throttle * (1 - caution * np.minimum(np.abs(curvature), 1.5))
    action = np.stack((np.clip(steering, -1, 1), np.clip(eased, 0, 1)), axis=-1)
    return action.astype(np.float32)


def _point_ahead(place: np.ndarray, course: Course, offset: float, lookahead: float) -> np.ndarray:
    """(..., 2) points of the path ahead of the nearest one, moved to the right by ``offset``."""
    arc, _ = course.project(place)
    ahead = np.round((arc + lookahead) / course.spacing).astype(int) % len(course.path)
    heading = course.headings[ahead]
    to_the_right = np.stack((np.sin(heading), -np.cos(heading)), axis=-1)
    return course.path[ahead] + offset * to_the_right


class Driver:
    """Drives Donkey Car with :func:`pure_pursuit` along targets that jump now and then.

    At every jump a lateral offset, a lookahead and a throttle are drawn, and a bias that is added
    to the steering: the car then wanders over the road at many speeds.

    Args:
        course: Whose path to follow.
        max_offset: Largest lateral offset, m.
        max_bias: Largest bias of the steering command.
        max_hold: A target is kept for a uniform number of steps, from half of this to this.
    """

    def __init__(self, course: Course, max_offset: float, max_bias: float, max_hold: int) -> None:
        self.course = course
        self.max_offset = max_offset
        self.max_bias = max_bias
        self.max_hold = max_hold
        self._target = {"offset": 0.0, "lookahead": 0.7, "throttle": 0.6}
        self._bias = 0.0
        self._left = 0

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """float32 (2,), steering and throttle for this state."""
        if self._left == 0:
            self._target = {
                "offset": rng.uniform(-self.max_offset, self.max_offset),
                "lookahead": rng.uniform(0.4, 1.0),
                "throttle": rng.uniform(0.1, 1.0),
            }
            self._bias = rng.uniform(-self.max_bias, self.max_bias)
            self._left = int(rng.integers((self.max_hold + 1) // 2, self.max_hold + 1))
        self._left -= 1
        action = pure_pursuit(state, self.course, **self._target)
        action[0] = np.clip(action[0] + self._bias, -1, 1)
        return action


class RandomWheel:
    """Random steering and throttle, held for a random number of steps.

    Args:
        max_hold: Holds are uniform from 1 to this many steps.
    """

    def __init__(self, max_hold: int) -> None:
        self.max_hold = max_hold
        self._action = np.zeros(2, dtype=np.float32)
        self._left = 0

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """float32 (2,); the state is not looked at."""
        if self._left == 0:
            self._action = rng.uniform((-1, 0), (1, 1)).astype(np.float32)
            self._left = int(rng.integers(1, self.max_hold + 1))
        self._left -= 1
        return self._action


__all__ = ["Driver", "RandomWheel", "pure_pursuit"]
