"""The ground as one picture from above, and the panorama around it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from piwm_gym.courses import Course
from piwm_gym.donkey_sim.colours import Packed, hsv, pack
from piwm_gym.donkey_sim.scenery import (
    bounds,
    fields,
    place_things,
    scenery_rng,
    sections,
    theme_of,
)
from piwm_gym.donkey_sim.sprites import KINDS

TEXEL = 0.0125
COARSE = 0.05
LEVELS = 6
HAZE = (196, 208, 218)
INDOOR_HAZE = (150, 146, 140)
FADE = 1.2
AZIMUTHS = 1440
ELEVATIONS = 128
TOP = 0.9

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Texture:
    """The ground at several resolutions, one after the other in one array.

    Attributes:
        texels: Packed colours of all levels.
        starts: (L,) index of each level's first texel.
        widths: (L,) texels per row.
        heights: (L,) rows; the first row has the smallest y.
        origin: m, lower corner.
    """

    texels: Packed
    starts: NDArray[np.int64]
    widths: NDArray[np.int64]
    heights: NDArray[np.int64]
    origin: tuple[float, float]


def paint_ground(course: Course) -> NDArray[np.uint8]:
    """(rows, columns, 3) picture of the ground; the first row has the smallest y."""
    low, high = bounds(course)
    cells = np.round((high - low) / COARSE).astype(int)
    x = low[0] + (np.arange(cells[0]) + 0.5) * COARSE
    y = low[1] + (np.arange(cells[1]) + 0.5) * COARSE
    points = np.stack(np.meshgrid(x, y), -1)
    arc, offset = course.project(points)
    rng = scenery_rng(course, 4)

    ground = np.stack([_enlarge(c) for c in np.moveaxis(_fields(course, points), -1, 0)], -1)
    shape = ground.shape[:2]
    ground *= _grain(rng, shape, 0.09)[..., None]
    lateral = _enlarge(offset - course.road_offset)
    angle = arc * (2 * np.pi / course.length)
    turned = np.arctan2(_enlarge(np.sin(angle)), _enlarge(np.cos(angle)))
    along = (turned % (2 * np.pi)) * (course.length / (2 * np.pi))
    _paint_road(ground, course, lateral, along.astype(np.float32), rng)
    _paint_shadows(ground, course)
    _fade(ground, _outer_colour(course))
    return np.clip(ground, 0, 255).astype(np.uint8)


def _enlarge(values: NDArray[np.floating]) -> Floats:
    """Values at the centres of coarse cells, interpolated to texels."""
    scale = round(COARSE / TEXEL)
    size = values.shape[1] * scale, values.shape[0] * scale
    return np.array(
        Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    )


def _fields(course: Course, points: NDArray[np.floating]) -> NDArray[np.floating]:
    centres, colours = fields(course)
    bend = 0.12 * np.sin(4.1 * points[..., ::-1]) + 0.06 * np.sin(9.7 * points[..., ::-1] + 1)
    squared = np.full(points.shape[:2], np.inf)
    nearest = np.zeros(points.shape[:2], np.int64)
    for i, centre in enumerate(centres):
        gap = points + bend - centre
        distance = gap[..., 0] ** 2 + gap[..., 1] ** 2
        closer = distance < squared
        squared[closer], nearest[closer] = distance[closer], i
    return colours[nearest]


def _grain(rng: np.random.Generator, shape: tuple[int, int], strength: float) -> Floats:
    """Brightness that varies on the scales of a tuft and of a blade."""
    size = shape[1], shape[0]
    coarse = rng.normal(1.0, strength, (shape[0] // 12 + 1, shape[1] // 12 + 1))
    wide = Image.fromarray(coarse.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    fine: Floats = rng.standard_normal(shape, np.float32) * np.float32(strength / 2)
    return np.asarray(wide) + fine


def _paint_road(
    ground: Floats, course: Course, lateral: Floats, along: Floats, rng: np.random.Generator
) -> None:
    asphalt, kerbs = sections(course)
    edge, half = np.abs(lateral), course.road_half_width
    part = np.minimum((along / course.length * len(asphalt)).astype(int), len(asphalt) - 1)

    kerb = (edge > half) & (edge < half + 0.12)
    block = (along[kerb] / 0.3).astype(int) % 2
    within = along[kerb] / course.length * len(asphalt) - part[kerb]
    ground[kerb] = kerbs[part[kerb], block] * (1.08 - 0.5 * within[:, None])
    road = edge <= half
    grain = 1 + 0.04 * rng.standard_normal(int(road.sum()), np.float32)
    ground[road] = asphalt[part[road]] * grain[:, None]
    ground[road & (edge > half - 0.07) & (edge < half - 0.025)] = (236, 236, 230)
    dashed = (part % 2 == 0) | (along % 0.6 < 0.38)
    ground[(edge < 0.028) & dashed] = (236, 190, 50)

    stripes = part % 4 == 2  # zebra crossings
    start = part * (course.length / len(asphalt))
    crossing = stripes & road & (along - start > 0.5) & (along - start < 0.85) & (edge < half - 0.1)
    ground[crossing & (lateral % 0.16 < 0.08)] = (228, 228, 224)
    line = road & (along < 0.24)
    squares = ((along / 0.12).astype(int) + np.floor(lateral / 0.12).astype(int)) % 2
    ground[line] = np.where(squares[line][:, None] == 1, 238, 30)


def _paint_shadows(ground: Floats, course: Course) -> None:
    low, _ = bounds(course)
    for thing in place_things(course):
        kind = KINDS[thing.kind]
        if not kind.radius:
            continue
        half = 0.32 * kind.width + 0.03
        column, row = (thing.x - low[0]) / TEXEL, (thing.y - low[1]) / TEXEL
        reach = int(half / TEXEL)
        y0, x0 = max(int(row) - reach, 0), max(int(column) - reach, 0)
        patch = ground[y0 : int(row) + reach, x0 : int(column) + reach]
        dy = np.arange(patch.shape[0])[:, None] + y0 - row
        dx = np.arange(patch.shape[1]) + x0 - column
        patch *= np.where(np.hypot(dx, dy) < reach, 0.6, 1.0)[..., None]


def _outer_colour(course: Course) -> tuple[int, int, int]:
    return (112, 134, 92) if theme_of(course).outdoors else (120, 116, 110)


def _fade(ground: Floats, outer: tuple[int, int, int]) -> None:
    """Let the picture end in one colour, which then goes on to the horizon."""
    rows, columns = ground.shape[:2]
    inside_y = np.minimum(np.arange(rows), np.arange(rows)[::-1])[:, None]
    inside_x = np.minimum(np.arange(columns), np.arange(columns)[::-1])
    share = np.clip(np.minimum(inside_y, inside_x) * (TEXEL / FADE), 0, 1)[..., None]
    ground *= share
    ground += (1 - share) * np.array(outer)


def build_texture(course: Course) -> Texture:
    """The ground's picture, and copies of it, each half as fine as the one before."""
    picture = Image.fromarray(paint_ground(course))
    levels = [np.asarray(picture.reduce(2**level) if level else picture) for level in range(LEVELS)]
    sizes = np.array([level.shape[:2] for level in levels], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes.prod(1))])[:-1]
    texels = np.concatenate([pack(level).reshape(-1) for level in levels])
    low, _ = bounds(course)
    return Texture(texels, starts, sizes[:, 1], sizes[:, 0], (float(low[0]), float(low[1])))


