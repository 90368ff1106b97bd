"""A simulation of a single slot, which steps on plain numbers where it can."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from piwm_gym.options import ResetOptions
from piwm_gym.random import RandomStreams
from piwm_gym.scalar import Scalars, UnsupportedError
from piwm_gym.simulation import Simulation
from piwm_gym.slots import Slots
from piwm_gym.solo import Numbers, Solo, numbers
from piwm_gym.world_model import WorldModel


class Single(NamedTuple):
    """What a step of a single slot gives.

    Attributes:
        state: (D,) float32, SI units.
        observation: (O,) float32, in the real environment's scaling, clipped to its space.
        reward: The real environment's reward.
        terminated: The system says that the episode is over.
        over: Whether it was over before.
    """

    state: np.ndarray
    observation: np.ndarray
    reward: float
    terminated: bool
    over: bool


def _part(name: str) -> Any:
    """An attribute of a simulation, written when somebody asks if steps are ahead in numbers."""
    kept = f"_{name}"

    def get(self: "SingleSimulation") -> Any:
        self._catch_up()
        return getattr(self, kept)

    def put(self: "SingleSimulation", value: Any) -> None:
        self._catch_up()
        self._numbers = None
        setattr(self, kept, value)

    return property(get, put)


class SingleSimulation(Simulation):
    """One slot: the numbers of a batched simulation of one, sooner.

    Args:
        model: Never modified.
        eventually: Whether to compile the step on numbers in the background after many steps.
        **arguments: Those of :class:`Simulation`.
    """

    state: Tensor = _part("state")
    scene: Tensor = _part("scene")
    elapsed: Tensor = _part("elapsed")
    done: Tensor = _part("done")
    streams: RandomStreams | None = _part("streams")

    def __init__(self, model: WorldModel, eventually: bool = False, **arguments: Any) -> None:
        self._numbers: Numbers | None = None
        self._numbers_of: Any = None
        self._params_numbers: list[Scalars] = []
        self._ahead = False
        self._compiled: bool | None = None if eventually else False
        super().__init__(model, 1, **arguments)

    def _compile(self, mode: AutoresetMode) -> bool:
        self._compiled = True
        return self._solo is not None or super()._compile(mode)

    @cached_property
    def _solo(self) -> Solo | None:
        """The step on numbers; None where it has to be made with tensors."""
        if self.device.type != "cpu":
            return None
        try:
            return Solo(*self._example(AutoresetMode.DISABLED), self._compiled)
        except UnsupportedError:
            return None

    def advance_single(self, action: np.ndarray) -> Single:
        """Advance by one time step; nothing begins anew.

        Args:
            action: (*A).
        """
        if self._solo is None:
            return self._advance_tensors(action)
        before = self._in_numbers()
        new = self._solo(before, numbers(action), self._params_numbers)
        (over,), (terminated,), (reward,) = before.done, new.terminated, new.reward
        done = [over or bool(terminated)]
        self._lead(Numbers(new.state, new.scene, new.elapsed, new.positions, done))
        state, observation = (np.array(x, dtype=np.float32) for x in (new.state, new.observation))
        return Single(state, observation, float(reward), bool(terminated), over)

    def _advance_tensors(self, action: np.ndarray) -> Single:
        over = bool(self.done)
        tensor = torch.as_tensor(action[None]).to(self.device)
        outcome, _ = self.advance(tensor, AutoresetMode.DISABLED)
        return Single(*self._seen(), float(outcome.reward), bool(outcome.terminated), over)

    def begin_single(self, options: ResetOptions) -> Single:
        """Start a new episode, as :meth:`begin`, sooner if nothing is special.

        Args:
            options: Where to start and with what parameters; default: drawn.
        """
        solo = self.__dict__.get("_solo")  # there after the first step: no reset waits for it
        unusual = self.params.varies or options != ResetOptions()
        if solo is None or unusual or not self.started:
            self.begin(Slots.every(1, self.device), options)
            return Single(*self._seen(), 0.0, False, False)
        begun, observed = solo.begin(self._in_numbers())
        self._lead(begun)
        state, observation = (np.array(x, dtype=np.float32) for x in (begun.state, observed))
        return Single(state, observation, 0.0, False, False)

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        """State (D,) and observation (O,), float32 copies."""
        state, observation = self.state, self.observation(self.state)
        return state[0].cpu().numpy().copy(), observation[0].cpu().numpy().copy()

    def _in_numbers(self) -> Numbers:
        """The moment in numbers, and the parameters; read where tensors have changed."""
        params = self.params.current
        if self._numbers is None or self._numbers_of is not params:
            self._numbers, self._numbers_of = Numbers.of(self._moment()), params
            self._params_numbers = [numbers(value.numpy()) for value in vars(params).values()]
        return self._numbers

    def _lead(self, moment: Numbers) -> None:
        """Go on in numbers; the tensors are written when somebody asks for them."""
        self._numbers, self._ahead = moment, True
        self.drawn.forget()

    def _catch_up(self) -> None:
        """Write the tensors, if steps are ahead in numbers."""
        if not self._ahead:
            return
        self._ahead = False
        now = self._numbers
        assert now is not None
        self._state = torch.from_numpy(np.array([now.state], dtype=np.float32))
        self._scene = torch.from_numpy(np.array([now.scene], dtype=np.float32))
        self._elapsed = torch.tensor(now.elapsed, dtype=torch.int32)
        self._done = torch.tensor(now.done)
        self._streams = RandomStreams.at(torch.tensor(now.positions))


__all__ = ["Single", "SingleSimulation"]
