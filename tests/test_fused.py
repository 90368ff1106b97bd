"""Compiled steps: the bits of ordinary ones, in all modes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from machine_code import leave_uncompiled, same

from piwm_gym import compiler, fused
from piwm_gym.env import WorldModelEnv
from piwm_gym.vector_env import WorldModelVectorEnv

MODES = ["SameStep", "NextStep", "Disabled"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
@pytest.mark.parametrize("randomize", [None, {"gravity": (9.0, 11.0)}])
@pytest.mark.parametrize("apart", [1, 10**6], ids=["starts apart", "all in one"])
def test_its_functions_give_the_bits_of_ordinary_steps(
    make_tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    mode: str,
    randomize: Any,
    apart: int,
) -> None:
    leave_uncompiled(monkeypatch)
    monkeypatch.setattr(fused, "APART", apart)
    monkeypatch.setattr(fused, "STARTED", 3)  # lots of 2: starts of one lot and of several
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


@pytest.mark.parametrize(
    ("system", "numbers"), [("cartpole", True), ("lunar_lander", True), ("donkey_car", False)]
)
def test_a_single_environment_is_compiled_where_it_cannot_step_on_numbers(
    make_tiny: Any, system: str, numbers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_uncompiled(monkeypatch)
    model = make_tiny(system=system)
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, True))
    assert (quick.simulation._fused is None) == numbers
    assert all(map(same, plain.reset(seed=1), quick.reset(seed=1)))
    plain.action_space.seed(0)
    for _ in range(5):
        action = plain.action_space.sample()
        assert all(map(same, plain.step(action), quick.step(action)))


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_machine_code_gets_the_layout_that_it_was_made_for(
    make_tiny: Any, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def layout(inputs: Any) -> list[tuple[Any, ...]]:
        return [(x.shape, x.stride() if x.numel() else None, x.dtype) for x in inputs]

    def strict(function: Any, inputs: Any, **how: bool) -> Any:
        example = layout(inputs)

        def call(inputs: Any) -> Any:
            nonlocal calls
            calls += 1
            assert layout(inputs) == example
            return function(*inputs)

        return call

    leave_uncompiled(monkeypatch)
    monkeypatch.setattr(compiler, "host_code", strict)
    envs = WorldModelVectorEnv(
        model=make_tiny(system=system), num_envs=16, obs_type="state", compile=True
    )
    size = len(envs.system.variables)
    actions = np.stack([envs.single_action_space.sample() for _ in range(32)])
    envs.reset(seed=0)
    envs.step(np.asfortranarray(actions[:16]))
    envs.step(torch.from_numpy(np.repeat(actions, 2, axis=0))[::4])
    envs.step(actions[::-2].astype(float).tolist())
    moment = envs.snapshot()
    envs.restore(dataclasses.replace(moment, state=moment.state.contiguous()))
    envs.step(actions[:16])
    envs.reset(options={"state": np.zeros((size, 16)).T})
    envs.step(actions[:16])
    assert calls == 5


def test_without_a_compiler_there_is_a_warning(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(UserWarning, match="no compiler for cpu; steps run uncompiled"):
        env = WorldModelEnv(model=make_tiny(), compile=True)
    env.reset(seed=0)
    env.step(0)


def test_parameters_of_other_shapes_are_compiled_anew_and_once(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_uncompiled(monkeypatch)
    as_it_is, made = compiler.host_code, list[Any]()

    def host_code(function: Any, inputs: Any, **how: bool) -> Any:
        made.append(function)
        if len(made) > 2:
            raise compiler.CompilationError("too many")
        return as_it_is(function, inputs, **how)

    monkeypatch.setattr(compiler, "host_code", host_code)
    model = make_tiny()
    plain, quick = (
        WorldModelVectorEnv(model=model, num_envs=3, obs_type="state", compile=c)
        for c in (False, True)
    )
    for envs in (plain, quick):
        envs.reset(seed=0)
    changes = [{"gravity": 9.0}, {"gravity": [8.0, 9.0, 10.0]}, {"gravity": [1.0, 2.0, 3.0]}]
    changes += [{"gravity": 9.0}, {"length": [0.4, 0.5, 0.6]}, {"length": 0.5}]
    for change, count in zip(changes, (1, 2, 2, 2, 3, 3), strict=True):
        for envs in (plain, quick):
            envs.set_params(**change)
        assert same(plain.step([0, 1, 1])[0], quick.step([0, 1, 1])[0])
        assert len(made) == count
