"""A step of a whole batch as machine code: what ``compile=True`` compiles.

Torch's compiler turns :func:`piwm_gym.advance.advance` into a few loops over the slots on a CPU,
and into a few kernels in a CUDA graph on a GPU. On a CPU its results are those of the uncompiled
step, bit for bit; on a GPU last bits may differ, but random numbers, and therefore starts, do not.
"""

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from piwm_gym import compiler
from piwm_gym.advance import (
    Advanced,
    Fresh,
    Moment,
    Rules,
    advance,
    filled,
    flat,
    move,
    start,
)

APART = 24_000
"""Random numbers of starts in all slots, from which on a CPU it pays to draw only those of the
slots that start: 6,000 Cart Poles, 1,700 landers with their ground."""
STARTED = 16
"""One in so many slots is expected to start an episode at a step; a Cart Pole that is pushed at
random falls within about 22. More take several calls, fewer waste random numbers."""
SLOTS_DIM = (1, 0, 0, 1, 0)
"""Which dimension of the parts of :class:`Fresh` counts slots."""


class Fused:
    """:func:`piwm_gym.advance.advance`, compiled for one number of slots.

    In large batches on a CPU, episodes begin in a function of its own, for the slots that start
    one; in small ones that would be a second call, and a GPU would have to be waited for.

    Args:
        rules: What stays the same from step to step.
        moment: Of as many slots.
        action: (n, *A).
        params: Physical parameters. Where later ones have other shapes, such as one number for each
            slot instead of one for all, the first step with them is compiled anew.

    Raises:
        CompilationError: It cannot be compiled here.
    """

    def __init__(self, rules: Rules, moment: Moment, action: Tensor, params: Any) -> None:
        self.rules = rules
        self._slots, on_gpu = len(moment.state), moment.state.is_cuda
        system = rules.system
        drawn = system.num_initial_uniforms + system.num_scene_uniforms + rules.num_params
        self._apart = not on_gpu and self._slots * drawn >= APART
        inputs = (*moment, action, *vars(params).values())
        self._at_once = -(-self._slots // STARTED)
        self._plain = partial(flat, move if self._apart else advance, rules, type(params))
        self._build = compiler.cuda_graph if on_gpu else partial(compiler.host_code, exact=True)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._step = self._build(self._plain, inputs)
            if self._apart and rules.mode is not AutoresetMode.DISABLED:
                example = (torch.zeros(self._at_once, dtype=torch.int64),)
                begin = partial(start, rules)
                self._start = compiler.host_code(
                    lambda x: tuple(begin(x)), example, whole=True, exact=True
                )
        self._params, self._steps = params, {_shapes(params): self._step}

    @torch.no_grad()
    def __call__(self, moment: Moment, action: Tensor, params: Any) -> Advanced:
        """One step."""
        inputs = (*moment, action, *vars(params).values())
        assert inputs[0].t().is_contiguous()  # machine code does not look
        if params is not self._params:  # whose shapes stay what they are
            self._step, self._params = self._step_of(inputs, _shapes(params)), params
        new = filled(self._step(inputs))
        return self._begin(new, new.started) if self._apart and new.started is not None else new

    def _step_of(self, inputs: tuple[Tensor, ...], shapes: tuple[torch.Size, ...]) -> compiler.Step:
        """What computes a step with parameters of these shapes, compiled when first needed."""
        if shapes not in self._steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self._steps[shapes] = self._build(self._plain, inputs)
                except compiler.CompilationError:
                    self._steps[shapes] = lambda inputs: self._plain(*inputs)
        return self._steps[shapes]

    def _begin(self, new: Advanced, started: Tensor) -> Advanced:
        """A step with the episodes that begin with it, written to tensors that nobody has yet."""
        started = started.bool()  # among bytes numpy finds them sooner
        found = np.flatnonzero(started.numpy())
        count = len(found)
        if not count:
            return new._replace(started=None)
        lots = -(-count // self._at_once)
        rows = torch.from_numpy(np.resize(found, lots * self._at_once))  # the same ones again
        ended = new.state.index_select(1, rows[:count])
        fresh = self._fresh(new.positions.index_select(0, rows))
        new.state.index_copy_(1, rows, fresh.state)
        new.observation.index_copy_(1, rows, fresh.observation)
        new.elapsed.index_fill_(0, rows, 0)
        new.positions.index_copy_(0, rows, fresh.positions)
        scene = new.scene
        if self.rules.system.scene_variables:
            scene = scene.index_copy(0, rows, fresh.scene)  # that of the step before is not new
        return new._replace(scene=scene, ended=ended, started=started, drawn=fresh.drawn[:count])

    def _fresh(self, positions: Tensor) -> Fresh:
        """New episodes of full lots, as many at once as was compiled."""
        parts = [self._start((part,)) for part in positions.split(self._at_once)]
        if len(parts) == 1:
            return Fresh(*parts[0])
        return Fresh(*map(torch.cat, zip(*parts, strict=True), SLOTS_DIM))


def _shapes(params: Any) -> tuple[torch.Size, ...]:
    return tuple(value.shape for value in vars(params).values())


__all__ = ["Fused"]
