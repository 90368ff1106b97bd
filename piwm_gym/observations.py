"""What an agent sees: the three kinds of observation and their spaces."""

import gymnasium as gym
import numpy as np
import torch

from piwm_gym.systems import System, unknown

OBS_TYPES = ("pixels", "state", "pixels_state")


def observation_space(system: System, obs_type: str) -> gym.Space:
    """Observation space of one environment, imagined or real.

    Args:
        system: The physical system.
        obs_type: ``"pixels"``, uint8 (H, W, 3); ``"state"``, float32, the real environment's own
            space; ``"pixels_state"``, a Dict of both.

    Raises:
        ValueError: Unknown ``obs_type``.
    """
    if obs_type not in OBS_TYPES:
        raise ValueError(unknown("obs_type", obs_type, OBS_TYPES))
    pixels = gym.spaces.Box(0, 255, (*system.frame.size, 3), np.uint8)
    if obs_type == "pixels":
        return pixels
    if obs_type == "state":
        return system.observation_space
    return gym.spaces.Dict({"pixels": pixels, "state": system.observation_space})


def observe_states(system: System, states: np.ndarray) -> np.ndarray:
    """States as the real environment shows them, clipped to its space.

    Args:
        system: The physical system.
        states: float32 (..., D), SI units.

    Returns:
        float32 (..., O), in the real environment's own scaling.
    """
    box = system.observation_space
    return np.clip(system.observation(torch.from_numpy(states)).numpy(), box.low, box.high)


__all__ = ["OBS_TYPES", "observation_space", "observe_states"]
