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
from piwm_gym.world_model import WorldModel

ENV_ID = "PIWM-CartPole-v0"
STEPS, FRAMES = "environment steps", "frames"
WINDOW = 20
LOOP_LIMIT = 64
"""Largest number of environments for those that step one after the other."""


def scalar_call(env: gym.Env) -> Call:
    """Step a single environment."""
    env.reset(seed=0)
    actions = itertools.cycle(np.random.default_rng(0).integers(0, 2, 1024).tolist())

    def call() -> None:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()

    return call


def vector_call(envs: gym.vector.VectorEnv, device: str = "") -> Call:
    """Step a vector environment; actions are tensors where a device is given."""
    envs.reset(seed=0)
    drawn: Any = np.random.default_rng(0).integers(0, 2, (64, envs.num_envs))
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
    source: dict[str, Any], obs_type: str, sizes: tuple[int, ...], device: str
) -> Iterator[Subject]:
    """This package's environments."""
    source = {**source, "obs_type": obs_type, "device": device}
    what = STEPS if obs_type == "state" else FRAMES
    if device == "cpu":
        yield Subject(what, "piwm-gym, gymnasium.make", scalar_call(gym.make(ENV_ID, **source)), 1)
    for output, n in itertools.product(("numpy", "torch"), sizes):
        envs = gym.make_vec(ENV_ID, num_envs=n, output=output, **source)
        call = vector_call(envs, device if output == "torch" else "")
        yield Subject(what, "piwm-gym, gymnasium.make_vec", call, n, output, device)


def gymnasiums(sizes: tuple[int, ...]) -> Iterator[Subject]:
    """Gymnasium's Cart Pole, without and with frames."""
    yield Subject(STEPS, "CartPole-v1, gymnasium.make", scalar_call(gym.make("CartPole-v1")), 1)
    for n in sizes:
        envs = gym.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point")
        yield Subject(STEPS, "CartPole-v1, CartPoleVectorEnv", vector_call(envs), n)
    for n in (n for n in sizes if n <= LOOP_LIMIT):
        envs = gym.make_vec("CartPole-v1", n, vectorization_mode="sync")
        yield Subject(STEPS, "CartPole-v1, SyncVectorEnv", vector_call(envs), n)
    native = gym.make("CartPole-v1", render_mode="rgb_array")
    yield Subject(FRAMES, "CartPole-v1, render() at 600x400", render_call(native), 1)
    real = piwm_gym.make_real(ENV_ID)
    yield Subject(FRAMES, "CartPole-v1, render() and resize to 64x64", scalar_call(real), 1)


def encoding(model: WorldModel, batches: tuple[int, ...], device: str) -> Iterator[Subject]:
    """State estimation from windows of uint8 frames."""
    for n in batches:
        states = model.system.initial(torch.rand(n, 4))[:, None].expand(-1, WINDOW, -1)
        frames = to_uint8(model.decode(states.to(device)))
        actions = torch.randint(2, (n, WINDOW - 1), device=device)

        def call(frames: torch.Tensor = frames, actions: torch.Tensor = actions) -> None:
            with torch.no_grad():
                model.encode(frames, actions)

        yield Subject(f"states from {WINDOW} frames", "WorldModel.encode", call, n, "torch", device)


def all_subjects(
    source: dict[str, Any], sizes: tuple[int, ...], pixel_sizes: tuple[int, ...], device: str
) -> Iterator[Subject]:
    """Everything for one device, made one after the other."""
    yield from imagined(source, "state", sizes, device)
    yield from imagined(source, "pixels", pixel_sizes, device)
    model = piwm_gym.load(ENV_ID, source["variant"], source["checkpoint"], device)
    yield from encoding(model, pixel_sizes, device)
    if device == "cpu":
        yield from gymnasiums(sizes)


__all__ = ["all_subjects"]
