"""Rows of numbers as CSV files, and on the screen."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]


def update_csv(path: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Write rows into a CSV file; rows there with the same keys are replaced, others stay.

    Columns that the file lacks, as it is older than them, are empty in the rows that stay.

    Args:
        path: The file; made if need be.
        rows: New rows, all with the same columns.
        keys: Columns that say what a row is about.

    Raises:
        ValueError: The file lacks one of those, or has columns that the new rows lack.
    """
    columns = list(rows[0])
    written = [{column: _short(row[column]) for column in columns} for row in rows]
    new = {tuple(row[key] for key in keys) for row in written}
    kept = [row for row in _read(path, columns, keys) if tuple(row[key] for key in keys) not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept + written)


def print_rows(rows: Sequence[Row], columns: Sequence[str], title: str) -> None:
    """Show some columns as a table."""
    table = Table(*(column.replace("_", " ") for column in columns), title=title)
    for row in rows:
        table.add_row(*(_short(row[column]) for column in columns))
    Console().print(table, markup=False)


def _read(path: Path, columns: list[str], keys: Sequence[str]) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if reader.fieldnames is not None and not {*keys} <= {*reader.fieldnames} <= {*columns}:
        raise ValueError(
            f"{path} has the columns {', '.join(reader.fieldnames)}; expected "
            f"{', '.join(columns)}; move it away, or write to another file with --out"
        )
    return rows


def _short(value: Any) -> str:
    """Text of a value, numbers with four significant digits, the integer part always whole."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


__all__ = ["Row", "print_rows", "update_csv"]
