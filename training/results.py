"""Numbers of the results' CSV files, and how they read in a table's cell."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from piwm_gym.registration import DEFAULT_VARIANT

MISSING = "not measured yet"
Table = list[dict[str, str]]
Column = tuple[str, str, str]
"""Name, format and unit of a number."""
AGREEMENT: Column = ("agreement_percent", ".1f", "%")
ACTIONS: Column = ("action_rmse", ".3f", "")


class Results:
    """The CSV files of one system."""

    def __init__(self, folder: Path, system: str) -> None:
        self._folder, self.system = folder, system

    def rows(self, table: str, **wanted: object) -> Table:
        """Rows of a table whose columns have the wanted values; none where there is no table."""
        path = self._folder / f"{self.system}-{table}.csv"
        if not path.exists():
            return []
        with path.open() as file:
            return [
                row
                for row in csv.DictReader(file)
                if all(_equal(row[key], value) for key, value in wanted.items())
            ]

    def has(self, table: str, **wanted: object) -> bool:
        """Whether there is such a row."""
        return bool(self.rows(table, **wanted))

    def number(self, table: str, column: str, **wanted: object) -> float:
        """One number; the row must be unique."""
        (row,) = self.rows(table, **wanted)
        return float(row[column])


def _equal(cell: str, value: object) -> bool:
    return cell == value if isinstance(value, str) else float(cell) == value


def percents(errors: list[float]) -> str:
    """Fractions as percentages."""
    return ", ".join(f"{error:.2%}" for error in errors)


def parameters(
    results: Results,
    noise: float,
    names: Sequence[str],
    text: Callable[[list[float]], str] = percents,
) -> str:
    """Largest relative error over the starting points, of each learned quantity."""
    if not results.has("parameters", variant=DEFAULT_VARIANT, noise_level=noise):
        return MISSING
    worst = []
    for name in names:
        rows = results.rows(
            "parameters", variant=DEFAULT_VARIANT, noise_level=noise, parameter=name
        )
        worst.append(max(abs(float(row["relative_error"])) for row in rows))
    return text(worst)


def values(results: Results, table: str, columns: Sequence[Column], **wanted: object) -> str:
    """Numbers of one row with their units; a column is name, format and unit."""
    if not results.has(table, **wanted):
        return MISSING
    return ", ".join(
        f"{results.number(table, name, **wanted):{form}} {unit}" for name, form, unit in columns
    )


def agreement(results: Results, cell: Callable[..., str] | None = None) -> str:
    """What the pixel controller does on reconstructions, at label noise 0, 5 and 10 %.

    Args:
        results: Of a system.
        cell: Makes a cell of the results and a row's variant and noise level; default:
            :func:`agreement_percent`.
    """
    cell = agreement_percent if cell is None else cell
    return ", ".join(
        cell(results, variant=DEFAULT_VARIANT, noise_level=noise) for noise in (0.0, 0.05, 0.1)
    )


def agreement_percent(results: Results, **wanted: object) -> str:
    """Share of frames on whose reconstruction the pixel controller acts alike."""
    return values(results, "agreement", [AGREEMENT], **wanted)


def action_rmse(results: Results, **wanted: object) -> str:
    """Difference of the pixel controller's actions on frames and on their reconstructions."""
    return values(results, "agreement", [ACTIONS], **wanted).strip()


def drawn_from_truth(results: Results, column: Column) -> str:
    """What the controller makes of pictures of true states, which nothing has read."""
    name, form, unit = column
    column = (f"{name}_from_true_states", form, unit)
    return values(results, "agreement", [column], variant=DEFAULT_VARIANT, noise_level=0.05).strip()


def control(results: Results, training: str, deployment: str, uncertainty: float = 0.0) -> str:
    """Real and imagined returns of the policies, one number per seed.

    Args:
        results: Of a system.
        training: What the policies observe in the model.
        deployment: What they observe in the real environment.
        uncertainty: Within what fraction parameters were drawn for training.
    """
    chosen: dict[str, object] = {
        "training_observations": training,
        "deployment_observations": deployment,
        "uncertainty": uncertainty,
    }
    if not results.has("control", variant=DEFAULT_VARIANT, **chosen):
        return MISSING
    rows = results.rows("control", variant=DEFAULT_VARIANT, **chosen)
    real = ", ".join(f"{float(row['real_return_mean']):.1f}" for row in rows)
    imagined = ", ".join(f"{float(row['imagined_return_mean']):.0f}" for row in rows)
    return f"{real} (seeds; imagined return {imagined})"


def endings(results: Results, lead: int) -> str:
    """Share of real episodes that the model ends alike from so many steps before."""
    chosen: dict[str, object] = {"real": "all", "lead": lead}
    if not results.has("endings", **chosen):
        return MISSING
    return f"{results.number('endings', 'agreement_percent', **chosen):.1f} %"


def driving(results: Results, observations: str) -> str:
    """Laps, mean speed and distance from the path of the drivers, one number per seed."""
    chosen: dict[str, object] = {"observations": observations, "uncertainty": 0.0}
    if not results.has("driving", variant=DEFAULT_VARIANT, **chosen):
        return MISSING
    rows = results.rows("driving", variant=DEFAULT_VARIANT, **chosen)
    names = (("laps", ".1f"), ("mean_speed", ".2f"), ("mean_cte", ".2f"))
    laps, speed, cte = (", ".join(f"{float(r[name]):{form}}" for r in rows) for name, form in names)
    return f"{laps} laps at {speed} m/s, {cte} m from the path"


def one_frame(
    results: Results,
    columns: Sequence[Column],
    variant: str = DEFAULT_VARIANT,
    init: str = "single",
) -> str:
    """Numbers about what is read from single frames: all, or those that show the whole system."""
    return values(results, "estimation", columns, variant=variant, noise_level=0.05, init=init)


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

    def one_frame(self, results: Results, variant: str = DEFAULT_VARIANT) -> str:
        """Error of what one frame shows."""
        return one_frame(results, self.single, variant)

    def later(self, results: Results, line: str, variant: str = DEFAULT_VARIANT) -> str:
        """Error of a forecast of 30 steps."""
        chosen = {"variant": variant, "noise_level": 0.05, "line": line, "step": 30.0}
        return values(results, "forecast", self.forecast, **chosen)

    def redrawn(self, results: Results, reader: str, variant: str = DEFAULT_VARIANT) -> str:
        """Error of what is re-read from decoded frames."""
        columns = [(f"{name}_by_the_{reader}", form, unit) for name, form, unit in self.reread]
        return values(results, "decoding", columns, variant=variant, noise_level=0.05)


def ratio(results: Results, line: str, to: str, variant: str = DEFAULT_VARIANT) -> str:
    """Normalised error of a forecast of 30 steps, relative to that of another line."""
    chosen = {"variant": variant, "noise_level": 0.05, "step": 30.0}
    if not results.has("forecast", line=line, **chosen):
        return MISSING
    over, under = (
        results.number("forecast", "normalised", line=name, **chosen) for name in (line, to)
    )
    return f"{over / under:.2f}"
