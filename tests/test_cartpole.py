"""Cart Pole's equations against Gymnasium, closed forms and their own symmetries."""

import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from piwm_gym.systems import CartPole, CartPoleParams, get_system

SYSTEM = CartPole()
PARAMS = [
    CartPoleParams(),
    CartPoleParams(gravity=3.7, masscart=2.0, masspole=0.7, length=1.3, force_mag=4.0, tau=0.05),
]


def random_states(count: int, seed: int = 0) -> np.ndarray:
    bound = np.array([2.4, 3.0, 0.5, 3.0])
    return np.random.default_rng(seed).uniform(-bound, bound, (count, 4))


def real_env(params: CartPoleParams) -> CartPoleEnv:
    env = gym.make("CartPole-v1").unwrapped
    assert isinstance(env, CartPoleEnv)
    env.reset(seed=0)
    for f in dataclasses.fields(params):
        setattr(env, f.name, getattr(params, f.name))
    env.total_mass = params.total_mass
    env.polemass_length = params.polemass_length
    return env


@pytest.mark.parametrize("params", PARAMS)
def test_step_equals_gymnasium(params: CartPoleParams) -> None:
    env = real_env(params)
    for i, state in enumerate(random_states(100)):
        env.state, env.steps_beyond_terminated = state, None
        action = i % 2
        _, reward, terminated, _, _ = env.step(action)
        before = torch.from_numpy(state)
        after = SYSTEM.transition(before, torch.tensor(action), params)
        np.testing.assert_allclose(after.numpy(), env.state, rtol=0, atol=1e-12)
        assert float(SYSTEM.reward(before, torch.tensor(action), after)) == reward
        assert bool(SYSTEM.terminal(after)) == terminated


def test_batched_params_equal_one_by_one() -> None:
    states = torch.from_numpy(random_states(2))
    actions = torch.tensor([0, 1])
    stacked = CartPoleParams(
        **{
            name: torch.tensor([getattr(p, name) for p in PARAMS], dtype=torch.float64)
            for name in CartPoleParams.names()
        }
    )
    together = SYSTEM.transition(states, actions, stacked)
    for i, params in enumerate(PARAMS):
        alone = SYSTEM.transition(states[i], actions[i], params)
        torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-15)


def test_gradients_of_states_and_parameters() -> None:
    states = torch.from_numpy(random_states(3)).requires_grad_()
    values = torch.tensor([9.8, 1.0, 0.1, 0.5, 10.0, 0.02], dtype=torch.float64).requires_grad_()

    def step(states: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return SYSTEM.transition(states, torch.tensor([0, 1, 1]), CartPoleParams(*values))

    assert torch.autograd.gradcheck(step, (states, values))


def test_a_common_factor_of_force_and_masses_changes_nothing() -> None:
    states = torch.from_numpy(random_states(8)) * 0.1
    actions = torch.randint(2, (8, 30), generator=torch.Generator().manual_seed(0))
    scaled = CartPoleParams(force_mag=30.0, masscart=3.0, masspole=0.3)
    torch.testing.assert_close(
        SYSTEM.rollout(states, actions, CartPoleParams()),
        SYSTEM.rollout(states, actions, scaled),
        rtol=0,
        atol=1e-9,
    )


def test_parameters_follow_from_small_motions_in_closed_form() -> None:
    """Linearised: x_acc = D u - E theta, theta_acc = A theta - B u."""
    params, h = CartPoleParams(), 1e-6
    rest = torch.zeros(4, dtype=torch.float64)
    tilted = torch.tensor([0.0, 0.0, h, 0.0], dtype=torch.float64)
    coast = torch.tensor(0.5)

    def accelerations(state: torch.Tensor, action: torch.Tensor) -> tuple[float, float]:
        change = (SYSTEM.transition(state, action, params) - state) / params.tau
        return float(change[1]), float(change[3])

    d, minus_b = accelerations(rest, torch.tensor(1))
    minus_e, a = (value / h for value in accelerations(tilted, coast))
    length = 3 * d / (4 * -minus_b)
    kappa = 4 / 3 - -minus_e / (a * length)
    assert length == pytest.approx(0.5, rel=1e-6)
    assert 3 * kappa * d / 4 == pytest.approx(10 / 1.1, rel=1e-6)
    assert length * kappa * a == pytest.approx(9.8, rel=1e-6)


def test_second_order_form_of_positions() -> None:
    """q[t+2] = 2 q[t+1] - q[t] + tau^2 acceleration(x[t], a[t]): explicit Euler uses a[t]."""
    states = torch.from_numpy(random_states(50))
    actions = torch.randint(2, (50, 2), generator=torch.Generator().manual_seed(1))
    params = CartPoleParams()
    one, two = SYSTEM.rollout(states, actions, params).unbind(1)
    velocities = [1, 3]
    acceleration = (one - states)[:, velocities] / params.tau
    q0, q1, q2 = (x[:, SYSTEM.visible] for x in (states, one, two))
    torch.testing.assert_close(q2, 2 * q1 - q0 + params.tau**2 * acceleration, rtol=0, atol=1e-12)


def test_initial_states_fill_the_real_box() -> None:
    uniforms = torch.tensor([[0.0, 0.25, 0.5, 1.0]])
    torch.testing.assert_close(SYSTEM.initial(uniforms), torch.tensor([[-0.05, -0.025, 0.0, 0.05]]))


def test_terminal_thresholds() -> None:
    edge = 12 * 2 * math.pi / 360
    states = torch.tensor(
        [[2.4, 0, 0, 0], [2.41, 0, 0, 0], [0, 9, edge - 1e-6, 9], [0, 0, -0.21, 0]]
    )
    assert SYSTEM.terminal(states).tolist() == [False, True, False, True]


def test_identifiable_quantities_round_trip() -> None:
    choice = SYSTEM.parametrisations["identifiable"]
    back = choice.to_params(choice.from_params(CartPoleParams()))
    for f in dataclasses.fields(back):
        assert getattr(back, f.name) == pytest.approx(getattr(CartPoleParams(), f.name))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_parameters_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="'masspole' .kg. is .*expected positive, finite"):
        CartPoleParams(masspole=value)


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(ValueError, match="'masspol'.*did you mean 'masspole'"):
        CartPoleParams().replace(masspol=1.0)
    with pytest.raises(ValueError, match="did you mean 'cartpole'"):
        get_system("cart-pole")
