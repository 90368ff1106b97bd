"""Reading and steering a Donkey Car simulator, which runs in another process."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from piwm_gym.courses import DEFAULT_COURSE, get_course
from piwm_gym.donkey_client import DonkeyEnv
from piwm_gym.systems import DonkeyCar, System
from piwm_gym.systems.donkey_car import FULL_STEERING
from piwm_gym.systems.track import Place
from piwm_gym.twins.base import Step, Twin

WRITTEN = 4
"""How many of the state's dimensions a start gives: x, y, theta, v; the rest follows."""


class DonkeyCarTwin(Twin):
    """A Donkey Car simulator behind the real client.

    Its state is what telemetry tells; ``steering`` is the angle last asked for, and ``progress``
    adds up the way along the path since the start, or, where the course is none of ours, the way
    driven. Physical parameters are neither told nor to be set.
    """

    options = tuple(
        name for name in inspect.signature(DonkeyEnv).parameters if name != "render_mode"
    )

    def __init__(self, native: gym.Env) -> None:
        super().__init__(native)
        name = self.env.course or (DEFAULT_COURSE if self.env.embedded else None)
        path = None if name is None else torch.from_numpy(get_course(name).path)
        self._system = None if path is None else DonkeyCar(path)
        self._steering = self._progress = 0.0

    @classmethod
    def make(cls, real_id: str, **options: Any) -> gym.Env:
        """The client's environment; it connects at the first reset.

        Args:
            real_id: Id of the simulator's scene, for messages.
            options: Arguments of :class:`piwm_gym.donkey_client.DonkeyEnv`.

        Raises:
            ValueError: Unknown option, or one that is not valid.
        """
        cls.check_options(real_id, options)
        return DonkeyEnv(**options, render_mode="rgb_array")

    def adapt(self, system: System, obs_type: str) -> System:
        """The car on the simulator's course.

        Raises:
            ValueError: A state observation tells the path ahead, but the course is unknown.
        """
        if self._system is not None:
            return self._system
        if obs_type != "pixels":
            raise ValueError(
                f"obs_type is {obs_type!r} with a simulator whose course is unknown; expected "
                "'pixels', or course= with the name of the embedded simulator's course: the "
                "state's observation tells how the path goes on"
            )
        return system

    def reset(self, seed: int | None = None) -> None:
        """Put the car to its start."""
        super().reset(seed)
        self._steering = self._progress = 0.0

    def step(self, action: Any) -> Step:
        """Advance one time step."""
        before = self._place()
        result = super().step(action)
        self._steering = float(np.asarray(action)[0]) * FULL_STEERING
        after, info = self._place(), self.env.info
        if self._system is None or before is None or after is None:
            self._progress += info["speed"] * info["elapsed"]
        else:
            length = self._system.track(after.arc).length
            apart = float(after.arc - before.arc)
            self._progress += apart - length * round(apart / length)  # the shorter way round
        return result

    def state(self) -> np.ndarray:
        """(6,) float64, SI units; the heading is NaN where nothing tells it yet."""
        info, theta = self.env.info, self.env.info["heading"]
        place = self._place()
        if math.isnan(theta) and place is not None:
            theta = float(place.heading)
        moving = (info["x"], info["y"], theta, info["speed"])
        return np.array([*moving, self._steering, self._progress], dtype=np.float64)

    def set_state(self, state: np.ndarray) -> None:
        """Put the car somewhere, standing.

        Args:
            state: (6,) SI units; derived dimensions are not written.

        Raises:
            ValueError: The speed is not 0.
        """
        self.native.reset(options={"state": np.asarray(state, dtype=np.float64)[:WRITTEN]})
        self._steering = self._progress = 0.0

    def info(self) -> dict[str, Any]:
        """What the client tells: pose, speed, cte, hit, time, laps, package."""
        info = dict(self.env.info)
        if self._system is not None:
            laps = self._system.laps(torch.from_numpy(self.state()))
            info["laps"] = max(0, math.floor(float(laps)))
        return info

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

    def _place(self) -> Place | None:
        """Where the car is beside the course; None if the course is unknown."""
        if self._system is None:
            return None
        position = torch.tensor([self.env.info[name] for name in ("x", "y")], dtype=torch.float64)
        return self._system.track(position).project(position)


__all__ = ["DonkeyCarTwin"]
