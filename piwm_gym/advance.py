"""A step of all slots as a pure function of tensors, new episodes included.

Nothing here looks at values, so that it can be compiled (:mod:`piwm_gym.fused`) or written down
as code on numbers (:mod:`piwm_gym.solo`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from piwm_gym.random import GOLDEN, draw, wrap
from piwm_gym.systems import System
from piwm_gym.systems.system import columns


class Moment(NamedTuple):
    """Everything that changes in a simulation, but for its parameters.

    Attributes:
        state: (n, D) SI units.
        scene: (n, S) static visible variables.
        elapsed: (n,) int32 steps since the episode's start.
        positions: (n,) int64, of the random streams.
        done: (n,) bool, whether the episode is over.
    """

    state: Tensor
    scene: Tensor
    elapsed: Tensor
    positions: Tensor
    done: Tensor


def blank(system: System, num_slots: int, device: torch.device) -> Moment:
    """Before the first episode: zeros, the columns of states contiguous in memory."""
    n = num_slots
    return Moment(
        torch.zeros(len(system.variables), n, device=device).t(),
        torch.zeros(n, len(system.scene_variables), device=device),
        torch.zeros(n, dtype=torch.int32, device=device),
        torch.zeros(n, dtype=torch.int64, device=device),
        torch.zeros(n, dtype=torch.bool, device=device),
    )


def example_action(system: System, num_slots: int, device: torch.device) -> Tensor:
    """(n, *A) zeros, int64 for a discrete space, float32 for a Box."""
    space = system.action_space
    dtype = torch.int64 if isinstance(space, gym.spaces.Discrete) else torch.float32
    return torch.zeros(num_slots, *(space.shape or ()), dtype=dtype, device=device)


@dataclass(frozen=True)
class Rules:
    """What stays the same from step to step.

    Attributes:
        system: Equations.
        mode: What happens when an episode ends.
        limit: Steps after which an episode is truncated; None for never.
        num_params: Random numbers that the parameters of an episode need.
        low: Lower bounds of the observation.
        high: Upper bounds.
    """

    system: System
    mode: AutoresetMode
    limit: int | None
    num_params: int
    low: tuple[float, ...]
    high: tuple[float, ...]


class Advanced(NamedTuple):
    """What a step leaves behind.

    Attributes:
        state: (D, n) after the step and its resets.
        scene: (n, S) likewise.
        elapsed: (n,) likewise.
        positions: (n,) likewise.
        observation: (O, n) of ``state``, in the real environment's scaling.
        ended: (D, n) states after the step, before resets; of the m slots that have started
            only, (D, m), if the host knows them.
        reward: (n,) float32.
        terminated: (n,) int32, 0 or 1: a CPU is slow to write bytes from vector registers.
        truncated: (n,) likewise.
        started: (n,) bool or 0 and 1, where an episode has begun; None if the host knows of none.
        drawn: (n, num_params) random numbers for the parameters of the episodes that start, or
            (m, num_params); None if the host knows of none.
    """

    state: Tensor
    scene: Tensor
    elapsed: Tensor
    positions: Tensor
    observation: Tensor
    ended: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    started: Tensor | None
    drawn: Tensor | None


class Fresh(NamedTuple):
    """Episodes at their start.

    Attributes:
        state: (D, n) SI units.
        scene: (n, S) static visible variables.
        positions: (n,) of the random streams, after what the start has drawn.
        observation: (O, n) in the real environment's scaling.
        drawn: (n, num_params) random numbers for the parameters.
    """

    state: Tensor
    scene: Tensor
    positions: Tensor
    observation: Tensor
    drawn: Tensor


def advance(rules: Rules, moment: Moment, action: Tensor, params: Any) -> Advanced:
    """One step of all slots, and the episodes that begin with it.

    Args:
        rules: What stays the same.
        moment: Before the step.
        action: (n, *A).
        params: Physical parameters of the episodes that run.
    """
    moved = move(rules, moment, action, params)
    if moved.started is None:
        return moved
    fresh, begun = start(rules, moved.positions), moved.started.bool()
    return moved._replace(
        state=torch.where(begun, fresh.state, moved.state),
        scene=torch.where(begun[:, None], fresh.scene, moved.scene),
        elapsed=torch.where(begun, 0, moved.elapsed),
        positions=torch.where(begun, fresh.positions, moved.positions),
        observation=torch.where(begun, fresh.observation, moved.observation),
        drawn=fresh.drawn,
    )


def move(rules: Rules, moment: Moment, action: Tensor, params: Any, free: bool = False) -> Advanced:
    """One step of all slots; episodes that ``started`` are yet to begin.

    Args:
        rules: What stays the same.
        moment: Before the step.
        action: (n, *A).
        params: Physical parameters of the episodes that run.
        free: Whether the scene is known not to matter, see ``System.moved_freely``.
    """
    system, before, positions = rules.system, moment.state, moment.positions
    scene = {"scene": moment.scene} if system.scene_variables and not free else {}
    resting = moment.done if rules.mode is AutoresetMode.NEXT_STEP else None
    noise, count = {}, system.num_step_uniforms
    if count:
        noise["noise"] = draw(positions, count)
        positions = _later(positions, count, None if resting is None else ~resting)
    state = system.transition(before, action, params, **noise, **scene)
    reward, terminated = system.reward(before, action, state), system.terminal(state, **scene)
    elapsed = moment.elapsed + 1
    truncated = torch.zeros_like(terminated) if rules.limit is None else elapsed >= rules.limit
    started = terminated | truncated if rules.mode is AutoresetMode.SAME_STEP else resting
    if resting is not None:
        reward, terminated, truncated = (
            reward * ~resting,
            terminated & ~resting,
            truncated & ~resting,
        )
    whole = packed(state)
    return Advanced(
        whole,
        moment.scene,
        elapsed,
        positions,
        _seen(rules, state),
        whole,
        reward,
        terminated.int(),
        truncated.int(),
        None if started is None else started.int(),
        None,
    )


def start(rules: Rules, positions: Tensor) -> Fresh:
    """New episodes.

    Args:
        rules: What stays the same.
        positions: (n,) of the random streams.
    """
    system = rules.system
    sizes = system.num_initial_uniforms, system.num_scene_uniforms, rules.num_params
    initial, terrain, drawn = draw(positions, sum(sizes)).split(sizes, dim=1)
    scene = system.scene(terrain) if system.scene_variables else terrain
    state = system.initial(initial, **({"scene": scene} if system.scene_variables else {}))
    positions = _later(positions, sum(sizes), None)
    return Fresh(packed(state), scene, positions, _seen(rules, state), drawn)


def flat(
    function: Callable[..., Advanced], rules: Rules, kind: type, *inputs: Tensor
) -> tuple[Tensor, ...]:
    """:func:`advance` or :func:`move` between tuples of tensors; see :func:`filled`.

    Args:
        function: Which.
        rules: What stays the same.
        kind: Class of the parameters.
        *inputs: Those of a moment, the action, the parameters.
    """
    count = len(Moment._fields)
    params = unchecked(kind, inputs[count + 1 :])
    return tensors(function(rules, Moment(*inputs[:count]), inputs[count], params))


def tensors(parts: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Those that are there."""
    return tuple(part for part in parts if part is not None)


