"""A driver that sees frames, taught in the world model by one that sees states.

DAgger (Ross, Gordon and Bagnell 2011) with a teacher that is told what its pupil has to see (Chen
et al. 2019): imagination has both, states and frames. The pupil drives, the teacher says what it
would have done there, and from decoded frames the pupil learns to do the same. Neither of them
meets the real environment.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecFrameStack
from torch import Tensor
from torch.nn.functional import mse_loss

from benchmarks.agents import HELD_OUT, Trained, World, imagined_returns
from piwm_gym.sb3 import PPO, StartAnywhere

STACK = 3
"""Frames that a pupil sees at once: one shows no speed, two hardly how the wheels stand."""


@dataclass(frozen=True)
class Lessons:
    """How a pupil is taught.

    Attributes:
        num_envs: Imagined cars.
        rounds: Of driving and learning; the teacher drives half as many cars in each as before.
        steps: Of every car in a round.
        last_epochs: Passes over everything after the last round, where others have one.
        batch_size: Samples per gradient step.
        learning_rate: Falls linearly to zero in the passes after the last round.
        noise: Standard deviation of what is added to actions while driving.
        grain: The same of what is added to pixels while learning, of 255: decoded frames are
            smooth and real ones are not, and a pupil had better not rely on that.
        eval_episodes: Imagined episodes to score the pupil on.
    """

    num_envs: int = 64
    rounds: int = 8
    steps: int = 100
    last_epochs: int = 8
    batch_size: int = 256
    learning_rate: float = 1e-3
    noise: float = 0.1
    grain: float = 16.0
    eval_episodes: int = 20


class FrameStacks:
    """The last frames of one episode, black before it began: stacked as SB3 stacks them."""

    def __init__(self) -> None:
        self._frames: list[np.ndarray] = []

    def push(self, frame: np.ndarray) -> np.ndarray:
        """uint8 (H, W, 3 STACK) after another frame (H, W, 3)."""
        empty = np.zeros_like(frame)
        self._frames = [*self._frames, frame][-STACK:]
        return np.concatenate([empty] * (STACK - len(self._frames)) + self._frames, axis=-1)


def teach(teacher: PPO, world: World, lessons: Lessons, seed: int) -> Trained:
    """A pupil of an agent that was trained on states.

    Args:
        teacher: Drives well in the world model.
        world: In which world model.
        lessons: How.
        seed: Of weights, starts and noise.
    """
    began = time.perf_counter()
    frames = VecFrameStack(world.make(1, seed, "pixels"), STACK)
    pupil = PPO("CnnPolicy", frames, seed=seed, device="cpu")
    optimizer = torch.optim.Adam(pupil.policy.parameters(), lr=lessons.learning_rate)
    stacks, wanted = list[Tensor](), list[Tensor]()
    for lesson, (seen, told) in enumerate(_drives(teacher, pupil, world, lessons, seed)):
        stacks.append(seen)
        wanted.append(told)
        passes = lessons.last_epochs if lesson == lessons.rounds - 1 else 1
        for epoch in range(passes):
            optimizer.param_groups[0]["lr"] = lessons.learning_rate * (1 - epoch / passes)
            _learn(pupil, optimizer, torch.cat(stacks), torch.cat(wanted), lessons)
    steps = lessons.rounds * lessons.steps * lessons.num_envs
    seconds = time.perf_counter() - began
    judges = VecFrameStack(world.make(lessons.eval_episodes, HELD_OUT, "pixels"), STACK)
    return Trained(pupil, steps, seconds, imagined_returns(pupil, judges))


def _drives(
    teacher: PPO, pupil: PPO, world: World, lessons: Lessons, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each round, (N, 3 STACK, H, W) frames seen and (N, A) actions that the teacher takes."""
    cars = world.make(lessons.num_envs, seed, "pixels_state")
    venv = VecFrameStack(StartAnywhere(cars, seed), STACK)
    size = cars.observation_space["state"].shape[0]  # type: ignore[index]
    rng = np.random.default_rng(seed)
    obs: Any = venv.reset()
    for lesson in range(lessons.rounds):
        led = np.arange(lessons.num_envs) < lessons.num_envs // 2**lesson
        seen, told = list[Tensor](), list[Tensor]()
        for _ in range(lessons.steps):
            right, _ = teacher.predict(obs["state"][:, -size:], deterministic=True)
            tried, _ = pupil.predict(obs["pixels"], deterministic=True)
            seen.append(torch.from_numpy(obs["pixels"]).movedim(-1, 1))
            told.append(torch.from_numpy(right))
            actions = np.where(led[:, None], right, tried)
            obs, *_ = venv.step(actions + lessons.noise * rng.standard_normal(actions.shape))
        yield torch.cat(seen), torch.cat(told)


def _learn(
    pupil: PPO, optimizer: torch.optim.Optimizer, stacks: Tensor, wanted: Tensor, lessons: Lessons
) -> None:
    """One pass over the samples."""
    pupil.policy.set_training_mode(True)
    # Drawing as much for every batch takes as long as learning from it: one serves all, shifted.
    grain = lessons.grain * torch.randn(lessons.batch_size, *stacks.shape[1:])
    for batch in torch.randperm(len(stacks)).split(lessons.batch_size):
        shift = int(torch.randint(grain.numel(), ()))
        seen = (stacks[batch] + grain[: len(batch)].roll(shift)).clamp_(0, 255)
        optimizer.zero_grad()
        mse_loss(pupil.policy.get_distribution(seen).mode(), wanted[batch]).backward()
        optimizer.step()
    pupil.policy.set_training_mode(False)


__all__ = ["STACK", "FrameStacks", "Lessons", "teach"]
