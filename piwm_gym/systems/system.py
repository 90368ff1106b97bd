"""What every physical system states about itself: variables, units, parameters, equations.

A system is a set of pure functions on batched tensors in SI units. The method names are those of
``gymnasium.experimental.functional.FuncEnv``; the noise that a function needs is an argument,
so that the caller decides where randomness comes from.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium as gym
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.systems.params import Parametrisation, Params, Scalar
from piwm_gym.systems.picture import Camera, FrameSpec, SideView


@dataclass(frozen=True)
class Variable:
    """One dimension of the physical state.

    Attributes:
        name: Name in Gymnasium's spelling.
        unit: SI unit, as printed in tables.
        low: Lower end of the documented range; the range scales labels and losses.
        high: Upper end of the documented range.
        visible: Whether one frame determines it (positions and angles, not velocities).
        derived: Whether only the transition sets it (contact flags, timers): nothing estimates
            it from frames, and no loss compares it with a label.
        periodic: Whether it is an angle that comes round: the range is one period, and its two
            ends are the same value. Networks see cosine and sine of it.
    """

    name: str
    unit: str
    low: float
    high: float
    visible: bool
    derived: bool = False
    periodic: bool = False

    @property
    def range(self) -> float:
        """Width of the documented range, in the variable's unit."""
        return self.high - self.low

    @property
    def num_features(self) -> int:
        """Numbers that networks see of it: two of a periodic one, otherwise one."""
        return 2 if self.periodic else 1


