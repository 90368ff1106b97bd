"""Independent jobs side by side: in processes of this machine, or as tasks of a ray cluster.

Each of :func:`processes`, :func:`threads` and :func:`cluster` gives a *submit* function: it takes
a function with its arguments and returns a future. On a cluster all machines must see the same
files at the same paths: this repository, its Python environment, data, runs and checkpoints.
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

Submit = Callable[..., "Future[Any]"]

ROOT = Path(__file__).parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""One numerical thread per job, since several run side by side; read when libraries load."""

_running: set[subprocess.Popen[bytes]] = set()


@contextmanager
def processes(workers: int) -> Iterator[Submit]:
    """Submit functions to so many fresh processes, which end when this one does."""
    with (
        _environment(ONE_THREAD),
        ProcessPoolExecutor(workers, get_context("spawn"), initializer=_watch_parent) as pool,
    ):
        try:
            yield pool.submit
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def threads(workers: int) -> Iterator[Submit]:
    """Submit functions that mostly wait for a :func:`run_module` of theirs."""
    with _environment(ONE_THREAD), ThreadPoolExecutor(workers) as pool:
        try:
            yield pool.submit
        except BaseException:
            for process in tuple(_running):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def cluster(address: str, gpus: float | None = 0.0) -> Iterator[Submit]:
    """Submit functions as tasks of a ray cluster; a lost machine's tasks start again elsewhere.

    Args:
        address: "auto" for the cluster that this machine is part of, "local" for one made of this
            machine alone, or host:port.
        gpus: GPUs that a task takes, also a part of one; None takes one where there are any.

    Raises:
        ImportError: ray is not installed.
        ConnectionError: There is no such cluster.
    """
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError("--ray needs the package ray: pip install 'piwm-gym[cluster]'") from None
    opened = not ray.is_initialized()
    if opened:
        environment = {"PYTHONPATH": str(ROOT), **ONE_THREAD}
        ray.init(address, runtime_env={"env_vars": environment}, log_to_driver=False)
    if gpus is None:
        gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0))
    task = ray.remote(num_cpus=1, num_gpus=gpus)(_call)
    try:
        yield lambda function, *arguments: task.remote(function, *arguments).future()
    finally:
        if opened:
            ray.shutdown()


def run_module(arguments: Sequence[str], log: Path) -> int:
    """Run ``python -m`` with these arguments; it ends when this process does.

    Args:
        arguments: A module of this repository, then its arguments; paths must be absolute.
        log: Where its output goes.

    Returns:
        Its exit status; negative: the signal that ended it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "training.fanout", *arguments]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        _running.add(process)
        try:
            return process.wait()
        finally:
            _running.discard(process)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Ray takes plain functions only, no partial ones."""
    return function(*arguments)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Environment variables that child processes inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _watch_parent() -> None:
    """Make a pool's worker end when its parent is killed; it would wait for ever."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _watch_standard_input() -> None:
    """End when standard input does: whoever started this process holds the other end."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_watch_standard_input, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
