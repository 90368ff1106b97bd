"""Telemetry of a real car as CSV: commands and positions, no pictures.

One row per control step, separated by semicolons, possibly gzipped, with the columns ``Episode``,
``Time`` (ISO 8601), ``Steering``, ``Throttle``, ``SpeedX``, ``SpeedZ``, ``PosX`` and ``PosZ`` (m
and m/s). The tracking camera's axes are x right, y up and z backwards, so that seen from above
x and -z are right-handed, the axes of :class:`Records`.
"""

import csv
import dataclasses
import gzip
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import numpy as np

from training.importers.records import LARGEST, Records, Report
from training.shards import replace_file

COLUMNS = ("Episode", "Time", "Steering", "Throttle", "SpeedX", "SpeedZ", "PosX", "PosZ")
_ARRAYS = tuple(f.name for f in dataclasses.fields(Records) if f.name != "images")


def is_telemetry(path: Path) -> bool:
    """Whether a file is named like telemetry: a table, or one that was imported before."""
    return path.is_file() and path.name.endswith((".csv", ".csv.gz", ".npz"))


def read_telemetry(path: Path, report: Report) -> Records:
    """Read one file.

    Args:
        path: The CSV file, plain or gzipped.
        report: Counts what is dropped.

    Raises:
        ValueError: A column is missing, or no row can be used.
    """
    rows: list[tuple[float, ...]] = []
    try:
        with _open(path) as file:
            rows.extend(_rows(path, file, report))
    except (EOFError, OSError, UnicodeDecodeError, csv.Error) as error:
        if not rows:
            raise ValueError(f"{path} cannot be read: {error}") from error
        report.notes["file ends early or is damaged, the rest was not read"] += 1
    if not rows:
        raise ValueError(f"{path} holds no usable row of {report.read}; expected columns {COLUMNS}")
    values = np.array(rows)
    if clipped := int((np.abs(values[:, 2:4]) > 1).any(1).sum()):
        report.notes["commands beyond -1 to 1, clipped"] += clipped
    return Records(
        times=values[:, 1],
        actions=np.clip(values[:, 2:4], -1, 1),
        positions=values[:, 6:8] * (1, -1),
        speeds=np.hypot(values[:, 4], values[:, 5]),
        episodes=values[:, 0].astype(np.int64),
    )


def save_telemetry(records: Records, path: Path) -> None:
    """Write records without pictures as one npz file, whole or not at all."""
    arrays = {name: getattr(records, name) for name in _ARRAYS}
    replace_file(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def load_telemetry(path: Path, report: Report) -> Records:
    """Read a CSV file, or what :func:`save_telemetry` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected a telemetry file")
    if path.suffix != ".npz":
        return read_telemetry(path, report)
    with np.load(path, allow_pickle=False) as file:
        if missing := sorted(set(_ARRAYS) - set(file)):
            raise ValueError(f"{path} has no array {missing[0]!r}; expected {', '.join(_ARRAYS)}")
        records = Records(**{name: file[name] for name in _ARRAYS})
    report.read += len(records)
    return records


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _rows(path: Path, file: TextIO, report: Report) -> Iterator[tuple[float, ...]]:
    table = csv.DictReader(file, delimiter=";")
    missing = [name for name in COLUMNS if name not in (table.fieldnames or ())]
    if missing:
        raise ValueError(
            f"{path} has no column {missing[0]!r}; expected a header with {', '.join(COLUMNS)}, "
            "separated by semicolons"
        )
    for row in table:
        report.read += 1
        try:
            moment = _seconds(row["Time"])
            values = tuple(moment if name == "Time" else float(row[name]) for name in COLUMNS)
        except (TypeError, ValueError, OverflowError):
            report.drop("row with a missing or malformed number")
            continue
        if all(abs(value) <= LARGEST for value in values):  # False for NaN
            yield values
        else:
            report.drop("row with a number that is not finite, or absurd")


def _seconds(text: str) -> float:
    """ISO 8601 to s; without a time zone the clock is read as UTC, which has no summer time."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


__all__ = ["is_telemetry", "load_telemetry", "read_telemetry", "save_telemetry"]
