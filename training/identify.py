"""Identify the bicycle on recorded drives: ``python -m training.identify FILE... --out FILE.csv``.

The first 70 % of each file's episodes are fitted, the rest is held out. Every model and both
baselines start from the same poses, fitted to earlier records only, and run freely for 1.5 s with
the recorded commands; the table holds how far off they end. On real cars only the ratio of
steering gain and wheelbase shows in a path: ``wheelbase`` is what follows from the gain given.
"""

import csv
import dataclasses
import io
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from piwm_gym.checks import writable_folder
from piwm_gym.systems import DonkeyCar
from training.bicycle_fit import MODELS, QUANTITIES, Bicycle, fit_bicycle
from training.identification_figure import draw_identification
from training.importers import Records, Report, load_telemetry
from training.shards import replace_file
from training.telemetry_windows import Windows, cut_windows, join

DT, STEPS, HISTORY, STRIDE = DonkeyCar.dt, 30, 10, 8
"""Time step (s), steps of a window (1.5 s), steps of known commands before it, and records between
two windows."""
PASTS = (0.25, 0.4)
"""s of records from which a start pose is fitted; each predictor has what suits it best on the
fitted part."""
DELAYS = (0.0, 0.05)
"""s that a command may take to act; chosen on the fitted part, too."""
SPEED_BINS = (0.1, 0.4, 0.6, 0.8, 1.0, 1.2, 2.0)
"""Edges, m/s."""
FITTED = 0.7
"""Share of the episodes that is fitted."""
MIN_IN_BIN = 20
Predictor = Callable[[Windows], np.ndarray]
Row = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """One file, cut into windows in every way that is tried.

    Attributes:
        name: Name of the file.
        train: Windows of the first episodes, by (past, delay).
        test: Windows of the other episodes, by (past, delay); always the same moments.
        report: What was dropped.
    """

    name: str
    train: dict[tuple[float, float], Windows]
    test: dict[tuple[float, float], Windows]
    report: Report


def cut_recording(name: str, records: Records, report: Report) -> Recording:
    """Windows of a file, split by episode in order of time.

    Raises:
        ValueError: A part has no window.
    """
    episodes = np.unique(records.episodes)
    held_out = set(episodes[math.ceil(FITTED * len(episodes)) :].tolist())
    parts: list[dict[tuple[float, float], Windows]] = []
    for part, inside in (("fitted", False), ("held-out", True)):
        chosen = records.select(np.array([(e in held_out) == inside for e in records.episodes]))
        if not len(chosen):
            raise ValueError(f"{name} has {len(episodes)} episodes; expected a {part} one, too")
        parts.append({})
        for past in PASTS:
            for delay in DELAYS:
                # Which windows there are does not depend on these, so that counting once is right.
                counts = report if (past, delay) == (PASTS[0], DELAYS[0]) else Report()
                parts[-1][past, delay] = cut_windows(
                    chosen,
                    counts,
                    dt=DT,
                    steps=STEPS,
                    history=HISTORY,
                    stride=STRIDE,
                    past=past,
                    delay=delay,
                )
    return Recording(name, _common(parts[0]), _common(parts[1]), report)


def _common(windows: dict[tuple[float, float], Windows]) -> dict[tuple[float, float], Windows]:
    """The windows whose start pose is known whatever was chosen."""
    known = [np.isfinite(w.poses).all(1) & np.isfinite(w.turn_rates) for w in windows.values()]
    keep = np.logical_and.reduce(known)
    return {key: w.select(keep) for key, w in windows.items()}


def constant_velocity(windows: Windows) -> np.ndarray:
    """(B, T, 2) positions straight ahead."""
    return constant_turn_rate(dataclasses.replace(windows, turn_rates=0 * windows.turn_rates))


def constant_turn_rate(windows: Windows) -> np.ndarray:
    """(B, T, 2) positions along circles."""
    elapsed = DT * np.arange(1, STEPS + 1)
    x, y, heading, speed = windows.poses.T[..., None]
    half = windows.turn_rates[:, None] * elapsed / 2
    chord = speed * elapsed * np.sinc(half / np.pi)
    return np.stack((x + chord * np.cos(heading + half), y + chord * np.sin(heading + half)), -1)


BASELINES: dict[str, Predictor] = {
    "constant velocity": constant_velocity,
    "constant turn rate": constant_turn_rate,
}


def end_error(windows: Windows, predicted: np.ndarray) -> float:
    """Root mean square distance (m) after the last step."""
    return float(np.sqrt(((predicted - windows.positions)[:, -1] ** 2).sum(-1).mean()))


def identify(recordings: list[Recording], gain: float, starts: int = 2) -> list[Row]:
    """Rows of the table: baselines and models, fitted to each file and to all together.

    Args:
        recordings: The files.
        gain: Steering angle at full command, rad; taken as known.
        starts: Starting points of every fit.
    """
    rows = []
    for recording in recordings:
        for name, predictor in BASELINES.items():
            keys = [(past, DELAYS[0]) for past in PASTS]
            errors = [end_error(recording.train[k], predictor(recording.train[k])) for k in keys]
            key = keys[int(np.argmin(errors))]
            rows += _rows(recording, "", name, key, predictor)
        key = _best_key([recording], gain)
        for bicycle in _fits(recording.train[key], gain, starts):
            rows += _rows(recording, "this file", bicycle.model, key, bicycle.positions, bicycle)
    if len(recordings) > 1:
        key = _best_key(recordings, gain)
        together = join([recording.train[key] for recording in recordings])
        for bicycle in _fits(together, gain, starts):
            for recording in recordings:
                rows += _rows(
                    recording, "all files", bicycle.model, key, bicycle.positions, bicycle
                )
    return rows


