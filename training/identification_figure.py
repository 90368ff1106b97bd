"""Figure of the identification of real cars, drawn from its table."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ERROR = "rmse_after_1.5_s"
STYLES: dict[tuple[str, str], dict[str, Any]] = {
    ("constant velocity", ""): {"color": "0.6", "linestyle": ":"},
    ("constant turn rate", ""): {"color": "0.6", "linestyle": "--"},
    ("bicycle", "this file"): {"color": "tab:red"},
    ("bicycle with understeer", "this file"): {"color": "tab:blue"},
    ("bicycle with understeer and lag", "this file"): {"color": "tab:green"},
    ("bicycle", "all files"): {"color": "black", "linestyle": "--"},
}
"""Lines by model and by what it was fitted to."""


def draw_identification(rows: list[dict[str, Any]], speeds: tuple[float, ...], path: Path) -> None:
    """One panel per recording: error against speed, baselines beside models.

    Args:
        rows: Of the table; those over all speeds are not drawn.
        speeds: Edges of the table's bins, m/s.
        path: PNG file.
    """
    files = list(dict.fromkeys(row["file"] for row in rows))
    middles = {f"{a:g} to {b:g} m/s": (a + b) / 2 for a, b in pairwise(speeds)}
    figure, grid = plt.subplots(
        1, len(files), figsize=(3.6 * len(files), 3.8), sharey=True, squeeze=False
    )
    for axes, name in zip(grid[0], files, strict=True):
        mine = [row for row in rows if row["file"] == name and row["speed"] in middles]
        for (model, fitted_to), style in STYLES.items():
            picked = [r for r in mine if (r["model"], r["fitted_to"]) == (model, fitted_to)]
            if picked:
                axes.plot(
                    [middles[row["speed"]] for row in picked],
                    [float(row[ERROR]) for row in picked],
                    marker="o",
                    markersize=4,
                    label=f"{model}, {fitted_to}" if fitted_to else model,
                    **style,
                )
        axes.set_title(_short(name), fontsize=9)
        axes.set_xlabel("speed at the start (m/s)")
        axes.grid(alpha=0.3)
    grid[0, 0].set_ylabel("position RMSE after 1.5 s (m)")
    grid[0, 0].set_ylim(bottom=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=3, loc="lower center")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _short(name: str, most: int = 34) -> str:
    """Name of a file, its end cut off where it is long."""
    return name if len(name) <= most else name[: most - 3] + "..."


__all__ = ["STYLES", "draw_identification"]