def filled(parts: Sequence[Any]) -> Advanced:
    """With None for the last ones, if they are not there."""
    return Advanced(*parts, *[None] * (len(Advanced._fields) - len(parts)))


def _later(positions: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Random streams after ``count`` numbers, in the slots of the mask."""
    moved = positions + wrap(count * GOLDEN)
    return moved if mask is None else torch.where(mask, moved, positions)


def _seen(rules: Rules, state: Tensor) -> Tensor:
    """(O, n) observation, clipped to its space."""
    observed = rules.system.observation(state).unbind(-1)
    parts = zip(observed, rules.low, rules.high, strict=True)
    return packed(columns([part.clamp(low, high) for part, low, high in parts]))


def packed(values: Tensor) -> Tensor:
    """(K, n) of (n, K), contiguous: no copy of what :func:`columns` made."""
    return values.t().contiguous()


def unchecked(kind: type, values: Sequence[Tensor]) -> Any:
    """Parameters without their checks, which look at values."""
    params: Any = object.__new__(kind)
    params.__dict__.update(zip(kind.names(), values, strict=True))  # type: ignore[attr-defined]
    return params


__all__ = [
    "Advanced",
    "Fresh",
    "Moment",
    "Rules",
    "advance",
    "blank",
    "example_action",
    "filled",
    "flat",
    "move",
    "packed",
    "start",
    "tensors",
    "unchecked",
]