def _fits(windows: Windows, gain: float, starts: int) -> list[Bicycle]:
    return [fit_bicycle(windows, model, gain, starts) for model in MODELS]


def _best_key(recordings: list[Recording], gain: float) -> tuple[float, float]:
    """Past and delay of the start poses that suit the plain bicycle best, on the fitted part."""
    keys = list(recordings[0].train)

    def error(key: tuple[float, float]) -> float:
        windows = join([recording.train[key] for recording in recordings])
        few = windows.select(np.arange(len(windows)) % 3 == 0)
        bicycle = fit_bicycle(few, next(iter(MODELS)), gain, starts=1, iterations=4)
        return end_error(windows, bicycle.positions(windows))

    return min(keys, key=error)


def _rows(
    recording: Recording,
    fitted_to: str,
    model: str,
    key: tuple[float, float],
    predictor: Predictor,
    bicycle: Bicycle | None = None,
) -> list[Row]:
    """One row over all held-out windows with what was fitted, and one for each speed bin."""
    windows = recording.test[key]
    predicted = predictor(windows)
    speeds = windows.poses[:, 3]
    head = {"file": recording.name, "model": model, "fitted_to": fitted_to}
    rows = [{**head, "speed": "all", **_errors(windows, predicted, np.ones(len(speeds), bool))}]
    rows[0] |= {"past_s": key[0]}
    if bicycle is not None:
        effective = bicycle.effective_wheelbase(float(np.median(speeds)))
        rows[0] |= {
            "delay_s": key[1],
            **bicycle.values,
            "wheelbase": bicycle.gain / bicycle.values[QUANTITIES[0]],
            "effective_wheelbase_at_median_speed": effective,
            "spread_over_starts": bicycle.spread,
        }
    for low, high in pairwise(SPEED_BINS):
        inside = (speeds >= low) & (speeds < high)
        if inside.sum() >= MIN_IN_BIN:
            errors = _errors(windows, predicted, inside)
            rows.append({**head, "speed": f"{low:g} to {high:g} m/s", **errors})
    return rows


def _errors(windows: Windows, predicted: np.ndarray, chosen: np.ndarray) -> Row:
    """Errors after the last step, m.

    Positive ``mean_further`` and ``mean_tighter``: the car went further along its start heading,
    and further towards the inside of its turn, than predicted.
    """
    windows, predicted = windows.select(chosen), predicted[chosen]
    off = (windows.positions - predicted)[:, -1]
    way = windows.positions[:, -1] - windows.poses[:, :2]
    heading = windows.poses[:, 2]
    along = np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    left = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    inside = np.sign((way * left).sum(-1))
    distance = np.linalg.norm(off, axis=-1)
    return {
        "windows": len(windows),
        "rmse_after_1.5_s": float(np.sqrt((distance**2).mean())),
        "median_after_1.5_s": float(np.median(distance)),
        "mean_further": float((off * along).sum(-1).mean()),
        "mean_tighter": float(((off * left).sum(-1) * inside).mean()),
    }


def write_rows(rows: list[Row], path: Path) -> None:
    """Write the table as CSV, whole or not at all."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda file: file.write(text.getvalue().encode()))


def _show(console: Console, rows: list[Row]) -> None:
    columns = ("model", "fitted_to", "rmse_after_1.5_s", "wheelbase", *QUANTITIES[-2:])
    for name in dict.fromkeys(row["file"] for row in rows):
        table = Table(title=name)
        for column in columns:
            table.add_column(column)
        for row in rows:
            if row["file"] == name and row["speed"] == "all":
                cells = [row.get(column, "") for column in columns]
                table.add_row(*(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells))
        console.print(table)


def main(
    files: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    steering_gain: float = 16.0,
    starts: int = 2,
) -> None:
    """Fit the bicycle to telemetry of a real car, and measure it on the rest of each file.

    Args:
        files: Telemetry: .csv, .csv.gz, or the telemetry.npz of an import.
        out: CSV file for the results; a figure of them is drawn beside it.
        steering_gain: Angle of the front wheels at full command, degrees; taken as known.
        starts: Starting points of every fit.
    """
    console = Console(stderr=True)
    try:
        if not files:
            raise ValueError("files is empty; expected at least one telemetry file")
        if not 0 < steering_gain < 60:
            raise ValueError(f"steering_gain is {steering_gain}; expected degrees in 0 to 60")
        if starts < 1:
            raise ValueError(f"starts is {starts}; expected at least 1")
        writable_folder("out", out.parent)
        recordings = []
        for path in track(files, description="windows", console=console):
            report = Report()
            records = load_telemetry(path, report)
            recordings.append(cut_recording(_stem(path), records, report))
        rows = identify(recordings, math.radians(steering_gain), starts)
    except (OSError, ValueError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)
    for recording in recordings:
        console.print("\n".join((recording.name, *recording.report.lines())), highlight=False)
    write_rows(rows, out)
    draw_identification(rows, SPEED_BINS, out.with_suffix(".png"))
    _show(console, rows)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".npz")


if __name__ == "__main__":
    tyro.cli(main)
