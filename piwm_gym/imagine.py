"""A real episode, and the model's imagination of it from the same start under the same actions.

frames    y[0] ... y[C-1]                       the model sees C context frames,
actions      a[0] ... a[C-2]                    and the actions between them;
states                 x[C-1]                   it estimates the state at the last one,
imagined               x[C-1] ... x[C-1+H]      and goes on with the actions alone
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from piwm_gym.checks import check_whole
from piwm_gym.planning import cem
from piwm_gym.systems import Params
from piwm_gym.world_model import WorldModel

StatePolicy = Callable[[np.ndarray], Any]
"""Physical state (D,) to action."""

LONGEST_WAIT = 300
"""Steps after which an episode is recorded though the camera may not see it yet."""


@dataclass(frozen=True)
class Episode:
    """What happened in the real environment in T steps.

    Attributes:
        frames: uint8 (T + 1, H, W, 3), the model's crop and size.
        actions: (T[, A]); ``actions[t]`` leads from frame t to frame t + 1.
        states: (T + 1, D) physical states, SI units.
        scene: (S,) static visible variables, SI units; None for a system without any.
    """

    frames: UInt8[np.ndarray, "T H W 3"]
    actions: np.ndarray
    states: Float[np.ndarray, "T D"]
    scene: Float[np.ndarray, " S"] | None = None


@dataclass(frozen=True)
class ImaginedRollout:
    """H steps, real and imagined, and the moment before them.

    Attributes:
        real_frames: uint8 (H + 1, H, W, 3).
        imagined_frames: The same, drawn by the model.
        real_states: (H + 1, D), SI units.
        imagined_states: The same, the first one estimated from the context.
        actions: (H[, A]).
        real_scene: (S,), SI units; None for a system without a scene.
        imagined_scene: The same, read from the context.
    """

    real_frames: UInt8[np.ndarray, "T H W 3"]
    imagined_frames: UInt8[np.ndarray, "T H W 3"]
    real_states: Float[np.ndarray, "T D"]
    imagined_states: Float[np.ndarray, "T D"]
    actions: np.ndarray
    real_scene: Float[np.ndarray, " S"] | None = None
    imagined_scene: Float[np.ndarray, " S"] | None = None

    @property
    def errors(self) -> Float[np.ndarray, "T D"]:
        """Absolute state errors, SI units; row h is the error after h imagined steps."""
        return np.abs(self.imagined_states - self.real_states)

    @property
    def scene_errors(self) -> Float[np.ndarray, " S"]:
        """Absolute errors of the scene, SI units; empty for a system without one."""
        if self.imagined_scene is None or self.real_scene is None:
            return np.zeros(0)
        return np.abs(self.imagined_scene - self.real_scene)


def survivor(model: WorldModel, seed: int = 0) -> StatePolicy:
    """Lively actions that keep an episode going: the best of a few random futures.

    It looks ahead with the reference parameters of the system and its nominal scene, so that the
    episodes do not depend on what the model has learned.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    discrete = isinstance(model.system.action_space, gym.spaces.Discrete)

    def policy(state: np.ndarray) -> Any:
        start = torch.as_tensor(state, dtype=torch.float32, device=model.device)[None]
        params = model.system.reference
        plan = cem(model, start, 20, generator, samples=16, iterations=1, params=params)
        action = plan[0, 0].cpu().numpy()
        return int(action) if discrete else action

    return policy


def real_episode(
    real: gym.Env,
    policy: StatePolicy,
    steps: int,
    seed: int = 0,
    in_view: Callable[[np.ndarray], bool] = lambda state: True,
) -> Episode:
    """Run the real environment for ``steps`` steps, or until its episode ends.

    Args:
        real: From :func:`piwm_gym.make_real`, with ``obs_type="pixels"``.
        policy: Physical state to action.
        steps: Largest number of steps.
        seed: Seed of the reset.
        in_view: Physical state to whether the camera sees it. The record begins where it first
            does: Lunar Lander's episodes begin above the picture.
    """
    frame, info = real.reset(seed=seed)
    frames, states = [frame], [info["state"]]
    actions: list[Any] = []
    scene = info.get("scene")
    waited, seen = 0, in_view(info["state"])
    while len(actions) < steps:
        action = policy(states[-1])
        frame, _, terminated, truncated, info = real.step(action)
        if seen or waited >= LONGEST_WAIT:
            frames.append(frame)
            states.append(info["state"])
            actions.append(action)
        else:
            frames, states = [frame], [info["state"]]
            waited, seen = waited + 1, in_view(info["state"])
        if terminated or truncated:
            break
    return Episode(np.stack(frames), np.array(actions), np.stack(states), scene)


@torch.no_grad()
def imagine(
    model: WorldModel,
    episode: Episode,
    context: int = 10,
    init: str | None = None,
    params: Params | None = None,
) -> ImaginedRollout:
    """Estimate state and scene from the first frames of an episode and imagine the rest of it.

    Process noise is left out: what is imagined is the mean motion.

    Args:
        model: The world model.
        episode: What really happened.
        context: Number of frames that the model sees, at least 2.
        init: State estimator, ``"shooting"`` or ``"fd"``; default: the model's.
        params: Physical parameters to imagine with; default: the learned ones.

    Raises:
        ValueError: The episode ends within the context, or ``context`` is less than 2.
    """
    if not 2 <= context <= len(episode.actions):
        raise ValueError(
            f"context is {context} frames of an episode with {len(episode.frames)}; expected at "
            "least 2, for velocities, and one frame more in the episode"
        )
    last = context - 1
    actions = torch.as_tensor(episode.actions, device=model.device)[None]
    window = _batch(episode.frames[:context])
    start, scene = model.encode_window(window, actions[:, :last], init, params)
    future = model.rollout(start, actions[:, last:], params, scene)
    states = torch.cat((start[:, None], future), dim=1)
    return ImaginedRollout(
        episode.frames[last:],
        model.draw(states, scene)[0].cpu().numpy(),
        episode.states[last:],
        states[0].cpu().numpy(),
        episode.actions[last:],
        episode.scene,
        None if scene is None else scene[0].cpu().numpy(),
    )


def _batch(frames: np.ndarray) -> Tensor:
    return torch.as_tensor(frames)[None]


def imagined_rollout(
    model: WorldModel,
    real: gym.Env,
    context: int = 10,
    horizon: int = 50,
    seed: int = 0,
    policy: StatePolicy | None = None,
) -> ImaginedRollout:
    """A real episode and its imagination: :func:`real_episode`, then :func:`imagine`.

    Args:
        model: The world model.
        real: From :func:`piwm_gym.make_real`, with ``obs_type="pixels"``.
        context: Number of frames that the model sees.
        horizon: Largest number of imagined steps; fewer when the real episode ends earlier.
        seed: Seed of the reset and of the policy.
        policy: Physical state to action; default: :func:`survivor`.

    Raises:
        ValueError: The episode ends within the context, ``context`` is less than 2, or ``horizon``
            less than 1.
    """
    check_whole("horizon", horizon, 1)
    policy = survivor(model, seed) if policy is None else policy

    def in_view(state: np.ndarray) -> bool:
        return bool(model.system.in_view(torch.from_numpy(state)))

    return imagine(model, real_episode(real, policy, context - 1 + horizon, seed, in_view), context)


__all__ = [
    "Episode",
    "ImaginedRollout",
    "StatePolicy",
    "imagine",
    "imagined_rollout",
    "real_episode",
    "survivor",
]
