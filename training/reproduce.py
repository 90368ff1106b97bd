"""Everything from nothing: ``python -m training.reproduce cartpole --preset gpu``.

Collects the data set, trains every variant at every noise level (variants side by side, one
process each), evaluates all checkpoints, and with ``--ship`` replaces the shipped weights. Every
step is resumable, so an interrupted run is repeated with the same command.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tyro
from rich.console import Console

from piwm_gym.checkpoint import write_manifest
from piwm_gym.locate import WEIGHTS, file_name
from piwm_gym.models import VARIANTS

SHIPPED_NOISE_LEVEL = 0.05


def run(*arguments: object) -> None:
    """Run a module of this repository; one thread, since several run side by side."""
    command = [sys.executable, "-m", *map(str, arguments)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main(
    system: tyro.conf.Positional[str],
    preset: str = "gpu",
    data_preset: str = "laptop",
    noise_levels: tuple[float, ...] = (0.0, 0.05, 0.1),
    jobs: int = 4,
    runs: Path = Path("runs"),
    out: Path = Path("runs/checkpoints"),
    ship: bool = False,
) -> None:
    """Collect, train, evaluate.

    Args:
        system: Short name of the system, such as cartpole.
        preset: Training preset: gpu for a GPU and 16 cores, laptop for a CPU.
        data_preset: Size of the data set.
        noise_levels: Label noise levels to train with.
        jobs: Variants trained at the same time.
        runs: Folder for logs and resumable states.
        out: Folder for checkpoints.
        ship: Copy the checkpoints of noise level 5 % into the package.
    """
    data = Path("data") / f"{system}-{data_preset}"
    run("training.collect", system, "--preset", data_preset, "--out", data)

    def train(variant: str) -> None:
        """All noise levels of a variant in turn: they share the first stage."""
        for noise in noise_levels:
            run(
                *("training.train", system, "--preset", preset, "--variant", variant),
                *("--noise-level", noise, "--data", data, "--runs", runs),
                *("--out", out / f"noise-{noise:g}", "--quiet"),
            )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, VARIANTS))
    checkpoints = sorted(out.glob(f"noise-*/{system}-*.safetensors"))
    run("training.evaluate", system, *checkpoints, "--data", data, "--runs", runs)
    if ship:
        for variant in VARIANTS:
            name = file_name(system, variant)
            shutil.copyfile(out / f"noise-{SHIPPED_NOISE_LEVEL:g}" / name, WEIGHTS / name)
        Console(stderr=True).print(str(write_manifest(WEIGHTS)), markup=False)


if __name__ == "__main__":
    tyro.cli(main)
