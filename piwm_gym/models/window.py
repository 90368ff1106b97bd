"""Where in a picture from the side a system's bodies are: which patches are worth a look."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from piwm_gym.models.tokens import Grid
from piwm_gym.systems import SideView, System


class BodyWindow(nn.Module):
    """The patches of a frame that lie around a system's first body.

    Args:
        system: Without periodic dimensions.
        view: Its picture.
        grid: Rows and columns of patches.
        more: Rows and columns beyond those that the view's reach needs.
    """

    x: Tensor
    y: Tensor
    scale: Tensor
    centre: Tensor
    corner: Tensor
    step: Tensor
    middle: Tensor
    last: Tensor
    rows: Tensor
    columns: Tensor
    window: Tensor

    def __init__(self, system: System, view: SideView, grid: Grid, more: int = 0) -> None:
        super().__init__()
        self.system, self.grid = system, grid
        variables = system.configuration
        frame, (rows, columns) = system.frame, grid
        (top, bottom), (left, right) = frame.rows, frame.columns
        self.tall = (bottom - top) / rows / view.scale
        self.wide = (right - left) / columns / view.scale
        y = (view.origin[0] - top) / view.scale - self.tall * (torch.arange(rows) + 0.5)
        x = (left - view.origin[1]) / view.scale + self.wide * (torch.arange(columns) + 0.5)
        tall = min(rows, math.ceil(2 * view.reach[1] / self.tall) + 1 + more)
        wide = min(columns, math.ceil(2 * view.reach[0] / self.wide) + 1 + more)
        tables = {
            "scale": torch.tensor([v.range for v in variables]) / 2,
            "centre": torch.tensor([(v.high + v.low) / 2 for v in variables]),
            "x": x,
            "y": y,
            "corner": torch.stack((x[0], y[0])),
            "step": torch.tensor([self.wide, -self.tall]),
            "middle": torch.tensor([(wide - 1) / 2, (tall - 1) / 2]),
            "last": torch.tensor([columns - wide, rows - tall]).float(),
            "rows": torch.arange(tall),
            "columns": torch.arange(wide),
        }
        tables["window"] = (tables["rows"][:, None] * columns + tables["columns"]).flatten()
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def configuration(self, normalized: Float[Tensor, "B P"]) -> Float[Tensor, "B P"]:
        """In SI units."""
        return normalized * self.scale + self.centre

    def place(self, xy: Float[Tensor, "B 2"]) -> Float[Tensor, "B 2"]:
        """Column and row of places (m), fractions included."""
        return (xy - self.corner) / self.step

    @torch.no_grad()
    def first(
        self, place: Float[Tensor, "B 2"]
    ) -> tuple[Int64[Tensor, "B 1"], Int64[Tensor, "B 1"]]:
        """Column and row where the window around a place begins; at the edge if it is outside."""
        start = (place - self.middle).round()
        column, row = start.clamp(torch.zeros_like(self.last), self.last).long().split(1, dim=1)
        return column, row

    def patches(
        self, column: Int64[Tensor, "B 1"], row: Int64[Tensor, "B 1"]
    ) -> Int64[Tensor, "B M"]:
        """The window's patches, counted row by row."""
        return row * self.grid[1] + column + self.window


def chosen(patches: Float[Tensor, "B N K"], near: Int64[Tensor, "B M"]) -> Float[Tensor, "B M K"]:
    """What belongs to some of the patches."""
    first = torch.arange(len(near), device=near.device)[:, None] * patches.shape[1]
    return patches.flatten(0, 1)[near + first]
