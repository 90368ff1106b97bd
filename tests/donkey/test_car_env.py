"""PIWM-DonkeyCar-v0 as an environment: the checker, infos, slots, episode ends."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from piwm_gym.systems import DonkeyCar

ENV_ID = "PIWM-DonkeyCar-v0"
SYSTEM = DonkeyCar()


@pytest.fixture
def arguments(car_checkpoint: str) -> dict[str, Any]:
    return {"checkpoint": car_checkpoint, "device": "cpu"}


@pytest.mark.parametrize("obs_type", ["pixels", "state", "pixels_state"])
def test_the_checker_has_nothing_to_say(arguments: dict[str, Any], obs_type: str) -> None:
    env = gym.make(ENV_ID, obs_type=obs_type, render_mode="rgb_array", **arguments)
    check_env(env.unwrapped)


def test_infos_tell_cte_and_laps(arguments: dict[str, Any]) -> None:
    env = gym.make(ENV_ID, obs_type="state", **arguments)
    obs, info = env.reset(seed=0)
    assert info["laps"] == 0
    assert abs(info["cte"]) <= 0.02 * 2**0.5
    start = np.array([*info["state"][:3], 1.0, 0.0, SYSTEM.track(SYSTEM.asset).length - 0.01])
    env.reset(options={"state": start})
    for _ in range(3):
        obs, reward, _, _, info = env.step(np.array([0.0, 0.5]))
    assert info["laps"] == 1
    assert info["cte"] == pytest.approx(obs[4], abs=1e-6)
    assert reward == pytest.approx((1 - abs(obs[4])) * obs[3], abs=1e-5)


def test_leaving_the_track_ends_the_episode_with_a_penalty(arguments: dict[str, Any]) -> None:
    env = gym.make(ENV_ID, obs_type="state", **arguments)
    env.reset(seed=0)
    for _ in range(400):
        _, reward, terminated, _, info = env.step(np.array([-1.0, 0.5]))
        if terminated:
            break
    assert terminated
    assert abs(info["cte"]) > 1
    assert reward == -1


def test_a_slot_is_the_single_environment(arguments: dict[str, Any]) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=3, obs_type="state", **arguments)
    many, info = envs.reset(seed=5)
    assert info["cte"].shape == info["laps"].shape == (3,)
    assert info["_laps"].all()
    env = gym.make(ENV_ID, obs_type="state", **arguments)
    one, _ = env.reset(seed=7)
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert np.array_equal(many[2], one)
        actions = rng.uniform((-1, 0), (1, 1), size=(3, 2)).astype(np.float32)
        many, rewards, _, _, info = envs.step(actions)
        one, reward, terminated, _, single = env.step(actions[2])
        assert rewards[2] == np.float32(reward)
        assert info["cte"][2] == np.float32(single["cte"]) or terminated
        if terminated:
            break


def test_actions_outside_the_box_are_clipped(arguments: dict[str, Any]) -> None:
    env = gym.make(ENV_ID, obs_type="state", **arguments)
    env.reset(seed=0)
    wild = env.step(np.array([9.0, -3.0]))[0]
    env.reset(seed=0)
    assert np.array_equal(wild, env.step(np.array([1.0, 0.0]))[0])
    with pytest.raises(ValueError, match="is not a number"):
        env.step(np.array([np.nan, 0.0]))
