"""Physical parameters of a system: values with units, and which combinations are learned."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from piwm_gym.choices import unknown

Scalar = float | Tensor
"""A physical parameter: one number, or a tensor with one number per batch element."""


@dataclass(frozen=True)
class Learnable:
    """One learnable quantity: an identifiable combination of physical parameters.

    Attributes:
        name: Name used in tables and checkpoints.
        unit: SI unit.
        link: ``"log"`` for a positive quantity, ``"logit"`` for a fraction in (0, 1).
        shown_by: What of the data shows it: ``"motion"`` free motion, ``"contact"`` motion on the
            ground, ``"spread"`` the scatter about the mean motion.
    """

    name: str
    unit: str
    link: str = "log"
    shown_by: str = "motion"


@dataclass(frozen=True)
class Parametrisation:
    """A choice of what to learn, and how it maps to and from the physical parameters.

    Attributes:
        learnables: The learned quantities, in order.
        from_params: Params to the tuple of learned quantities.
        to_params: The tuple of learned quantities to params; what is not learned is nominal.
        caveat: Why results of this choice need care; empty when there is nothing to say.
    """

    learnables: tuple[Learnable, ...]
    from_params: Callable[[Any], tuple[Scalar, ...]]
    to_params: Callable[[Sequence[Scalar]], Any]
    caveat: str = ""


def parameter(default: float, unit: str, description: str, *, may_vanish: bool = False) -> Any:
    """Declare a physical parameter as a dataclass field with its unit and meaning.

    Args:
        default: The real environment's value.
        unit: SI unit.
        description: What it is.
        may_vanish: Whether zero is allowed: it switches an effect off.
    """
    metadata = {"unit": unit, "description": description, "may_vanish": may_vanish}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Params:
    """Physical parameters; subclasses declare the fields with :func:`parameter`.

    Every field is positive (or zero, where it may vanish) and finite, a float or a tensor with
    one value per batch element.
    """

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            number = torch.as_tensor(value)
            vanish = f.metadata["may_vanish"]
            if number.is_complex() or not all_valid(number, vanish):
                raise ValueError(
                    f"parameter {f.name!r} [{f.metadata['unit']}] is {value}; expected "
                    f"{'non-negative' if vanish else 'positive'}, finite numbers"
                )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the parameters, in declaration order."""
        return tuple(f.name for f in fields(cls))

    @classmethod
    def unit(cls, name: str) -> str:
        """Unit of one parameter."""
        return {f.name: f.metadata["unit"] for f in fields(cls)}[name]

    def replace(self, **changes: Scalar) -> "Params":
        """Copy with some parameters replaced.

        Raises:
            ValueError: An unknown name, or a value that is not positive and finite.
        """
        for name in changes:
            if name not in self.names():
                raise ValueError(unknown("parameter", name, self.names()))
        return replace(self, **changes)


def all_valid(numbers: Tensor, may_vanish: bool) -> bool:
    """Whether all are positive, or zero where that is allowed, and finite; no NaN is."""
    return bool(((numbers >= 0 if may_vanish else numbers > 0) & (numbers < math.inf)).all())


__all__ = ["Learnable", "Parametrisation", "Params", "Scalar", "all_valid", "parameter"]
