"""A step of a single slot on plain numbers."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from piwm_gym.advance import Moment, Rules, filled, flat, move, start
from piwm_gym.native import Native
from piwm_gym.scalar import Scalars, scalar_code, write_down
from piwm_gym.shared_object import cache_folder
from piwm_gym.systems import System

MANY = 4000
"""Steps after which code is compiled: a fraction of a second, in which most tests are over."""
FEW = 256
"""Steps between two looks at whether that is done."""


class Numbers(NamedTuple):
    """A :class:`Moment` of one slot: lists of float32 scalars, integers or booleans."""

    state: Scalars
    scene: Scalars
    elapsed: Scalars
    positions: Scalars
    done: Scalars

    @classmethod
    def of(cls, moment: Moment) -> "Numbers":
        """Of tensors."""
        return cls(*(numbers(part.numpy()) for part in moment))


def numbers(array: np.ndarray) -> Scalars:
    """Numbers of an array, as :func:`piwm_gym.scalar.scalar_code` reads them."""
    flat = array.ravel()
    return list(flat) if flat.dtype.kind == "f" else flat.tolist()


class Solo:
    """:func:`piwm_gym.advance.move` of a single slot on plain numbers, see :mod:`piwm_gym.scalar`.

    Args:
        rules: What stays the same from step to step; nothing begins anew.
        moment: Of one slot.
        action: (1, *A).
        params: Physical parameters.
        compiled: Whether to compile the code, now; None: in the background, once so many steps
            have been made that more are likely. The numbers are the same bits.

    Raises:
        UnsupportedError: The system does what has no counterpart on numbers.

    Warns:
        UserWarning: It should be compiled now, and cannot be.
    """

    def __init__(
        self, rules: Rules, moment: Moment, action: Tensor, params: Any, compiled: bool | None
    ) -> None:
        inputs = (*moment, action, *vars(params).values())
        self._written = (
            write_down(partial(flat, move, rules, type(params)), inputs),
            write_down(partial(start, rules), (moment.positions,)),
        )
        self._natives: tuple[Native, ...] = ()
        self._countdown = MANY if compiled is None else 0
        self._native = bool(compiled) and self._load()
        if compiled and not self._native:
            warnings.warn(
                f"compile=True, but the C++ compiler fails, or what it makes cannot be kept in "
                f"{cache_folder()}; steps run uncompiled, with the same results",
                stacklevel=2,
            )
        if not self._native:
            self._code, self._begin = map(scalar_code, self._written)
        self._moved_freely = rules.system.moved_freely
        skips = type(rules.system).moved_freely is not System.moved_freely
        self._may_be_free = skips and not self._native  # machine code gains nothing by it
        if self._may_be_free:  # other systems' transitions may not do without a scene
            free = partial(move, free=True)
            self._free = scalar_code(write_down(partial(flat, free, rules, type(params)), inputs))
        self._free_before = False

    def _compile(self) -> None:
        """Have a compiler begin, unless it has begun."""
        self._natives = self._natives or tuple(map(Native, self._written))

    def _load(self) -> bool:
        """Go on in machine code, when that is there, if it can be had."""
        self._compile()
        if not all([native.load() for native in self._natives]):
            return False
        self._code, self._begin = self._natives
        return True

    def __call__(self, moment: Numbers, action: Scalars, params: Sequence[Scalars]) -> Any:
        """One step: an ``Advanced`` with a list of numbers instead of each tensor."""
        if self._native:
            return filled(self._code(*moment, action, *params))
        if self._countdown:
            self._compile_when_due()
        with np.errstate(all="ignore"):  # like torch, which knows no warnings of this kind
            return self._interpreted(moment, action, params)

    def _compile_when_due(self) -> None:
        """After many steps have it compiled, then ask now and then whether that is done."""
        self._countdown -= 1
        if self._countdown:
            return
        self._compile()
        if all(native.ready for native in self._natives):
            self._native = self._load()
        else:
            self._countdown = FEW

    def _interpreted(self, moment: Numbers, action: Scalars, params: Sequence[Scalars]) -> Any:
        """As Python; what may move freely, and did, is first taken to do so again."""
        if self._free_before:
            new = filled(self._free(*moment, action, *params))
            if self._is_free(moment, new):
                return new
        new = filled(self._code(*moment, action, *params))
        if self._may_be_free:
            self._is_free(moment, new)
        return new

    def _is_free(self, moment: Numbers, new: Any) -> bool:
        self._free_before = self._moved_freely(moment.state, new.state, moment.scene)
        return self._free_before

    def begin(self, moment: Numbers) -> tuple[Numbers, Scalars]:
        """A new episode of the same parameters, and its first observation."""
        state, scene, positions, observation, _ = self._begin(moment.positions)
        return Numbers(state, scene, [0], positions, [False]), observation


__all__ = ["Numbers", "Solo", "numbers"]
