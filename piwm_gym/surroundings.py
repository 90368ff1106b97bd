"""What a forecast is given: states, and besides actions perhaps a scene and process noise."""

from typing import Any

import gymnasium as gym
import numpy as np
from jaxtyping import Float
from torch import Tensor

from piwm_gym.actions import check_actions
from piwm_gym.systems import System


def check_tensor(name: str, value: Any) -> None:
    """Raise ValueError for what is not a tensor: an array, a list, a number."""
    if isinstance(value, Tensor):
        return
    array = isinstance(value, np.ndarray)
    kind = "numpy array" if array else type(value).__name__
    make = "from_numpy" if array else "as_tensor"
    raise ValueError(f"{name} is a {kind}; expected a tensor: torch.{make}({name})")


def check_states(system: System, states: Float[Tensor, "*B D"]) -> None:
    """Check that states have the system's dimensions.

    Raises:
        ValueError: They have others, such as the numbers of an observation, or are no tensor.
    """
    check_tensor("states", states)
    names = system.state_names
    if not states.ndim or states.shape[-1] != len(names):
        raise ValueError(
            f"states have shape {tuple(states.shape)}; expected (..., {len(names)}): "
            f"{', '.join(names)}, SI units"
        )


def check_choices(system: System, actions: Tensor) -> None:
    """Check that actions of a discrete space lie between its first and its last one.

    On a GPU nobody looks: it would have to be waited for.

    Raises:
        ValueError: One does not; the equations would extrapolate it. Or they are no tensor.
    """
    check_tensor("actions", actions)
    space = system.action_space
    if not isinstance(space, gym.spaces.Discrete) or not actions.is_cpu or not actions.numel():
        return
    first, last = int(space.start), int(space.start + space.n - 1)
    low, high = (float(end) for end in actions.detach().aminmax())
    if not (first <= low and high <= last):
        raise ValueError(
            f"actions are from {low:g} to {high:g}; expected numbers from {first} to {last}"
        )


def check_rollout(system: System, state: Tensor, actions: Tensor) -> None:
    """Check states (B, D) and actions (B, H, *A) of a rollout.

    Raises:
        ValueError: Of other shapes, or actions that the system does not have.
    """
    check_states(system, state)
    if state.ndim != 2:
        raise ValueError(f"states have shape {tuple(state.shape)}; expected one batch, (B, D)")
    check_tensor("actions", actions)
    one = tuple(system.action_space.shape or ())
    if actions.ndim < 2 or actions.shape[0] != len(state) or tuple(actions.shape[2:]) != one:
        wanted = ", ".join(map(str, (len(state), "H", *one)))
        raise ValueError(
            f"actions have shape {tuple(actions.shape)}; expected ({wanted}): H actions for each "
            "of the states"
        )
    check_choices(system, actions)


def check_window(system: System, name: str, window: Tensor, actions: Tensor, ndim: int) -> None:
    """Check a window of two or more frames, or of what was read of them, and its actions.

    Args:
        system: The system.
        name: Of the window, for messages.
        window: (B, T, ...).
        actions: (B, T - 1, *A), one between neighbours.
        ndim: Dimensions of the window.

    Raises:
        ValueError: Of other shapes, or actions that cannot have been taken.
    """
    check_tensor(name, window)
    check_tensor("actions", actions)
    if window.ndim != ndim or window.shape[1] < 2:
        raise ValueError(
            f"{name} has shape {tuple(window.shape)}; expected (B, T, ...) with T >= 2: "
            "velocities do not show in a single frame"
        )
    lead = window.shape[0], window.shape[1] - 1
    shape = (*lead, *(system.action_space.shape or ()))
    if tuple(actions.shape) != shape:
        raise ValueError(
            f"actions has shape {tuple(actions.shape)}; expected one action between "
            f"neighbouring frames, {shape}"
        )
    check_actions(system.action_space, actions, lead, ("window", "time step"))


def spread_scene(
    system: System, scene: Float[Tensor, "*C S"] | None, like: Float[Tensor, "*B D"]
) -> Float[Tensor, "*B S"] | None:
    """The scene beside every state of a batch.

    Args:
        system: The system.
        scene: (S,) for all states, or (B, S) for states (B, ..., D); None for the nominal one.
        like: The states.

    Returns:
        None for a system without a scene.

    Raises:
        ValueError: A scene for a system that has none, or of a wrong shape.
    """
    lead, count = like.shape[:-1], len(system.scene_variables)
    if not count:
        if scene is not None:
            raise ValueError(f"{system.name} has no scene; leave 'scene' out")
        return None
    scene = system.nominal_scene if scene is None else scene
    if scene.ndim not in (1, 2) or scene.shape[-1] != count:
        raise ValueError(
            f"scene has shape {tuple(scene.shape)}; expected ({count},) or (B, {count}): "
            f"{', '.join(v.name for v in system.scene_variables)}"
        )
    if scene.ndim == 2:
        if lead[:1] != scene.shape[:1]:
            raise ValueError(
                f"scene has shape {tuple(scene.shape)}, states have leading dimensions "
                f"{tuple(lead)}; expected one scene, or one for each element of the first"
            )
        scene = scene.view(scene.shape[0], *(1,) * (len(lead) - 1), count)
    return scene.to(like).expand(*lead, -1)


def check_noise(system: System, noise: Tensor | None, lead: tuple[int, ...]) -> None:
    """Check uniform numbers of the process noise.

    Args:
        system: The system.
        noise: (*lead, U) numbers, or None for the mean motion.
        lead: Leading dimensions that are expected.

    Raises:
        ValueError: Noise for a system that has none, or of a wrong shape.
    """
    if noise is None:
        return
    count = system.num_step_uniforms
    if not count:
        raise ValueError(f"{system.name} has no process noise; leave 'noise' out")
    if tuple(noise.shape) != (*lead, count):
        raise ValueError(f"noise has shape {tuple(noise.shape)}; expected {(*lead, count)}")


__all__ = [
    "check_choices",
    "check_noise",
    "check_rollout",
    "check_states",
    "check_tensor",
    "check_window",
    "spread_scene",
]
