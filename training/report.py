"""The README's tables of results: ``python -m training.report cartpole``.

Reads the CSV files of evaluation and benchmarks, computes nothing new, and writes
``assets/results/<system>-targets.md`` and ``-variants.md``. A test holds the README to them.
"""

import csv
from collections.abc import Callable
from pathlib import Path

import tyro
from rich.console import Console

VARIANT = "extrinsic-discrete"
MISSING = "not measured yet"
Table = list[dict[str, str]]


class Results:
    """The CSV files of one system."""

    def __init__(self, folder: Path, system: str) -> None:
        self._folder, self._system = folder, system

    def rows(self, table: str, **wanted: object) -> Table:
        """Rows of a table whose columns have the wanted values."""
        with (self._folder / f"{self._system}-{table}.csv").open() as file:
            return [
                row
                for row in csv.DictReader(file)
                if all(_equal(row[key], value) for key, value in wanted.items())
            ]

    def has(self, table: str, **wanted: object) -> bool:
        """Whether there is such a row."""
        path = self._folder / f"{self._system}-{table}.csv"
        return path.exists() and bool(self.rows(table, **wanted))

    def number(self, table: str, column: str, **wanted: object) -> float:
        """One number; the row must be unique."""
        (row,) = self.rows(table, **wanted)
        return float(row[column])


def _equal(cell: str, value: object) -> bool:
    return cell == value if isinstance(value, str) else float(cell) == value


def _parameters(results: Results, noise: float) -> str:
    if not results.has("parameters", variant=VARIANT, noise_level=noise):
        return MISSING
    worst = {}
    for name in ("force_per_mass", "length", "pole_mass_fraction"):
        rows = results.rows("parameters", variant=VARIANT, noise_level=noise, parameter=name)
        worst[name] = max(abs(float(row["relative_error"])) for row in rows)
    return (
        f"{worst['force_per_mass']:.2%}, {worst['length']:.2%} "
        f"(pole's share of the mass: {worst['pole_mass_fraction']:.0%})"
    )


def _forecast(results: Results, line: str, variant: str = VARIANT) -> str:
    chosen = {"variant": variant, "noise_level": 0.05, "line": line, "step": 30.0}
    x, theta = (results.number("forecast", name, **chosen) for name in ("x", "theta"))
    return f"{x:.3f} m, {theta:.3f} rad"


def _single(results: Results, variant: str = VARIANT) -> str:
    chosen = {"variant": variant, "noise_level": 0.05, "init": "single"}
    x, theta = (results.number("estimation", name, **chosen) for name in ("x", "theta"))
    return f"{x:.4f} m, {theta:.4f} rad"


def _reread(results: Results, reader: str, variant: str = VARIANT) -> str:
    chosen = {"variant": variant, "noise_level": 0.05}
    x, theta = (
        results.number("decoding", f"{name}_by_the_{reader}", **chosen) for name in ("x", "theta")
    )
    return f"{x:.3f} m, {theta:.4f} rad"


def _agreement(results: Results) -> str:
    cells = []
    for noise in (0.0, 0.05, 0.1):
        chosen = {"variant": VARIANT, "noise_level": noise}
        if results.has("agreement", **chosen):
            cells.append(f"{results.number('agreement', 'agreement_percent', **chosen):.1f} %")
        else:
            cells.append(MISSING)
    return ", ".join(cells)


def _control(results: Results, training: str, deployment: str) -> str:
    chosen = {"training_observations": training, "deployment_observations": deployment}
    if not results.has("control", variant=VARIANT, **chosen):
        return MISSING
    rows = results.rows("control", variant=VARIANT, **chosen)
    real = ", ".join(f"{float(row['real_return_mean']):.1f}" for row in rows)
    imagined = ", ".join(f"{float(row['imagined_return_mean']):.0f}" for row in rows)
    return f"{real} (seeds; imagined return {imagined})"


ROWS: tuple[tuple[str, str, Callable[[Results], str]], ...] = (
    (
        "force / total mass and length, worst of three starts at least 50 % off",
        "1 %",
        lambda r: _parameters(r, 0.05),
    ),
    ("the same, label noise 10 %", "2 %", lambda r: _parameters(r, 0.1)),
    ("x and theta from one frame, RMSE", "0.015 m, 0.006 rad", _single),
    (
        "30 steps later, from 10 frames",
        "0.08 m, 0.07 rad",
        lambda r: _forecast(r, "10 frames"),
    ),
    (
        "30 steps later, from 20 frames",
        "0.04 m, 0.04 rad",
        lambda r: _forecast(r, "20 frames"),
    ),
    ("30 steps later, from 2 frames", "", lambda r: _forecast(r, "2 frames")),
    ("30 steps later, persistence", "", lambda r: _forecast(r, "persistence")),
    (
        "state re-read from decoded frames, by the model",
        "0.03 m, 0.015 rad",
        lambda r: _reread(r, "model"),
    ),
    (
        "the same, by an independent network",
        "0.03 m, 0.015 rad",
        lambda r: _reread(r, "reader"),
    ),
    (
        "pixel controller's agreement on reconstructions, label noise 0, 5, 10 %",
        "99, 98.5, 98 %",
        _agreement,
    ),
    (
        "PPO trained in the model on states, real return from true states",
        "500",
        lambda r: _control(r, "imagined state", "true state"),
    ),
    (
        "the same policies on states estimated from real frames",
        "495",
        lambda r: _control(r, "imagined state", "state from real frames"),
    ),
    (
        "PPO trained on decoded frames only, real return from real frames",
        "475",
        lambda r: _control(r, "decoded frames", "real frames"),
    ),
)


VARIANT_COLUMNS: tuple[tuple[str, Callable[[Results, str], str]], ...] = (
    ("from one frame", lambda r, v: _single(r, v)),
    ("30 steps later, from 10 frames", lambda r, v: _forecast(r, "10 frames", v)),
    ("from 20 frames", lambda r, v: _forecast(r, "20 frames", v)),
    ("re-read from decoded frames, independently", lambda r, v: _reread(r, "reader", v)),
    (
        "agreement",
        lambda r, v: (
            f"{r.number('agreement', 'agreement_percent', variant=v, noise_level=0.05):.1f} %"
        ),
    ),
)


def targets_table(results: Results) -> list[str]:
    """Lines of the table of targets, default variant."""
    rows = [f"| {figure} | {target} | {measure(results)} |" for figure, target, measure in ROWS]
    return ["| figure | target | measured |", "|---|---|---|", *rows]


def variants_table(results: Results) -> list[str]:
    """Lines of the table that compares the variants at label noise 5 %."""
    variants = sorted({row["variant"] for row in results.rows("decoding", noise_level=0.05)})
    names = " | ".join(name for name, _ in VARIANT_COLUMNS)
    rows = [
        f"| `{variant}` | "
        + " | ".join(cell(results, variant) for _, cell in VARIANT_COLUMNS)
        + " |"
        for variant in variants
    ]
    return [f"| variant | {names} |", "|---" * (1 + len(VARIANT_COLUMNS)) + "|", *rows]


def main(system: tyro.conf.Positional[str], out: Path = Path("assets/results")) -> None:
    """Write the tables.

    Args:
        system: Short name of the system, such as cartpole.
        out: Folder with the CSV files; the tables go there too.
    """
    results = Results(out, system)
    for name, table in (("targets", targets_table), ("variants", variants_table)):
        path = out / f"{system}-{name}.md"
        path.write_text("\n".join(table(results)) + "\n")
        Console(stderr=True).print(str(path), markup=False)


if __name__ == "__main__":
    tyro.cli(main)
