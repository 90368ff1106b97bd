"""Real machine code and recorded graphs, each in a process of its own."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from machine_code import drawn_directly

from piwm_gym import compiler

IMPORTS = """
import gymnasium as gym, numpy as np, piwm_gym, sys, torch
from piwm_gym import compiler, fused_frames
from piwm_gym.models import AutoencoderConfig
from piwm_gym.models.direct import DirectConfig
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel, WorldModelConfig
torch.set_num_threads(1)
"""
COMPILED = """
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
    assert all(np.array_equal(x, y) for x, y in zip(a[:4], b[:4]))
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
model = drawn_directly("cartpole")
states = torch.from_numpy(a[0][:7]) * torch.tensor([20.0, 1.0, 1.0, 1.0])
drawing = fused_frames.FusedFrames(fused_frames.Drawing(model, False), states, torch.zeros(7, 0))
wanted, found = model.draw(states).int(), drawing(states, torch.zeros(7, 0)).int()
assert wanted.unique().numel() > 20 and (wanted[0] - wanted[1]).abs().max() > 20
assert (wanted - found).abs().max() <= 1
assert (wanted != found).float().mean() < 1e-3
"""
BITS = """
env_id, slots = sys.argv[1], int(sys.argv[2])
plain, quick = (
    gym.make_vec(env_id, slots, compile=c, obs_type="state", max_episode_steps=150)
    for c in (False, True)
)
assert np.array_equal(plain.reset(seed=0)[0], quick.reset(seed=0)[0])
plain.action_space.seed(0)
ends = 0
for _ in range(300):
    actions = plain.action_space.sample()
    a, b = plain.step(actions), quick.step(actions)
    assert all(np.array_equal(x, y) for x, y in zip(a[:4], b[:4]))
    ends += (a[2] | a[3]).sum()
assert ends >= slots
"""
ON_A_GPU = """
compile = torch.compile  # as on a GPU, but for the machine code
torch.compile = lambda f, fullgraph, mode: compile(f, fullgraph=fullgraph, backend="aot_eager")
compiler.host_code = lambda f, inputs, **how: compiler.cuda_graph(f, inputs)
for k in range(10):
    scaled = compiler.cuda_graph(lambda x: (k * x,), (torch.ones(3),))
    assert torch.equal(scaled((torch.full((3,), 2.0),))[0], torch.full((3,), 2.0 * k))
model = drawn_directly("lunar_lander")
arguments = {"env_id": "PIWM-LunarLander-v0", "model": model, "max_episode_steps": 7}
plain, quick = (WorldModelVectorEnv(num_envs=3, compile=c, **arguments) for c in (False, True))
frames = plain.reset(seed=0)[0], quick.reset(seed=0)[0]
for _ in range(10):
    assert frames[0].std() > 20 and np.abs(frames[0].astype(int) - frames[1]).max() <= 1
    actions = np.array([0, 2, 1])
    a, b = plain.step(actions), quick.step(actions)
    assert all(np.array_equal(x, y) for x, y in zip(a[1:4], b[1:4]))
    frames = a[0], b[0]
assert quick.simulation.drawn.by_size
"""


TWO_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
def make(slots):
    envs = gym.make_vec("PIWM-CartPole-v0", slots, compile=True, **arguments)
    return envs.reset(seed=0)
arguments = {"vectorization_mode": "vector_entry_point", "obs_type": "state"}
with ThreadPoolExecutor(2) as threads:
    assert len(list(threads.map(make, (3, 4)))) == 2
"""
FAILING = """
import warnings
arguments = {"env_id": "PIWM-CartPole-v0", "num_envs": 3, "max_episode_steps": 7}
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    quick = WorldModelVectorEnv(compile=True, **arguments)
    model = quick.model
    model.compile_rollout(3)
    state = torch.zeros(3, 4)
    assert model.rollout(state, torch.ones(3, 5, dtype=int)).shape == (3, 5, 4)
heard = [str(w.message) for w in heard if w.category is UserWarning]
assert len(heard) == 2
assert all("torch's compiler fails" in text and "uncompiled" in text for text in heard)
plain = WorldModelVectorEnv(model=model, **arguments)
assert np.array_equal(plain.reset(seed=0)[0], quick.reset(seed=0)[0])
for _ in range(9):
    assert np.array_equal(plain.step([0, 1, 1])[0], quick.step([0, 1, 1])[0])
"""


def run_alone(script: str, *arguments: str, **environment: str) -> None:
    """In a process of its own: the tests' checks of shape annotations would be in the way."""
    script = "\n".join((IMPORTS, inspect.getsource(drawn_directly), script))
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not compiler.available(torch.device("cpu")), reason="needs a C++ compiler")
def test_compiled_by_inductor(checkpoint: str) -> None:
    run_alone(COMPILED, checkpoint)


@pytest.mark.skipif(not compiler.available(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("env_id", "slots"),
    [("PIWM-CartPole-v0", 6001), ("PIWM-LunarLander-v0", 9), ("PIWM-DonkeyCar-v0", 5)],
)
def test_compiled_steps_are_the_same_bits(env_id: str, slots: int) -> None:
    run_alone(BITS, env_id, str(slots))


def test_the_graphs_that_gpus_record() -> None:
    run_alone(ON_A_GPU)


@pytest.mark.skipif(not compiler.available(torch.device("cpu")), reason="needs a C++ compiler")
def test_two_threads_may_compile() -> None:
    run_alone(TWO_AT_ONCE)


@pytest.mark.skipif(not compiler.available(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.parametrize("program", ["false", "/no/compiler/here"])
def test_what_cannot_be_compiled_runs_uncompiled(program: str, tmp_path: Path) -> None:
    run_alone(FAILING, CXX=program, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
