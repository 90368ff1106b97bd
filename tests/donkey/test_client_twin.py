"""The Donkey Car behind ``make_real``."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym import make_real
from piwm_gym.courses import get_course
from piwm_gym.donkey_client import DonkeyEnv, Timeouts
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.registration import ENTRIES, Entry
from piwm_gym.systems import DonkeyCar
from piwm_gym.twins import DonkeyCarTwin
from tests.donkey.fake_simulator import FakeSimulator

ENV_ID = "PIWM-DonkeyCar-v0"


@pytest.fixture(scope="module", autouse=True)
def entry() -> Iterator[None]:
    """The id, whether or not it is shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            ENTRIES, ENV_ID, ENTRIES.get(ENV_ID) or Entry(ENV_ID, "donkey_car", 1000, 0.0)
        )
        yield


@pytest.fixture(scope="module")
def real() -> Iterator[gym.Env]:
    """On another course than the system's own."""
    env = make_real(ENV_ID, "pixels_state", "rgb_array", course="hall", seed=2)
    yield env
    env.close()


def action(steering: float = 0.0, throttle: float = 0.5) -> np.ndarray:
    return np.array([steering, throttle], np.float32)


def test_spaces_and_infos(real: gym.Env) -> None:
    system = DonkeyCar()
    assert real.action_space == system.action_space
    assert real.observation_space["state"] == system.observation_space
    obs, info = real.reset(seed=0)
    assert obs in real.observation_space
    assert info["params"] == {}
    assert info["state"].shape == (6,)
    assert info["state"].dtype == np.float32
    names = {"x", "y", "heading", "speed", "cte", "hit", "time", "elapsed", "laps"}
    assert names | {"generation", "version", "state"} <= set(info)
    *_, info = real.step(action())
    assert "params" not in info
    frame = preprocess_frame(real.unwrapped.native.render(), system.frame)
    np.testing.assert_array_equal(real.render(), frame)


def test_state_and_rewards_are_the_systems_on_the_simulators_course(real: gym.Env) -> None:
    course = get_course("hall")
    system = DonkeyCar(torch.from_numpy(course.path))
    _, info = real.reset(seed=1)
    x, y, heading = course.spawn
    np.testing.assert_allclose(info["state"], [x, y, heading, 0, 0, 0], atol=1e-3)
    for k in range(25):
        chosen = action(0.5 * math.sin(k / 3), 0.6)
        before = torch.from_numpy(info["state"])
        obs, reward, terminated, _, info = real.step(chosen)
        after = torch.from_numpy(info["state"])
        expected = system.reward(before, torch.from_numpy(chosen), after)
        assert reward == pytest.approx(float(expected), abs=5e-3)
        assert terminated == bool(system.terminal(after))
        np.testing.assert_allclose(obs["state"], system.observation(after), atol=1e-5)
        assert info["cte"] == pytest.approx(float(system.place(after).cte), abs=5e-3)
    state = dict(zip(system.state_names, info["state"], strict=True))
    assert state["steering"] == pytest.approx(math.radians(16) * chosen[0])
    arc = float(system.place(after).arc)
    assert state["progress"] == pytest.approx(arc, abs=0.02)
    assert state["progress"] > 0.2
    assert info["laps"] == 0


def test_a_seed_repeats_an_episode(real: gym.Env) -> None:
    ends = []
    for _ in range(2):
        real.reset(seed=5)
        for _ in range(10):
            obs, *_ = real.step(action(0.2, 0.9))
        ends.append(obs)
    np.testing.assert_array_equal(ends[0]["pixels"], ends[1]["pixels"])
    np.testing.assert_array_equal(ends[0]["state"], ends[1]["state"])


def test_starts_in_a_state(real: gym.Env) -> None:
    x, y, _ = get_course("hall").spawn
    start = [x + 0.1, y, 0.5, 0.0, 0.1, 3.0]
    _, info = real.reset(options={"state": start})
    np.testing.assert_allclose(info["state"], [*start[:4], 0, 0], atol=1e-3)
    with pytest.raises(ValueError, match="speed in state is 1 m/s; expected 0"):
        real.reset(options={"state": [x, y, 0, 1, 0, 0]})


def test_physics_is_neither_told_nor_set(real: gym.Env) -> None:
    real.reset()
    with pytest.raises(NotImplementedError, match="donkey_car does not tell"):
        _ = real.unwrapped.params
    with pytest.raises(ValueError, match="'wheelbase' given; expected none"):
        real.unwrapped.set_params(wheelbase=0.3)
    with pytest.raises(ValueError, match="'drag' given"):
        real.reset(options={"params": {"drag": 0.3}})
    with pytest.raises(ValueError, match="unknown parameter 'mass'"):
        real.unwrapped.set_params(mass=0.3)


def test_a_simulator_that_runs_already() -> None:
    with FakeSimulator() as simulator:
        limits = Timeouts(5, 5, 5, 5)
        env = make_real(ENV_ID, "pixels", port=simulator.port, timeouts=limits, units_per_metre=8)
        _, info = env.reset()
        np.testing.assert_allclose(info["state"], [1, 2, 0.5, 0, 0, 0], atol=1e-6)
        for _ in range(10):
            *_, info = env.step(action(0.0, 1.0))
        assert info["state"][5] == pytest.approx(0.5)  # the way driven
        env.close()


def test_options_that_are_wrong() -> None:
    with pytest.raises(ValueError, match=r"unknown simulator option .*'prt'.*did you mean 'port'"):
        make_real(ENV_ID, prt=9091)
    with pytest.raises(ValueError, match="port is 0; expected"):
        make_real(ENV_ID, port=0)
    with pytest.raises(ValueError, match="whose course is unknown; expected 'pixels'"):
        make_real(ENV_ID, "state", port=9091)
    with pytest.raises(ValueError, match="unknown course 'medow'.*did you mean 'meadow'"):
        make_real(ENV_ID, course="medow")


def test_options_are_those_of_the_client() -> None:
    arguments: Any = inspect.signature(DonkeyEnv).parameters
    assert {*DonkeyCarTwin.options, "render_mode"} == set(arguments)
