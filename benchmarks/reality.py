"""Scoring policies in a real environment: many episodes side by side, one policy call a step.

An *observer* turns what may be known about the episodes into what the policy was trained on:
true states, states estimated from frames, or the frames themselves.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm

import piwm_gym
from benchmarks.pixels import FrameStack
from piwm_gym.state_filter import StateFilter
from piwm_gym.systems import FrameSpec, System
from piwm_gym.world_model import WorldModel
from training.collectors.cartpole import CartPoleRenderer

Renderer = Callable[[np.ndarray], np.ndarray]
RENDERERS: dict[str, Callable[[FrameSpec], Renderer]] = {"cartpole": CartPoleRenderer}
"""Frames of observations where that is faster than the real environment's, and bit-equal."""


class RealEpisodes:
    """One episode of the real environment per seed, in step with each other.

    Args:
        env_id: Id of the imagined environment; the real one behind it is played.
        seeds: One per episode.

    Attributes:
        states: float32 (n, O) true states, as the real environment observes them.
        returns: (n,) sums of rewards so far.
        running: (n,) bool; an episode that is over stays as it is.
        actions: (n,) actions of each step so far.
    """

    def __init__(self, env_id: str, seeds: Sequence[int]) -> None:
        self._envs = [
            piwm_gym.make_real(env_id, obs_type="state", render_mode="rgb_array") for _ in seeds
        ]
        starts = [env.reset(seed=seed) for env, seed in zip(self._envs, seeds, strict=True)]
        self.states = np.stack([observation for observation, _ in starts])
        self.returns = np.zeros(len(seeds))
        self.running = np.ones(len(seeds), dtype=bool)
        self.actions: list[np.ndarray] = []
        system: System = self._envs[0].unwrapped.system  # type: ignore[attr-defined]
        renderer = RENDERERS.get(system.name)
        self._draw = None if renderer is None else renderer(system.frame)
        self._frames = np.zeros((len(seeds), *system.frame.size, 3), dtype=np.uint8)

    def frames(self) -> np.ndarray:
        """uint8 (n, H, W, 3) real frames of the present moment."""
        for i in np.flatnonzero(self.running):
            draw = self._draw
            frame = self._envs[i].render() if draw is None else draw(self.states[i])
            self._frames[i] = np.asarray(frame)
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
    """(n, O) states as the simulator knows them."""
    return episodes.states


class EstimatedStates:
    """States of n episodes, estimated from real frames and the actions between them alone.

    Args:
        model: Reads the frames and explains their motion.
    """

    def __init__(self, model: WorldModel) -> None:
        self._filter = StateFilter(model)

    def __call__(self, episodes: RealEpisodes) -> np.ndarray:
        """(n, O) states as agents see them; call once per step."""
        frames = torch.from_numpy(episodes.frames())
        if episodes.actions:
            state = self._filter.update(frames, torch.from_numpy(episodes.actions[-1]))
        else:
            state = self._filter.reset(frames)
        return self._filter.model.system.observation(state).cpu().numpy()


class StackedFrames:
    """(n, STACK, H, W) real frames, stacked as in training."""

    def __init__(self) -> None:
        self._stack = FrameStack()

    def __call__(self, episodes: RealEpisodes) -> np.ndarray:
        """Call once per step."""
        frames = episodes.frames()
        return self._stack.push(frames) if episodes.actions else self._stack.start(frames)


def real_returns(
    agent: BaseAlgorithm, env_id: str, observer: Observer, seeds: Sequence[int]
) -> np.ndarray:
    """(n,) returns in the real environment, one episode per seed, without exploration."""
    episodes = RealEpisodes(env_id, seeds)
    while episodes.running.any():
        actions, _ = agent.predict(observer(episodes), deterministic=True)
        episodes.step(actions)
    return episodes.returns


__all__ = [
    "EstimatedStates",
    "Observer",
    "RealEpisodes",
    "StackedFrames",
    "real_returns",
    "true_states",
]
