"""A subset of the slots of a batch, and how to write to it without a loop."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor


class Slots:
    """Some of n slots.

    On the CPU their values are computed and written by index. On a GPU an index would make the
    host wait for the device, so there everything is computed for all slots and written where the
    mask is set. Both give the same numbers.

    Args:
        mask: (n,) bool.
        all: Whether every slot is meant, as far as the host knows without waiting.
    """

    def __init__(self, mask: Tensor, all: bool = False) -> None:
        self.mask = mask
        self.all = all

    @property
    def by_index(self) -> bool:
        """Whether to work on the rows alone: on the CPU."""
        return self.mask.device.type == "cpu"

    @classmethod
    def every(cls, count: int, device: torch.device) -> "Slots":
        """All of ``count`` slots."""
        return cls(torch.ones(count, dtype=torch.bool, device=device), all=True)

    @cached_property
    def rows(self) -> Tensor:
        """(m,) int64 indices; on a GPU asking for them waits for the device."""
        if self.mask.device.type == "cpu":  # numpy searches several times faster
            return torch.from_numpy(np.flatnonzero(self.mask.numpy()))
        return self.mask.nonzero().flatten()

    def take(self, values: Tensor) -> Tensor:
        """Rows of these slots (on a GPU: of all); a 0-d tensor stands for equal rows."""
        return values[self.rows] if self.by_index and values.ndim else values

    def put(self, target: Tensor, values: Tensor) -> Tensor:
        """Copy of ``target`` with values, as :meth:`take` returns them, in these slots."""
        if self.by_index and values.ndim:
            return target.index_put((self.rows,), values)
        return torch.where(self.mask.view(-1, *(1,) * (target.ndim - 1)), values, target)

    def clear(self, target: Tensor) -> Tensor:
        """Copy of ``target`` (n,) with zero in these slots."""
        return target.index_fill(0, self.rows, 0) if self.by_index else target * ~self.mask


__all__ = ["Slots"]
