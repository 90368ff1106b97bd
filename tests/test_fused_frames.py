"""Compiled drawing: the same frames, and those of all slots only."""

from typing import Any

import numpy as np
import pytest
import torch
from machine_code import drawn_directly, leave_uncompiled, same

from piwm_gym import drawing
from piwm_gym.vector_env import WorldModelVectorEnv


def counting(calls: list[int], drawn: Any) -> Any:
    """Compiled drawing that notes how many frames were asked for."""

    def draw(states: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        calls.append(len(states))
        return drawn(states, *others)

    return draw


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_its_drawing_gives_the_same_frames(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_uncompiled(monkeypatch)
    model = drawn_directly(system)
    whole = 2 if model.system.camera is None else 4  # of which a camera's frames take half
    monkeypatch.setattr(drawing, "DECODE_CHUNK", {"cpu": whole})
    plain, quick = (WorldModelVectorEnv(model=model, num_envs=5, compile=c) for c in (False, True))
    assert not quick.simulation.drawn.by_size, "nothing to draw yet"
    first = plain.reset(seed=3)[0], quick.reset(seed=3)[0]
    assert same(*first)
    assert len(np.unique(first[0])) > 20
    drawings = quick.simulation.drawn.by_size
    calls: list[int] = []
    assert set(drawings) == {("direct", 2), ("direct", 1)}
    for key, drawn in drawings.items():
        drawings[key] = counting(calls, drawn)
    plain.action_space.seed(0)

    def steps() -> tuple[np.ndarray, np.ndarray]:
        actions = plain.action_space.sample()
        return plain.step(actions)[0], quick.step(actions)[0]

    before = steps()
    assert same(*before)
    assert calls == [2, 2, 1]
    # Weights may be loaded, and the decoder changed, after the compilation.
    assert model.autoencoder.direct is not None
    for weight in model.autoencoder.direct.parameters():
        weight.mul_(-1)
    after = steps()
    assert same(*after)
    assert np.abs(after[0].astype(int) - before[0]).max() > 50
    model.autoencoder.use("latent")
    assert same(*steps())
    assert len(calls) == 6
