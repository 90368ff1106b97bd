"""Random numbers that depend on a slot's seed and on nothing else.

A generator that is shared by a batch gives other numbers when the batch changes. Here every slot
has its own stream: a position that moves on by a constant, and a hash of it, computed with
integer arithmetic only and therefore the same bits on every device and for every batch size.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants of Vigna's public-domain ``splitmix64.c``).
"""

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor


def wrap(value: int) -> int:
    """The int64 with the bits of ``value`` modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


GOLDEN = wrap(0x9E3779B97F4A7C15)
MULTIPLIERS = (wrap(0xBF58476D1CE4E5B9), wrap(0x94D049BB133111EB))
MANTISSA_BITS = 24
"""float32 holds every multiple of 2^-24 in [0, 1) exactly."""
Whole = TypeVar("Whole", Tensor, np.ndarray)
"""int64."""


def _shift_right(x: Whole, bits: int) -> Whole:
    """Logical shift; that of signed numbers copies the sign bit."""
    if isinstance(x, np.ndarray):
        return (x.view(np.uint64) >> bits).view(np.int64)  # which torch cannot shift
    return (x >> bits) & (2 ** (64 - bits) - 1)


def mix64(x: Whole) -> Whole:
    """SplitMix64's output function: a bijection of 64 bits in which every bit stirs every other.

    Args:
        x: int64, read as unsigned bits.
    """
    x = (x ^ _shift_right(x, 30)) * MULTIPLIERS[0]
    x = (x ^ _shift_right(x, 27)) * MULTIPLIERS[1]
    return x ^ _shift_right(x, 31)


@cache
def _offsets(count: int, device: torch.device) -> Tensor:
    """(count,) distances from a stream's position to those of its next numbers."""
    steps = [wrap((i + 1) * GOLDEN) for i in range(count)]
    return torch.tensor(steps, dtype=torch.int64, device=device)


def draw(positions: Tensor, count: int) -> Tensor:
    """(n, count) numbers uniform on [0, 1), the next ones of streams at (n,) positions."""
    bits = mix64(positions + _offsets(count, positions.device)[:, None])
    return (_shift_right(bits, 64 - MANTISSA_BITS).float() * 2.0**-MANTISSA_BITS).t()


def draw_at_once(positions: Tensor, count: int) -> Tensor:
    """What :func:`draw` gives, on the CPU: numpy calls a dozen operations several times faster."""
    steps = _offsets(count, positions.device).numpy()
    bits = _shift_right(mix64(positions.numpy() + steps[:, None]), 64 - MANTISSA_BITS)
    numbers = bits.astype(np.float32)
    numbers *= 2.0**-MANTISSA_BITS
    return torch.from_numpy(numbers).t()


class RandomStreams:
    """One stream of uniform numbers per slot.

    Args:
        seeds: Seed of each slot, integers of any size (taken modulo 2^64).
        device: Where to compute; the numbers do not depend on it.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.positions = self._starts(seeds, device)

    @staticmethod
    def _starts(seeds: Sequence[int], device: torch.device | str) -> Tensor:
        """(n,) first positions; hashing the seeds keeps neighbouring ones apart."""
        signed = torch.tensor([wrap(int(seed)) for seed in seeds], dtype=torch.int64)
        return mix64(signed + GOLDEN).to(device)

    @classmethod
    def at(cls, positions: Tensor) -> "RandomStreams":
        """Streams that continue from a copy of another's ``positions``."""
        streams = cls([], positions.device)
        streams.positions = positions.clone()
        return streams

    def reseed(self, seeds: Sequence[int], mask: Tensor) -> None:
        """Start the streams of some slots anew.

        Args:
            seeds: (n,) seeds, of which those outside the mask are not used.
            mask: (n,) bool.
        """
        starts = self._starts(seeds, self.positions.device)
        self.positions = torch.where(mask, starts, self.positions)

    def uniform(self, count: int, mask: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The next numbers, uniform on [0, 1), multiples of 2^-24.

        Args:
            count: Numbers per slot.
            mask: (n,) bool, the slots whose streams move on; default all. The others' numbers
                are returned too, but will be returned again.
            rows: (m,) int64, alternative to ``mask``: compute these slots only.

        Returns:
            (n, count) float32, or (m, count) with ``rows``.
        """
        positions = self.positions if rows is None else self.positions[rows]
        advance = wrap(count * GOLDEN)
        if rows is not None:
            self.positions = self.positions.index_copy(0, rows, positions + advance)
        elif mask is not None:
            self.positions = positions + advance * mask
        else:
            self.positions = positions + advance
        return (draw_at_once if positions.device.type == "cpu" else draw)(positions, count)


__all__ = ["GOLDEN", "RandomStreams", "draw", "mix64", "wrap"]