def paint_panorama(course: Course) -> NDArray[np.uint8]:
    """(ELEVATIONS, AZIMUTHS, 3) view all around; rows from the horizon up to ``TOP`` rad.

    Azimuths run to the right, as seen from the car; the first is the direction of x.
    """
    rng = scenery_rng(course, 5)
    azimuth = np.arange(AZIMUTHS) * (2 * np.pi / AZIMUTHS)
    elevation = ((np.arange(ELEVATIONS) + 0.5) * (TOP / ELEVATIONS))[:, None]
    if theme_of(course).outdoors:
        return _landscape(rng, azimuth, elevation)
    return _walls(azimuth, elevation)


def _wave(
    rng: np.random.Generator, azimuth: NDArray[np.floating], top: int
) -> NDArray[np.floating]:
    """A random periodic curve with mean 0 and standard deviation 1."""
    total = np.zeros_like(azimuth)
    for frequency in range(1, top):
        phase = rng.uniform(0, 2 * np.pi)
        total += rng.normal() / np.sqrt(frequency) * np.sin(frequency * azimuth + phase)
    return (total - total.mean()) / total.std()


def _landscape(
    rng: np.random.Generator, azimuth: NDArray[np.floating], elevation: NDArray[np.floating]
) -> NDArray[np.uint8]:
    high = np.clip(elevation / 0.55, 0, 1)[..., None]
    sun = np.exp(-(((azimuth - 1.0 + np.pi) % (2 * np.pi) - np.pi) ** 2) / 0.7)[None, :, None]
    dusk = (0.5 + 0.5 * np.cos(azimuth - 3.6))[None, :, None] * (1 - high)
    sky = np.array(HAZE) * (1 - high) + np.array((96, 152, 214)) * high
    sky = sky + dusk * np.array((10, -50, 24)) + sun * (1 - high) * np.array((56, 22, -90))
    for centre, height, base, light in ((0, 0.2, 0.10, 0.5), (1, 0.15, 0.05, 0.85)):
        curve = np.clip(base + height * 0.4 * (0.8 + _wave(rng, azimuth, 16)), 0.03, 0.3)
        hues = azimuth / (2 * np.pi) + 0.08 + 0.45 * centre
        colours = np.array([hsv(hue, 0.55, 0.35 + 0.35 * light) for hue in hues], float)
        misty = 0.35 * (1 - centre)
        colours = colours * (1 - misty) + np.array(HAZE) * misty
        hill = elevation < curve
        sky[hill] = (colours * np.ones((len(elevation), 1, 1)))[hill]
        if centre == 0:
            snow = hill & (elevation > 0.17)
            sky[snow] = (238, 240, 246)
    return np.clip(sky, 0, 255).astype(np.uint8)


def _walls(azimuth: NDArray[np.floating], elevation: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Coloured panels with windows under a dark ceiling with lamps."""
    count = 18
    panel = (azimuth * count / (2 * np.pi)).astype(int)
    colours = np.array([hsv(i / count, 0.55, 0.5 + 0.3 * (i % 2)) for i in range(count)], float)
    room = colours[panel] * np.ones((len(elevation), 1, 1))
    across = azimuth * count / (2 * np.pi) % 1
    glass = (
        (elevation > 0.12) & (elevation < 0.22) & (np.abs(across - 0.5) < 0.1 + 0.05 * (panel % 5))
    )
    room[glass] = (226, 236, 242)
    room[np.broadcast_to(elevation > 0.3, glass.shape)] = (72, 70, 74)
    lamps = (elevation > 0.36) & (elevation < 0.44) & (np.abs(across - 0.5) < 0.2)
    room[lamps] = (250, 246, 224)
    room[np.broadcast_to(elevation < 0.025, glass.shape)] *= 0.6
    return room.astype(np.uint8)


__all__ = [
    "AZIMUTHS",
    "ELEVATIONS",
    "TEXEL",
    "TOP",
    "Texture",
    "build_texture",
    "paint_ground",
    "paint_panorama",
]
