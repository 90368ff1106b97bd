"""Turned frames, against frames of the real environment in that attitude."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.models.vision import to_float
from piwm_gym.systems import get_system
from piwm_gym.twins import LunarLanderTwin
from training.collectors.lunar_lander import LunarLanderRenderer
from training.turning import FURTHEST, turn, turned_frames, turned_variable

SYSTEM = get_system("lunar_lander")
LEVEL = np.full(11, -0.6)
X, Y = 2.0, 5.0


@pytest.fixture(scope="module")
def drawn() -> dict[float, torch.Tensor]:
    """uint8 (H, W, 3) real frames by attitude, over level ground."""
    twin = LunarLanderTwin(gym.make("LunarLander-v3", render_mode="rgb_array"))
    twin.reset(seed=0)
    draw = LunarLanderRenderer(SYSTEM.frame)
    frames = {}
    for theta in (0.0, 0.5, 2.0, -2.0):
        twin.set_scene(LEVEL)
        twin.set_state(np.array([X, Y, 0, 0, theta, 0, 0, 0, 0, 0]))
        frames[theta] = torch.from_numpy(draw(twin.env.unwrapped))
    return frames


def shown(theta: float) -> torch.Tensor:
    return torch.tensor([[X, Y, theta, *LEVEL]], dtype=torch.float32)


def around(frame: torch.Tensor, x: float = X, y: float = Y) -> torch.Tensor:
    """The lander's surroundings in a (3, H, W) frame."""
    column, row = (300 + 30 * x) / 6.25, (282 - 30 * y) / 6.25
    return frame[:, max(0, int(row) - 8) : int(row) + 9, int(column) - 8 : int(column) + 9]


def test_only_a_single_body_can_be_turned() -> None:
    assert turned_variable(SYSTEM) == 2
    assert turned_variable(get_system("cartpole")) is None
    assert turned_variable(get_system("donkey_car")) is None


@pytest.mark.parametrize("theta", [0.5, 2.0, -2.0])
def test_a_turned_frame_shows_what_the_real_one_shows(
    drawn: dict[float, torch.Tensor], theta: float
) -> None:
    upright, real = to_float(drawn[0.0])[None], to_float(drawn[theta])
    turned = turn(SYSTEM, upright, shown(0.0), torch.tensor([theta]))[0]
    wrong = turn(SYSTEM, upright, shown(0.0), torch.tensor([-theta]))[0]
    apart = (around(turned) - around(real)).square().mean()
    assert apart < 0.3 * (around(upright[0]) - around(real)).square().mean()
    assert apart < 0.3 * (around(wrong) - around(real)).square().mean()


def test_no_turn_and_a_whole_turn_change_nothing(drawn: dict[float, torch.Tensor]) -> None:
    frames = to_float(torch.stack(list(drawn.values())))
    configurations = torch.cat([shown(theta) for theta in drawn])
    for angle in (0.0, 2 * torch.pi):
        turned = turn(SYSTEM, frames, configurations, torch.full((len(frames),), angle))
        torch.testing.assert_close(turned, frames, atol=1e-3, rtol=0)


def test_a_carried_frame_shows_what_the_real_one_shows(drawn: dict[float, torch.Tensor]) -> None:
    """Turned by half a radian, and cut by the picture's upper edge."""
    twin = LunarLanderTwin(gym.make("LunarLander-v3", render_mode="rgb_array"))
    twin.reset(seed=0)
    twin.set_scene(LEVEL)
    place = -3.0, 9.2
    twin.set_state(np.array([*place, 0, 0, 0.5, 0, 0, 0, 0, 0]))
    real = to_float(torch.from_numpy(LunarLanderRenderer(SYSTEM.frame)(twin.env.unwrapped)))
    upright, angle = to_float(drawn[0.0])[None], torch.tensor([0.5])

    def error(x: float, y: float) -> float:
        carried = turn(SYSTEM, upright, shown(0.0), angle, torch.tensor([[x, y]]))[0]
        return float((around(carried, *place) - around(real, *place)).square().mean())

    assert error(*place) < 0.3 * float(around(real, *place).square().mean())
    assert error(*place) < 0.3 * min(error(-3.5, 9.2), error(-3.0, 8.7))


def test_turned_frames_are_of_what_flies_in_view(drawn: dict[float, torch.Tensor]) -> None:
    frames = torch.stack([torch.stack([drawn[0.0]] * 40)] * 3)
    configurations = shown(0.0).expand(3, 40, -1).clone()
    configurations[0, :, 1] = 0.0  # on the ground
    configurations[1, :, 1] = 9.3  # above the picture
    turned, at = turned_frames(SYSTEM, frames, configurations, 100, seed=0)
    assert len(turned) == len(at) == 40
    assert turned.dtype == torch.uint8
    assert at[:, 2].abs().max() <= FURTHEST
    stayed = (at[:, :2] == torch.tensor([X, Y])).all(1)
    assert 10 < stayed.sum() < 30
    assert len(at[stayed, 2].unique()) == stayed.sum(), "turned"
    assert (at[~stayed, 2] == 0).all()
    x, y = at[~stayed, :2].unbind(1)
    near = (x.abs() > 10 - 1.2) | (y > 9.4 - 1.2)
    assert near.all(), "carried to an edge"
    assert ((x.abs() < 10 + 0.4) & (y < 9.4 + 0.4)).all(), "and not far beyond"
    assert torch.equal(at[:, 3:], configurations[2, :, 3:]), "the scene is taken to be the same"
    again = turned_frames(SYSTEM, frames, configurations, 100, seed=0)
    torch.testing.assert_close(again, (turned, at), atol=0, rtol=0)
    assert len(turned_frames(SYSTEM, frames, configurations, 2, seed=0)[0]) == 2
