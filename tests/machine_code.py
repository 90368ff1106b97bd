"""What the tests of compiled functions share."""

from typing import Any

import numpy as np
import pytest
import torch

from piwm_gym import compiler, simulation, solo
from piwm_gym.models import AutoencoderConfig
from piwm_gym.models.direct import DirectConfig
from piwm_gym.scalar import Scalars, Straight, scalar_code
from piwm_gym.world_model import WorldModel, WorldModelConfig


class Interpreted:
    """In the place of machine code on numbers."""

    ready = True

    def __init__(self, code: Straight) -> None:
        self._code = scalar_code(code)

    def load(self) -> bool:
        return True

    def __call__(self, *arguments: Scalars) -> tuple[Scalars, ...]:
        with np.errstate(all="ignore"):
            return self._code(*arguments)


def leave_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the functions that would be compiled as they are."""

    def as_it_is(function: Any, inputs: Any, **how: bool) -> Any:
        return lambda inputs: function(*inputs)

    monkeypatch.setattr(compiler, "host_code", as_it_is)
    monkeypatch.setattr(solo, "Native", Interpreted)
    monkeypatch.setattr(simulation, "available", lambda _: True)


def same(a: Any, b: Any) -> bool:
    """Equality of nested outputs."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and a.dtype == object:
        return all(same(x, y) for x, y in zip(a, b, strict=True))
    return a is b or bool(np.array_equal(a, b))


def drawn_directly(system: str) -> WorldModel:
    """A model whose direct decoder draws something, though it has learned nothing."""
    torch.manual_seed(0)
    config = AutoencoderConfig(direct=DirectConfig(8, width=16))
    model = WorldModel(WorldModelConfig(system, config)).requires_grad_(False)
    assert model.autoencoder.direct is not None
    for weight in model.autoencoder.direct.parameters():
        weight.normal_(0, 0.3)
    return model
