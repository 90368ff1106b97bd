"""Smoothed readings are nearer to the truth than the readings, where the dynamics are exact."""

import math

import torch

from piwm_gym.systems import CartPole, DonkeyCar, LunarLander, System
from training.smoothing import WINDOW, fuse, smooth


def drive(system: System, start: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """(N, T+1, P) configurations along rollouts."""
    states = system.rollout(start, actions, system.reference)
    return torch.cat((start[:, None], states), dim=1)[..., system.visible]


def test_noise_shrinks_and_exact_readings_stay() -> None:
    torch.manual_seed(0)
    system = CartPole()
    actions = torch.randint(2, (16, 50))
    truth = drive(system, 0.05 * torch.randn(16, 4), actions)
    assert torch.allclose(smooth(system, truth, actions, system.reference), truth, atol=1e-3)
    noise = 0.02 * torch.randn_like(truth)
    smoothed = smooth(system, truth + noise, actions, system.reference)
    assert smoothed.shape == truth.shape
    assert (smoothed - truth).square().mean() < 0.3 * noise.square().mean()


def test_headings_are_smoothed_across_the_seam() -> None:
    torch.manual_seed(0)
    system = DonkeyCar()
    start = torch.zeros(8, 6)
    start[:, 2], start[:, 3] = math.pi - 0.05, 1.0
    actions = torch.tensor([0.0, 0.3]).expand(8, 40, 2) + torch.tensor([0.3, 0.0])
    truth = drive(system, start, actions)
    noise = 0.05 * torch.randn_like(truth)
    read = truth + noise
    read[..., 2] = torch.remainder(read[..., 2] + math.pi, 2 * math.pi) - math.pi
    smoothed = smooth(system, read, actions, system.reference)
    error = system.difference(smoothed, truth, system.visible_variables)
    assert error.square().mean() < 0.4 * noise.square().mean()
    assert error.abs().max() < 0.2


def test_trajectories_shorter_than_a_window() -> None:
    system = CartPole()
    actions = torch.randint(2, (2, WINDOW // 2))
    truth = drive(system, torch.zeros(2, 4), actions)
    assert torch.allclose(smooth(system, truth, actions, system.reference), truth, atol=1e-3)


def test_a_lander_is_smoothed_in_the_air_and_left_alone_on_the_ground() -> None:
    torch.manual_seed(0)
    system = LunarLander()
    actions = torch.randint(4, (8, 30))
    state = torch.zeros(8, 10)
    state[:, 1] = torch.tensor([6.0] * 4 + [0.0] * 4)  # m above the pad
    scene = system.scene(torch.full((8, 12), 0.5))
    states = system.rollout(state, actions, system.reference, scene=scene)
    flown = torch.cat((state[:, None], states), dim=1)[..., system.visible]
    truth = torch.cat((flown, scene[:, None].expand(-1, 31, -1)), dim=-1)
    noise = torch.zeros_like(truth)
    noise[..., :3] = 0.05 * torch.randn(8, 31, 3)
    smoothed = smooth(system, truth + noise, actions, system.reference)
    error, before = smoothed[:4] - truth[:4], noise[:4]
    assert error.square().mean() < 0.3 * before.square().mean()
    assert torch.equal(smoothed[4:], (truth + noise)[4:])
    assert torch.equal(smoothed[..., 3:], truth[..., 3:])


def test_fused_numbers_are_better_than_labels_and_readings() -> None:
    torch.manual_seed(0)
    system = DonkeyCar()
    shape = (40, 50, 3)
    truth = torch.randn(shape)
    truth[..., 2] = math.pi - 0.02  # readings and labels lie on both sides of the seam
    scatter = torch.tensor([0.3, 0.1, 0.2])
    labels = truth + scatter * torch.randn(shape)
    readings = truth + 0.1 * torch.randn(shape)
    readings[::20, ::10, :2] += 5.0  # a few frames taken for another place
    readings[..., 2] = torch.remainder(readings[..., 2] + math.pi, 2 * math.pi) - math.pi
    fused = fuse(system, readings, labels, scatter.expand(shape))
    error = system.difference(fused, truth, system.configuration).flatten(0, 1)
    # 1 / (1 / a^2 + 1 / b^2), the variance of the best mean of two numbers.
    best = (1 / (1 / scatter**2 + 1 / 0.1**2)).sqrt()
    found = error.abs().median(0).values / 0.6745
    torch.testing.assert_close(found, best, rtol=0.1, atol=0)


def test_exact_labels_are_believed() -> None:
    system = CartPole()
    labels = torch.randn(3, 5, 2)
    readings = labels + torch.randn(3, 5, 2)
    assert torch.equal(fuse(system, readings, labels, torch.zeros(3, 5, 2)), labels)
