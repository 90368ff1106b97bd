"""How costs grow: with the number of environments, the horizon and the frame, as a picture."""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.contenders import FRAMES, STEPS
from benchmarks.model_calls import BY_HORIZON, BY_PIXELS


@dataclass(frozen=True)
class Panel:
    """Part of the picture.

    Attributes:
        measure: Of the rows it shows.
        across: What their ``batch`` is.
        up: What is drawn over it.
        time: Whether that is the milliseconds of one, not their rate.
    """

    measure: str
    across: str
    up: str
    time: bool = False


PANELS = (
    Panel(STEPS, "environments", f"{STEPS} per second"),
    Panel(FRAMES, "environments", f"{FRAMES} per second"),
    Panel(BY_HORIZON, "horizon, steps", f"{BY_HORIZON}, ms each", time=True),
    Panel(BY_PIXELS, "pixels of a frame", f"{BY_PIXELS}, ms each", time=True),
)


def draw_growth(table: Path, picture: Path) -> None:
    """Draw rates over the number of environments, and times over horizon and size of the frame.

    Args:
        table: CSV file of :mod:`benchmarks.throughput`.
        picture: PNG file to write.
    """
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(2, 2, figsize=(12, 9), layout="constrained")
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        lines = defaultdict(list)
        for row in rows:
            if row["measure"] == panel.measure:
                name = f"{row['subject']}, {row['output']}, {row['device']}"
                rate = float(row["per_second"])
                lines[name].append((int(row["batch"]), 1000 / rate if panel.time else rate))
        axis.set_prop_cycle(color=matplotlib.color_sequences["tab20"])
        for name, points in sorted(lines.items()):
            ours = name.startswith(("piwm-gym", "WorldModel", "untrained"))
            axis.loglog(*zip(*sorted(points), strict=True), "o-" if ours else "s--", label=name)
        axis.set(xlabel=panel.across, ylabel=panel.up)
        axis.grid(which="major", alpha=0.3)
        if lines:
            axis.legend(fontsize=6)
        if panel.time:  # powers of ten are too far apart to read them by
            ticks = sorted({batch for points in lines.values() for batch, _ in points})
            axis.set_xticks(ticks, labels=ticks)
            axis.set_xticks([], minor=True)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


__all__ = ["draw_growth"]
