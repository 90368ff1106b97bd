"""State estimation from windows of configurations."""

import itertools
from collections.abc import Callable

import pytest
import torch

from piwm_gym.models.estimation import finite_difference, fit_start, frame_weights, shooting
from piwm_gym.systems import CartPole, CartPoleParams, DonkeyCar, LunarLander, System

SYSTEM, PARAMS = CartPole(), CartPoleParams()
Moving = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


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


@pytest.mark.parametrize("frames", [2, 4])
def test_readings_count_as_much_as_they_are_worth(frames: int) -> None:
    states, actions = trajectories(256, frames)
    std = torch.tensor([0.002, 0.02])
    noise = std * torch.randn(256, frames, 2, generator=torch.Generator().manual_seed(1))
    seen = states[..., SYSTEM.visible] + noise
    told, untold = (
        (shooting(SYSTEM, seen, actions, PARAMS, reading_std=s) - states[:, -1])[:, [1, 3]]
        .square()
        .mean(0)
        .sqrt()
        for s in (std, None)
    )
    assert (told < torch.tensor([0.7, 0.95]) * untold).all(), (told, untold)
    assert (told < 1.1 * states[:, -1, [1, 3]].std(0)).all(), "worse than a guess"


def test_what_readings_do_not_tell_is_taken_from_the_middle_of_its_range() -> None:
    system = DonkeyCar()
    actions = torch.zeros(1, 1, 2)
    seen = torch.zeros(1, 2, len(system.visible))
    worthless = system.ranges[system.visible]
    found = fit_start(system, seen, actions, system.reference, reading_std=worthless)
    v = system.state_names.index("v")
    assert found[0, v] == pytest.approx(float(system.centres[v]), rel=0.05)


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


# ---- frames that were misread ------------------------------------------------------------------


