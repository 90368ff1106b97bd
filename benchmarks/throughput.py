"""How fast imagination runs, beside Gymnasium's own environments in the same run.

    python -m benchmarks.throughput
    python -m benchmarks.throughput --env-id PIWM-LunarLander-v0

Random actions; episodes start anew as they end. Rates are per second of wall clock and of
processor time; what else the machine does, which ``load_average`` counts, changes the first more
than the second. Writes ``assets/results/SYSTEM-throughput.csv``.
"""

import sys
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import track

from benchmarks.contenders import all_subjects
from benchmarks.stopwatch import Subject, machine
from benchmarks.tables import Row, print_rows, update_csv
from piwm_gym.checkpoint import CheckpointError
from piwm_gym.registration import DEFAULT_VARIANT, get_entry

KEYS = ("measure", "subject", "output", "device", "batch")
SHOWN = (*KEYS, "per_second", "per_processor_second")


def row(subject: Subject, seconds: float) -> Row:
    """Measure a subject."""
    wall, processor = subject.rates(seconds)
    return {
        "measure": subject.measure,
        "subject": subject.name,
        "output": subject.output,
        "device": subject.device,
        "batch": subject.count,
        "per_second": wall,
        "per_processor_second": processor,
        **machine(),
    }


def main(
    env_id: str = "PIWM-CartPole-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    sizes: tuple[int, ...] = (1, 64, 1024, 16384),
    pixel_sizes: tuple[int, ...] = (1, 64),
    seconds: float = 3.0,
    threads: int = 1,
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
        out: CSV file, assets/results/SYSTEM-throughput.csv if not given; rows about the same
            thing are replaced.
    """
    torch.set_num_threads(threads)
    source = {"variant": variant, "checkpoint": checkpoint}
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    try:
        out = out or Path("assets/results") / f"{get_entry(env_id).system}-throughput.csv"
        for device in devices:
            subjects = all_subjects(env_id, source, sizes, pixel_sizes, device)
            rows = [row(subject, seconds) for subject in track(subjects, device, transient=True)]
            print_rows(rows, SHOWN, device)
            update_csv(out, rows, KEYS)
    except (ValueError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["main"]
