"""Straight-line code as machine code: the numbers of the same lines in Python."""

from typing import Any

import numpy as np
import pytest
import torch
from test_scalar import equations, read

from piwm_gym import compiler
from piwm_gym.env import WorldModelEnv
from piwm_gym.native import Native
from piwm_gym.scalar import scalar_code

pytestmark = pytest.mark.skipif(
    not compiler.available(torch.device("cpu")), reason="needs a C++ compiler"
)
LAST_BITS = 3e-7


def test_it_gives_the_numbers_of_the_function() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, generator=generator)
    code = Native(equations, (torch.ones(1, 3), torch.tensor([7]), table))
    for i in range(300):
        x, integer = torch.randn(1, 3, generator=generator), torch.tensor([i * 3**33 % 2**62 - 5])
        wanted = equations(x, integer, table)
        found = code(list(x[0].numpy()), integer.tolist(), list(table.numpy()))
        for result, numbers in zip(wanted, found, strict=True):
            told = read(numbers)
            assert read(result.flatten().tolist()) == pytest.approx(
                told, rel=LAST_BITS, abs=LAST_BITS
            )
            if not result.dtype.is_floating_point:
                assert result.flatten().tolist() == numbers


def test_what_is_not_finite_stays_so() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x / 0, x.clamp(-1, 1), torch.where(x > torch.inf, 1.0, -x), torch.maximum(x, -x)

    code, lines = (write(function, (torch.ones(1),)) for write in (Native, scalar_code))
    for value in (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 2.0):
        with np.errstate(all="ignore"):
            wanted = np.concatenate(lines([np.float32(value)]))
        found = np.concatenate(code([value]))
        assert np.array_equal(wanted, found, equal_nan=True)
        assert np.array_equal(np.signbit(wanted), np.signbit(found)) or np.isnan(value)


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
def test_single_environments_step_by_it(make_tiny: Any, system: str) -> None:
    model = make_tiny(system=system)
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, True))
    rng = np.random.default_rng(0)
    for episode in range(4):
        seed = 5 if episode == 0 else None
        one, other = plain.reset(seed=seed)[0], quick.reset(seed=seed)[0]
        np.testing.assert_allclose(one, other, rtol=LAST_BITS, atol=LAST_BITS)
        for _ in range(300):
            action = int(rng.integers(plain.action_space.n))
            a, b = plain.step(action), quick.step(action)
            np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-5)
            assert a[1] == pytest.approx(b[1], rel=1e-3, abs=1e-3)
            assert a[2:4] == b[2:4]
            if a[2]:
                break
        assert a[2], "flown to the ground"
    assert isinstance(quick.simulation._solo._code, Native)  # type: ignore[union-attr]
