"""What rates hang on: start-up times, memory, what the machine can do, and PPO around it all."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import stable_baselines3

import piwm_gym
from benchmarks.contenders import COMPILED, vector_call
from benchmarks.floor import Capacity, of_step, one_thread
from benchmarks.model_calls import of_frame
from benchmarks.stopwatch import Subject
from benchmarks.tables import Row
from piwm_gym.registration import get_entry
from piwm_gym.sb3 import PPO, make_vec_env
from piwm_gym.systems import get_system

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


def moving(env_id: str) -> Iterator[tuple[str, float, str]]:
    """Bytes of an environment with states: those it takes, and those a step moves."""
    yield "memory of an environment, states", _run(MEMORY, env_id)[0], "bytes"
    moved = of_step(get_system(get_entry(env_id).system)).moved
    yield "bytes that a step with states moves", moved, "bytes"


def floor(capacity: Capacity) -> Iterator[tuple[str, float, str]]:
    """What a device can do at best."""
    yield "measured matrix throughput", capacity.products, "multiply-adds/s"
    yield "measured memory bandwidth", capacity.bandwidth, "bytes/s"


def decoding(
    env_id: str,
    source: dict[str, Any],
    device: str,
    capacity: Capacity,
    seconds: float = 2.0,
    slots: int = 1024,
) -> Iterator[tuple[str, float, str]]:
    """Multiply-adds of a frame, and how far a step is from what they cost in matrix products.

    All of it on one thread: threads that wait for each other use processor time, too.
    """
    model = piwm_gym.load(env_id, source["variant"], source["checkpoint"], device)
    frame = of_frame(model)
    yield "multiply-adds of a decoded frame", frame.multiply_adds, "1"
    with one_thread():
        for suffix in ("", COMPILED):
            keywords = {**source, "obs_type": "pixels", "output": "torch", "device": device}
            envs = gym.make_vec(env_id, slots, compile=bool(suffix), **keywords)
            rates = Subject("", "", vector_call(envs, device), slots, device=device).rates(seconds)
            over = capacity.rate(frame) / rates.processor
            yield f"a step with a frame, {slots} slots, over the floor{suffix}", over, "1"


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


def all_costs(
    env_id: str, source: dict[str, Any], capacities: Mapping[str, Capacity]
) -> Iterator[Row]:
    """All of them as rows of a table: of the CPU, and what each device can do.

    Args:
        env_id: Which environment.
        source: Variant and checkpoint.
        capacities: By device, the CPU among them.
    """
    of_cpu = (
        start_up(env_id),
        moving(env_id),
        decoding(env_id, source, "cpu", capacities["cpu"]),
        training(env_id, source),
    )
    of_devices = [(device, floor(capacity)) for device, capacity in capacities.items()]
    for device, costs in (*(("cpu", costs) for costs in of_cpu), *of_devices):
        for subject, value, unit in costs:
            yield {"subject": subject, "device": device, "value": value, "unit": unit}


__all__ = ["COST_KEYS", "all_costs"]
