"""The driving benchmark: a scripted driver through the real client, and states from frames."""

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import driving
from benchmarks.agents import Trained, World
from benchmarks.driving import EstimatedState, StackedFrames, TrueState, drive, rows
from benchmarks.imitation import STACK, Lessons, teach
from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.state_filter import StateFilter
from piwm_gym.systems import DonkeyCar


class Follower:
    """Steers against cross-track and heading error; an agent as the benchmark sees one."""

    def predict(self, obs: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        steering = 2.0 * obs[5] - 1.5 * obs[4] - 0.6 * obs[7]
        return np.array([np.clip(steering, -1, 1), 0.25], dtype=np.float32), None


def test_a_follower_gets_around_and_a_sleeper_leaves_the_track() -> None:
    driven = drive(Follower(), TrueState(), 0.2, seed=0)
    assert 0.2 <= driven.laps < 0.25
    assert not driven.left_the_track
    assert 0.5 < driven.speed < 2
    assert driven.cte.max() < 0.9
    assert len(driven.position_error) == 0

    class Sleeper(Follower):
        def predict(self, obs: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
            return np.array([0.0, 1.0], dtype=np.float32), None

    assert drive(Sleeper(), TrueState(), 1, seed=0).left_the_track


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


def test_rows_for_all_ways_to_observe(car_checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def short(agent: Any, look: Any, laps: float, seed: int, **simulator: Any) -> driving.Drive:
        asked.append((type(look), laps, simulator))
        return driving.Drive(2.5, True, 1.5, np.array([0.1, 0.3]), np.array([0.3, 0.4]))

    monkeypatch.setattr(driving, "drive", short)
    world = World("PIWM-DonkeyCar-v0", checkpoint=car_checkpoint)
    trained = Trained(agent=None, steps=8, seconds=1.0, imagined=np.array([3.0]))
    taught = Trained(agent=None, steps=4, seconds=2.0, imagined=np.array([2.0]))
    looks = {
        "true state": (trained, TrueState()),
        "state from frames": (trained, EstimatedState(world.model())),
        "frames": (taught, StackedFrames()),
    }
    one, other, third = rows(world, 0, looks, driving.LAPS, port=9091)
    assert [(kind, laps) for kind, laps, _ in asked] == [
        (TrueState, 10),
        (EstimatedState, 5),
        (StackedFrames, 5),
    ]
    assert all(simulator == {"port": 9091} for *_, simulator in asked)
    assert one["laps"] == 2.5
    assert one["left_the_track"]
    assert other["mean_cte"] == pytest.approx(0.2)
    assert other["largest_cte"] == 0.3
    assert other["position_rmse"] == pytest.approx(0.125**0.5)
    assert (one["training_steps"], third["training_steps"]) == (8, 4)


def test_stacks_are_those_of_the_training() -> None:
    look, frames = StackedFrames(), [np.full((4, 6, 3), i, np.uint8) for i in range(1, 5)]
    stacks = [look.see(np.zeros(11), frame, None) for frame in frames]
    assert [stack.shape for stack in stacks] == [(4, 6, 3 * STACK)] * 4
    assert [stack[0, 0, ::3].tolist() for stack in stacks] == [
        [0, 0, 1],
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
    ]


class Steady:
    """Does the same everywhere."""

    def predict(self, obs: np.ndarray, deterministic: bool) -> tuple[np.ndarray, None]:
        return np.tile(np.array([0.5, 0.3], np.float32), (len(obs), 1)), None


def test_a_pupil_learns_from_frames_what_its_teacher_does(car_checkpoint: str) -> None:
    world = World("PIWM-DonkeyCar-v0", checkpoint=car_checkpoint)
    lessons = Lessons(num_envs=4, rounds=2, steps=8, last_epochs=15, batch_size=16, eval_episodes=1)
    taught = teach(Steady(), world, lessons, seed=0)
    assert taught.steps == 64
    look = StackedFrames()
    frame = np.random.default_rng(0).integers(0, 255, (48, 80, 3), dtype=np.uint8)
    action, _ = taught.agent.predict(look.see(np.zeros(11), frame, None), deterministic=True)
    assert action == pytest.approx([0.5, 0.3], abs=0.15)


def test_unknown_observations_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driving.main(observations=("frame",))
    assert "observations" in (said := capsys.readouterr().err)
    assert "frames" in said
