"""A step of a whole batch as one kernel, and its frames: what ``compile=True`` compiles.

:func:`advance` is a pure function of tensors. Torch's compiler turns it into a few loops over
the slots on a CPU, and into a few kernels in a CUDA graph on a GPU. Its results are those of the
uncompiled step but for the last bits of sine and cosine; random numbers, and therefore starts,
are the same bits. :class:`FusedFrames` does the same for drawing.
"""

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.func import functional_call, functionalize

from piwm_gym.random import GOLDEN, draw, wrap
from piwm_gym.scalar import Scalars, scalar_code
from piwm_gym.systems import System
from piwm_gym.systems.system import columns

LANES = 16
"""float32 numbers in the widest vector registers."""
Function = Callable[..., tuple[Tensor, ...]]
Step = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


class Moment(NamedTuple):
    """Everything that changes in a simulation, but for its parameters.

    Attributes:
        state: (n, D) SI units.
        scene: (n, S) static visible variables.
        elapsed: (n,) int32 steps since the episode's start.
        done: (n,) bool, whether the episode is over.
        positions: (n,) int64, of the random streams.
    """

    state: Tensor
    scene: Tensor
    elapsed: Tensor
    done: Tensor
    positions: Tensor


class Numbers(NamedTuple):
    """A :class:`Moment` of one slot: lists of float32 scalars, integers or booleans."""

    state: Scalars
    scene: Scalars
    elapsed: Scalars
    done: Scalars
    positions: Scalars

    @classmethod
    def of(cls, moment: Moment) -> "Numbers":
        """Of tensors."""
        return cls(*(numbers(part.numpy()) for part in moment))


def numbers(array: np.ndarray) -> Scalars:
    """Numbers of an array, as :func:`piwm_gym.scalar.scalar_code` reads them."""
    flat = array.ravel()
    return list(flat) if flat.dtype.kind == "f" else flat.tolist()


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
        ended: (D, n) states after the step, before resets.
        observation: (O, n) of ``state``, in the real environment's scaling.
        reward: (n,) float32.
        terminated: (n,) int32: a CPU is slow to write booleans from vector registers.
        truncated: (n,) int32.
        drawn: (n, num_params) random numbers for the parameters of the episodes that start.
    """

    state: Tensor
    scene: Tensor
    elapsed: Tensor
    positions: Tensor
    ended: Tensor
    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    drawn: Tensor | None


def advance(rules: Rules, moment: Moment, action: Tensor, params: Any) -> Advanced:
    """One step of all slots, resets included.

    Args:
        rules: What stays the same.
        moment: Before the step.
        action: (n, *A).
        params: Physical parameters of the episodes that run.
    """
    system, before, positions = rules.system, moment.state, moment.positions
    scene = {"scene": moment.scene} if system.scene_variables else {}
    resting = moment.done if rules.mode is AutoresetMode.NEXT_STEP else None
    noise, count = {}, system.num_step_uniforms
    if count:
        noise["noise"] = draw(positions, count)
        positions = _move(positions, count, None if resting is None else ~resting)
    state = system.transition(before, action, params, **noise, **scene)
    reward, terminated = system.reward(before, action, state), system.terminal(state, **scene)
    elapsed = moment.elapsed + 1
    truncated = torch.zeros_like(terminated) if rules.limit is None else elapsed >= rules.limit
    started, ended, ground, drawn = resting, state, moment.scene, None
    if rules.mode is AutoresetMode.SAME_STEP:
        started = terminated | truncated
    if resting is not None:
        reward, terminated, truncated = (
            reward * ~resting,
            terminated & ~resting,
            truncated & ~resting,
        )
    if started is not None:
        state, ground, positions, drawn = _restart(rules, started, state, ground, positions)
        elapsed = torch.where(started, 0, elapsed)
    return Advanced(
        _packed(state),
        ground,
        elapsed,
        positions,
        _packed(ended),
        _packed(_clipped(rules, system.observation(state))),
        reward,
        terminated.int(),
        truncated.int(),
        drawn,
    )


def _restart(
    rules: Rules, started: Tensor, state: Tensor, scene: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """States, scenes and random streams in which some slots have begun a new episode."""
    system = rules.system
    sizes = system.num_initial_uniforms, system.num_scene_uniforms, rules.num_params
    initial, terrain, drawn = draw(positions, sum(sizes)).split(sizes, dim=1)
    positions = _move(positions, sum(sizes), started)
    keyword = {}
    if system.scene_variables:
        scene = torch.where(started[:, None], system.scene(terrain), scene)
        keyword["scene"] = scene
    state = torch.where(started[:, None], system.initial(initial, **keyword), state)
    return state, scene, positions, drawn if rules.num_params else None


def _start(rules: Rules, started: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
    """State, scene and random stream of an episode that starts, and what is observed of it."""
    state, scene, positions, _ = _restart(rules, started, *before)
    return state, scene, positions, _clipped(rules, rules.system.observation(state))


def _move(positions: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """Random streams after ``count`` numbers, in the slots of the mask."""
    moved = positions + wrap(count * GOLDEN)
    return moved if mask is None else torch.where(mask, moved, positions)


def _clipped(rules: Rules, observed: Tensor) -> Tensor:
    parts = zip(observed.unbind(-1), rules.low, rules.high, strict=True)
    return columns([part.clamp(low, high) for part, low, high in parts])


def _packed(values: Tensor) -> Tensor:
    """(K, n), contiguous."""
    return torch.stack(values.unbind(-1))


def available(device: torch.device) -> bool:
    """Whether torch has what it needs to compile: a C++ compiler, or Triton on a GPU."""
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    compilers = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    return device.type == "cpu" and any(map(shutil.which, filter(None, compilers)))


class Fused:
    """:func:`advance`, compiled for one number of slots.

    Args:
        rules: What stays the same from step to step.
        moment: Of as many slots.
        action: (n, *A).
        params: Physical parameters; later ones must have the same shapes to be quick.
    """

    def __init__(self, rules: Rules, moment: Moment, action: Tensor, params: Any) -> None:
        self.rules = rules
        self._shapes = _shapes(params)
        self._slots, on_gpu = len(moment.state), moment.state.is_cuda
        self._extra = 0 if on_gpu else -self._slots % LANES
        flat = self._padded((*moment, action, *vars(params).values()))
        build = _cuda_graph if on_gpu else _host_code
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._step = build(partial(_flat, rules, type(params)), flat)

    @torch.no_grad()
    def __call__(self, moment: Moment, action: Tensor, params: Any) -> Advanced:
        """One step."""
        if _shapes(params) != self._shapes:  # a user's step is no time to compile
            return advance(self.rules, moment, action, params)
        inputs = self._padded((*moment, action, *vars(params).values()))
        advanced = Advanced(*self._step(inputs))
        if self._extra:
            advanced = self._cut(advanced)
        return advanced if self.rules.num_params else advanced._replace(drawn=None)

    def _padded(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs with a number of slots that fills vector registers.

        Else the last few slots, and a single one, would be computed by other instructions, and
        not be the same bits.
        """
        if not self._extra:
            return inputs
        state, scene, *rest = inputs
        return (
            F.pad(state.t(), (0, self._extra)).t(),
            F.pad(scene, (0, 0, 0, self._extra)),
            *(F.pad(x, (*(0, 0) * (x.ndim - 1), 0, self._extra)) if x.ndim else x for x in rest),
        )

    def _cut(self, advanced: Advanced) -> Advanced:
        """Without the slots that were added."""
        n = self._slots
        cut = {name: getattr(advanced, name)[:, :n] for name in ("state", "ended", "observation")}
        rest = {k: v[:n] for k, v in advanced._asdict().items() if k not in cut and v is not None}
        return advanced._replace(**cut, **rest)


