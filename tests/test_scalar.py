"""Straight-line code on numbers: the bits of the tensors it was written down from."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym.env import WorldModelEnv
from piwm_gym.random import draw
from piwm_gym.scalar import UnsupportedError, scalar_code, write_down
from piwm_gym.vector_env import WorldModelVectorEnv


def equations(x: Tensor, whole: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """Something of everything that equations do."""
    a, b, c = x.unbind(-1)
    first = torch.stack((a * b - 2 * c, (a / 3).sin(), b.cos() ** 2), dim=-1)
    second = torch.where(first > 0.3, first.clamp(-0.5, 0.9), -torch.rsqrt(1 + first**2))
    index = (5 * a.abs()).floor().clamp(0, 3).long()[:, None]
    picked = table.expand(len(x), -1).gather(-1, index + 1)
    smallest, either = second.flip(-1).amin(-1), (whole == 2) | ~(a < b)
    total = torch.sqrt(second[..., :2].sum(-1) ** 2) + 0.3 * either
    again = torch.cat((picked, torch.maximum(first, second)), dim=1).t()
    return second, smallest, either.int(), total, again, draw(whole, 3), torch.zeros_like(a)


def read(values: Any) -> list[float]:
    return [float(value) for value in values]


def test_it_gives_the_bits_of_the_function() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, generator=generator)
    code = scalar_code(write_down(equations, (torch.ones(1, 3), torch.tensor([7]), table)))
    for i in range(300):
        x, whole = torch.randn(1, 3, generator=generator), torch.tensor([i * 3**33 % 2**62 - 5])
        wanted = equations(x, whole, table)
        found = code(list(x[0].numpy()), whole.tolist(), list(table.numpy()))
        for result, numbers in zip(wanted, found, strict=True):
            assert read(result.flatten().tolist()) == read(numbers)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x if bool(x.sum() > 0) else -x,),
        lambda x: (x.cumsum(0),),
        lambda x: (x.sum(0),),
        lambda x: (x**3,),
        lambda x: (x.double(),),
    ],
    ids=["branch", "unknown operation", "order of a sum", "power", "double"],
)
def test_what_it_cannot_write_down_is_refused(function: Any) -> None:
    with pytest.raises(UnsupportedError):
        write_down(function, (torch.ones(3),))


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander"])
def test_single_environments_step_on_numbers(make_tiny: Any, system: str) -> None:
    model = make_tiny(system=system)
    single = WorldModelEnv(model=model, obs_type="state")
    many = WorldModelVectorEnv(model=model, obs_type="state", num_envs=2, autoreset_mode="Disabled")
    rng = np.random.default_rng(0)
    for episode in range(4):
        seed = 5 if episode == 0 else None
        one, _ = single.reset(seed=seed)
        assert np.array_equal(one, many.reset(seed=seed)[0][0])
        for _ in range(300):
            action = int(rng.integers(single.action_space.n))
            one, reward, over, _, info = single.step(action)
            every, rewards, overs, _, infos = many.step([action, 0])
            assert np.array_equal(one, every[0])
            assert (reward, over) == (rewards[0], overs[0])
            assert np.array_equal(info["state"], infos["state"][0])
            if overs.any():
                break
        assert overs.any(), "flown to the ground"
    assert single.simulation._solo is not None
    assert np.array_equal(single.state, many.state[0])
    assert int(single.simulation.elapsed[0]) == int(many.simulation.elapsed[0])


def test_what_skips_the_ground_gives_the_bits_of_what_does_not(make_tiny: Any) -> None:
    env = WorldModelEnv(model=make_tiny(system="lunar_lander"), obs_type="state")
    env.reset(seed=0)
    env.step(0)
    solo, system = env.simulation._solo, env.system
    moment, params = env.simulation._in_numbers(), env.simulation._params_numbers
    assert solo is not None
    rng = np.random.default_rng(0)
    ranges = [(v.low, v.high) for v in system.variables[:6]]
    skipped = []
    for _ in range(1500):
        wild = rng.choice([1.0, 3.0])  # upside down and faster than any flight, too
        state = [np.float32(wild * rng.uniform(*ends)) for ends in ranges] + [np.float32(0)] * 4
        terrain = system.scene(torch.from_numpy(rng.random((1, 12)).astype(np.float32)))
        positions = [int(rng.integers(2**62))]
        now = moment._replace(state=state, scene=list(terrain[0].numpy()), positions=positions)
        action = [int(rng.integers(4))]
        solo._free_before = False
        whole = solo(now, action, params)
        skipped.append(solo._free_before)
        if skipped[-1]:
            assert solo(now, action, params) == whole
            assert solo._free_before
    assert 0.1 < np.mean(skipped) < 0.9


def test_numbers_and_tensors_stay_one_state(make_tiny: Any) -> None:
    env = WorldModelEnv(model=make_tiny(system="lunar_lander"), obs_type="state")
    env.reset(seed=0)
    env.step(2)
    moment, copy = env.snapshot(), pickle.loads(pickle.dumps(env))
    ahead = [env.step(action)[0] for action in (0, 3, 2)]
    assert np.array_equal(ahead, [copy.step(action)[0] for action in (0, 3, 2)])
    env.restore(moment)
    assert np.array_equal(ahead[0], env.step(0)[0])
    env.set_params(gravity=1.0)
    lighter = env.step(3)[0]
    assert lighter[3] > ahead[1][3]
    env.reset(options={"params": {"gravity": 2.0}})
    env.step(0)
    assert env.reset()[1]["params"]["gravity"] == 1.0


def test_other_systems_step_as_tensors(make_tiny: Any) -> None:
    env = WorldModelEnv(model=make_tiny(system="donkey_car"), obs_type="state")
    env.reset(seed=0)
    assert env.step(np.array([0.0, 1.0], np.float32))[0][3] > 0
    assert env.simulation._solo is None
