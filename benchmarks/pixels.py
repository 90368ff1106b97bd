"""What a pixel policy sees, the same in imagination and in reality, and how it reads it.

    frame (H, W, 3) --blue, inverted--> (H, W) --rows averaged--> (H / BAND, W)
          --the last STACK of them--> (STACK, H / BAND, W)

Cart and pole are dark in the blue channel and the background is white, so that an empty scene is
zero. Neither moves up or down: rows are averaged in bands, which makes everything after that
four times cheaper. An episode's first frame is repeated: no stack shows motion that was not there.

CartPole-v1 draws on whole pixels, the decoder between them: from one frame to the next a real pole
seems to jump and to stand still where an imagined one moves. Noise on what is dark, in training,
keeps policies from believing every grey.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Float
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from torch import Tensor, nn

STACK = 4
BAND = 4
BLUE = 2
DIFFERENCE_GAIN = 12.0
"""Frames 20 ms apart differ little; this brings their differences to the frames' own scale."""


def bands(frames: np.ndarray) -> np.ndarray:
    """uint8 (..., H / BAND, W) darkness of uint8 (..., H, W, 3) frames."""
    *batch, height, width, _ = frames.shape
    blue = frames[..., BLUE].reshape(*batch, height // BAND, BAND, width)
    return 255 - np.round(blue.mean(-2)).astype(np.uint8)


class FrameStack:
    """The last frames of n episodes.

    Args:
        noise: Standard deviation of what is added to the darkness of cart and pole, anew in every
            frame, of 255.
        seed: Of the noise.

    Attributes:
        frames: uint8 (n, STACK, H / BAND, W), the newest last; a new array after every change.
    """

    frames: np.ndarray

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self._noise = noise
        self._rng = np.random.default_rng(seed)

    def see(self, frames: np.ndarray) -> np.ndarray:
        """uint8 (..., H / BAND, W) of uint8 (..., H, W, 3) frames, with the noise."""
        dark = bands(frames)
        if not self._noise:
            return dark
        noise = self._noise * self._rng.standard_normal(dark.shape, dtype=np.float32)
        return np.where(dark > 0, np.clip(np.rint(dark + noise), 0, 255), 0).astype(np.uint8)

    def start(self, frames: np.ndarray) -> np.ndarray:
        """Stacks at the start of all episodes, from uint8 (n, H, W, 3) first frames."""
        self.frames = np.repeat(self.see(frames)[:, None], STACK, axis=1)
        return self.frames

    def push(self, frames: np.ndarray, started: np.ndarray | None = None) -> np.ndarray:
        """Stacks one frame later; where ``started`` (n,) is set an episode begins with it."""
        newest = self.see(frames)[:, None]
        self.frames = np.concatenate((self.frames[:, 1:], newest), axis=1)
        if started is not None and started.any():
            self.frames[started] = newest[started]
        return self.frames


class VecStack(VecEnvWrapper):
    """SB3 environments whose observations are stacks of their frames.

    Args:
        venv: With frames, uint8 (H, W, 3), as observations.
        noise: As of :class:`FrameStack`.
        seed: Of the noise.
    """

    def __init__(self, venv: VecEnv, noise: float = 0.0, seed: int = 0) -> None:
        assert venv.observation_space.shape is not None
        height, width, _ = venv.observation_space.shape
        space = gym.spaces.Box(0, 255, (STACK, height // BAND, width), np.uint8)
        super().__init__(venv, observation_space=space)
        self._stack = FrameStack(noise, seed)

    def reset(self) -> np.ndarray:
        """Start all episodes."""
        return self._stack.start(self.venv.reset())  # type: ignore[arg-type]

    def step_wait(self) -> Any:
        """As the wrapped environments, with stacks, also those at an episode's end."""
        frames, rewards, dones, infos = self.venv.step_wait()
        before = self._stack.frames
        for i in np.flatnonzero(dones):
            last = self._stack.see(infos[i]["terminal_observation"])
            infos[i]["terminal_observation"] = np.concatenate((before[i, 1:], last[None]))
        return self._stack.push(frames, dones), rewards, dones, infos  # type: ignore[arg-type]


class StripExtractor(BaseFeaturesExtractor):
    """Features of a stack: one convolution along the track, then one linear layer.

    Each strip has the full height, so that it sees the tilt of a pole in it. It takes the newest
    frame and the differences to the older ones, which say the same as the frames but put position
    and motion on a similar scale.

    Args:
        observation_space: Of stacks.
        channels: Numbers per strip.
        features: Numbers in all.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, channels: int = 32, features: int = 128
    ) -> None:
        super().__init__(observation_space, features)
        stack, height, width = observation_space.shape
        strips = (width - 8) // 4 + 1
        self.layers = nn.Sequential(
            nn.Conv1d(stack * height, channels, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * strips, features),
            nn.ReLU(),
        )

    def forward(self, stacks: Float[Tensor, "B S H W"]) -> Float[Tensor, "B F"]:
        """Features of stacks in [0, 1]."""
        newest = stacks[:, -1:]
        motion = DIFFERENCE_GAIN * (newest - stacks[:, :-1])
        return self.layers(torch.cat((newest, motion), dim=1).flatten(1, 2))


__all__ = ["BAND", "STACK", "FrameStack", "StripExtractor", "VecStack", "bands"]
