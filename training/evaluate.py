"""Evaluate checkpoints: ``python -m training.evaluate cartpole runs/out/*.safetensors``.

Writes CSV and figures to ``assets/results/``. Every number is against true states of the test
trajectories, which training never saw.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tyro
from rich.console import Console
from torch import Tensor

from piwm_gym.checks import writable_folder
from piwm_gym.models.vision import to_float
from piwm_gym.systems import get_system, unknown
from piwm_gym.world_model import WorldModel
from training.checks import load_trained
from training.collectors import get_collector
from training.dataset import TrajectoryDataset, load_dataset
from training.figures import draw_figures
from training.metrics import (
    CHUNK,
    WINDOWS,
    TestSet,
    decode,
    decoding,
    estimate,
    forecast_errors,
    misplacement,
    of_configuration,
    of_state,
    reading_errors,
    rmse,
    true_start,
)
from training.probe import FrameNet, train_pixel_controller, train_reader
from training.training_data import check_place

Rows = list[dict[str, Any]]
TABLES = ("estimation", "forecast", "parameters", "decoding", "agreement")
ESTIMATIONS = (("fd", 2), *(("shooting", window) for window in (2, 4, 10, 20)))


@dataclass(frozen=True)
class Subject:
    """A checkpoint under evaluation."""

    variant: str
    noise_level: float
    model: WorldModel

    @property
    def label(self) -> dict[str, Any]:
        """Leading columns of its rows."""
        return {"variant": self.variant, "noise_level": self.noise_level}


def load_subject(path: Path, system: str) -> Subject:
    """Checkpoint of a system with the noise level of its labels.

    Raises:
        CheckpointError: The file cannot be used.
        ValueError: It is of another system, or does not tell how it was trained.
    """
    model = load_trained(path)
    if model.system.name != system:
        raise ValueError(f"{path} is of {model.system.name!r}; expected a checkpoint of {system!r}")
    noise_level = model.metadata["data"]["supervision"]["noise_level"]
    return Subject(model.config.autoencoder.variant, noise_level, model)


def common_fold(subjects: Sequence[Subject]) -> int | None:
    """The fold that checkpoints were trained on; None for the plain split.

    Raises:
        ValueError: They differ: what one was trained on is test data of another.
    """
    folds = {subject.model.metadata["data"].get("fold") for subject in subjects}
    if len(folds) > 1:
        raise ValueError(
            f"checkpoints are of the folds {sorted(map(str, folds))}; expected one fold at a time"
        )
    return folds.pop() if folds else None


def estimation_rows(subject: Subject, test: TestSet, readings: Tensor) -> Rows:
    """State error from frames by window length; window 1 is the configuration alone."""
    model = subject.model
    system = model.system
    errors = reading_errors(model, test, readings)
    single = of_configuration(system, rmse(errors))
    middle = of_configuration(system, errors.abs().median(0).values.numpy())
    single |= {f"{name}_median": value for name, value in middle.items() if name != "scene"}
    if system.asset is not None:
        single |= misplacement(errors)
    rows: Rows = [{**subject.label, "init": "single", "window": 1, **single}]
    whole = system.in_view(test.states)
    if not whole.all():
        values = of_configuration(system, rmse(errors[whole]))
        rows.append({**subject.label, "init": "single, in view", "window": 1, **values})
    truth = test.futures[:, 0]
    for init, window in ESTIMATIONS:
        start = estimate(model, test, readings, window, init)
        error = system.difference(start.state, truth)
        values = of_state(system, rmse(error))
        rows.append({**subject.label, "init": init, "window": window, **values})
    return rows


def forecast_rows(subject: Subject, test: TestSet, readings: Tensor) -> Rows:
    """RMSE by horizon: from frames, and the lines that say where it comes from."""
    model, truth = subject.model, test.futures
    reference, perfect = model.system.reference, true_start(test)
    curves = {
        "persistence": model.system.difference(truth[:, :1], truth),
        "true parameters from the true state": forecast_errors(model, test, perfect, reference),
        "learned parameters from the true state": forecast_errors(model, test, perfect),
    }
    for window in WINDOWS:
        start = estimate(model, test, readings, window)
        curves[f"{window} frames"] = forecast_errors(model, test, start)
        start = estimate(model, test, readings, window, params=reference)
        curves[f"{window} frames, true parameters"] = forecast_errors(model, test, start, reference)
    return [
        {**subject.label, "line": line, **row}
        for line, error in curves.items()
        for row in _horizon(model, error)
    ]


def _horizon(model: WorldModel, error: Tensor) -> Iterable[dict[str, float]]:
    system = model.system
    values = rmse(error)
    normalised = (values / system.ranges.numpy())[:, system.estimated] ** 2
    for step, row in enumerate(values):
        yield {
            "step": step,
            **of_state(system, row),
            "normalised": float(normalised[step].mean() ** 0.5),
        }


def parameter_rows(subject: Subject) -> Rows:
    """Learned quantities of every start, beside the real environment's."""
    dynamics, system = subject.model.dynamics, subject.model.system
    truth = dynamics.parametrisation.from_params(system.reference)
    return [
        {
            **subject.label,
            "start": i,
            "parameter": name,
            "starting_value": start["start"][name],
            "learned": start["learned"][name],
            "truth": float(true),
            "relative_error": start["learned"][name] / float(true) - 1,
        }
        for i, start in enumerate(subject.model.metadata["stages"]["dynamics"]["starts"])
        for name, true in zip(dynamics.names, truth, strict=True)
    ]


