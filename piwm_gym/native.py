"""Straight-line code on single numbers as machine code.

The same lines as :func:`piwm_gym.scalar.scalar_code` runs, in C++: a step of a single slot is
then a call that takes microseconds. Sine and cosine are the C++ library's and may differ from
torch's in the last bit.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_void_p
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym import compiler
from piwm_gym.scalar import Scalars, Straight, write_down

# Python's integers do not overflow: twice 64 bits hold the largest product of two numbers.
_PRELUDE = """
#include <array>
#include <cmath>
#include <cstdint>
__extension__ typedef __int128 integer;
static inline integer modulo(integer a, integer b) { integer r = a % b; return r < 0 ? r + b : r; }
static inline float absolute(float x) { return std::fabs(x); }
static inline integer absolute(integer x) { return x < 0 ? -x : x; }
template <class T> static inline integer whole(T x) { return (int64_t)x; }
"""
_FUNCTIONS = {
    "sin": "std::sin",
    "cos": "std::cos",
    "sqrt": "std::sqrt",
    "root": "std::sqrt",
    "floor": "std::floor",
    "abs": "absolute",
    "whole": "whole",
    "float32": "(float)",
}
_OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.RShift: ">>",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.USub: "-",
    ast.Invert: "~",
    ast.Not: "!",
    ast.Or: "||",
}
_CASTS = {torch.bool: "(bool)", torch.int32: "(integer)", torch.int64: "(integer)"}
_ARRAYS = {"floats": np.float32, "integers": np.int64}
_HALF = 2**32


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        high, low = divmod(value, _HALF)  # no literal of C++ has more than 64 bits
        return f"((integer){high} * {_HALF} + {low})"
    number = float(value)
    if not np.isfinite(number):
        return "NAN" if np.isnan(number) else f"{'-' if number < 0 else ''}INFINITY"
    return f"{number.hex()}f"


def _in_cpp(node: Any) -> str:
    """An expression that :mod:`piwm_gym.scalar` wrote."""
    match node:
        case ast.Name():
            return node.id
        case ast.Constant():
            return _literal(node.value)
        case ast.UnaryOp():
            return f"({_OPERATORS[type(node.op)]}{_in_cpp(node.operand)})"
        case ast.BinOp(op=ast.Mod()):
            return f"modulo({_in_cpp(node.left)}, {_in_cpp(node.right)})"
        case ast.BinOp():
            return f"({_in_cpp(node.left)} {_OPERATORS[type(node.op)]} {_in_cpp(node.right)})"
        case ast.Compare(ops=[op], comparators=[other]):
            return f"({_in_cpp(node.left)} {_OPERATORS[type(op)]} {_in_cpp(other)})"
        case ast.BoolOp():
            return f"({f' {_OPERATORS[type(node.op)]} '.join(map(_in_cpp, node.values))})"
        case ast.IfExp():
            return f"({_in_cpp(node.test)} ? {_in_cpp(node.body)} : {_in_cpp(node.orelse)})"
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return f"{_FUNCTIONS[name]}({_in_cpp(argument)})"
        case ast.Tuple():
            return f"std::array{{{', '.join(map(_in_cpp, node.elts))}}}"
        case ast.Subscript():
            return f"{_in_cpp(node.value)}[{_in_cpp(node.slice)}]"
    raise AssertionError(ast.dump(node))  # there is a case for all that is written down


def _cpp(expression: str) -> str:
    return _in_cpp(ast.parse(expression, mode="eval").body)


def source_code(code: Straight) -> str:
    """C++ function ``step`` between arrays of float32 and int64 numbers."""
    known = [
        f"static const float {name} = {_literal(value)};"
        for name, value in code.constants.items()
        if isinstance(value, np.float32)
    ]
    read = [
        f"const auto {name} = {_CASTS.get(dtype, '')}{place};"
        for name, dtype, place in _places(code.arguments, [x.dtype for x in code.inputs])
    ]
    body = [f"const auto {name} = {_cpp(text)};" for name, text in code.lines]
    written = [
        f"new_{place} = {_cpp(name)};" for name, _, place in _places(code.results, code.dtypes)
    ]
    head = (
        'extern "C" void step(const float* floats, const int64_t* integers, '
        "float* new_floats, int64_t* new_integers) {"
    )
    return "\n".join((_PRELUDE, *known, head, *read, *body, *written, "}\n"))


def _places(
    parts: Sequence[Sequence[str]], dtypes: Sequence[torch.dtype]
) -> Iterator[tuple[str, torch.dtype, str]]:
    """Name, type and place of every number of all parts."""
    taken = dict.fromkeys(_ARRAYS, 0)
    for names, dtype in zip(parts, dtypes, strict=True):
        array = _array(dtype)
        for name in names:
            yield name, dtype, f"{array}[{taken[array]}]"
            taken[array] += 1


def _array(dtype: torch.dtype) -> str:
    return "floats" if dtype.is_floating_point else "integers"


class Native:
    """What :func:`piwm_gym.scalar.scalar_code` gives, as machine code; its numbers are Python's.

    Args:
        function: See :func:`piwm_gym.scalar.write_down`, and what it raises.
        inputs: An example of its arguments.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        code = write_down(function, inputs)
        self._step = compiler.shared_library(source_code(code)).step
        self._step.argtypes, self._step.restype = [c_void_p] * 4, None
        self._given = [_Space(code.arguments, [x.dtype for x in inputs], a) for a in _ARRAYS]
        self._new = [_Space(code.results, code.dtypes, array) for array in _ARRAYS]
        self._addresses = [space.numbers.ctypes.data for space in (*self._given, *self._new)]
        self._order = np.argsort([*self._new[0].parts, *self._new[1].parts]).tolist()

    def __call__(self, *arguments: Scalars) -> tuple[Scalars, ...]:
        """As many lists of numbers as there are results."""
        for space in self._given:
            space.numbers[:] = [x for i in space.parts for x in arguments[i]]
        self._step(*self._addresses)
        new = [part for space in self._new for part in space.split()]
        return tuple([new[i] for i in self._order])


class _Space:
    """An array for the numbers of those parts that are of its kind.

    Args:
        names: Names of the numbers of all parts.
        dtypes: Types of all parts.
        array: "floats" or "integers".
    """

    def __init__(
        self, names: Sequence[Sequence[str]], dtypes: Sequence[torch.dtype], array: str
    ) -> None:
        self.parts = [i for i, dtype in enumerate(dtypes) if _array(dtype) == array]
        lengths = [len(names[i]) for i in self.parts]
        last = list(accumulate(lengths))
        self.ends = [(end - length, end) for length, end in zip(lengths, last, strict=True)]
        self.numbers = np.empty(sum(lengths), _ARRAYS[array])

    def split(self) -> list[Scalars]:
        """The numbers of each part."""
        values = self.numbers.tolist()
        return [values[start:end] for start, end in self.ends]


__all__ = ["Native"]
