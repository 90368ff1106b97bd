"""What each form of Donkey Car's bicycle is worth: learned alike, forecast from true states.

    python -m benchmarks.bicycle

Every parametrisation of the system is learned from the same weak labels and the same encoded
frames of the training drives, as in stage 3. The forecasts start from true states of the test
drives and run freely for 30 steps (1.5 s). Grass brakes a car, and the plainer forms know of none:
so each is tested on all windows, and on those alone that stay on the road. Writes
``assets/results/donkey_car-bicycle.csv``.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tyro
from torch import Tensor

from benchmarks.tables import Row, print_rows
from piwm_gym.checkpoint import load
from piwm_gym.courses import ROAD_HALF_WIDTH, ROAD_OFFSET
from piwm_gym.models import Dynamics
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import DonkeyCar
from piwm_gym.world_model import WorldModel
from training.config import preset
from training.dataset import load_dataset
from training.dynamics import train_dynamics
from training.evaluate import write_csv
from training.metrics import TestSet, forecast_errors, of_state, rmse, true_start
from training.pipeline import dynamics_batches
from training.reading import encode_all
from training.run import Run
from training.supervision import Supervision
from training.training_data import TrainingData

ENV_ID = "PIWM-DonkeyCar-v0"
FORMS = {
    "paper": "paper: bicycle with throttle and drag",
    "understeer": "and understeer",
    "identifiable": "and verge drag, turning loss, steering lag (default)",
}
"""Parametrisations, and what they add."""


ALL, ROAD = "all", "on the road"
"""Which windows are forecast."""


def on_road(system: DonkeyCar, states: Tensor) -> Tensor:
    """(N,) whether the car is on the road at all times of (N, T, D) states."""
    away = (system.place(states).cte - ROAD_OFFSET).abs()
    return (away < ROAD_HALF_WIDTH).all(1)


def rows_of(
    system: DonkeyCar, model: WorldModel, test: TestSet, form: str, params: Any
) -> list[Row]:
    """Errors of one form, 30 steps after true states: of all windows and of those on the road."""
    errors = forecast_errors(model, test, true_start(test), params)[:, -1]
    road = on_road(system, test.futures)
    values = {name: float(getattr(params, name)) for name in params.names()}
    return [
        {
            "form": FORMS[form],
            "tested_on": windows,
            "windows": int(chosen.sum()),
            **of_state(system, rmse(errors[chosen])),
            **values,
        }
        for windows, chosen in ((ALL, torch.ones_like(road)), (ROAD, road))
    ]


def main(
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    data: Path = Path("data/donkey_car-laptop"),
    starts: int = 1,
    out: Path = Path("assets/results/donkey_car-bicycle.csv"),
) -> None:
    """Learn and compare the forms.

    Args:
        variant: Whose encoder reads the frames.
        checkpoint: A file instead of the shipped weights.
        data: Folder of the data set.
        starts: Starting points of each form.
        out: CSV file.
    """
    torch.set_num_threads(1)
    model = load(ENV_ID, variant, checkpoint, "cpu")
    dataset = load_dataset(data)
    prepared = TrainingData.prepare(dataset, Supervision(0.05), torch.device("cpu"))
    readings = encode_all(model.autoencoder, prepared.frames)
    train, validation = dynamics_batches(prepared, readings)
    system = prepared.system
    assert isinstance(system, DonkeyCar)
    test = TestSet(dataset, system, torch.device("cpu"))
    config = preset("laptop", variant, system.name).dynamics
    rows: list[Row] = []
    for form in FORMS:
        dynamics = Dynamics(system, form)
        with TemporaryDirectory() as folder:
            run = Run(Path(folder))
            train_dynamics(dynamics, system, train, validation, config, starts, run)
        with torch.no_grad():
            rows += rows_of(system, model, test, form, dynamics.params)
        print_rows(rows[-2:], tuple(rows[-1]), FORMS[form])
    write_csv(out, rows)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["FORMS", "main", "on_road", "rows_of"]
