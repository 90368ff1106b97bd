"""Heading and speed from a path: recordings of these cars hold positions but no heading."""

import numpy as np

SPREAD = 0.15
"""s on either side of a moment from which its heading and speed are read; twice the time between
two records where they are rare."""
MIN_SPEED = 0.1
"""m/s; a slower car's path does not tell where it points."""


def local_motion(
    times: np.ndarray, positions: np.ndarray, at: np.ndarray, before: float, after: float
) -> tuple[np.ndarray, np.ndarray]:
    """Position and velocity from parabolas through the neighbouring records.

    Args:
        times: (n,) increasing, s.
        positions: (n, 2), m.
        at: (m,) moments, s.
        before: How far back records count, s.
        after: How far ahead, s; with 0 no later record has any influence.

    Returns:
        (m, 2) positions and (m, 2) velocities; NaN where fewer than four records are near.
    """
    first = np.searchsorted(times, at - before - 1e-9, side="left")
    last = np.searchsorted(times, at + after + 1e-9, side="right")
    width = max(int((last - first).max(initial=0)), 1)
    index = first[:, None] + np.arange(width)
    near = index < last[:, None]
    index = np.minimum(index, len(times) - 1)
    elapsed = np.where(near, times[index] - at[:, None], 0.0) / max(before, after)
    design = np.stack((near.astype(float), elapsed, elapsed**2), axis=-1)
    normal = design.mT @ design
    enough = near.sum(1) >= 4
    normal[~enough] = np.eye(3)
    fitted = np.linalg.solve(normal, design.mT @ np.where(near[..., None], positions[index], 0.0))
    fitted[~enough] = np.nan
    return fitted[:, 0], fitted[:, 1] / max(before, after)


def course(times: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heading and speed at every record of one drive, from the records around it.

    The car is taken to drive forwards: a path alone cannot tell. Where it is slower than
    ``MIN_SPEED``, it points where it pointed at the nearest faster moment.

    Args:
        times: (n,) increasing, s.
        positions: (n, 2), right-handed, m.

    Returns:
        (n,) headings in rad, in (-pi, pi], counter-clockwise from x, NaN in a drive that
        never moves; (n,) speeds in m/s.
    """
    unknown = np.full(len(times), np.nan)
    if len(times) < 4:
        return unknown, unknown
    spread = max(SPREAD, 2 * float(np.median(np.diff(times))))
    _, velocity = local_motion(times, positions, times, spread, spread)
    known = np.flatnonzero(np.isfinite(velocity[:, 0]))
    if not len(known):
        return unknown, unknown
    velocity = velocity[known[nearest(times[known], times)]]
    speed = np.hypot(*velocity.T)
    moving = np.flatnonzero(speed > MIN_SPEED)
    if not len(moving):
        return unknown, speed
    directions = velocity[moving[nearest(times[moving], times)]]
    return np.arctan2(directions[:, 1], directions[:, 0]), speed


def nearest(times: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Index of the nearest of the increasing ``times``, for each moment."""
    right = np.clip(np.searchsorted(times, at), 1, max(len(times) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(times) - 1)
    return np.where(at - times[left] <= times[right] - at, left, right)


__all__ = ["course", "local_motion", "nearest"]
