"""A recording of what a function of tensors does to each of their numbers."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from piwm_gym.tape_rules import RULES, Names, UnsupportedError

_CONSTANTS = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_empty", "empty_like"}


def _torch_function(function: Callable[..., Tensor]) -> Callable[[Any], Any]:
    """Torch's function of one number: other libraries' differ in the last bit.

    What a step ends with is often what the next one begins with, so a few answers are kept.
    """
    with torch.inference_mode(False):  # or they could not be written to out of it
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


class Tape(TorchDispatchMode):
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
        if name not in RULES:
            raise UnsupportedError(f"aten::{name}")
        rule = partial(RULES[name], self, result)
        try:
            signature(rule).bind(*args, **kwargs)
        except TypeError as error:
            raise UnsupportedError(f"aten::{name} in this form: {error}") from None
        return rule(*args, **kwargs)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


__all__ = ["Tape", "UnsupportedError"]
