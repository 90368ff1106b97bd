"""Losses against hand computations."""

import pytest
import torch

from piwm_gym.systems import CartPole, LunarLander
from training import losses
from training.foreground import Coloured, Moving, foreground_of

WHITE = torch.ones(3, 8, 8)
MOVING = Moving(WHITE[None])


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
    assert float(losses.reconstruction(background_error, frame, MOVING)) == pytest.approx(0.01)
    assert float(losses.reconstruction(foreground_error, frame, MOVING)) == pytest.approx(0.11)


def test_a_ghost_in_a_drawing_weighs_as_much_as_what_is_missing() -> None:
    pole, empty = frame_with_pole(), WHITE[None]
    missing = losses.drawing_error(empty, pole, MOVING)
    ghost = losses.drawing_error(pole, empty, MOVING)
    assert float(missing) == pytest.approx(11 * 12 * 0.64)
    assert float(ghost) == pytest.approx(11 * 12 * 0.64)
    assert float(losses.reconstruction(pole, empty, MOVING)) == pytest.approx(12 * 0.64)


def test_what_clipping_puts_right_is_hardly_an_error_of_a_drawing() -> None:
    frames = torch.tensor([0.0, 0.0, 0.5, 0.5, 1.0, 1.0]).view(1, 1, 2, 3).expand(1, 3, 2, 3)
    off = torch.tensor([-0.3, 0.3, -0.1, 1.2, 1.3, 0.9])
    decoded = off.view(1, 1, 2, 3).expand(1, 3, 2, 3).clone().requires_grad_()
    loss = losses.drawing_error(decoded, frames, Coloured())
    expected = torch.tensor([-0.03, 0.3, -0.6, 0.7, 0.03, -0.1])
    loss.backward()
    assert float(loss.detach()) == pytest.approx(3 * float(expected.square().sum()))
    assert decoded.grad is not None
    slope = torch.tensor([0.1, 1.0, 1.0, 1.0, 0.1, 1.0])
    torch.testing.assert_close(decoded.grad[0, 0].flatten(), 2 * expected * slope)


def test_a_vanished_pole_and_a_ghost_are_equally_bad() -> None:
    pole, empty = frame_with_pole(), WHITE[None]
    vanished = losses.foreground_error(empty, pole, MOVING)
    ghost = losses.foreground_error(pole, empty, MOVING)
    assert float(vanished) == pytest.approx(0.64)
    assert float(ghost) == pytest.approx(0.64)


def test_coloured_pixels_are_the_foreground_of_a_black_and_white_world() -> None:
    frame = torch.zeros(1, 3, 8, 8)
    frame[..., 4:, :] = 1.0
    frame[..., 4, :] = 0.5  # the smoothed edge of the terrain is grey
    lander = frame.clone()
    lander[0, :, 2, 3] = torch.tensor([0.5, 0.4, 0.9])
    assert not Coloured()(frame).any()
    assert Coloured()(lander).nonzero().tolist() == [[0, 0, 2, 3]]
    assert float(losses.foreground_error(frame, lander, Coloured())) == pytest.approx(1.22 / 3)


def test_terrain_counts_even_though_it_is_no_foreground() -> None:
    frame = torch.zeros(1, 3, 8, 8)
    frame[..., 4:, :] = 1.0
    higher = frame.clone()
    higher[..., 3, :] = 1.0
    assert float(losses.reconstruction(higher, frame, Coloured())) == 3 * 8


def test_the_foreground_follows_from_whether_there_is_a_scene() -> None:
    assert isinstance(foreground_of(CartPole(), WHITE[None]), Moving)
    assert isinstance(foreground_of(LunarLander(), WHITE[None]), Coloured)


def test_interpretability_is_the_squared_distance_to_the_proxy_mean() -> None:
    predicted, target = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert float(losses.interpretability(predicted, target, torch.ones(2))) == 5.0
    assert float(losses.interpretability(predicted, target, torch.tensor([1.0, 0.5]))) == 3.0


def test_a_scene_weighs_as_much_as_one_dimension_of_the_state() -> None:
    weights = losses.configuration_weights(LunarLander())
    assert weights[:3].tolist() == [1.0, 1.0, 1.0]
    assert float(weights[3:].sum()) == pytest.approx(1.0)
    assert losses.configuration_weights(CartPole()).tolist() == [1.0, 1.0]


def test_interpretability_kl_is_that_of_torch() -> None:
    predicted, mean, std = torch.randn(1, 2), torch.randn(1, 2), torch.full((1, 2), 0.3)
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(predicted, 0.05), normal(mean, std)).sum()
    torch.testing.assert_close(
        losses.interpretability_kl(predicted, mean, std, torch.ones(2)), expected
    )


def test_the_kl_stays_finite_without_label_noise() -> None:
    zeros = torch.zeros(1, 2)
    assert torch.isfinite(losses.interpretability_kl(zeros, zeros, zeros, torch.ones(2)))


def test_rollout_errors_are_in_units_of_half_the_range() -> None:
    error = losses.rollout_error(torch.tensor([[[2.0, 0.5]]]), torch.tensor([2.0, 0.5]))
    assert float(error) == 1.0