@lru_cache(maxsize=64)
def constant(numbers: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tensor of fixed numbers, made once: copying them to a GPU at every step would wait for it."""
    with torch.inference_mode(False):  # or a first use without gradients would forbid later ones
        return torch.tensor(numbers, dtype=dtype, device=device)


def _periods(variables: Sequence[Variable], half_ranges: bool, like: Tensor) -> Tensor:
    """Period of each variable, 0 of those that are not periodic."""
    periods = tuple((2.0 if half_ranges else v.range) if v.periodic else 0.0 for v in variables)
    return constant(periods, like.dtype, like.device)


def _inverse(period: Tensor) -> Tensor:
    """1 / period, 0 where there is none."""
    return torch.where(period > 0, 1 / period, 0.0)


def columns(parts: Sequence[Tensor]) -> Tensor:
    """(*B, K) of K tensors (*B), each of them contiguous in memory.

    ``unbind(-1)`` gives them back as they were, and arithmetic on them runs in vector registers;
    numbers that alternate in memory would be read one by one.
    """
    return torch.stack(tuple(parts)).movedim(0, -1)


class System(ABC):
    """A physical system: equations, units, reward, termination. Stateless.

    Class attributes:
        name: Short name, as on the command line.
        real_id: Gymnasium id of the real environment.
        variables: The state's dimensions, in order.
        dt: Time step in s.
        frame: Geometry of the camera frame.
        parametrisations: Choices of what to learn; the first is the default.
        num_initial_uniforms: How many uniform numbers ``initial`` needs per element.
        num_step_uniforms: How many uniform numbers the process noise of one step needs per
            element; when positive, ``transition`` takes them as the keyword ``noise``, and None
            there is the mean motion.
        scene_variables: Static visible variables of an episode, such as the terrain's heights;
            where there are any, ``initial``, ``transition`` and ``terminal`` take the scene as
            the keyword ``scene``.
        unmodelled: Standard deviation per step, in half ranges, of what the equations leave out of
            the velocities besides process noise, for state estimation.
        num_scene_uniforms: How many uniform numbers :meth:`scene` needs per element.
        keyboard: Arrow keys to actions, for playing by hand.
        camera: How the camera is mounted, if it moves with the system.
        side_view: Where things are in the picture, if the camera stands still.
        info_names: What :meth:`info` tells.
        num_anywhere_uniforms: How many uniform numbers :meth:`anywhere` needs per element; 0 where
            there are no other starts than the real environment's.
    """

    name: ClassVar[str]
    real_id: ClassVar[str]
    variables: ClassVar[tuple[Variable, ...]]
    dt: ClassVar[float]
    frame: ClassVar[FrameSpec]
    parametrisations: ClassVar[dict[str, Parametrisation]]
    num_initial_uniforms: ClassVar[int]
    num_step_uniforms: ClassVar[int] = 0
    unmodelled: ClassVar[float] = 1e-3
    scene_variables: ClassVar[tuple[Variable, ...]] = ()
    num_scene_uniforms: ClassVar[int] = 0
    keyboard: ClassVar[dict[str, Any]] = {}
    camera: ClassVar[Camera | None] = None
    side_view: ClassVar[SideView | None] = None
    info_names: ClassVar[tuple[str, ...]] = ()
    num_anywhere_uniforms: ClassVar[int] = 0

    @property
    @abstractmethod
    def reference(self) -> Params:
        """The real environment's parameters: for reports and tests, never for training."""

    @property
    @abstractmethod
    def action_space(self) -> gym.Space:
        """Action space of one real environment."""

    @property
    @abstractmethod
    def observation_space(self) -> gym.spaces.Box:
        """Space of the real environment's state observation, in its own scaling."""

    @property
    def asset(self) -> Float[Tensor, "M A"] | None:
        """What a place looks like that equations need, such as a track's path; None for most.

        It belongs to the data that a model is trained on, and is kept in its checkpoint.
        """
        return None

    def with_asset(self, asset: Float[Tensor, "M A"]) -> "System":
        """The same system in another place.

        Raises:
            ValueError: The system has no asset, or not such a one.
        """
        raise ValueError(f"{self.name} has no asset")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's dimensions."""
        return tuple(v.name for v in self.variables)

    @property
    def visible(self) -> list[int]:
        """Indices of the dimensions that one frame determines: the configuration."""
        return [i for i, v in enumerate(self.variables) if v.visible]

    @property
    def estimated(self) -> list[int]:
        """Indices of the dimensions that are estimated from frames and compared with labels."""
        return [i for i, v in enumerate(self.variables) if not v.derived]

    @property
    def visible_variables(self) -> tuple[Variable, ...]:
        """The variables of :attr:`visible`."""
        return tuple(v for v in self.variables if v.visible)

    @property
    def configuration(self) -> tuple[Variable, ...]:
        """What one frame determines: the visible dimensions of the state, then the scene."""
        return (*self.visible_variables, *self.scene_variables)

    def difference(
        self,
        a: Float[Tensor, "*A D"],
        b: Float[Tensor, "*B D"],
        variables: Sequence[Variable] | None = None,
        *,
        half_ranges: bool = False,
    ) -> Float[Tensor, "*C D"]:
        """``a - b``; of a periodic variable the shorter way round, half a period at most.

        The only place where states and configurations are subtracted for losses and errors.

        Args:
            a: States, or numbers of ``variables``.
            b: The same.
            variables: What the last dimension holds; default: the state's variables.
            half_ranges: Whether a and b are in half ranges instead of the variables' units.
        """
        variables = self.variables if variables is None else variables
        apart = a - b
        if not any(v.periodic for v in variables):
            return apart
        period = _periods(variables, half_ranges, apart)
        return apart - period * torch.round(apart * _inverse(period))

    def wrap(self, state: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Periodic dimensions of a state brought into their range, ``low`` included."""
        if not any(v.periodic for v in self.variables):
            return state
        period = _periods(self.variables, False, state)
        low = constant(tuple(float(v.low) for v in self.variables), state.dtype, state.device)
        return state - period * torch.floor((state - low) * _inverse(period))

    @property
    def nominal_scene(self) -> Float[Tensor, " S"]:
        """Scene of forecasts that name none: the middle of each scene variable's range."""
        return torch.tensor([(v.high + v.low) / 2 for v in self.scene_variables])

    @property
    def ranges(self) -> Float[Tensor, " D"]:
        """Documented range of each dimension, in its unit."""
        return torch.tensor([v.range for v in self.variables])

    @property
    def centres(self) -> Float[Tensor, " D"]:
        """Middle of the documented range of each dimension, in its unit."""
        return torch.tensor([(v.high + v.low) / 2 for v in self.variables])

    @abstractmethod
    def initial(self, uniforms: Float[Tensor, "B U"]) -> Float[Tensor, "B D"]:
        """Initial states from numbers uniform on [0, 1)."""

    def anywhere(self, uniforms: Float[Tensor, "B U"]) -> Float[Tensor, "B D"]:
        """States in which an agent may find itself, from numbers uniform on [0, 1).

        Agents that learn from such starts need not master the beginning of a course to see its
        end.
        """
        raise NotImplementedError(f"{self.name} starts as the real environment does")

    def scene(self, uniforms: Float[Tensor, "B U"]) -> Float[Tensor, "B S"]:
        """Static visible variables of an episode, from numbers uniform on [0, 1)."""
        raise NotImplementedError(f"{self.name} has no scene")

    @abstractmethod
    def transition(
        self, state: Float[Tensor, "*B D"], action: Shaped[Tensor, "*A"], params: Any
    ) -> Float[Tensor, "*B D"]:
        """State after one time step."""

    @abstractmethod
    def reward(
        self,
        state: Float[Tensor, "*B D"],
        action: Shaped[Tensor, "*A"],
        next_state: Float[Tensor, "*B D"],
    ) -> Float[Tensor, "*B"]:
        """Reward of the real environment for this transition."""

    @abstractmethod
    def terminal(self, state: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B"]:
        """Whether the real environment ends the episode in this state."""

    def in_free_motion(
        self, state: Float[Tensor, "*B D"], scene: Float[Tensor, "*N S"] | None = None
    ) -> Bool[Tensor, "*B"]:
        """Whether nothing but the equations without a scene acts here, with a margin.

        Only the visible dimensions are looked at, so that an encoded frame can be judged.
        """
        return torch.ones(state.shape[:-1], dtype=torch.bool, device=state.device)

    def moved_freely(
        self, before: Sequence[Any], after: Sequence[Any], scene: Sequence[Any]
    ) -> bool:
        """Whether a transition without a scene is for sure the one with it, to the last bit.

        Single slots skip what the scene would take most of their time for. Asked on plain
        numbers, at each of their steps; no for systems that have nothing to say.

        Args:
            before: (D,) state.
            after: (D,) state that the transition without a scene gave.
            scene: (S,) static visible variables.
        """
        return False

    def in_view(self, state: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B"]:
        """Whether the camera sees enough of the system for a frame to tell its configuration."""
        return torch.ones(state.shape[:-1], dtype=torch.bool, device=state.device)

    def poses(self, configuration: Float[Tensor, "B P"]) -> Float[Tensor, "B 3 K"]:
        """Where the K rigid bodies of a ``side_view`` are: x and y (m), and turned how far (rad).

        Counterclockwise. All are within the view's reach of the first one.
        """
        raise NotImplementedError(f"{self.name} is not seen from the side")

    def skyline(self, scene: Float[Tensor, "B S"], x: Float[Tensor, "B M"]) -> Float[Tensor, "B M"]:
        """Height (m) of the ground of a ``side_view`` at places x, for systems with a scene."""
        raise NotImplementedError(f"{self.name} has no scene")

    @abstractmethod
    def observation(self, state: Float[Tensor, "*B D"]) -> Float[Tensor, "*B O"]:
        """SI state to the real environment's observation."""

    def info(self, state: Float[Tensor, "*B D"]) -> dict[str, Shaped[Tensor, "*B"]]:
        """What the real environment's infos tell besides the state, by ``info_names``."""
        return {}

    @abstractmethod
    def from_configurations(
        self,
        start: Float[Tensor, "*B C"],
        end: Float[Tensor, "*B C"],
        elapsed: Scalar,
    ) -> Float[Tensor, "*B D"]:
        """State at ``start`` whose velocity is the mean one on the way to ``end``.

        Args:
            start: Visible dimensions at the first moment.
            end: Visible dimensions at the second moment.
            elapsed: Seconds between the two.
        """

    def settled(
        self, state: Float[Tensor, "*B D"], action: Shaped[Tensor, "*A"], params: Any
    ) -> Float[Tensor, "*B D"]:
        """A start whose derived dimensions are unknown, with what the first action says of them.

        What lags behind an action, such as a wheel's angle, is taken to have caught up with it.
        """
        return state

    def placed(
        self, state: Float[Tensor, "*B D"], scene: Float[Tensor, "*B S"] | None = None
    ) -> Float[Tensor, "*B D"]:
        """A start that somebody chose, with what its place says of the derived dimensions.

        What a transition has returned stays as it is.
        """
        return state

    def end_state(
        self,
        before: Float[Tensor, "*B C"],
        now: Float[Tensor, "*B C"],
        action: Shaped[Tensor, "*A"],
        params: Any,
        scene: Float[Tensor, "*B S"] | None = None,
    ) -> Float[Tensor, "*B D"]:
        """State at the second of two neighbouring configurations, velocities by difference.

        This one is right for explicit Euler, which moves positions by the velocity *before* the
        step. Systems whose positions move by the new velocity know it from the difference.

        Args:
            before: Visible dimensions one time step ago.
            now: Visible dimensions.
            action: What was done in between.
            params: Parameters of the transition.
            scene: Static visible variables, for systems that have them.
        """
        given = {} if scene is None else {"scene": scene}
        start = self.from_configurations(before, now, self.dt)
        return self.transition(start, action, params, **given)

    def rollout(
        self,
        state: Float[Tensor, "*L D"],
        actions: Shaped[Tensor, "B T *A"],
        params: Any,
        noise: Float[Tensor, "B T U"] | None = None,
        scene: Float[Tensor, "*N S"] | None = None,
    ) -> Float[Tensor, "*L T D"]:
        """States after each of T actions, the start not included; differentiable.

        Args:
            state: (B, D), or with further leading dimensions that share the actions.
            actions: T actions for each batch element.
            params: Numbers, or tensors that broadcast against the batch.
            noise: Uniform numbers of the process noise; without them the mean motion.
            scene: Static visible variables, for systems that have them.
        """
        given = {} if scene is None else {"scene": scene}
        if not actions.shape[1]:
            return state.new_zeros(*state.shape[:-1], 0, state.shape[-1])
        states = []
        for t, action in enumerate(actions.unbind(1)):
            drawn = {} if noise is None else {"noise": noise[:, t]}
            state = self.transition(state, action, params, **drawn, **given)
            states.append(state.movedim(-1, 0))
        return torch.stack(states).movedim((0, 1), (-2, -1))
