"""Whole rollouts in machine code: what ``WorldModel.compile_rollout`` compiles."""

import warnings
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from piwm_gym import compiler
from piwm_gym.advance import packed, unchecked
from piwm_gym.systems import System


class FusedRollout:
    """Transitions without resets, compiled for one size of the batch on a CPU.

    Args:
        system: Equations.
        batch: Number of states.
        params: Physical parameters; later ones must have the same shapes to be quick.
        noisy: Whether process noise is drawn.
    """

    def __init__(self, system: System, batch: int, params: Any, noisy: bool) -> None:
        self._system, self._kind = system, type(params)
        self._made_of = system, batch, params, noisy
        space, width = system.action_space, len(system.variables)
        discrete = isinstance(space, gym.spaces.Discrete)
        self._dtype = torch.int64 if discrete else torch.float32
        self._example = [
            torch.zeros(width, batch),
            torch.zeros(width, batch),
            torch.zeros(batch, *(space.shape or ()), dtype=self._dtype),
            torch.zeros(batch, len(system.scene_variables)),
            torch.zeros(batch, system.num_step_uniforms if noisy else 0),
            *map(_float32, vars(params).values()),
        ]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._step = compiler.host_code(self._move, tuple(self._example))

    def __reduce__(self) -> tuple[type["FusedRollout"], tuple[Any, ...]]:
        """Copies and pickles are compiled anew, which torch's cache makes short."""
        return type(self), self._made_of

    def _move(self, after: Tensor, before: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Write the next states (D, B) to the first argument."""
        action, scene, noise, *values = given
        keywords = {"scene": scene} if scene.shape[1] else {}
        keywords |= {"noise": noise} if noise.shape[1] else {}
        params = unchecked(self._kind, values)
        after.copy_(packed(self._system.transition(before.t(), action, params, **keywords)))
        return ()

    @torch.no_grad()
    def __call__(
        self,
        state: Tensor,
        actions: Tensor,
        params: Any,
        noise: Tensor | None,
        scene: Tensor | None,
    ) -> Tensor | None:
        """States (B, T, D), or None where this was not compiled for such arguments."""
        if actions.is_floating_point() and not self._dtype.is_floating_point:
            return None  # between two choices, which the equations interpolate
        batch, horizon = actions.shape[:2]
        by_step = actions.to(self._dtype).transpose(0, 1).contiguous()
        drawn = torch.zeros(horizon, batch, 0) if noise is None else noise.transpose(0, 1)
        inputs = [
            state.t().contiguous(),
            by_step[0],
            torch.zeros(batch, 0) if scene is None else scene.contiguous(),
            drawn[0],
            *map(_float32, vars(params).values()),
        ]
        if [(x.shape, x.dtype) for x in inputs] != [(x.shape, x.dtype) for x in self._example[1:]]:
            return None
        before, _, given, _, *values = inputs
        states = torch.empty(horizon, *before.shape)
        for after, action, uniforms in zip(states, by_step, drawn.contiguous(), strict=True):
            self._step((after, before, action, given, uniforms, *values))
            before = after
        return states.permute(2, 0, 1)


def compiled_rollout(
    system: System, batch_size: int, params: Any, noisy: bool, device: torch.device
) -> FusedRollout | None:
    """A compiled rollout, or None and a warning where nothing can compile it.

    Args:
        system: Equations.
        batch_size: Number of states.
        params: As of :class:`FusedRollout`.
        noisy: Likewise.
        device: Where rollouts are to run.

    Raises:
        ValueError: Noise for a system that has none, or a batch size below 1.

    Warns:
        UserWarning: It is not the CPU, or there is no compiler that works.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; expected an integer of at least 1")
    if noisy and not system.num_step_uniforms:
        raise ValueError(f"{system.name} has no process noise; leave 'noise' out")
    if device.type != "cpu" or not compiler.available(device):
        warnings.warn(
            f"rollouts on {device.type} run uncompiled, with the same results; "
            "compile_rollout needs the CPU and a C++ compiler",
            stacklevel=3,
        )
        return None
    try:
        return FusedRollout(system, batch_size, params, noisy)
    except compiler.CompilationError as error:
        warnings.warn(
            f"torch's compiler fails ({error}); rollouts run uncompiled, with the same results",
            stacklevel=3,
        )
        return None


def _float32(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float32).contiguous()


__all__ = ["FusedRollout", "compiled_rollout"]
