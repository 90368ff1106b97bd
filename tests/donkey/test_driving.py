"""The driving benchmark: a scripted driver through the real client, and states from frames."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import driving
from benchmarks.agents import Trained, World
from benchmarks.driving import drive, rows
from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.state_filter import StateFilter
from piwm_gym.systems import DonkeyCar


class Follower:
    """Steers against cross-track and heading error; an agent as the benchmark sees one."""

    def predict(self, obs: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        steering = 2.0 * obs[5] - 1.5 * obs[4] - 0.6 * obs[7]
        return np.array([np.clip(steering, -1, 1), 0.25], dtype=np.float32), None


def test_a_follower_gets_around_and_a_sleeper_leaves_the_track() -> None:
    driven = drive(Follower(), None, 0.2, seed=0)
    assert 0.2 <= driven.laps < 0.25
    assert not driven.left_the_track
    assert 0.5 < driven.speed < 2
    assert driven.cte.max() < 0.9
    assert len(driven.position_error) == 0

    class Sleeper(Follower):
        def predict(self, obs: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
            return np.array([0.0, 1.0], dtype=np.float32), None

    assert drive(Sleeper(), None, 1, seed=0).left_the_track


def test_states_from_exact_readings_are_the_states(
    car_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_checkpoint(car_checkpoint, "cpu")
    system = DonkeyCar()
    states = system.initial(torch.rand(1, 3))
    readings: list[torch.Tensor] = []
    monkeypatch.setattr(model, "encode_frames", lambda frames: readings[-1])
    model.reading_std.fill_(1e-3)
    estimator, action = StateFilter(model), None
    frame = torch.zeros(1, 48, 80, 3, dtype=torch.uint8)
    for _ in range(15):
        readings.append(states[:, system.visible])
        found = (estimator.reset(frame) if action is None else estimator.update(frame, action))[0]
        assert torch.allclose(found[:3], states[0, :3], atol=2e-2)
        action = torch.tensor([[0.5, 0.6]])
        states = system.transition(states, action, model.params)
    assert torch.allclose(found[3], states[0, 3], atol=0.1)


def test_rows_for_both_ways_to_observe(
    car_checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def short(agent: Any, model: Any, laps: float, seed: int, **simulator: Any) -> driving.Drive:
        asked.append((model is not None, laps, simulator))
        return driving.Drive(2.5, True, 1.5, np.array([0.1, 0.3]), np.array([0.3, 0.4]))

    monkeypatch.setattr(driving, "drive", short)
    world = World("PIWM-DonkeyCar-v0", checkpoint=car_checkpoint)
    trained = Trained(agent=None, steps=8, seconds=1.0, imagined=np.array([3.0]))
    one, other = rows(world, 0, trained, {"true state": 10, "state from frames": 5}, port=9091)
    assert asked == [(False, 10, {"port": 9091}), (True, 5, {"port": 9091})]
    assert one["laps"] == 2.5
    assert one["left_the_track"]
    assert other["mean_cte"] == pytest.approx(0.2)
    assert other["largest_cte"] == 0.3
    assert other["position_rmse"] == pytest.approx(0.125**0.5)
