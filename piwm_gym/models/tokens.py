"""Merging neighbouring tokens of a square grid, and undoing it."""

from jaxtyping import Float
from torch import Tensor


def merge_tokens(tokens: Float[Tensor, "B N C"], merge: int) -> Float[Tensor, "B M D"]:
    """Concatenate the tokens of each merge x merge cell of the square grid."""
    batch, count, channels = tokens.shape
    side = round(count**0.5) // merge
    cells = tokens.view(batch, side, merge, side, merge, channels)
    return cells.transpose(2, 3).reshape(batch, side**2, merge**2 * channels)


def unmerge_tokens(cells: Float[Tensor, "B M D"], merge: int) -> Float[Tensor, "B N C"]:
    """Inverse of :func:`merge_tokens`."""
    batch, count, width = cells.shape
    side, channels = round(count**0.5), width // merge**2
    tokens = cells.view(batch, side, side, merge, merge, channels)
    return tokens.transpose(2, 3).reshape(batch, (side * merge) ** 2, channels)
