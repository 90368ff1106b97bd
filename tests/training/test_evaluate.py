"""Metrics against closed forms, and the evaluation end to end on a few trajectories."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from piwm_gym.checkpoint import save
from piwm_gym.systems import CartPole
from piwm_gym.world_model import WorldModel
from training import evaluate, probe, report
from training.collect import Settings, collect
from training.dataset import TrajectoryDataset, load_dataset
from training.fit import FitConfig
from training.metrics import HORIZON, WINDOWS, TestSet, forecast_errors, rmse, true_start
from training.report import Results

SYSTEM = CartPole()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect(Settings("cartpole", trajectories=40, shard_size=40), folder)
    return folder


@pytest.fixture(scope="module")
def dataset(folder: Path) -> TrajectoryDataset:
    return load_dataset(folder)


@pytest.fixture(scope="module")
def test_set(dataset: TrajectoryDataset) -> TestSet:
    return TestSet(dataset, SYSTEM, torch.device("cpu"), np.arange(len(dataset)))


def test_windows_are_aligned_and_hold_no_terminal_state(test_set: TestSet) -> None:
    futures = test_set.futures
    assert futures.shape[1:] == (HORIZON + 1, 4)
    assert not SYSTEM.terminal(futures).any()
    assert not SYSTEM.terminal(test_set.states).any()
    for window in WINDOWS:
        frames, actions = test_set.contexts(window)
        assert frames.shape[:2] == (len(futures), window)
        assert actions.shape == (len(futures), window - 1)


def test_true_parameters_from_true_states_make_no_error(
    test_set: TestSet, model: WorldModel
) -> None:
    errors = forecast_errors(model, test_set, true_start(test_set), SYSTEM.reference)
    assert float(errors.abs().max()) < 1e-4


def test_rmse_is_over_samples() -> None:
    assert rmse(torch.tensor([[3.0, 0.0], [-3.0, 4.0]])) == pytest.approx([3.0, 8**0.5])


def test_evaluation_end_to_end(
    folder: Path, model: WorldModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = FitConfig(epochs=1, batch_size=32, samples_per_epoch=64, warmup_epochs=1)
    for function in (probe.train_reader, probe.train_pixel_controller):
        monkeypatch.setattr(function, "__defaults__", (tiny,))
    quantities = dict(zip(model.dynamics.names, (9.0, 0.1, 0.5), strict=True))
    start = {"start": quantities, "learned": quantities, "loss": 0.0}
    metadata = {
        "data": {"supervision": {"noise_level": 0.05}},
        "stages": {"dynamics": {"starts": [start]}},
    }
    checkpoint = tmp_path / "cartpole-extrinsic-discrete.safetensors"
    save(model, checkpoint, metadata)
    evaluate.main("cartpole", (checkpoint,), data=folder, out=tmp_path, runs=tmp_path)
    with (tmp_path / "cartpole-forecast.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["line"] for row in rows} >= {"persistence", "2 frames", "20 frames"}
    assert len(rows) % (HORIZON + 1) == 0
    results = Results(tmp_path, "cartpole")
    perfect = "true parameters from the true state"
    assert results.number("forecast", "x", line=perfect, step=30) < 1e-4
    assert 0 <= results.number("agreement", "agreement_percent") <= 100
    report.main("cartpole", tmp_path)
    assert "not measured yet" in (tmp_path / "cartpole-targets.md").read_text()
    assert "`extrinsic-discrete`" in (tmp_path / "cartpole-variants.md").read_text()
    for name in ("forecast", "parameters"):
        assert (tmp_path / f"cartpole-{name}.png").stat().st_size > 1000


def test_a_missing_checkpoint_is_explained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main("cartpole", (Path("nowhere.safetensors"),), data=folder)
    assert "nowhere.safetensors" in capsys.readouterr().err
