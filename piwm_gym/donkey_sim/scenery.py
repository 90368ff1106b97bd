"""What stands beside a course: fields, things and colours that tell every place from the others.

All of it depends on the course alone: a place looks the same in every episode.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from piwm_gym.courses import Course
from piwm_gym.donkey_sim.colours import Colour, hsv
from piwm_gym.donkey_sim.sprites import KINDS

GOLDEN = 0.61803398875
MARGIN = 3.0
ROOM = 0.28
PACE = 0.3
APART = 0.7
FIELD_SPACING = 1.5
SECTION_LENGTH = 2.4


@dataclass(frozen=True)
class Theme:
    """What the world of a course is made of.

    Attributes:
        kinds: Things beside the road, in turn.
        saturation: Of the fields.
        values: Range of the fields' brightness.
        outdoors: Hills under a sky, or the walls of a hall.
    """

    kinds: tuple[str, ...]
    saturation: tuple[float, float]
    values: tuple[float, float]
    outdoors: bool


OUTDOORS = Theme(
    ("tree", "post", "tent", "conifer", "flag", "mushroom", "barn", "cone", "windmill"),
    (0.35, 0.8),
    (0.45, 0.85),
    True,
)
INDOORS = Theme(("column", "crate", "cone", "flag", "post", "tent"), (0.2, 0.6), (0.5, 0.9), False)
THEMES = {"hall": INDOORS}


@dataclass(frozen=True)
class Thing:
    """A thing beside the road.

    Attributes:
        name: What a collision with it is called.
        kind: Key of :data:`~piwm_gym.donkey_sim.sprites.KINDS`.
        x: m.
        y: m.
        colours: Main colour, and that of its decoration.
        heading: rad, where it faces; None if it looks the same from everywhere.
    """

    name: str
    kind: str
    x: float
    y: float
    colours: tuple[Colour, Colour]
    heading: float | None = None


def theme_of(course: Course) -> Theme:
    """The theme of a course; outdoors if it has none of its own."""
    return THEMES.get(course.name, OUTDOORS)


def scenery_rng(course: Course, purpose: int) -> np.random.Generator:
    """Random numbers that depend on the course's name and what they are for."""
    return np.random.default_rng([zlib.crc32(course.name.encode()), purpose])


def bounds(course: Course) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper corner of the world, m; whole tenths of a metre."""
    low, high = course.path.min(0) - MARGIN, course.path.max(0) + MARGIN
    return np.floor(low * 10) / 10, np.ceil(high * 10) / 10


def beside_road(course: Course, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...) m from the road's edge, positive outside of it; points (..., 2) m."""
    _, offset = course.project(points)
    return np.abs(offset - course.road_offset) - course.road_half_width


def place_things(course: Course) -> list[Thing]:
    """Things along both sides of the road, no two of the same kind and colour near each other."""
    rng = scenery_rng(course, 1)
    kinds = theme_of(course).kinds
    right = np.stack([np.sin(course.headings), -np.cos(course.headings)], 1)
    things = [_start_arch(course)]
    taken = [(things[0].x, things[0].y)]
    for step in range(int(course.length / PACE)):
        index = int(step * PACE / course.spacing) % len(course.path)
        side = 1 if rng.random() < 0.5 else -1
        beyond = course.road_half_width + ROOM + rng.uniform(0.1, 1.6)
        lateral = course.road_offset + side * beyond
        x, y = (course.path[index] + lateral * right[index]).tolist()
        kind = kinds[(5 * len(things) + step) % len(kinds)]
        room = ROOM + KINDS[kind].radius
        far_off = all(np.hypot(x - tx, y - ty) > APART for tx, ty in taken)
        if not far_off or beside_road(course, np.array([x, y])) < room:
            continue
        taken.append((x, y))
        number = len(things)
        hue = number * GOLDEN
        colours = hsv(hue, 0.85, 0.9 if number % 2 else 0.65), hsv(hue + 0.4, 0.5, 0.98)
        things.append(Thing(f"{kind}-{number}", kind, x, y, colours))
    return things


def _start_arch(course: Course) -> Thing:
    """An arch over the road, 1.2 m behind the start."""
    index = int(1.2 / course.spacing)
    heading = float(course.headings[index])
    right = np.array([np.sin(heading), -np.cos(heading)])
    x, y = (course.path[index] + course.road_offset * right).tolist()
    return Thing("arch", "arch", x, y, ((214, 40, 40), (245, 245, 245)), heading)


def fields(course: Course) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Patches of ground around the road, each of its own colour.

    Returns:
        (K, 2) m, their centres (a point belongs to the nearest); (K, 3) colours in 0..255.
    """
    rng, theme = scenery_rng(course, 2), theme_of(course)
    low, high = bounds(course)
    nx, ny = np.ceil((high - low) / FIELD_SPACING).astype(int)
    grid = np.stack(np.meshgrid(np.arange(nx), np.arange(ny), indexing="ij"), -1).reshape(-1, 2)
    centres = low + (grid + 0.5 + rng.uniform(-0.38, 0.38, grid.shape)) * FIELD_SPACING
    order = rng.permutation(len(centres))
    colours = [
        hsv(i * GOLDEN, rng.uniform(*theme.saturation), rng.uniform(*theme.values)) for i in order
    ]
    return centres, np.array(colours, float)


def sections(course: Course) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Colours that the road changes along its length.

    Returns:
        (S, 3) of the asphalt and (S, 2, 3) of the kerbs' blocks, in 0..255.
    """
    rng = scenery_rng(course, 3)
    count = max(4, round(course.length / SECTION_LENGTH))
    start = rng.random()
    asphalt, kerbs = [], []
    for i in range(count):
        asphalt.append(hsv(start + i * GOLDEN, 0.28, 0.36 + 0.2 * (i % 3) / 2))
        hue = start + 0.5 + i * GOLDEN
        kerbs.append((hsv(hue, 0.9, 0.85), hsv(hue + 0.33, 0.15, 0.95)))
    return np.array(asphalt, float), np.array(kerbs, float)


__all__ = [
    "Theme",
    "Thing",
    "beside_road",
    "bounds",
    "fields",
    "place_things",
    "scenery_rng",
    "sections",
    "theme_of",
]
