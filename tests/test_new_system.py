"""A system with noise, a scene and continuous actions needs no new environment code."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym import systems
from piwm_gym.env import WorldModelEnv
from piwm_gym.fused_frames import Drawing
from piwm_gym.models.vision import to_uint8
from piwm_gym.systems import FrameSpec, Params, System, Variable
from piwm_gym.systems.params import Learnable, Parametrisation, parameter
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel


@dataclass(frozen=True)
class BoatParams(Params):
    """Parameters of a boat on a windy river."""

    speed: Any = parameter(1.0, "m/s", "speed at full throttle")


class Boat(System):
    """Position of a boat; the scene is the current, the noise the wind."""

    name = "boat"
    real_id = "none"
    variables = (Variable("x", "m", -5.0, 5.0, visible=True),)
    dt = 0.1
    frame = FrameSpec((64, 64), (0, 64), (0, 64), (64, 64), background=(0, 0, 0))
    num_initial_uniforms = 1
    num_step_uniforms = 1
    scene_variables = (Variable("current", "m/s", 0.5, 1.5, visible=True),)
    num_scene_uniforms = 1
    parametrisations = {  # noqa: RUF012
        "identifiable": Parametrisation(
            (Learnable("speed", "m/s"),), lambda p: (p.speed,), lambda v: BoatParams(speed=v[0])
        )
    }

    @property
    def reference(self) -> BoatParams:
        return BoatParams()

    @property
    def action_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-1, 1, (2,), np.float32)

    @property
    def observation_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-3, 3, (1,), np.float32)

    def initial(self, uniforms: Tensor, scene: Tensor) -> Tensor:  # type: ignore[override]
        return uniforms - 0.5 + 0 * scene

    def scene(self, uniforms: Tensor) -> Tensor:
        return 0.5 + uniforms

    def transition(  # type: ignore[override]
        self, state: Tensor, action: Tensor, params: Any, scene: Tensor, noise: Any = 0.5
    ) -> Tensor:
        noise = torch.as_tensor(noise).expand(*state.shape)
        speed = params.speed * action[..., 0] + scene[..., 0] + 0.1 * (noise[..., 0] - 0.5)
        return state + self.dt * speed[..., None]

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[..., 0] - state[..., 0]

    def terminal(self, state: Tensor, scene: Tensor) -> Tensor:  # type: ignore[override]
        return state[..., 0] > 2 + 0 * scene[..., 0]

    def observation(self, state: Tensor) -> Tensor:
        return state

    def from_configurations(self, start: Tensor, end: Tensor, elapsed: Any) -> Tensor:
        return start


class BoatModel(WorldModel):
    """Frames as bright as the current is strong."""

    def decode(self, states: Tensor, scene: Tensor) -> Tensor:  # type: ignore[override]
        return (scene / 2)[:, :, None, None].expand(-1, 3, 64, 64)

    def draw(self, states: Tensor, scene: Tensor) -> Tensor:  # type: ignore[override]
        return to_uint8(self.decode(states, scene))

    def encode_frames(self, frames: Tensor) -> Tensor:
        brightness = self._float_frames(frames).mean((-3, -2, -1))
        return torch.stack((torch.zeros_like(brightness), 2 * brightness), dim=-1)


@pytest.fixture
def boat(monkeypatch: pytest.MonkeyPatch, make_tiny: Any) -> WorldModel:
    monkeypatch.setitem(systems.SYSTEMS, "boat", Boat())
    model = make_tiny(system="boat")
    model.__class__ = BoatModel
    return model


def test_slots_equal_single_environments(boat: WorldModel) -> None:
    envs = WorldModelVectorEnv(num_envs=3, model=boat, obs_type="pixels_state")
    singles = [WorldModelEnv(model=boat, obs_type="pixels_state") for _ in range(3)]
    obs, _ = envs.reset(seed=0)
    for i, single in enumerate(singles):
        assert np.array_equal(obs["state"][i], single.reset(seed=i)[0]["state"])
    assert len(np.unique(obs["pixels"][:, 0, 0, 0])) == 3
    for t in range(60):
        actions = np.sin(t + np.arange(6)).reshape(3, 2)
        obs, rewards, terminated, _, _ = envs.step(actions)
        for i, single in enumerate(singles):
            expected, reward, over, *_ = single.step(actions[i])
            assert (reward, over) == (rewards[i], terminated[i])
            if over:
                expected, _ = single.reset()
            assert np.array_equal(obs["state"][i], expected["state"])
            assert np.array_equal(obs["pixels"][i], expected["pixels"])


def test_next_step_autoreset_draws_no_noise_for_waiting_slots(boat: WorldModel) -> None:
    envs = WorldModelVectorEnv(num_envs=1, model=boat, obs_type="state", autoreset_mode="NextStep")
    single = WorldModelEnv(model=boat, obs_type="state")
    envs.reset(seed=0)
    single.reset(seed=0)
    over = False
    for _ in range(60):
        obs = envs.step([[1.0, 0.0]])[0]
        if over:
            expected, over = single.reset()[0], False
        else:
            expected, _, over, *_ = single.step([1.0, 0.0])
        assert np.array_equal(obs[0], expected)


def test_a_snapshot_holds_noise_and_scene(boat: WorldModel) -> None:
    env = WorldModelEnv(model=boat, obs_type="pixels_state")
    env.reset(seed=0)
    snapshot = env.snapshot()
    expected = [env.step([0.1, 0.0])[0]["state"] for _ in range(3)]
    env.reset(seed=5)
    env.restore(snapshot)
    assert np.array_equal([env.step([0.1, 0.0])[0]["state"] for _ in range(3)], expected)


def test_actions_outside_the_box_are_clipped_and_nan_is_refused(boat: WorldModel) -> None:
    envs = WorldModelVectorEnv(num_envs=2, model=boat, obs_type="state")
    results = []
    for action in (1.0, 7.0):
        envs.reset(seed=0)
        results.append(envs.step(np.full((2, 2), action))[0])
    assert np.array_equal(*results)
    with pytest.raises(ValueError, match="of environment 1 is not a number"):
        envs.step([[0.0, 0.0], [0.0, np.nan]])
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        envs.step([0.0, 0.0])
    single = WorldModelEnv(model=boat, obs_type="state")
    single.reset(seed=0)
    assert np.array_equal(
        single.step(torch.tensor([7.0, 0.0], dtype=torch.float64))[0], results[0][0]
    )
    with pytest.raises(ValueError, match="action is not a number"):
        single.step([np.nan, 0.0])


def test_observations_are_clipped_to_bounded_spaces(boat: WorldModel) -> None:
    env = WorldModelEnv(model=boat, obs_type="state")
    obs, info = env.reset(options={"state": [4.0]})
    assert obs in env.observation_space
    assert obs[0] == 3.0
    assert info["state"][0] == 4.0


def test_its_own_drawing_is_what_would_be_compiled(boat: WorldModel) -> None:
    states, scenes = torch.zeros(2, len(boat.system.variables)), torch.tensor([[0.5], [1.0]])
    (drawn,) = Drawing(boat, scenic=True)(states, scenes)
    assert torch.equal(drawn, boat.draw(states, scenes))
