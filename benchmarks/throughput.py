"""How fast imagination runs, beside Gymnasium's own environments in the same run.

    python -m benchmarks.throughput --threads 2 --gymnax PYTHON
    python -m benchmarks.throughput --threads 2 --env-id PIWM-LunarLander-v0
    python -m benchmarks.throughput --threads 16 --seconds 1  # CPU and GPU: some 180 rows

Random actions; episodes start anew as they end. Rates are medians of five rounds, per second of
wall clock and of processor time; what else the machine does, which ``load_average`` counts,
changes the first more than the second. ``floor_per_second`` is what one thread, or the GPU, would
reach with nothing but a frame's multiply-adds, in products of large matrices, or a step's bytes, in
copies of large tensors (:mod:`benchmarks.floor`). How long rollouts take by their horizon, and
frames by their pixels, is in rows of their own, with horizon or pixels as ``batch``.

Writes ``assets/results/SYSTEM-throughput.csv``, and what the rates hang on, such as start-up times,
memory and multiply-adds, ``SYSTEM-costs.csv``; draws ``SYSTEM-throughput.png`` beside them.

EnvPool is measured where it is installed. gymnax wants versions of its own: ``--gymnax`` names the
Python of an environment that has it.
"""

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any

import gymnasium as gym
import torch
import tyro
from rich.console import Console
from rich.progress import track

import piwm_gym
from benchmarks.contenders import (
    BFLOAT16,
    COMPILED,
    LOOP_LIMIT,
    embedded_simulator,
    envpool_subjects,
    gymnasiums,
    gymnax_subjects,
    imagined,
    resized,
)
from benchmarks.costs import COST_KEYS, all_costs
from benchmarks.floor import measured, of_step
from benchmarks.growth import draw_growth
from benchmarks.model_calls import decoders, encoding, of_frame, rollouts
from benchmarks.stopwatch import Subject, machine
from benchmarks.tables import Row, print_rows, update_csv
from piwm_gym.checkpoint import CheckpointError
from piwm_gym.models.autoencoder import REDUCED
from piwm_gym.registration import DEFAULT_VARIANT, get_entry
from piwm_gym.systems import System

KEYS = ("measure", "subject", "output", "device", "batch")
SHOWN = (
    *KEYS,
    "per_second",
    "spread_percent",
    "per_processor_second",
    "floor_per_second",
)


@dataclass(frozen=True)
class Lot:
    """Everything for one device, made one after the other.

    Attributes:
        env_id: Id of the environment.
        source: Variant and checkpoint.
        sizes: Numbers of environments with states.
        pixel_sizes: Numbers of environments with frames.
        device: Where to run.
        compiled: Whether to measure compiled steps and compiled drawing.
        gymnax: Python with gymnax installed.
    """

    env_id: str
    source: dict[str, Any]
    sizes: tuple[int, ...]
    pixel_sizes: tuple[int, ...]
    device: str = "cpu"
    compiled: bool = False
    gymnax: str | None = None

    def __iter__(self) -> Iterator[Subject]:
        env_id, source, device = self.env_id, self.source, self.device
        model = piwm_gym.load(env_id, source["variant"], source["checkpoint"], device)
        suffixes = ("", COMPILED) if self.compiled else ("",)
        for obs_type, sizes, work in (
            ("state", self.sizes, of_step(model.system)),
            ("pixels", self.pixel_sizes, of_frame(model)),
        ):
            for suffix in suffixes:
                made = {**source, "compile": True} if suffix else source
                both = ("numpy", "torch")
                yield from imagined(env_id, made, obs_type, sizes, device, work, suffix, both)
        if model.autoencoder.direct is not None:
            for suffix in suffixes:
                made = {**source, "decoder": REDUCED, "compile": bool(suffix)}
                name = f"{BFLOAT16}{suffix}"
                yield from imagined(env_id, made, "pixels", self.pixel_sizes, device, None, name)
        yield from rollouts(model, self.sizes, self.compiled)
        yield from decoders(model)
        yield from encoding(model, tuple(n for n in self.pixel_sizes if n <= LOOP_LIMIT))
        if device == "cpu":
            yield from self._others(model.system)

    def _others(self, system: System) -> Iterator[Subject]:
        """The real environment, and other people's versions of it."""
        if system.real_id in gym.registry:
            yield from gymnasiums(self.env_id, self.sizes)
        yield from resized(self.env_id, self.pixel_sizes)
        if system.name == "donkey_car":
            yield from embedded_simulator()
        if importlib.util.find_spec("envpool"):
            yield from envpool_subjects(system.real_id, self.sizes)
        if self.gymnax and system.name == "cartpole":
            yield from gymnax_subjects(self.gymnax, self.sizes)


def row(subject: Subject, seconds: float) -> Row:
    """Measure a subject, and what its floor is made of."""
    rates, work = subject.rates(seconds), subject.work
    return {
        "measure": subject.measure,
        "subject": subject.name,
        "output": subject.output,
        "device": subject.device,
        "batch": subject.batch or subject.count,
        "per_second": rates.wall,
        "spread_percent": rates.spread,
        "per_processor_second": rates.processor,
        "floor_per_second": measured(subject.device, seconds).rate(work) if work else "",
        **machine(),
    }


def _check(seconds: float, threads: int, gymnax: str | None) -> None:
    """Exit for what cannot be measured with."""
    problems = {
        f"seconds is {seconds}; expected more than 0": not seconds > 0,
        f"threads is {threads}; expected at least 1": threads < 1,
        f"gymnax is {gymnax}; expected a Python": gymnax is not None and not which(gymnax),
    }
    found = [text for text, wrong in problems.items() if wrong]
    if found:
        Console(stderr=True).print("\n".join(found), markup=False, soft_wrap=True)
        sys.exit(2)


def main(
    env_id: str = "PIWM-CartPole-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    sizes: tuple[int, ...] = (1, 64, 1024, 4096, 16384, 65536),
    pixel_sizes: tuple[int, ...] = (1, 64, 1024, 4096),
    gpu_pixel_sizes: tuple[int, ...] = (65536,),
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
        gpu_pixel_sizes: More of them, on a GPU only.
        seconds: Time for each row.
        threads: Threads of torch.
        compiled: Measure compiled steps, too; compiling takes longer than measuring.
        costs: Measure start-up, memory, multiply-adds and PPO, too.
        gymnax: Python with gymnax installed.
        out: CSV file, assets/results/SYSTEM-throughput.csv if not given; rows about the same
            thing are replaced.
    """
    _check(seconds, threads, gymnax)
    torch.set_num_threads(threads)
    source = {"variant": variant, "checkpoint": checkpoint}
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    try:
        out = out or Path("assets/results") / f"{get_entry(env_id).system}-throughput.csv"
        for device in devices:
            drawn = (*pixel_sizes, *(gpu_pixel_sizes if device == "cuda" else ()))
            lot = Lot(env_id, source, sizes, drawn, device, compiled, gymnax)
            rows = []
            for subject in track(lot, device, transient=True):
                rows.append(row(subject, seconds))
                update_csv(out, rows[-1:], KEYS)  # a run that is cut short leaves what it has
            print_rows(rows, SHOWN, device)
        draw_growth(out, out.with_suffix(".png"))
        if costs:
            capacities = {device: measured(device, seconds) for device in devices}
            rows = [cost | machine() for cost in all_costs(env_id, source, capacities)]
            print_rows(rows, ("subject", "value", "unit"), "costs")
            update_csv(out.with_name(out.name.replace("throughput", "costs")), rows, COST_KEYS)
    except (ValueError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["main"]
