"""What the throughput benchmark compares: this package's environments, and Gymnasium's."""

import itertools
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import piwm_gym
from benchmarks.stopwatch import Call, Subject
from piwm_gym.models.vision import to_uint8
from piwm_gym.registration import get_entry
from piwm_gym.systems import get_system
from piwm_gym.world_model import WorldModel

STEPS, FRAMES = "environment steps", "frames"
WINDOW = 20
LOOP_LIMIT = 64
"""Largest number of environments for those that step one after the other."""


def _drawn(space: gym.Space, shape: int | tuple[int, ...]) -> np.ndarray:
    """Random actions."""
    assert isinstance(space, gym.spaces.Discrete)
    return np.random.default_rng(0).integers(0, space.n, shape)


def scalar_call(env: gym.Env) -> Call:
    """Step a single environment."""
    env.reset(seed=0)
    actions = itertools.cycle(_drawn(env.action_space, 1024).tolist())

    def call() -> None:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()

    return call


def vector_call(envs: gym.vector.VectorEnv, device: str = "") -> Call:
    """Step a vector environment; actions are tensors where a device is given."""
    envs.reset(seed=0)
    drawn: Any = _drawn(envs.single_action_space, (64, envs.num_envs))
    if device:
        drawn = torch.from_numpy(drawn).to(device)
    actions = itertools.cycle(drawn)
    return lambda: envs.step(next(actions))


def render_call(env: gym.Env) -> Call:
    """Step a single environment and draw it."""
    step = scalar_call(env)

    def call() -> None:
        step()
        env.render()

    return call


def imagined(
    env_id: str, source: dict[str, Any], obs_type: str, sizes: tuple[int, ...], device: str
) -> Iterator[Subject]:
    """This package's environments."""
    source = {**source, "obs_type": obs_type, "device": device}
    what = STEPS if obs_type == "state" else FRAMES
    if device == "cpu":
        yield Subject(what, "piwm-gym, gymnasium.make", scalar_call(gym.make(env_id, **source)), 1)
    for output, n in itertools.product(("numpy", "torch"), sizes):
        envs = gym.make_vec(env_id, num_envs=n, output=output, **source)
        call = vector_call(envs, device if output == "torch" else "")
        yield Subject(what, "piwm-gym, gymnasium.make_vec", call, n, output, device)


def gymnasiums(env_id: str, sizes: tuple[int, ...]) -> Iterator[Subject]:
    """Gymnasium's environment behind the id, without and with frames."""
    system = get_system(get_entry(env_id).system)
    name = system.real_id
    yield Subject(STEPS, f"{name}, gymnasium.make", scalar_call(gym.make(name)), 1)
    if gym.spec(name).vector_entry_point is not None:
        for n in sizes:
            envs = gym.make_vec(name, n, vectorization_mode="vector_entry_point")
            yield Subject(STEPS, f"{name}, {type(envs).__name__}", vector_call(envs), n)
    for mode, label in (("sync", "SyncVectorEnv"), ("async", "AsyncVectorEnv")):
        for n in (n for n in sizes if 1 < n <= LOOP_LIMIT):
            looped = gym.make_vec(name, n, vectorization_mode=mode)
            yield Subject(STEPS, f"{name}, {label}", vector_call(looped), n)
            looped.close()
    native = gym.make(name, render_mode="rgb_array")
    height, width = system.frame.native
    yield Subject(FRAMES, f"{name}, render() at {width}x{height}", render_call(native), 1)
    height, width = system.frame.size
    real = piwm_gym.make_real(env_id)
    what = f"{name}, render() and resize to {width}x{height}"
    yield Subject(FRAMES, what, scalar_call(real), 1)


def encoding(model: WorldModel, batches: tuple[int, ...], device: str) -> Iterator[Subject]:
    """State estimation from windows of uint8 frames."""
    system = model.system
    for n in batches:
        uniforms = torch.rand(n, system.num_initial_uniforms)
        states = system.initial(uniforms)[:, None].expand(-1, WINDOW, -1)
        frames = to_uint8(model.decode(states.to(device)))
        actions = torch.from_numpy(_drawn(system.action_space, (n, WINDOW - 1))).to(device)

        def call(frames: torch.Tensor = frames, actions: torch.Tensor = actions) -> None:
            with torch.no_grad():
                model.encode(frames, actions)

        yield Subject(f"states from {WINDOW} frames", "WorldModel.encode", call, n, "torch", device)


def all_subjects(
    env_id: str,
    source: dict[str, Any],
    sizes: tuple[int, ...],
    pixel_sizes: tuple[int, ...],
    device: str,
) -> Iterator[Subject]:
    """Everything for one device, made one after the other."""
    yield from imagined(env_id, source, "state", sizes, device)
    yield from imagined(env_id, source, "pixels", pixel_sizes, device)
    model = piwm_gym.load(env_id, source["variant"], source["checkpoint"], device)
    yield from encoding(model, pixel_sizes, device)
    if device == "cpu":
        yield from gymnasiums(env_id, sizes)


__all__ = ["all_subjects"]
