import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import LunarLander
from training.collect import Settings, collect
from training.collectors import LunarLanderCollector
from training.collectors.collector import Trajectory
from training.collectors.lunar_lander import TOP, LunarLanderRenderer
from training.controllers import Pilot, pilot
from training.dataset import load_dataset

SYSTEM = LunarLander()
SPEC = SYSTEM.frame


def make_real() -> Any:
    return gym.make("LunarLander-v3", render_mode="rgb_array").unwrapped


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    collector = LunarLanderCollector()
    collector._renderer = lambda env: np.zeros((1, 1, 3), np.uint8)  # type: ignore[assignment]
    collector._renderer.fade = LunarLanderRenderer.fade  # type: ignore[method-assign]
    return [collector.trajectory(np.random.default_rng([1, i]), 50) for i in range(150)]


def by_name(trajectories: list[Trajectory], start: str) -> list[Trajectory]:
    return [t for t in trajectories if t.controller.startswith(start)]


def test_fast_frames_are_bit_equal_to_the_real_ones() -> None:
    """Exhaust, contact and parts that hang out of the view included; one renderer for all."""
    render = LunarLanderRenderer(SPEC)
    real, same = make_real(), make_real()
    for seed in range(4):
        real.reset(seed=seed)
        same.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(90):
            expected = preprocess_frame(real.render(), SPEC)
            np.testing.assert_array_equal(render(same), expected)
            action = int(rng.integers(4))
            real.step(action)
            if same.step(action)[2]:
                break


