"""What is compiled: the same numbers as without, in all modes, and the same frames within 1."""

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from piwm_gym import compiler, fused, simulation
from piwm_gym.env import WorldModelEnv
from piwm_gym.models import AutoencoderConfig
from piwm_gym.models.direct import DirectConfig
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel, WorldModelConfig

MODES = ["SameStep", "NextStep", "Disabled"]


def as_it_is(function: Any, inputs: Any, whole: bool = False) -> Any:
    """Instead of machine code."""
    return lambda inputs: function(*inputs)


@pytest.fixture
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that would be compiled, as it is."""
    monkeypatch.setattr(compiler, "host_code", as_it_is)
    monkeypatch.setattr(simulation, "available", lambda _: True)


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
@pytest.mark.parametrize("apart", [1, 6], ids=["starts apart", "all in one"])
def test_its_functions_give_the_bits_of_ordinary_steps(
    make_tiny: Any,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    mode: str,
    randomize: Any,
    apart: int,
) -> None:
    monkeypatch.setattr(fused, "APART", apart)
    monkeypatch.setattr(fused, "LANES", 2)  # starts of one lot, of several, and a slot too many
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
@pytest.mark.parametrize(
    ("system", "numbers"), [("cartpole", True), ("lunar_lander", True), ("donkey_car", False)]
)
def test_a_single_environment_is_compiled_where_it_cannot_step_on_numbers(
    make_tiny: Any, system: str, numbers: bool
) -> None:
    model = make_tiny(system=system)
    plain, quick = (WorldModelEnv(model=model, obs_type="state", compile=c) for c in (False, True))
    assert (quick.simulation._fused is None) == numbers
    assert all(map(same, plain.reset(seed=1), quick.reset(seed=1)))
    plain.action_space.seed(0)
    for _ in range(5):
        action = plain.action_space.sample()
        assert all(map(same, plain.step(action), quick.step(action)))


def drawn_directly(system: str) -> WorldModel:
    """A model whose direct decoder draws something, though it has learned nothing."""
    torch.manual_seed(0)
    config = AutoencoderConfig(direct=DirectConfig(8, width=16))
    model = WorldModel(WorldModelConfig(system, config)).requires_grad_(False)
    assert model.autoencoder.direct is not None
    for weight in model.autoencoder.direct.parameters():
        weight.normal_(0, 0.3)
    return model


def counting(calls: list[int], drawn: Any) -> Any:
    """Compiled drawing that notes how many frames were asked for."""

    def draw(states: torch.Tensor, scenes: torch.Tensor) -> torch.Tensor:
        calls.append(len(states))
        return drawn(states, scenes)

    return draw


@pytest.mark.usefixtures("_uncompiled")
@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_its_drawing_gives_the_same_frames(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "DECODE_CHUNK", {"cpu": 2})
    model = drawn_directly(system)
    plain, quick = (WorldModelVectorEnv(model=model, num_envs=5, compile=c) for c in (False, True))
    assert not quick.simulation._drawings, "nothing to draw yet"
    first = plain.reset(seed=3)[0], quick.reset(seed=3)[0]
    assert same(*first)
    assert len(np.unique(first[0])) > 20
    drawings = quick.simulation._drawings
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


IMPORTS = """
import gymnasium as gym, numpy as np, sys, torch
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
    np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-6)
    assert all(np.array_equal(x, y) for x, y in zip(a[1:4], b[1:4]))
    np.testing.assert_allclose(b[0][34], c[0], rtol=1e-4, atol=1e-6)
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
ON_A_GPU = """
compile = torch.compile  # as on a GPU, but for the machine code
torch.compile = lambda f, fullgraph, mode: compile(f, fullgraph=fullgraph, backend="aot_eager")
compiler.host_code = lambda f, inputs, whole=False: compiler.cuda_graph(f, inputs)
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
assert quick.simulation._drawings
"""


def run_alone(script: str, *arguments: str) -> None:
    """In a process of its own: the tests' checks of shape annotations would be in the way."""
    script = "\n".join((IMPORTS, inspect.getsource(drawn_directly), script))
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not compiler.available(torch.device("cpu")), reason="needs a C++ compiler")
def test_compiled_by_inductor(checkpoint: str) -> None:
    run_alone(COMPILED, checkpoint)


def test_the_graphs_that_gpus_record() -> None:
    run_alone(ON_A_GPU)