def drives(count: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of Donkey Car, on its course."""
    car = DonkeyCar()
    generator = torch.Generator().manual_seed(0)
    start = car.anywhere(torch.rand(count, 4, generator=generator))
    actions = torch.rand(count, frames - 1, 2, generator=generator) - torch.tensor([0.5, 0.0])
    start = car.settled(start, actions[:, 0], car.reference)
    states = torch.cat((start[:, None], car.rollout(start, actions, car.reference)), dim=1)
    return states, actions


def with_noise(configurations: torch.Tensor, system: System) -> torch.Tensor:
    """Configurations as read by an encoder that is off by half a per cent of the ranges."""
    generator = torch.Generator().manual_seed(1)
    spread = 0.005 * system.ranges[system.visible]
    return configurations + torch.randn(configurations.shape, generator=generator) * spread


@pytest.mark.parametrize(("system", "moving"), [(SYSTEM, trajectories), (DonkeyCar(), drives)])
def test_a_frame_taken_for_another_place_is_ignored(system: System, moving: Moving) -> None:
    count = 40
    states, actions = moving(count, 10)
    arguments = (actions, system.reference)
    clean = states[..., system.visible]
    misread, each = clean.clone(), torch.arange(count)
    far = 0.35 * system.ranges[system.visible]
    misread[each, each % 10] += far * torch.where(each < count // 2, 1.0, -1.0)[:, None]

    def error(configurations: torch.Tensor) -> torch.Tensor:
        """In half ranges, per window and estimated dimension."""
        estimated = shooting(system, configurations, *arguments)
        off = system.difference(estimated, states[:, -1]) / (system.ranges / 2)
        return off[:, system.estimated].abs()

    # In two of a hundred a car that was turned round at the first frame leaves no way back.
    assert (error(misread) < error(clean) + 0.02).all(1).float().mean() > 0.95
    noisy = with_noise(misread, system)
    plain = fit_start(system, noisy, *arguments)
    plain = system.rollout(plain, *arguments)[:, -1]
    dragged = system.difference(plain, states[:, -1]) / (system.ranges / 2)
    dragged = dragged[:, system.estimated].square().mean().sqrt()
    assert error(noisy).median() < 0.1 * dragged
    assert error(noisy).median() < 1.3 * error(with_noise(clean, system)).median()


@pytest.mark.parametrize("frames", [2, 4, 10, 20])
@pytest.mark.parametrize(("system", "moving"), [(SYSTEM, trajectories), (DonkeyCar(), drives)])
def test_windows_without_a_misread_frame_keep_the_plain_fit(
    system: System, moving: Moving, frames: int
) -> None:
    states, actions = moving(100, frames)
    noisy = with_noise(states[..., system.visible], system)
    start = fit_start(system, noisy, actions, system.reference)
    plain = system.rollout(start, actions, system.reference)[:, -1]
    torch.testing.assert_close(
        shooting(system, noisy, actions, system.reference), plain, rtol=0, atol=0
    )


def test_a_misread_frame_has_no_influence_on_the_estimate() -> None:
    states, actions = trajectories(8, 10)
    configurations = with_noise(states[..., SYSTEM.visible], SYSTEM)
    configurations[:, 4, 0] += 2.0
    configurations.requires_grad_()
    shooting(SYSTEM, configurations, actions, PARAMS).square().sum().backward()
    assert configurations.grad is not None
    influence = configurations.grad.abs().sum((0, 2))
    assert torch.isfinite(influence).all()
    others = torch.arange(10) != 4
    assert influence[4] < 0.01 * influence[others].mean()


def test_a_frame_weighs_by_its_misfit_beside_the_median() -> None:
    residual = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.8])[None, :, None] * torch.tensor([0.6, 0.8])
    expected = (1 + (torch.tensor([1.0, 1.0, 1.0, 2.0, 8.0]) / 2) ** 2) ** -2
    torch.testing.assert_close(frame_weights(residual, 2.0), expected[None])
    assert float(frame_weights(residual, 8.0)[0, -1]) == pytest.approx(0.25)
    assert (frame_weights(torch.zeros(1, 5, 2), 1.0) == 1).all()


# ---- a system with ground ----------------------------------------------------------------------

LANDER = LunarLander()


def landings(count: int, wait: int, frames: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, T, D) states of landers coming down on the pad, (B, T - 1) actions, (B, S) scenes."""
    generator = torch.Generator().manual_seed(0)
    scene = LANDER.scene(torch.rand(count, 12, generator=generator))
    start = torch.zeros(count, 10)
    start[:, :6] = torch.randn(count, 6, generator=generator) * torch.tensor(
        [0.5, 0.05, 0.2, 0.2, 0.05, 0.1]
    )
    start[:, 1] += 0.4
    start[:, 3] -= 0.5
    actions = torch.randint(4, (count, wait + frames - 1), generator=generator)
    later = LANDER.rollout(start, actions, LANDER.reference, scene=scene)
    states = torch.cat((start[:, None], later), dim=1)
    return states[:, wait:], actions[:, wait:], scene


def error(estimated: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """(E,) root mean square of the estimated dimensions where nothing crashed."""
    whole = states[..., 9].amax(1) == 0
    assert whole.sum() > len(whole) / 2
    difference = (estimated - states[:, -1])[whole][:, LANDER.estimated]
    return difference.square().mean(0).sqrt()


def test_shooting_recovers_the_state_in_free_flight() -> None:
    generator = torch.Generator().manual_seed(0)
    start = LANDER.initial(torch.rand(16, 2, generator=generator))
    actions = torch.randint(4, (16, 19), generator=generator)
    later = LANDER.rollout(start, actions, LANDER.reference)
    states = torch.cat((start[:, None], later), dim=1)
    estimated = shooting(LANDER, states[..., LANDER.visible], actions, LANDER.reference)
    torch.testing.assert_close(estimated, states[:, -1], rtol=0, atol=0.02)


@pytest.mark.parametrize("wait", [5, 60])
def test_on_the_ground_a_window_tells_more_than_two_frames(wait: int) -> None:
    states, actions, scene = landings(64, wait, frames=10)
    assert (states[:, -1, 6:8].amax(1) == 1).float().mean() > 0.5
    generator = torch.Generator().manual_seed(1)
    spread = torch.tensor([0.02, 0.02, 0.006])
    noise = torch.randn(64, 10, 3, generator=generator) * spread
    arguments = (states[..., LANDER.visible] + noise, actions, LANDER.reference, scene)
    fitted = shooting(LANDER, *arguments)
    assert (error(fitted, states)[2:4] < 0.35).all()
    assert (error(fitted, states) < 3 * error(finite_difference(LANDER, *arguments), states)).all()
    assert (fitted[:, 6:8] == states[:, -1, 6:8]).float().mean() > 0.8
    free = shooting(LANDER, *arguments[:3])
    assert error(fitted, states)[3] < error(free, states)[3]


def test_long_windows_of_an_unstable_system_converge() -> None:
    states, actions = trajectories(64, 50)
    start = fit_start(SYSTEM, states[..., SYSTEM.visible], actions, PARAMS, iterations=5)
    torch.testing.assert_close(start, states[:, 0], rtol=0, atol=2e-3)


def test_no_iteration_raises_the_cost() -> None:
    states, actions, scene = landings(64, 5, frames=20)
    configurations = states[..., LANDER.visible]
    scale = LANDER.ranges[LANDER.visible] / 2
    costs = []
    for iterations in (1, 2, 3, 6):
        arguments = (actions, LANDER.reference, scene)
        start = fit_start(LANDER, configurations, *arguments, iterations=iterations)
        later = LANDER.rollout(start, actions, LANDER.reference, scene=scene)
        fitted = torch.cat((start[:, None], later), dim=1)[..., LANDER.visible]
        costs.append(((fitted - configurations) / scale).square().sum((1, 2)))
    for before, after in itertools.pairwise(costs):
        # The prior's share of the cost, which is not counted here, is below this.
        assert (after <= before + 1e-3).all()
    assert costs[-1].mean() < costs[0].mean()


def test_derived_dimensions_start_at_zero_and_gradients_pass_the_ground() -> None:
    states, actions, scene = landings(8, 20, frames=8)
    configurations = states[..., LANDER.visible].clone().requires_grad_()
    start = fit_start(LANDER, configurations, actions, LANDER.reference, scene)
    assert (start[:, 6:] == 0).all()
    (gradient,) = torch.autograd.grad(start.square().sum(), configurations)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0
