"""Learn what only motion on the ground shows, such as the strength of the legs.

A rollout starts in free flight and meets the labelled terrain. Small errors of the start decide
which leg touches first, and a bounce magnifies them; so the start is estimated as well as
training can, with the help of labels, and a residual counts up to a limit. Whether the episode
ends counts beside it: a leg that is a little too strong saves a lander at hardly another velocity.
The error has kinks and flat places, where second-order steps were lost; a search along the axes
is not.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System
from training.fit import Batch
from training.flight import CONTEXT, scene_of

LIMIT = 0.05
"""Size that no residual counts beyond, in half ranges."""
ENDING = 0.5
"""Residual of a window that ends an episode where the label does not, or the other way round: as
much as if all its other residuals were at the limit."""
WIDEST, FINEST = 0.8, 0.05
"""First and last step of the search, in logarithms."""
WORTH = 2e-4
"""Relative gain that a step must bring: what hardly shows stays where it is."""


def labelled_start(system: System, batch: Batch, params: object) -> Tensor:
    """(N, D) states at the first frame, from configurations and labels of the context.

    Half a dozen labels of a velocity say more about it than ten configurations do: those span
    0.2 s. In free motion a shift of the start shifts the context by as much, so that means of
    residuals correct it; a place is corrected after the velocities, by the configurations.
    """
    configurations, labels = (batch[name][:, :CONTEXT] for name in ("configurations", "labels"))
    actions = batch["actions"][:, : CONTEXT - 1]
    start = fit_start(system, configurations, actions, params)
    visible = system.visible
    hidden = [i for i in system.estimated if i not in visible]
    seen = labels.clone()
    seen[..., visible] = configurations
    for columns in (hidden, visible) * 2:
        states = system.rollout(start, actions, params)
        states = torch.cat((start[:, None], states), dim=1)
        shift = torch.zeros_like(start)
        shift[:, columns] = system.difference(seen, states)[..., columns].mean(1)
        start = start + shift
    return start


class ContactResiduals:
    """Limited label residuals of rollouts onto the ground, as a function of the parameters.

    Args:
        system: The system.
        dynamics: Maps raw parameters to physical ones; its own change.
        batch: Windows that reach the ground after the context.
    """

    def __init__(self, system: System, dynamics: Dynamics, batch: Batch) -> None:
        self._system, self._dynamics, self._batch = system, dynamics, batch
        self._half_range = (system.ranges / 2).to(dynamics.raw)
        # A real episode that is over ends its window; there the model may end a little later.
        self._ended = system.terminal(batch["labels"][:, -1])
        over_time = batch["valid"] | self._ended[:, None]
        self._counted = torch.nn.functional.pad(over_time, (CONTEXT - 1, 0), value=True)
        with torch.no_grad():
            self._start = labelled_start(system, batch, dynamics.params)

    @torch.no_grad()
    def __call__(self, raw: Tensor) -> Tensor:
        """(M,) residuals after the context of estimated dimensions, then of how windows end."""
        self._dynamics.raw.copy_(raw)
        states = self._system.rollout(
            self._start,
            self._batch["actions"],
            self._dynamics.params,
            scene=scene_of(self._batch),
        )
        error = self._system.difference(states, self._batch["labels"][:, 1:]) / self._half_range
        error = error[:, CONTEXT - 1 :, self._system.estimated][self._batch["valid"]]
        limited = (error * torch.rsqrt(1 + (error / LIMIT) ** 2)).flatten()
        ends = (self._system.terminal(states) & self._counted).any(1)
        return torch.cat((limited, ENDING * (ends != self._ended).to(limited)))


def compass_search(loss: Callable[[Tensor], float], start: Tensor, moving: Sequence[int]) -> Tensor:
    """Walk along the axes while that helps, with ever smaller steps.

    Args:
        loss: Of (K,) parameters.
        start: Where to start.
        moving: Indices of the parameters that may move.
    """
    best, lowest, step = start.clone(), loss(start), WIDEST
    moves = [(i, sign) for i in moving for sign in (1.0, -1.0)]
    while step > FINEST:
        helped = False
        for i, sign in moves:
            moved = best.clone()
            moved[i] += sign * step
            if (attempt := loss(moved)) < (1 - WORTH) * lowest:
                best, lowest, helped = moved, attempt, True
        step = step if helped else step / 2
    return best


def fit_contact(dynamics: Dynamics, system: System, batch: Batch, moving: list[int]) -> None:
    """Fit the learnables ``moving`` to windows that reach the ground, in place."""
    residuals = ContactResiduals(system, dynamics, batch)
    start = dynamics.raw.detach().clone()
    best = compass_search(lambda raw: float(residuals(raw).square().mean()), start, moving)
    with torch.no_grad():
        dynamics.raw.copy_(best)


def contact_error(dynamics: Dynamics, system: System, batch: Batch) -> float:
    """Mean squared limited residual of the present parameters, half ranges."""
    residuals = ContactResiduals(system, dynamics, batch)
    return float(residuals(dynamics.raw.detach().clone()).square().mean())


__all__ = ["ContactResiduals", "compass_search", "contact_error", "fit_contact", "labelled_start"]
