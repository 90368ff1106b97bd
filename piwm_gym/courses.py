"""Courses of the Donkey Car: closed centre lines in metres, and where a point lies beside them.

Coordinates are right-handed: X = Unity's ``pos_x`` / 8, Y = Unity's ``pos_z`` / 8. A path is the
middle of the right lane, as in the Donkey Car simulator, and is driven in the order of its points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piwm_gym.choices import unknown

Floats = NDArray[np.float64]

DEFAULT_COURSE = "meadow"
SPACING = 0.1
ROAD_HALF_WIDTH = 0.625
ROAD_OFFSET = -0.25
FINE = 0.002
CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Course:
    """A closed course.

    Attributes:
        name: What it is called.
        path: (M, 2) m, closed (the last point is followed by the first), equally spaced.
        road_half_width: m.
        road_offset: m, lateral position of the road's middle, seen from the path; positive to
            the right.
    """

    name: str
    path: Floats
    road_half_width: float = ROAD_HALF_WIDTH
    road_offset: float = ROAD_OFFSET

    @cached_property
    def spacing(self) -> float:
        """Distance of neighbouring points, m."""
        return float(np.linalg.norm(self._edges, axis=1).mean())

    @property
    def length(self) -> float:
        """Length of the closed path, m."""
        return len(self.path) * self.spacing

    @cached_property
    def headings(self) -> Floats:
        """(M,) rad, direction of the tangent at each point, in [-pi, pi)."""
        tangent = np.roll(self.path, -1, 0) - np.roll(self.path, 1, 0)
        return wrap_angle(np.arctan2(tangent[:, 1], tangent[:, 0]))

    @cached_property
    def curvature(self) -> Floats:
        """(M,) 1/m at each point, positive in a left turn."""
        turn = wrap_angle(self._directions - np.roll(self._directions, 1))
        return turn / self.spacing

    @property
    def spawn(self) -> tuple[float, float, float]:
        """Pose (x, y, heading) at the start: the first point, along the path."""
        x, y = self.path[0]
        return float(x), float(y), float(self.headings[0])

    def project(self, points: Floats) -> tuple[Floats, Floats]:
        """Nearest position on the path.

        Args:
            points: (..., 2) m.

        Returns:
            (...) arc length from the start in [0, length), and (...) signed distance, both in m;
            the distance is positive to the right of the path.
        """
        flat = np.asarray(points, np.float64).reshape(-1, 2)
        parts = [self._project(flat[i : i + CHUNK]) for i in range(0, len(flat), CHUNK)]
        arc, offset = (np.concatenate(part) for part in zip(*parts, strict=True))
        shape = np.shape(points)[:-1]
        return arc.reshape(shape), offset.reshape(shape)

    def advance(self, before: float, after: float) -> float:
        """Way along the path from one arc length to another, the shorter way round, m."""
        length = self.length
        return (after - before + length / 2) % length - length / 2

    def _project(self, points: Floats) -> tuple[Floats, Floats]:
        # |p - q|^2 = |p|^2 - 2 (p . q - |q|^2 / 2): the nearest q has the largest bracket.
        near = np.argmax(points @ self.path.T - self._half_squares, axis=1)
        best: tuple[Floats, Floats] | None = None
        for edge in (near, (near - 1) % len(self.path)):
            start, direction = self.path[edge], self._edges[edge]
            squared = np.einsum("ni,ni->n", direction, direction)
            along = np.einsum("ni,ni->n", points - start, direction) / squared
            along = np.clip(along, 0.0, 1.0)
            to = points - start - along[:, None] * direction
            right = direction[:, 1] * to[:, 0] - direction[:, 0] * to[:, 1]
            offset = np.copysign(np.hypot(to[:, 0], to[:, 1]), right)
            arc = (edge + along) * self.spacing % self.length
            if best is None:
                best = arc, offset
            else:
                closer = np.abs(offset) < np.abs(best[1])
                best = np.where(closer, arc, best[0]), np.where(closer, offset, best[1])
        assert best is not None
        return best

    @cached_property
    def _edges(self) -> Floats:
        """(M, 2) m, from each point to the next."""
        return np.roll(self.path, -1, 0) - self.path

    @cached_property
    def _half_squares(self) -> Floats:
        return np.einsum("mi,mi->m", self.path, self.path) / 2

    @cached_property
    def _directions(self) -> Floats:
        return np.arctan2(self._edges[:, 1], self._edges[:, 0])


def wrap_angle(angle: Any) -> Any:
    """The same angle in [-pi, pi), rad; for numbers and arrays."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def rounded_polygon(corners: Sequence[tuple[float, float, float]]) -> Floats:
    """Path of straights and arcs: a polygon whose corners are rounded.

    Args:
        corners: (x, y, radius) in m, in driving order. The path starts in the middle of the
            straight between the first and the second.

    Returns:
        (M, 2) m, equally spaced by arc length.

    Raises:
        ValueError: Two arcs overlap.
    """
    points, radii = np.array([c[:2] for c in corners]), np.array([c[2] for c in corners])
    edges = np.roll(points, -1, 0) - points
    lengths = np.hypot(edges[:, 0], edges[:, 1])
    angles = np.arctan2(edges[:, 1], edges[:, 0])
    turns = wrap_angle(angles - np.roll(angles, 1))
    cuts = radii * np.tan(np.abs(turns) / 2)
    straights = lengths - cuts - np.roll(cuts, -1)
    if (straights < 0).any():
        first = int(np.argmin(straights))
        raise ValueError(
            f"corners {first} and {(first + 1) % len(corners)} are {-straights[first]:.2f} m too "
            "close for their radii"
        )
    curvature, pieces = [], []
    for i in range(len(corners)):
        following = (i + 1) % len(corners)
        pieces += [straights[i], radii[following] * abs(turns[following])]
        curvature += [0.0, np.sign(turns[following]) / radii[following]]
    start = points[0] + edges[0] / lengths[0] * cuts[0]
    return _integrate(start, float(angles[0]), np.array(pieces), np.array(curvature))


