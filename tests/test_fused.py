"""The compiled step: the same numbers as the step that is not compiled, in all modes."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from piwm_gym import fused
from piwm_gym.env import WorldModelEnv
from piwm_gym.vector_env import WorldModelVectorEnv

MODES = ["SameStep", "NextStep", "Disabled"]


@pytest.fixture
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that would be compiled, as it is."""
    monkeypatch.setattr(fused, "_host_code", lambda function, _: lambda inputs: function(*inputs))
    monkeypatch.setattr(fused, "available", lambda _: True)


def same(a: Any, b: Any) -> bool:
    """Equality of nested outputs."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and a.dtype == object:
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return a is b or bool(np.array_equal(a, b))


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
@pytest.mark.parametrize("randomize", [None, {"gravity": (9.0, 11.0)}])
def test_its_function_gives_the_bits_of_ordinary_steps(
    make_tiny: Any, system: str, mode: str, randomize: Any
) -> None:
    arguments = {
        "model": make_tiny(system=system),
        "num_envs": 5,
        "obs_type": "state",
        "max_episode_steps": 11,
        "autoreset_mode": mode,
        "randomize": randomize,
    }
    plain, quick = (WorldModelVectorEnv(compile=c, **arguments) for c in (False, True))
    assert quick.simulation._fused is not None
    first = plain.reset(seed=3), quick.reset(seed=3)
    assert same(first[0][0], first[1][0])
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(0, plain.single_action_space.n, 5)
        a, b = plain.step(actions), quick.step(actions)
        assert all(same(x, y) for x, y in zip(a, b, strict=True))
        if mode == "Disabled" and (a[2] | a[3]).any():
            options = {"reset_mask": a[2] | a[3]}
            assert same(plain.reset(options=options)[0], quick.reset(options=options)[0])
    before, after = plain.snapshot(), quick.snapshot()
    assert torch.equal(before.streams, after.streams)
    assert torch.equal(before.elapsed, after.elapsed)


@pytest.mark.usefixtures("_uncompiled")
def test_the_single_environment_too(make_tiny: Any) -> None:
    plain, quick = (
        WorldModelEnv(model=make_tiny(), obs_type="state", compile=c) for c in (False, True)
    )
    assert all(map(same, plain.reset(seed=1), quick.reset(seed=1)))
    for _ in range(5):
        assert all(map(same, plain.step(1), quick.step(1)))


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_rollouts_give_the_same_states(make_tiny: Any, system: str) -> None:
    model = make_tiny(system=system)
    draw = torch.Generator().manual_seed(0)
    equations, given = model.system, {}
    if equations.scene_variables:
        given["scene"] = equations.scene(
            torch.rand(6, equations.num_scene_uniforms, generator=draw)
        )
    start = torch.rand(6, equations.num_initial_uniforms, generator=draw)
    state = equations.initial(start, **given)
    space = equations.action_space
    space.seed(0)
    actions = torch.from_numpy(np.array([[space.sample() for _ in range(9)] for _ in range(6)]))
    if equations.num_step_uniforms:
        given["noise"] = torch.rand(6, 9, equations.num_step_uniforms, generator=draw)
    wanted = model.rollout(state, actions, **given).detach()
    model.compile_rollout(6, noise="noise" in given)
    assert model.rollout(state, actions, **given).requires_grad
    with torch.no_grad():
        model._rollouts, (quick,) = {}, model._rollouts.values()
        found = quick(state, actions, model.params, given.get("noise"), given.get("scene"))
        assert torch.equal(found, wanted)
        assert quick(state[:2], actions[:2], model.params, None, None) is None


@pytest.mark.usefixtures("_uncompiled")
def test_compiled_rollouts_are_used_without_gradients(make_tiny: Any) -> None:
    model = make_tiny()
    model.compile_rollout(3)
    ((key, quick),) = model._rollouts.items()
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return quick(*given)

    model._rollouts[key] = counted
    state, actions = torch.zeros(3, 4), torch.ones(3, 5, dtype=torch.int64)
    slow = model.rollout(state, actions)
    slow.sum().backward()
    assert not calls
    with torch.no_grad():
        assert torch.equal(model.rollout(state, actions), slow)
        assert len(calls) == 1
        heavier = model.params.replace(masspole=0.5)
        assert not torch.equal(model.rollout(state, actions, heavier), slow)
        model.rollout(state[:2], actions[:2])
    assert len(calls) == 2


def test_rollouts_that_cannot_be_compiled(make_tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny()
    with pytest.raises(ValueError, match="batch_size is 0; expected an integer of at least 1"):
        model.compile_rollout(0)
    with pytest.raises(ValueError, match="cartpole has no process noise"):
        model.compile_rollout(3, noise=True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(UserWarning, match="rollouts on cpu run uncompiled"):
        model.compile_rollout(3)


def test_without_a_compiler_there_is_a_warning(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(UserWarning, match="no compiler for cpu; steps run uncompiled"):
        env = WorldModelEnv(model=make_tiny(), compile=True)
    env.reset(seed=0)
    env.step(0)


COMPILED = """
import gymnasium as gym, numpy as np, sys, torch
torch.set_num_threads(1)
arguments = {"checkpoint": sys.argv[1], "obs_type": "state", "max_episode_steps": 30}
single = gym.make("piwm_gym:PIWM-CartPole-v0", compile=True, **arguments)
plain, quick = (
    gym.make_vec("PIWM-CartPole-v0", 35, compile=c, **arguments) for c in (False, True)
)
assert np.array_equal(plain.reset(seed=0)[0], quick.reset(seed=0)[0])
single.reset(seed=34)
for t in range(25):
    actions = np.full(35, t % 2)
    a, b, c = plain.step(actions), quick.step(actions), single.step(t % 2)
    np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-6)
    assert all(np.array_equal(x, y) for x, y in zip(a[1:4], b[1:4]))
    assert np.array_equal(b[0][34], c[0])
model = single.unwrapped.model
state, actions = torch.from_numpy(a[0]), torch.from_numpy(np.arange(35 * 9).reshape(35, 9) % 2)
with torch.no_grad():
    slow = model.rollout(state, actions)
    model.compile_rollout(35)
    (quick,) = model._rollouts.values()
    found = quick(state, actions, model.params, None, None)
    np.testing.assert_allclose(slow, found, rtol=1e-4, atol=1e-6)
    assert torch.equal(model.rollout(state, actions), found)
"""


@pytest.mark.skipif(not fused.available(torch.device("cpu")), reason="needs a C++ compiler")
def test_compiled_by_inductor(checkpoint: str) -> None:
    """Alone in a process: the tests' checks of shape annotations would be in the way."""
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, checkpoint]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
