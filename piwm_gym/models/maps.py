"""D_p for a camera that drives along: what it sees is looked up in learned maps of the place.

A transformer fed with the pose has to know every view by heart, and drew the mean of all views
after ten epochs. But views of one place are views of the same things: each token of the frame
looks along known rays at a few points of the ground, and what a map says of them, the same map
for all frames, decides what is drawn there. Far away, where nothing moves, a panorama takes over.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from piwm_gym.models.precision import add_product, through
from piwm_gym.models.tokens import Grid
from piwm_gym.systems import Camera, FrameSpec, System

FARTHEST = 8.0
"""Ground further away than this is looked at as if it were sky, m."""
FOOTPRINT = 0.25
"""How far from a token's middle its points look, as a share of its side."""
NEARER = 0.6
"""Where upright things stand that hide the ground: this share of the way to it."""
SKYWARD = (0.6, 1.2, 2.5, 5.0, 8.0)
"""Distances at which a token above the horizon looks for upright things, m."""


def look_points(camera: Camera, frame: FrameSpec, grid: Grid) -> Float[Tensor, "N K 2"]:
    """Points of the ground that each token looks at: metres ahead, and to the left.

    Args:
        camera: How the camera is mounted.
        frame: What part of its picture is used.
        grid: Rows and columns of tokens.
    """
    rows, columns = grid
    height, width = frame.native
    (top, bottom), (first, last) = frame.rows, frame.columns
    tall, wide = (bottom - top) / rows, (last - first) / columns
    focal = height / 2 / math.tan(camera.field_of_view / 2)
    points = []
    for row in range(rows):
        for column in range(columns):
            y, x = top + (row + 0.5) * tall, first + (column + 0.5) * wide
            rays = [
                camera.ray(
                    (x + dx * wide - width / 2) / focal, (y + dy * tall - height / 2) / focal
                )
                for dx, dy in ((0.0, 0.0), *_CORNERS)
            ]
            points.append(_ground(camera, rays) or _skyward(camera, rays[0]))
    return torch.tensor(points)


_CORNERS = [(dx, dy) for dy in (-FOOTPRINT, FOOTPRINT) for dx in (-FOOTPRINT, FOOTPRINT)]
Ray = tuple[float, float, float]
Point = tuple[float, float]


def _ground(camera: Camera, rays: Sequence[Ray]) -> list[Point] | None:
    """Where the corners' rays meet the ground, and a point before it; None if that is too far."""
    met = []
    for ahead, right, rise in rays:
        way = camera.height / -rise if rise < 0 else math.inf
        if way * math.hypot(ahead, right) > FARTHEST:
            return None
        met.append((way * ahead + camera.ahead, -way * right))
    middle, *corners = met
    return [*corners, (NEARER * middle[0], NEARER * middle[1])]


def _skyward(camera: Camera, ray: Ray) -> list[Point]:
    ahead, right, _ = ray
    flat = math.hypot(ahead, right)
    return [(d * ahead / flat + camera.ahead, -d * right / flat) for d in SKYWARD]


class GroundMap(nn.Module):
    """A learned vector for each cell of a grid over the ground, interpolated between cells.

    Args:
        low: Lower corner of the grid: x and y, m.
        high: Upper corner.
        cell: Side of a cell, m.
        channels: Numbers per cell.
    """

    low: Tensor
    corners: Tensor

    def __init__(self, low: Tensor, high: Tensor, cell: float, channels: int) -> None:
        super().__init__()
        self.cell, self.channels = cell, channels
        self.columns, self.rows = ((high - low) / cell).ceil().long().add(1).tolist()
        self.register_buffer("low", low, persistent=False)
        corners = torch.tensor([0, 1, self.columns, self.columns + 1], dtype=torch.int32)
        self.register_buffer("corners", corners, persistent=False)
        self.table = nn.Parameter(0.1 * torch.randn(self.rows * self.columns, channels))

    def forward(self, x: Float[Tensor, " M"], y: Float[Tensor, " M"]) -> Float[Tensor, "M C"]:
        """Vectors at places (m); beyond the grid those of its edge."""
        x = ((x - self.low[0]) / self.cell).clamp(0, self.columns - 1 - 1e-3)
        y = ((y - self.low[1]) / self.cell).clamp(0, self.rows - 1 - 1e-3)
        column, row = x.detach().floor(), y.detach().floor()
        u, v = x - column, y - row
        index = (row * self.columns + column).int()
        both = u * v
        return F.embedding_bag(
            _side_by_side([index + corner for corner in self.corners.unbind()]),
            self.table,
            mode="sum",
            per_sample_weights=_side_by_side((1 - u - v + both, u - both, v - both, both)),
        )


def _side_by_side(columns: Sequence[Shaped[Tensor, " M"]]) -> Shaped[Tensor, "M K"]:
    """Like torch.stack, which takes several times as long for the last dimension."""
    table = columns[0].new_empty(len(columns[0]), len(columns))
    for i, column in enumerate(columns):
        table[:, i] = column
    return table


