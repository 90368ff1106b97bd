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
from piwm_gym.models.estimation import shooting
from piwm_gym.systems import FrameSpec, System
from piwm_gym.world_model import WorldModel
from training.collectors.cartpole import CartPoleRenderer

WINDOWS = {"cartpole": 20, "lunar_lander": 20, "donkey_car": 10}
"""Frames from which a state is estimated, once an episode has as many. A lander that stands but is
read a little too high hops, as far as ten frames can tell."""

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

    Every frame is encoded once. The first frame shows no velocity, so that is taken to be zero.
    A scene is the mean of what the frames so far show of it.

    Args:
        model: Reads the frames and explains their motion.
    """

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self.window = WINDOWS[model.system.name]
        self._configurations: list[torch.Tensor] = []
        self._scenes: list[torch.Tensor] = []
        self._actions: list[np.ndarray] = []

    def __call__(self, episodes: RealEpisodes) -> np.ndarray:
        """(n, O) states as agents see them; call once per step."""
        action = episodes.actions[-1] if episodes.actions else None
        return self.model.system.observation(self.update(episodes.frames(), action)).numpy()

    @torch.no_grad()
    def update(self, frames: np.ndarray, action: np.ndarray | None) -> torch.Tensor:
        """(n, D) states at the next frames.

        Args:
            frames: uint8 (n, H, W, 3).
            action: (n, *A) what led to them; None for the first frames.
        """
        model, system = self.model, self.model.system
        read = model.encode_frames(torch.from_numpy(frames))
        newest, scene = read.tensor_split((len(system.visible),), dim=-1)
        self._configurations = [*self._configurations, newest][-self.window :]
        self._scenes.append(scene)
        if action is None:
            return system.from_configurations(newest, newest, system.dt)
        self._actions = [*self._actions, action][1 - self.window :]
        window = torch.stack(self._configurations, dim=1)
        actions = torch.from_numpy(np.stack(self._actions, axis=1))
        known = torch.stack(self._scenes).mean(0) if system.scene_variables else None
        return shooting(system, window, actions, model.params, known)


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
    "WINDOWS",
    "EstimatedStates",
    "Observer",
    "RealEpisodes",
    "StackedFrames",
    "real_returns",
    "true_states",
]
