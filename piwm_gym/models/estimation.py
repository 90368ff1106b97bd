"""State estimation: from the configurations of a window of frames to the state at its end.

A frame shows positions and angles; velocities follow from several frames and the known actions.

    frames          y[0]   y[1]   ...   y[T-1]
    configurations  q[0]   q[1]   ...   q[T-1]
    actions            a[0]   ...  a[T-2]         a[t] leads from q[t] to q[t+1]
    estimate                              x[T-1]
"""

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


def finite_difference(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B S *A"],
    params: Any,
) -> Float[Tensor, "B D"]:
    """The paper's initialisation: velocity from the last two frames, then one step.

    ``phi(z_t, z_{t+1}, a_t)`` of the paper is the transition of this state.
    """
    start = system.from_configurations(configurations[:, -2], configurations[:, -1], system.dt)
    return system.transition(start, actions[:, -1], params)


def fit_start(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B S *A"],
    params: Any,
    iterations: int = 3,
) -> Float[Tensor, "B D"]:
    """State at the first frame whose rollout fits all configurations, by Gauss-Newton.

    Minimises the squared residuals of the configurations, each dimension normalised by its
    range, over the start's D numbers; batched and differentiable.

    Args:
        system: The system.
        configurations: Encoded visible dimensions, SI units.
        actions: T - 1 actions between them.
        params: Parameters of the transition.
        iterations: Gauss-Newton steps; the motion is nearly linear in the start, three are
            enough.
    """
    elapsed = system.dt * (configurations.shape[1] - 1)
    start = system.from_configurations(configurations[:, 0], configurations[:, -1], elapsed)
    scale = (system.ranges / 2).to(start)
    visible = system.visible
    prior = torch.full_like(scale, VELOCITY_PRIOR)
    prior[visible] = 0.0

    # All starts of one step in one rollout: the start itself, and each of its numbers moved up
    # and down. Central differences are as good as derivatives for Gauss-Newton, at the cost of
    # a larger batch instead of a longer program.
    eye = DIFFERENCE * torch.eye(len(scale)).to(start)
    shifts = torch.cat((torch.zeros_like(eye[:1]), eye, -eye))[:, None] * scale
    target = configurations / scale[visible]
    for _ in range(iterations):
        starts = start + shifts
        states = system.rollout(starts, actions, params)
        states = torch.cat((starts[:, :, None], states), dim=2)
        here, up, down = (states[..., visible] / scale[visible]).split((1, len(eye), len(eye)))
        jacobian = ((up - down) / (2 * DIFFERENCE)).movedim(0, -1).flatten(1, 2)
        residual = (target - here[0]).flatten(1)
        normal = jacobian.mT @ jacobian + torch.diag(prior)
        gradient = (jacobian.mT @ residual[..., None])[..., 0] - prior * start / scale
        start = start + scale * torch.linalg.solve(normal, gradient)
    return start


def shooting(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B S *A"],
    params: Any,
) -> Float[Tensor, "B D"]:
    """State at the last frame of the trajectory that fits the whole window best."""
    start = fit_start(system, configurations, actions, params)
    return system.rollout(start, actions, params)[:, -1]


ESTIMATORS = {"fd": finite_difference, "shooting": shooting}
