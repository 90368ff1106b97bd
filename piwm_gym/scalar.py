"""A function of small tensors as straight-line Python on single numbers.

For a single slot nearly all of a step's time goes into calling torch, an operation after the
other, not into arithmetic. :func:`scalar_code` watches the function run once and writes down
what happened to every single number: the equations stay where they are, and the code that comes
out does the same operations on numpy's float32 scalars, in the same order and therefore with the
same bits. Sine, cosine and square root are
torch's own.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Names = np.ndarray
"""Array of the shape of a tensor, of the expressions that stand for its numbers."""
Scalars = list[Any]

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
_SAME_NUMBERS = {"alias", "clone", "detach", "lift_fresh", "contiguous"}
_CONSTANTS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_empty", "empty_like"}
_WHOLE = {torch.int32: 32, torch.int64: 64}


class UnsupportedError(Exception):
    """A function does something that has no counterpart on single numbers here."""


def _torch_function(function: Callable[..., Tensor]) -> Callable[[Any], Any]:
    """Torch's function of one number: other libraries' differ in the last bit.

    What a step ends with is often what the next one begins with, so a few answers are kept.
    """
    given, result = torch.zeros(1), torch.zeros(1)
    number, answer = given.numpy(), result.numpy()

    def call(x: Any) -> Any:
        number[0] = x
        function(given, out=result)
        return answer[0]

    remember = lru_cache(maxsize=8)(call)
    return lambda x: remember(x) if x else call(x)  # 0.0 and -0.0 are the same key


def _whole(x: Any) -> int:
    """Towards zero; what has no integer becomes what torch makes of it on a CPU."""
    try:
        return int(x)
    except (ValueError, OverflowError):  # no number, or an infinite one
        return -(2**63)


class _Tape(TorchDispatchMode):
    """Writes down what happens to every number of the tensors of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[int, Names] = {}
        self.constants: dict[str, Any] = {
            "sin": _torch_function(torch.sin),
            "cos": _torch_function(torch.cos),
            "sqrt": _torch_function(torch.sqrt),
            "root": np.sqrt,
            "floor": np.floor,
            "float32": np.float32,
            "whole": _whole,
            "one": np.float32(1),
            "zero": np.float32(0),
        }
        self.lines: dict[str, str] = {}
        self._alive: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip torch's compiler it would be imported, which takes seconds

    def bind(self, tensor: Tensor, names: Names) -> None:
        """Remember what stands for a tensor's numbers."""
        self.names[id(tensor)] = names
        self._alive.append(tensor)  # or another one might get its id

    def given(self, tensor: Tensor, letter: str) -> list[str]:
        """Names of an argument's numbers."""
        names = [f"{letter}{i}" for i in range(tensor.numel())]
        self.bind(tensor, np.array(names, dtype=object).reshape(tensor.shape))
        return names

    def line(self, expression: str) -> str:
        """Name of an expression; the same one if it was there before."""
        return self.lines.setdefault(expression, f"v{len(self.lines)}")

    def literal(self, value: Any, dtype: torch.dtype) -> str:
        """Name of a constant."""
        if not dtype.is_floating_point:
            return f"({value!r})"
        name = f"k{len(self.constants)}"
        kept = np.float32(value)
        same = (key for key, other in self.constants.items() if key[0] == "k" and other == kept)
        name = next(same, name) if kept else name  # 0.0 equals -0.0
        self.constants[name] = kept
        return name

    def read(self, value: Any, dtype: torch.dtype | None = None) -> Names:
        """What stands for a tensor or a number, converted to a type."""
        if not isinstance(value, Tensor):
            return np.array(self.literal(value, dtype or torch.float32), dtype=object)
        dtype = dtype or value.dtype
        if id(value) not in self.names:
            literals = [
                self.literal(number, dtype) for number in value.flatten().to(dtype).tolist()
            ]
            return np.array(literals, dtype=object).reshape(value.shape)
        names = self.names[id(value)]
        if dtype == value.dtype:
            return names
        kind = "{}"
        if dtype.is_floating_point:
            kind = "one if {} else zero" if value.dtype == torch.bool else "float32({})"
        elif dtype == torch.bool:
            kind = "{} != 0"
        elif value.dtype.is_floating_point or value.dtype == torch.bool:
            kind = "whole({})"
        return self.each(kind, names) if kind != "{}" else names

    def each(self, form: str, *operands: Names) -> Names:
        """One line for each element."""
        arrays = np.broadcast_arrays(*operands)
        names = [
            self.line(form.format(*row)) for row in zip(*(a.flat for a in arrays), strict=True)
        ]
        return np.array(names, dtype=object).reshape(arrays[0].shape)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
        name = func.overloadpacket.__name__
        if name not in _CONSTANTS and any(id(x) in self.names for x in inputs):
            names = self._names(name, result, *args, **kwargs)
            for tensor, told in zip(_listed(result), _listed(names), strict=True):
                if tuple(tensor.shape) != told.shape or tensor.dtype == torch.float64:
                    raise UnsupportedError(f"aten::{name} of {tensor.dtype}")
                self.bind(tensor, told)
        return result

    def _names(self, name: str, result: Any, *args: Any, **kwargs: Any) -> Any:
        """What stands for the result of an operation."""
        if name in _SAME_NUMBERS:
            return self.read(args[0])
        rule = getattr(self, f"_op_{name.strip('_')}", None)
        if name in _ELEMENTWISE:
            rule = partial(self._elementwise, name)
        if rule is None:
            raise UnsupportedError(f"aten::{name}")
        try:
            signature(rule).bind(result, *args, **kwargs)
        except TypeError as error:
            raise UnsupportedError(f"aten::{name} in this form: {error}") from None
        return rule(result, *args, **kwargs)

    def _elementwise(self, name: str, result: Tensor, *args: Any, alpha: Any = 1) -> Names:
        dtype = torch.result_type(*args) if len(args) == 2 else result.dtype
        operands = [self.read(arg, dtype) for arg in args]
        if alpha != 1:
            operands[1] = self.each("{} * {}", operands[1], self.read(alpha, dtype))
        names = self.each(_ELEMENTWISE[name], *operands)
        if name in ("add", "sub", "mul", "neg") and result.dtype in _WHOLE:
            half = 2 ** (_WHOLE[result.dtype] - 1)  # Python's integers do not overflow
            names = self.each(f"({{}} + {half}) % {2 * half} - {half}", names)
        return names

    def _op_rsub(self, result: Tensor, a: Any, b: Any, alpha: Any = 1) -> Names:
        return self._elementwise("sub", result, b, a, alpha=alpha)

    def _op_pow(self, result: Tensor, x: Tensor, exponent: Any) -> Names:
        if exponent != 2:
            raise UnsupportedError(f"aten::pow with exponent {exponent}")
        return self.each("{0} * {0}", self.read(x))

    def _op_bitwise_not(self, result: Tensor, x: Tensor) -> Names:
        return self.each("not {}" if x.dtype == torch.bool else "~{}", self.read(x))

    def _op_where(self, result: Tensor, which: Tensor, a: Tensor, b: Tensor) -> Names:
        taken = (self.read(x, result.dtype) for x in (a, b))
        return self.each("{1} if {0} else {2}", self.read(which), *taken)

    def _op_clamp(self, result: Tensor, x: Tensor, low: Any = None, high: Any = None) -> Names:
        names = self.read(x)
        if low is not None:
            names = self.each("{1} if {0} < {1} else {0}", names, self.read(low, x.dtype))
        if high is not None:
            names = self.each("{1} if {0} > {1} else {0}", names, self.read(high, x.dtype))
        return names

    def _op_clamp_min(self, result: Tensor, x: Tensor, low: Any) -> Names:
        return self._op_clamp(result, x, low)

    def _op_clamp_max(self, result: Tensor, x: Tensor, high: Any) -> Names:
        return self._op_clamp(result, x, None, high)

    def _op_to_copy(self, result: Tensor, x: Tensor, **kwargs: Any) -> Names:
        return self.read(x, result.dtype)

    def _op_amin(self, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
        return self._folded(_ELEMENTWISE["minimum"], x, dim, keepdim)

    def _op_amax(self, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
        return self._folded(_ELEMENTWISE["maximum"], x, dim, keepdim)

    def _op_sum(self, result: Tensor, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
        if x.dtype != torch.float32 or any(x.shape[d] > 2 for d in dim):
            raise UnsupportedError("aten::sum of more than two numbers: in what order?")
        return self._folded("{} + {}", x, dim, keepdim)

    def _folded(self, form: str, x: Tensor, dim: Sequence[int], keepdim: bool) -> Names:
        (axis,) = dim
        first, *rest = np.moveaxis(self.read(x), axis, 0)
        first = np.asarray(first, dtype=object)
        for other in rest:
            first = self.each(form, first, np.asarray(other, dtype=object))
        return np.expand_dims(first, axis) if keepdim else first

    def _op_gather(self, result: Tensor, x: Tensor, dim: int, index: Tensor) -> Names:
        rows, names = np.moveaxis(self.read(x), dim, -1), np.moveaxis(self.read(index), dim, -1)
        taken = np.empty(names.shape, dtype=object)
        for place in np.ndindex(names.shape):
            row = self.line(f"({', '.join(rows[place[:-1]])},)")
            taken[place] = self.line(f"{row}[{names[place]}]")
        return np.moveaxis(taken, -1, dim)

    def _op_stack(self, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Names:
        return np.stack([self.read(x, result.dtype) for x in tensors], axis=dim)

    def _op_cat(self, result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Names:
        return np.concatenate([self.read(x, result.dtype) for x in tensors], axis=dim)

    def _op_select(self, result: Tensor, x: Tensor, dim: int, index: int) -> Names:
        return np.asarray(np.moveaxis(self.read(x), dim, 0)[index], dtype=object)

    def _op_slice(
        self,
        result: Tensor,
        x: Tensor,
        dim: int = 0,
        start: Any = None,
        end: Any = None,
        step: int = 1,
    ) -> Names:
        return np.moveaxis(np.moveaxis(self.read(x), dim, 0)[start:end:step], 0, dim)

    def _op_flip(self, result: Tensor, x: Tensor, dims: Sequence[int]) -> Names:
        return np.flip(self.read(x), tuple(dims))

    def _op_split(self, result: Any, x: Tensor, sizes: Any, dim: int = 0) -> list[Names]:
        ends = np.cumsum([part.shape[dim] for part in result])[:-1]
        return np.split(self.read(x), ends, axis=dim)

    _op_split_with_sizes = _op_split

    def _op_unbind(self, result: Any, x: Tensor, dim: int = 0) -> list[Names]:
        return [np.asarray(part, dtype=object) for part in np.moveaxis(self.read(x), dim, 0)]

    def _op_unsqueeze(self, result: Tensor, x: Tensor, dim: int) -> Names:
        return np.expand_dims(self.read(x), dim)

    def _op_expand(self, result: Tensor, x: Tensor, *_: Any, **__: Any) -> Names:
        return np.broadcast_to(self.read(x), result.shape)

    def _op_view(self, result: Tensor, x: Tensor, *_: Any, **__: Any) -> Names:
        return self.read(x).reshape(result.shape)

    _op_unsafe_view = _op_squeeze = _op_reshape = _op_view

    def _op_permute(self, result: Tensor, x: Tensor, dims: Sequence[int]) -> Names:
        return self.read(x).transpose(dims)

    def _op_transpose(self, result: Tensor, x: Tensor, a: int, b: int) -> Names:
        return self.read(x).swapaxes(a, b)

    def _op_t(self, result: Tensor, x: Tensor) -> Names:
        return self.read(x).T


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


class Straight(NamedTuple):
    """What a function does to every single number, as lines of Python.

    Attributes:
        inputs: The examples it was written down from.
        arguments: Names of the numbers of each.
        lines: (name, expression), in order.
        results: Names or expressions of the numbers of each result.
        dtypes: Of the results.
        constants: What other names mean.
    """

    inputs: Sequence[Tensor]
    arguments: list[list[str]]
    lines: list[tuple[str, str]]
    results: list[list[str]]
    dtypes: list[torch.dtype]
    constants: dict[str, Any]


def write_down(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Straight:
    """A function as straight-line code on numbers.

    Args:
        function: Pure function of tensors, whose way does not depend on their values.
        inputs: An example of its arguments; float32, int32, int64 or bool.

    Raises:
        UnsupportedError: The function uses an operation that is not known here.
    """
    tape = _Tape()
    arguments = [tape.given(x, f"a{i}_") for i, x in enumerate(inputs)]
    with torch.no_grad(), tape:
        results = function(*inputs)
    told = [tape.read(result).flatten().tolist() for result in results]
    dtypes = [result.dtype for result in results]
    return Straight(inputs, arguments, _needed(tape.lines, told), told, dtypes, tape.constants)


def scalar_code(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> Callable[..., tuple[Scalars, ...]]:
    """The function on lists of numbers.

    Args:
        function: See :func:`write_down`, and what it raises.
        inputs: An example of its arguments.

    Returns:
        Function of as many sequences of numbers, each in the order of the flattened tensor:
        numpy's float32, Python's int and bool; it gives such sequences back, one for each result.
    """
    code = write_down(function, inputs)
    arguments = [f"a{i}" for i in range(len(inputs))]
    heads = [f"({''.join(f'{name}, ' for name in names)})" for names in code.arguments]
    unpacked = [f"{head} = {name}" for head, name in zip(heads, arguments, strict=True)]
    body = [f"{name} = {text}" for name, text in code.lines]
    answer = ", ".join(f"[{', '.join(result)}]" for result in code.results)
    source = "\n    ".join(
        (f"def step({', '.join(arguments)}):", *unpacked, *body, f"return {answer},")
    )
    scope = dict(code.constants)
    exec(compile(source, "<scalar code>", "exec"), scope)
    return scope["step"]


def _needed(lines: dict[str, str], tails: list[list[str]]) -> list[tuple[str, str]]:
    """Names and expressions that results hang on, in order."""
    wanted, kept = {name for tail in tails for name in tail}, []
    for text, name in reversed(lines.items()):
        if name in wanted:
            kept.append((name, text))
            wanted.update(re.findall(r"v\d+", text))
    return kept[::-1]


__all__ = ["Scalars", "Straight", "UnsupportedError", "scalar_code", "write_down"]
