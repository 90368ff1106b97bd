"""The extended Kalman filter over the dynamics."""

import pytest
import torch

from piwm_gym.models.filtering import (
    LOST,
    UNKNOWN,
    Belief,
    anywhere,
    at_reset,
    correct,
    predict,
)
from piwm_gym.systems import CartPole, DonkeyCar, LunarLander, System

LANDER = LunarLander()
SYSTEMS: tuple[System, ...] = (CartPole(), LANDER, DonkeyCar())
STD = torch.tensor([0.05, 0.05, 0.02])


def run(
    system: System, belief: Belief, readings: torch.Tensor, actions: torch.Tensor, std: torch.Tensor
) -> Belief:
    """Belief after readings (B, T, V) and the actions between them."""
    belief = correct(system, belief, readings[:, 0], std)
    for t in range(actions.shape[1]):
        belief = predict(system, belief, actions[:, t], system.reference)
        belief = correct(system, belief, readings[:, t + 1], std)
    return belief


def falls(count: int, frames: int) -> tuple[torch.Tensor, torch.Tensor]:
    """States of landers that fall, level and without turning: motion is linear in the start."""
    generator = torch.Generator().manual_seed(0)
    start = torch.zeros(count, 10)
    start[:, :4] = torch.randn(count, 4, generator=generator) + torch.tensor([0.0, 5.0, 0.0, 0.0])
    actions = torch.zeros(count, frames - 1, dtype=torch.long)
    states = LANDER.rollout(start, actions, LANDER.reference)
    return torch.cat((start[:, None], states), dim=1), actions


def test_of_linear_motion_it_is_the_least_squares_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed form: without process noise and with a wide prior, the line through what is left."""
    monkeypatch.setattr(LunarLander, "unmodelled", 0.0)
    monkeypatch.setattr("piwm_gym.models.filtering.LARGEST", 1e9)
    frames = 12
    states, actions = falls(8, frames)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(8, frames, 3, generator=generator) * torch.tensor([0.05, 0.05, 0.0])
    readings = states[..., LANDER.visible] + noise
    found = run(LANDER, anywhere(LANDER, readings[:, 0]), readings, actions, STD).state
    time = torch.arange(1 - frames, 1) * LANDER.dt
    design = torch.stack((torch.ones(frames), time), dim=1)
    # Errors of a fit are the fit of the errors.
    error = torch.linalg.pinv(design) @ noise[..., :2]
    expected = states[:, -1, :4] + torch.cat((error[:, 0], error[:, 1]), dim=1)
    torch.testing.assert_close(found[:, :2], expected[:, :2], rtol=0, atol=2e-3)
    torch.testing.assert_close(found[:, 2:4], expected[:, 2:4], rtol=0, atol=2e-2)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_exact_readings_give_the_state(system: System) -> None:
    generator = torch.Generator().manual_seed(0)
    start = system.initial(torch.rand(6, system.num_initial_uniforms, generator=generator))
    if system.name == "donkey_car":
        actions = torch.tensor([0.3, 0.6]).expand(6, 30, 2)
    else:
        actions = torch.randint(2, (6, 30), generator=generator)
    states = torch.cat((start[:, None], system.rollout(start, actions, system.reference)), dim=1)
    readings = states[..., system.visible]
    std = 1e-4 * system.ranges[system.visible]
    for belief in (at_reset(system, readings[:, 0]), anywhere(system, readings[:, 0])):
        found = run(system, belief, readings, actions, std)
        apart = system.difference(found.state, states[:, -1])[:, system.estimated]
        assert (apart.abs() / system.ranges[system.estimated]).max() < 5e-3


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_before_the_first_frame_it_knows_how_episodes_begin(system: System) -> None:
    generator = torch.Generator().manual_seed(5)
    starts = system.initial(torch.rand(4096, system.num_initial_uniforms, generator=generator))
    belief = at_reset(system, starts[:1, system.visible])
    apart = system.difference(starts, belief.state)[:, system.estimated]
    apart = apart / (system.ranges / 2)[system.estimated]
    std = belief.covariance[0].diagonal().sqrt()
    torch.testing.assert_close(std, apart.std(0), rtol=0.05, atol=2 * system.unmodelled)
    assert (apart.mean(0).abs() <= 0.1 * std + 1e-6).all()


def test_the_covariance_is_that_of_the_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many noisy runs with drawn thrust, errors are as large as the filter says."""
    monkeypatch.setattr(LunarLander, "unmodelled", 0.0)
    count, frames = 400, 25
    generator = torch.Generator().manual_seed(2)
    state = LANDER.initial(torch.rand(count, 2, generator=generator))
    actions = torch.randint(4, (count, frames), generator=generator)
    noise = torch.rand(count, frames, 2, generator=generator)
    states = LANDER.rollout(state, actions, LANDER.reference, noise)
    states = torch.cat((state[:, None], states), dim=1)
    readings = states[..., LANDER.visible]
    readings = readings + STD * torch.randn(readings.shape, generator=generator)
    found = run(LANDER, at_reset(LANDER, readings[:, 0]), readings, actions, STD)
    error = (found.state - states[:, -1])[:, :6] / (LANDER.ranges / 2)[:6]
    claimed = found.covariance.diagonal(dim1=1, dim2=2).mean(0).sqrt()
    ratio = error.square().mean(0).sqrt() / claimed
    assert ((ratio > 0.85) & (ratio < 1.15)).all(), ratio


