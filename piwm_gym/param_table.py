"""Learned and given parameters beside the real environment's: rows of ``param_table``."""

import math
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from piwm_gym.systems.params import Parametrisation


@dataclass(frozen=True)
class ParamRow:
    """One row of :meth:`WorldModel.param_table`.

    Attributes:
        name: Learned quantity or physical parameter.
        unit: SI unit.
        value: The model's.
        reference: The real environment's.
        relative_error: Of the value, a fraction.
        learned: False for what the model was given: it agrees by construction.
    """

    name: str
    unit: str
    value: float
    reference: float
    relative_error: float
    learned: bool


def param_rows(parametrisation: Parametrisation, params: Any, reference: Any) -> list[ParamRow]:
    """Learned quantities, then physical parameters.

    Args:
        parametrisation: What is learned.
        params: Physical parameters of a model.
        reference: Those of the real environment.
    """
    learned, truth = (parametrisation.from_params(values) for values in (params, reference))
    rows = [
        _row(item.name, item.unit, value, true)
        for item, value, true in zip(parametrisation.learnables, learned, truth, strict=True)
    ]
    names = {item.name for item in parametrisation.learnables}
    rows += [
        _row(f.name, f.metadata["unit"], getattr(params, f.name), getattr(reference, f.name))
        for f in fields(reference)
        if f.name not in names
    ]
    return rows


def _row(name: str, unit: str, value: float | Tensor, reference: float | Tensor) -> ParamRow:
    """Row of the parameter table; what depends on a learned quantity is a tensor."""
    number, true = float(value), float(reference)
    error = abs(number - true) / true if true else math.inf if number else 0.0
    return ParamRow(name, unit, number, true, error, isinstance(value, Tensor))


__all__ = ["ParamRow", "param_rows"]
