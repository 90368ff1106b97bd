"""The real twin: the real environment behind the imagined one's interface."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from piwm_gym import make_real
from piwm_gym.observations import OBS_TYPES
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import CartPole, LunarLander

ROOT = Path(__file__).parents[1]
UNBOUNDED = "ignore:.*A Box observation space m.*imum value is -?infinity.*:UserWarning"


@pytest.mark.filterwarnings(UNBOUNDED)
@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_both_checkers_are_content(obs_type: str) -> None:
    env = make_real(obs_type=obs_type, render_mode="rgb_array").unwrapped
    check_env(env)
    sb3_check_env(env)


@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_spaces_and_infos_are_those_of_the_imagined_one(checkpoint: str, obs_type: str) -> None:
    real = make_real(obs_type=obs_type)
    imagined = gym.make("PIWM-CartPole-v0", checkpoint=checkpoint, obs_type=obs_type)
    assert real.observation_space == imagined.observation_space
    assert real.action_space == imagined.action_space
    assert real.metadata == imagined.metadata
    (_, a), (_, b) = real.reset(seed=0), imagined.reset(seed=0)
    assert set(a) == set(b) - {"in_distribution"}
    assert set(a["params"]) == set(b["params"])
    assert real.unwrapped.get_keys_to_action() == imagined.unwrapped.get_keys_to_action()


def test_is_cart_pole() -> None:
    real = make_real(obs_type="pixels_state")
    reference = gym.make("CartPole-v1", render_mode="rgb_array")
    obs, info = real.reset(seed=3)
    state, _ = reference.reset(seed=3)
    rng = np.random.default_rng(0)
    done = False
    while not done:
        np.testing.assert_allclose(obs["state"], state, rtol=1e-6)
        np.testing.assert_array_equal(info["state"], obs["state"])
        frame = preprocess_frame(np.asarray(reference.render()), CartPole().frame)
        np.testing.assert_array_equal(obs["pixels"], frame)
        action = rng.integers(2)
        obs, *rest, info = real.step(action)
        state, *expected, _ = reference.step(action)
        assert rest == expected
        done = rest[1]


def test_starts_in_a_state_and_stops_at_the_limit() -> None:
    env = make_real(obs_type="state", max_episode_steps=3)
    start = [0.1, -0.2, 0.03, 0.4]
    obs, info = env.reset(options={"state": start})
    np.testing.assert_allclose(obs, start, rtol=1e-6)
    np.testing.assert_allclose(info["state"], start, rtol=1e-6)
    assert [env.step(t % 2)[3] for t in range(3)] == [False, False, True]
    assert make_real().spec.max_episode_steps == 500


def test_parameters_move_the_real_simulator_and_its_derived_quantities() -> None:
    env = make_real(obs_type="state").unwrapped
    env.set_params(masspole=0.3, length=0.8)
    native: Any = env.native.unwrapped
    assert native.total_mass == pytest.approx(1.3)
    assert native.polemass_length == pytest.approx(0.24)
    _, info = env.reset(options={"params": {"gravity": 5.0}})
    assert info["params"]["gravity"] == 5.0
    _, info = env.reset()
    assert info["params"]["gravity"] == 9.8
    assert info["params"]["masspole"] == pytest.approx(0.3)


def test_parameters_agree_with_the_imagined_physics(checkpoint: str) -> None:
    start = {"state": [0.1, 0.2, 0.05, -0.3], "params": {"masspole": 0.4, "force_mag": 15.0}}
    real = make_real(obs_type="state")
    imagined = gym.make("PIWM-CartPole-v0", checkpoint=checkpoint, obs_type="state")
    real.reset(options=start)
    imagined.reset(options=start)
    for action in (0, 1, 1, 0, 1):
        np.testing.assert_allclose(real.step(action)[0], imagined.step(action)[0], atol=1e-6)


def test_frames_are_drawn_only_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_real(obs_type="state", render_mode="rgb_array").unwrapped
    calls: list[int] = []
    render = env.native.render
    monkeypatch.setattr(env.native, "render", lambda: calls.append(1) or render())
    env.reset(seed=0)
    env.step(0)
    assert calls == []
    assert env.render().shape == (64, 64, 3)
    env.render()
    assert len(calls) == 1


def test_nothing_returned_shares_memory() -> None:
    env = make_real(obs_type="pixels", render_mode="rgb_array").unwrapped
    first, info = env.reset(seed=0)
    copy = first.copy()
    second, *_, later = env.step(1)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(second, env.render())
    assert not np.shares_memory(info["state"], later["state"])
    assert np.array_equal(first, copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sate": [0, 0, 0, 0]}, "did you mean 'state'"),
        ({"state": [0, 0]}, r"expected \(4,\)"),
        ({"params": {"mass": 1.0}}, "unknown parameter 'mass'"),
        ({"frames": np.zeros((2, 64, 64, 3), np.uint8), "actions": [0]}, "real environment"),
        ({"frames": 1}, "option of a real environment 'frames'"),
        ({"actions": [0]}, "option of a real environment 'actions'"),
        ([("state", 0)], "options is a list"),
    ],
)
def test_options_that_are_wrong(options: Any, message: str) -> None:
    env = make_real(obs_type="state")
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)


def test_arguments_and_actions_that_are_wrong() -> None:
    with pytest.raises(ValueError, match="did you mean 'pixels'"):
        make_real(obs_type="pixel")
    with pytest.raises(ValueError, match="unknown simulator option 'port'; CartPole-v1 has none"):
        make_real(port=9091)
    env = make_real(obs_type="state").unwrapped
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="expected an integer from 0 to 1"):
        env.step(2)
    with pytest.raises(ValueError, match="positive"):
        env.set_params(length=-1.0)
    with pytest.warns(UserWarning, match="without specifying any render mode"):
        assert env.render() is None


@pytest.fixture
def lander() -> str:
    """Id of the lunar lander."""
    return "PIWM-LunarLander-v0"


@pytest.mark.filterwarnings(UNBOUNDED)
@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_checkers_are_content_with_the_lunar_lander(lander: str, obs_type: str) -> None:
    check_env(make_real(lander, obs_type=obs_type, render_mode="rgb_array").unwrapped)


def test_is_lunar_lander(lander: str) -> None:
    real = make_real(lander, obs_type="pixels_state")
    reference = gym.make("LunarLander-v3", render_mode="rgb_array")
    obs, info = real.reset(seed=3)
    observed, _ = reference.reset(seed=3)
    assert info["scene"].shape == (11,)
    rng = np.random.default_rng(0)
    done = False
    while not done:
        np.testing.assert_allclose(obs["state"], observed, atol=1e-6)
        assert info["state"].shape == (10,)
        frame = preprocess_frame(np.asarray(reference.render()), LunarLander().frame)
        np.testing.assert_array_equal(obs["pixels"], frame)
        action = rng.integers(4)
        obs, *rest, info = real.step(action)
        observed, *expected, _ = reference.step(action)
        assert rest == expected
        done = rest[1]


def test_lunar_lander_starts_in_a_state_on_a_terrain(lander: str) -> None:
    env = make_real(lander, obs_type="state")
    start = [1.0, 5.0, 0.5, -1.0, 0.2, 0.1, 0, 0, 0, 0]
    terrain = np.linspace(-2, 1, 11)
    obs, info = env.reset(options={"state": start, "scene": terrain})
    np.testing.assert_allclose(info["state"], start, atol=2e-6)
    np.testing.assert_allclose(info["scene"], terrain, atol=1e-6)
    assert obs[1] == pytest.approx(5 / (20 / 3))
    _, info = env.reset(seed=1)
    assert not np.allclose(info["scene"], terrain)
    _, other = env.reset(seed=1, options={"scene": terrain})
    np.testing.assert_allclose(other["scene"], terrain, atol=1e-6)
    np.testing.assert_array_equal(info["state"], other["state"])
    assert make_real(lander).spec.max_episode_steps == 1000


def test_lunar_lander_without_dispersion_repeats_itself(lander: str) -> None:
    env = make_real(lander, obs_type="state").unwrapped
    env.set_params(main_dispersion=0.0, side_dispersion=0.0)
    start = {"state": [0, 6.0, 0, 0, 0, 0, 0, 0, 0, 0]}
    ends = []
    for _ in range(2):
        env.reset(options=start)
        for t in range(30):
            *_, info = env.step(t % 4)
        ends.append(info["state"])
    # Box2D starts from the forces in the legs' joints at the reset: some last bits differ.
    np.testing.assert_allclose(*ends, atol=1e-5)
    _, info = env.reset(options={"params": {"gravity": 3.0}})
    assert info["params"]["gravity"] == 3.0
    _, info = env.reset()
    assert info["params"]["gravity"] == 10.0
    assert info["params"]["main_dispersion"] == 0.0


def test_parameters_that_the_real_lander_cannot_have(lander: str) -> None:
    env = make_real(lander, obs_type="state").unwrapped
    with pytest.raises(ValueError, match="legs, which cannot be set"):
        env.set_params(leg_return=1.0)
    with pytest.raises(ValueError, match="set the three together"):
        env.reset(options={"params": {"side_attitude": 2.0}})
    env.reset(seed=0)


def test_importing_does_not_import_clients_of_simulators() -> None:
    code = (
        "import sys, piwm_gym.real;"
        "print([m for m in ('gym', 'gym_donkeycar', 'asyncore') if m in sys.modules])"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
