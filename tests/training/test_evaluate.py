"""Metrics against closed forms, and the evaluation end to end on a few trajectories."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from machine_code import drawn_directly

from piwm_gym.checkpoint import save
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import CartPole, lunar_lander
from piwm_gym.world_model import WorldModel
from training import evaluate, probe, report
from training.collect import Settings, collect
from training.dataset import TrajectoryDataset, load_dataset
from training.fit import FitConfig
from training.metrics import (
    HORIZON,
    WINDOWS,
    TestSet,
    decoding,
    forecast_errors,
    misplacement,
    reading_errors,
    rmse,
    true_start,
)
from training.results import Results

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

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


def test_windows_are_aligned_and_hold_no_terminal_state(
    test_set: TestSet, model: WorldModel
) -> None:
    futures = test_set.futures
    assert futures.shape[1:] == (HORIZON + 1, 4)
    assert not SYSTEM.terminal(futures).any()
    assert not SYSTEM.terminal(test_set.states).any()
    readings = test_set.readings(model)
    torch.testing.assert_close(readings[test_set.single], model.encode_frames(test_set.frames))
    for window in WINDOWS:
        read, actions = test_set.contexts(readings, window)
        assert read.shape == (len(futures), window, readings.shape[-1])
        assert actions.shape == (len(futures), window - 1)


def test_of_single_frames_every_so_many_are_enough(
    dataset: TrajectoryDataset, test_set: TestSet, model: WorldModel
) -> None:
    sparse = TestSet(dataset, SYSTEM, torch.device("cpu"), np.arange(len(dataset)), every=3)
    times = test_set.single.nonzero()[:, 1]
    assert torch.equal(sparse.frames, test_set.frames[times % 3 == 0])
    assert torch.equal(sparse.futures, test_set.futures)
    readings, whole = sparse.readings(model), test_set.readings(model)
    torch.testing.assert_close(readings[sparse.single], model.encode_frames(sparse.frames))
    assert readings.isnan().any()
    for window in WINDOWS:
        read, actions = sparse.contexts(readings, window)
        torch.testing.assert_close(read, test_set.contexts(whole, window)[0])
        assert torch.equal(actions, test_set.contexts(whole, window)[1])


def test_true_parameters_from_true_states_make_no_error(
    test_set: TestSet, model: WorldModel
) -> None:
    errors = forecast_errors(model, test_set, true_start(test_set), SYSTEM.reference)
    assert float(errors.abs().max()) < 1e-4


def test_both_ways_to_a_frame_are_judged(test_set: TestSet) -> None:
    model = drawn_directly("cartpole").eval()
    reader = probe.FrameNet(SYSTEM, model.autoencoder.num_features).eval()
    subject = evaluate.Subject("extrinsic-discrete", 0.05, model)
    (row,) = evaluate.decoding_rows(subject, test_set, reader)
    assert model.autoencoder.decodes_by == "direct"
    for decoder, through in (("direct", ""), ("latent", "_through_the_latent")):
        model.autoencoder.use(decoder)
        expected = decoding(model, test_set)
        assert row[f"foreground_mse{through}"] == expected["foreground_mse"]
        assert row[f"x_by_the_model{through}"] == expected["reread_rmse"]["x"]
    assert row["foreground_mse"] != row["foreground_mse_through_the_latent"]
    assert row["x_by_the_reader"] != row["x_by_the_reader_through_the_latent"]


def test_a_probe_is_used_again_only_for_what_it_was_trained_on(
    dataset: TrajectoryDataset, tmp_path: Path
) -> None:
    tiny = FitConfig(epochs=1, batch_size=32, samples_per_epoch=64, warmup_epochs=1)
    turned = replace(dataset, fold=1)
    manifest = dataset.manifest
    others = replace(dataset, manifest={**manifest, "shards": [{"sha256": "0"}]})
    expert = np.zeros(dataset.states.shape[:2], dtype=np.int64)
    expert[0, 0] = 1
    trainings = [
        lambda folder, data=data, config=config: probe.train_reader(data, SYSTEM, folder, config)
        for data in (dataset, turned, others)
        for config in (tiny, replace(tiny, learning_rate=2e-3))
    ] + [
        lambda folder, actions=actions: probe.train_pixel_controller(
            dataset, SYSTEM, actions, folder, tiny
        )
        for actions in (expert, 1 - expert)
    ]
    shared = tmp_path / "shared"
    for count, train in enumerate(trainings, start=1):
        train(shared)
        assert len(list(shared.iterdir())) == count
    written = {path: path.stat().st_mtime_ns for path in shared.iterdir()}
    for train in trainings[:: len(trainings) - 1]:
        again, alone = train(shared), train(tmp_path / "alone")
        assert all(map(torch.equal, again.parameters(), alone.parameters()))
    assert {path: path.stat().st_mtime_ns for path in shared.iterdir()} == written


def test_rmse_is_over_samples() -> None:
    assert rmse(torch.tensor([[3.0, 0.0], [-3.0, 4.0]])) == pytest.approx([3.0, 8**0.5])


def test_misplacement_counts_frames_more_than_a_metre_off() -> None:
    errors = torch.tensor([[0.0, 0.1, 9.0], [0.3, 0.4, 0.0], [0.0, 0.2, 0.0], [0.8, 0.8, 0.0]])
    found = misplacement(errors)
    assert found["misplaced_percent"] == 25
    assert found["median_distance"] == pytest.approx(0.2)


def evaluated(
    model: WorldModel, folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> Results:
    """Evaluation and report of a model, with probes that hardly train."""
    tiny = FitConfig(epochs=1, batch_size=32, samples_per_epoch=64, warmup_epochs=1)
    for function in (probe.train_reader, probe.train_pixel_controller):
        monkeypatch.setattr(function, "__defaults__", (tiny,))
    system = model.system.name
    quantities = {
        n: 1.1 * float(v.detach())
        for n, v in zip(model.dynamics.names, model.dynamics.values, strict=True)
    }
    start = {"start": quantities, "learned": quantities, "loss": 0.0}
    metadata = {
        "data": {"supervision": {"noise_level": 0.05}},
        "stages": {"dynamics": {"starts": [start]}},
        "training": {},
    }
    checkpoint = out / f"{system}-{DEFAULT_VARIANT}.safetensors"
    save(model, checkpoint, metadata)
    evaluate.main(system, (checkpoint,), data=folder, out=out, runs=out)
    report.main(system, out)
    return Results(out, system)


def test_evaluation_end_to_end(
    folder: Path, model: WorldModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = evaluated(model, folder, tmp_path, monkeypatch)
    rows = results.rows("forecast")
    assert {row["line"] for row in rows} >= {"persistence", "2 frames", "20 frames"}
    assert len(rows) % (HORIZON + 1) == 0
    perfect = "true parameters from the true state"
    assert results.number("forecast", "x", line=perfect, step=30) < 1e-4
    for column in ("agreement_percent", "agreement_percent_from_true_states"):
        assert 0 <= results.number("agreement", column) <= 100
    assert "not measured yet" in (tmp_path / "cartpole-targets.md").read_text()
    assert not (tmp_path / "cartpole-variants.md").exists()
    for name in ("estimation", "forecast", "decoding", "agreement"):  # as if there were another
        table = tmp_path / f"cartpole-{name}.csv"
        lines = table.read_text().splitlines()[1:]
        other = [line.replace(DEFAULT_VARIANT, "intrinsic-discrete") for line in lines]
        table.write_text(table.read_text() + "\n".join(other) + "\n")
    report.main("cartpole", tmp_path)
    variants = (tmp_path / "cartpole-variants.md").read_text()
    assert f"`{DEFAULT_VARIANT}`" in variants
    assert "`intrinsic-discrete`" in variants
    for name in ("forecast", "parameters"):
        assert (tmp_path / f"cartpole-{name}.png").stat().st_size > 1000
    # Filling one table removes what the others said of an earlier checkpoint, and no more.
    paths = (tmp_path / f"cartpole-{DEFAULT_VARIANT}.safetensors",)
    evaluate.main("cartpole", paths, data=folder, out=tmp_path, runs=tmp_path, only=("estimation",))
    results = Results(tmp_path, "cartpole")
    assert {row["variant"] for row in results.rows("estimation")} == {
        DEFAULT_VARIANT,
        "intrinsic-discrete",
    }
    assert {row["variant"] for row in results.rows("agreement")} == {"intrinsic-discrete"}
    assert not (tmp_path / "cartpole-parameters.csv").exists()
    report.main("cartpole", tmp_path)


def test_evaluation_of_a_system_with_scene_and_process_noise(
    make_tiny: Callable[..., WorldModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(Settings("lunar_lander", trajectories=40, shard_size=40), tmp_path / "data")
    model = make_tiny(system="lunar_lander")
    monkeypatch.setattr(lunar_lander, "VIEW_SIDE", 1.0)  # so few flights hardly leave the picture
    results = evaluated(model, tmp_path / "data", tmp_path, monkeypatch)
    truth, learned = "true parameters from the true state", "learned parameters from the true state"
    floor = results.number("forecast", "normalised", line=truth, step=30)
    assert 0 < floor < results.number("forecast", "normalised", line="persistence", step=30) / 2
    assert results.number("forecast", "normalised", line=learned, step=30) == floor
    (row,) = results.rows("estimation", init="single")
    assert float(row["scene"]) > 0
    assert "rest_time" not in row
    dataset = load_dataset(tmp_path / "data")
    test = TestSet(dataset, model.system, torch.device("cpu"))
    whole = model.system.in_view(test.states)
    assert 0 < whole.sum() < len(whole)
    off = reading_errors(model, test, test.readings(model))[whole][:, 0]
    assert results.number("estimation", "x", init="single, in view") == pytest.approx(
        float(rmse(off)), rel=1e-3
    )
    (row,) = results.rows("decoding")
    assert {"x_by_the_model", "scene_by_the_reader"} <= set(row)
    assert row["x_by_the_reader"] == row["x_by_the_reader_through_the_latent"]  # no direct decoder
    table = (tmp_path / "lunar_lander-targets.md").read_text()
    assert "| 2, 2, 2, 3 % | 10.00%, 10.00%, 10.00%, 10.00% |" in table
    assert "relative to true parameters | 1.15 | 1.00 |" in table


def test_evaluation_of_a_system_with_a_course_and_continuous_actions(
    make_tiny: Callable[..., WorldModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(Settings("donkey_car", trajectories=20, shard_size=20), tmp_path / "data")
    model = make_tiny(system="donkey_car")
    results = evaluated(model, tmp_path / "data", tmp_path, monkeypatch)
    assert results.number("agreement", "action_rmse") >= 0
    assert 0 <= results.number("estimation", "misplaced_percent", init="single") <= 100
    assert results.number("estimation", "theta", init="single") <= np.pi
    assert "0.08, 0.09, 0.11" in (tmp_path / "donkey_car-targets.md").read_text()


def test_a_missing_checkpoint_is_explained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main("cartpole", (Path("nowhere.safetensors"),), data=folder)
    assert "nowhere.safetensors" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        evaluate.main("cartpole", (), data=folder, only=("agreements",))
    assert "'agreement'" in capsys.readouterr().err


def test_rows_about_other_checkpoints_stay_in_the_tables(model: WorldModel, tmp_path: Path) -> None:
    path = tmp_path / "cartpole-agreement.csv"
    ours = {"variant": DEFAULT_VARIANT, "noise_level": 0.05, "agreement_percent": 97.1}
    others = [ours | {"noise_level": 0.1}, ours | {"variant": "intrinsic-discrete"}]
    evaluate.write_csv(path, [ours, *others])
    subject = evaluate.Subject(DEFAULT_VARIANT, 0.05, model)
    assert evaluate.rows_of_others(path, [subject]) == others
    before = path.read_bytes()
    evaluate.write_csv(path, evaluate.rows_of_others(path, []))
    assert path.read_bytes() == before
    assert evaluate.rows_of_others(tmp_path / "nothing.csv", []) == []


def test_checkpoints_of_a_fold_are_evaluated_on_its_own_test_data(
    make_tiny: Callable[..., WorldModel],
) -> None:
    def subject(**data: int) -> evaluate.Subject:
        model = make_tiny()
        model.metadata = {"data": data}
        return evaluate.Subject(DEFAULT_VARIANT, 0.05, model)

    assert evaluate.common_fold([subject(), subject()]) is None
    assert evaluate.common_fold([subject(fold=2), subject(fold=2)]) == 2
    with pytest.raises(ValueError, match=r"folds \['2', 'None'\]; expected one fold"):
        evaluate.common_fold([subject(fold=2), subject()])
