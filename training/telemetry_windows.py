"""Windows of recorded drives for system identification: known past, commands, and what followed."""

from dataclasses import dataclass

import numpy as np

from training.importers.course import MIN_SPEED, local_motion
from training.importers.records import Records, Report, drives, drop_repeats

MAX_GAP = 0.15
"""s between two records of one drive; the records come every 0.05 s."""
SETTLED = 0.7
"""s of a drive before its first window: covers history, ``delay`` and ``past``, so that the choice
of these does not change which windows there are."""


@dataclass(frozen=True)
class Windows:
    """B windows of ``steps`` time steps; everything in SI units and right-handed.

    Attributes:
        poses: (B, 4) x, y, heading and speed at the start, from earlier records only; NaN where
            these are too few.
        turn_rates: (B,) rad/s at the start, the same.
        history: (B, P, 2) commands of the P time steps before the start.
        actions: (B, T, 2) commands of the T time steps of the window.
        positions: (B, T, 2) where the car was after each time step.
        episodes: (B,) number of the episode.
    """

    poses: np.ndarray
    turn_rates: np.ndarray
    history: np.ndarray
    actions: np.ndarray
    positions: np.ndarray
    episodes: np.ndarray

    def __len__(self) -> int:
        """Number of windows."""
        return len(self.poses)

    def select(self, index: np.ndarray) -> "Windows":
        """Some of the windows."""
        return Windows(**{name: array[index] for name, array in vars(self).items()})


def cut_windows(
    records: Records,
    report: Report,
    *,
    dt: float,
    steps: int,
    history: int,
    stride: int,
    past: float,
    delay: float = 0.0,
) -> Windows:
    """Windows of one recording.

    A window starts at a record. Its time grid runs from there by the clock; positions are
    interpolated between the two records around each grid point, commands are the mean over each
    step of what was in force. The start pose is the value, at the start, of a parabola through the
    records of the last ``past`` seconds: no later record has any influence on it.

    Args:
        records: Everything of one file.
        report: Counts what is dropped, and the cuts.
        dt: Time step, s.
        steps: Time steps of a window, T.
        history: Time steps of known commands before the start, P.
        stride: Records between the starts of two windows.
        past: s of records from which the start pose is fitted.
        delay: s that a command takes to act.

    Returns:
        The windows, in order of time; those where the car stands at the start are left out.
    """
    if max(past, history * dt + delay) > SETTLED + 1e-9:
        raise ValueError(
            f"past is {past}, history and delay {history * dt + delay}; expected at most "
            f"{SETTLED} s each"
        )
    parts = []
    for drive in drives(drop_repeats(records, report), MAX_GAP, report):
        starts = np.flatnonzero(
            (drive.times >= drive.times[0] + SETTLED)
            & (drive.times <= drive.times[-1] - steps * dt)
        )[::stride]
        moving = drive.speeds[starts] > MIN_SPEED
        report.notes["windows that start at a standstill, left out"] += int((~moving).sum())
        if moving.any():
            parts.append(_windows_at(drive, starts[moving], dt, steps, history, past, delay))
    if not parts:
        raise ValueError(f"no drive is long enough for a window of {steps} steps of {dt} s")
    return join(parts)


def join(parts: list[Windows]) -> Windows:
    """Windows of several recordings in one."""
    return Windows(
        **{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    )


def _windows_at(
    drive: Records,
    starts: np.ndarray,
    dt: float,
    steps: int,
    history: int,
    past: float,
    delay: float,
) -> Windows:
    moments = drive.times[starts]
    position, velocity = local_motion(drive.times, drive.positions, moments, past, 0.0)
    heading, speed = np.arctan2(velocity[:, 1], velocity[:, 0]), np.hypot(*velocity.T)
    grid = moments[:, None] + dt * np.arange(-history, steps + 1)
    commands = _mean_commands(drive, grid - delay) / dt
    later = grid[:, history + 1 :]
    return Windows(
        poses=np.column_stack((position, heading, speed)),
        turn_rates=_turn_rate(drive, moments, past),
        history=commands[:, :history],
        actions=commands[:, history:],
        positions=np.stack(
            [np.interp(later, drive.times, coordinate) for coordinate in drive.positions.T], axis=-1
        ),
        episodes=drive.episodes[starts],
    )


def _mean_commands(drive: Records, grid: np.ndarray) -> np.ndarray:
    """Integral over each interval of the grid of the command in force, (B, G - 1, 2)."""
    held = np.diff(drive.times)[:, None] * drive.actions[:-1]
    total = np.concatenate((np.zeros((1, 2)), np.cumsum(held, axis=0)))
    sums = [np.interp(grid, drive.times, column) for column in total.T]
    return np.diff(np.stack(sums, axis=-1), axis=1)


def _turn_rate(drive: Records, moments: np.ndarray, past: float) -> np.ndarray:
    """Mean turn rate over the last ``past`` seconds, from the headings at both ends."""
    _, now = local_motion(drive.times, drive.positions, moments, past, 0.0)
    _, before = local_motion(drive.times, drive.positions, moments - past / 2, past / 2, past / 2)
    cross = before[:, 0] * now[:, 1] - before[:, 1] * now[:, 0]
    dot = (before * now).sum(1)
    return np.arctan2(cross, dot) / (past / 2)


__all__ = ["MAX_GAP", "SETTLED", "Windows", "cut_windows", "join"]
