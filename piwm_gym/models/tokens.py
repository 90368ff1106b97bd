"""Merging neighbouring tokens of a grid, and undoing it. Tokens run row by row."""

import math

from jaxtyping import Shaped
from torch import Tensor

Grid = tuple[int, int]
"""Rows and columns of a grid of tokens."""


def squarest(count: int) -> Grid:
    """The grid of ``count`` tokens whose sides differ least."""
    rows = next(r for r in range(math.isqrt(count), 0, -1) if count % r == 0)
    return rows, count // rows


def merged(grid: Grid, merge: int) -> Grid:
    """Grid of the cells of merge x merge tokens.

    Raises:
        ValueError: The cells do not tile the grid.
    """
    rows, columns = grid
    if merge < 1 or rows % merge or columns % merge:
        raise ValueError(
            f"merge is {merge}, the grid has {rows} x {columns} tokens; expected a number that "
            "divides both"
        )
    return rows // merge, columns // merge


def merge_tokens(
    tokens: Shaped[Tensor, "B N C"], grid: Grid, merge: int
) -> Shaped[Tensor, "B M D"]:
    """Concatenate the tokens of each merge x merge cell of the grid."""
    batch, _, channels = tokens.shape
    rows, columns = merged(grid, merge)
    cells = tokens.view(batch, rows, merge, columns, merge, channels)
    return cells.transpose(2, 3).reshape(batch, rows * columns, merge**2 * channels)


def unmerge_tokens(
    cells: Shaped[Tensor, "B M D"], grid: Grid, merge: int
) -> Shaped[Tensor, "B N C"]:
    """Inverse of :func:`merge_tokens`; ``grid`` is the one of its result."""
    batch, _, width = cells.shape
    (rows, columns), channels = merged(grid, merge), width // merge**2
    tokens = cells.view(batch, rows, columns, merge, merge, channels)
    return tokens.transpose(2, 3).reshape(batch, grid[0] * grid[1], channels)
