"""A function of small tensors as straight-line Python on single numbers.

For a single slot nearly all of a step's time goes into calling torch, an operation after the
other, not into arithmetic. :func:`write_down` watches the function run once and writes down
what happened to every single number: the equations stay where they are, and the code that comes
out of :func:`scalar_code` does the same operations on numpy's float32 scalars, in the same order
and therefore with the same bits. Sine, cosine and square root are torch's own.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from piwm_gym.tape import Tape, UnsupportedError

Scalars = Sequence[Any]


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
    tape = Tape()
    arguments = [tape.given(x, f"a{i}_") for i, x in enumerate(inputs)]
    with torch.no_grad(), tape:
        results = function(*inputs)
    told = [tape.read(result).flatten().tolist() for result in results]
    dtypes = [result.dtype for result in results]
    return Straight(inputs, arguments, _needed(tape.lines, told), told, dtypes, tape.constants)


def scalar_code(code: Straight) -> Callable[..., tuple[Scalars, ...]]:
    """A function that was written down, as Python on lists of numbers.

    Returns:
        Function of as many sequences of numbers, each in the order of the flattened tensor:
        numpy's float32, Python's int and bool; it gives such sequences back, one for each result.
    """
    arguments = [f"a{i}" for i in range(len(code.inputs))]
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
