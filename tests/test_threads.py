"""Pieces of work in threads: their order, their threads of torch, and that a fork gets its own."""

import multiprocessing
import threading

import pytest
import torch

from piwm_gym.threads import spread

pytestmark = pytest.mark.usefixtures("three_threads")


def _where(piece: int) -> tuple[int, str, int]:
    return piece, threading.current_thread().name, torch.get_num_threads()


def _spread_in_a_fork(queue: "multiprocessing.SimpleQueue[list[int]]") -> None:
    queue.put([piece for piece, _, _ in spread(_where, range(4))])


def _sum_in_a_fork(queue: "multiprocessing.SimpleQueue[float]") -> None:
    queue.put(float(torch.ones(2_000_000).sum()))


def test_a_fork_does_not_wait_for_its_parents_threads() -> None:
    total = float(torch.ones(2_000_000).sum())  # in several threads
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_sum_in_a_fork, args=(queue,), daemon=True)
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert queue.get() == total


def test_results_come_in_order_from_threads_of_one_core_each() -> None:
    results = spread(_where, range(20))
    assert [piece for piece, _, _ in results] == list(range(20))
    assert all(name.startswith("piwm_gym") and count == 1 for _, name, count in results)


def test_torch_keeps_its_threads_elsewhere() -> None:
    spread(_where, range(4))
    assert torch.get_num_threads() == 3
    seen = list[int]()
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [3], "new threads begin with what was set last"


def test_one_piece_and_one_thread_stay_with_the_caller() -> None:
    own = threading.current_thread().name
    assert [name for _, name, _ in spread(_where, [1])] == [own]
    torch.set_num_threads(1)
    assert {name for _, name, _ in spread(_where, range(3))} == {own}


def test_errors_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        spread(lambda piece: 1 // piece, [1, 0])


def test_a_forked_process_has_threads_of_its_own() -> None:
    spread(_where, range(4))
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.SimpleQueue[list[int]] = context.SimpleQueue()
    child = context.Process(target=_spread_in_a_fork, args=(queue,))
    child.start()
    child.join(30)
    assert child.exitcode == 0, "it waits for threads that only its parent has"
    assert queue.get() == list(range(4))
