"""Losses against hand computations."""

import pytest
import torch

from training import losses

WHITE = torch.ones(3, 8, 8)


def frame_with_pole() -> torch.Tensor:
    frame = WHITE.clone()
    frame[:, 2:6, 3] = 0.2
    return frame[None]


def test_foreground_pixels_weigh_eleven_times() -> None:
    frame = frame_with_pole()
    background_error = frame.clone()
    background_error[0, 0, 0, 0] -= 0.1
    foreground_error = frame.clone()
    foreground_error[0, 0, 3, 3] -= 0.1
    assert float(losses.reconstruction(background_error, frame, WHITE)) == pytest.approx(0.01)
    assert float(losses.reconstruction(foreground_error, frame, WHITE)) == pytest.approx(0.11)


def test_a_vanished_pole_and_a_ghost_are_equally_bad() -> None:
    pole, empty = frame_with_pole(), WHITE[None]
    vanished = losses.foreground_error(empty, pole, WHITE)
    ghost = losses.foreground_error(pole, empty, WHITE)
    assert float(vanished) == pytest.approx(0.64)
    assert float(ghost) == pytest.approx(0.64)


def test_interpretability_is_the_squared_distance_to_the_proxy_mean() -> None:
    predicted, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert float(losses.interpretability(predicted, target)) == 5.0


def test_interpretability_kl_is_that_of_torch() -> None:
    predicted, mean, std = torch.randn(1, 2), torch.randn(1, 2), torch.full((1, 2), 0.3)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(predicted, 0.05), normal(mean, std)).sum()
    torch.testing.assert_close(losses.interpretability_kl(predicted, mean, std), expected)


def test_the_kl_stays_finite_without_label_noise() -> None:
    zeros = torch.zeros(1, 2)
    assert torch.isfinite(losses.interpretability_kl(zeros, zeros, zeros))


def test_rollout_errors_are_in_units_of_half_the_range() -> None:
    states, labels = torch.tensor([[[2.0, 0.5]]]), torch.zeros(1, 1, 2)
    error = losses.rollout_error(states, labels, torch.tensor([2.0, 0.5]))
    assert float(error) == 1.0
