"""The README's tables of results: ``python -m training.report cartpole``.

Reads the CSV files of evaluation and benchmarks, computes nothing new, and writes
``assets/results/<system>-targets.md`` and ``-variants.md``. A test holds the README to them.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from piwm_gym.systems import unknown

VARIANT = "extrinsic-discrete"
MISSING = "not measured yet"
Table = list[dict[str, str]]
Column = tuple[str, str, str]
"""Name, format and unit of a number."""


class Results:
    """The CSV files of one system."""

    def __init__(self, folder: Path, system: str) -> None:
        self._folder, self.system = folder, system

    def rows(self, table: str, **wanted: object) -> Table:
        """Rows of a table whose columns have the wanted values."""
        with (self._folder / f"{self.system}-{table}.csv").open() as file:
            return [
                row
                for row in csv.DictReader(file)
                if all(_equal(row[key], value) for key, value in wanted.items())
            ]

    def has(self, table: str, **wanted: object) -> bool:
        """Whether there is such a row."""
        path = self._folder / f"{self.system}-{table}.csv"
        return path.exists() and bool(self.rows(table, **wanted))

    def number(self, table: str, column: str, **wanted: object) -> float:
        """One number; the row must be unique."""
        (row,) = self.rows(table, **wanted)
        return float(row[column])


def _equal(cell: str, value: object) -> bool:
    return cell == value if isinstance(value, str) else float(cell) == value


def _percents(errors: list[float]) -> str:
    return ", ".join(f"{error:.2%}" for error in errors)


def _parameters(
    results: Results,
    noise: float,
    names: Sequence[str],
    text: Callable[[list[float]], str] = _percents,
) -> str:
    """Largest relative error over the starting points, of each learned quantity."""
    if not results.has("parameters", variant=VARIANT, noise_level=noise):
        return MISSING
    worst = []
    for name in names:
        rows = results.rows("parameters", variant=VARIANT, noise_level=noise, parameter=name)
        worst.append(max(abs(float(row["relative_error"])) for row in rows))
    return text(worst)


def _values(results: Results, table: str, columns: Sequence[Column], **wanted: object) -> str:
    """Numbers of one row with their units; a column is name, format and unit."""
    return ", ".join(
        f"{results.number(table, name, **wanted):{form}} {unit}" for name, form, unit in columns
    )


def _agreement(results: Results) -> str:
    cells = []
    for noise in (0.0, 0.05, 0.1):
        chosen = {"variant": VARIANT, "noise_level": noise}
        if results.has("agreement", **chosen):
            cells.append(_agreement_percent(results, **chosen))
        else:
            cells.append(MISSING)
    return ", ".join(cells)


def _agreement_percent(results: Results, **wanted: object) -> str:
    return f"{results.number('agreement', 'agreement_percent', **wanted):.1f} %"


def _control(results: Results, training: str, deployment: str) -> str:
    chosen: dict[str, object] = {
        "training_observations": training,
        "deployment_observations": deployment,
        "uncertainty": 0.0,
    }
    if not results.has("control", variant=VARIANT, **chosen):
        return MISSING
    rows = results.rows("control", variant=VARIANT, **chosen)
    real = ", ".join(f"{float(row['real_return_mean']):.1f}" for row in rows)
    imagined = ", ".join(f"{float(row['imagined_return_mean']):.0f}" for row in rows)
    return f"{real} (seeds; imagined return {imagined})"


def _endings(results: Results) -> str:
    """Share of real episodes that the model ends alike."""
    if not results.has("endings", real="all"):
        return MISSING
    return f"{results.number('endings', 'agreement_percent', real='all'):.1f} %"


def _speed(results: Results) -> str:
    """Rate of the vector environment over that of Gymnasium's AsyncVectorEnv, by wall clock."""
    ours = {"subject": "piwm-gym, gymnasium.make_vec", "batch": 4096.0, "output": "torch"}
    ours |= {"measure": "environment steps", "device": "cpu"}
    theirs = {"subject": "LunarLander-v3, AsyncVectorEnv", "batch": 64.0}
    if not results.has("throughput", **ours):
        return MISSING
    rates = [results.number("throughput", "per_second", **row) for row in (ours, theirs)]
    return f"{rates[0] / rates[1]:.0f} times"


