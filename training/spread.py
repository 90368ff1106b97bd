"""Learn the size of process noise from the scatter about the mean motion.

Over h steps the residual (label minus rollout) of a velocity changes by two labels' errors and by
the noise of the steps in between. A unit of each dispersion would add a known variance per step,
so the expected squared change is linear in the squared dispersions:

    E (r[t+h] - r[t])^2 = constant of the dimension + sum over k of dispersion_k^2 V_k[t, t+h]

which weighted least squares over all t, several h and all velocities solves. That the noise of
one step also changes the effect of later actions is left out; it is a few per cent.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System
from training.fit import Batch

SPANS = (5, 10, 20, 30, 40)
"""Steps h; short ones tell the labels' errors, long ones the noise."""
ROUNDS = 4
FLOOR = 0.01
"""Least expected square, of the mean square: exact labels leave nothing where nothing fires."""
SMALLEST = 1e-3
"""Least dispersion that is reported: a logarithm needs a positive one."""
UNIT = 0.5 / 3**0.5
"""Distance from the mean of a number uniform on [0, 1) to one standard deviation."""


@torch.no_grad()
def fit_spread(dynamics: Dynamics, system: System, batch: Batch, moving: list[int]) -> None:
    """Fit the dispersions ``moving`` to trajectories in free motion, in place."""
    params = dynamics.params
    actions = batch["actions"]
    start = fit_start(system, batch["configurations"], actions, params)
    states = torch.cat((start[:, None], system.rollout(start, actions, params)), dim=1)
    residual = system.difference(batch["labels"], states)
    variance = torch.stack(
        [
            _step_variance(system, states[:, :-1], actions, unit)
            for unit in _unit_params(dynamics, moving)
        ]
    )
    squares = _fit_squares(*_regression(system, residual, variance), len(moving))
    values = list(dynamics.values)
    for index, square in zip(moving, squares, strict=True):
        values[index] = square.clamp(min=SMALLEST**2).sqrt()
    dynamics.set_values(tuple(values))


def _unit_params(dynamics: Dynamics, moving: list[int]) -> list[object]:
    """Params with one of the dispersions at 1 and the others all but off."""
    values = list(dynamics.values)
    rows = []
    for chosen in moving:
        for index in moving:
            values[index] = torch.as_tensor(1.0 if index == chosen else 0.0)
        rows.append(dynamics.parametrisation.to_params(values))
    return rows


def _step_variance(
    system: System, states: Float[Tensor, "N T D"], actions: Tensor, params: object
) -> Float[Tensor, "N T D"]:
    """Variance that the noise of each step adds to the state after it.

    The noise enters linearly, so one standard deviation of each of its numbers is enough.
    """
    middle = torch.full((*states.shape[:-1], system.num_step_uniforms), 0.5).to(states)

    def after(noise: Tensor) -> Tensor:
        """States one step later."""
        drawn: dict[str, Any] = {"noise": noise}
        return system.transition(states, actions, params, **drawn)

    total = torch.zeros_like(states)
    for i in range(system.num_step_uniforms):
        moved = middle.clone()
        moved[..., i] += UNIT
        total += (after(moved) - after(middle)).square()
    return total


def _regression(
    system: System, residual: Float[Tensor, "N T D"], variance: Float[Tensor, "K N U D"]
) -> tuple[Float[Tensor, "M F"], Float[Tensor, " M"]]:
    """Features (K accumulated variances, one constant per dimension) and squared changes."""
    hidden = [i for i in system.estimated if i not in system.visible]
    start = torch.zeros_like(variance[:, :, :1])
    reached = torch.cat((start, variance.cumsum(2)), dim=2)
    features, squares = [], []
    for h in (h for h in SPANS if h < residual.shape[1]):
        stride = max(1, h // 5)  # neighbouring spans overlap and say much the same
        for place, dim in enumerate(hidden):
            change = (residual[:, h:, dim] - residual[:, :-h, dim])[:, ::stride]
            added = (reached[:, :, h:, dim] - reached[:, :, :-h, dim])[:, :, ::stride]
            constant = torch.zeros(len(hidden), change.numel()).to(change)
            constant[place] = 1.0
            features.append(torch.cat((added.flatten(1), constant)).T)
            squares.append(change.square().flatten())
    return torch.cat(features).double(), torch.cat(squares).double()


def _fit_squares(
    features: Float[Tensor, "M F"], squares: Float[Tensor, " M"], count: int
) -> Float[Tensor, " K"]:
    """The first ``count`` coefficients, each square weighted by its expected variance."""
    weight = torch.ones_like(squares)
    used = list(range(features.shape[1]))
    solution = torch.zeros(features.shape[1]).to(squares)
    for _ in range(ROUNDS):
        kept = features[:, used]
        normal = kept.mT @ (kept * weight[:, None])
        solution[used] = torch.linalg.solve(normal, kept.mT @ (weight * squares))
        used = [i for i in used if solution[i] > 0]  # a variance is not negative
        solution.clamp_(min=0.0)
        weight = (features @ solution).clamp(min=float(FLOOR * squares.mean())).pow(-2)
    return solution[:count]


__all__ = ["fit_spread"]
