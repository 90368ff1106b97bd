"""Planning: CEM and MPPI balance the real Cart Pole and drive a mass to its target."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.planning import cem, mppi, returns, shift
from piwm_gym.world_model import WorldModel

PLANNERS = {"cem": cem, "mppi": mppi}


def upright(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Cost of being away from the centre and from upright, well below the reward of 1."""
    return 0.1 * (states[..., 0] / 2.4) ** 2 + 0.1 * (states[..., 2] / 0.2) ** 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", PLANNERS)
def test_balances_the_real_cart_pole(name: str, model: WorldModel) -> None:
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    random, plan = generator(), None
    for step in range(200):
        state = torch.as_tensor(obs)[None]
        plan = PLANNERS[name](
            model, state, 20, random, samples=32, cost=upright, warm_start=plan, iterations=2
        )
        obs, _, terminated, _, _ = env.step(int(plan[0, 0]))
        assert not terminated, f"fell at step {step}"
        plan = shift(plan)
    env.close()
    assert abs(obs[0]) < 1


@pytest.mark.parametrize("name", PLANNERS)
def test_seeded_batched_and_gradient_free(name: str, model: WorldModel) -> None:
    state = 0.05 * torch.randn(3, 4, generator=generator())
    before = torch.get_rng_state()
    plans = [PLANNERS[name](model, state, 7, generator(1), samples=16) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(plans[0], plans[1])
    assert plans[0].shape == (3, 7)
    assert plans[0].dtype == torch.int64
    assert set(plans[0].unique().tolist()) <= {0, 1}


def test_cem_returns_the_best_sequence_it_saw(model: WorldModel) -> None:
    """With as many samples as there are sequences of three actions, it is nearly exhaustive."""
    state = torch.tensor([[0.0, 0.0, 0.15, 0.8], [0.0, 0.0, -0.15, -0.8]])
    plan = cem(model, state, 3, generator(), samples=200, cost=upright)
    # The last action moves no position within the horizon.
    assert plan[:, :2].tolist() == [[1, 1], [0, 0]]


def test_params_are_those_planned_with(model: WorldModel) -> None:
    seen: list[Any] = []

    def rollout(state: torch.Tensor, actions: torch.Tensor, params: Any) -> torch.Tensor:
        seen.append(params)
        return model.rollout(state, actions, params)

    spy = SimpleNamespace(system=model.system, rollout=rollout)
    heavy = model.params.replace(masspole=0.5)
    cem(spy, torch.zeros(1, 4), 3, generator(), iterations=1, params=heavy)  # type: ignore[arg-type]
    assert seen == [heavy]


def test_returns_stop_at_the_end_of_the_episode(model: WorldModel) -> None:
    states = torch.zeros(3, 5, 4)
    states[1, 2, 2] = 1.0  # falls at the third step, seems upright again later
    states[2, 1:, 0] = torch.nan
    states[2, 0, 0] = 3.0
    start, actions = torch.zeros(3, 4), torch.zeros(3, 5, dtype=torch.long)
    assert returns(model.system, start, actions, states).tolist() == [5, 3, 1]
    cost = torch.full((3, 5), 0.25)
    shaped = returns(model.system, start, actions, states, lambda s, a: cost)
    assert shaped.tolist() == [3.75, 2.25, 0.75]


# ---- a system with ground and process noise ----------------------------------------------------


@pytest.fixture
def lander(make_tiny: Callable[..., WorldModel]) -> WorldModel:
    return make_tiny(system="lunar_lander")


def falling(speed: float, height: float) -> torch.Tensor:
    state = torch.zeros(1, 10)
    state[:, 1], state[:, 3] = height, -speed
    return state


@pytest.mark.parametrize("name", PLANNERS)
def test_brakes_above_the_ground_it_is_told_of(name: str, lander: WorldModel) -> None:
    state, plan = falling(4.0, 3.0), PLANNERS[name]
    options: Any = {"temperature": 5.0} if name == "mppi" else {}
    near = plan(lander, state, 40, generator(), **options)
    states = lander.rollout(state, near)
    assert states[0, -1, 9] == 0
    assert lander.rollout(state, torch.zeros_like(near))[0, -1, 9] == 1
    deep = lander.system.nominal_scene - 20
    far = plan(lander, state, 40, generator(), scene=deep, **options)
    assert torch.equal(near, plan(lander, state, 40, generator(), scene=deep + 20, **options))
    assert not torch.equal(near, far)


def test_scenes_and_noise_belong_to_their_state(lander: WorldModel) -> None:
    state = falling(4.0, 3.0).expand(2, -1)
    scene = lander.system.nominal_scene - torch.tensor([[0.0], [20.0]])
    noise = torch.rand(2, 30, 2, generator=generator())
    actions = torch.randint(4, (2, 30), generator=generator())
    states = lander.rollout(state, actions, scene=scene, noise=noise)
    both = returns(lander.system, state, actions, states, scene=scene)
    for i in (0, 1):
        one = slice(i, i + 1)
        alone = returns(lander.system, state[one], actions[one], states[one], scene=scene[i])
        torch.testing.assert_close(both[one], alone)
    plans = [
        cem(lander, state, 30, generator(), scene=scene, noise=given) for given in (noise, None)
    ]
    assert plans[0].shape == (2, 30)
    assert not torch.equal(*plans)


def test_refuses_scenes_and_noise_that_do_not_fit(model: WorldModel, lander: WorldModel) -> None:
    state = falling(4.0, 3.0)
    for planner in (cem, mppi):
        with pytest.raises(ValueError, match=r"noise has shape \(1, 3, 2\); expected \(1, 5, 2\)"):
            planner(lander, state, 5, generator(), noise=torch.rand(1, 3, 2))
        with pytest.raises(ValueError, match=r"scene has shape \(3, 11\), states have"):
            planner(lander, state, 5, generator(), scene=torch.zeros(3, 11))
        with pytest.raises(ValueError, match="cartpole has no process noise"):
            planner(model, torch.zeros(1, 4), 5, generator(), noise=torch.rand(1, 5, 2))
        with pytest.raises(ValueError, match="cartpole has no scene"):
            planner(model, torch.zeros(1, 4), 5, generator(), scene=torch.zeros(11))


def point_mass(bound: float = 1.0) -> Any:
    """A mass of 1 kg, pushed in two directions by up to ``bound`` newton; 0.1 s per step."""

    def rollout(state: torch.Tensor, actions: torch.Tensor, params: Any = None) -> torch.Tensor:
        velocity = state[:, None, 2:] + 0.1 * actions.cumsum(1)
        return torch.cat((state[:, None, :2] + 0.1 * velocity.cumsum(1), velocity), dim=-1)

    system = SimpleNamespace(
        variables=range(4),
        scene_variables=(),
        action_space=gym.spaces.Box(-bound, bound, (2,), np.float32),
        reward=lambda state, action, after: -after[..., :2].square().sum(-1),
        terminal=lambda state: torch.zeros_like(state[..., 0], dtype=torch.bool),
    )
    return SimpleNamespace(system=system, rollout=rollout)


@pytest.mark.parametrize("name", PLANNERS)
def test_continuous_actions_reach_a_target(name: str) -> None:
    mass = point_mass()
    state = torch.tensor([[1.0, -0.5, 0.0, 0.0], [-0.3, 0.8, 0.0, 0.0]])
    random, plan = generator(), None
    for _ in range(60):
        options = {"temperature": 0.05} if name == "mppi" else {}
        plan = PLANNERS[name](mass, state, 15, random, warm_start=plan, **options)  # type: ignore[arg-type]
        assert plan.shape == (2, 15, 2)
        assert plan.abs().max() <= 1
        state = mass.rollout(state, plan[:, :1])[:, 0]
        plan = shift(plan)
    assert state[:, :2].abs().max() < 0.1


def test_shift() -> None:
    assert shift(torch.tensor([[1, 2, 3]])).tolist() == [[2, 3, 3]]


@pytest.mark.parametrize("name", PLANNERS)
def test_refuses(name: str, model: WorldModel) -> None:
    plan, state = PLANNERS[name], torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"state has shape \(4,\); expected \(B, 4\)"):
        plan(model, torch.zeros(4), 3, generator())
    with pytest.raises(ValueError, match="horizon is 0; expected at least 1"):
        plan(model, state, 0, generator())
    with pytest.raises(ValueError, match=r"warm_start has shape \(2, 4\); expected \(2, 3\)"):
        plan(model, state, 3, generator(), warm_start=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="has no bounds"):
        plan(point_mass(np.inf), state, 3, generator())
    with pytest.raises(ValueError, match="temperature is 0; expected a positive number"):
        mppi(model, state, 3, generator(), temperature=0)
    model_with_odd_actions = point_mass()
    model_with_odd_actions.system.action_space = gym.spaces.MultiBinary(2)
    with pytest.raises(ValueError, match="planning knows Discrete and Box"):
        plan(model_with_odd_actions, state, 3, generator())
