"""Planning in a world model: the cross-entropy method (CEM) and MPPI, batched over states.

Both draw action sequences from a distribution, score them by rollouts of the model, and fit the
distribution to the better ones; they differ in what "better" weighs. Sources: Rubinstein,
"The cross-entropy method for combinatorial and continuous optimization" (1999); Williams et al.,
"Information theoretic MPC for model-based reinforcement learning" (2017).

    plan = cem(model, state, horizon=25, generator=generator)     # (B, 25)
    action = plan[:, 0]
    ...
    plan = cem(model, next_state, horizon=25, generator=generator, warm_start=shift(plan))
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from piwm_gym.plans import make_plans
from piwm_gym.surroundings import check_noise, spread_scene
from piwm_gym.systems import Params, System
from piwm_gym.world_model import WorldModel

Cost = Callable[[Tensor, Tensor], Tensor]
"""(N, H, D) states after each action and (N, H[, A]) actions to (N, H) costs, in units of reward;
they count until the episode ends."""


def returns(
    system: System,
    state: Float[Tensor, "N D"],
    actions: Shaped[Tensor, "N H *A"],
    states: Float[Tensor, "N H D"],
    cost: Cost | None = None,
    scene: Float[Tensor, "*C S"] | None = None,
) -> Float[Tensor, " N"]:
    """Sum of rewards, minus costs, up to and including the step that ends the episode.

    Args:
        system: Reward and termination.
        state: Where the rollouts start.
        actions: What was done.
        states: States after each action.
        cost: Additional cost of each step.
        scene: (S,) or (N, S) static visible variables; default: the nominal ones.
    """
    shown = spread_scene(system, scene, states)
    constant = {} if shown is None else {"scene": shown}
    before = torch.cat((state[:, None], states[:, :-1]), dim=1)
    value = system.reward(before, actions, states)
    if cost is not None:
        value = value - cost(states, actions)
    ended = system.terminal(states, **constant).long().cumsum(dim=1)
    alive = torch.cat((torch.zeros_like(ended[:, :1]), ended[:, :-1]), dim=1) == 0
    return torch.where(alive, value, 0.0).sum(dim=1)


def _check(state: Tensor, model: WorldModel, **counts: int) -> None:
    dimensions = len(model.system.variables)
    if state.ndim != 2 or state.shape[1] != dimensions:
        raise ValueError(f"state has shape {tuple(state.shape)}; expected (B, {dimensions})")
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; expected at least 1")


@dataclass(frozen=True)
class _Situation:
    """B states to plan from, and what goes with each of them.

    Attributes:
        model: The world model.
        state: (B, D).
        cost: Additional cost of each step.
        params: Physical parameters.
        scene: (B, S), None for a system without a scene.
        noise: (B, H, U), None for the mean motion.
    """

    model: WorldModel
    state: Tensor
    cost: Cost | None
    params: Params | None
    scene: Tensor | None
    noise: Tensor | None

    def score(self, actions: Shaped[Tensor, "B N H *A"]) -> Float[Tensor, "B N"]:
        """Returns of N action sequences from each state."""
        batch, count = actions.shape[:2]
        start, flat = self.state.repeat_interleave(count, dim=0), actions.flatten(0, 1)
        given = {
            name: value.repeat_interleave(count, dim=0)
            for name, value in (("scene", self.scene), ("noise", self.noise))
            if value is not None
        }
        states = self.model.rollout(start, flat, self.params, **given)
        system, scene = self.model.system, given.get("scene")
        return returns(system, start, flat, states, self.cost, scene).view(batch, count)


def _situation(
    model: WorldModel,
    state: Tensor,
    horizon: int,
    cost: Cost | None,
    params: Params | None,
    scene: Tensor | None,
    noise: Tensor | None,
) -> _Situation:
    """Check scene and noise."""
    check_noise(model.system, noise, (len(state), horizon))
    scene = spread_scene(model.system, scene, state)
    return _Situation(model, state, cost, params, scene, noise)


@torch.no_grad()
def cem(
    model: WorldModel,
    state: Float[Tensor, "B D"],
    horizon: int,
    generator: torch.Generator,
    samples: int = 64,
    iterations: int = 3,
    elites: int = 8,
    cost: Cost | None = None,
    params: Params | None = None,
    warm_start: Shaped[Tensor, "B H *A"] | None = None,
    scene: Float[Tensor, "*C S"] | None = None,
    noise: Float[Tensor, "B H U"] | None = None,
) -> Shaped[Tensor, "B H *A"]:
    """Best action sequences by the cross-entropy method.

    Args:
        model: The world model; its system gives reward and termination.
        state: Where to plan from, SI units, on the model's device.
        horizon: Number of actions H.
        generator: Source of randomness, on the model's device.
        samples: Sequences drawn per iteration and state.
        iterations: Rounds of drawing and fitting.
        elites: How many of the best sequences the distribution is fitted to.
        cost: Additional cost per step, in units of reward.
        params: Physical parameters to plan with; default: the learned ones.
        warm_start: A plan to start from, usually :func:`shift` of the previous one.
        scene: (S,) or (B, S) static visible variables; default: the nominal ones.
        noise: Uniform numbers of the process noise, the same for all sequences, so that luck does
            not choose between them; default: the mean motion.

    Returns:
        The best sequences seen: int64 (B, H) for discrete actions, otherwise (B, H, *A).

    Raises:
        ValueError: Wrong shapes or counts, or an action space that is neither Discrete nor a
            bounded Box.
    """
    _check(state, model, horizon=horizon, samples=samples, iterations=iterations, elites=elites)
    situation = _situation(model, state, horizon, cost, params, scene, noise)
    plans = make_plans(model.system, state, horizon, warm_start)
    rows = torch.arange(len(state), device=state.device)
    best = plans.mode()
    best_score = torch.full((len(state),), -torch.inf, device=state.device, dtype=state.dtype)
    for _ in range(iterations):
        actions = plans.sample(samples, generator)
        scores = situation.score(actions)
        top = scores.topk(min(elites, samples), dim=1)
        weights = torch.zeros_like(scores).scatter(1, top.indices, 1 / top.indices.shape[1])
        plans.fit(actions, weights, spread=True)
        better = top.values[:, 0] > best_score
        chosen = actions[rows, top.indices[:, 0]]
        best = torch.where(better.view(-1, *(1,) * (best.ndim - 1)), chosen, best)
        best_score = torch.where(better, top.values[:, 0], best_score)
    return best


@torch.no_grad()
def mppi(
    model: WorldModel,
    state: Float[Tensor, "B D"],
    horizon: int,
    generator: torch.Generator,
    samples: int = 64,
    iterations: int = 3,
    temperature: float = 0.1,
    cost: Cost | None = None,
    params: Params | None = None,
    warm_start: Shaped[Tensor, "B H *A"] | None = None,
    scene: Float[Tensor, "*C S"] | None = None,
    noise: Float[Tensor, "B H U"] | None = None,
) -> Shaped[Tensor, "B H *A"]:
    """Action sequences by model predictive path integral control.

    All sequences count, weighted by exp(return / temperature). Continuous plans are the weighted
    mean; for discrete actions the same weights give probabilities, and the plan is the most
    probable action at each step.

    Args:
        model: The world model; its system gives reward and termination.
        state: Where to plan from, SI units, on the model's device.
        horizon: Number of actions H.
        generator: Source of randomness, on the model's device.
        samples: Sequences drawn per iteration and state.
        iterations: Rounds of drawing and weighting.
        temperature: Difference of returns that matters, in units of reward.
        cost: Additional cost per step, in units of reward.
        params: Physical parameters to plan with; default: the learned ones.
        warm_start: A plan to start from, usually :func:`shift` of the previous one.
        scene: (S,) or (B, S) static visible variables; default: the nominal ones.
        noise: Uniform numbers of the process noise, the same for all sequences, so that luck does
            not choose between them; default: the mean motion.

    Returns:
        int64 (B, H) for discrete actions, otherwise (B, H, *A).

    Raises:
        ValueError: Wrong shapes or counts, a temperature that is not positive, or an action
            space that is neither Discrete nor a bounded Box.
    """
    _check(state, model, horizon=horizon, samples=samples, iterations=iterations)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}; expected a positive number")
    situation = _situation(model, state, horizon, cost, params, scene, noise)
    plans = make_plans(model.system, state, horizon, warm_start)
    for _ in range(iterations):
        actions = plans.sample(samples, generator)
        scores = situation.score(actions)
        plans.fit(actions, torch.softmax(scores / temperature, dim=1), spread=False)
    return plans.mode()


def shift(plan: Shaped[Tensor, "B H *A"]) -> Shaped[Tensor, "B H *A"]:
    """The plan one step later: the first action is done, the last one is repeated."""
    return torch.cat((plan[:, 1:], plan[:, -1:]), dim=1)


__all__ = ["Cost", "cem", "mppi", "returns", "shift"]
