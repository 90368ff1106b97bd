"""What rates hang on: start-up times, memory, multiply-adds of a frame, and PPO around it all."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3
import torch
from torch.utils.flop_counter import FlopCounterMode

import piwm_gym
from benchmarks.contenders import COMPILED, vector_call
from benchmarks.stopwatch import Subject
from benchmarks.tables import Row
from piwm_gym.sb3 import PPO, make_vec_env

Shape = tuple[int, ...]
COST_KEYS = ("subject", "device")
START = """
import sys, time
began = time.perf_counter()
import piwm_gym
imported = time.perf_counter()
import gymnasium as gym
env = gym.make(sys.argv[1], device="cpu")
made = time.perf_counter()
env.reset(seed=0)
env.step(env.action_space.sample())
print(imported - began, made - imported, time.perf_counter() - made)
"""
MEMORY = """
import os, sys
import gymnasium as gym, piwm_gym
def resident():  # of Linux; the peak would be that of loading the weights
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def step(n):
    envs = gym.make_vec(sys.argv[1], num_envs=n, obs_type="state", device="cpu", output="torch")
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(envs.action_space.sample())
    return resident()
print((-step(64) + step(65536)) / (65536 - 64))
"""


@dataclass
class Clocked:
    """An SB3 vector environment whose steps are timed."""

    venv: Any
    seconds: float = 0.0

    def __post_init__(self) -> None:
        step = self.venv.step_wait

        def timed() -> Any:
            began = time.perf_counter()
            result = step()
            self.seconds += time.perf_counter() - began
            return result

        self.venv.step_wait = timed


def _run(script: str, env_id: str) -> list[float]:
    """Numbers that a fresh process prints."""
    command = [sys.executable, "-c", script, env_id]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in printed.split()]


def start_up(env_id: str, repeats: int = 3) -> Iterator[tuple[str, float, str]]:
    """From nothing to the first frame, in new processes."""
    times = np.median([_run(START, env_id) for _ in range(repeats)], axis=0)
    names = ("import piwm_gym", "make", "reset and first pixel step")
    yield from ((name, value, "s") for name, value in zip(names, times, strict=True))


def _operations(total: Shape, a: Shape, b: Shape, **_: Any) -> int:
    """Of the product of two matrices that is added to what is there."""
    return 2 * a[0] * a[1] * b[1]


def decoding(
    env_id: str, source: dict[str, Any], device: str, seconds: float = 2.0, slots: int = 1024
) -> Iterator[tuple[str, float, str]]:
    """Multiply-adds of a frame, and how far a step is from what they cost in matrix products.

    All of it on one thread: threads that wait for each other use processor time, too. A frame in
    the middle of an episode: what depends on the scene alone has been drawn before.
    """
    model = piwm_gym.load(env_id, source["variant"], source["checkpoint"], device)
    batch, system = 256, model.system
    state = system.initial(torch.rand(batch, system.num_initial_uniforms)).to(device)
    scene = still = None
    if system.scene_variables:
        scene = system.scene(torch.rand(batch, system.num_scene_uniforms)).to(device)
        still = model.still(scene)
    in_place = {torch.ops.aten.addmm_: _operations}  # torch counts the other form only
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        model.draw(state, scene, still)
    count = counter.get_total_flops() / 2 / batch
    yield "multiply-adds of a decoded frame", count, "1"
    with one_thread():
        square = torch.rand(1024, 1024, device=device)
        products = Subject("", "", lambda: square @ square, 1024**3, device=device).rates(seconds)
        yield "measured matrix throughput", products.processor, "multiply-adds/s"
        for suffix in ("", COMPILED):
            keywords = {**source, "obs_type": "pixels", "output": "torch", "device": device}
            envs = gym.make_vec(env_id, slots, compile=bool(suffix), **keywords)
            rates = Subject("", "", vector_call(envs, device), slots, device=device).rates(seconds)
            over = products.processor / count / rates.processor
            yield f"a step with a frame, {slots} slots, over the floor{suffix}", over, "1"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training(env_id: str, source: dict[str, Any]) -> Iterator[tuple[str, float, str]]:
    """Share of the environment in PPO's time, and what short episodes cost SB3's own PPO."""
    for limit, kinds in ((None, (PPO,)), (15, (stable_baselines3.PPO, PPO))):
        for kind in kinds:
            keywords = {} if limit is None else {"max_episode_steps": limit}
            venv = make_vec_env(
                env_id, 1024, 0, obs_type="state", device="cpu", **source, **keywords
            )
            clock = Clocked(venv)
            sizes: dict[str, Any] = {"n_steps": 32, "batch_size": 4096, "n_epochs": 4}
            agent = kind("MlpPolicy", venv, device="cpu", seed=0, **sizes)
            began = time.perf_counter()
            agent.learn(2 * 32 * 1024)
            total = time.perf_counter() - began
            if limit is None:
                yield "environment's share of PPO, 1024 slots", 100 * clock.seconds / total, "%"
            else:
                name = "piwm_gym.sb3" if kind is PPO else "stable_baselines3"
                what = f"{name}.PPO, 1024 slots, episodes of {limit} steps"
                yield what, agent.num_timesteps / total, "steps/s"


def all_costs(env_id: str, source: dict[str, Any], device: str) -> Iterator[Row]:
    """All of them as rows of a table."""
    memory = ("memory of an environment, states", _run(MEMORY, env_id)[0], "bytes")
    for subject, value, unit in itertools.chain(
        start_up(env_id), [memory], decoding(env_id, source, device), training(env_id, source)
    ):
        yield {"subject": subject, "device": device, "value": value, "unit": unit}


__all__ = ["COST_KEYS", "all_costs"]
