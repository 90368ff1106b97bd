"""Reading the actions that users pass: integers, floats, lists, arrays, tensors of any device."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

CHECK_EVERY = 128
"""Steps between two looks at the flag of invalid actions on a GPU."""


def check_actions(
    space: gym.Space, actions: Any, lead: tuple[int, ...], axes: tuple[str, ...] = ("environment",)
) -> np.ndarray:
    """Actions as an array that the system's equations accept.

    Args:
        space: Action space of one slot. Actions outside a Box are clipped.
        actions: Anything that numpy reads; integral floats count as integers.
        lead: Shape of the batch in front of the shape of one action.
        axes: What the dimensions of ``lead`` count, for messages.

    Returns:
        int64 for a discrete space, float32 for a Box, of shape ``lead + space.shape``.

    Raises:
        ValueError: Wrong shape, not a number, or outside a discrete space; the first wrong
            index is named.
    """
    shape = lead + tuple(space.shape or ())
    try:
        array = np.asarray(actions.detach().cpu() if isinstance(actions, Tensor) else actions)
    except (TypeError, ValueError):  # ragged, or of something that is no number
        array = np.array(None)
    if array.dtype.kind not in "iubf":
        raise ValueError(f"action is {actions!r}; {_expected(space, lead)}")
    numbers = array.astype(np.float64) if array.dtype.kind in "fu" else array
    if numbers.shape != shape:
        if numbers.size != np.prod(shape, dtype=int) or lead != numbers.shape[: len(lead)]:
            raise ValueError(
                f"action has shape {numbers.shape}; {_expected(space, lead)}, shape {shape}"
            )
        numbers = numbers.reshape(shape)
    if isinstance(space, gym.spaces.Discrete):
        return _check_discrete(space, numbers, lead, axes)
    assert isinstance(space, gym.spaces.Box)
    if np.isnan(numbers).any():
        where = _where(np.isnan(numbers), lead, axes)
        raise ValueError(f"action {where}is not a number; {_expected(space, lead)}")
    return np.require(np.clip(numbers, space.low, space.high), np.float32, ["C", "W"])


def _check_discrete(
    space: gym.spaces.Discrete, numbers: np.ndarray, lead: tuple[int, ...], axes: tuple[str, ...]
) -> np.ndarray:
    first, last = int(space.start), int(space.start + space.n - 1)
    if numbers.dtype.kind == "f" and not (numbers == np.floor(numbers)).all():
        bad = ~(numbers == np.floor(numbers))
    elif numbers.size == 0 or (numbers.min() >= first and numbers.max() <= last):
        return np.require(numbers, np.int64, ["C", "W"])
    else:
        bad = (numbers < first) | (numbers > last)
    wrong = f"{_where(bad, lead, axes)}is {numbers[bad].flat[0].item()}"
    raise ValueError(f"action {wrong}; {_expected(space, lead)}")


def _expected(space: gym.Space, lead: tuple[int, ...]) -> str:
    return f"expected {_describe(space)}" + (f" for each of {lead}" if lead else "")


def _describe(space: gym.Space) -> str:
    if isinstance(space, gym.spaces.Discrete):
        return f"an integer from {space.start} to {space.start + space.n - 1}"
    return f"{space.shape} numbers in {space}"


def _where(bad: np.ndarray, lead: tuple[int, ...], axes: tuple[str, ...]) -> str:
    """Index of the first wrong action of a batch, for an error message."""
    if not lead:
        return ""
    index = np.argwhere(bad)[0][: len(lead)].tolist()
    return f"of {', '.join(f'{axis} {i}' for axis, i in zip(axes, index, strict=True))} "


class ActionReader:
    """Actions of n slots, as a tensor on the simulation's device.

    Tensors that are on a GPU already are not looked at on the host, for that would make it wait
    for the device at every step. They are clipped, and invalid ones raise a flag that
    :meth:`verify` turns into an error, at a reset or at the latest after ``CHECK_EVERY`` steps.

    Args:
        space: Action space of one slot.
        num_slots: n.
        device: Where the simulation runs.
    """

    def __init__(self, space: gym.Space, num_slots: int, device: torch.device) -> None:
        self.space = space
        self.device = device
        self.lead = (num_slots,)
        self.shape = self.lead + tuple(space.shape or ())
        if isinstance(space, gym.spaces.Box):  # there already when a step needs them
            self._bounds = tuple(torch.as_tensor(b, device=device) for b in (space.low, space.high))
        self._num_actions = 0
        if isinstance(space, gym.spaces.Discrete) and space.start == 0:
            self._num_actions = int(space.n)
        self._invalid: Tensor | None = None
        self._unverified = 0

    def read(self, actions: Any) -> Tensor:
        """(n, *A) actions, int64 or float32.

        Raises:
            ValueError: See :func:`check_actions`.
        """
        if isinstance(actions, Tensor) and not actions.is_cpu:
            return self._read_on_device(actions)
        whole = isinstance(actions, Tensor) and actions.dtype == torch.int64
        array = actions.numpy() if whole else actions
        if not self._is_right(array):
            array = check_actions(self.space, array, self.lead)
        return torch.from_numpy(array).to(self.device)

    def _is_right(self, actions: Any) -> bool:
        """Whether actions are right as they are, by a quick look that most pass."""
        if not self._num_actions or type(actions) is not np.ndarray or actions.shape != self.shape:
            return False
        if actions.dtype != np.int64 or not actions.flags.carray:
            return False
        largest = np.maximum.reduce(actions.view(np.uint64))  # in which negative ones are huge
        return bool(largest < self._num_actions)

    def _read_on_device(self, actions: Tensor) -> Tensor:
        if tuple(actions.shape) != self.shape:
            raise ValueError(
                f"action has shape {tuple(actions.shape)}; expected {_describe(self.space)} for "
                f"each of {self.lead}"
            )
        if isinstance(self.space, gym.spaces.Discrete):
            first = int(self.space.start)
            read = actions.long().clamp(first, first + int(self.space.n) - 1)
            invalid = (read != actions).any()
        else:
            read = actions.float().clamp(*self._bounds)
            invalid = actions.isnan().any()
        self._invalid = invalid if self._invalid is None else self._invalid | invalid
        self._unverified += 1
        if self._unverified >= CHECK_EVERY:
            self.verify()
        return read

    def verify(self) -> None:
        """Look at the flag of invalid actions on a GPU.

        Raises:
            ValueError: There was one since the last look.
        """
        invalid, steps = self._invalid, self._unverified
        self._invalid, self._unverified = None, 0
        if invalid is not None and bool(invalid):
            raise ValueError(
                f"an action of the last {steps} steps was invalid; expected "
                f"{_describe(self.space)} for each of {self.lead}"
            )


__all__ = ["CHECK_EVERY", "ActionReader", "check_actions"]
