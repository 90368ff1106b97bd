"""Everything from nothing: ``python -m training.reproduce cartpole --preset gpu``.

Collects the data sets, trains the cells of the matrix system x variant x noise level x fold,
evaluates their checkpoints, and with ``--ship`` replaces the shipped weights. Cells run side by
side: on this machine (``--jobs``), or with ``--ray auto`` as tasks of a ray cluster whose machines
share the folders. A cell whose checkpoint is there, with these settings and of these data, is not
run again and one that was killed goes on where it was, so an interrupted run is repeated with the
same command. A cell that fails does not stop the others. What follows ``--`` overrides settings
of all cells: ``-- --vision.epochs 10``.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from piwm_gym.checkpoint import write_manifest
from piwm_gym.checks import writable_folder
from piwm_gym.locate import WEIGHTS, file_name
from piwm_gym.models import VARIANTS
from training import fanout
from training.collect import collect, preset_settings
from training.dataset import load_dataset, read_manifest
from training.evaluate import evaluate, load_subject, write_tables
from training.train import is_finished, parse

SHIPPED_NOISE_LEVEL = 0.05
LOG_LINES = 5


@dataclass(frozen=True)
class Cell:
    """One training run of the matrix; ``fold`` None is the plain split."""

    system: str
    variant: str
    noise_level: float
    fold: int | None

    @property
    def name(self) -> str:
        """Its name in messages and of its log."""
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"{self.system}-{self.variant}-noise{self.noise_level:g}{fold}"

    @property
    def place(self) -> Path:
        """Folder of its checkpoint, below that of all."""
        return Path(f"noise-{self.noise_level:g}", _of_fold(self.fold))

    @property
    def first_stage(self) -> tuple[object, ...]:
        """Equal for cells that share stage 1: extrinsic ones do not see labels in it."""
        shared = self.variant.startswith("extrinsic")
        return self.system, self.variant, self.fold, None if shared else self.noise_level


def _of_fold(fold: int | None) -> str:
    """Name of a fold's folder; the plain split has none of its own."""
    return "" if fold is None else f"fold-{fold}"


