"""From records at their own times to trajectories of equal time steps."""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from piwm_gym.systems import System
from training.importers.course import course
from training.importers.records import Records, Report, drives, drop_repeats

OFF_RATE = 0.1
"""Fraction by which the time between records, or a few of them, may miss the time step."""


@dataclass(frozen=True)
class Sampled:
    """Records of one trajectory, and their states.

    Attributes:
        records: T+1 records, one time step apart to within half a step.
        states: float64 (T+1, D); NaN where the source does not tell, 0 in derived dimensions.
    """

    records: Records
    states: np.ndarray


def sample(records: Records, system: System, steps: int, report: Report) -> list[Sampled]:
    """Cut trajectories of exactly ``steps`` time steps of the system, without overlap.

    Records beyond the system's ranges are dropped. Pictures cannot be interpolated, so every time
    step takes the nearest record, at most half a step away; where there is none, the trajectory
    ends. Each record keeps its own pose and command, so that picture and state agree; only the
    time step is off by the jitter.

    Args:
        records: Everything of one source.
        system: Whose states are made: ``x``, ``y``, ``theta`` and ``v``.
        steps: Actions of a trajectory.
        report: Counts what is dropped, and the cuts.

    Raises:
        ValueError: The records come at a rate that does not give the system's time step.
    """
    dt = system.dt
    moments = drop_repeats(records, report)
    _check_rate(moments, system)
    trajectories = []
    for whole in drives(moments, 2 * dt, report):
        states = _states(whole, system)
        inside = _in_range(states, system, report)
        drive, states = whole.select(inside), states[inside]
        used = 0
        for run in _runs(drive.times, dt):
            usable = len(run) - len(run) % (steps + 1)
            used += len(run)
            report.drop("drive too short, or rest of one, for a trajectory", len(run) - usable)
            for first in range(0, usable, steps + 1):
                chosen = np.array(run[first : first + steps + 1])
                part = states[chosen]
                if drive.has_poses and not np.isfinite(part).all():
                    report.drop("car never moves, so its heading is unknown", steps + 1)
                else:
                    trajectories.append(Sampled(drive.select(chosen), part))
        report.drop("between two time steps", len(drive) - used)
    return trajectories


def _check_rate(records: Records, system: System) -> None:
    """Refuse records from which no steps of equal length can be picked.

    With a record every 0.05 s or every 0.025 s each step of 0.05 s finds one; with one every
    0.033 s the steps would be of 0.033 s and 0.067 s in turn, with one every 0.1 s half of them
    would find none.
    """
    elapsed = np.diff(records.times)
    elapsed = elapsed[(np.diff(records.episodes) == 0) & (elapsed > 0)]
    if not len(elapsed):
        return
    interval = float(np.median(elapsed))
    each = max(1, round(system.dt / interval))
    if abs(each * interval / system.dt - 1) > OFF_RATE:
        raise ValueError(
            f"the records are {interval:.3g} s apart ({1 / interval:.3g} a second, the median); "
            f"expected the time step of {system.name}, {system.dt:g} s, or a half, a third, ... of "
            f"it ({1 / system.dt:g}, {2 / system.dt:g}, {3 / system.dt:g}, ... a second): pictures "
            f"cannot be interpolated; record at {1 / system.dt:g} a second"
        )


def _states(drive: Records, system: System) -> np.ndarray:
    headings, speeds = course(drive.times, drive.positions) if drive.has_poses else (np.nan, np.nan)
    known = {
        "x": drive.positions[:, 0],
        "y": drive.positions[:, 1],
        "theta": headings,
        "v": np.where(np.isfinite(drive.speeds), drive.speeds, speeds),
    }
    states = np.zeros((len(drive), len(system.variables)))
    for i, variable in enumerate(system.variables):
        if not variable.derived:
            states[:, i] = known[variable.name]
    return states


def _in_range(states: np.ndarray, system: System, report: Report) -> np.ndarray:
    """Which states (n, D) the system's ranges hold; what is unknown counts as held."""
    inside = np.ones(len(states), bool)
    for i, variable in enumerate(system.variables):
        if variable.derived or variable.periodic:
            continue
        off = inside & ((states[:, i] < variable.low) | (states[:, i] > variable.high))
        reason = f"{variable.name} beyond {variable.low:g} to {variable.high:g} {variable.unit}"
        report.drop(reason, int(off.sum()))
        inside &= ~off
    return inside


def _runs(times: np.ndarray, dt: float) -> list[list[int]]:
    """Indices of records at equal time steps; a new run starts wherever a step has none.

    It also does where the records have slipped by half a step against the clock: skipping one to
    catch up would pass two steps off as one.
    """
    moments = times.tolist()
    runs, run = [], [0]
    for _ in moments:
        target = moments[run[0]] + len(run) * dt
        after = bisect_left(moments, target)
        near = min(
            (i for i in (after - 1, after) if run[-1] < i < len(moments)),
            key=lambda i: abs(moments[i] - target),
            default=None,
        )
        if (
            near is not None
            and abs(moments[near] - target) <= dt / 2
            and abs(moments[near] - moments[run[-1]] - dt) <= dt / 2
        ):
            run.append(near)
            continue
        runs.append(run)
        if run[-1] + 1 >= len(moments):
            break
        run = [run[-1] + 1]
    return runs


__all__ = ["Sampled", "sample"]