def test_unseen_frames_leave_the_dynamics_alone() -> None:
    states, actions = falls(4, 10)
    belief = at_reset(LANDER, states[:, 0, LANDER.visible])
    unseen = torch.zeros(4, dtype=torch.bool)
    moved = belief
    for t in range(9):
        moved = predict(LANDER, moved, actions[:, t], LANDER.reference)
        moved = correct(LANDER, moved, torch.full((4, 3), 7.0), STD, unseen)
    expected = LANDER.rollout(belief.state, actions, LANDER.reference)[:, -1]
    torch.testing.assert_close(moved.state, expected)
    assert (moved.covariance.diagonal(dim1=1, dim2=2)[:, 1] > belief.covariance[:, 1, 1]).all()


def test_a_misread_frame_leaves_little_trace_and_many_are_believed() -> None:
    states, actions = falls(4, 40)
    readings = states[..., LANDER.visible].clone()
    readings[0, 20] += 4.0
    readings[1, 20:] += torch.tensor([4.0, 0.0, 0.0])
    belief = anywhere(LANDER, readings[:, 0])
    belief = correct(LANDER, belief, readings[:, 0], STD)
    for t in range(39):
        belief = predict(LANDER, belief, actions[:, t], LANDER.reference)
        belief = correct(LANDER, belief, readings[:, t + 1], STD)
        off = (belief.state[:, :2] - states[:, t + 1, :2]).abs().amax(1)
        assert off[0] < 0.3
        if 20 <= t < 18 + LOST:
            assert off[1] < 2.0
    assert off[0] < 0.02
    assert off[1] == pytest.approx(4.0, abs=0.05)
    assert off[2] < 0.02


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_what_is_not_seen_for_long_is_somewhere(system: System) -> None:
    """And does not keep others from being followed, nor from being found again."""
    generator = torch.Generator().manual_seed(4)
    state = system.initial(torch.rand(3, system.num_initial_uniforms, generator=generator))
    action = torch.as_tensor(system.action_space.sample())
    actions, std = action.expand(3, *action.shape), 0.01 * system.ranges[system.visible]
    belief = at_reset(system, state[:, system.visible])
    seen = torch.tensor([False, True, False])
    for _ in range(500):
        belief = predict(system, belief, actions, system.reference)
        reading = belief.state[:, system.visible]
        belief = correct(system, belief, reading, std, seen)
    assert belief.covariance.isfinite().all()
    spread = belief.covariance.diagonal(dim1=1, dim2=2)
    assert (spread >= 0).all()
    assert (spread <= UNKNOWN**2 + 1e-4).all()
    assert torch.linalg.eigvalsh(belief.covariance).min() > -1e-4
    found = state[:, system.visible]
    for _ in range(LOST + 1):
        belief = correct(system, belief, found, std)
    apart = system.difference(belief.state[:, system.visible], found, system.visible_variables)
    assert (apart.abs() < 3 * std).all()


def test_a_belief_that_is_given_up_trusts_the_reading_and_keeps_what_no_frame_shows() -> None:
    states, _ = falls(2, 2)
    belief = anywhere(LANDER, states[:, 0, LANDER.visible])
    crashed = belief.state.clone()
    crashed[:, 9] = 1.0
    sure = belief._replace(state=crashed, covariance=1e-6 * torch.eye(6).expand(2, -1, -1))
    far = states[:, 0, LANDER.visible] + torch.tensor([5.0, 0.0, 0.0])
    for _ in range(LOST):
        sure = correct(LANDER, sure, far, STD)
    torch.testing.assert_close(sure.state[:, LANDER.visible], far)
    assert (sure.state[:, 9] == 1.0).all()
    std = sure.covariance.diagonal(dim1=1, dim2=2).sqrt() * (LANDER.ranges / 2)[:6]
    torch.testing.assert_close(std[:, [0, 1, 4]], STD.expand(2, -1))


def test_a_lander_that_stands_is_not_lifted_by_readings_a_little_high() -> None:
    """What a fit of a window took for a hop."""
    state = torch.zeros(1, 10)
    scene = torch.full((1, 11), -0.6)
    idle = torch.zeros(1, dtype=torch.long)
    for _ in range(100):  # settles
        state = LANDER.transition(state, idle, LANDER.reference, scene=scene)
    belief = anywhere(LANDER, state[:, LANDER.visible])._replace(state=state)
    for _ in range(50):
        belief = predict(LANDER, belief, idle, LANDER.reference, scene)
        belief = correct(
            LANDER, belief, state[:, LANDER.visible] + torch.tensor([[0, 0.04, 0]]), STD
        )
    assert belief.state[0, 1] - state[0, 1] < 0.02
    assert belief.state[0, 2:4].abs().max() < 0.1


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_batch_elements_do_not_interact(system: System) -> None:
    generator = torch.Generator().manual_seed(3)
    start = system.initial(torch.rand(5, system.num_initial_uniforms, generator=generator))
    action = torch.as_tensor(system.action_space.sample())
    actions = action.expand(5, *action.shape)
    readings = start[:, system.visible] + 0.01

    def one_step(rows: slice) -> Belief:
        std = 0.01 * system.ranges[system.visible]
        belief = correct(system, at_reset(system, readings[rows]), readings[rows], std)
        belief = predict(system, belief, actions[rows], system.reference)
        return correct(system, belief, readings[rows], std)

    together, alone = one_step(slice(None)), one_step(slice(2, 3))
    torch.testing.assert_close(together.state[2:3], alone.state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together.covariance[2:3], alone.covariance, rtol=1e-4, atol=1e-7)
