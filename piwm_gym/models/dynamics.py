"""The learnable part of the dynamics: physical parameters behind links that keep them valid."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from piwm_gym.systems import System, unknown
from piwm_gym.systems.params import Parametrisation

_TO_RAW = {"log": torch.log, "logit": torch.logit}
_FROM_RAW = {"log": torch.exp, "logit": torch.sigmoid}


class Dynamics(nn.Module):
    """Learnable parameters of a system's transition.

    Args:
        system: The system.
        parametrisation: Which quantities are learned, a name in ``system.parametrisations``.

    Raises:
        ValueError: The parametrisation is unknown.

    Warns:
        UserWarning: The parametrisation is not identifiable.
    """

    def __init__(self, system: System, parametrisation: str = "identifiable") -> None:
        super().__init__()
        choices = system.parametrisations
        if parametrisation not in choices:
            raise ValueError(unknown("parametrisation", parametrisation, tuple(choices)))
        self._system, self._choice = system, parametrisation  # by name: it holds functions
        if self.parametrisation.caveat:
            warnings.warn(self.parametrisation.caveat, stacklevel=2)
        self.raw = nn.Parameter(torch.zeros(len(self.parametrisation.learnables)))

    @property
    def parametrisation(self) -> Parametrisation:
        """What is learned."""
        return self._system.parametrisations[self._choice]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the learned quantities."""
        return tuple(item.name for item in self.parametrisation.learnables)

    @property
    def values(self) -> tuple[Tensor, ...]:
        """Learned quantities in their units; gradients reach ``raw``."""
        return tuple(
            _FROM_RAW[item.link](raw)
            for item, raw in zip(self.parametrisation.learnables, self.raw, strict=True)
        )

    @property
    def params(self) -> Any:
        """Physical parameters as the system's dataclass; gradients reach ``raw``."""
        return self.parametrisation.to_params(self.values)

    @torch.no_grad()
    def set_values(self, values: tuple[float | Tensor, ...]) -> None:
        """Overwrite the learned quantities, given in their units."""
        for i, (item, value) in enumerate(
            zip(self.parametrisation.learnables, values, strict=True)
        ):
            self.raw[i] = _TO_RAW[item.link](torch.as_tensor(value, dtype=self.raw.dtype))
