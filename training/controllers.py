"""Controllers that drive the real environments during collection.

A controller is called once per time step with the physical state and a generator, and returns an
action. It may remember things between calls; make a new one for every trajectory.
"""

import math
from typing import Any, Protocol

import numpy as np

from piwm_gym.courses import Course, wrap_angle


class Controller(Protocol):
    """Chooses the action at each time step of one trajectory."""

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> Any:
        """Action for this state.

        Args:
            state: float64 (D,), SI units.
            rng: Source of all randomness.

        Returns:
            An integer, or float (A,) for continuous actions.
        """
        ...


class RandomHold:
    """A random action, held for a random number of steps; bang-bang when the holds are long.

    Args:
        num_actions: Actions are 0 to ``num_actions - 1``.
        max_hold: Holds are uniform from 1 to this many steps; 1 is the random policy.
    """

    def __init__(self, num_actions: int, max_hold: int = 1) -> None:
        self.num_actions = num_actions
        self.max_hold = max_hold
        self._action = 0
        self._left = 0

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> int:
        """Action for this state, which is not looked at."""
        if self._left == 0:
            self._action = int(rng.integers(self.num_actions))
            self._left = int(rng.integers(1, self.max_hold + 1))
        self._left -= 1
        return self._action


class SwitchedLinear:
    """Two-sided linear feedback towards a target state that jumps now and then.

    The action is 1 where ``gains @ (state - target) > 0``, otherwise 0; with probability
    ``epsilon`` it is random.

    Args:
        gains: float (D,), per unit of each dimension.
        spread: float (D,); every new target is uniform within plus and minus this.
        max_hold: A target is kept for a uniform number of steps, from half of this to this.
        epsilon: Share of random actions.
    """

    def __init__(
        self, gains: np.ndarray, spread: np.ndarray, max_hold: int, epsilon: float
    ) -> None:
        self.gains = gains
        self.spread = spread
        self.max_hold = max_hold
        self.epsilon = epsilon
        self._target = np.zeros_like(spread)
        self._left = 0

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> int:
        """Action for this state."""
        if self._left == 0:
            self._target = rng.uniform(-self.spread, self.spread)
            self._left = int(rng.integers((self.max_hold + 1) // 2, self.max_hold + 1))
        self._left -= 1
        if rng.random() < self.epsilon:
            return int(rng.integers(2))
        return int(self.gains @ (state - self._target) > 0)


LIFT_GAIN, GLIDE_SPEED, LOWEST_CLIMB, HIGHEST_CLIMB = 0.6, 2.0, -2.0, 1.5
APPROACH_GAIN, LEAN_GAIN, STEEPEST = 0.5, 0.15, 0.5
TURN_GAIN, TURN_DAMPING, TURN_DEADBAND = 1.0, 0.5, 0.06


def pilot(
    states: np.ndarray, target: np.ndarray | tuple[float, float, float], damping: float = 1.0
) -> np.ndarray:
    """Lunar Lander's engines by cascaded proportional feedback.

    Places ask for velocities, velocities for attitude and lift; one engine fires at a time, so
    an attitude that is well off goes first, then the main engine.

    Args:
        states: float (..., D), SI units, as :class:`piwm_gym.systems.LunarLander` orders them.
        target: x (m) and y (m) to fly to, and an angle (rad) to lean by in addition.
        damping: Weight of all velocities; 1 flies well, less listens more to what one frame
            shows.

    Returns:
        int64 (...), actions.
    """
    x, y, x_dot, y_dot, theta, theta_dot = np.moveaxis(np.asarray(states)[..., :6], -1, 0)
    goal_x, goal_y, lean = target
    wanted_x_dot = np.clip(APPROACH_GAIN * (goal_x - x), -GLIDE_SPEED, GLIDE_SPEED)
    wanted = np.clip(LEAN_GAIN * (damping * x_dot - wanted_x_dot), -STEEPEST, STEEPEST) + lean
    turn = TURN_GAIN * (wanted - theta) - TURN_DAMPING * damping * theta_dot
    wanted_y_dot = np.clip(LIFT_GAIN * (goal_y - y), LOWEST_CLIMB, HIGHEST_CLIMB)
    sinks = damping * y_dot < wanted_y_dot
    side = np.where(turn > 0, 1, 3)
    action = np.where(np.abs(turn) > TURN_DEADBAND, side, 0)
    action = np.where(sinks & (np.abs(turn) < 4 * TURN_DEADBAND), 2, action)
    return np.asarray(action, dtype=np.int64)


class Pilot:
    """Flies Lunar Lander with :func:`pilot` to targets that jump now and then.

    With probability ``epsilon`` the action is random; with both legs on the ground the engines
    are off, so that it may come to rest.

    Args:
        low: Lowest x (m), y (m) and additional angle (rad) of a target.
        high: Highest of each.
        max_hold: A target is kept for a uniform number of steps, from half of this to this.
        epsilon: Share of random actions.
    """

    def __init__(
        self,
        low: tuple[float, float, float],
        high: tuple[float, float, float],
        max_hold: int,
        epsilon: float,
    ) -> None:
        self.low = low
        self.high = high
        self.max_hold = max_hold
        self.epsilon = epsilon
        self._target = np.zeros(3)
        self._left = 0

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> int:
        """Action for this state."""
        if self._left == 0:
            self._target = rng.uniform(self.low, self.high)
            self._left = int(rng.integers((self.max_hold + 1) // 2, self.max_hold + 1))
        self._left -= 1
        if rng.random() < self.epsilon:
            return int(rng.integers(4))
        if state[6] + state[7] == 2:
            return 0
        return int(pilot(state, self._target))


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


__all__ = [
    "Controller",
    "Driver",
    "Pilot",
    "RandomHold",
    "RandomWheel",
    "SwitchedLinear",
    "pilot",
    "pure_pursuit",
]