def test_trajectory_is_the_real_environment_frame_by_frame() -> None:
    """Drawn by ``render()`` itself, a trajectory is the same, frames skipped before it or not."""
    fast, slow = LunarLanderCollector(), LunarLanderCollector()

    class Slow(LunarLanderRenderer):
        def __call__(self, env: Any) -> np.ndarray:
            return preprocess_frame(env.render(), SPEC)

    slow._renderer = Slow(SPEC)
    for i in range(6):
        a, b = (c.trajectory(np.random.default_rng([2, i]), 12) for c in (fast, slow))
        assert a.controller == b.controller
        for name in ("frames", "actions", "states", "scene"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert a.frames.shape == (13, 64, 96, 3)


def test_exhaust_does_not_move_the_lander() -> None:
    """States come from a flight without exhaust, frames from a second one with it."""
    collector = LunarLanderCollector()
    rng = np.random.default_rng(0)
    for start in ("real", "broad", "ground"):
        controller = collector._controller(start, "random", rng)
        episode = collector._fly(start, controller, rng, 30)
        collector._renderer = lambda env: collector._twin.state()  # type: ignore[assignment]
        collector._renderer.fade = LunarLanderRenderer.fade  # type: ignore[method-assign]
        flown = collector._film(episode, 0, len(episode.actions))
        np.testing.assert_array_equal(flown, episode.states)


def test_a_trajectory_depends_on_its_generator_only() -> None:
    used, fresh = LunarLanderCollector(), LunarLanderCollector()
    for i in range(3):
        used.trajectory(np.random.default_rng([3, i]), 10)
    for i in range(3):
        a, b = (c.trajectory(np.random.default_rng([4, i]), 10) for c in (used, fresh))
        for name in ("frames", "actions", "states", "scene"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_pieces_end_at_the_termination_at_the_latest(trajectories: list[Trajectory]) -> None:
    for t in trajectories:
        assert t.states.shape == (51, 10)
        assert t.actions.shape == (50,)
        assert t.scene.shape == (11,)
        terminal = SYSTEM.terminal(torch.from_numpy(t.states))
        assert not terminal[:-1].any()
        assert t.states[:, 1].max() <= TOP
    ends = [bool(SYSTEM.terminal(torch.from_numpy(t.states[-1]))) for t in trajectories]
    assert 0.03 < np.mean(ends) < 0.3


def test_free_flight_follows_the_equations(trajectories: list[Trajectory]) -> None:
    """Within the dispersion of the engines, step by step; coasting exactly."""
    for t in by_name(trajectories, "broad")[:30]:
        states, actions = torch.from_numpy(t.states), torch.from_numpy(t.actions)
        following = SYSTEM.transition(states[:-1], actions, SYSTEM.reference)
        error = (following - states[1:]).abs()[:, :6]
        free = states[:-1, 1] > 4.0  # a leg can touch without being reported
        assert (error[free] < torch.tensor([0.02, 0.02, 0.5, 0.5, 0.01, 0.2])).all()
        assert (error[free & (actions == 0)] < 0.01).all()


def test_starts_cover_the_view(trajectories: list[Trajectory]) -> None:
    states = np.concatenate([t.states for t in trajectories])[:, :6]
    low, high = np.quantile(states, [0.02, 0.98], axis=0)
    assert (low < [-7.5, -0.3, -4.0, -7.0, -0.8, -1.2]).all()
    assert (high > [7.5, 8.8, 4.0, 1.2, 0.8, 1.2]).all()
    assert {t.controller for t in trajectories} == set(LunarLanderCollector.controllers)
    assert sum(LunarLanderCollector.controllers.values()) == pytest.approx(1)


def test_ground_pieces_touch_the_ground_and_broad_ones_start_clear_of_it(
    trajectories: list[Trajectory],
) -> None:
    ground = by_name(trajectories, "ground")
    assert all(t.states[:, [6, 7, 9]].any() for t in ground)
    assert any(t.states[-1, 8] >= 0.49 for t in ground)
    assert any(t.states[-1, 9] == 1 for t in ground)
    for t in by_name(trajectories, "broad"):
        assert not t.states[:3, 6:].any()


def test_impossible_trajectories_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.collectors.lunar_lander.MAX_TRIES", 3)
    monkeypatch.setattr("training.collectors.lunar_lander.TOP", -9.0)
    with pytest.raises(RuntimeError, match="3 tries; ask for fewer steps"):
        LunarLanderCollector().trajectory(np.random.default_rng(0), 50)


def test_collected_scenes_are_loaded(tmp_path: Path) -> None:
    settings = Settings("lunar_lander", trajectories=5, steps=6, shard_size=2, seed=3)
    one, two = tmp_path / "one", tmp_path / "two"
    manifest = json.loads(collect(settings, one).read_text())
    collect(settings, two, workers=2)
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()
    assert manifest["real_id"] == "LunarLander-v3"
    assert manifest["scene_names"][10] == "height_10"
    assert manifest["frame"]["size"] == [64, 96]
    data = load_dataset(one)
    assert data.scenes.shape == (5, 11)
    assert data.scenes.dtype == np.float32
    assert data.frames.shape == (5, 7, 64, 96, 3)
    assert (data.scenes[:, 4:7] == data.scenes[:, 5:6]).all()


def test_pilot_lands() -> None:
    """The feedback is good enough for the pad, noise of the engines included."""
    env = make_real()
    collector = LunarLanderCollector()
    for seed in range(3):
        twin = collector._twin
        twin.reset(seed)
        twin.env.render_mode = None
        controller = Pilot((0, -0.7, 0), (0, -0.7, 0), max_hold=1000, epsilon=0.0)
        total, terminated = 0.0, False
        while not terminated:
            _, reward, terminated, _, _ = twin.step(
                controller(twin.state(), np.random.default_rng(0))
            )
            total += reward
        assert total > 200
    env.close()


def test_pilot_turns_the_right_way() -> None:
    state = np.zeros((4, 10))
    state[0, 1] = -2.0  # below its target: main engine
    state[1, 4] = 0.5  # leans to the left: the right engine turns it back
    state[2, 4] = -0.5
    state[3, 1] = 2.0  # above its target and level: fall
    np.testing.assert_array_equal(pilot(state, (0, 0, 0)), [2, 3, 1, 0])


def test_expert_mostly_looks_at_what_a_frame_shows(trajectories: list[Trajectory]) -> None:
    states = np.stack([t.states for t in trajectories])
    still = states.copy()
    still[..., [2, 3, 5]] = 0
    actions = LunarLanderCollector.expert(states, SYSTEM)
    assert actions.shape == states.shape[:-1]
    assert np.mean(actions == LunarLanderCollector.expert(still, SYSTEM)) > 0.9
    assert (np.bincount(actions.ravel(), minlength=4)[1:] > 0.1 * actions.size).all()