@dataclass(frozen=True)
class Quantities:
    """Which numbers of a system the tables show, and how.

    Attributes:
        single: Read from one frame.
        forecast: Forecast.
        reread: Re-read from decoded frames, without the ending that names the reader.
    """

    single: tuple[Column, ...]
    forecast: tuple[Column, ...]
    reread: tuple[Column, ...]

    def one_frame(self, results: Results, variant: str = VARIANT) -> str:
        """Error of what one frame shows."""
        chosen = {"variant": variant, "noise_level": 0.05, "init": "single"}
        return _values(results, "estimation", self.single, **chosen)

    def later(self, results: Results, line: str, variant: str = VARIANT) -> str:
        """Error of a forecast of 30 steps."""
        chosen = {"variant": variant, "noise_level": 0.05, "line": line, "step": 30.0}
        return _values(results, "forecast", self.forecast, **chosen)

    def redrawn(self, results: Results, reader: str, variant: str = VARIANT) -> str:
        """Error of what is re-read from decoded frames."""
        columns = [(f"{name}_by_the_{reader}", form, unit) for name, form, unit in self.reread]
        return _values(results, "decoding", columns, variant=variant, noise_level=0.05)


def _ratio(results: Results, line: str, to: str, variant: str = VARIANT) -> str:
    """Normalised error of a forecast of 30 steps, relative to that of another line."""
    chosen = {"variant": variant, "noise_level": 0.05, "step": 30.0}
    over, under = (
        results.number("forecast", "normalised", line=name, **chosen) for name in (line, to)
    )
    return f"{over / under:.2f}"


_POLE = Quantities(
    single=(("x", ".4f", "m"), ("theta", ".4f", "rad")),
    forecast=(("x", ".3f", "m"), ("theta", ".3f", "rad")),
    reread=(("x", ".3f", "m"), ("theta", ".4f", "rad")),
)
_LANDER = Quantities(
    single=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad")),
    forecast=(("x", ".2f", "m"), ("y", ".2f", "m"), ("theta", ".3f", "rad")),
    reread=(("x", ".3f", "m"), ("y", ".3f", "m"), ("theta", ".3f", "rad"), ("scene", ".3f", "m")),
)


def _pole_parameters(results: Results, noise: float) -> str:
    return _parameters(
        results,
        noise,
        ("force_per_mass", "length", "pole_mass_fraction"),
        lambda e: f"{e[0]:.2%}, {e[1]:.2%} (pole's share of the mass: {e[2]:.0%})",
    )


_ENGINES = (
    "gravity",
    "main_acceleration",
    "side_acceleration",
    "side_angular_acceleration",
)
_TRUE_STATE = "true parameters from the true state"

Row = tuple[str, str, Callable[[Results], str]]

