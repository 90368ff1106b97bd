import csv
import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from PIL import Image

from piwm_gym.systems import DonkeyCar, DonkeyCarParams
from training import identify
from training.bicycle_fit import fit_bicycle
from training.identification_figure import STYLES, draw_identification
from training.importers import Records, Report, load_telemetry, save_telemetry
from training.telemetry_windows import Windows, cut_windows

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

GAIN = math.radians(16)
DT = 0.05
REAL = "PIWM_DONKEY_TELEMETRY"
TRUTH = DonkeyCarParams(
    wheelbase=0.14,
    steering_gain=GAIN,
    throttle_gain=8.0,
    drag=1.5,
    verge_drag=0.0,
    turning_loss=0.0,
    rolling=0.4,
    understeer=0.0,
    steering_lag=0.0,
)


def drive(params: DonkeyCarParams, episodes: int, steps: int, trim: float = 0.0) -> Records:
    """Drives with smooth random commands, by the system's own equations."""
    rng = np.random.default_rng(0)
    times = DT * np.arange(steps)
    phase = rng.uniform(0, 2 * np.pi, (episodes, 2, 1))
    rate = rng.uniform(1.0, 2.5, (episodes, 2, 1))
    steer, throttle = np.sin(rate * times + phase).transpose(1, 0, 2)
    actions = np.stack((0.7 * steer, 0.25 + 0.1 * throttle), axis=-1)
    start = torch.zeros(episodes, 6, dtype=torch.float64)
    start[:, 2] = torch.as_tensor(rng.uniform(-3, 3, episodes))
    start[:, 3] = 0.5
    moved = torch.as_tensor(actions + np.array((trim, 0.0)))
    states = DonkeyCar().rollout(start, moved, params).numpy()[:, :-1]
    states = np.concatenate((start[:, None].numpy(), states), axis=1)
    return Records(
        times=np.concatenate([times + 100 * e for e in range(episodes)]),
        actions=actions.reshape(-1, 2),
        positions=states[..., :2].reshape(-1, 2),
        speeds=states[..., 3].reshape(-1),
        episodes=np.repeat(np.arange(episodes), steps),
    )


def windows_of(records: Records, stride: int = 4) -> Windows:
    cut = {"dt": DT, "steps": 30, "history": 10, "stride": stride, "past": 0.16}
    return cut_windows(records, Report(), **cut)


def as_csv(records: Records, path: Path) -> Path:
    """Rows as the car writes them: y up, z backwards."""
    start = np.datetime64("2020-10-22T18:20:00")
    with path.open("w") as file:
        file.write("Episode;Step;Time;Steering;Throttle;SpeedX;SpeedY;SpeedZ;PosX;PosY;PosZ\n")
        for i in range(len(records)):
            time = start + np.timedelta64(round(1e6 * records.times[i]), "us")
            steering, throttle = records.actions[i]
            x, y = records.positions[i]
            row = (records.episodes[i], i, time, steering, throttle, records.speeds[i], 0, 0)
            file.write(";".join(map(str, (*row, x, 0, -y))) + "\n")
    return path


@pytest.fixture(scope="module")
def recorded() -> Records:
    return drive(TRUTH, episodes=4, steps=80, trim=-0.06)


def test_a_known_car_is_recovered(recorded):
    bicycle = fit_bicycle(windows_of(recorded), "bicycle", GAIN, starts=2, iterations=8)
    assert bicycle.params.wheelbase == pytest.approx(0.14, rel=0.02)
    assert bicycle.values["curvature_per_steering"] == pytest.approx(GAIN / 0.14, rel=0.02)
    assert bicycle.values["steering_trim"] == pytest.approx(-0.06, abs=0.005)
    assert bicycle.spread < 0.01, "starts 50 % off end at the same place"
    assert bicycle.effective_wheelbase(1.0) == pytest.approx(bicycle.params.wheelbase)


def test_understeer_shows_where_speed_varies():
    records = drive(TRUTH.replace(understeer=0.5), episodes=4, steps=80)
    windows = windows_of(records)
    plain = fit_bicycle(windows, "bicycle", GAIN, starts=1, iterations=6)
    richer = fit_bicycle(windows, "bicycle with understeer", GAIN, starts=1, iterations=6)
    assert richer.values["understeer"] == pytest.approx(0.5, rel=0.1)
    assert richer.values["curvature_per_steering"] == pytest.approx(GAIN / 0.14, rel=0.04)
    errors = [identify.end_error(windows, b.positions(windows)) for b in (plain, richer)]
    assert errors[1] < 0.7 * errors[0]


def test_positive_steering_turns_right_and_lowers_theta(tmp_path):
    start, right = torch.zeros(1, 6), torch.tensor([[[0.5, 0.3]] * 20])
    start[:, 3] = 1.0
    assert (DonkeyCar().rollout(start, right, TRUTH)[0, :, 2].diff() < 0).all()
    records = load_telemetry(as_csv(drive(TRUTH, 1, 60), tmp_path / "drive.csv"), Report())
    windows = windows_of(records)
    turned = np.einsum(
        "bi,bi->b",
        windows.positions[:, 20] - windows.poses[:, :2],
        np.column_stack((-np.sin(windows.poses[:, 2]), np.cos(windows.poses[:, 2]))),
    )
    steering = windows.actions[:, :15, 0].mean(1)
    clear = abs(steering) > 0.3
    assert clear.any()
    np.testing.assert_array_equal(np.sign(turned[clear]), -np.sign(steering[clear]))