@torch.no_grad()
def decoding_rows(subject: Subject, test: TestSet, reader: FrameNet) -> Rows:
    """Frames drawn from true states, read again by the model and by an independent reader.

    By the decoder that environments use, and the paper's, through the latent.
    """
    model = subject.model
    states, truth = test.states[::2], test.configurations[::2]
    scenes = truth[:, len(model.system.visible) :]

    def reread(shown: Callable[[Tensor], Tensor], suffix: str) -> dict[str, float]:
        """Errors of the independent reader, on the frames of some of the states."""
        system, errors = model.system, []
        for part in torch.arange(len(states)).split(CHUNK):
            seen = model.autoencoder.denormalize(reader(shown(part)))
            errors.append(system.difference(seen, truth[part], system.configuration))
        found = of_configuration(system, rmse(torch.cat(errors)))
        return {f"{name}{suffix}": error for name, error in found.items()}

    row = reread(lambda part: to_float(test.frames[::2][part]), "_by_the_reader_on_real_frames")
    usual = model.autoencoder.decodes_by
    for decoder, through in ((usual, ""), ("latent", "_through_the_latent")):
        model.autoencoder.use(decoder)
        own = decoding(model, test)
        row[f"foreground_mse{through}"] = own["foreground_mse"]
        row |= {f"{n}_by_the_model{through}": error for n, error in own["reread_rmse"].items()}
        drawn = reread(lambda part: decode(model, states[part], scenes[part]), "_by_the_reader")
        row |= {f"{name}{through}": error for name, error in drawn.items()}
    model.autoencoder.use(usual)
    return [{**subject.label, **row}]


@torch.no_grad()
def agreement_rows(subject: Subject, test: TestSet, readings: Tensor, controller: FrameNet) -> Rows:
    """Paper's Table 2: the pixel controller on frames and on their reconstructions.

    Discrete actions agree or not; of continuous ones, the root mean squared difference. What is
    drawn from true states tells how much of it is the drawing's, and how much the reading's.
    """
    model = subject.model
    discrete = isinstance(model.system.action_space, gym.spaces.Discrete)
    read, parts = readings[test.single], []
    for part in torch.arange(len(test.frames)).split(CHUNK):
        wanted = controller(to_float(test.frames[part]))
        drawn = (
            controller(model.autoencoder.decode(configurations).clamp(0, 1))
            for configurations in (read[part], test.configurations[part])
        )
        if discrete:
            parts.append([(x.argmax(-1) == wanted.argmax(-1)).float() for x in drawn])
        else:
            parts.append([(x - wanted).square().mean(-1) for x in drawn])
    each, of_true = map(torch.cat, zip(*parts, strict=True))
    by_trajectory = torch.stack(
        [each[test.trajectories == i].mean() for i in test.trajectories.unique()]
    )
    name = "agreement_percent" if discrete else "action_rmse"

    def told(values: Tensor) -> Tensor:
        return 100 * values if discrete else values.sqrt()

    return [
        {
            **subject.label,
            name: float(told(each.mean())),
            "std_over_trajectories": float(told(by_trajectory).std()),
            f"{name}_from_true_states": float(told(of_true.mean())),
        }
    ]


