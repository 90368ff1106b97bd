"""What torch's operations do to the single numbers of their tensors, as expressions of Python."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

Names = np.ndarray
"""Array of the shape of a tensor, of the expressions that stand for its numbers."""

_ELEMENTWISE = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
    "abs": "abs({})",
    "sin": "sin({})",
    "cos": "cos({})",
    "sqrt": "sqrt({})",
    "rsqrt": "one / root({})",
    "floor": "floor({})",
    "gt": "{} > {}",
    "ge": "{} >= {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "bitwise_and": "{} & {}",
    "bitwise_or": "{} | {}",
    "bitwise_xor": "{} ^ {}",
    "__rshift__": "{} >> {}",
    "minimum": "{0} if {0} < {1} or {0} != {0} else {1}",
    "maximum": "{0} if {0} > {1} or {0} != {0} else {1}",
}
_WHOLE = {torch.int32: 32, torch.int64: 64}


class UnsupportedError(Exception):
    """A function does something that has no counterpart on single numbers here."""


class Tape(Protocol):
    """Where lines are written down."""

    def line(self, expression: str) -> str:
        """Name of an expression; the same one if it was there before."""

    def read(self, value: Any, dtype: torch.dtype | None = None) -> Names:
        """What stands for a tensor or a number, converted to a type."""

    def each(self, form: str, *operands: Names) -> Names:
        """One line for each element."""


Rule = Callable[..., Any]
"""Of a tape, the result of an operation and its arguments: what stands for the result."""

RULES: dict[str, Rule] = {}
"""By the operation's name in torch's ``aten``."""


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule("alias", "clone", "detach", "lift_fresh", "contiguous")
def _same_numbers(tape: Tape, result: Tensor, x: Tensor, **_: Any) -> Names:
    return tape.read(x)


def _elementwise(name: str, tape: Tape, result: Tensor, *args: Any, alpha: Any = 1) -> Names:
    dtype = torch.result_type(*args) if len(args) == 2 else result.dtype
    operands = [tape.read(arg, dtype) for arg in args]
    if alpha != 1:
        operands[1] = tape.each("{} * {}", operands[1], tape.read(alpha, dtype))
    names = tape.each(_ELEMENTWISE[name], *operands)
    if name in ("add", "sub", "mul", "neg") and result.dtype in _WHOLE:
        half = 2 ** (_WHOLE[result.dtype] - 1)  # Python's integers do not overflow
        names = tape.each(f"({{}} + {half}) % {2 * half} - {half}", names)
    return names


@_rule("rsub")
def _rsub(tape: Tape, result: Tensor, a: Any, b: Any, alpha: Any = 1) -> Names:
    return _elementwise("sub", tape, result, b, a, alpha=alpha)


@_rule("pow")
def _pow(tape: Tape, result: Tensor, x: Tensor, exponent: Any) -> Names:
    if exponent != 2:
        raise UnsupportedError(f"aten::pow with exponent {exponent}")
    return tape.each("{0} * {0}", tape.read(x))


@_rule("bitwise_not")
def _bitwise_not(tape: Tape, result: Tensor, x: Tensor) -> Names:
    return tape.each("not {}" if x.dtype == torch.bool else "~{}", tape.read(x))


@_rule("where")
def _where(tape: Tape, result: Tensor, which: Tensor, a: Tensor, b: Tensor) -> Names:
    taken = (tape.read(x, result.dtype) for x in (a, b))
    return tape.each("{1} if {0} else {2}", tape.read(which), *taken)


@_rule("clamp")
def _clamp(tape: Tape, result: Tensor, x: Tensor, low: Any = None, high: Any = None) -> Names:
    names = tape.read(x)
    if low is not None:
        names = tape.each("{1} if {0} < {1} else {0}", names, tape.read(low, x.dtype))
    if high is not None:
        names = tape.each("{1} if {0} > {1} else {0}", names, tape.read(high, x.dtype))
    return names


@_rule("clamp_min")
def _clamp_min(tape: Tape, result: Tensor, x: Tensor, low: Any) -> Names:
    return _clamp(tape, result, x, low)


@_rule("clamp_max")
def _clamp_max(tape: Tape, result: Tensor, x: Tensor, high: Any) -> Names:
    return _clamp(tape, result, x, None, high)


@_rule("_to_copy")
def _to_copy(tape: Tape, result: Tensor, x: Tensor, **kwargs: Any) -> Names:
    return tape.read(x, result.dtype)


@_rule("amin")
def _amin(tape: Tape, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    return _folded(tape, _ELEMENTWISE["minimum"], x, dim, keepdim)


@_rule("amax")
def _amax(tape: Tape, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    return _folded(tape, _ELEMENTWISE["maximum"], x, dim, keepdim)


@_rule("sum")
def _sum(tape: Tape, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    if x.dtype != torch.float32 or any(x.shape[d] > 2 for d in dim):
        raise UnsupportedError("aten::sum of more than two numbers: in what order?")
    return _folded(tape, "{} + {}", x, dim, keepdim)


def _folded(tape: Tape, form: str, x: Tensor, dim: Sequence[int], keepdim: bool) -> Names:
    (axis,) = dim
    first, *rest = np.moveaxis(tape.read(x), axis, 0)
    first = np.asarray(first, dtype=object)
    for other in rest:
        first = tape.each(form, first, np.asarray(other, dtype=object))
    return np.expand_dims(first, axis) if keepdim else first


@_rule("gather")
def _gather(tape: Tape, result: Tensor, x: Tensor, dim: int, index: Tensor) -> Names:
    rows, names = np.moveaxis(tape.read(x), dim, -1), np.moveaxis(tape.read(index), dim, -1)
    taken = np.empty(names.shape, dtype=object)
    for place in np.ndindex(names.shape):
        row = tape.line(f"({', '.join(rows[place[:-1]])},)")
        taken[place] = tape.line(f"{row}[{names[place]}]")
    return np.moveaxis(taken, -1, dim)


@_rule("stack")
def _stack(tape: Tape, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Names:
    return np.stack([tape.read(x, result.dtype) for x in tensors], axis=dim)


@_rule("cat")
def _cat(tape: Tape, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Names:
    return np.concatenate([tape.read(x, result.dtype) for x in tensors], axis=dim)


@_rule("select")
def _select(tape: Tape, result: Tensor, x: Tensor, dim: int, index: int) -> Names:
    return np.asarray(np.moveaxis(tape.read(x), dim, 0)[index], dtype=object)


@_rule("slice")
def _slice(
    tape: Tape,
    result: Tensor,
    x: Tensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Names:
    return np.moveaxis(np.moveaxis(tape.read(x), dim, 0)[start:end:step], 0, dim)


@_rule("flip")
def _flip(tape: Tape, result: Tensor, x: Tensor, dims: Sequence[int]) -> Names:
    return np.flip(tape.read(x), tuple(dims))


@_rule("split", "split_with_sizes")
def _split(tape: Tape, result: Any, x: Tensor, sizes: Any, dim: int = 0) -> list[Names]:
    ends = np.cumsum([part.shape[dim] for part in result])[:-1]
    return np.split(tape.read(x), ends, axis=dim)


@_rule("unbind")
def _unbind(tape: Tape, result: Any, x: Tensor, dim: int = 0) -> list[Names]:
    return [np.asarray(part, dtype=object) for part in np.moveaxis(tape.read(x), dim, 0)]


@_rule("unsqueeze")
def _unsqueeze(tape: Tape, result: Tensor, x: Tensor, dim: int) -> Names:
    return np.expand_dims(tape.read(x), dim)


@_rule("expand")
def _expand(tape: Tape, result: Tensor, x: Tensor, *_: Any, **__: Any) -> Names:
    return np.broadcast_to(tape.read(x), result.shape)


@_rule("view", "_unsafe_view", "squeeze", "reshape")
def _view(tape: Tape, result: Tensor, x: Tensor, *_: Any, **__: Any) -> Names:
    return tape.read(x).reshape(result.shape)


@_rule("permute")
def _permute(tape: Tape, result: Tensor, x: Tensor, dims: Sequence[int]) -> Names:
    return tape.read(x).transpose(dims)


@_rule("transpose")
def _transpose(tape: Tape, result: Tensor, x: Tensor, a: int, b: int) -> Names:
    return tape.read(x).swapaxes(a, b)


@_rule("t")
def _t(tape: Tape, result: Tensor, x: Tensor) -> Names:
    return tape.read(x).T


RULES.update({name: partial(_elementwise, name) for name in _ELEMENTWISE})

__all__ = ["RULES", "Names", "UnsupportedError"]
