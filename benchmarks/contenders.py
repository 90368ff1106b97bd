"""What the throughput benchmark compares: this package's environments, and Gymnasium's."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import gymnasium as gym
import numpy as np
import torch

import piwm_gym
from benchmarks.stopwatch import Call, Subject, Work
from piwm_gym.donkey_client import DonkeyEnv
from piwm_gym.donkey_sim.simulator import Simulator
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.registration import get_entry
from piwm_gym.systems import get_system
from piwm_gym.systems.picture import FrameSpec

STEPS, FRAMES = "environment steps", "frames"
COMPILED = ", compiled"
BFLOAT16 = ", bfloat16"
LOOP_LIMIT = 64
"""Largest number of environments for those that step or draw one after the other."""
POOL_LIMIT = 16384
"""Largest number of environments of EnvPool, whose landers take gigabytes beyond it."""


def drawn_actions(space: gym.Space, shape: int | tuple[int, ...]) -> np.ndarray:
    """Random actions: integers, or (*shape, *A) of a box."""
    rng = np.random.default_rng(0)
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(0, space.n, shape)
    assert isinstance(space, gym.spaces.Box)
    lead = (shape,) if isinstance(shape, int) else shape
    return rng.uniform(space.low, space.high, (*lead, *space.shape)).astype(space.dtype)


def scalar_call(env: gym.Env) -> Call:
    """Step a single environment."""
    env.reset(seed=0)
    drawn = drawn_actions(env.action_space, 1024)
    actions = itertools.cycle(list(drawn) if drawn.ndim > 1 else drawn.tolist())

    def call() -> None:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()

    return call


def vector_call(envs: gym.vector.VectorEnv, device: str = "") -> Call:
    """Step a vector environment; actions are tensors where a device is given."""
    envs.reset(seed=0)
    drawn: Any = drawn_actions(envs.single_action_space, (64, envs.num_envs))
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


def drawing_call(envs: gym.vector.VectorEnv, frame: FrameSpec) -> Call:
    """Step a vector environment that renders, and resize its frames."""
    step = vector_call(envs)

    def call() -> list[np.ndarray]:
        step()
        return [preprocess_frame(np.asarray(native), frame) for native in envs.render() or ()]

    return call


def imagined(
    env_id: str,
    source: dict[str, Any],
    obs_type: str,
    sizes: tuple[int, ...],
    device: str,
    work: Work | None,
    suffix: str = "",
    outputs: tuple[str, ...] = ("torch",),
) -> Iterator[Subject]:
    """This package's environments.

    Args:
        env_id: Which.
        source: What else they are made with.
        obs_type: What they show.
        sizes: Numbers of slots.
        device: Where they run.
        work: What a step takes at least; None where the floor is another one.
        suffix: What their names say of the source.
        outputs: Kinds of arrays.
    """
    source = {**source, "obs_type": obs_type, "device": device}
    what = STEPS if obs_type == "state" else FRAMES
    if device == "cpu":
        call = scalar_call(gym.make(env_id, **source))
        yield Subject(what, f"piwm-gym, gymnasium.make{suffix}", call, 1, work=work)
    name = f"piwm-gym, gymnasium.make_vec{suffix}"
    for output, n in itertools.product(outputs, sizes):
        envs = gym.make_vec(env_id, num_envs=n, output=output, **source)
        call = vector_call(envs, device if output == "torch" else "")
        yield Subject(what, name, call, n, output, device, work=work)


def gymnax_subjects(python: str, sizes: tuple[int, ...]) -> Iterator[Subject]:
    """Cart Pole of gymnax, in a process of its own that takes orders by line.

    Raises:
        ValueError: That process ends at once.
    """
    script = Path(__file__).with_name("gymnax_peer.py")
    for n in (n for n in sizes if n > 1):
        with subprocess.Popen(
            [python, str(script), str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            orders, answers = process.stdin, process.stdout
            answer = answers.readline()
            if not answer:
                raise ValueError(f"gymnax is {python}; expected a Python that can import gymnax")
            steps = int(answer)

            def call(orders: IO[str] = orders, answers: IO[str] = answers) -> None:
                print(file=orders, flush=True)
                answers.readline()

            name = "CartPole-v1, gymnax, jit(scan(vmap))"
            yield Subject(STEPS, name, call, n * steps, "jax", batch=n)
            process.kill()


def envpool_subjects(name: str, sizes: tuple[int, ...]) -> Iterator[Subject]:
    """EnvPool's environment of the same name, if it has one, on as many threads as torch uses."""
    import envpool

    if name in envpool.list_all_envs():
        for n in (n for n in sizes if n <= POOL_LIMIT):
            threads = torch.get_num_threads()
            envs = envpool.make(name, env_type="gymnasium", num_envs=n, num_threads=threads)
            yield Subject(STEPS, f"{name}, EnvPool", vector_call(envs), n)


