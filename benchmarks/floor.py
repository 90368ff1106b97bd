"""The floor under a time: what must be computed or moved, and how fast the machine does that."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.stopwatch import Call, Subject, Work
from piwm_gym.advance import blank, example_action
from piwm_gym.systems import System

SIDE = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices that are multiplied: large enough for all of a GPU."""
COPIED = {"cpu": 2**26, "cuda": 2**29}
"""float32 numbers that are copied: more than caches hold, and long enough to wait for."""
FLAGS = 2
"""Bytes of ``terminated`` and ``truncated``."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Capacity:
    """What one thread of a CPU, or a GPU, does in a second at best.

    Attributes:
        products: Multiply-adds, in products of large matrices.
        bandwidth: Bytes read from memory or written to it, in copies of large tensors.
    """

    products: float
    bandwidth: float

    def rate(self, work: Work) -> float:
        """How often per second the work can be done; computing and moving overlap."""
        return 1 / max(work.multiply_adds / self.products, work.moved / self.bandwidth)


@cache
def measured(device: str, seconds: float) -> Capacity:
    """What a device does: measured once.

    On a CPU by processor time: what else the machine does lengthens the other one more.

    Args:
        device: Which.
        seconds: Time for each number.
    """
    square = torch.rand(SIDE[device], SIDE[device], device=device)
    source = torch.rand(COPIED[device], device=device)
    target = torch.empty_like(source)
    # A GPU would be given a thousand of them to do before anybody looks at the time.
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    with one_thread():
        rates = [
            Subject("", "", call, count, device=device).rates(seconds)
            for call, count in (
                (lambda: (square @ square, wait()), len(square) ** 3),
                (lambda: (target.copy_(source), wait()), source.nbytes + target.nbytes),
            )
        ]
    return Capacity(*(rate.processor if device == "cpu" else rate.wall for rate in rates))


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def of_step(system: System) -> Work:
    """What a step of one environment with states moves.

    Read and written: state, steps since the episode's start, position in the random numbers. Read:
    the action. Written: observation and reward, float32, and a byte for each of two flags. Scene
    and parameters are not counted: the one matters on the ground alone, the others are the same
    for all.
    """
    device = torch.device("cpu")
    moment, action = blank(system, 1, device), example_action(system, 1, device)
    kept = moment.state.nbytes + moment.elapsed.nbytes + moment.positions.nbytes
    written = (math.prod(system.observation_space.shape) + 1) * moment.state.itemsize + FLAGS
    return Work(moved=2 * kept + action.nbytes + written)


def of_rollout(system: System) -> Work:
    """What a step within a rollout moves: the action is read, the state written.

    The state before it was written a moment ago and is still at hand.
    """
    device = torch.device("cpu")
    state, action = blank(system, 1, device).state, example_action(system, 1, device)
    return Work(moved=state.nbytes + action.nbytes)


def of_products(call: Call, count: int) -> Work:
    """Multiply-adds of the matrix products in a call, for each of ``count`` things it makes."""
    in_place = {torch.ops.aten.addmm_: _operations}  # torch counts the other form only
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        call()
    return Work(multiply_adds=counter.get_total_flops() / 2 / count)


def _operations(total: Shape, a: Shape, b: Shape, **_: Any) -> int:
    """Of the product of two matrices that is added to what is there."""
    return 2 * a[0] * a[1] * b[1]


__all__ = ["Capacity", "measured", "of_products", "of_rollout", "of_step", "one_thread"]
