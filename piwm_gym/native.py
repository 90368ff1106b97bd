"""Straight-line code on single numbers as machine code.

The same lines as :func:`piwm_gym.scalar.scalar_code` runs, in C++, with the same bits: a step of a
single slot is then a call that takes microseconds. What torch rounds in its own way, such as sines,
it leaves to torch: where an answer is not known, the rest of the call is computed in vain, the
question is answered, and the call made anew. The latest answers are remembered, as a step begins
where the one before it ended.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_void_p
from itertools import chain, pairwise
from struct import Struct, calcsize
from typing import Any

import numpy as np
import torch

from piwm_gym.scalar import Scalars, Straight
from piwm_gym.shared_object import shared_object

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
template <class T> static inline integer whole(T x) {
  return std::fabs((float)x) < 9e18f ? (integer)(int64_t)x : (integer)INT64_MIN;
}
template <class T, size_t N> static inline T picked(const std::array<T, N>& parts, integer i) {
  return parts[i >= 0 && i < (integer)N ? (size_t)i : 0];  // else it is computed in vain
}
struct Memory { float known[KEPT][2], questions[ASKING], answers[ASKING]; int32_t latest, open; };
static float asked(Memory& memory, float x) {
  if (x != x) return x;
  for (const auto& pair : memory.known)
    if (!std::memcmp(pair, &x, sizeof x)) return pair[1];
  if (memory.open < ASKING) memory.questions[memory.open++] = x;
  return NAN;
}
static void learn(Memory& memory, int answered) {
  for (int i = 0; answered && i < memory.open; i++) {
    float* pair = memory.known[memory.latest++ % KEPT];
    pair[0] = memory.questions[i];
    pair[1] = memory.answers[i];
  }
  memory.latest %= KEPT;
  memory.open = 0;
}
"""
ASKED = {"sin": torch.sin, "cos": torch.cos, "sqrt": torch.sqrt}
_FUNCTIONS = {
    **{name: f"asked(memory[{i}], {{}})" for i, name in enumerate(ASKED)},
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
            return f"picked({_in_cpp(node.value)}, {_in_cpp(node.slice)})"
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
    head = 'extern "C" int step(const char* given, char* result, Memory* memory, int answered) {'
    each = range(len(ASKED))
    learned = [f"learn(memory[{i}], answered);" for i in each]
    tail = f"return {' | '.join(f'(memory[{i}].open > 0) << {i}' for i in each)}; }}\n"
    kept, asking = _sizes(code)
    prelude = f"enum {{ KEPT = {kept}, ASKING = {asking} }};{_PRELUDE}"
    return "\n".join((prelude, *known, head, *learned, *read, *body, *written, tail))


def _sizes(code: Straight) -> tuple[int, int]:
    """How many answers to remember of each function, and how many questions there are at once.

    Every call answers a layer of questions, and may ask some in vain besides: what it has learned
    must last until it is over.
    """
    layers: dict[str, int] = {}
    questions = 1
    for name, text in code.lines:
        before = [layers.get(word, 0) for word in re.findall(r"v\d+", text)]
        question = text.split("(")[0] in ASKED
        layers[name] = max(before, default=0) + question
        questions += question
    return questions * (max(layers.values(), default=0) + 2), questions


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
        self._object = shared_object(source_code(code))
        self._given = Block(code.arguments, [x.dtype for x in code.inputs])
        self._result = Block(code.results, code.dtypes)
        kept, asking = _sizes(code)
        length = 2 * kept + 2 * asking + 2
        memory = np.full((len(ASKED), length), np.nan, np.float32)
        memory[:, -2:].view(np.int32)[:] = 0
        with torch.inference_mode(False):  # or they could not be written to out of it
            numbers = torch.from_numpy(memory)[:, 2 * kept : -2].unflatten(1, (2, asking))
        every = [*zip(ASKED.values(), *numbers.unbind(1), strict=True)]
        self._asked = [
            [one for i, one in enumerate(every) if mask >> i & 1] for mask in range(2 ** len(every))
        ]
        self._memory = memory
        self._addresses = (self._given.address, self._result.address, memory.ctypes.data)

    @property
    def ready(self) -> bool:
        """Whether :meth:`load` would not wait."""
        return self._object.ready

    def load(self) -> bool:
        """Wait for it to be compiled; False if that cannot be done here."""
        step = getattr(self._object.load(), "step", None)
        if step is not None:
            step.argtypes = [*[c_void_p] * 3, c_int]
            self._step = step
        return step is not None

    def __call__(self, *arguments: Scalars) -> tuple[Scalars, ...]:
        """As many lists of numbers as there are results; once it is loaded."""
        self._given.write(arguments)
        asked = self._step(*self._addresses, False)
        while asked:
            for function, questions, answers in self._asked[asked]:
                function(questions, out=answers)
            asked = self._step(*self._addresses, True)  # else, if interrupted, they are forgotten
        return self._result.read()


__all__ = ["Native"]
