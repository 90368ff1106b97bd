"""Controllers that drive the real environments during collection.

A controller is called once per time step with the physical state and a generator, and returns an
action. It may remember things between calls; make a new one for every trajectory.
"""

from typing import Any, Protocol

import numpy as np


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


__all__ = ["Controller", "Pilot", "RandomHold", "SwitchedLinear", "pilot"]
