"""Compiled rollouts: the same states, and used where they may be."""

from typing import Any

import numpy as np
import pytest
import torch
from machine_code import leave_uncompiled


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_rollouts_give_the_same_states(
    make_tiny: Any, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_uncompiled(monkeypatch)
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
        between = quick(state, actions + 0.5, model.params, given.get("noise"), given.get("scene"))
        assert (between is None) == (not actions.is_floating_point())  # for the equations to say
        assert quick(state[:2], actions[:2], model.params, None, None) is None


def test_compiled_rollouts_are_used_without_gradients(
    make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_uncompiled(monkeypatch)
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
