"""The SB3 adapter: the VecEnv contract, training without warnings, bootstrapping."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, is_vecenv_wrapped

from piwm_gym.sb3 import PPO, StartAnywhere, WorldModelVecEnv, make_vec_env
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel

UPRIGHT = [0.0, 0.0, 0.0, 0.0]
ABOUT_TO_FALL = [0.0, 0.0, 0.209, 1.0]


@pytest.fixture
def arguments(checkpoint: str) -> dict[str, Any]:
    return {"checkpoint": checkpoint, "obs_type": "state", "device": "cpu"}


def ppo(policy: str, venv: WorldModelVecEnv, cls: type = PPO, **kwargs: Any) -> Any:
    sizes = {"n_steps": 8, "batch_size": 8 * venv.num_envs, "n_epochs": 1, **kwargs}
    return cls(policy, venv, device="cpu", seed=0, **sizes)


def test_trains_on_states(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=64, seed=0, **arguments)
    assert not isinstance(venv, DummyVecEnv)
    model = ppo("MlpPolicy", venv, n_steps=32)
    model.learn(2 * 32 * 64)
    assert len(model.ep_info_buffer) == 100  # returns are logged without another wrapper
    assert 8 < np.mean([e["r"] for e in model.ep_info_buffer]) < 40
    assert venv.reset().shape == (64, 4)
    mean, _ = evaluate_policy(model, venv, n_eval_episodes=8)
    assert mean > 8


def test_trains_on_pixels_saves_and_loads(arguments: dict[str, Any], tmp_path: Path) -> None:
    venv = make_vec_env(n_envs=3, seed=0, **{**arguments, "obs_type": "pixels"})
    model = ppo("CnnPolicy", venv)
    model.learn(2 * 8 * 3)
    assert model.policy.observation_space.shape == (3, 64, 64)
    obs = venv.reset()
    assert obs.shape == (3, 64, 64, 3)
    actions, _ = model.predict(obs, deterministic=True)
    model.save(tmp_path / "agent.zip")
    again, _ = PPO.load(tmp_path / "agent.zip", device="cpu").predict(obs, deterministic=True)
    assert np.array_equal(actions, again)


def test_trains_on_both(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(
        n_envs=2, seed=0, **{**arguments, "obs_type": "pixels_state", "max_episode_steps": 3}
    )
    ppo("MultiInputPolicy", venv).learn(2 * 8 * 2)


@pytest.mark.parametrize("limit", [5, 500])
def test_batched_bootstrapping_gives_sb3s_returns(arguments: dict[str, Any], limit: int) -> None:
    returns = []
    for cls in (stable_baselines3.PPO, PPO):
        venv = make_vec_env(n_envs=6, seed=0, max_episode_steps=limit, **arguments)
        model = ppo("MlpPolicy", venv, cls, n_steps=32)
        model.learn(32 * 6)
        returns.append(model.rollout_buffer.returns)
    np.testing.assert_allclose(*returns, rtol=1e-5)


@pytest.mark.parametrize(
    ("start", "limit", "truncated"),
    [(ABOUT_TO_FALL, 500, False), (UPRIGHT, 1, True), (ABOUT_TO_FALL, 1, False)],
    ids=["terminated", "truncated", "both"],
)
def test_ends_of_episodes(
    arguments: dict[str, Any], start: list[float], limit: int, truncated: bool
) -> None:
    venv = make_vec_env(n_envs=2, seed=0, max_episode_steps=limit, **arguments)
    venv.set_options([{"state": start}, {"state": UPRIGHT}])
    venv.reset()
    obs, rewards, dones, infos = venv.step(np.array([1, 1]))
    assert obs.dtype == rewards.dtype == np.float32
    assert dones.tolist() == [True, limit == 1]
    assert set(infos[0]) == {"terminal_observation", "TimeLimit.truncated", "episode"}
    assert infos[0]["TimeLimit.truncated"] is truncated
    np.testing.assert_allclose(infos[0]["terminal_observation"][2], start[2] + 0.02 * start[3])
    assert infos[0]["terminal_observation"].shape == (4,)
    assert (infos[0]["episode"]["r"], infos[0]["episode"]["l"]) == (1.0, 1)
    assert np.abs(obs[0]).max() <= 0.05
    assert not np.array_equal(obs[0], infos[0]["terminal_observation"])
    if limit == 500:
        assert infos[1] == {}
    venv.step(np.array([0, 0]))
    assert venv.reset_infos[0]["state"].shape == (4,)


def test_returned_things_are_new(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=2, seed=0, **arguments)
    first = venv.reset()
    copy = first.copy()
    second, _, _, infos = venv.step(np.array([1, 0]))
    third, _, _, later = venv.step(np.array([1, 0]))
    assert np.array_equal(first, copy)
    assert not np.shares_memory(second, third)
    assert infos is not later
    assert infos[0] is not later[0]
    assert not np.shares_memory(venv.physical_state, third)
    assert np.array_equal(venv.physical_state, third)


def test_seeds_and_options_are_used_once(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=3, seed=4, **arguments)
    first, second = venv.reset(), venv.reset()
    assert not np.array_equal(first, second)
    assert len(np.unique(first, axis=0)) == 3
    assert venv.seed(4) == [4, 5, 6]
    assert np.array_equal(venv.reset(), first)
    assert np.array_equal(venv.reset(), second)
    venv.set_options({"state": UPRIGHT, "params": {"length": 0.8}})
    assert np.array_equal(venv.reset(), np.zeros((3, 4)))
    assert [p.length for p in venv.get_attr("params")] == pytest.approx([0.8] * 3)
    venv.reset()
    assert [p.length for p in venv.get_attr("params")] == pytest.approx([0.5] * 3)
    venv.set_options([{"state": UPRIGHT}, {}, {}])
    with pytest.raises(ValueError, match="same keys"):
        venv.reset()
    venv.reset()  # wrong ones, too


def test_episode_statistics(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=2, seed=0, max_episode_steps=4, **arguments)
    venv.reset()
    ends = []
    for step in range(1, 9):
        infos = venv.step(np.array([step % 2] * 2))[3]
        ends += [(step, i["episode"]["r"], i["episode"]["l"]) for i in infos if i]
    assert ends == [(4, 4.0, 4)] * 2 + [(8, 4.0, 4)] * 2


def test_attributes_and_methods(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=3, seed=0, render_mode="rgb_array", **arguments)
    venv.reset()
    assert venv.render_mode == "rgb_array"
    assert venv.get_attr("render_mode", indices=[0, 2]) == ["rgb_array"] * 2
    assert np.array_equal(venv.get_attr("state", indices=1)[0], venv.physical_state[1])
    venv.env_method("set_params", length=[0.4, 0.5, 0.6])
    assert [p.length for p in venv.get_attr("params")] == pytest.approx([0.4, 0.5, 0.6])
    with pytest.raises(ValueError, match="one batched simulation"):
        venv.env_method("set_params", length=0.5, indices=[0])
    with pytest.raises(AttributeError):
        venv.get_attr("lenght")
    assert not venv.has_attr("lenght")
    unread = make_vec_env(n_envs=3, **arguments)
    assert unread.has_attr("state")  # though nobody can read it before a reset
    assert unread.has_attr("render_mode")
    venv.set_attr("note", 1)
    assert venv.get_attr("note") == [1, 1, 1]
    assert venv.env_is_wrapped(Monitor) == [True] * 3
    assert not is_vecenv_wrapped(venv, VecMonitor)
    assert [f.shape for f in venv.get_images()] == [(64, 64, 3)] * 3
    assert venv.render("rgb_array").shape == (128, 128, 3)
    venv.close()


def test_unseeded_environments_differ(arguments: dict[str, Any]) -> None:
    a, b = (make_vec_env(n_envs=1, **arguments).reset() for _ in range(2))
    assert not np.array_equal(a, b)


def test_global_torch_generator_is_left_alone(arguments: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    venv = make_vec_env(n_envs=2, seed=0, **arguments)
    venv.reset()
    venv.step(np.array([0, 1]))
    assert torch.equal(torch.get_rng_state(), before)


def test_cars_start_anywhere_and_the_others_drive_on(car_checkpoint: str) -> None:
    settings = {"checkpoint": car_checkpoint, "obs_type": "state", "device": "cpu"}
    venv = make_vec_env("PIWM-DonkeyCar-v0", 64, max_episode_steps=5, **settings)
    anywhere = StartAnywhere(venv, seed=3)
    obs = anywhere.reset()
    assert np.array_equal(obs, StartAnywhere(venv, seed=3).reset()), "the seed decides"
    path = venv.envs.system.asset.numpy()
    nearest = np.linalg.norm(obs[:, None, :2] - path, axis=-1).argmin(1)
    assert len(np.unique(nearest * 8 // len(path))) == 8, "in all parts of the course"
    assert np.abs(obs[:, 4]).max() < 0.45
    assert np.abs(obs[:, 5]).max() < 0.35
    for step in range(5):
        before = venv.physical_state
        obs, _, dones, infos = anywhere.step(np.zeros((64, 2), dtype=np.float32))
        moved = np.linalg.norm(venv.physical_state[:, :2] - before[:, :2], axis=1)
        assert (moved[~dones] <= 0.1).all()
        assert dones.all() == (step == 4)
    assert {"terminal_observation", "TimeLimit.truncated"} <= set(infos[0])
    assert np.median(moved) > 1
    assert np.allclose(obs[:, :2], venv.physical_state[:, :2])


def test_starts_anywhere_keep_to_seeds_and_options(car_checkpoint: str) -> None:
    arguments = {"checkpoint": car_checkpoint, "obs_type": "state", "max_episode_steps": 3}
    venv = make_vec_env("PIWM-DonkeyCar-v0", 4, **arguments)
    anywhere = StartAnywhere(venv)
    starts = []
    for seed in (5, None, 5):
        anywhere.seed(seed)
        starts.append(anywhere.reset())
        assert np.array_equal([info["state"] for info in venv.reset_infos], venv.physical_state)
    assert np.array_equal(starts[0], starts[2])
    assert not np.array_equal(starts[0], starts[1])
    anywhere.set_options({"params": {"drag": 0.5}})
    anywhere.reset()
    assert [params.drag for params in anywhere.get_attr("params")] == [0.5] * 4
    for _ in range(3):
        anywhere.step(np.zeros((4, 2), dtype=np.float32))
    assert np.array_equal([info["state"] for info in venv.reset_infos], venv.physical_state)
    told = venv.envs.state[0]
    anywhere.set_options({"state": told})
    anywhere.reset()
    assert np.array_equal(venv.physical_state, [told] * 4)


def test_attributes_are_those_of_each_environment(arguments: dict[str, Any]) -> None:
    venv = make_vec_env(n_envs=3, **arguments)
    assert venv.get_attr("action_space", [0, 2]) == [venv.action_space] * 2
    assert venv.get_attr("observation_space") == [venv.observation_space] * 3
    with pytest.raises(IndexError):
        venv.get_attr("render_mode", 3)


@pytest.mark.parametrize(("name", "value"), [("output", "torch"), ("autoreset_mode", "NextStep")])
def test_batches_that_do_not_fit_the_contract_are_refused(
    model: WorldModel, name: str, value: str
) -> None:
    envs = WorldModelVectorEnv(num_envs=2, model=model, **{name: value})
    with pytest.raises(ValueError, match=f"envs has {name} '{value}'; SB3 needs"):
        WorldModelVecEnv(envs)


@pytest.mark.parametrize(
    ("env_id", "changes", "message"),
    [
        ("CartPole-v1", {}, "did you mean 'PIWM-CartPole-v0'"),
        ("MountainCar-v0", {}, "unknown imagined environment 'MountainCar-v0'"),
        ("PIWM-CartPole-v0", {"output": "torch"}, "output is not to be chosen.*'numpy'"),
        ("PIWM-CartPole-v0", {"autoreset_mode": "NextStep"}, "autoreset_mode is not to be chosen"),
        ("PIWM-CartPole-v0", {"vectorization_mode": "sync"}, "vectorization_mode is not to be"),
    ],
)
def test_what_sb3_cannot_have_is_refused(
    arguments: dict[str, Any], env_id: str, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_vec_env(env_id, 2, **arguments, **changes)


def test_ids_with_a_module_and_what_is_fixed_anyway_are_accepted(
    arguments: dict[str, Any],
) -> None:
    venv = make_vec_env("piwm_gym:PIWM-CartPole-v0", 2, output="numpy", **arguments)
    assert venv.reset().shape == (2, 4)
    with pytest.raises(gym.error.NameNotFound):
        make_vec_env("PIWM-CartPol-v0", 2, **arguments)


def test_without_sb3_the_extra_is_named() -> None:
    code = "import sys; sys.modules['stable_baselines3'] = None; import piwm_gym.sb3"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'piwm-gym[sb3]'" in result.stderr.splitlines()[-1]


def test_systems_that_start_as_in_reality_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cartpole.*expected a system that can start anywhere"):
        StartAnywhere(make_vec_env(n_envs=2, **arguments))
