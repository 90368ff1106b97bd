"""What collection needs to know about one system."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from piwm_gym.courses import Course
from piwm_gym.systems import System


@dataclass(frozen=True)
class Trajectory:
    """One recorded trajectory; time alignment as drawn in ``training/dataset.py``.

    Attributes:
        frames: uint8 (T+1, H, W, 3).
        actions: (T,) integers, or (T, A) floats for continuous actions.
        states: float64 (T+1, D), SI units; for labels and evaluation only, no model sees them.
        controller: Name of the controller that drove it.
        scene: float64 (S,), the static visible variables; empty where the system has none.
    """

    frames: np.ndarray
    actions: np.ndarray
    states: np.ndarray
    controller: str
    scene: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Collector(ABC):
    """The real environment of one system, its start states and the controllers that drive it.

    Make one per process: it owns a simulator.

    Class attributes:
        system: The system's physics and frame geometry.
        controllers: Share of the trajectories that each controller drives, adding up to 1.
    """

    system: System
    controllers: dict[str, float]

    @classmethod
    def on(cls, course: Course) -> "Collector":
        """New collector on a course."""
        raise NotImplementedError(f"{cls.__name__} has no course")

    @abstractmethod
    def trajectory(self, rng: np.random.Generator, num_steps: int) -> Trajectory:
        """Record one trajectory of exactly ``num_steps`` actions.

        The result depends on ``rng`` and ``num_steps`` only, not on earlier calls.
        """

    @staticmethod
    @abstractmethod
    def expert(states: np.ndarray, system: System) -> np.ndarray:
        """Actions of the reference controller that knows the state; evaluation imitates it.

        Args:
            states: float (..., D), SI units.
            system: Theirs, in the place where they are.

        Returns:
            (...) actions.
        """

    def draw_controller(self, rng: np.random.Generator) -> str:
        """Name of a controller, drawn by the shares."""
        names = list(self.controllers)
        return names[rng.choice(len(names), p=list(self.controllers.values()))]


__all__ = ["Collector", "Trajectory"]
