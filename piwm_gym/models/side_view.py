"""Patches of a frame seen from the side, from where the system's bodies are.

A patch with an edge in it is a high-frequency function of the configuration, but a smooth one of
where the body lies *from the patch*: that is what the layers see here, the same layers for all
patches. Only the patches within a body's reach are drawn anew; the rest is a learned background
and, where there is a scene, what the skyline says.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from piwm_gym.models.tokens import Grid
from piwm_gym.models.window import BodyWindow, chosen
from piwm_gym.systems import SideView, System

SKYLINE_POINTS = 5
"""Heights across a patch that say how the ground cuts it."""
BEYOND = 3.0
"""Ground further away than so many patches looks the same, whatever its distance."""
BANDWIDTH = 8.0
"""Initial standard deviation of the angular frequencies, per reach."""


class Painting(NamedTuple):
    """Patches of a batch of frames.

    Attributes:
        still: (B, N, S) of all places, or (1, N, S) if they are the same in all frames.
        near: (B, M) places that look different, or None.
        drawn: (B, M, S) what is there instead.
    """

    still: Tensor
    near: Tensor | None = None
    drawn: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Painting":
        """The painting with a function applied to its numbers, which it may overwrite."""
        drawn = None if self.drawn is None else function(self.drawn)
        return Painting(function(self.still), self.near, drawn)

    def patches(self, batch: int) -> Shaped[Tensor, "B N S"]:
        """All patches as they look."""
        still = self.still.expand(batch, -1, -1)
        if self.near is None or self.drawn is None:
            return still
        count = still.shape[1]
        first = torch.arange(batch, device=self.near.device)[:, None] * count
        places = (self.near + first).flatten()
        flat = still.reshape(batch * count, -1)
        return flat.index_copy(0, places, self.drawn.flatten(0, 1)).unflatten(0, (batch, count))


class SideViewPainter(nn.Module):
    """Normalised configurations to patches.

    Args:
        system: Without periodic dimensions.
        view: Its picture.
        grid: Rows and columns of patches.
        size: Numbers of a patch.
        width: Of the layers that draw bodies.
        frequencies: Sinusoidal features of where they are.
    """

    def __init__(
        self, system: System, view: SideView, grid: Grid, size: int, width: int, frequencies: int
    ) -> None:
        super().__init__()
        self.system, self.reach = system, view.reach
        self.around = BodyWindow(system, view, grid)
        rows, columns = grid
        points = SKYLINE_POINTS if system.scene_variables else 0
        bodies = system.poses(self.around.centre[None]).shape[-1]
        self.background = nn.Parameter(torch.zeros(rows * columns, size))
        self.ground = _layers(points, width // 2, size) if points else None
        self.frequencies = nn.Parameter(BANDWIDTH * torch.randn(4 * bodies, frequencies))
        self.look = nn.Linear(4 * bodies + 2 * frequencies + points, width)
        self.place = nn.Parameter(torch.zeros(rows * columns, width))
        self.body = nn.Sequential(
            nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, size)
        )

    def forward(self, normalized: Float[Tensor, "B P"]) -> Painting:
        """Patches as differences from an empty frame: all of them, and those that bodies change."""
        around = self.around
        configuration = around.configuration(normalized)
        poses = self.system.poses(configuration)
        column, row = around.first(around.place(poses[:, :2, 0]))
        near = around.patches(column, row)
        seen = self._seen(poses, around.x[column + around.columns], around.y[row + around.rows])
        if self.ground is None:
            still = self.background[None]
            behind = self.background[near]
        else:
            skyline = self._skyline(configuration[:, len(self.system.visible) :])
            still = self.background + self.ground(skyline)
            seen += (chosen(skyline, near),)
            behind = chosen(still, near)
        look = self.look(torch.cat(seen, dim=-1))
        drawn = self.body(look.add_(self.place[near]))
        return Painting(still, near, drawn.add_(behind))

    def _seen(
        self, poses: Float[Tensor, "B 3 K"], x: Float[Tensor, "B W"], y: Float[Tensor, "B H"]
    ) -> tuple[Float[Tensor, "B M F"], ...]:
        """Where patches lie in the bodies' own coordinates, which end at 1 far away.

        Args:
            poses: Of the bodies.
            x: Of the columns of patches.
            y: Of the rows.
        """
        reach = max(self.reach)
        across = (x[:, None, :, None] - poses[:, 0, None, None]) / reach
        up = (y[:, :, None, None] - poses[:, 1, None, None]) / reach
        angle = poses[:, 2, None]
        cos, sin = angle.cos(), angle.sin()
        turned = cos[:, None], sin[:, None]
        along = (turned[0] * across + turned[1] * up).flatten(1, 2)
        aside = (turned[0] * up - turned[1] * across).flatten(1, 2)
        shrink = torch.rsqrt(1 + along**2 + aside**2)
        plain = torch.cat(
            (along * shrink, aside * shrink, cos.expand_as(along), sin.expand_as(along)), dim=-1
        )
        phase = plain @ self.frequencies
        return plain, phase.sin(), phase.cos()

    def _skyline(self, scene: Float[Tensor, "B S"]) -> Float[Tensor, "B N K"]:
        """How high patches lie above points of the ground below them, in patches."""
        around = self.around
        across = torch.linspace(-0.5, 0.5, SKYLINE_POINTS, device=around.x.device)
        places = (around.x[:, None] + around.wide * across).flatten()
        heights = self.system.skyline(scene, places).unflatten(1, (1, len(around.x), -1))
        above = (around.y[:, None, None] - heights) / around.tall
        return above.clamp(-BEYOND, BEYOND).flatten(1, 2)


def _layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )
