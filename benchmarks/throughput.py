"""How fast imagination runs, beside Gymnasium's own environments in the same run.

    python -m benchmarks.throughput
    python -m benchmarks.throughput --env-id PIWM-LunarLander-v0

Random actions; episodes start anew as they end. Rates are medians of five rounds, per second of
wall clock and of processor time; what else the machine does, which ``load_average`` counts,
changes the first more than the second. Writes ``assets/results/SYSTEM-throughput.csv``, and what
the rates hang on, such as start-up times, memory and multiply-adds, ``SYSTEM-costs.csv``; draws
``SYSTEM-throughput.png`` beside them.

gymnax wants versions of its own: ``--gymnax`` names the Python of an environment that has it.
"""

import sys
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import track

from benchmarks.contenders import Lot
from benchmarks.costs import COST_KEYS, all_costs
from benchmarks.growth import draw_growth
from benchmarks.stopwatch import Subject, machine
from benchmarks.tables import Row, print_rows, update_csv
from piwm_gym.checkpoint import CheckpointError
from piwm_gym.registration import DEFAULT_VARIANT, get_entry

KEYS = ("measure", "subject", "output", "device", "batch")
SHOWN = (*KEYS, "per_second", "spread_percent", "per_processor_second")


def row(subject: Subject, seconds: float) -> Row:
    """Measure a subject."""
    rates = subject.rates(seconds)
    return {
        "measure": subject.measure,
        "subject": subject.name,
        "output": subject.output,
        "device": subject.device,
        "batch": subject.batch or subject.count,
        "per_second": rates.wall,
        "spread_percent": rates.spread,
        "per_processor_second": rates.processor,
        **machine(),
    }


def main(
    env_id: str = "PIWM-CartPole-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    sizes: tuple[int, ...] = (1, 64, 1024, 4096, 16384, 65536),
    pixel_sizes: tuple[int, ...] = (1, 64, 1024),
    seconds: float = 3.0,
    threads: int = 1,
    compiled: bool = True,
    costs: bool = True,
    gymnax: str | None = None,
    out: Path | None = None,
) -> None:
    """Measure throughput, on the CPU and on the GPU if there is one.

    Args:
        env_id: Which environment.
        variant: Which world model.
        checkpoint: A file instead of the shipped weights.
        sizes: Numbers of environments with states.
        pixel_sizes: Numbers of environments with frames, and of windows.
        seconds: Time for each row.
        threads: Threads of torch.
        compiled: Measure compiled steps, too; compiling takes longer than measuring.
        costs: Measure start-up, memory, multiply-adds and PPO, too.
        gymnax: Python with gymnax installed.
        out: CSV file, assets/results/SYSTEM-throughput.csv if not given; rows about the same
            thing are replaced.
    """
    torch.set_num_threads(threads)
    source = {"variant": variant, "checkpoint": checkpoint}
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    try:
        out = out or Path("assets/results") / f"{get_entry(env_id).system}-throughput.csv"
        for device in devices:
            lot = Lot(env_id, source, sizes, pixel_sizes, device, compiled, gymnax)
            rows = []
            for subject in track(lot, device, transient=True):
                rows.append(row(subject, seconds))
                update_csv(out, rows[-1:], KEYS)  # a run that is cut short leaves what it has
            print_rows(rows, SHOWN, device)
        draw_growth(out, out.with_suffix(".png"))
        if costs:
            measured = [cost | machine() for cost in all_costs(env_id, source, "cpu")]
            print_rows(measured, ("subject", "value", "unit"), "costs")
            update_csv(out.with_name(out.name.replace("throughput", "costs")), measured, COST_KEYS)
    except (ValueError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["main"]
