"""The ``options`` of ``reset``: start states, scenes, observed frames, parameters, which slots."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.actions import check_actions
from piwm_gym.systems import System, Variable, unknown

KEYS = ("state", "scene", "frames", "actions", "params")
VECTOR_KEYS = (*KEYS, "reset_mask")


@dataclass(frozen=True)
class ResetOptions:
    """Options, checked and with the batch dimension.

    Attributes:
        state: (n, D) SI start states, periodic dimensions within their range.
        scene: (n, S) static visible variables.
        frames: (n, T, H, W, 3) uint8 observed frames.
        actions: (n, T - 1, *A) actions between them.
        params: Parameters for the episode that starts.
        mask: (n,) bool, the slots to reset.
    """

    state: Tensor | None = None
    scene: Tensor | None = None
    frames: Tensor | None = None
    actions: Tensor | None = None
    params: Mapping[str, Any] | None = None
    mask: Tensor | None = None


def read_options(
    options: Mapping[str, Any] | None, system: System, num_envs: int | None = None
) -> ResetOptions:
    """Check the options of ``reset``.

    Args:
        options: What the user passed; not modified.
        system: The physical system.
        num_envs: Size of a vector environment; None for a single one, whose options come
            without batch dimension.

    Raises:
        ValueError: Unknown key, wrong shape or type, not finite, or contradictory.
    """
    options = {} if options is None else options
    keys = KEYS if num_envs is None else VECTOR_KEYS
    if not isinstance(options, Mapping):
        raise ValueError(f"options is a {type(options).__name__}; expected a mapping")
    for key in options:
        if key not in keys:
            raise ValueError(unknown("option", key, keys))
    lead = () if num_envs is None else (num_envs,)
    if "state" in options and "frames" in options:
        raise ValueError("options has both 'state' and 'frames'; pass one start, not two")
    if ("frames" in options) != ("actions" in options):
        raise ValueError(
            "options['frames'] and options['actions'] go together: T frames and the T - 1 "
            "actions between them"
        )
    state = scene = frames = actions = mask = None
    if "state" in options:
        state = system.wrap(_read_numbers("state", options["state"], system.variables, lead))
    if "scene" in options:
        if not system.scene_variables:
            raise ValueError(f"{system.name} has no scene; leave options['scene'] out")
        scene = _read_numbers("scene", options["scene"], system.scene_variables, lead)
    if "frames" in options:
        frames = _read_frames(options["frames"], system, lead)
        times = frames.shape[1] - 1
        axes = ("environment", "time step")[-1 - len(lead) :]
        checked = check_actions(system.action_space, options["actions"], (*lead, times), axes)
        actions = torch.from_numpy(checked if lead else checked[None])
    if "reset_mask" in options:
        mask = _read_mask(options["reset_mask"], lead)
    return ResetOptions(state, scene, frames, actions, options.get("params"), mask)


def _array(value: Any) -> np.ndarray:
    """Array of an array, a list or a tensor of any device."""
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def _read_numbers(
    key: str, value: Any, variables: tuple[Variable, ...], lead: tuple[int, ...]
) -> Tensor:
    """One number per variable; for a vector environment also one row for all slots."""
    shape = (*lead, len(variables))
    expected = f"expected {shape} finite numbers: {', '.join(v.name for v in variables)}, SI units"
    try:
        given = _array(value)
        if given.dtype.kind == "c":
            raise TypeError
        array = given.astype(np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"options[{key!r}] is {value!r}; {expected}") from None
    if array.shape not in (shape, shape[-1:]):
        raise ValueError(f"options[{key!r}] has shape {array.shape}; {expected}")
    if not np.isfinite(array).all():
        raise ValueError(f"options[{key!r}] is {value}; {expected}")
    return torch.from_numpy(np.broadcast_to(array, (lead or (1,)) + shape[-1:]).copy())


def _read_frames(value: Any, system: System, lead: tuple[int, ...]) -> Tensor:
    frame = (*system.frame.size, 3)
    array = _array(value)
    n = len(lead)
    if array.dtype != np.uint8 or (array.shape[:n], array.shape[n + 1 :]) != (lead, frame):
        wanted = ", ".join(map(str, (*lead, "T", *frame)))
        raise ValueError(
            f"options['frames'] has shape {array.shape} and type {array.dtype}; expected "
            f"({wanted}) uint8"
        )
    if array.shape[n] < 2:
        raise ValueError("options['frames'] has one frame; velocities need two or more")
    return torch.from_numpy(np.array(array if lead else array[None]))


def _read_mask(value: Any, lead: tuple[int, ...]) -> Tensor:
    array = _array(value)
    if array.dtype != np.bool_ or array.shape != lead:
        raise ValueError(
            f"options['reset_mask'] has shape {array.shape} and type {array.dtype}; expected "
            f"{lead} bool"
        )
    if not array.any():
        raise ValueError("options['reset_mask'] selects no environment; expected at least one")
    return torch.from_numpy(array.copy())


__all__ = ["KEYS", "VECTOR_KEYS", "ResetOptions", "read_options"]