def test_start_poses_know_nothing_of_what_follows(recorded):
    windows = windows_of(recorded)
    first = recorded.select(recorded.episodes == 0)
    (at,) = np.flatnonzero(np.isclose(first.positions, windows.poses[3, :2], atol=1e-3).all(1))
    other = recorded.positions.copy()
    other[at + 1 :] += 0.05
    changed = windows_of(Records(**{**vars(recorded), "positions": other}))
    np.testing.assert_array_equal(changed.poses[:4], windows.poses[:4])
    np.testing.assert_array_equal(changed.turn_rates[:4], windows.turn_rates[:4])
    assert not np.array_equal(changed.positions[3], windows.positions[3])


def test_commands_are_those_in_force_by_the_clock(recorded):
    windows = windows_of(recorded, stride=1)
    first = recorded.actions[recorded.episodes == 0]
    np.testing.assert_allclose(windows.actions[0], first[14:44], atol=1e-9)
    np.testing.assert_allclose(windows.history[0], first[4:14], atol=1e-9)


def turning(rate: float) -> Windows:
    """One window on a circle (or a line, at rate 0) at 0.8 m/s."""
    elapsed = DT * np.arange(1, 31)
    heading = 0.4 + rate * elapsed
    if rate:
        radius = 0.8 / rate
        path = radius * np.column_stack(
            (np.sin(heading) - np.sin(0.4), np.cos(0.4) - np.cos(heading))
        )
    else:
        path = 0.8 * elapsed[:, None] * (np.cos(0.4), np.sin(0.4))
    return Windows(
        poses=np.array([[0.0, 0.0, 0.4, 0.8]]),
        turn_rates=np.array([rate]),
        history=np.zeros((1, 10, 2)),
        actions=np.zeros((1, 30, 2)),
        positions=path[None],
        episodes=np.zeros(1),
    )


def test_baselines_are_exact_where_they_should_be():
    line, circle = turning(0.0), turning(-1.3)
    for predictor in identify.BASELINES.values():
        assert identify.end_error(line, predictor(line)) < 1e-12
    assert identify.end_error(circle, identify.constant_turn_rate(circle)) < 1e-12
    assert identify.end_error(circle, identify.constant_velocity(circle)) > 0.3


def test_the_command_writes_a_table_of_all_models(tmp_path, monkeypatch, recorded, capsys):
    monkeypatch.setattr(identify, "PASTS", (0.16,))
    monkeypatch.setattr(identify, "DELAYS", (0.0,))
    monkeypatch.setattr(identify, "STRIDE", 20)
    monkeypatch.setattr(identify, "MODELS", {"bicycle": (), "bicycle with understeer": ()})
    monkeypatch.setattr(identify, "fit_bicycle", partial(fit_bicycle, iterations=3))
    first = as_csv(recorded, tmp_path / "first.csv")
    save_telemetry(load_telemetry(first, Report()), tmp_path / "second.npz")
    identify.main((first, tmp_path / "second.npz"), tmp_path / "results.csv", starts=1)
    with (tmp_path / "results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["speed"] == "all"]
    assert len(rows) == 2 * (2 + 2 + 2)
    for name in ("first", "second"):
        mine = {r["model"]: r for r in rows if r["file"] == name and r["fitted_to"] != "all files"}
        error = {model: float(row["rmse_after_1.5_s"]) for model, row in mine.items()}
        assert error["bicycle"] < 0.05 < error["constant turn rate"]
        assert float(mine["bicycle"]["wheelbase"]) == pytest.approx(0.14, rel=0.02)
        assert mine["constant velocity"]["wheelbase"] == ""
    assert "320 records read, 320 kept" in capsys.readouterr().err
    with Image.open(tmp_path / "results.png") as figure:
        assert figure.width > 1.5 * figure.height, "one panel per file, side by side"


def test_the_figure_draws_every_bin_and_model(tmp_path, monkeypatch):
    head = {"file": "drive", "windows": 99}
    rows = [
        {**head, "model": m, "fitted_to": f, "speed": speed, "rmse_after_1.5_s": f"{error}"}
        for m, f in STYLES
        for speed, error in (("all", 9.0), ("0.1 to 0.4 m/s", 0.5), ("0.6 to 0.8 m/s", 0.25))
    ]
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, **style: drawn.append((x, y)))
    draw_identification(rows, identify.SPEED_BINS, tmp_path / "figure.png")
    assert len(drawn) == len(STYLES)
    for x, y in drawn:
        assert x == pytest.approx([0.25, 0.7])
        assert y == [0.5, 0.25]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"files": ()}, "files is empty; expected at least one"),
        ({"steering_gain": 90.0}, "steering_gain is 90.0; expected degrees"),
        ({"starts": 0}, "starts is 0; expected at least 1"),
        ({"files": (Path("nowhere.csv"),)}, "nowhere.csv does not exist"),
    ],
)
def test_bad_input_is_explained(tmp_path, capsys, arguments, message):
    given = {"files": (tmp_path / "x.csv",), "out": tmp_path / "out.csv", **arguments}
    with pytest.raises(SystemExit):
        identify.main(**given)
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL} names no telemetry files")
def test_the_bicycle_beats_both_baselines_on_real_cars():
    for path in map(Path, os.environ[REAL].split(os.pathsep)):
        report = Report()
        recording = identify.cut_recording(path.name, load_telemetry(path, report), report)
        key = (identify.PASTS[-1], 0.05)
        train, test = recording.train[key], recording.test[key]
        bicycle = fit_bicycle(train, "bicycle", GAIN, starts=1, iterations=8)
        assert 1.5 < bicycle.values["curvature_per_steering"] < 4.0
        error = identify.end_error(test, bicycle.positions(test))
        for predictor in identify.BASELINES.values():
            assert error < identify.end_error(test, predictor(test))
