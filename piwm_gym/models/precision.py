"""Matrix products in a type of less precision, where the processor has instructions for it."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def through(layers: Iterable[nn.Module], x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """What layers make of numbers, one after the other.

    Args:
        layers: Some of them linear.
        x: Inputs of the first one.
        dtype: Of the linear layers' products and of what they give; None: as they are.
    """
    for layer in layers:
        if dtype is None or not isinstance(layer, nn.Linear):
            x = layer(x)
        else:
            x = F.linear(x.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
    return x


def add_product(
    sums: Tensor, x: Tensor, weight: Tensor, dtype: torch.dtype | None, scale: float = 1.0
) -> Tensor:
    """Add ``scale`` times the product of inputs (N, F) and a weight (S, F) to (N, S) sums.

    Mixed precision does not reach products in place, so ``x`` is brought to the type of the sums.
    """
    if dtype is None:
        return sums.addmm_(x.to(sums.dtype), weight.T, alpha=scale)
    return sums.add_(F.linear(x.to(dtype), weight.to(dtype)), alpha=scale)


__all__ = ["add_product", "through"]
