"""Patches of a frame seen from the side, from where the system's bodies are.

A patch with an edge in it is a high-frequency function of the configuration, but a smooth one of
where the body lies *from the patch*: that is what the layers see here, the same layers for all
patches. Only the patches within a body's reach are drawn anew; the rest is a learned background
and, where there is a scene, what the skyline says.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from piwm_gym.models.precision import add_product, through
from piwm_gym.models.tokens import Grid
from piwm_gym.models.window import BodyWindow
from piwm_gym.systems import SideView, System

SKYLINE_POINTS = 5
"""Heights across a patch that say how the ground cuts it."""
BEYOND = 3.0
"""Ground further away than so many patches looks the same, whatever its distance."""
BANDWIDTH = 8.0
"""Initial standard deviation of the angular frequencies, per reach."""


class SideViewPainter(nn.Module):
    """Normalised configurations to patches: those of the scene, and those that bodies change.

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
            nn.ReLU(inplace=True),
            nn.Linear(width, width),
            nn.ReLU(inplace=True),
            nn.Linear(width, size),
        )

    def still(
        self, normalized: Float[Tensor, "B P"], base: Float[Tensor, " S"], scale: float = 1.0
    ) -> Float[Tensor, "K N S"]:
        """All patches as they look without the bodies: they depend on the scene alone.

        K is B, or 1 for systems without a scene.

        Args:
            normalized: Configurations.
            base: What the patches are told from.
            scale: By which all is multiplied.
        """
        behind = (self.background + base) * scale
        if self.ground is None:
            return behind[None]
        scene = self._scene(self.around.configuration(normalized))
        heights = self._heights(scene, self.around.x.expand(len(scene), -1))
        skyline = self._skyline(self.around.y[None], heights)
        return onto(behind.repeat(len(skyline), 1, 1), self.ground, skyline, scale)

    def drawn(
        self,
        normalized: Float[Tensor, "B P"],
        base: Float[Tensor, " S"],
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> tuple[Int64[Tensor, "B M"], Float[Tensor, "B M S"]]:
        """The places that bodies change, and what is there.

        Args:
            normalized: Configurations.
            base: As for :meth:`still`.
            scale: Likewise.
            dtype: Of the products after the first one, which sees where the bodies are.
        """
        around = self.around
        configuration = around.configuration(normalized)
        poses = self.system.poses(configuration)
        column, row = around.first(around.place(poses[:, :2, 0]))
        columns, rows = column + around.columns, row + around.rows
        near = around.patches(column, row)
        x, y = around.x[columns], around.y[rows]
        seen = self._seen(poses, x, y)
        patches = F.embedding(near, (self.background + base) * scale)  # quicker than an index
        if self.ground is not None:
            skyline = self._skyline(y, self._heights(self._scene(configuration), x))
            seen += (skyline,)
            patches = onto(patches, self.ground, skyline, scale, dtype)
        look = self.look(torch.cat(seen, dim=-1))
        return near, onto(
            patches, self.body, look.add_(F.embedding(near, self.place)), scale, dtype
        )

    def _scene(self, configuration: Float[Tensor, "B P"]) -> Float[Tensor, "B S"]:
        return configuration[:, len(self.system.visible) :]

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

    def _heights(
        self, scene: Float[Tensor, "B S"], x: Float[Tensor, "B C"]
    ) -> Float[Tensor, "B C K"]:
        """Of the ground at points across columns of patches, whose middles are at x, m."""
        across = torch.linspace(-0.5, 0.5, SKYLINE_POINTS, device=x.device)
        places = (x[..., None] + self.around.wide * across).flatten(1)
        return self.system.skyline(scene, places).unflatten(1, (x.shape[1], -1))

    def _skyline(
        self, y: Float[Tensor, "A R"], heights: Float[Tensor, "B C K"]
    ) -> Float[Tensor, "B M K"]:
        """How high patches lie above points of the ground below them, in patches.

        Args:
            y: Of the rows of patches, m.
            heights: Of the ground at the columns of patches, m.
        """
        above = (y[:, :, None, None] - heights[:, None]) / self.around.tall
        return above.clamp(-BEYOND, BEYOND).flatten(1, 2)


def onto(
    patches: Float[Tensor, "B N S"],
    layers: nn.Sequential,
    seen: Tensor,
    scale: float,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "B N S"]:
    """Add what layers make of what is seen, in the matrix product of the last one.

    Args:
        patches: Written to.
        layers: A linear one comes last.
        seen: (B, N, F) their inputs.
        scale: By which what they make is multiplied.
        dtype: Of their products.
    """
    *before, last = layers
    assert isinstance(last, nn.Linear)
    seen = through(before, seen, dtype).flatten(0, 1)
    sums = patches.add_(last.bias, alpha=scale).flatten(0, 1)
    return add_product(sums, seen, last.weight, dtype, scale).view_as(patches)


def _layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, outputs),
    )
