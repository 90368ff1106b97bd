"""The closer look of E_p: where it looks, and what it makes of what it sees."""

import pytest
import torch

from piwm_gym.models import AutoencoderConfig, build_autoencoder
from piwm_gym.models.glimpse import Glimpse
from piwm_gym.models.tokens import Grid
from piwm_gym.models.window import BodyWindow, chosen
from piwm_gym.systems import System, get_system

GRIDS = (("cartpole", (8, 8)), ("lunar_lander", (16, 24)))


def make(name: str, grid: Grid, width: int = 8, token_dim: int = 3) -> tuple[System, Glimpse]:
    torch.manual_seed(0)
    system = get_system(name)
    assert system.side_view is not None
    return system, Glimpse(system, system.side_view, grid, token_dim, width)


def readings(system: System, number: int = 64) -> torch.Tensor:
    """Normalised, in the middle half of the documented ranges."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(number, len(system.configuration), generator=generator) - 0.5


def places(window: BodyWindow, normalized: torch.Tensor) -> torch.Tensor:
    poses = window.system.poses(window.configuration(normalized))
    return window.place(poses[:, :2, 0])


@pytest.mark.parametrize(("name", "grid"), GRIDS)
def test_the_window_holds_the_body_near_its_middle(name: str, grid: Grid) -> None:
    system, glimpse = make(name, grid)
    around = glimpse.around
    place = places(around, readings(system))
    column, row = around.first(place)
    middle = torch.cat((column, row), dim=1) + around.middle
    whole = len(around.columns) == grid[1], len(around.rows) == grid[0]
    for axis in (0, 1):
        if not whole[axis]:
            assert (place - middle)[:, axis].abs().max() <= 0.5 + 1e-5
    patches = around.patches(column, row)
    assert patches.min() >= 0
    assert patches.max() < grid[0] * grid[1]
    inside = column + around.columns[-1] < grid[1]
    assert inside.all()


def test_patches_are_counted_row_by_row_as_tokens_are() -> None:
    _, glimpse = make("lunar_lander", (16, 24))
    numbers = torch.arange(16.0 * 24).view(1, -1, 1).expand(4, -1, -1)
    column, row = torch.tensor([[0], [3], [7], [19]]), torch.tensor([[0], [1], [5], [11]])
    seen = chosen(numbers, glimpse.around.patches(column, row))[..., 0]
    tall, wide = len(glimpse.around.rows), len(glimpse.around.columns)
    expected = torch.arange(16.0 * 24).view(16, 24)
    for i in range(4):
        r, c = int(row[i]), int(column[i])
        block = expected[r : r + tall, c : c + wide]
        torch.testing.assert_close(seen[i], block.flatten())


@pytest.mark.parametrize(("name", "grid"), GRIDS)
def test_a_look_that_sees_nothing_takes_the_body_to_be_in_the_middle(name: str, grid: Grid) -> None:
    system, glimpse = make(name, grid)
    for parameter in glimpse.layers.parameters():
        parameter.data.zero_()
    reading = readings(system)
    after = glimpse.eval().look(torch.randn(len(reading), grid[0] * grid[1], 3), reading)
    around = glimpse.around
    before = places(around, reading)
    middle = torch.cat(around.first(before), dim=1) + around.middle
    moved = places(around, after)
    moving = (before - before[0]).abs().amax(0) > 1e-6  # a cart never leaves its row
    torch.testing.assert_close(moved[:, moving], middle[:, moving], atol=1e-4, rtol=0)
    angle = [v.name for v in system.visible_variables].index("theta")
    assert not after[:, angle].any()
    count = len(system.visible)
    torch.testing.assert_close(after[:, count:], reading[:, count:], atol=0, rtol=0)


@pytest.mark.parametrize(("name", "grid"), GRIDS)
def test_a_second_look_finds_what_the_first_reading_was_beside(name: str, grid: Grid) -> None:
    """Tokens that say where in them a body is, if it is there: a few steps learn to read those."""
    system, glimpse = make(name, grid, width=32)
    around = glimpse.around
    truth = readings(system, 2048)
    place = places(around, truth)
    angle = [v.name for v in system.visible_variables].index("theta")
    token = place.round().long()
    tokens = torch.zeros(len(truth), grid[0] * grid[1], 3)
    at = token[:, 1] * grid[1] + token[:, 0]
    marks = torch.cat((place - token, truth[:, angle : angle + 1]), dim=1)
    tokens[torch.arange(len(truth)), at] = marks + 1.0
    optimizer = torch.optim.Adam(glimpse.parameters(), 1e-2)
    count = len(system.visible)
    glimpse.train()
    for _ in range(150):
        error = (glimpse.look(tokens, truth) - truth)[:, :count]
        optimizer.zero_grad()
        error.square().mean().backward()
        optimizer.step()
    token_in_half_ranges = around.wide / around.scale[0]
    beside = truth.clone()
    beside[:, 0] += 0.8 * token_in_half_ranges
    with torch.no_grad():
        after = glimpse.eval()(tokens, beside)
    error = (after - truth)[:, :count].square().mean(0).sqrt()
    assert error[0] < 0.3 * token_in_half_ranges
    assert error[angle] < 0.1


def test_gradients_reach_what_is_looked_at() -> None:
    system, glimpse = make("lunar_lander", (16, 24))
    tokens = torch.randn(2, 16 * 24, 3, requires_grad=True)
    glimpse.eval()(tokens, readings(system, 2)).sum().backward()
    assert tokens.grad is not None
    assert torch.isfinite(tokens.grad).all()
    assert tokens.grad.any()


def test_there_has_to_be_a_side_view_and_a_grid_to_look_at() -> None:
    config = AutoencoderConfig(glimpse=16)
    with pytest.raises(ValueError, match=r"glimpse is 16.*donkey_car.*expected 0"):
        build_autoencoder(config, get_system("donkey_car"))
    flat = AutoencoderConfig("extrinsic-continuous", glimpse=16, flat=True)
    with pytest.raises(ValueError, match=r"glimpse is 16.*no grid of tokens"):
        build_autoencoder(flat, get_system("cartpole"))


def test_the_readings_of_an_autoencoder_are_those_of_its_closer_look() -> None:
    torch.manual_seed(0)
    system = get_system("cartpole")
    autoencoder = build_autoencoder(AutoencoderConfig(glimpse=16), system).eval()
    frames = torch.rand(3, 3, *system.frame.size)
    with torch.no_grad():
        value = autoencoder.latent(frames).value
        first = autoencoder.first_reading(value)
        assert autoencoder.glimpse is not None
        closer = autoencoder.glimpse(autoencoder.tokens(value), first)
        torch.testing.assert_close(autoencoder.read(value), closer, atol=0, rtol=0)
    assert not torch.equal(first, closer)
