"""Reading and writing CartPole-v1."""

from collections.abc import Mapping

import numpy as np

from piwm_gym.systems import CartPoleParams
from piwm_gym.twins.base import Twin


class CartPoleTwin(Twin):
    """CartPole-v1."""

    def state(self) -> np.ndarray:
        """(4,) float64, SI units."""
        return np.array(self.env.state, dtype=np.float64)

    def set_state(self, state: np.ndarray) -> None:
        """Put the simulator into a state."""
        self.env.state = np.array(state, dtype=np.float64)
        self.env.steps_beyond_terminated = None

    def params(self) -> dict[str, float]:
        """Parameters in force."""
        return {name: float(getattr(self.env, name)) for name in CartPoleParams.names()}

    def set_params(self, values: Mapping[str, float]) -> None:
        """Write parameters, and the quantities that CartPole-v1 derives from them once."""
        for name, value in values.items():
            setattr(self.env, name, value)
        self.env.total_mass = self.env.masspole + self.env.masscart
        self.env.polemass_length = self.env.masspole * self.env.length


__all__ = ["CartPoleTwin"]
