"""Reading and steering a Donkey Car simulator, which runs in another process."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from piwm_gym.courses import DEFAULT_COURSE, Course, get_course
from piwm_gym.donkey_client import DonkeyEnv
from piwm_gym.twins.base import Step, Twin

WRITTEN = ("x", "y", "theta", "v")
"""What a start state gives; the rest follows."""


class DonkeyCarTwin(Twin):
    """A Donkey Car simulator behind the real client.

    Its state is what telemetry tells, ``steering`` is the last request, and ``progress`` adds up
    the way along the path since the start: on the course, where that is one of ours, else by the
    speed. Its physical parameters are neither told nor to be set.
    """

    options = tuple(
        name for name in inspect.signature(DonkeyEnv).parameters if name != "render_mode"
    )

    def __init__(self, native: gym.Env) -> None:
        super().__init__(native)
        self._course: Course | None = None
        if self.env.embedded:
            self._course = get_course(self.env.course or DEFAULT_COURSE)
        self._steering = self._progress = self._arc = 0.0

    @classmethod
    def make(cls, real_id: str, **options: Any) -> gym.Env:
        """The client's environment; it connects at the first reset.

        Args:
            real_id: Id of the simulator, for messages.
            options: Arguments of :class:`piwm_gym.donkey_client.DonkeyEnv`.

        Raises:
            ValueError: Unknown option, or one that is not valid.
        """
        cls.check_options(real_id, options)
        return DonkeyEnv(**options, render_mode="rgb_array")

    def reset(self, seed: int | None = None) -> None:
        """Put the car to its start."""
        super().reset(seed)
        self._begin()

    def step(self, action: Any) -> Step:
        """Advance one time step."""
        result = super().step(action)
        self._steering = float(np.asarray(action)[0])
        self._advance()
        return result

    def state(self) -> np.ndarray:
        """(D,) float64, SI units; the heading is NaN where nothing tells it yet."""
        from piwm_gym.systems import get_system

        values = self._values()
        names = get_system("donkey_car").state_names
        return np.array([values[name] for name in names], dtype=np.float64)

    def set_state(self, state: np.ndarray) -> None:
        """Put the car somewhere, standing.

        Args:
            state: (D,) SI units; derived dimensions are not written.

        Raises:
            ValueError: The speed is not 0.
        """
        self.native.reset(options={"state": np.asarray(state, dtype=np.float64)[: len(WRITTEN)]})
        self._begin()

    def info(self) -> dict[str, Any]:
        """What the client tells: pose, speed, cte, hit, time, crossings, package."""
        return dict(self.env.info)

    def params(self) -> dict[str, float]:
        """Empty: the simulator does not tell its parameters."""
        return {}

    def set_params(self, values: Mapping[str, float]) -> None:
        """Refuse any parameter.

        Raises:
            ValueError: There is one.
        """
        if values:
            raise ValueError(
                f"parameters {', '.join(map(repr, values))} given; expected none: the physics of "
                "the Donkey Car's simulator is its own and cannot be set"
            )

    def _values(self) -> dict[str, float]:
        info = self.env.info
        theta = info["heading"]
        if math.isnan(theta) and self._course is not None:
            theta = self._course.headings[
                round(self._arc / self._course.spacing) % len(self._course.path)
            ]
        return {
            "x": info["x"],
            "y": info["y"],
            "theta": float(theta),
            "v": info["speed"],
            "steering": self._steering,
            "progress": self._progress,
        }

    def _begin(self) -> None:
        self._steering = self._progress = 0.0
        self._arc = self._locate()

    def _advance(self) -> None:
        info = self.env.info
        if self._course is None:
            self._progress += info["speed"] * info["elapsed"]
            return
        length, arc = self._course.length, self._locate()
        self._progress += (arc - self._arc + length / 2) % length - length / 2
        self._arc = arc

    def _locate(self) -> float:
        """Arc length of the nearest point of the course, m."""
        if self._course is None:
            return 0.0
        info = self.env.info
        return float(self._course.project(np.array([info["x"], info["y"]]))[0])


__all__ = ["DonkeyCarTwin"]
