"""The course that drives are of: what it is, whether it fits the system, and whether they fit it.

Rewards, endings, laps and the grass are judged by the course's path, so it is never guessed for
drives that others recorded.
"""

import csv
from pathlib import Path

import numpy as np
import torch

from piwm_gym.courses import COURSES, Course, get_course
from piwm_gym.systems import System
from piwm_gym.systems.donkey_car import MAX_CTE
from piwm_gym.systems.track import Track

HEADER = ["x", "y"]
SCALES = (1.0, 8.0)
"""Units in a metre that recordings have."""
ASTRAY = 0.1
"""Largest share of records that are where an episode would have ended: of 2,000 collected drives,
bad drivers' included, 0.03 are; by the paths of other courses 0.4 to 0.6 are. Small courses of
nearly the same shape are not told apart."""


def choose_course(name: str | None, path: Path | None) -> Course:
    """The course of a name, or from a file.

    Args:
        name: As :func:`piwm_gym.courses.get_course` takes it.
        path: A file for :func:`read_path`.

    Raises:
        ValueError: Neither or both are given, there is no such course, or the file holds none.
    """
    if (name is None) == (path is None):
        raise ValueError(
            f"{'neither' if name is None else 'both'} of --course and --path given; expected one, "
            f"for the course that was driven: --course with its name ({', '.join(COURSES)} or "
            "random-<seed>), or --path with a CSV file of its path, a header x,y and points in "
            "metres"
        )
    return read_path(path) if path is not None else get_course(str(name))


def read_path(file: Path) -> Course:
    """A course from a CSV file: a header ``x,y``, then points of its path in m.

    The path is the middle of the right lane, in driving order. It is closed and its points are
    equally spaced, about 10 cm apart; the first one is not repeated.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no such path.
    """
    with file.open(newline="", encoding="utf-8-sig") as text:
        header, *rows = [[cell.strip() for cell in row] for row in csv.reader(text) if row] or [[]]
    if header != HEADER:
        raise ValueError(f"{file} begins with {','.join(header)!r}; expected the header 'x,y'")
    try:
        path = np.array([[float(x), float(y)] for x, y in rows]).reshape(-1, 2)
        Track.check(torch.from_numpy(path))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return Course(file.name, path)


def on_course(system: System, course: Course) -> System:
    """The system on a course.

    Raises:
        ValueError: It knows no courses, or this one leaves the ranges of its x and y, by which
            labels and losses are scaled.
    """
    if system.asset is None:
        raise ValueError(f"course is {course.name!r}, but {system.name} has none; leave it out")
    for variable, along in zip(system.variables, course.path.T, strict=False):
        if along.min() < variable.low or along.max() > variable.high:
            raise ValueError(
                f"course {course.name!r} has {variable.name} from {along.min():.2f} to "
                f"{along.max():.2f} {variable.unit}; expected {variable.low:g} to "
                f"{variable.high:g}, the range of {variable.name} of {system.name}: choose "
                "another course, or a path in metres about the origin"
            )
    return system.with_asset(torch.from_numpy(course.path))


def check_near(course: Course, positions: np.ndarray, units_per_metre: float) -> int:
    """Refuse drives that are of another course.

    Args:
        course: The one that they are said to be of.
        positions: (n, 2) m, all known.
        units_per_metre: By which they were divided.

    Returns:
        How many are so far from the path that an episode would have ended.

    Raises:
        ValueError: More than :data:`ASTRAY` of them are.
    """
    away = np.abs(course.project(positions)[1])
    astray = away > MAX_CTE
    if astray.mean() > ASTRAY:
        raise ValueError(
            f"{astray.mean():.0%} of the records (expected: at most {ASTRAY:.0%}) are more than "
            f"{MAX_CTE:g} m from the path of course {course.name!r}, where episodes end; the "
            f"median is {np.median(away):.3g} m: another course was driven, or positions have "
            "other units or another origin"
            f"{_other_scale(course, positions * units_per_metre, units_per_metre)}"
        )
    return int(astray.sum())


def _other_scale(course: Course, recorded: np.ndarray, units_per_metre: float) -> str:
    """The advice to read positions in other units, if they then are near the path."""
    for scale in SCALES:
        away = np.abs(course.project(recorded / scale)[1])
        if scale != units_per_metre and (away > MAX_CTE).mean() <= ASTRAY:
            return f"; with --units-per-metre {scale:g} the median would be {np.median(away):.3g} m"
    return ""


__all__ = ["check_near", "choose_course", "on_course", "read_path"]
