"""Independent pieces of work on all cores at once.

Torch splits every operation among its threads, which then wait for each other. Where operations
are short, a thread for each piece is quicker, and many times so where other processes keep the
cores busy.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


# A forked process has none of the threads that torch would wait for; new ones hang.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def limit_worker_threads() -> None:
    """Use one torch thread if this is a worker process: those that share cores slow each other."""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)


def spread(function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """Results of a function for every piece, computed in as many threads as torch uses.

    Args:
        function: Safe to be called from several threads; it has to switch gradients off itself.
        pieces: Its arguments.
    """
    count = torch.get_num_threads()
    if count == 1 or len(pieces) < 2:
        return [function(piece) for piece in pieces]
    return list(_workers(os.getpid(), count).map(function, pieces))


@cache
def _workers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that use one core each; a forked process has none of its parent's."""
    started = Barrier(count + 1)

    def start() -> None:
        torch.get_num_threads()  # what asks first in a thread resets it to what was set last
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(count, "piwm_gym", start)
    for _ in range(count):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(count)  # what was set last, in any thread, is what new threads begin with
    return pool


__all__ = ["limit_worker_threads", "spread"]