ROWS: dict[str, tuple[Row, ...]] = {
    "cartpole": (
        (
            "force / total mass and length, worst of three starts at least 50 % off",
            "1 %",
            lambda r: _pole_parameters(r, 0.05),
        ),
        ("the same, label noise 10 %", "2 %", lambda r: _pole_parameters(r, 0.1)),
        ("x and theta from one frame, RMSE", "0.015 m, 0.006 rad", _POLE.one_frame),
        (
            "30 steps later, from 10 frames",
            "0.08 m, 0.07 rad",
            lambda r: _POLE.later(r, "10 frames"),
        ),
        (
            "30 steps later, from 20 frames",
            "0.04 m, 0.04 rad",
            lambda r: _POLE.later(r, "20 frames"),
        ),
        ("30 steps later, from 2 frames", "", lambda r: _POLE.later(r, "2 frames")),
        ("30 steps later, persistence", "", lambda r: _POLE.later(r, "persistence")),
        (
            "state re-read from decoded frames, by the model",
            "0.03 m, 0.015 rad",
            lambda r: _POLE.redrawn(r, "model"),
        ),
        (
            "the same, by an independent network",
            "0.03 m, 0.015 rad",
            lambda r: _POLE.redrawn(r, "reader"),
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
    ),
    "lunar_lander": (
        (
            "gravity; main, side and angular acceleration: worst of three starts at least 50 % off",
            "2, 2, 2, 3 %",
            lambda r: _parameters(r, 0.05, _ENGINES),
        ),
        (
            "the same, label noise 10 %",
            "4, 4, 4, 6 %",
            lambda r: _parameters(r, 0.1, _ENGINES),
        ),
        (
            "dispersion of main and side engines",
            "",
            lambda r: _parameters(r, 0.05, ("main_dispersion", "side_dispersion")),
        ),
        (
            "strength, return and friction of the legs, against the joints' motors",
            "",
            lambda r: _parameters(r, 0.05, ("leg_strength", "leg_return", "leg_friction")),
        ),
        ("x, y and theta from one frame, RMSE", "0.1 m, 0.1 m, 0.04 rad", _LANDER.one_frame),
        (
            "terrain heights from one frame, RMSE",
            "",
            lambda r: _values(
                r,
                "estimation",
                (("scene", ".3f", "m"),),
                variant=VARIANT,
                noise_level=0.05,
                init="single",
            ),
        ),
        (
            "30 steps later, from true states, relative to true parameters",
            "1.15",
            lambda r: _ratio(r, "learned parameters from the true state", _TRUE_STATE),
        ),
        (
            "30 steps later, from 10 frames, relative to persistence",
            "0.5",
            lambda r: _ratio(r, "10 frames", "persistence"),
        ),
        (
            "the same, from 2 and 20 frames",
            "",
            lambda r: ", ".join(
                _ratio(r, line, "persistence") for line in ("2 frames", "20 frames")
            ),
        ),
        ("30 steps later, from 10 frames", "", lambda r: _LANDER.later(r, "10 frames")),
        (
            "30 steps later, what the engines' dispersion leaves",
            "",
            lambda r: _LANDER.later(r, _TRUE_STATE),
        ),
        (
            "state and terrain re-read from decoded frames, by the model",
            "",
            lambda r: _LANDER.redrawn(r, "model"),
        ),
        (
            "the same, by an independent network",
            "",
            lambda r: _LANDER.redrawn(r, "reader"),
        ),
        (
            "pixel controller's agreement on reconstructions, label noise 0, 5, 10 %",
            "95, 93, 90 %",
            _agreement,
        ),
        (
            "end of real episodes, landed, crashed or out of view, from 20 steps before",
            "95 %",
            _endings,
        ),
        (
            "PPO trained in the model on states, real return from true states",
            "270, none under 255",
            lambda r: _control(r, "imagined state", "true state"),
        ),
        (
            "the same policies on states estimated from real frames",
            "230",
            lambda r: _control(r, "imagined state", "state from real frames"),
        ),
        (
            "states per second, 4,096 environments, against AsyncVectorEnv of the real one (64)",
            "50 times",
            _speed,
        ),
    ),
}
"""Figure, target and measurement of each system's table of targets."""


VariantColumn = tuple[str, Callable[[Results, str], str]]


def _variant_columns(
    quantities: Quantities, forecasts: Sequence[VariantColumn]
) -> tuple[VariantColumn, ...]:
    """What the variants are compared by: reading, forecasting, drawing."""
    return (
        ("from one frame", quantities.one_frame),
        *forecasts,
        (
            "re-read from decoded frames, independently",
            lambda r, v: quantities.redrawn(r, "reader", v),
        ),
        ("agreement", lambda r, v: _agreement_percent(r, variant=v, noise_level=0.05)),
    )


VARIANT_COLUMNS: dict[str, tuple[VariantColumn, ...]] = {
    "cartpole": _variant_columns(
        _POLE,
        (
            ("30 steps later, from 10 frames", lambda r, v: _POLE.later(r, "10 frames", v)),
            ("from 20 frames", lambda r, v: _POLE.later(r, "20 frames", v)),
        ),
    ),
    "lunar_lander": _variant_columns(
        _LANDER,
        (
            (
                "30 steps later, from 10 frames, relative to persistence",
                lambda r, v: _ratio(r, "10 frames", "persistence", v),
            ),
            ("from 20 frames", lambda r, v: _ratio(r, "20 frames", "persistence", v)),
        ),
    ),
}


def targets_table(results: Results) -> list[str]:
    """Lines of the table of targets, default variant."""
    rows = [
        f"| {figure} | {target} | {measure(results)} |"
        for figure, target, measure in ROWS[results.system]
    ]
    return ["| figure | target | measured |", "|---|---|---|", *rows]


def variants_table(results: Results) -> list[str]:
    """Lines of the table that compares the variants at label noise 5 %; none for a single one."""
    columns = VARIANT_COLUMNS[results.system]
    variants = sorted({row["variant"] for row in results.rows("decoding", noise_level=0.05)})
    if len(variants) < 2:
        return []
    names = " | ".join(name for name, _ in columns)
    rows = [
        f"| `{variant}` | " + " | ".join(cell(results, variant) for _, cell in columns) + " |"
        for variant in variants
    ]
    return [f"| variant | {names} |", "|---" * (1 + len(columns)) + "|", *rows]


def main(system: tyro.conf.Positional[str], out: Path = Path("assets/results")) -> None:
    """Write the tables.

    Args:
        system: Short name of the system, such as cartpole.
        out: Folder with the CSV files; the tables go there too.
    """
    if system not in ROWS:
        raise SystemExit(unknown("system", system, tuple(ROWS)))
    results = Results(out, system)
    for name, table in (("targets", targets_table), ("variants", variants_table)):
        if lines := table(results):
            path = out / f"{system}-{name}.md"
            path.write_text("\n".join(lines) + "\n")
            Console(stderr=True).print(str(path), markup=False)


if __name__ == "__main__":
    tyro.cli(main)
