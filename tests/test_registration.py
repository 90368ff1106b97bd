"""Ids: registered on import, made with and without it, described by specs that travel."""

import importlib
import json
import math
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import piwm_gym
from piwm_gym.registration import ENTRIES, get_entry
from piwm_gym.systems import SYSTEMS
from piwm_gym.vector_env import WorldModelVectorEnv

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("env_id", ENTRIES)
def test_every_id_is_registered_with_both_entry_points(env_id: str) -> None:
    spec = gym.spec(env_id)
    assert isinstance(spec.entry_point, str)
    assert isinstance(spec.vector_entry_point, str)
    assert spec.max_episode_steps == ENTRIES[env_id].max_episode_steps
    assert ENTRIES[env_id].system in SYSTEMS
    json.loads(spec.to_json())


@pytest.mark.parametrize(
    "env_id", [i for i, e in ENTRIES.items() if SYSTEMS[e.system].real_id in gym.registry]
)
def test_limits_are_those_of_the_real_environment(env_id: str) -> None:
    real = gym.spec(SYSTEMS[ENTRIES[env_id].system].real_id)
    assert ENTRIES[env_id].max_episode_steps == real.max_episode_steps
    assert ENTRIES[env_id].reward_threshold == real.reward_threshold


def test_importing_twice_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(piwm_gym)


def test_make_without_an_import(checkpoint: str) -> None:
    code = (
        "import gymnasium, sys;"
        "env = gymnasium.make('piwm_gym:PIWM-CartPole-v0', checkpoint=sys.argv[1], device='cpu');"
        "env.reset(seed=0); env.step(0);"
        "envs = gymnasium.make_vec('piwm_gym:PIWM-CartPole-v0', 2, checkpoint=sys.argv[1]);"
        "envs.reset(seed=0); print(env.spec.id)"
    )
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, checkpoint],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "PIWM-CartPole-v0"


def test_wrappers_are_the_usual_ones(checkpoint: str) -> None:
    env = gym.make("PIWM-CartPole-v0", checkpoint=checkpoint)
    assert "TimeLimit<OrderEnforcing<PassiveEnvChecker<WorldModelEnv<PIWM-CartPole-v0>>>>" in str(
        env
    )
    assert math.isfinite(env.metadata["render_fps"])
    assert env.metadata["render_fps"] == 50


def test_make_vec_uses_the_batched_environment(checkpoint: str) -> None:
    envs = gym.make_vec("PIWM-CartPole-v0", num_envs=3, checkpoint=checkpoint)
    assert isinstance(envs, WorldModelVectorEnv)
    assert envs.simulation.max_episode_steps == 500


@pytest.mark.parametrize("vector", [False, True])
def test_specs_travel(checkpoint: str, vector: bool) -> None:
    arguments = {"checkpoint": checkpoint, "obs_type": "state", "params": {"length": 0.8}}
    made = (
        gym.make_vec("PIWM-CartPole-v0", num_envs=2, **arguments)
        if vector
        else gym.make("PIWM-CartPole-v0", **arguments)
    )
    assert made.spec is not None
    for spec in (
        pickle.loads(pickle.dumps(made.spec)),
        type(made.spec).from_json(made.spec.to_json()),
    ):
        again = gym.make_vec(spec) if vector else gym.make(spec)
        obs, info = again.reset(seed=0)
        assert (obs == made.reset(seed=0)[0]).all()
        assert info["params"]["length"] == pytest.approx(0.8)


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
def test_an_id_makes_no_other_environment(make: Any, lander_checkpoint: str) -> None:
    lander = {"env_id": "PIWM-LunarLander-v0", "checkpoint": lander_checkpoint}
    with pytest.raises(ValueError, match="made as 'PIWM-CartPole-v0'; leave it out"):
        make("PIWM-CartPole-v0", **lander)
    assert make("PIWM-LunarLander-v0", **lander).spec.id == "PIWM-LunarLander-v0"
    spec = replace(gym.spec("PIWM-LunarLander-v0"), id="Mine-v0", kwargs=lander)
    assert make(spec).spec.id == "Mine-v0"


@pytest.mark.parametrize("make", [gym.make, gym.make_vec])
@pytest.mark.parametrize("compile", ["yes", 1, "False"])
def test_compile_is_a_choice_of_two(make: Any, compile: Any, checkpoint: str) -> None:
    with pytest.raises(ValueError, match="compile is .*; expected True, False or None"):
        make("PIWM-CartPole-v0", checkpoint=checkpoint, compile=compile)


def test_unknown_ids_fail_at_once_and_suggest() -> None:
    with pytest.raises(gym.error.NameNotFound, match="PIWM-CartPole"):
        gym.make("PIWM-CartPol-v0")
    with pytest.raises(ValueError, match="did you mean 'PIWM-CartPole-v0'"):
        get_entry("PIWM-CartPole-v1")
    with pytest.raises(ValueError, match="did you mean 'PIWM-CartPole-v0'"):
        piwm_gym.make_real("PIWM-CartPole-v1")