def write_csv(path: Path, rows: Rows) -> None:
    """Rows as CSV, numbers with five significant digits."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: _short(v) for k, v in row.items()})


def _short(value: Any) -> Any:
    return value if isinstance(value, str | int) else f"{float(value):.5g}"


def rows_of_others(path: Path, subjects: list[Subject]) -> Rows:
    """Rows of an earlier table about checkpoints that are not evaluated now."""
    if not path.is_file():
        return []
    now = {(s.variant, s.noise_level) for s in subjects}
    with path.open(newline="") as file:
        rows = [{k: _number(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [row for row in rows if (row["variant"], float(row["noise_level"])) not in now]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def evaluate(
    subjects: list[Subject],
    dataset: TrajectoryDataset,
    probes: Path,
    names: Sequence[str] = TABLES,
) -> dict[str, Rows]:
    """All tables, by name; those that are not asked for are empty.

    Args:
        subjects: Checkpoints of one system.
        dataset: Real trajectories; those of the test split are used.
        probes: Folder of the independent networks, which take longest to train.
        names: Which tables to fill, of :data:`TABLES`.
    """
    system = subjects[0].model.system
    test = TestSet(dataset, system, torch.device("cpu"))
    readings = cache(lambda subject: test.readings(subject.model))
    makers: dict[str, Callable[[Subject], Rows]] = {
        "estimation": lambda subject: estimation_rows(subject, test, readings(subject)),
        "forecast": lambda subject: forecast_rows(subject, test, readings(subject)),
        "parameters": parameter_rows,
    }
    if "decoding" in names:
        reader = train_reader(dataset, system, probes)
        makers["decoding"] = lambda subject: decoding_rows(subject, test, reader)
    if "agreement" in names:
        actions = get_collector(system.name).expert(dataset.states, system)
        controller = train_pixel_controller(dataset, system, actions, probes)
        makers["agreement"] = lambda subject: agreement_rows(
            subject, test, readings(subject), controller
        )
    return {
        name: [row for subject in subjects for row in makers[name](subject)]
        if name in names
        else []
        for name in TABLES
    }


def write_tables(tables: dict[str, Rows], subjects: list[Subject], system: str, out: Path) -> None:
    """Write tables and figures; rows about other checkpoints join the new ones.

    A table without any rows has no file.
    """
    for name, rows in tables.items():
        path = out / f"{system}-{name}.csv"
        rows += rows_of_others(path, subjects)
        rows.sort(key=lambda row: (row["variant"], row["noise_level"]))
        if rows:
            write_csv(path, rows)
        else:
            path.unlink(missing_ok=True)
    if tables.get("forecast") and tables.get("parameters"):
        draw_figures(tables, system, out)


def main(
    system: tyro.conf.Positional[str],
    checkpoints: tyro.conf.Positional[tuple[Path, ...]],
    data: Path | None = None,
    out: Path = Path("assets/results"),
    runs: Path = Path("runs"),
    only: tuple[str, ...] = TABLES,
) -> None:
    """Evaluate checkpoints of one system together; rows about others stay in the tables.

    Args:
        system: Short name of the system, such as cartpole.
        checkpoints: Files that ``training.train`` wrote.
        data: Folder of the data set; data/SYSTEM-laptop if not given.
        out: Folder for CSV files and figures.
        runs: Folder for the probes.
        only: Tables to fill. What the others said of these checkpoints is removed from them: it
            was about earlier ones.
    """
    console = Console(stderr=True)
    try:
        for name in only:
            if name not in TABLES:
                raise ValueError(unknown("table", name, TABLES))
        get_system(system)
        if not checkpoints:
            raise ValueError("checkpoints: there are none; expected at least one file")
        subjects = sorted(
            (load_subject(path, system) for path in checkpoints),
            key=lambda subject: (subject.variant, subject.noise_level),
        )
        fold = common_fold(subjects)
        dataset = load_dataset(data or Path("data") / f"{system}-laptop", fold=fold)
        for subject in subjects:
            check_place(subject.model, dataset.manifest)
        writable_folder("out", out)
        writable_folder("runs", runs)
        tables = evaluate(subjects, dataset, runs / system / "probes", only)
    except (ValueError, FileNotFoundError) as error:
        console.print(str(error), markup=False)
        sys.exit(2)
    write_tables(tables, subjects, system, out)
    counts = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in tables.items())
    console.print(f"{out}: {counts}", markup=False)


if __name__ == "__main__":
    tyro.cli(main)
