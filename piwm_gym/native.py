"""Straight-line code on single numbers as machine code.

The same lines as :func:`piwm_gym.scalar.scalar_code` runs, in C++, with the same bits: a step of a
single slot is then a call that takes microseconds. For what torch rounds in its own way, such as
sines, it asks torch, and remembers the latest answers: a step begins where the one before it ended.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from ctypes import CFUNCTYPE, addressof, c_void_p
from itertools import chain, pairwise
from struct import Struct, calcsize
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.library import library
from piwm_gym.scalar import Scalars, Straight

# Python's integers do not overflow: twice 64 bits hold the largest product of two numbers.
_PRELUDE = """
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
__extension__ typedef __int128 integer;
static inline integer modulo(integer a, integer b) { integer r = a % b; return r < 0 ? r + b : r; }
static inline float absolute(float x) { return std::fabs(x); }
static inline integer absolute(integer x) { return x < 0 ? -x : x; }
template <class T> static inline integer whole(T x) { return (int64_t)x; }
static float asked(float* memory, void (*ask)(), float x) {
  for (int i = 2; i < 10; i += 2)
    if (!std::memcmp(memory + i, &x, sizeof x)) return memory[i + 1];
  memory[0] = x;
  ask();
  int latest = (int)memory[10] % 8 + 2;
  memory[10] = latest;
  std::memcpy(memory + latest, memory, 2 * sizeof x);
  return memory[1];
}
"""
ASKED = {"sin": torch.sin, "cos": torch.cos, "sqrt": torch.sqrt}
MEMORY = 11
"""Numbers remembered of each: question and answer, four older pairs, and where the latest is."""
_FUNCTIONS = {
    **{name: f"asked(memory[{i}], ask[{i}], {{}})" for i, name in enumerate(ASKED)},
    "root": "std::sqrt({})",
    "floor": "std::floor({})",
    "abs": "absolute({})",
    "whole": "whole({})",
    "float32": "(float)({})",
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
_TYPES = {
    torch.float32: ("f", "float", ""),
    torch.int32: ("i", "int32_t", "(integer)"),
    torch.int64: ("q", "int64_t", "(integer)"),
    torch.bool: ("?", "bool", ""),
}
"""Letter of the module struct, type in C++, and what it is computed with."""
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
            return _FUNCTIONS[name].format(_in_cpp(argument))
        case ast.Tuple():
            return f"std::array{{{', '.join(map(_in_cpp, node.elts))}}}"
        case ast.Subscript():
            return f"{_in_cpp(node.value)}[{_in_cpp(node.slice)}]"
    raise AssertionError(ast.dump(node))  # there is a case for all that is written down


def _cpp(expression: str) -> str:
    return _in_cpp(ast.parse(expression, mode="eval").body)


def source_code(code: Straight) -> str:
    """C++ function ``step`` between two blocks of memory, numbers as :class:`Block` puts them."""
    known = [
        f"static const float {name} = {_literal(value)};"
        for name, value in code.constants.items()
        if isinstance(value, np.float32)
    ]
    given = Block(code.arguments, [x.dtype for x in code.inputs])
    read = [
        f"const auto {name} = {cast}*(const {kind}*)(given + {offset});"
        for name, kind, cast, offset in given.places()
    ]
    body = [f"const auto {name} = {_cpp(text)};" for name, text in code.lines]
    written = [
        f"*({kind}*)(result + {offset}) = {_cpp(name)};"
        for name, kind, _, offset in Block(code.results, code.dtypes).places()
    ]
    head = (
        'extern "C" void step(const char* given, char* result, '
        f"float (*memory)[{MEMORY}], void (**ask)()) {{"
    )
    return "\n".join((_PRELUDE, *known, head, *read, *body, *written, "}\n"))


class Block:
    """Memory for lists of numbers, one after the other.

    Args:
        names: Of the numbers of each list.
        dtypes: Of each list.
    """

    def __init__(self, names: Sequence[Sequence[str]], dtypes: Sequence[torch.dtype]) -> None:
        self._names, self._dtypes = names, dtypes
        lists = zip(names, dtypes, strict=True)
        self._struct = Struct("".join(_TYPES[dtype][0] * len(part) for part, dtype in lists))
        ends = np.cumsum([0, *map(len, names)]).tolist()
        self._slices = [slice(*pair) for pair in pairwise(ends)]
        self._memory = bytearray(self._struct.size)
        self.address = np.frombuffer(self._memory, np.uint8).ctypes.data

    def places(self) -> Iterator[tuple[str, str, str, int]]:
        """Name of every number, its type in C++, what it is computed with, and its offset."""
        letters = ""
        for names, dtype in zip(self._names, self._dtypes, strict=True):
            letter, kind, cast = _TYPES[dtype]
            for name in names:
                letters += letter
                yield name, kind, cast, calcsize(letters) - calcsize(letter)

    def write(self, lists: Sequence[Scalars]) -> None:
        """Put numbers there."""
        self._struct.pack_into(self._memory, 0, *chain.from_iterable(lists))

    def read(self) -> tuple[Scalars, ...]:
        """The numbers that are there."""
        numbers = self._struct.unpack_from(self._memory)
        return tuple([numbers[part] for part in self._slices])


class Native:
    """What :func:`piwm_gym.scalar.scalar_code` gives, as machine code; its numbers are Python's.

    It is compiled in the background.

    Args:
        code: What a function does to every single number.
    """

    def __init__(self, code: Straight) -> None:
        self._library = library(source_code(code))
        self._given = Block(code.arguments, [x.dtype for x in code.inputs])
        self._result = Block(code.results, code.dtypes)
        memory = np.full((len(ASKED), MEMORY), np.nan, np.float32)
        memory[:, -1] = 0
        asked = zip(ASKED.values(), torch.from_numpy(memory), strict=True)
        self._ask = (_CALLBACK * len(ASKED))(*(_CALLBACK(_answer(*pair)) for pair in asked))
        self._memory = memory
        blocks = self._given.address, self._result.address, memory.ctypes.data
        self._addresses = (*blocks, addressof(self._ask))

    @property
    def ready(self) -> bool:
        """Whether :meth:`load` would not wait."""
        return self._library.ready

    def load(self) -> bool:
        """Wait for it to be compiled; False if that cannot be done here."""
        loaded = self._library.load()
        if loaded is not None:
            self._step = loaded.step
            self._step.argtypes, self._step.restype = [c_void_p] * 4, None
        return loaded is not None

    def __call__(self, *arguments: Scalars) -> tuple[Scalars, ...]:
        """As many lists of numbers as there are results; once it is loaded."""
        self._given.write(arguments)
        self._step(*self._addresses)
        return self._result.read()


_CALLBACK = CFUNCTYPE(None)


def _answer(function: Callable[..., Tensor], memory: Tensor) -> Callable[[], None]:
    """Write torch's answer beside the question."""
    question, answer = memory[:2].split(1)

    def write() -> None:
        function(question, out=answer)

    return write


__all__ = ["Native"]