class Solo:
    """:func:`advance` of a single slot on plain numbers, see :mod:`piwm_gym.scalar`.

    Args:
        rules: What stays the same from step to step; nothing begins anew.
        moment: Of one slot.
        action: (1, *A).
        params: Physical parameters.

    Raises:
        UnsupportedError: The system does what has no counterpart on numbers.
    """

    def __init__(self, rules: Rules, moment: Moment, action: Tensor, params: Any) -> None:
        inputs = (*moment, action, *vars(params).values())
        self._code = scalar_code(partial(_flat, rules, type(params)), inputs)
        start = (moment.state, moment.scene, moment.positions)
        self._begin = scalar_code(partial(_start, rules, torch.ones_like(moment.done)), start)

    def __call__(self, moment: Numbers, action: Scalars, params: Sequence[Scalars]) -> Any:
        """One step: :class:`Advanced`, with a list of numbers instead of each tensor."""
        with np.errstate(all="ignore"):  # like torch, which knows no warnings of this kind
            return Advanced._make(self._code(*moment, action, *params))

    def begin(self, moment: Numbers) -> tuple[Numbers, Scalars]:
        """A new episode of the same parameters, and its first observation."""
        start = self._begin(moment.state, moment.scene, moment.positions)
        state, scene, positions, observation = start
        return Numbers(state, scene, [0], [False], positions), observation


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
            self._step = _host_code(self._move, tuple(self._example))

    def __reduce__(self) -> tuple[type["FusedRollout"], tuple[Any, ...]]:
        """Copies and pickles are compiled anew, which torch's cache makes short."""
        return type(self), self._made_of

    def _move(self, after: Tensor, before: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        """Write the next states (D, B) to the first argument."""
        action, scene, noise, *values = given
        keywords = {"scene": scene} if scene.shape[1] else {}
        keywords |= {"noise": noise} if noise.shape[1] else {}
        params = _unchecked(self._kind, values)
        after.copy_(_packed(self._system.transition(before.t(), action, params, **keywords)))
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


class Drawing(nn.Module):
    """``WorldModel.draw`` as a function of two tensors.

    Args:
        model: The world model.
        scenic: Whether its system has a scene.
    """

    def __init__(self, model: nn.Module, scenic: bool) -> None:
        super().__init__()
        self.model, self.scenic = model, scenic

    def forward(self, states: Tensor, scenes: Tensor) -> tuple[Tensor]:
        """(m, H, W, 3) uint8 frames of (m, D) states in (m, S) scenes."""
        keywords = {"scene": scenes} if self.scenic else {}
        return (self.model.draw(states, **keywords),)  # type: ignore[operator]


class FusedFrames:
    """A model's frames, compiled for one number of states and the decoder that it uses now.

    Where a number lies halfway between two bytes, its last bits decide: of the bytes of a frame,
    a few in a million differ from the uncompiled one's, by 1.

    Args:
        drawing: Of the model, whose weights may change later.
        states: (m, D) like those to draw.
        scenes: (m, S) likewise.
    """

    def __init__(self, drawing: Drawing, states: Tensor, scenes: Tensor) -> None:
        inputs = states.contiguous(), scenes.contiguous()
        self._weights: tuple[Tensor, ...] = ()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if states.is_cuda:
                self._draw = _cuda_graph(drawing, inputs)
            else:
                function, self._weights = _with_weights(drawing, len(inputs))
                self._draw = _host_code(function, (*inputs, *self._weights))

    @torch.no_grad()
    def __call__(self, states: Tensor, scenes: Tensor) -> Tensor:
        """(m, H, W, 3) uint8 frames."""
        return self._draw((states.contiguous(), scenes.contiguous(), *self._weights))[0]


def _with_weights(module: nn.Module, count: int) -> tuple[Function, tuple[Tensor, ...]]:
    """A module as a function of ``count`` inputs and its weights, and these weights.

    As inputs, not as constants: machine code in torch's cache then serves all checkpoints.
    """
    weights = dict((*module.named_parameters(), *module.named_buffers()))

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(weights, given[count:], strict=True))
        return functional_call(module, named, given[:count])

    # What is computed in place would not be compiled but left to torch.
    return functionalize(function), tuple(weight.detach() for weight in weights.values())