def _own_vectors(
    name: str, sizes: tuple[int, ...], **keywords: Any
) -> Iterator[gym.vector.VectorEnv]:
    """Vector environments of Gymnasium's that are written for an id, if there are any."""
    if name in gym.registry and gym.spec(name).vector_entry_point is not None:
        for n in sizes:
            with contextlib.closing(
                gym.make_vec(name, n, vectorization_mode="vector_entry_point", **keywords)
            ) as envs:
                yield envs


def gymnasiums(env_id: str, sizes: tuple[int, ...]) -> Iterator[Subject]:
    """Gymnasium's environment behind the id, without and with frames."""
    system = get_system(get_entry(env_id).system)
    name = system.real_id
    yield Subject(STEPS, f"{name}, gymnasium.make", scalar_call(gym.make(name)), 1)
    for envs in _own_vectors(name, sizes):
        yield Subject(
            STEPS, f"{name}, {type(envs.unwrapped).__name__}", vector_call(envs), envs.num_envs
        )
    for mode, label in (("sync", "SyncVectorEnv"), ("async", "AsyncVectorEnv")):
        for n in (n for n in sizes if 1 < n <= LOOP_LIMIT):
            looped = gym.make_vec(name, n, vectorization_mode=mode)
            yield Subject(STEPS, f"{name}, {label}", vector_call(looped), n)
            looped.close()
    native = gym.make(name, render_mode="rgb_array")
    height, width = system.frame.native
    yield Subject(FRAMES, f"{name}, render() at {width}x{height}", render_call(native), 1)


def resized(env_id: str, sizes: tuple[int, ...]) -> Iterator[Subject]:
    """The real environment with frames, resized as ours are, alone and in Gymnasium's vectors."""
    system = get_system(get_entry(env_id).system)
    make = partial(piwm_gym.make_real, env_id, obs_type="pixels")
    height, width = system.frame.size
    what = f"{system.real_id}, render() and resize to {width}x{height}"
    with contextlib.closing(make()) as real:
        yield Subject(FRAMES, what, scalar_call(real), 1)
    for kind, n in ((gym.vector.SyncVectorEnv, 4), (gym.vector.AsyncVectorEnv, os.cpu_count())):
        with contextlib.closing(kind([make] * (n or 1))) as envs:
            what = f"{system.real_id}, {kind.__name__}, frames resized"
            yield Subject(FRAMES, what, vector_call(envs), n or 1)
    few = tuple(n for n in sizes if n <= LOOP_LIMIT)
    for drawing in _own_vectors(system.real_id, few, render_mode="rgb_array"):
        what = f"{system.real_id}, {type(drawing.unwrapped).__name__}, frames resized"
        yield Subject(FRAMES, what, drawing_call(drawing, system.frame), drawing.num_envs)


def embedded_simulator() -> Iterator[Subject]:
    """Donkey Car's stand-in: frames in this process, and steps through the client's package."""
    simulator, actions = Simulator(), itertools.cycle(drawn_actions(DonkeyEnv().action_space, 1024))

    def drive() -> None:
        simulator.step(*next(actions).tolist())
        simulator.frame()

    yield Subject(FRAMES, "embedded simulator, in this process", drive, 1)
    with contextlib.closing(DonkeyEnv()) as client:
        yield Subject(STEPS, "embedded simulator, in lock-step", scalar_call(client), 1)


__all__ = [
    "BFLOAT16",
    "COMPILED",
    "FRAMES",
    "LOOP_LIMIT",
    "STEPS",
    "drawn_actions",
    "embedded_simulator",
    "envpool_subjects",
    "gymnasiums",
    "gymnax_subjects",
    "imagined",
    "resized",
    "vector_call",
]
