"""Scoring policies in the real CartPole-v1: many episodes side by side, one policy call a step.

An *observer* turns what may be known about the episodes into what the policy was trained on:
true states, states estimated from frames, or the frames themselves.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

import piwm_gym
from benchmarks.agents import ENV_ID
from benchmarks.pixels import FrameStack
from piwm_gym.models.estimation import shooting
from piwm_gym.world_model import WorldModel
from training.collectors.cartpole import CartPoleRenderer

WINDOW = 20
"""Frames from which a state is estimated, once an episode has as many."""


class RealEpisodes:
    """One episode of the real environment per seed, in step with each other.

    Attributes:
        states: float32 (n, 4) true states.
        returns: (n,) sums of rewards so far.
        running: (n,) bool; an episode that is over stays as it is.
        actions: (n,) actions of each step so far.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._envs = [piwm_gym.make_real(ENV_ID, obs_type="state") for _ in seeds]
        starts = [env.reset(seed=seed) for env, seed in zip(self._envs, seeds, strict=True)]
        self.states = np.stack([observation for observation, _ in starts])
        self.returns = np.zeros(len(seeds))
        self.running = np.ones(len(seeds), dtype=bool)
        self.actions: list[np.ndarray] = []
        # Draws the real environment's frames, bit for bit, five times as fast.
        self._draw = CartPoleRenderer(self._envs[0].unwrapped.system.frame)  # type: ignore[attr-defined]
        self._frames = np.stack([self._draw(state) for state in self.states])

    def frames(self) -> np.ndarray:
        """uint8 (n, H, W, 3) real frames of the present moment."""
        for i in np.flatnonzero(self.running):
            self._frames[i] = self._draw(self.states[i])
        return self._frames.copy()

    def step(self, actions: np.ndarray) -> None:
        """Advance the running episodes."""
        self.actions.append(actions.copy())
        for i in np.flatnonzero(self.running):
            state, reward, terminated, truncated, _ = self._envs[i].step(int(actions[i]))
            self.states[i] = state
            self.returns[i] += float(reward)
            self.running[i] = not (terminated or truncated)


Observer = Callable[[RealEpisodes], np.ndarray]


def true_states(episodes: RealEpisodes) -> np.ndarray:
    """(n, 4) states as the simulator knows them."""
    return episodes.states


class EstimatedStates:
    """(n, 4) states estimated from real frames and the actions between them, nothing else.

    Every frame is encoded once. The first frame shows no velocity, so that is taken to be zero.

    Args:
        model: Reads the frames and explains their motion.
    """

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self._configurations: list[torch.Tensor] = []

    @torch.no_grad()
    def __call__(self, episodes: RealEpisodes) -> np.ndarray:
        """Call once per step."""
        model, system = self.model, self.model.system
        newest = model.encode_frames(torch.from_numpy(episodes.frames()))
        self._configurations = [*self._configurations, newest][-WINDOW:]
        if len(self._configurations) == 1:
            state = system.from_configurations(newest, newest, system.dt)
        else:
            window = torch.stack(self._configurations, dim=1)
            actions = np.stack(episodes.actions[1 - window.shape[1] :], axis=1)
            state = shooting(system, window, torch.from_numpy(actions), model.params)
        return system.observation(state).numpy()


class StackedFrames:
    """(n, STACK, H, W) real frames, stacked as in training."""

    def __init__(self) -> None:
        self._stack = FrameStack()

    def __call__(self, episodes: RealEpisodes) -> np.ndarray:
        """Call once per step."""
        frames = episodes.frames()
        return self._stack.push(frames) if episodes.actions else self._stack.start(frames)


def real_returns(agent: BaseAlgorithm, observer: Observer, seeds: Sequence[int]) -> np.ndarray:
    """(n,) returns in the real environment, one episode per seed, without exploration."""
    episodes = RealEpisodes(seeds)
    while episodes.running.any():
        actions, _ = agent.predict(observer(episodes), deterministic=True)
        episodes.step(actions)
    return episodes.returns


__all__ = [
    "WINDOW",
    "EstimatedStates",
    "Observer",
    "RealEpisodes",
    "StackedFrames",
    "real_returns",
    "true_states",
]
