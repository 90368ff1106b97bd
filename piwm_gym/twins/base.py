"""What every real simulator can be asked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from piwm_gym.systems import System, unknown

Step = tuple[Any, Any, bool, bool, dict[str, Any]]


class Twin(ABC):
    """Reads, writes and steps one real simulator.

    Args:
        native: The real environment, as :meth:`make` returns it.
    """

    options: tuple[str, ...] = ()
    """Names of the options that :meth:`make` takes."""

    def __init__(self, native: gym.Env) -> None:
        self.native = native
        self.env: Any = native.unwrapped

    @classmethod
    def make(cls, real_id: str, **options: Any) -> gym.Env:
        """Make the real environment, without a step limit.

        Args:
            real_id: Its Gymnasium id.
            options: Of this simulator; most have none.

        Raises:
            ValueError: The simulator has no such option.
        """
        cls.check_options(real_id, options)
        return gym.make(
            real_id, render_mode="rgb_array", max_episode_steps=-1, disable_env_checker=True
        )

    @classmethod
    def check_options(cls, real_id: str, options: Mapping[str, Any]) -> None:
        """Raise ValueError for an option that the simulator does not have."""
        for name in options:
            if not cls.options:
                raise ValueError(f"unknown simulator option {name!r}; {real_id} has none")
            if name not in cls.options:
                raise ValueError(unknown(f"simulator option of {real_id}", name, cls.options))

    def adapt(self, system: System, obs_type: str) -> System:
        """The system as this simulator has it, such as on its course.

        Raises:
            ValueError: Observations of this type cannot be made of what the simulator tells.
        """
        return system

    def reset(self, seed: int | None = None) -> None:
        """Start an episode of the real environment."""
        self.native.reset(seed=seed)

    def step(self, action: Any) -> Step:
        """Advance one time step; what the real environment's ``step`` returns."""
        return self.native.step(action)

    @abstractmethod
    def state(self) -> np.ndarray:
        """(D,) float64, SI units."""

    def scene(self) -> np.ndarray:
        """(S,) float64, the static visible variables of the episode."""
        return np.zeros(0)

    def set_scene(self, scene: np.ndarray) -> None:
        """Replace the scene of the episode.

        Args:
            scene: (S,) SI units.
        """
        raise NotImplementedError(f"{type(self).__name__} has no scene")

    def info(self) -> dict[str, Any]:
        """What else the simulator tells about the present moment."""
        return {}

    @abstractmethod
    def set_state(self, state: np.ndarray) -> None:
        """Put the simulator into a state.

        Args:
            state: (D,) SI units; derived dimensions are not written, they follow.
        """

    @abstractmethod
    def params(self) -> dict[str, float]:
        """Parameters in force; empty where the simulator does not tell them."""

    @abstractmethod
    def set_params(self, values: Mapping[str, float]) -> None:
        """Write all parameters.

        Raises:
            ValueError: The simulator cannot be given one of them.
        """


__all__ = ["Step", "Twin"]