def _integrate(start: Floats, angle: float, pieces: Floats, curvature: Floats) -> Floats:
    """Points of a closed path of arcs, from the middle of its first piece, equally spaced."""
    total = pieces.sum()
    s = np.linspace(0.0, total, int(total / FINE) + 1)
    knots = np.concatenate([[0.0], np.cumsum(pieces)])
    heading = angle + np.interp(s, knots, np.concatenate([[0.0], np.cumsum(pieces * curvature)]))
    middle = (heading[1:] + heading[:-1]) / 2
    steps = np.stack([np.cos(middle), np.sin(middle)], 1) * (s[1] - s[0])
    fine = start + np.concatenate([np.zeros((1, 2)), np.cumsum(steps, 0)])
    count = round(total / SPACING)
    wanted = (pieces[0] / 2 + np.arange(count) * total / count) % total
    return np.stack([np.interp(wanted, s, fine[:, i]) for i in (0, 1)], 1)


def random_course(seed: int) -> Course:
    """A course that only the seed decides: six to eight corners, at least one right turn.

    Args:
        seed: Any non-negative integer.
    """
    rng = np.random.default_rng([seed, 0x636F7572])
    while True:
        course = _draw_course(rng, f"random-{seed}")
        if course is not None:
            return course


def _draw_course(rng: np.random.Generator, name: str) -> Course | None:
    """One attempt; None if the road would touch itself or a turn would be too tight."""
    count = int(rng.integers(6, 9))
    angles = (np.arange(count) + rng.uniform(-0.2, 0.2, count)) * 2 * np.pi / count
    reach = rng.uniform(0.8, 1.1, count)
    reach[rng.integers(count)] = rng.uniform(0.1, 0.4)
    corners = np.stack([4.3 * np.cos(angles), 2.9 * np.sin(angles)], 1) * reach[:, None]
    try:
        path = rounded_polygon([(x, y, rng.uniform(1.0, 1.5)) for x, y in corners.tolist()])
    except ValueError:
        return None
    path -= (path.max(0) + path.min(0)) / 2
    course = Course(name, path)
    wide_enough = (np.abs(path) <= (4.6, 3.2)).all() and 18.0 <= course.length <= 27.0
    if not wide_enough or course.curvature.min() > -0.5 or clearance(course) < 1.9:
        return None
    return course


def clearance(course: Course, apart: float = 3.5) -> float:
    """Smallest distance, in m, of two places that are more than ``apart`` m of driving apart."""
    gap = np.linalg.norm(course.path[:, None] - course.path, axis=2)
    index = np.arange(len(course.path))
    steps = np.abs(index[:, None] - index)
    steps = np.minimum(steps, len(index) - steps)
    return float(gap[steps * course.spacing > apart].min())


_CORNERS: dict[str, list[tuple[float, float, float]]] = {
    "meadow": [
        (-4.15, -2.55, 1.2),
        (1.3, -2.8, 2.5),
        (4.2, -2.2, 1.1),
        (3.9, 2.6, 1.2),
        (1.1, 2.6, 1.1),
        (0.05, 0.4, 1.0),
        (-1.6, 0.6, 0.95),
        (-1.9, 2.65, 0.95),
        (-4.15, 2.3, 1.05),
    ],
    "hall": [(-3.4, -1.7, 1.7), (3.4, -1.7, 1.7), (3.4, 1.7, 1.7), (-3.4, 1.7, 1.7)],
    "hills": [
        (-6.2, -4.2, 1.2),
        (-1.8, -4.2, 0.9),
        (-1.2, -2.0, 0.85),
        (1.1, -2.0, 0.85),
        (1.8, -4.2, 0.9),
        (6.2, -4.0, 1.2),
        (6.2, -0.3, 0.9),
        (3.2, 0.3, 0.85),
        (3.4, 1.9, 0.85),
        (6.2, 2.2, 0.9),
        (5.6, 4.3, 0.9),
        (0.5, 4.2, 1.0),
        (-0.6, 1.3, 0.9),
        (-2.6, 1.5, 0.9),
        (-3.2, 4.2, 0.9),
        (-6.2, 3.8, 1.0),
    ],
}


def _built_in(name: str) -> Course:
    path = rounded_polygon(_CORNERS[name])
    return Course(name, path - (path.max(0) + path.min(0)) / 2)


COURSES: dict[str, Course] = {name: _built_in(name) for name in _CORNERS}
"""The built-in courses by name: an outdoor loop, an indoor oval, a longer one with tight turns."""


@lru_cache(maxsize=16)
def get_course(name: str) -> Course:
    """The course of a name.

    Args:
        name: One of :data:`COURSES`, or "random-" and a seed.

    Raises:
        ValueError: No such course; the nearest name is suggested.
    """
    if name in COURSES:
        return COURSES[name]
    kind, _, seed = str(name).partition("-")
    if kind == "random" and seed.isdecimal():
        return random_course(int(seed))
    raise ValueError(unknown("course", name, (*COURSES, "random-<seed>")))


__all__ = [
    "COURSES",
    "DEFAULT_COURSE",
    "Course",
    "clearance",
    "get_course",
    "random_course",
    "rounded_polygon",
    "wrap_angle",
]
