"""On a GPU the same numbers, with nothing on the wrong device and no step that waits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretended_gpu import DEVICE, OnGpu, held, pretended_gpu, waits
from stable_baselines3 import PPO

import piwm_gym
import training.train
from piwm_gym.planning import cem
from piwm_gym.registration import ENTRIES
from piwm_gym.sb3 import WorldModelVecEnv
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel
from training.collect import collect, preset_settings

COUNT = 5
OBS_TYPES = ("state", "pixels")
MODES = ("SameStep", "NextStep", "Disabled")


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    with pretended_gpu() as device:
        yield device


def no_action(model: WorldModel, *shape: int) -> torch.Tensor:
    space = model.system.action_space
    dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
    return torch.zeros(*shape, *space.shape, dtype=dtype).to(model.device)


def on_both(env_id: str, use: Callable[[WorldModel], Any]) -> tuple[Any, Any]:
    """What a function of a model returns on the CPU and on the GPU."""
    expected = use(piwm_gym.load(env_id))
    with pretended_gpu() as device:
        found = use(piwm_gym.load(env_id).to(device))
    return expected, found


def assert_same(expected: Any, found: Any) -> None:
    """The same bits, and on the GPU."""
    for a, b in zip(expected, found, strict=True):
        assert isinstance(b, OnGpu)
        assert torch.equal(a, b.held)


# ---- the stand-in itself -----------------------------------------------------------------------


def test_mixing_devices_fails(gpu: torch.device) -> None:
    there, here = torch.ones(3, device=gpu), torch.ones(3)
    for mixed in (lambda: there + here, lambda: torch.cat((here, there)), lambda: here @ there):
        with pytest.raises(RuntimeError, match="on pretended:0 and on cpu"):
            mixed()
    assert (there + torch.tensor(1.0)).device == gpu
    with pytest.raises(RuntimeError, match="not supported"):
        there.numpy()


@pytest.mark.parametrize(
    ("use", "count"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: torch.ones(3).to(x.device), 1),
        (lambda x: torch.tensor([1.0], device=x.device), 1),
        (lambda x: x.copy_(torch.zeros(3)), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x[torch.tensor([0])], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: x[0].sin() + torch.where(x > 0, x, 2.0), 0),
        (lambda x: torch.zeros(3, device=x.device) + 1, 0),
        (lambda x: x.clone().mul_(2)[None].sum(), 0),
    ],
)
def test_waits_are_counted(gpu: torch.device, use: Callable[[Any], Any], count: int) -> None:
    given = torch.ones(3, device=gpu)
    use(given)
    assert waits.total() == count


# ---- environments ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("obs_type", OBS_TYPES)
@pytest.mark.parametrize("env_id", ENTRIES)
def test_no_step_waits(env_id: str, obs_type: str, mode: str) -> None:
    def steps(model: WorldModel) -> list[torch.Tensor]:
        arguments = {"obs_type": obs_type, "output": "torch", "autoreset_mode": mode}
        envs = WorldModelVectorEnv(env_id, COUNT, max_episode_steps=4, model=model, **arguments)
        envs.reset(seed=0)
        actions = no_action(model, COUNT)
        seen = [part for _ in range(6) for part in envs.step(actions)[:4]]
        waits.clear()  # what is kept from the first steps may have waited
        for _ in range(6):
            *parts, info = envs.step(actions)
            seen += [*parts, *(info[name] for name in ("state", "in_distribution"))]
        assert not waits
        return seen

    assert_same(*on_both(env_id, steps))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ENTRIES)
def test_numpy_comes_and_goes(env_id: str, mode: str) -> None:
    def use(model: WorldModel) -> list[np.ndarray]:
        name = next(iter(vars(model.params)))
        arguments = {"autoreset_mode": mode, "randomize": {name: (1.0, 2.0)}}
        envs = WorldModelVectorEnv(env_id, 3, max_episode_steps=3, model=model, **arguments)
        space = envs.single_action_space
        space.seed(0)
        seen = [envs.reset(seed=0)[0]]
        for _ in range(5):
            if mode == "Disabled" and envs.simulation.elapsed.cpu().max() == 3:
                seen.append(envs.reset(options={"reset_mask": np.ones(3, bool)})[0])
            obs, *_, info = envs.step(np.stack([space.sample() for _ in range(3)]))
            seen += [obs, info["state"]]
            if "final_obs" in info:
                seen += [info["final_obs"][0], info["final_info"]["state"]]
        snapshot = envs.snapshot()
        envs.step(np.stack([space.sample() for _ in range(3)]))
        envs.restore(snapshot)
        frames = np.stack(envs.simulation.frames().cpu().unbind())
        window = {
            "frames": frames[:, None].repeat(2, axis=1),
            "actions": no_action(model, 3, 1).cpu(),
        }
        return [*seen, envs.reset(options=window)[0]]

    expected, found = on_both(env_id, use)
    for a, b in zip(expected, found, strict=True):
        assert np.array_equal(a, b)


def test_stable_baselines_learns_from_it(gpu: torch.device) -> None:
    model = piwm_gym.load("PIWM-CartPole-v0").to(gpu)
    envs = WorldModelVectorEnv(num_envs=4, obs_type="state", model=model)
    PPO("MlpPolicy", WorldModelVecEnv(envs), n_steps=8, batch_size=8, device="cpu").learn(32)


# ---- the model ---------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENTRIES)
def test_the_model_and_what_is_made_of_it(env_id: str) -> None:
    def use(model: WorldModel) -> list[torch.Tensor]:
        system = model.system
        drawn = torch.rand(COUNT, system.num_initial_uniforms, generator=torch.manual_seed(0))
        state = system.initial(drawn.to(model.device))
        actions = no_action(model, COUNT, 4)
        start = state.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model.rollout(start, actions).sum(), start)
        frames = torch.stack(
            [model.draw(state), *map(model.draw, model.rollout(state, actions).unbind(1))], 1
        )
        filtered = piwm_gym.StateFilter(model)
        filtered.reset(frames[:, 0])
        filtered.update(frames[:, 1].cpu().numpy(), actions[:, 0].cpu().numpy())
        read, scene = model.encode_window(frames, actions)
        plan = cem(model, state, horizon=3, generator=torch.manual_seed(0))
        seen = [frames, gradient, model.decode(state), read, filtered.state, filtered.std, plan]
        return seen if scene is None else [*seen, scene]

    assert_same(*on_both(env_id, use))


# ---- training ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty_dynamics")
def test_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, folder = "extrinsic-discrete", tmp_path
    collect(preset_settings("cartpole", "debug"), folder / "data")
    monkeypatch.setattr(training.train, "resolve_device", lambda device: DEVICE)
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda state, path: save(held(state), path))
    words = ["cartpole", "--preset", "debug", "--variant", variant, "--quiet"]
    words += [f"--{stage}.epochs=2" for stage in ("vision", "encoder", "glimpse", "decoder")]
    places = [f"--{name}={folder / name}" for name in ("data", "runs", "out")]
    with pretended_gpu():
        assert training.train.main([*words, *places]) == 0
    assert piwm_gym.load(checkpoint=folder / "out" / f"cartpole-{variant}.safetensors")
