"""Stage 3 of Algorithm 1: learn the physical parameters from free rollouts.

Each learnable is learned from what shows it (``Learnable.shown_by``), one kind after the other:

motion     trajectories in free motion; gradient steps, then second-order ones (this file)
contact    windows that reach the ground (``contact.py``)
spread     the scatter about the mean free motion (``spread.py``)
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System
from training.contact import contact_error, fit_contact
from training.fit import Batch, FitConfig, Stage, Terms
from training.flight import CONTEXT, free_trajectories, grounded_windows, pieces
from training.least_squares import levenberg_marquardt
from training.losses import rollout_error
from training.run import Run
from training.spread import fit_spread

HORIZONS = (5, 10, 20, 30)
DERIVATIVE_STEP = 1e-2
"""Step of the numerical derivatives of :func:`refine`, in logarithms or logits."""
NOISY_WINDOW = 26
"""Frames of a window of :func:`refine` where there is process noise. It adds up along a rollout:
whole trajectories of 51 frames gave twice the error of the side engine's acceleration, windows
of 17 frames, which hardly show it, three times."""


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
        half_range = system.ranges[system.estimated] / 2
        self.register_buffer("half_range", half_range, persistent=False)
        self.register_buffer("horizon", torch.tensor(HORIZONS[0]))

    def _loss(self, batch: Batch, first: int, length: int) -> Tensor:
        """In full precision: half of it is too little for equations, and for solving them."""
        with torch.autocast(self.half_range.device.type, enabled=False):
            return self._error(batch, first, length)

    def _error(self, batch: Batch, first: int, length: int) -> Tensor:
        window = slice(first, first + length)
        params = self.dynamics.params
        configurations = batch["configurations"][:, window]
        actions = batch["actions"][:, first : first + length - 1]
        start = fit_start(self._system, configurations, actions, params)
        states = self._system.rollout(start, actions, params)
        labels = batch["labels"][:, first + 1 : first + length]
        estimated = self._system.estimated
        error = self._system.difference(states, labels)[..., estimated]
        return rollout_error(error, self.half_range)

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


def refine(dynamics: Dynamics, system: System, batch: Batch, iterations: int = 10) -> None:
    """Levenberg-Marquardt from where the stage left the parameters that free motion shows.

    Force and pole mass trade off almost freely (their estimates correlate at -0.9). First-order
    steps creep along that valley and end where the schedule does; second-order steps on a handful
    of parameters reach its floor, the same from every start.

    With process noise a bias remains where a pilot chose the actions: they answer to the true
    state, so they tell of noise that the labels hardly show. Gravity and main engine of Lunar
    Lander come out 1 % low together; with random actions they do not.

    Args:
        dynamics: What is refined, in place.
        system: Its system.
        batch: Trajectories in free motion, as for :func:`train_dynamics`; whole ones are used
            without process noise, pieces with.
        iterations: Steps that are tried.
    """
    estimated = system.estimated
    half_range = (system.ranges[estimated] / 2).to(dynamics.raw)
    if system.num_step_uniforms:
        batch = pieces(batch, NOISY_WINDOW)
    actions, labels = batch["actions"], batch["labels"][:, 1:]

    @torch.no_grad()
    def residuals(raw: Tensor) -> Tensor:
        """All normalised label residuals of free rollouts, (M,)."""
        dynamics.raw.copy_(raw)
        params = dynamics.params
        start = fit_start(system, batch["configurations"], actions, params)
        states = system.rollout(start, actions, params)
        return (system.difference(states, labels)[..., estimated] / half_range).flatten()

    start = dynamics.raw.detach().clone()
    moving = shown_by(dynamics, "motion")
    best = levenberg_marquardt(residuals, start, moving, iterations, DERIVATIVE_STEP)
    with torch.no_grad():
        dynamics.raw.copy_(best)


def shown_by(dynamics: Dynamics, what: str) -> list[int]:
    """Indices of the learnables that ``what`` shows."""
    learnables = dynamics.parametrisation.learnables
    return [i for i, item in enumerate(learnables) if item.shown_by == what]


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
            and ``labels`` (N, T+1, D), the proxies' means; ``scene`` (N, S) where there is one.
        validation: The same of other trajectories.
        config: How to optimise.
        num_starts: Number of starting points.
        run: Where.

    Returns:
        The best loss, and for every start where it began, where it ended, its loss and seconds.
    """
    best, best_loss = dynamics.state_dict(), math.inf
    free = free_trajectories(system, train), free_trajectories(system, validation)
    grounded = grounded_windows(system, train), grounded_windows(system, validation)
    starts = []
    for start in range(num_starts):
        stage = DynamicsStage(system, dynamics).to(dynamics.raw.device)
        values = starting_values(dynamics, system, start)
        dynamics.set_values(values)
        name = f"dynamics-{start}"
        result = run.fit(stage, free, config, name)
        refine(dynamics, system, free[0])
        with torch.no_grad():
            loss = float(stage.validation(free[1])[0])
        loss += _learn_contact(dynamics, system, grounded)
        if spread := shown_by(dynamics, "spread"):
            fit_spread(dynamics, system, free[0], spread)
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
    trajectories = {"free": len(free[0]["labels"]), "grounded": len(grounded[0]["labels"])}
    return {"loss": best_loss, "trajectories": trajectories, "starts": starts}


def _learn_contact(dynamics: Dynamics, system: System, grounded: tuple[Batch, Batch]) -> float:
    """Fit what only the ground shows; its loss on validation labels, 0 with nothing to learn.

    Where no trajectory reaches the ground, these learnables stay where they started.
    """
    moving = shown_by(dynamics, "contact")
    train, validation = grounded
    if not moving or not len(train["labels"]):
        return 0.0
    fit_contact(dynamics, system, train, moving)
    return contact_error(dynamics, system, validation) if len(validation["labels"]) else 0.0
