"""State estimation from windows of configurations."""

import pytest
import torch

from piwm_gym.models.estimation import finite_difference, fit_start, shooting
from piwm_gym.systems import CartPole, CartPoleParams

SYSTEM, PARAMS = CartPole(), CartPoleParams()


def trajectories(count: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T, D) true states and (B, T - 1) actions."""
    generator = torch.Generator().manual_seed(0)
    bound = torch.tensor([2.0, 1.0, 0.15, 1.0])
    start = (2 * torch.rand(count, 4, generator=generator) - 1) * bound
    actions = torch.randint(2, (count, frames - 1), generator=generator)
    states = torch.cat((start[:, None], SYSTEM.rollout(start, actions, PARAMS)), dim=1)
    return states, actions


@pytest.mark.parametrize("frames", [3, 10, 20])
def test_shooting_recovers_the_state_from_exact_configurations(frames: int) -> None:
    states, actions = trajectories(16, frames)
    estimated = shooting(SYSTEM, states[..., SYSTEM.visible], actions, PARAMS)
    error = (estimated - states[:, -1]).abs().amax(0)
    # The velocity prior costs a little where three frames say little.
    limit = torch.tensor([1e-2, 0.3, 1e-3, 0.05]) if frames == 3 else torch.tensor([0.01] * 4)
    assert (error < limit).all(), error


def test_finite_difference_is_exact_in_position_and_one_step_late_in_force() -> None:
    states, actions = trajectories(16, 4)
    estimated = finite_difference(SYSTEM, states[..., SYSTEM.visible], actions, PARAMS)
    torch.testing.assert_close(estimated, states[:, -1], rtol=0, atol=2e-4)


def test_noise_hurts_shooting_less_the_longer_the_window() -> None:
    errors = []
    for frames in (2, 10, 20):
        states, actions = trajectories(64, frames)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(64, frames, 2, generator=generator) * torch.tensor([0.01, 0.004])
        estimated = shooting(SYSTEM, states[..., SYSTEM.visible] + noise, actions, PARAMS)
        errors.append((estimated - states[:, -1])[:, 3].square().mean().sqrt())
    assert errors[0] > 4 * errors[1] > 4 * errors[2]


def test_batch_elements_do_not_interact() -> None:
    states, actions = trajectories(5, 10)
    configurations = states[..., SYSTEM.visible]
    together = shooting(SYSTEM, configurations, actions, PARAMS)
    alone = shooting(SYSTEM, configurations[2:3], actions[2:3], PARAMS)
    torch.testing.assert_close(together[2:3], alone, rtol=0, atol=1e-5)


def test_the_estimate_is_differentiable_in_configurations_and_parameters() -> None:
    states, actions = trajectories(4, 6)
    configurations = states[..., SYSTEM.visible].clone().requires_grad_()
    length = torch.tensor(0.5, requires_grad=True)
    start = fit_start(SYSTEM, configurations, actions, CartPoleParams(length=length))
    start.square().sum().backward()
    for gradient in (configurations.grad, length.grad):
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0
