"""Stage 3 of Algorithm 1: learn the physical parameters from free rollouts."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System
from training.fit import Batch, FitConfig, Stage, Terms
from training.losses import rollout_error
from training.run import Run

HORIZONS = (5, 10, 20, 30)
CONTEXT = 10
DERIVATIVE_STEP = 1e-2
"""Step of the numerical derivatives of :func:`refine`, in logarithms or logits."""


class DynamicsStage(Stage):
    """Stage 3: free rollouts against the labels; only the physical parameters are trained.

    A batch holds whole trajectories, from which a window of context and horizon is cut. The
    rollout starts from the state whose trajectory fits the window's configurations best: an
    encoder error at one frame is not allowed to pose as a physical effect. The horizon grows
    with training (5, 10, 20, 30 steps), for a long rollout with wrong parameters tells nothing.
    """

    half_range: Tensor
    horizon: Tensor

    def __init__(self, system: System, dynamics: Dynamics) -> None:
        super().__init__()
        self.dynamics = dynamics
        self._system = system
        self.register_buffer("half_range", system.ranges / 2, persistent=False)
        self.register_buffer("horizon", torch.tensor(HORIZONS[0]))

    def _loss(self, batch: Batch, first: int, length: int) -> Tensor:
        window = slice(first, first + length)
        params = self.dynamics.params
        configurations = batch["configurations"][:, window]
        actions = batch["actions"][:, first : first + length - 1]
        start = fit_start(self._system, configurations, actions, params)
        states = self._system.rollout(start, actions, params)
        labels = batch["labels"][:, first + 1 : first + length]
        return rollout_error(states, labels, self.half_range)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_dyn over a window at a random place; the terms are the learned quantities."""
        length = CONTEXT + int(self.horizon)
        first = int(torch.randint(batch["labels"].shape[1] - length + 1, ()))
        loss = self._loss(batch, first, length)
        return loss, dict(zip(self.dynamics.names, self.dynamics.values, strict=True))

    def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_dyn over the full horizon, whatever the curriculum is at."""
        loss = self._loss(batch, 0, CONTEXT + HORIZONS[-1])
        return loss, dict(zip(self.dynamics.names, self.dynamics.values, strict=True))

    def upkeep(self, batch: Batch, progress: float) -> None:
        """Advance the horizon curriculum."""
        self.horizon.fill_(HORIZONS[min(int(10 * progress), len(HORIZONS) - 1)])


@torch.no_grad()
def refine(dynamics: Dynamics, system: System, batch: Batch, iterations: int = 10) -> None:
    """Levenberg-Marquardt on whole trajectories, from where the stage left the parameters.

    Force and pole mass trade off almost freely (their estimates correlate at -0.9). First-order
    steps creep along that valley and end where the schedule does; second-order steps on a handful
    of parameters reach its floor, the same from every start.

    Args:
        dynamics: What is refined, in place.
        system: Its system.
        batch: Trajectories, as for :func:`train_dynamics`.
        iterations: Steps that are tried.
    """
    half_range = (system.ranges / 2).to(dynamics.raw)
    actions = batch["actions"]

    def residuals(raw: Tensor) -> Tensor:
        """All normalised label residuals of free rollouts, (M,)."""
        dynamics.raw.copy_(raw)
        params = dynamics.params
        start = fit_start(system, batch["configurations"], actions, params)
        states = system.rollout(start, actions, params)
        return ((states - batch["labels"][:, 1:]) / half_range).flatten()

    raw, damping = dynamics.raw.clone(), 1e-3
    error = residuals(raw)
    for _ in range(iterations):
        moves = DERIVATIVE_STEP * torch.eye(len(raw)).to(raw)
        columns = [(residuals(raw + m) - residuals(raw - m)) / (2 * DERIVATIVE_STEP) for m in moves]
        jacobian = torch.stack(columns, dim=1).double()
        normal = jacobian.mT @ jacobian
        damped = normal + damping * torch.diag(normal.diagonal())
        moved = raw - torch.linalg.solve(damped, jacobian.mT @ error.double()).to(raw)
        attempt = residuals(moved)
        better = bool(torch.isfinite(attempt).all()) and attempt.norm() < error.norm()
        if better:
            raw, error = moved, attempt
        damping *= 0.1 if better else 10.0
    dynamics.raw.copy_(raw)


def starting_values(dynamics: Dynamics, system: System, start: int) -> tuple[float, ...]:
    """Starting point of stage 3: every learned quantity at least 50 % off the real one.

    Each is multiplied by a factor in [0.35, 0.5] or [1.5, 2.5], which a generator draws that
    ``start`` seeds.
    """
    generator = np.random.default_rng(start)
    reference = dynamics.parametrisation.from_params(system.reference)
    low = generator.uniform(0.35, 0.5, len(reference))
    high = generator.uniform(1.5, 2.5, len(reference))
    factors = np.where(generator.random(len(reference)) < 0.5, low, high)
    return tuple(float(f) * float(r) for f, r in zip(factors, reference, strict=True))


def train_dynamics(
    dynamics: Dynamics,
    system: System,
    train: Batch,
    validation: Batch,
    config: FitConfig,
    num_starts: int,
    run: Run,
) -> dict[str, Any]:
    """Stage 3 from several starting points; the best on validation labels stays.

    Args:
        dynamics: What is learned.
        system: Its system.
        train: Per trajectory, SI units: ``configurations`` (N, T+1, P), ``actions`` (N, T[, A])
            and ``labels`` (N, T+1, D), the proxies' means.
        validation: The same of other trajectories.
        config: How to optimise.
        num_starts: Number of starting points.
        run: Where.

    Returns:
        The best loss, and for every start where it began, where it ended, its loss and seconds.
    """
    best, best_loss = dynamics.state_dict(), math.inf
    starts = []
    for start in range(num_starts):
        stage = DynamicsStage(system, dynamics).to(dynamics.raw.device)
        values = starting_values(dynamics, system, start)
        dynamics.set_values(values)
        name = f"dynamics-{start}"
        result = run.fit(stage, (train, validation), config, name)
        refine(dynamics, system, train)
        with torch.no_grad():
            loss = float(stage.validation(validation)[0])
        learned = [float(value.detach()) for value in dynamics.values]
        starts.append(
            {
                "start": dict(zip(dynamics.names, values, strict=True)),
                "learned": dict(zip(dynamics.names, learned, strict=True)),
                "loss": loss,
                "seconds": result["seconds"],
            }
        )
        if loss < best_loss:
            best_loss = loss
            best = {name: tensor.clone() for name, tensor in dynamics.state_dict().items()}
    dynamics.load_state_dict(best)
    return {"loss": best_loss, "starts": starts}
