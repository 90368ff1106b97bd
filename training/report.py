"""The README's tables of results: ``python -m training.report cartpole``.

Reads the CSV files of evaluation and benchmarks, computes nothing new, and writes
``assets/results/<system>-targets.md``, ``-variants.md`` and ``-speed.md``. A test holds the README
to them.
"""

from pathlib import Path

import tyro
from rich.console import Console

from piwm_gym.systems import unknown
from training.report_rows import ROWS, VARIANT_COLUMNS
from training.results import Results
from training.speed_rows import COMPILED, SPEED_ROWS


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
    variants = sorted({row["variant"] for row in results.rows("estimation", noise_level=0.05)})
    if len(variants) < 2:
        return []
    names = " | ".join(name for name, _ in columns)
    rows = [
        f"| `{variant}` | " + " | ".join(cell(results, variant) for _, cell in columns) + " |"
        for variant in variants
    ]
    return [f"| variant | {names} |", "|---" * (1 + len(columns)) + "|", *rows]


def speed_table(results: Results) -> list[str]:
    """Lines of the table of speed."""
    rows = [
        f"| {figure} | {target} | {cell(results, '')} | {cell(results, COMPILED)} |"
        for figure, target, cell in SPEED_ROWS[results.system]
    ]
    return ["| figure | target | measured | compiled |", "|---|---|---|---|", *rows]


def main(system: tyro.conf.Positional[str], out: Path = Path("assets/results")) -> None:
    """Write the tables.

    Args:
        system: Short name of the system, such as cartpole.
        out: Folder with the CSV files; the tables go there too.
    """
    if system not in ROWS:
        raise SystemExit(unknown("system", system, tuple(ROWS)))
    results = Results(out, system)
    tables = {"targets": targets_table, "variants": variants_table, "speed": speed_table}
    for name, table in tables.items():
        if lines := table(results):
            path = out / f"{system}-{name}.md"
            path.write_text("\n".join(lines) + "\n")
            Console(stderr=True).print(str(path), markup=False)


if __name__ == "__main__":
    tyro.cli(main)
