"""Colours, and four channels in one integer: one multiplication scales them all."""

import colorsys

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Packed = NDArray[np.uint64]

MASK = np.uint64(0x00FF00FF00FF00FF)
EIGHT = np.uint64(8)
ONE = np.uint64(256)


def pack(pixels: NDArray[np.uint8]) -> Packed:
    """Pixels (..., 3) as (...) integers of 16 bits per channel."""
    wide = np.zeros((*pixels.shape[:-1], 4), np.uint16)
    wide[..., :3] = pixels
    return wide.view(np.uint64)[..., 0]


def unpack(packed: Packed) -> NDArray[np.uint16]:
    """Channels (..., 3) of packed pixels; values are at most 255."""
    return np.ascontiguousarray(packed)[..., None].view(np.uint16)[..., :3]


def mix(first: Packed, second: Packed | np.uint64, share: Packed | np.uint64) -> Packed:
    """Weighted mean of packed pixels.

    Args:
        first: (...) packed.
        second: (...) packed.
        share: (...) weight of the second in 0..256.
    """
    mean = first * (ONE - share)
    mean += second * share
    mean >>= EIGHT
    mean &= MASK
    return mean


def hsv(hue: float, saturation: float, value: float) -> Colour:
    """Colour of a hue (any real number, period 1), saturation and value in 0..1."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1.0, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def shade(colour: Colour, factor: float) -> Colour:
    """A darker or lighter colour."""
    red, green, blue = (min(255, round(channel * factor)) for channel in colour)
    return red, green, blue


__all__ = ["Colour", "Packed", "hsv", "mix", "pack", "shade", "unpack"]
