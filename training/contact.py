"""Learn what only motion on the ground shows, such as the strength of the legs.

A rollout starts in free flight and meets the estimated terrain. Small errors of the start decide
which leg touches first, and a bounce magnifies them; so the start is estimated as well as
training can, with the help of labels, and a residual counts up to a limit.
"""

import torch
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System
from training.fit import Batch
from training.flight import CONTEXT, scene_of
from training.least_squares import levenberg_marquardt

LIMIT = 0.1
"""Size that no residual counts beyond, in half ranges."""
STEP = 0.1
"""Of the numerical derivatives, in logarithms: wide, for contact makes kinks."""
REACH = 0.5
"""Most that a logarithm changes in an iteration: a leg without strength has no return either."""
ITERATIONS = 20


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
    for columns, seen in ((hidden, labels[..., hidden]), (visible, configurations)) * 2:
        states = system.rollout(start, actions, params)
        states = torch.cat((start[:, None], states), dim=1)
        shift = torch.zeros_like(start)
        shift[:, columns] = (seen - states[..., columns]).mean(1)
        start = start + shift
    return start


class ContactResiduals:
    """Limited label residuals of rollouts onto the ground, as a function of the parameters.

    Args:
        system: The system.
        dynamics: Maps raw parameters to physical ones; its own change.
        batch: Trajectories that reach the ground after the context.
    """

    def __init__(self, system: System, dynamics: Dynamics, batch: Batch) -> None:
        self._system, self._dynamics, self._batch = system, dynamics, batch
        self._half_range = (system.ranges / 2).to(dynamics.raw)
        with torch.no_grad():
            self._start = labelled_start(system, batch, dynamics.params)

    @torch.no_grad()
    def __call__(self, raw: Tensor) -> Tensor:
        """(M,) residuals after the context, all trajectories, estimated dimensions."""
        self._dynamics.raw.copy_(raw)
        states = self._system.rollout(
            self._start,
            self._batch["actions"],
            self._dynamics.params,
            scene=scene_of(self._batch),
        )
        error = (states - self._batch["labels"][:, 1:]) / self._half_range
        error = error[:, CONTEXT - 1 :, self._system.estimated]
        return (error * torch.rsqrt(1 + (error / LIMIT) ** 2)).flatten()


def fit_contact(dynamics: Dynamics, system: System, batch: Batch, moving: list[int]) -> None:
    """Fit the learnables ``moving`` to trajectories that reach the ground, in place."""
    residuals = ContactResiduals(system, dynamics, batch)
    start = dynamics.raw.detach().clone()
    best = levenberg_marquardt(residuals, start, moving, ITERATIONS, STEP, REACH)
    with torch.no_grad():
        dynamics.raw.copy_(best)


def contact_error(dynamics: Dynamics, system: System, batch: Batch) -> float:
    """Mean squared limited residual of the present parameters, half ranges."""
    residuals = ContactResiduals(system, dynamics, batch)
    return float(residuals(dynamics.raw.detach().clone()).square().mean())


__all__ = ["ContactResiduals", "contact_error", "fit_contact", "labelled_start"]
