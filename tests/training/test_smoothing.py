"""Smoothed readings are nearer to the truth than the readings, where the dynamics are exact."""

import math

import torch

from piwm_gym.systems import CartPole, DonkeyCar, LunarLander, System
from training.smoothing import WINDOW, smooth


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


def test_short_trajectories_and_noisy_systems() -> None:
    system = CartPole()
    actions = torch.randint(2, (2, WINDOW // 2))
    truth = drive(system, torch.zeros(2, 4), actions)
    assert torch.allclose(smooth(system, truth, actions, system.reference), truth, atol=1e-3)
    lander = LunarLander()
    readings = torch.randn(2, 30, 14)
    unchanged = smooth(lander, readings, torch.zeros(2, 29), lander.reference)
    assert unchanged is readings
