"""Imagined rollouts: a model that reads the states exactly follows the real episode exactly."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.imagine import Episode, imagine, imagined_rollout, real_episode, survivor
from piwm_gym.systems import CartPole, CartPoleParams, LunarLander
from piwm_gym.world_model import WorldModel


class Barcode(gym.Env):
    """Cart Pole whose frames are the bytes of its configuration instead of a picture."""

    system = CartPole()
    action_space = system.action_space
    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)

    def frame(self) -> np.ndarray:
        frame = np.zeros((64, 64, 3), dtype=np.uint8)
        frame.reshape(-1)[:8] = self.state[0, self.system.visible].numpy().view(np.uint8)
        return frame

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        uniforms = self.np_random.random((1, 4), dtype=np.float32)
        self.state = self.system.initial(torch.as_tensor(uniforms))
        return self.frame(), {"state": self.state[0].numpy().copy()}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = self.system.transition(self.state, torch.tensor([action]), CartPoleParams())
        info = {"state": self.state[0].numpy().copy()}
        return self.frame(), 1.0, bool(self.system.terminal(self.state)), False, info


@pytest.fixture
def model(model: WorldModel, monkeypatch: pytest.MonkeyPatch) -> WorldModel:
    """Reads barcodes without error; its dynamics have the real parameters."""

    def read(frames: torch.Tensor) -> torch.Tensor:
        return frames.flatten(-3)[..., :8].contiguous().view(torch.float32)

    monkeypatch.setattr(model, "encode_frames", read)
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_exact_model_follows_the_episode(model: WorldModel) -> None:
    rollout = imagined_rollout(model, Barcode(), context=10, horizon=50, seed=1)
    assert rollout.errors.shape == (51, 4)
    assert rollout.errors.max() < 1e-3
    assert rollout.real_frames.shape == rollout.imagined_frames.shape == (51, 64, 64, 3)
    assert rollout.imagined_frames.dtype == np.uint8
    assert rollout.actions.shape == (50,)
    assert set(rollout.actions) == {0, 1}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_alignment(model: WorldModel) -> None:
    """Row 0 is the last context frame, and the future actions start there."""
    episode = real_episode(Barcode(), survivor(model, 0), 30, seed=0)
    assert len(episode.frames) == len(episode.states) == len(episode.actions) + 1 == 31
    rollout = imagine(model, episode, context=6)
    assert np.array_equal(rollout.real_states, episode.states[5:])
    assert np.array_equal(rollout.real_frames, episode.frames[5:])
    assert np.array_equal(rollout.actions, episode.actions[5:])
    other = Episode(episode.frames, 1 - episode.actions, episode.states)
    assert imagine(model, other, context=6).errors.max() > 0.1, "actions matter"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_other_physics(model: WorldModel) -> None:
    episode = real_episode(Barcode(), survivor(model, 0), 30, seed=0)
    weak = model.params.replace(force_mag=5.0)
    assert imagine(model, episode, params=weak).errors[-1].max() > 0.1


def test_seeds_decide_the_episode(model: WorldModel) -> None:
    def states(seed: int) -> np.ndarray:
        return real_episode(Barcode(), survivor(model, seed), 20, seed).states

    assert np.array_equal(states(3), states(3))
    assert not np.array_equal(states(3), states(4))


def test_the_record_begins_where_the_camera_sees(model: WorldModel) -> None:
    whole = real_episode(Barcode(), lambda state: 1, 8, seed=0)
    late = real_episode(
        Barcode(), lambda state: 1, 4, seed=0, in_view=lambda state: state[1] > whole.states[2, 1]
    )
    assert np.array_equal(late.states, whole.states[3:8])
    assert np.array_equal(late.frames, whole.frames[3:8])
    assert np.array_equal(late.actions, whole.actions[3:7])


def test_the_lander_begins_above_the_picture_and_is_cut_at_its_sides() -> None:
    system = LunarLander()
    states = system.initial(torch.rand(16, system.num_initial_uniforms))
    assert not system.in_view(states).any()
    states[:, 1] = 5.0
    assert system.in_view(states).all()
    for beside in (-9.6, 9.6):  # a leg is out of the picture, which ends at 10 m
        states[:, 0] = beside
        assert not system.in_view(states).any()


def test_episode_ends(model: WorldModel) -> None:
    episode = real_episode(Barcode(), lambda state: 1, 50, seed=0)
    assert 5 < len(episode.actions) < 15
    for context in (1, len(episode.frames)):
        with pytest.raises(ValueError, match=f"context is {context} frames of an episode with"):
            imagine(model, episode, context)


class Sightseeing(gym.Env):
    """Lunar Lander without noise whose frames are the bytes of configuration and scene."""

    system = LunarLander()
    action_space = system.action_space
    observation_space = gym.spaces.Box(0, 255, (64, 96, 3), np.uint8)

    def frame(self) -> np.ndarray:
        frame = np.zeros((64, 96, 3), dtype=np.uint8)
        shown = torch.cat((self.state[0, self.system.visible], self.scene[0]))
        frame.reshape(-1)[: 4 * len(shown)] = shown.numpy().view(np.uint8)
        return frame

    def info(self) -> dict[str, np.ndarray]:
        return {"state": self.state[0].numpy().copy(), "scene": self.scene[0].numpy().copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.scene = self.system.scene(torch.as_tensor(self.np_random.random((1, 12), np.float32)))
        self.state = torch.zeros(1, 10)
        self.state[:, 1], self.state[:, 3] = 0.1, -0.3
        return self.frame(), self.info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.state = self.system.transition(
            self.state, torch.tensor([action]), self.system.reference, scene=self.scene
        )
        return self.frame(), 0.0, bool(self.system.terminal(self.state)), False, self.info()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_the_scene_is_read_from_the_context_then_stood_on_and_redrawn(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny(system="lunar_lander")

    def read(frames: torch.Tensor) -> torch.Tensor:
        return frames.flatten(-3)[..., :56].contiguous().view(torch.float32)

    monkeypatch.setattr(model, "encode_frames", read)
    episode = real_episode(Sightseeing(), lambda state: 0, 40, seed=0)
    assert episode.scene is not None
    rollout = imagine(model, episode, context=10)
    assert rollout.real_states[-1, 6:8].tolist() == [1, 1]
    assert rollout.scene_errors.shape == (11,)
    assert rollout.scene_errors.max() < 1e-5
    assert rollout.errors[:, :6].max() < 0.2
    assert rollout.imagined_states[-1, 6:8].tolist() == [1, 1]
    assert rollout.imagined_frames.shape == (32, 64, 96, 3)
    with torch.no_grad():
        states, scene = torch.from_numpy(rollout.imagined_states), torch.from_numpy(episode.scene)
        expected = model.decode(states, scene).movedim(1, -1).numpy() * 255
    assert np.abs(expected - rollout.imagined_frames).max() <= 1
    action = survivor(model)(episode.states[0])
    assert action in Sightseeing.action_space
