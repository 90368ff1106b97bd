"""Physical parameters of n simulated slots: learned, replaced, per slot, per episode, randomised.

Where several sources name the same parameter, the first of these decides:

    options={"params": ...} at reset     this episode of the slot
    randomize={name: (low, high)}        drawn at the start of each of the slot's episodes
    params=..., set_params(...)          all episodes
    the world model's learned value
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.slots import Slots
from piwm_gym.systems import Params, unknown
from piwm_gym.systems.params import all_valid


@dataclass(frozen=True)
class ParamsState:
    """Copy of all values: see :meth:`SlotParams.snapshot`."""

    base: dict[str, Tensor]
    current: dict[str, Tensor]
    overridden: frozenset[str]


class SlotParams:
    """Parameters of n slots.

    Values are float32 tensors, 0-d where all slots agree: the same arithmetic whatever n is, so
    that a slot of a batch moves exactly like a batch of one.

    Args:
        learned: The world model's parameters.
        num_slots: n.
        device: Where the simulation runs.
        fixed: Parameters to replace: numbers, or one number per slot.
        randomize: Parameters to draw uniformly from (low, high) at each start of an episode.

    Raises:
        ValueError: Unknown name, wrong shape, a value that is not finite and positive (or zero,
            for a parameter that may vanish), a parameter both fixed and randomised.
    """

    def __init__(
        self,
        learned: Params,
        num_slots: int,
        device: torch.device,
        fixed: Mapping[str, Any] | None = None,
        randomize: Mapping[str, Any] | None = None,
    ) -> None:
        self._type = type(learned)
        self._num_slots = num_slots
        self._device = device
        self._base = {
            name: torch.as_tensor(getattr(learned, name), dtype=torch.float32, device=device)
            for name in learned.names()
        }
        self._base |= self.read(fixed)
        self._ranges = self._read_ranges(randomize, fixed or {})
        self._overridden: frozenset[str] = frozenset()
        self._build(dict(self._base))

    @property
    def num_uniforms(self) -> int:
        """Random numbers that the start of an episode needs."""
        return len(self._ranges)

    @property
    def varies(self) -> bool:
        """Whether an episode may start with other parameters than the one before it."""
        return bool(self._ranges or self._overridden)

    @property
    def current(self) -> Any:
        """Parameters in force, the system's dataclass of tensors; not to be modified."""
        return self._current

    def per_slot(self) -> dict[str, Tensor]:
        """Copies of the values in force, (n,) each."""
        return {
            name: getattr(self._current, name).expand(self._num_slots).clone()
            for name in self._base
        }

    def read(self, values: Mapping[str, Any] | None) -> dict[str, Tensor]:
        """Check parameters from outside, see :func:`read_params`."""
        return read_params(self._type, values, self._num_slots, self._device)

    def _read_ranges(
        self, randomize: Mapping[str, Any] | None, fixed: Mapping[str, Any]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Check ``randomize``: (low, high) per name."""
        if not isinstance(randomize, Mapping | None):
            raise ValueError(f"randomize is {randomize!r}; expected name to (low, high)")
        ranges = {}
        for name, value in (randomize or {}).items():
            value = value.tolist() if isinstance(value, np.ndarray | Tensor) else value
            if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
                raise ValueError(f"randomize[{name!r}] is {value!r}; expected (low, high)")
            low, high = (self.read({name: end})[name] for end in value)
            if bool((low > high).any()):
                raise ValueError(f"randomize[{name!r}] is {value}; expected low <= high")
            if name in fixed:
                raise ValueError(f"parameter {name!r} is in both params and randomize; keep one")
            ranges[name] = (low, high)
        return ranges

    @torch.inference_mode(False)  # what was made in that mode could not be changed out of it
    def _build(self, values: dict[str, Tensor]) -> None:
        """Make the dataclass; what may differ between slots gets its own (n,) tensor."""
        for name in {*self._ranges, *self._overridden}:
            values[name] = values[name].expand(self._num_slots).clone()
        self._current = self._type(**values)

    def begin(self, slots: Slots, uniforms: Tensor, episode: dict[str, Tensor]) -> None:
        """Parameters of the episodes that start in some slots.

        Args:
            slots: Which slots.
            uniforms: (m, num_uniforms) random numbers of those slots.
            episode: Values for these episodes only, checked by :meth:`read`.
        """
        if slots.all or not set(episode) <= self._overridden:
            values = self._base if slots.all else vars(self._current)
            before = frozenset() if slots.all else self._overridden
            self._overridden = before | (set(episode) - set(self._ranges))
            self._build(dict(values))
        current = vars(self._current)
        for name in self._overridden:
            current[name].copy_(slots.put(current[name], slots.take(self._base[name])))
        for column, (name, (low, high)) in enumerate(self._ranges.items()):
            low, high = slots.take(low), slots.take(high)
            drawn = low + uniforms[:, column] * (high - low)
            current[name].copy_(slots.put(current[name], drawn))
        for name, value in episode.items():
            current[name].copy_(slots.put(current[name], slots.take(value)))

    def set(self, values: Mapping[str, Any]) -> None:
        """Replace parameters now and for later episodes.

        Raises:
            ValueError: As :meth:`read`, or a parameter is randomised.
        """
        checked = self.read(values)
        for name in checked:
            if name in self._ranges:
                raise ValueError(
                    f"parameter {name!r} is drawn anew at each start of an episode "
                    "(randomize=...); it cannot be set as well"
                )
        self._base |= checked
        self._overridden -= set(checked)
        self._build({**vars(self._current), **checked})

    def snapshot(self) -> ParamsState:
        """Copy of all values."""
        current = {name: value.clone() for name, value in vars(self._current).items()}
        return ParamsState(dict(self._base), current, self._overridden)

    def restore(self, state: ParamsState) -> None:
        """Back to a snapshot."""
        self._base = {name: value.to(self._device) for name, value in state.base.items()}
        self._overridden = state.overridden
        self._build({name: value.to(self._device) for name, value in state.current.items()})


def read_params(
    kind: type[Params],
    values: Mapping[str, Any] | None,
    num_slots: int,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Check parameters that a user passes.

    Args:
        kind: The system's dataclass.
        values: Numbers, or (num_slots,) numbers, by name.
        num_slots: Slots of the simulation.
        device: Where the simulation runs.

    Returns:
        float32 copies.

    Raises:
        ValueError: Not a mapping of known names to finite, positive numbers (or zero, for a
            parameter that may vanish), one or one per slot.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ValueError(
            f"params is a {type(values).__name__}; expected a mapping of names to numbers, the "
            f"names from {', '.join(map(repr, kind.names()))}"
        )
    checked = {}
    for name, value in values.items():
        if name not in kind.names():
            raise ValueError(unknown("parameter", name, kind.names()))
        checked[name] = _read_value(kind, name, value, num_slots).to(device)
    return checked


def _read_value(kind: type[Params], name: str, value: Any, num_slots: int) -> Tensor:
    count = "one number" if num_slots == 1 else f"one number or {num_slots} of them"
    vanish = kind.__dataclass_fields__[name].metadata["may_vanish"]
    sign = "non-negative" if vanish else "positive"
    expected = f"expected {count}, {sign} and finite, in {kind.unit(name)}"
    try:
        given = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"parameter {name!r} is {value!r}; {expected}") from None
    if given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"parameter {name!r} is {value!r}; {expected}")
    tensor = given.float().clone()
    if tensor.shape not in ((), (num_slots,)):
        raise ValueError(f"parameter {name!r} has shape {tuple(tensor.shape)}; {expected}")
    if not all_valid(tensor, vanish):
        raise ValueError(f"parameter {name!r} is {value}; {expected}")
    return tensor


__all__ = ["ParamsState", "SlotParams", "read_params"]