class Panorama(nn.Module):
    """A learned vector for each direction, interpolated around the circle."""

    def __init__(self, bins: int, channels: int) -> None:
        super().__init__()
        self.bins = bins
        self.table = nn.Parameter(0.1 * torch.randn(bins, channels))

    def forward(self, azimuth: Float[Tensor, " M"]) -> Float[Tensor, "M C"]:
        """Vectors of directions, rad."""
        place = azimuth / (2 * torch.pi) * self.bins
        before = place.detach().floor()
        share = place - before
        index = torch.stack((before, before + 1), dim=1).long() % self.bins
        weight = _side_by_side((1 - share, share))
        return F.embedding_bag(index, self.table, mode="sum", per_sample_weights=weight)


class MapDecoder(nn.Module):
    """D_p: normalised x, y, cosine and sine of the heading to tokens.

    The points start from the camera's geometry and are learned along with the maps.

    Args:
        system: With a camera; its configuration is x, y (m) and heading.
        grid: Rows and columns of the tokens to produce.
        token_dim: Their size.
        width: Of the layers between map and token.
    """

    FINE, COARSE = (0.04, 12), (0.2, 12)
    """Side of a cell (m) and numbers in it: of the course itself, and of more around it."""
    AROUND = 2.0
    """How far the coarse map reaches beyond the states' range, m."""
    BINS = 96

    scale: Tensor
    centre: Tensor

    def __init__(self, system: System, grid: Grid, token_dim: int, width: int = 96) -> None:
        super().__init__()
        if system.camera is None:
            raise ValueError(f"{system.name} has no camera that drives along; draw by transformer")
        x, y = system.configuration[:2]
        low, high = torch.tensor([x.low, y.low]), torch.tensor([x.high, y.high])
        self.register_buffer("scale", (high - low) / 2, persistent=False)
        self.register_buffer("centre", (high + low) / 2, persistent=False)
        points = look_points(system.camera, system.frame, grid)
        self.num_tokens, self.num_points, _ = points.shape
        self.points = nn.Parameter(points)
        self.fine = GroundMap(low, high, *self.FINE)
        self.coarse = GroundMap(low - self.AROUND, high + self.AROUND, *self.COARSE)
        self.panorama = Panorama(self.BINS, self.COARSE[1])
        channels = self.FINE[1] + self.COARSE[1]
        self.read = nn.Linear(self.num_points * channels + 2 * self.COARSE[1], width)
        self.token_bias = nn.Parameter(0.1 * torch.randn(self.num_tokens, width))
        self.layers = nn.Sequential(
            nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, token_dim)
        )

    def forward(
        self,
        configuration: Float[Tensor, "B 4"],
        every: int = 1,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "B N C"]:
        """Tokens of a configuration.

        Args:
            configuration: Normalised.
            every: 2 for every second token alone, and so on.
            dtype: Of the layers' products, if another one.
        """
        place = configuration[:, :2] * self.scale + self.centre
        cos, sin = configuration[:, 2, None], configuration[:, 3, None]
        points = self.points[::every]
        ahead, left = points.flatten(0, 1).unbind(1)
        x = (place[:, :1] + (cos * ahead - sin * left)).flatten()
        y = (place[:, 1:] + (sin * ahead + cos * left)).flatten()
        features = (self.fine(x, y), self.coarse(x, y), self._behind(points, cos, sin))
        read = self._read(features, self.coarse(*place.unbind(1)), self.token_bias[::every], dtype)
        tokens = through(self.layers, read, dtype)
        return tokens if dtype is None else tokens.float()

    def _read(
        self,
        features: Sequence[Tensor],
        here: Float[Tensor, "B C"],
        bias: Float[Tensor, "N W"],
        dtype: torch.dtype | None,
    ) -> Tensor:
        """``read`` of everything that the maps say, without putting it side by side first.

        Args:
            features: Of tokens: what fine and coarse map say of the points and what stands behind.
            here: What the map says of the place of the car itself, the same for all tokens.
            bias: Of the tokens.
            dtype: Of the products, if another one.
        """
        fine, coarse = self.fine.channels, self.coarse.channels
        ground, behind, own = self.read.weight.split(
            (self.num_points * (fine + coarse), coarse, coarse), dim=1
        )
        by_point = ground.unflatten(1, (self.num_points, -1)).split((fine, coarse), dim=2)
        read = F.linear(here, own, self.read.bias)[:, None].to(bias.dtype) + bias
        tokens = read.flatten(0, 1)
        for feature, weight in zip(features, (*by_point, behind), strict=True):
            weight = weight.flatten(1)
            add_product(tokens, feature.reshape(-1, weight.shape[1]), weight, dtype)
        return tokens.view_as(read)

    def _behind(
        self, points: Float[Tensor, "N K 2"], cos: Tensor, sin: Tensor
    ) -> Float[Tensor, "B N C"]:
        """What stands at the end of each token's line of sight."""
        ahead, left = points[:, -1].unbind(1)
        azimuth = torch.atan2(sin, cos) + torch.atan2(left, ahead)
        return self.panorama(azimuth.flatten()).view(*azimuth.shape, -1)
