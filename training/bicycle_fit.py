"""Fit the Donkey Car's bicycle to windows of recorded drives by free rollouts."""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.systems import DonkeyCar, DonkeyCarParams
from training.least_squares import levenberg_marquardt
from training.telemetry_windows import Windows

QUANTITIES = (
    "curvature_per_steering",
    "steering_trim",
    "throttle_gain",
    "drag",
    "rolling",
    "understeer",
    "steering_lag",
)
"""What is fitted: steering gain over wheelbase (1/m), for only their ratio shows in a path; the
command at which the real wheels stand straight, negated (a nuisance of either sign, not a
parameter of the system); the parameters of the system."""
GUESS = (1.5, 0.0, 8.0, 1.0, 0.5, 0.2, 0.05)
"""Where fits begin."""
TRIM = QUANTITIES.index("steering_trim")
MODELS: dict[str, tuple[str, ...]] = {
    "bicycle": (),
    "bicycle with understeer": ("understeer",),
    "bicycle with understeer and lag": ("understeer", "steering_lag"),
}
"""Models by what they have beyond the plain bicycle."""
BOUNDS = (-9.0, 5.0)
"""Of the logarithms: beyond them a parameter acts as zero or without limit."""
ITERATIONS = 20
"""Understeer and lag trade off with the other quantities, and need most of them."""
STEP = 1e-3
"""Of the numerical derivatives, in logarithms and in units of the trim."""


@dataclass(frozen=True)
class Bicycle:
    """A fitted bicycle.

    Attributes:
        model: One of ``MODELS``.
        values: The quantities by name; 0 for the effects that the model lacks.
        gain: Steering angle at full command, rad; taken as known.
        spread: Largest difference of the model's main quantity, curvature per steering, between
            the fits from several starts, as a fraction.
    """

    model: str
    values: dict[str, float]
    gain: float
    spread: float = 0.0

    @property
    def params(self) -> DonkeyCarParams:
        """Parameters of the system."""
        return _params(torch.tensor(list(self.values.values()), dtype=torch.float64), self.gain)

    def effective_wheelbase(self, speed: float) -> float:
        """Wheelbase (m) of the bicycle without understeer that turns as tightly at this speed."""
        wheelbase = self.gain / self.values["curvature_per_steering"]
        return wheelbase * (1 + self.values["understeer"] * speed**2)

    def positions(self, windows: Windows) -> np.ndarray:
        """(B, T, 2) positions along free rollouts from the windows' start poses."""
        values = torch.tensor(list(self.values.values()), dtype=torch.float64)
        return _positions(values, _Tensors(windows), self.gain).numpy()


class _Tensors:
    """Windows as tensors, made once for all rollouts."""

    def __init__(self, windows: Windows) -> None:
        self.poses, self.history, self.actions, self.positions = (
            torch.as_tensor(array)
            for array in (windows.poses, windows.history, windows.actions, windows.positions)
        )


def fit_bicycle(
    windows: Windows,
    model: str,
    gain: float,
    starts: int = 3,
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> Bicycle:
    """Least squares of the positions along free rollouts, from several starting points.

    The first fit starts from a fixed guess. Each other one starts with every quantity at least
    50 % off what the first found, and the trim at the other side: a fit that depends on where it
    starts shows as ``spread``.

    Args:
        windows: What to fit.
        model: One of ``MODELS``.
        gain: Steering angle at full command, rad.
        starts: Number of starting points.
        seed: Seed of the starting points.
        iterations: Steps that each fit tries.

    Returns:
        The best of the fits.
    """
    tensors = _Tensors(windows)
    free = ("curvature_per_steering", "throttle_gain", "drag", "rolling", *MODELS[model])
    moving = [i for i, name in enumerate(QUANTITIES) if name in free or i == TRIM]
    absent = torch.tensor([i not in moving for i in range(len(QUANTITIES))])

    def values(raw: Tensor) -> Tensor:
        positive = raw.clamp(*BOUNDS).exp().masked_fill(absent, 0.0)
        return torch.where(torch.arange(len(raw)) == TRIM, raw, positive)

    def residuals(raw: Tensor) -> Tensor:
        return (_positions(values(raw), tensors, gain) - tensors.positions).flatten()

    rng = np.random.default_rng(seed)
    raw = torch.tensor([v if i == TRIM else math.log(v) for i, v in enumerate(GUESS)]).double()
    fits: list[Tensor] = []
    for start in range(starts):
        if start:
            factor = np.where(rng.random(len(raw)) < 0.5, 0.45, 1.8) * rng.uniform(0.9, 1.1)
            raw = fits[0] + torch.as_tensor(np.log(factor))
            raw[TRIM] = -fits[0][TRIM]
        fits.append(levenberg_marquardt(residuals, raw, moving, iterations, STEP))
    best = min(fits, key=lambda fit: float(residuals(fit).norm()))
    curvatures = [float(values(fit)[0]) for fit in fits]
    found = dict(zip(QUANTITIES, values(best).tolist(), strict=True))
    return Bicycle(model, found, gain, (max(curvatures) - min(curvatures)) / curvatures[0])


def _params(values: Tensor, gain: float) -> DonkeyCarParams:
    """Parameters of the system; effects that are not fitted are switched off."""
    off = {f.name: 0.0 for f in fields(DonkeyCarParams) if f.metadata["may_vanish"]}
    curvature, _, *others = values.tolist()
    fitted = dict(zip(QUANTITIES[2:], others, strict=True))
    wheels = {"wheelbase": gain / curvature, "steering_gain": gain}
    return DonkeyCarParams(**(off | wheels | fitted))


class _NoCourse:
    """Stands for the course where there is none: nothing is looked up."""

    def glance(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Arc length and cross-track error: 0."""
        return torch.zeros_like(xy[..., 0]), torch.zeros_like(xy[..., 0])

    def driven(self, before: Tensor, after: Tensor) -> Tensor:
        """Progress: 0."""
        return after - before


class _OpenGround(DonkeyCar):
    """The car away from its course, where real cars were recorded; a step costs half as much."""

    def track(self, like: Tensor) -> Any:
        """No course."""
        return _NoCourse()


def _positions(values: Tensor, windows: _Tensors, gain: float) -> Tensor:
    """Rollouts by the system's own equations; the trim is added to the commands."""
    system, params = _OpenGround(), _params(values, gain)
    trim = torch.stack((values[TRIM], torch.zeros_like(values[TRIM])))
    history, actions = windows.history + trim, windows.actions + trim
    names = system.state_names
    state = torch.zeros(len(windows.poses), len(names), dtype=torch.float64)
    state[:, [names.index(name) for name in ("x", "y", "theta", "v")]] = windows.poses
    if params.steering_lag:
        # Of this rollout only the angle is kept that the earlier commands gave the wheels.
        settled = system.settled(state, history[:, 0], params)
        steering = names.index("steering")
        state[:, steering] = system.rollout(settled, history, params)[:, -1, steering]
    # Explicit Euler moves a car by the heading and speed at the start of a step; a path shows those
    # of its middle. Half a step ahead at the start makes up for it all along.
    moved = system.transition(state, actions[:, 0], params)
    for i in (names.index("theta"), names.index("v")):
        state[:, i] += system.difference(moved, state)[:, i] / 2
    states = system.rollout(state, actions, params)
    return states[..., [names.index("x"), names.index("y")]]


__all__ = ["MODELS", "QUANTITIES", "Bicycle", "fit_bicycle"]
