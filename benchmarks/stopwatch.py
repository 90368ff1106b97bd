"""Rates of repeated calls, and the machine they were measured on."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch

Call = Callable[[], object]


ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """Medians of several rounds.

    Attributes:
        wall: Number per second of wall clock.
        processor: Number per second of processor time.
        spread: Of ``wall``, highest less lowest, in percent of the median.
    """

    wall: float
    processor: float
    spread: float


@dataclass(frozen=True)
class Work:
    """The least that something takes.

    Attributes:
        multiply_adds: In products of matrices.
        moved: Bytes read from memory or written to it.
    """

    multiply_adds: float = 0.0
    moved: float = 0.0

    def __mul__(self, count: int) -> "Work":
        """So many of it."""
        return Work(count * self.multiply_adds, count * self.moved)


@dataclass(frozen=True)
class Subject:
    """Something whose speed is measured.

    Attributes:
        measure: What is counted.
        name: What does it.
        call: Does it once.
        count: How many of them one call does.
        output: Kind of arrays that come out.
        device: Where it runs.
        batch: Number of environments, where one call makes several steps of each; or what the
            cost of a call is to be seen to grow with.
        work: What one of them takes at least; None where that is not ours to say.
    """

    measure: str
    name: str
    call: Call
    count: int
    output: str = "numpy"
    device: str = "cpu"
    batch: int | None = None
    work: Work | None = None

    def rates(self, seconds: float) -> "Rates":
        """Measure for about so long, after a warm-up of a tenth of it."""
        self._round(seconds / 10)
        rounds = [self._round(seconds / ROUNDS) for _ in range(ROUNDS)]
        wall, processor = (np.array(values) for values in zip(*rounds, strict=True))
        spread = 100 * (wall.max() - wall.min()) / np.median(wall)
        return Rates(float(np.median(wall)), float(np.median(processor)), float(spread))

    def _round(self, seconds: float) -> tuple[float, float]:
        wall, processor, calls = time.perf_counter(), time.process_time(), 0
        while calls == 0 or time.perf_counter() - wall < seconds:
            self.call()
            calls += 1
        if self.device == "cuda":
            torch.cuda.synchronize()
        done = calls * self.count
        elapsed = time.perf_counter() - wall
        return done / elapsed, done / max(time.process_time() - processor, 1e-9)


def machine() -> dict[str, str]:
    """What the numbers depend on besides the code."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "load_average": f"{os.getloadavg()[0]:.1f}",
        "torch_threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "gymnasium": gymnasium.__version__,
    }


def _processor() -> str:
    """Name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


__all__ = ["Call", "Rates", "Subject", "Work", "machine"]