def _float32(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float32)


def _unchecked(kind: type, values: Sequence[Tensor]) -> Any:
    """Parameters without their checks, which look at values."""
    params: Any = object.__new__(kind)
    params.__dict__.update(zip(kind.names(), values, strict=True))  # type: ignore[attr-defined]
    return params


def _shapes(params: Any) -> list[torch.Size]:
    return [value.shape for value in vars(params).values()]


def _flat(rules: Rules, kind: type, *inputs: Tensor) -> tuple[Tensor, ...]:
    """:func:`advance` between tuples of tensors."""
    count = len(Moment._fields)
    params = _unchecked(kind, inputs[count + 1 :])
    *parts, drawn = advance(rules, Moment(*inputs[:count]), inputs[count], params)
    return (*parts, parts[0].new_empty(0) if drawn is None else drawn)


def _host_code(function: Function, inputs: tuple[Tensor, ...]) -> Step:
    """Machine code for the CPU.

    Not by way of ``torch.compile``, whose checks before each call cost more than a small batch.
    """
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    function(*inputs)  # what is cached at its first use must be there, or it would be traced
    graph = make_fx(function, decomposition_table=select_decomp_table())(*inputs)
    compiled = compile_fx_inner(graph, list(inputs))
    return lambda inputs: compiled(list(inputs))


def _cuda_graph(function: Function, inputs: tuple[Tensor, ...]) -> Step:
    """Kernels for a GPU, recorded in a CUDA graph.

    ``torch.compile`` cannot read all of the equations' Python, and refuses a ninth version of
    what it could read: it gets a graph of tensor operations, which is code of its own every time.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    function(*inputs)  # as for the CPU
    graph = make_fx(function)(*inputs)
    compiled = torch.compile(graph, fullgraph=True, mode="reduce-overhead")
    for _ in range(3):  # it is recorded at the second run
        compiled(*inputs)
    return lambda inputs: tuple(x.clone() for x in compiled(*inputs))  # the next run overwrites


__all__ = [
    "Advanced",
    "Drawing",
    "Fused",
    "FusedFrames",
    "FusedRollout",
    "Moment",
    "Numbers",
    "Rules",
    "Solo",
    "advance",
    "available",
    "numbers",
]
