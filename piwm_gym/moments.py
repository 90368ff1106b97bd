"""What a simulation gives away: the outcome of a step, episodes that ended, snapshots."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from piwm_gym.slot_params import ParamsState
from piwm_gym.slots import Slots


@dataclass(frozen=True)
class Outcome:
    """What a step gives besides the new state, (n,) each.

    Attributes:
        reward: The real environment's reward, float32.
        terminated: The system says that the episode is over.
        truncated: The step limit is reached.
    """

    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class Ended(NamedTuple):
    """The moment before new episodes began in some slots.

    Attributes:
        slots: Which.
        state: Gives (n, D) SI units, of all slots.
        scene: (n, S) static visible variables.
    """

    slots: Slots
    state: Callable[[], Tensor]
    scene: Tensor


@dataclass(frozen=True)
class Snapshot:
    """A moment of a simulation: small, independent, and enough to continue bit for bit.

    Attributes:
        state: (n, D) SI units.
        elapsed: (n,) steps since the episode's start.
        done: (n,) whether the episode is over; stays so until the next one begins.
        scene: (n, S) static visible variables, (n, 0) where the system has none.
        streams: (n,) positions of the random streams.
        params: Physical parameters.
    """

    state: Tensor
    elapsed: Tensor
    done: Tensor
    scene: Tensor
    streams: Tensor
    params: ParamsState


__all__ = ["Ended", "Outcome", "Snapshot"]
