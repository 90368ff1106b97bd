"""State estimation: from the configurations of a window of frames to the state at its end.

A frame shows positions and angles; velocities follow from several frames and the known actions.

    frames          y[0]   y[1]   ...   y[T-1]
    configurations  q[0]   q[1]   ...   q[T-1]    here: the state's visible dimensions alone
    actions            a[0]   ...  a[T-2]         a[t] leads from q[t] to q[t+1]
    estimate                              x[T-1]
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from piwm_gym.systems import System

DIFFERENCE = 1e-2
"""Step of the numerical derivatives, in half ranges."""

VELOCITY_PRIOR = 1e-4
"""Weight of "velocities are near zero": squared ratio of the configuration's error to the
velocity's spread, both normalised. It matters for windows of two or three frames only."""

TIE = 1e-3
"""Relative difference of costs that means nothing: of two such starts the later one is taken."""


def finite_difference(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B D"]:
    """The paper's initialisation: velocity from the last two frames.

    ``phi(z_t, z_{t+1}, a_t)`` of the paper is :meth:`System.end_state`.
    """
    before, now = configurations[:, -2], configurations[:, -1]
    return system.end_state(before, now, actions[:, -1], params, scene)


class _Fit:
    """Least squares over the start of a rollout: cost and Gauss-Newton steps, per batch element.

    Each dimension is normalised by its half range. Derived dimensions stay as they are.
    """

    def __init__(
        self,
        system: System,
        configurations: Float[Tensor, "B T P"],
        actions: Shaped[Tensor, "B U *A"],
        params: Any,
        scene: Float[Tensor, "B S"] | None,
    ) -> None:
        self._difference = partial(
            system.difference, variables=system.visible_variables, half_ranges=True
        )
        self._rollout = partial(system.rollout, actions=actions, params=params, scene=scene)
        self._visible = system.visible
        self._scale = (system.ranges / 2).to(configurations)
        self._target = configurations / self._scale[self._visible]
        self._prior = torch.full_like(self._scale, VELOCITY_PRIOR)
        self._prior[self._visible] = 0.0
        # Only what is estimated moves: (E, D) unit vectors.
        self._units = torch.eye(len(self._scale)).to(self._scale)[system.estimated]

    def _configurations(self, starts: Float[Tensor, "K B D"]) -> Float[Tensor, "K B T P"]:
        """Normalised configurations of rollouts, their starts included."""
        states = torch.cat((starts[:, :, None], self._rollout(starts)), dim=2)
        return states[..., self._visible] / self._scale[self._visible]

    def _cost(self, start: Tensor, residual: Float[Tensor, "B R"]) -> Float[Tensor, " B"]:
        prior = self._prior * (start / self._scale) ** 2
        return residual.detach().square().sum(1) + prior.detach().sum(1)

    def cost(self, start: Float[Tensor, "B D"]) -> Float[Tensor, " B"]:
        """Sum of squares at a start; without gradient."""
        with torch.no_grad():
            here = self._configurations(start[None])[0]
            return self._cost(start, self._difference(self._target, here).flatten(1))

    def linearize(
        self, start: Float[Tensor, "B D"]
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, "B D"]]:
        """Cost at a start, without gradient, and the Gauss-Newton step from there.

        All starts in one rollout: the start itself, and each of its numbers moved up and down.
        Central differences are as good as derivatives for Gauss-Newton, at the cost of a larger
        batch instead of a longer program.
        """
        count = len(self._units)
        shifts = DIFFERENCE * self._scale * self._units
        shifts = torch.cat((torch.zeros_like(shifts[:1]), shifts, -shifts))
        here, up, down = self._configurations(start + shifts[:, None]).split((1, count, count))
        slope = self._difference(up, down) / (2 * DIFFERENCE)
        jacobian = slope.movedim(0, -1).flatten(1, 2)
        residual = self._difference(self._target, here[0]).flatten(1)
        prior = self._units @ self._prior
        normal = jacobian.mT @ jacobian + torch.diag(prior)
        gradient = (jacobian.mT @ residual[..., None])[..., 0]
        gradient = gradient - (self._prior * start / self._scale) @ self._units.T
        step = torch.linalg.solve(normal, gradient) @ self._units
        return self._cost(start, residual), self._scale * step


def fit_start(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
    iterations: int = 3,
) -> Float[Tensor, "B D"]:
    """State at the first frame whose rollout fits all configurations, by Gauss-Newton.

    Minimises the squared residuals of the configurations, each dimension normalised by its
    range, over the start's estimated numbers; batched and differentiable. Each batch element
    gets the best of the starts tried, as contact with the ground can make a step overshoot. The
    next step is taken from the last start all the same: in long windows of an unstable system
    the way to the best start leads over worse ones.

    Args:
        system: The system.
        configurations: Encoded visible dimensions, SI units.
        actions: T - 1 actions between them.
        params: Parameters of the transition.
        scene: Static visible variables, for systems that have them.
        iterations: Gauss-Newton steps; free motion is nearly linear in the start, three are
            enough.
    """
    elapsed = system.dt * (configurations.shape[1] - 1)
    start = system.from_configurations(configurations[:, 0], configurations[:, -1], elapsed)
    start = system.settled(start, actions[:, 0], params)
    fit = _Fit(system, configurations, actions, params, scene)
    best, lowest = start, torch.full_like(start[:, 0], torch.inf)
    for _ in range(iterations):
        cost, step = fit.linearize(start)
        best = torch.where((cost < (1 + TIE) * lowest)[:, None], start, best)
        lowest = torch.minimum(cost, lowest)
        start = start + step
    best = torch.where((fit.cost(start) < (1 + TIE) * lowest)[:, None], start, best)
    return system.wrap(best)


def shooting(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
) -> Float[Tensor, "B D"]:
    """State at the last frame of the trajectory that fits the whole window best."""
    start = fit_start(system, configurations, actions, params, scene)
    return system.rollout(start, actions, params, scene=scene)[:, -1]


ESTIMATORS = {"fd": finite_difference, "shooting": shooting}
