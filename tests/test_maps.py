"""D_p from learned maps: where tokens look, how maps interpolate, and that a place is learned."""

import math

import pytest
import torch

from piwm_gym.models import AutoencoderConfig, build_autoencoder
from piwm_gym.models.maps import GroundMap, MapDecoder, Panorama, look_points
from piwm_gym.models.vision import VisionConfig
from piwm_gym.systems import CartPole, DonkeyCar

SYSTEM = DonkeyCar()
GRID = (12, 20)


def test_tokens_look_where_the_cameras_geometry_says() -> None:
    """The middle of the bottom row meets the ground 13.3 degrees off straight down, 0.2 m up."""
    assert SYSTEM.camera is not None
    points = look_points(SYSTEM.camera, SYSTEM.frame, GRID)
    assert points.shape == (240, 5, 2)
    bottom = points[220:, :4]  # four corners of each token of the last row
    ahead, left = bottom.mean(1).unbind(1)
    down = math.radians(15) + math.atan((116 - 60) / 60)
    assert ahead.mean() == pytest.approx(0.07 + 0.2 / math.tan(down), abs=0.01)
    assert torch.allclose(left, -left.flip(0), atol=1e-6)
    assert left[0] > left[-1], "the first column looks to the left"
    rows = points[:, :4].mean(1)[:, 0].view(GRID)[:, 10]
    ground = rows[4:]
    assert (ground.diff() < 0).all(), "lower rows look nearer"


def test_tokens_above_the_horizon_look_along_their_direction() -> None:
    assert SYSTEM.camera is not None
    sky = look_points(SYSTEM.camera, SYSTEM.frame, GRID)[:20]
    away = sky - torch.tensor([SYSTEM.camera.ahead, 0.0])
    angles = torch.atan2(away[..., 1], away[..., 0])
    assert torch.allclose(angles, angles[:, :1].expand_as(angles), atol=1e-5)
    assert angles[0, 0] > 0.8
    assert (away.norm(dim=-1).diff(dim=1) > 0).all()


def test_a_map_of_a_plane_is_read_exactly() -> None:
    ground = GroundMap(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0]), 0.1, 2)
    row, column = torch.meshgrid(
        torch.arange(ground.rows), torch.arange(ground.columns), indexing="ij"
    )
    plane = torch.stack((-1 + 0.1 * column, -2 + 0.1 * row), dim=-1).flatten(0, 1)
    ground.table.data = plane.float()
    points = torch.rand(64, 2) * torch.tensor([2.0, 4.0]) - torch.tensor([1.0, 2.0])
    assert torch.allclose(ground(*points.unbind(1)), points, atol=2e-3)
    outside = ground(torch.tensor([5.0, -5.0]), torch.zeros(2))
    assert torch.allclose(outside[:, 0], torch.tensor([1.0, -1.0]), atol=2e-3)


def test_a_maps_slope_reaches_the_point() -> None:
    ground = GroundMap(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]), 0.25, 3).double()
    points = (0.1 + 0.8 * torch.rand(5, 2, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: ground(*p.unbind(1)), (points,), eps=1e-7, atol=1e-5)


def test_the_panorama_goes_around() -> None:
    panorama = Panorama(8, 4)
    angles = torch.tensor([0.3, -3.0])
    around = panorama(angles + 2 * torch.pi)
    assert torch.allclose(panorama(angles), around, atol=1e-5)
    step = 2 * torch.pi / 8
    assert torch.allclose(panorama(torch.tensor([3 * step])), panorama.table[3:4], atol=1e-5)


def test_turning_and_moving_the_car_moves_what_it_sees() -> None:
    """Half a turn at one place looks at the mirrored points: the maps see both alike."""
    torch.manual_seed(0)
    decoder = MapDecoder(SYSTEM, GRID, 8)
    seen: list[torch.Tensor] = []
    decoder.fine.register_forward_hook(
        lambda module, given, result: seen.append(torch.stack(given, 1))
    )
    decoder(torch.tensor([[0.2, 0.4, 1.0, 0.0], [0.2, 0.4, -1.0, 0.0]]))
    here = torch.tensor([1.0, 1.4])  # 0.2 x 5 m, 0.4 x 3.5 m
    one, other = (seen[0].view(2, -1, 2) - here).unbind(0)
    assert torch.allclose(one, -other, atol=1e-5)
    assert torch.allclose(one, decoder.points.flatten(0, 1), atol=1e-5)


def test_a_system_without_such_a_camera_is_refused() -> None:
    config = AutoencoderConfig(drawer="maps")
    with pytest.raises(ValueError, match="cartpole has no camera that drives along"):
        build_autoencoder(config, CartPole())
    with pytest.raises(ValueError, match="did you mean 'maps'"):
        build_autoencoder(AutoencoderConfig(drawer="map"), SYSTEM)


def test_it_draws_in_mixed_precision() -> None:
    """Whose products in place are left alone: they refuse numbers of two kinds."""
    decoder = MapDecoder(SYSTEM, GRID, 8)
    poses = torch.tensor([[0.1, -0.2, 1.0, 0.0], [0.5, 0.3, 0.0, 1.0]])
    with torch.autocast("cpu", torch.bfloat16):
        drawn = decoder(poses)
    torch.testing.assert_close(drawn.float(), decoder(poses), atol=0.02, rtol=0)


def test_it_learns_what_stands_where() -> None:
    """A few steps on one striped ground: views of new poses are drawn better than their mean."""
    torch.manual_seed(0)
    vision = VisionConfig(channels=(8,), kernels=(8,), strides=(8,), token_dim=4)
    decoder = MapDecoder(SYSTEM, vision.grid(SYSTEM.frame.size), 4, width=32)
    points = decoder.points.detach().clone()

    def views(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        theta = torch.rand(count) * 2 * torch.pi
        place = torch.rand(count, 2) - 0.5
        pose = torch.cat((place, theta.cos()[:, None], theta.sin()[:, None]), dim=1)
        metres = place * torch.tensor([5.0, 3.5])
        ahead, left = points[:, 0].unbind(1)
        x = metres[:, :1] + theta.cos()[:, None] * ahead - theta.sin()[:, None] * left
        return pose, torch.sin(3 * x)[..., None].expand(-1, -1, 4)

    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    for _ in range(120):
        pose, tokens = views(64)
        loss = (decoder(pose) - tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pose, tokens = views(64)
    with torch.no_grad():
        error = (decoder(pose) - tokens).square().mean()
    assert float(error) < 0.3 * float(tokens.var())