@dataclass(frozen=True)
class Matrix:
    """What to train, and where.

    Attributes:
        systems: Short names of the systems, such as cartpole.
        variants: Variants of the world model.
        noise_levels: Label noise levels to train with.
        folds: Folds of cross-validation, 0 to 4; without any, the plain split.
        preset: Training preset: gpu for a GPU and 16 cores, laptop for a CPU.
        data_preset: Size of the data sets.
        jobs: Cells trained at the same time on this machine.
        ray: Address of a ray cluster that trains them instead: auto, local or host:port.
        gpus: GPUs of the cluster that a cell takes, such as 0.25; if not given, one where there
            are any.
        data: Folder of the data sets.
        runs: Folder for logs and resumable states.
        out: Folder for checkpoints.
        results: Folder for tables and figures.
        ship: Copy the checkpoints of noise level 5 % into the package.
    """

    systems: tyro.conf.Positional[tuple[str, ...]]
    variants: tuple[str, ...] = VARIANTS
    noise_levels: tuple[float, ...] = (0.0, SHIPPED_NOISE_LEVEL, 0.1)
    folds: tuple[int, ...] = ()
    preset: str = "gpu"
    data_preset: str = "laptop"
    jobs: int = 4
    ray: str | None = None
    gpus: float | None = None
    data: Path = Path("data")
    runs: Path = Path("runs")
    out: Path = Path("runs/checkpoints")
    results: Path = Path("assets/results")
    ship: bool = False

    @property
    def cells(self) -> list[Cell]:
        """All cells, each once."""
        folds = self.folds or (None,)
        every = product(self.systems, self.variants, self.noise_levels, folds)
        return list(dict.fromkeys(Cell(*values) for values in every))

    def data_folder(self, system: str) -> Path:
        """Folder of a system's data set."""
        return self.data / f"{system}-{self.data_preset}"

    def checkpoint(self, cell: Cell) -> Path:
        """Where a cell's checkpoint goes."""
        return self.out / cell.place / file_name(cell.system, cell.variant)

    def log(self, cell: Cell) -> Path:
        """Where the output of a cell's last run goes."""
        return (self.runs / "logs" / f"{cell.name}.log").resolve()

    def arguments(self, cell: Cell) -> list[str]:
        """Of ``training.train``, with absolute paths."""
        fold = () if cell.fold is None else ("--fold", cell.fold)
        words = (
            *(cell.system, "--preset", self.preset, "--variant", cell.variant),
            *("--noise-level", cell.noise_level, *fold, "--quiet"),
            *("--data", self.data_folder(cell.system).resolve(), "--runs", self.runs.resolve()),
            *("--out", (self.out / cell.place).resolve()),
        )
        return list(map(str, words))

    def check(self) -> None:
        """Raise ValueError for what cannot be asked for; unknown names show in ``parse``."""
        for name in ("systems", "variants", "noise_levels"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; expected at least one")
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; expected at least 1")
        if self.ship and (self.folds or SHIPPED_NOISE_LEVEL not in self.noise_levels):
            raise ValueError(
                f"ship takes models of noise level {SHIPPED_NOISE_LEVEL} and of the plain split; "
                f"noise_levels is {self.noise_levels}, folds {self.folds}"
            )


def work_off(
    cells: Iterable[Cell], start: Callable[[Cell], "Future[int]"], finished: Iterable[Cell] = ()
) -> Iterator[tuple[Cell, str]]:
    """Run cells as soon as they may run; yields each when it has ended.

    Of cells that share stage 1, one runs at a time until one is finished, which made it for all.

    Args:
        cells: What to run.
        start: Starts a cell; its future holds an exit status.
        finished: Cells that need not run.

    Yields:
        A cell and what went wrong, empty if nothing did.
    """
    waiting, running = list(cells), dict[Future[int], Cell]()
    made = {cell.first_stage for cell in finished}
    while waiting or running:
        for cell in tuple(waiting):
            in_work = {other.first_stage for other in running.values()}
            if cell.first_stage in made or cell.first_stage not in in_work:
                waiting.remove(cell)
                running[start(cell)] = cell
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            cell = running.pop(future)
            error = future.exception()
            problem = repr(error) if error else _problem(future.result())
            if not problem:
                made.add(cell.first_stage)
            yield cell, problem


def _problem(status: int) -> str:
    if status < 0:
        return f"ended by signal {-status}"
    return f"exit status {status}" if status else ""


def train_cells(
    matrix: Matrix, overrides: Sequence[str], submit: fanout.Submit, console: Console
) -> dict[Cell, str]:
    """Train the cells that are not finished.

    Returns:
        What went wrong with those that failed.
    """
    manifests = {name: read_manifest(matrix.data_folder(name)) for name in matrix.systems}

    def arguments(cell: Cell) -> list[str]:
        return [*matrix.arguments(cell), *overrides]

    def finished(cell: Cell) -> bool:
        args, (config,) = parse(arguments(cell))
        return is_finished(args, config, manifests[cell.system])

    def start(cell: Cell) -> "Future[int]":
        words = ["training.train", *arguments(cell)]
        return submit(fanout.run_module, words, matrix.log(cell))

    done = [cell for cell in matrix.cells if finished(cell)]
    failed: dict[Cell, str] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("cells", total=len(matrix.cells), completed=len(done))
        for cell, problem in work_off([c for c in matrix.cells if c not in done], start, done):
            if not problem and not finished(cell):
                problem = f"no checkpoint of it in {matrix.out}; is that on a shared file system?"
            if problem:
                failed[cell] = problem
            bar.update(task, advance=1, description=f"cells, {len(failed)} failed")
            console.print(f"{cell.name}: {problem or 'finished'}", markup=False, soft_wrap=True)
    return failed


def evaluate_cells(matrix: Matrix, system: str, fold: int | None, console: Console) -> None:
    """Tables and figures of a system's checkpoints, on the fold's own test trajectories.

    Rows about checkpoints that are not of this matrix stay in the tables.
    """
    cells = [cell for cell in matrix.cells if (cell.system, cell.fold) == (system, fold)]
    dataset = load_dataset(matrix.data_folder(system), fold=fold)
    subjects = sorted(
        (load_subject(matrix.checkpoint(cell), system) for cell in cells),
        key=lambda subject: (subject.variant, subject.noise_level),
    )
    results = matrix.results / _of_fold(fold)
    tables = evaluate(subjects, dataset, matrix.runs / system / _of_fold(fold) / "probes")
    write_tables(tables, subjects, system, results)
    console.print(f"{system}: {', '.join(tables)} in {results}", markup=False)


def ship(matrix: Matrix) -> Path:
    """Copy checkpoints into the package; returns the manifest of its weights."""
    for cell in matrix.cells:
        if cell.noise_level == SHIPPED_NOISE_LEVEL:
            path = matrix.checkpoint(cell)
            shutil.copyfile(path, WEIGHTS / path.name)
    return write_manifest(WEIGHTS)


def report(matrix: Matrix, failed: dict[Cell, str], console: Console) -> None:
    """Say which cells failed, and how their logs end."""
    for cell, problem in failed.items():
        log = matrix.log(cell)
        console.print(f"\n{cell.name} failed: {problem}; log: {log}", markup=False, soft_wrap=True)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        for line in lines[-LOG_LINES:]:
            console.print(f"    {line}", markup=False, soft_wrap=True)


def run(matrix: Matrix, overrides: Sequence[str], console: Console) -> int:
    """Collect, train, evaluate, ship; returns the exit status."""
    matrix.check()
    for cell in matrix.cells:  # mistakes show before anything runs
        parse([*matrix.arguments(cell), *overrides])
    settings = [preset_settings(system, matrix.data_preset) for system in matrix.systems]
    for name in ("data", "runs", "out", "results"):
        writable_folder(name, getattr(matrix, name))
    with (
        fanout.cluster(matrix.ray, matrix.gpus) if matrix.ray else fanout.threads(matrix.jobs)
    ) as submit:
        for each in settings:
            folder = matrix.data_folder(each.system)
            collect(each, folder, matrix.jobs, ray=matrix.ray, quiet=False)
        failed = train_cells(matrix, overrides, submit, console)
    incomplete = {(cell.system, cell.fold) for cell in failed}
    for system, fold in dict.fromkeys((cell.system, cell.fold) for cell in matrix.cells):
        if (system, fold) in incomplete:
            console.print(f"{system} {_of_fold(fold)} is not evaluated: cells of it failed")
        else:
            evaluate_cells(matrix, system, fold, console)
    if matrix.ship and not failed:
        console.print(str(ship(matrix)), markup=False)
    report(matrix, failed, console)
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    console = Console(stderr=True)
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    matrix = tyro.cli(Matrix, args=words[:end], prog="python -m training.reproduce")
    try:
        return run(matrix, words[end + 1 :], console)
    except (ValueError, FileNotFoundError, ImportError, ConnectionError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2


if __name__ == "__main__":
    sys.exit(main())
