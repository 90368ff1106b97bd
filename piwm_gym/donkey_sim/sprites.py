"""Drawings of the things beside the road, each in two colours, with smaller copies."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from piwm_gym.donkey_sim.colours import Colour, pack, shade

TEXELS = 96
OVERSAMPLING = 3
Draw = ImageDraw.ImageDraw
Place = Callable[..., list[tuple[float, float]]]


@dataclass(frozen=True)
class Kind:
    """A kind of thing: its size in m, the radius of what stops a car, and how it is drawn."""

    height: float
    width: float
    radius: float
    draw: Callable[[Draw, Place, Colour, Colour], None]


@dataclass(frozen=True)
class Level:
    """One size of a drawing: packed colours (h, w), and opacity (h, w) uint64 in 0..256."""

    colour: NDArray[np.uint64]
    opacity: NDArray[np.uint64]


def _tree(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.07, 0, 0.07, 0, 0.05, 0.5, -0.05, 0.5), fill=(92, 64, 44))
    for x, y, r in ((-0.2, 0.55, 0.25), (0.2, 0.55, 0.25), (0, 0.72, 0.3)):
        draw.ellipse(_disc(at, x, y, r), fill=shade(main, 0.8))
    draw.ellipse(_disc(at, -0.06, 0.74, 0.21), fill=main)
    for x, y in ((-0.25, 0.55), (0.2, 0.5), (0.1, 0.8), (-0.1, 0.65)):
        draw.ellipse(_disc(at, x, y, 0.055), fill=second)


def _conifer(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.06, 0, 0.06, 0, 0.06, 0.2, -0.06, 0.2), fill=(80, 56, 40))
    for i, (low, high, side) in enumerate(((0.12, 0.55, 0.46), (0.38, 0.78, 0.36))):
        draw.polygon(at(-side, low, side, low, 0, high), fill=shade(main, 0.75 + 0.15 * i))
    draw.polygon(at(-0.25, 0.64, 0.25, 0.64, 0, 1), fill=second)


def _post(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    for i in range(5):
        low, high = i / 5, (i + 1) / 5
        colour = main if i % 2 else second
        draw.polygon(at(-0.4, low, 0.4, low, 0.4, high, -0.4, high), fill=colour)
    draw.polygon(at(0.2, 0, 0.4, 0, 0.4, 1, 0.2, 1), fill=shade(main, 0.6))


def _cone(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.5, 0, 0.5, 0, 0.5, 0.1, -0.5, 0.1), fill=shade(main, 0.7))
    draw.polygon(at(-0.36, 0.1, 0.36, 0.1, 0.06, 1, -0.06, 1), fill=main)
    draw.polygon(at(-0.26, 0.38, 0.26, 0.38, 0.16, 0.68, -0.16, 0.68), fill=second)


def _tent(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.5, 0, 0.5, 0, 0, 1), fill=main)
    draw.polygon(at(0.5, 0, 0, 1, 0.2, 0), fill=shade(main, 0.7))
    draw.polygon(at(-0.2, 0, 0.1, 0, -0.03, 0.7), fill=second)


def _barn(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.42, 0, 0.42, 0, 0.42, 0.55, -0.42, 0.55), fill=main)
    draw.polygon(at(-0.5, 0.52, 0.5, 0.52, 0.3, 1, -0.3, 1), fill=second)
    draw.polygon(at(-0.14, 0, 0.14, 0, 0.14, 0.38, -0.14, 0.38), fill=shade(second, 0.5))
    for x in (-0.32, 0.2):
        draw.polygon(at(x, 0.25, x + 0.12, 0.25, x + 0.12, 0.42, x, 0.42), fill=(240, 235, 200))


def _flag(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.46, 0, -0.36, 0, -0.36, 1, -0.46, 1), fill=(225, 225, 225))
    draw.polygon(at(-0.36, 0.55, 0.48, 0.6, 0.48, 0.94, -0.36, 0.98), fill=main)
    draw.polygon(at(-0.36, 0.55, 0.48, 0.6, -0.36, 0.8), fill=second)


def _windmill(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.22, 0, 0.22, 0, 0.12, 0.62, -0.12, 0.62), fill=main)
    draw.polygon(at(0.05, 0, 0.22, 0, 0.12, 0.62, 0.04, 0.62), fill=shade(main, 0.7))
    for x, y in ((0.46, 0.9), (-0.46, 0.42), (0.4, 0.36), (-0.4, 0.97)):
        draw.polygon(at(-0.03, 0.66, x - 0.07, y, x + 0.07, y, 0.03, 0.66), fill=second)
    draw.ellipse(_disc(at, 0, 0.66, 0.07), fill=shade(second, 0.6))


def _mushroom(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.16, 0, 0.16, 0, 0.1, 0.6, -0.1, 0.6), fill=(238, 228, 205))
    draw.pieslice(_box(at, -0.5, 0.1, 0.5, 1.0), 180, 360, fill=main)
    for x, y in ((-0.27, 0.66), (0.0, 0.82), (0.28, 0.66)):
        draw.ellipse(_disc(at, x, y, 0.08), fill=second)


def _crate(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.5, 0, 0.5, 0, 0.5, 1, -0.5, 1), fill=main)
    draw.polygon(at(-0.5, 0, -0.34, 0, 0.5, 0.84, 0.5, 1, 0.34, 1, -0.5, 0.16), fill=second)
    for low in (0.0, 0.88):
        band = at(-0.5, low, 0.5, low, 0.5, low + 0.12, -0.5, low + 0.12)
        draw.polygon(band, fill=shade(main, 0.6))


def _column(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    draw.polygon(at(-0.36, 0, 0.36, 0, 0.36, 1, -0.36, 1), fill=main)
    draw.polygon(at(0.12, 0, 0.36, 0, 0.36, 1, 0.12, 1), fill=shade(main, 0.75))
    for low in (0.0, 0.42, 0.92):
        band = at(-0.46, low, 0.46, low, 0.46, low + 0.08, -0.46, low + 0.08)
        draw.polygon(band, fill=second)


def _arch(draw: Draw, at: Place, main: Colour, second: Colour) -> None:
    for x in (-0.5, 0.44):
        draw.polygon(at(x, 0, x + 0.06, 0, x + 0.06, 0.98, x, 0.98), fill=main)
    for i in range(12):
        for row in range(2):
            x, y = -0.5 + i / 12, 0.74 + 0.13 * row
            square = at(x, y, x + 1 / 12, y, x + 1 / 12, y + 0.13, x, y + 0.13)
            draw.polygon(square, fill=second if (i + row) % 2 else (28, 28, 32))


def _box(at: Place, left: float, low: float, right: float, high: float) -> list[float]:
    (x0, y0), (x1, y1) = at(left, high, right, low)
    return [x0, y0, x1, y1]


def _disc(at: Place, x: float, y: float, radius: float) -> list[float]:
    """A disc, its radius a share of the height whatever the drawing's proportions."""
    (left, top), (_, bottom) = at(x, y + radius, x, y - radius)
    half = (bottom - top) / 2
    return [left - half, top, left + half, bottom]


