"""How the rates of the throughput table grow with the number of environments, as a picture."""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw_growth(table: Path, picture: Path) -> None:
    """Draw steps and frames per second over the number of environments.

    Args:
        table: CSV file of :mod:`benchmarks.throughput`.
        picture: PNG file to write.
    """
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    measures = ("environment steps", "frames")
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    for axis, measure in zip(axes, measures, strict=True):
        lines = defaultdict(list)
        for row in rows:
            if row["measure"] == measure:
                name = f"{row['subject']}, {row['output']}, {row['device']}"
                lines[name].append((int(row["batch"]), float(row["per_second"])))
        for name, points in sorted(lines.items()):
            ours = name.startswith(("piwm-gym", "WorldModel"))
            axis.loglog(*zip(*sorted(points), strict=True), "o-" if ours else "s--", label=name)
        axis.set(xlabel="environments", ylabel=f"{measure} per second")
        axis.grid(which="major", alpha=0.3)
        axis.legend(fontsize=6)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


__all__ = ["draw_growth"]
