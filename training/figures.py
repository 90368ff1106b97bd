"""Figures of the evaluation, drawn from its tables."""

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from piwm_gym.systems import get_system

Rows = list[dict[str, Any]]

NOISE_FLOOR = {"true parameters from the true state": {"color": "black", "linestyle": "--"}}
"""Drawn where there is process noise; elsewhere it is zero."""
LINE_STYLES: dict[str, dict[str, str]] = {
    "persistence": {"color": "0.6", "linestyle": ":"},
    "2 frames": {"color": "tab:red"},
    "10 frames": {"color": "tab:blue"},
    "10 frames, true parameters": {"color": "tab:blue", "linestyle": "--"},
    "20 frames": {"color": "tab:green"},
}


def draw_figures(tables: dict[str, Rows], system: str, out: Path) -> None:
    """Forecast error over the horizon, and learned parameters against the truth."""
    noisy = get_system(system).num_step_uniforms > 0
    lines = {**LINE_STYLES, **NOISE_FLOOR} if noisy else LINE_STYLES
    axis = f"imagined steps of {get_system(system).dt:g} s"
    _forecasts(tables["forecast"], lines, axis, out / f"{system}-forecast.png")
    _parameters(tables["parameters"], out / f"{system}-parameters.png")


def _forecasts(rows: Rows, lines: dict[str, dict[str, str]], axis: str, path: Path) -> None:
    """A row of panels for each variant, a column for each noise level."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    noises = sorted({row["noise_level"] for row in rows})
    shape = len(variants), len(noises)
    size = (3.2 * shape[1] + 1.8, 2.1 * shape[0] + 1.2)
    figure, grid = plt.subplots(
        *shape, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for cell, axes in zip(product(variants, noises), grid.flat, strict=True):
        picked = [row for row in rows if (row["variant"], row["noise_level"]) == cell]
        axes.set_visible(bool(picked))
        for line, style in lines.items():
            curve = [row for row in picked if row["line"] == line]
            steps = [row["step"] for row in curve]
            axes.semilogy(steps, [row["normalised"] for row in curve], label=line, **style)
        axes.set_title(f"{cell[0]}, label noise {cell[1]:.0%}", fontsize=9)
        axes.tick_params(labelbottom=True, labelleft=True)  # panels may be missing below or left
        axes.grid(alpha=0.3)
    figure.supxlabel(axis, fontsize=10)
    figure.supylabel("normalised RMSE", fontsize=10)
    names = grid[0, 0].get_legend_handles_labels()
    figure.legend(*names, fontsize=8, ncols=3, loc="outside upper center")
    _save(figure, path)


def _parameters(rows: Rows, path: Path) -> None:
    names = list(dict.fromkeys(row["parameter"] for row in rows))
    groups = list(dict.fromkeys((row["variant"], row["noise_level"]) for row in rows))
    size = (3.2 * len(names), 3.6)
    figure, grid = plt.subplots(1, len(names), figsize=size, squeeze=False, layout="constrained")
    for name, axes in zip(names, grid[0], strict=True):
        for x, group in enumerate(groups):
            picked = [
                row
                for row in rows
                if row["parameter"] == name and (row["variant"], row["noise_level"]) == group
            ]
            for key, marker, color in (
                ("starting_value", "x", "0.6"),
                ("learned", "o", "tab:blue"),
            ):
                values = [row[key] / row["truth"] for row in picked]
                axes.plot([x] * len(values), values, marker, color=color, markersize=4)
        axes.axhline(1.0, color="tab:orange", linewidth=1)
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(groups)))
        axes.set_xticklabels([f"{v} {n:.0%}" for v, n in groups], rotation=90, fontsize=7)
    grid[0, 0].set_ylabel("value / truth (x: starts)")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
