"""Distributions of action sequences that planners draw from and fit."""

from abc import ABC, abstractmethod

import gymnasium as gym
import torch
from jaxtyping import Float, Int
from torch import Tensor

from piwm_gym.systems import System

WARM_START_WEIGHT = 0.7
"""Probability given to the discrete actions of the previous plan."""
SMOOTHING = 0.05
"""Probability spread over all discrete actions after fitting: none is ever ruled out."""
MIN_STD = 0.01
"""Smallest standard deviation of a continuous action, in half-widths of its bounds."""


class Plans(ABC):
    """Distribution of action sequences, one for each of B states."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """(B, count, H[, A]) sequences."""

    @abstractmethod
    def fit(self, actions: Tensor, weights: Float[Tensor, "B N"], spread: bool) -> None:
        """Move to the weighted sequences; ``spread``: their standard deviation too."""

    @abstractmethod
    def mode(self) -> Tensor:
        """(B, H[, A]) most probable sequence."""


class CategoricalPlans(Plans):
    """Independent categorical distributions over time."""

    def __init__(self, space: gym.spaces.Discrete, batch: int, horizon: int, like: Tensor) -> None:
        self.start, self.count = int(space.start), int(space.n)
        shape = (batch, horizon, self.count)
        self.probabilities = torch.full(shape, 1 / self.count, device=like.device)

    def warm(self, plan: Int[Tensor, "B H"]) -> None:
        """Prefer a plan."""
        near = self._one_hot(plan)
        self.probabilities = WARM_START_WEIGHT * near + (1 - WARM_START_WEIGHT) * self.probabilities

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """(B, count, H) sequences."""
        batch, horizon, _ = self.probabilities.shape
        rows = self.probabilities.flatten(0, 1)
        drawn = torch.multinomial(rows, count, replacement=True, generator=generator)
        return drawn.view(batch, horizon, count).transpose(1, 2) + self.start

    def fit(self, actions: Tensor, weights: Tensor, spread: bool) -> None:
        """Probabilities become the weighted shares of the actions."""
        mean = (weights[..., None, None] * self._one_hot(actions)).sum(dim=1)
        self.probabilities = (1 - SMOOTHING) * mean + SMOOTHING / self.count

    def mode(self) -> Tensor:
        """(B, H) most probable actions."""
        return self.probabilities.argmax(dim=-1) + self.start

    def _one_hot(self, actions: Tensor) -> Tensor:
        hot = torch.nn.functional.one_hot(actions.long() - self.start, self.count)
        return hot.to(self.probabilities.dtype)


class GaussianPlans(Plans):
    """Independent Gaussians over time and dimensions, clipped to the bounds of the action."""

    def __init__(self, space: gym.spaces.Box, batch: int, horizon: int, like: Tensor) -> None:
        if not space.is_bounded():
            raise ValueError(f"the action space {space} has no bounds; planning needs them")
        low, high = (torch.as_tensor(b).to(like) for b in (space.low, space.high))
        self.low, self.high = low, high
        shape = (batch, horizon, *low.shape)
        self.mean = ((low + high) / 2).expand(shape)
        self.std = ((high - low) / 2).expand(shape)

    def warm(self, plan: Float[Tensor, "B H *A"]) -> None:
        """Start around a plan."""
        self.mean = plan.to(self.mean)
        self.std = self.std / 2

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """(B, count, H, *A) sequences."""
        mean, std = self.mean[:, None], self.std[:, None]
        shape = (mean.shape[0], count, *mean.shape[2:])
        noise = torch.randn(shape, generator=generator, device=mean.device, dtype=mean.dtype)
        return self._clip(mean + std * noise)

    def fit(self, actions: Tensor, weights: Tensor, spread: bool) -> None:
        """Mean, and on request the standard deviation, become those of the sequences."""
        weights = weights.reshape(*weights.shape, *(1,) * (actions.ndim - 2))
        self.mean = self._clip((weights * actions).sum(dim=1))  # rounding leaves the bounds too
        if spread:
            variance = (weights * (actions - self.mean[:, None]) ** 2).sum(dim=1)
            floor = MIN_STD * (self.high - self.low) / 2
            self.std = torch.maximum(variance.sqrt(), floor)

    def mode(self) -> Tensor:
        """(B, H, *A) mean sequence."""
        return self.mean

    def _clip(self, actions: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(actions, self.low), self.high)


def make_plans(
    system: System, state: Tensor, horizon: int, warm_start: Tensor | None
) -> CategoricalPlans | GaussianPlans:
    """Initial distribution for a system's action space.

    Args:
        system: Gives the action space.
        state: (B, D) states to plan from.
        horizon: Number of actions H.
        warm_start: (B, H[, A]) plan to start from; default: all actions alike.

    Raises:
        ValueError: The action space is neither Discrete nor a bounded Box, or ``warm_start`` has
            another shape.
    """
    space = system.action_space
    plans: CategoricalPlans | GaussianPlans
    if isinstance(space, gym.spaces.Discrete):
        plans = CategoricalPlans(space, len(state), horizon, state)
    elif isinstance(space, gym.spaces.Box):
        plans = GaussianPlans(space, len(state), horizon, state)
    else:
        raise ValueError(f"the action space is {space}; planning knows Discrete and Box")
    if warm_start is not None:
        expected = (len(state), horizon, *(space.shape or ()))
        if tuple(warm_start.shape) != expected:
            raise ValueError(f"warm_start has shape {tuple(warm_start.shape)}; expected {expected}")
        plans.warm(warm_start)
    return plans


__all__ = ["CategoricalPlans", "GaussianPlans", "Plans", "make_plans"]