KINDS: dict[str, Kind] = {
    "tree": Kind(1.25, 1.2, 0.08, _tree),
    "conifer": Kind(1.3, 0.85, 0.08, _conifer),
    "post": Kind(0.8, 0.16, 0.07, _post),
    "cone": Kind(0.34, 0.3, 0.1, _cone),
    "tent": Kind(0.6, 0.8, 0.25, _tent),
    "barn": Kind(0.95, 1.3, 0.4, _barn),
    "flag": Kind(1.2, 0.7, 0.04, _flag),
    "windmill": Kind(1.6, 1.2, 0.15, _windmill),
    "mushroom": Kind(0.5, 0.5, 0.1, _mushroom),
    "crate": Kind(0.55, 0.55, 0.25, _crate),
    "column": Kind(1.8, 0.4, 0.16, _column),
    "arch": Kind(1.05, 1.75, 0.0, _arch),
}


@lru_cache(maxsize=256)
def draw_sprite(kind: str, main: Colour, second: Colour) -> tuple[Level, ...]:
    """Drawings of a thing, each half as large as the one before.

    Args:
        kind: A key of :data:`KINDS`.
        main: Its colour.
        second: Of its decoration.
    """
    spec = KINDS[kind]
    height = TEXELS
    width = max(8, round(TEXELS * spec.width / spec.height))
    size = width * OVERSAMPLING, height * OVERSAMPLING
    picture = Image.new("RGBA", size, (*shade(main, 0.8), 0))

    def at(*numbers: float) -> list[tuple[float, float]]:
        """Pixels of points: x in -0.5..0.5 of the width, y upwards in 0..1 of the height."""
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [((0.5 + x * 0.96) * size[0], (1 - y * 0.98) * size[1]) for x, y in pairs]

    spec.draw(ImageDraw.Draw(picture), at, main, second)
    levels = []
    while True:
        small = picture.resize((max(width, 2), max(height, 2)), Image.Resampling.BOX)
        pixels = np.asarray(small)
        opacity = pixels[..., 3].astype(np.uint64)
        opacity += opacity >> np.uint64(7)
        opacity[:, [0, -1]] = 0 if width > 4 else opacity[:, [0, -1]]
        levels.append(Level(pack(pixels[..., :3]), opacity))
        if height <= 3:
            return tuple(levels)
        width, height = width // 2, height // 2


__all__ = ["KINDS", "Kind", "Level", "draw_sprite"]
