"""Controllers that drive the real environments during collection.

A controller is called once per time step with the physical state and a generator, and returns a
discrete action. It may remember things between calls; make a new one for every trajectory.
"""

from typing import Protocol

import numpy as np


class Controller(Protocol):
    """Chooses the action at each time step of one trajectory."""

    def __call__(self, state: np.ndarray, rng: np.random.Generator) -> int:
        """Action for this state.

        Args:
            state: float64 (D,), SI units.
            rng: Source of all randomness.
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


__all__ = ["Controller", "RandomHold", "SwitchedLinear"]
