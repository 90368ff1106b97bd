"""A step of a whole batch as machine code: what ``compile=True`` compiles.

Torch's compiler turns :func:`piwm_gym.advance.advance` into a few loops over the slots on a CPU,
and into a few kernels in a CUDA graph on a GPU. Its results are those of the uncompiled step but
for the last bits of sine and cosine; random numbers, and therefore starts, are the same bits.
"""

import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
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

LANES = 16
"""float32 numbers in the widest vector registers."""
APART = 4096
"""Slots from which on a CPU it pays to draw random numbers for those alone that start."""
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
        params: Physical parameters; later ones must have the same shapes to be quick.
    """

    def __init__(self, rules: Rules, moment: Moment, action: Tensor, params: Any) -> None:
        self.rules = rules
        self._shapes = _shapes(params)
        self._slots, on_gpu = len(moment.state), moment.state.is_cuda
        self._apart = not on_gpu and self._slots >= APART
        self._extra = 0 if on_gpu else -self._slots % LANES
        inputs = self._padded((*moment, action, *vars(params).values()))
        self._at_once = -(-self._slots // STARTED // LANES) * LANES
        self._plain = partial(flat, move if self._apart else advance, rules, type(params))
        build = compiler.cuda_graph if on_gpu else compiler.host_code
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._step = build(self._plain, inputs)
            if self._apart and rules.mode is not AutoresetMode.DISABLED:
                example = (torch.zeros(self._at_once, dtype=torch.int64),)
                begin = partial(start, rules)
                self._start = compiler.host_code(lambda x: tuple(begin(x)), example, whole=True)

    @torch.no_grad()
    def __call__(self, moment: Moment, action: Tensor, params: Any) -> Advanced:
        """One step."""
        inputs = self._padded((*moment, action, *vars(params).values()))
        same = _shapes(params) == self._shapes  # if not: a user's step is no time to compile
        new = filled(self._step(inputs) if same else self._plain(*inputs))
        if self._extra:
            new = self._cut(new)
        return self._begin(new, new.started) if self._apart and new.started is not None else new

    def _begin(self, new: Advanced, started: Tensor) -> Advanced:
        """A step with the episodes that begin with it, written to tensors that nobody has yet."""
        found = np.flatnonzero(started.bool().numpy())
        if not len(found):
            return new._replace(started=None)
        rows = torch.from_numpy(found)
        fresh, ended = self._fresh(new.positions[rows]), new.state.index_select(1, rows)
        new.state.index_copy_(1, rows, fresh.state)
        new.observation.index_copy_(1, rows, fresh.observation)
        new.elapsed.index_fill_(0, rows, 0)
        new.positions.index_copy_(0, rows, fresh.positions)
        scene = new.scene.index_put((rows,), fresh.scene)  # that of the step before is not new
        return new._replace(scene=scene, ended=ended, drawn=fresh.drawn)

    def _fresh(self, positions: Tensor) -> Fresh:
        """Any number of new episodes, so many at once as was compiled."""
        count = len(positions)
        padded = F.pad(positions, (0, -count % self._at_once))
        parts = [self._start((part,)) for part in padded.split(self._at_once)]
        if len(parts) > 1:
            parts = [tuple(map(torch.cat, zip(*parts, strict=True), SLOTS_DIM))]
        return Fresh(*(x.narrow(d, 0, count) for x, d in zip(parts[0], SLOTS_DIM, strict=True)))

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
        wide = "state", "observation", "ended"
        cut = {name: getattr(advanced, name)[:, :n] for name in wide}
        rest = {k: v[:n] for k, v in advanced._asdict().items() if k not in cut and v is not None}
        return advanced._replace(**cut, **rest)


def _shapes(params: Any) -> list[torch.Size]:
    return [value.shape for value in vars(params).values()]


__all__ = ["Fused"]
