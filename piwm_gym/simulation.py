"""n imagined episodes of one world model, stepped together: what both environments share.

States are (n, D) tensors whose columns are contiguous in memory, and no tensor is written to
once it is made: a step leaves the ones before it as they were, to be looked at later or never.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from piwm_gym.advance import Moment, Rules
from piwm_gym.compiler import available
from piwm_gym.fused import Fused
from piwm_gym.fused_frames import Drawing, FusedFrames
from piwm_gym.options import ResetOptions
from piwm_gym.random import RandomStreams
from piwm_gym.scalar import Scalars, UnsupportedError
from piwm_gym.slot_params import ParamsState, SlotParams
from piwm_gym.slots import Slots
from piwm_gym.solo import Numbers, Solo, numbers
from piwm_gym.world_model import WorldModel

DECODE_CHUNK = {"cpu": 64, "cuda": 256}
"""Frames decoded at once: what is computed on the way stays in a processor's cache."""


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
    """A tensor of the simulation: written when somebody asks, if steps are ahead in numbers."""

    def get(self: "Simulation") -> Tensor:
        self._catch_up()
        return self._tensors[name]

    def put(self: "Simulation", value: Tensor) -> None:
        self._catch_up()
        self._numbers = None
        self._tensors[name] = value

    return property(get, put)


class Simulation:
    """State, parameters and random streams of n slots, on the model's device.

    Args:
        model: Shared by all slots; never modified.
        num_slots: n.
        params: Physical parameters to replace, see :class:`SlotParams`.
        randomize: Physical parameters to draw at each start of an episode.
        max_episode_steps: Steps after which an episode is truncated; None for never.
        compiled: Autoreset mode whose step is compiled, now; None to compile nothing. Drawing is
            compiled with it, when there is the first frame to draw. A single slot steps on
            numbers where it can, compiled or not.

    Warns:
        UserWarning: There is nothing to compile with here; steps run as they are.
    """

    state: Tensor = _part("state")
    scene: Tensor = _part("scene")
    elapsed: Tensor = _part("elapsed")
    done: Tensor = _part("done")

    def __init__(
        self,
        model: WorldModel,
        num_slots: int,
        params: Mapping[str, Any] | None = None,
        randomize: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        compiled: AutoresetMode | None = None,
    ) -> None:
        self.model = model
        self.system = model.system
        self.device = model.device
        self.num_slots = num_slots
        self.max_episode_steps = max_episode_steps
        self.params = SlotParams(model.params, num_slots, self.device, params, randomize)
        self._tensors: dict[str, Tensor] = {}
        self._streams: RandomStreams | None = None
        self._numbers: Numbers | None = None
        self._numbers_of: Any = None
        self._params_numbers: list[Scalars] = []
        self._ahead = False
        self._frames: Tensor | None = None
        self._fused: Fused | None = None
        self._draws_compiled = False
        self._drawings: dict[tuple[str, int], FusedFrames] = {}
        self._observed: tuple[Tensor, Tensor] | None = None
        box = self.system.observation_space
        self._low = torch.from_numpy(box.low).to(self.device)
        self._high = torch.from_numpy(box.high).to(self.device)
        if compiled is not None:
            self._compile(compiled)

    @property
    def started(self) -> bool:
        """Whether there has been a reset."""
        return bool(self._tensors)

    @property
    def streams(self) -> RandomStreams | None:
        """Random numbers; None before there is a seed."""
        self._catch_up()
        return self._streams

    @streams.setter
    def streams(self, streams: RandomStreams) -> None:
        self._catch_up()
        self._streams, self._numbers = streams, None

    def seed(self, seeds: Sequence[int], mask: Tensor | None = None) -> None:
        """Start the random streams, of all slots or of those in the mask."""
        if self.streams is None or mask is None:
            self.streams = RandomStreams(seeds, self.device)
        else:
            self.streams.reseed(seeds, mask)

    @torch.no_grad()
    def begin(self, slots: Slots, options: ResetOptions | None = None) -> None:
        """Start new episodes in some slots.

        The random numbers used up do not depend on the options.

        Args:
            slots: Which; all of them the first time.
            options: Where to start and with what parameters; default: drawn.
        """
        assert self.streams is not None
        options = options or ResetOptions()
        episode = self.params.read(options.params)
        system = self.system
        sizes = (
            system.num_initial_uniforms,
            system.num_scene_uniforms,
            self.params.num_uniforms,
        )
        where = {"rows": slots.rows} if slots.by_index else {"mask": slots.mask}
        initial, drawn, values = self.streams.uniform(sum(sizes), **where).split(sizes, dim=1)
        self.params.begin(slots, values, episode)
        if not self.started:
            self._allocate()
        state, scene = self._start(options)
        if scene is not None:
            self.scene = slots.put(self.scene, slots.take(scene))
        elif system.scene_variables:
            self.scene = slots.put(self.scene, system.scene(drawn))
        if state is None:
            state = system.initial(initial, **self._scene(slots))
        else:
            state = slots.take(state)
        self.state = slots.put(self.state, state)
        self.elapsed = slots.clear(self.elapsed)
        self.done = self.done & ~slots.mask
        self._refresh(slots)

    def _allocate(self) -> None:
        self.state, self.scene, self.elapsed, _, self.done = self._blank()

    def _blank(self) -> Moment:
        n, device = self.num_slots, self.device
        return Moment(
            torch.zeros(len(self.system.variables), n, device=device).t(),
            torch.zeros(n, len(self.system.scene_variables), device=device),
            torch.zeros(n, dtype=torch.int32, device=device),
            torch.zeros(n, dtype=torch.int64, device=device),
            torch.zeros(n, dtype=torch.bool, device=device),
        )

    def _scene(self, slots: Slots | None = None) -> dict[str, Tensor]:
        """The keyword ``scene`` for systems that have one."""
        if not self.system.scene_variables:
            return {}
        return {"scene": self.scene if slots is None else slots.take(self.scene)}

    def _start(self, options: ResetOptions) -> tuple[Tensor | None, Tensor | None]:
        """(n, D) states and (n, S) scenes that the options name or show; None: to be drawn."""
        state, scene = (
            None if given is None else given.to(self.device)
            for given in (options.state, options.scene)
        )
        if options.frames is None:
            return state, scene
        assert options.actions is not None
        return self.model.encode_window(
            options.frames, options.actions, params=self.params.current, scene=scene
        )

    def _example(self, mode: AutoresetMode) -> tuple[Rules, Moment, Tensor, Any]:
        """What the step of an autoreset mode is made from."""
        box, space = self.system.observation_space, self.system.action_space
        low, high = (tuple(bound.tolist()) for bound in (box.low, box.high))
        limit, count = self.max_episode_steps, self.params.num_uniforms
        dtype = torch.int64 if isinstance(space, gym.spaces.Discrete) else torch.float32
        shape = (self.num_slots, *(space.shape or ()))
        action = torch.zeros(shape, dtype=dtype, device=self.device)
        rules = Rules(self.system, mode, limit, count, low, high)
        return rules, self._blank(), action, self.params.current

    def _compile(self, mode: AutoresetMode) -> None:
        """Compile the step for an autoreset mode, unless numbers are quicker, and drawing."""
        if not available(self.device):
            warnings.warn(
                f"compile=True, but torch finds no compiler for {self.device.type}; "
                "steps run uncompiled, with the same results",
                stacklevel=2,
            )
            return
        self._draws_compiled = True
        if mode is AutoresetMode.DISABLED and self._solo is not None:
            return
        self._fused = Fused(*self._example(mode))

    @cached_property
    def _solo(self) -> Solo | None:
        """The step of a single slot on numbers; None where it has to be made with tensors."""
        if self.num_slots > 1 or self.device.type != "cpu":
            return None
        try:
            return Solo(*self._example(AutoresetMode.DISABLED))
        except UnsupportedError:
            return None

    def advance_single(self, action: np.ndarray) -> Single:
        """Advance a single slot by one time step; nothing begins anew.

        Same numbers as :meth:`advance`, sooner.

        Args:
            action: (*A).
        """
        if self._solo is None:
            return self._advance_single(action)
        before = self._in_numbers()
        new = self._solo(before, numbers(action), self._params_numbers)
        (over,), (terminated,), (reward,) = before.done, new.terminated, new.reward
        done = [over or bool(terminated)]
        self._lead(Numbers(new.state, new.scene, new.elapsed, new.positions, done))
        state, observation = (np.array(x, dtype=np.float32) for x in (new.state, new.observation))
        return Single(state, observation, float(reward), bool(terminated), over)

    def begin_single(self, options: ResetOptions) -> Single:
        """Start a new episode in a single slot, as :meth:`begin`, sooner if nothing is special.

        Args:
            options: Where to start and with what parameters; default: drawn.
        """
        solo = self.__dict__.get("_solo")  # there after the first step: no reset waits for it
        unusual = self.params.varies or options != ResetOptions()
        if solo is None or unusual or not self.started:
            self.begin(Slots.every(1, self.device), options)
            seen = self.state, self.observation(self.state)
            state, observation = (x[0].cpu().numpy().copy() for x in seen)
        else:
            begun, observed = solo.begin(self._in_numbers())
            self._lead(begun)
            state, observation = (np.array(x, dtype=np.float32) for x in (begun.state, observed))
        return Single(state, observation, 0.0, False, False)

    def _advance_single(self, action: np.ndarray) -> Single:
        over = bool(self.done)
        tensor = torch.as_tensor(action[None]).to(self.device)
        outcome, _ = self.advance(tensor, AutoresetMode.DISABLED)
        seen = self.state, self.observation(self.state)
        state, observation = (x[0].cpu().numpy().copy() for x in seen)
        return Single(state, observation, float(outcome.reward), bool(outcome.terminated), over)

    def _in_numbers(self) -> Numbers:
        """The moment in numbers, and the parameters; read where tensors have changed."""
        params = self.params.current
        if self._numbers is None or self._numbers_of is not params:
            self._numbers, self._numbers_of = Numbers.of(self._moment()), params
            self._params_numbers = [numbers(value.numpy()) for value in vars(params).values()]
        return self._numbers

    def _lead(self, moment: Numbers) -> None:
        """Go on in numbers; the tensors are written when somebody asks for them."""
        self._numbers, self._ahead, self._frames = moment, True, None

    def _catch_up(self) -> None:
        """Write the tensors, if steps are ahead in numbers."""
        if not self._ahead:
            return
        self._ahead = False
        assert self._numbers is not None
        assert self._streams is not None
        now = self._numbers
        self._tensors |= {
            "state": torch.from_numpy(np.array([now.state], dtype=np.float32)),
            "scene": torch.from_numpy(np.array([now.scene], dtype=np.float32)),
            "elapsed": torch.tensor(now.elapsed, dtype=torch.int32),
            "done": torch.tensor(now.done),
        }
        self._streams.positions = torch.tensor(now.positions)

    def advance(self, action: Tensor, mode: AutoresetMode) -> tuple[Outcome, Ended | None]:
        """Advance every slot by one time step, and begin new episodes as the mode says.

        Args:
            action: (n, *A).
            mode: With ``DISABLED`` none begin.
        """
        if self._fused is not None and self._fused.rules.mode is mode:
            return self._advance_fused(action, mode)
        if mode is AutoresetMode.NEXT_STEP:
            return self._advance_next(action)
        outcome = self.step(action)
        if mode is AutoresetMode.DISABLED:
            return outcome, None
        return outcome, self._begin_where(self.done)

    def _advance_next(self, action: Tensor) -> tuple[Outcome, Ended | None]:
        resting = self.done
        outcome = self.step(action, ~resting)
        ended = self._begin_where(resting)
        if ended is None:
            return outcome, None
        parts = (
            outcome.reward * ~resting,
            outcome.terminated & ~resting,
            outcome.truncated & ~resting,
        )
        return Outcome(*parts), ended

    def _begin_where(self, mask: Tensor) -> Ended | None:
        """New episodes in the slots of a mask; None if the host knows that there are none."""
        state = self.state
        ended = Ended(Slots(mask), lambda: state, self.scene)
        if ended.slots.by_index and not len(ended.slots.rows):
            return None
        self.begin(ended.slots)
        return ended

    def _advance_fused(self, action: Tensor, mode: AutoresetMode) -> tuple[Outcome, Ended | None]:
        assert self._fused is not None
        assert self.streams is not None
        scene, resting = self.scene, self.done
        new = self._fused(self._moment(), action, self.params.current)
        outcome = Outcome(new.reward, new.terminated.bool(), new.truncated.bool())
        self._tensors |= {"state": new.state.t(), "scene": new.scene, "elapsed": new.elapsed}
        self.streams.positions = new.positions
        self._frames, self._observed = None, (self.state, new.observation.t())
        if mode is not AutoresetMode.SAME_STEP:
            over = outcome.terminated | outcome.truncated
            self.done = over if mode is AutoresetMode.NEXT_STEP else resting | over
        if new.started is None:
            return outcome, None
        slots = Slots(new.started.bool())
        if slots.by_index and not len(slots.rows):
            return outcome, None
        ended, drawn = new.ended.t(), new.drawn
        every = len(ended) == self.num_slots
        if self.params.varies:
            assert drawn is not None
            self.params.begin(slots, slots.take(drawn) if every else drawn, {})
        state = self.state
        return outcome, Ended(slots, lambda: ended if every else slots.put(state, ended), scene)

    def _moment(self) -> Moment:
        assert self.streams is not None
        return Moment(self.state, self.scene, self.elapsed, self.streams.positions, self.done)

    @torch.no_grad()
    def step(self, action: Tensor, active: Tensor | None = None) -> Outcome:
        """Advance every slot by one time step; nothing begins anew.

        Args:
            action: (n, *A).
            active: (n,) bool, the slots whose noise is drawn; the others are about to be reset.
        """
        assert self.streams is not None
        before, scene = self.state, self._scene()
        noise = {}
        if self.system.num_step_uniforms:
            noise["noise"] = self.streams.uniform(self.system.num_step_uniforms, mask=active)
        state = self.system.transition(before, action, self.params.current, **noise, **scene)
        reward = self.system.reward(before, action, state)
        terminated = self.system.terminal(state, **scene)
        self.state = state
        self.elapsed = self.elapsed + 1
        self._frames = None
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = self.elapsed >= self.max_episode_steps
        self.done = self.done | terminated | truncated
        return Outcome(reward, terminated, truncated)

    @torch.no_grad()
    def observation(self, states: Tensor) -> Tensor:
        """(m, O) float32 states in the real environment's scaling, clipped to its space; new."""
        if self._observed is not None and self._observed[0] is states:
            observed, self._observed = self._observed[1], None  # given away once
            return observed
        observed = self.system.observation(states)
        return torch.minimum(torch.maximum(observed, self._low), self._high)

    @torch.no_grad()
    def in_distribution(self, states: Tensor) -> Tensor:
        """(m,) whether states lie in the range of the training labels."""
        return self.model.in_distribution(states)

    def frames(self) -> Tensor:
        """(n, H, W, 3) uint8 imagined frames, decoded once per state; not to be modified."""
        if self._frames is None:
            if self._draws_compiled and not self._drawings:
                self._compile_drawing()
            self._frames = self.decode(self.state, self.scene)
        return self._frames

    @torch.no_grad()
    def decode(self, states: Tensor, scenes: Tensor) -> Tensor:
        """(m, H, W, 3) uint8 frames of states in their scenes.

        Compiled and uncompiled drawing differ by at most 1 of 255; the number of states decides
        which of them it is, once drawing is compiled.
        """
        chunks = zip(states.split(self._chunk), scenes.split(self._chunk), strict=True)
        drawn = [self._draw(*chunk) for chunk in chunks]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    @property
    def _chunk(self) -> int:
        return DECODE_CHUNK.get(self.device.type, max(DECODE_CHUNK.values()))

    def _draw(self, states: Tensor, scenes: Tensor) -> Tensor:
        compiled = self._drawings.get((self.model.autoencoder.decodes_by, len(states)))
        if compiled is not None:
            return compiled(states, scenes)
        keyword = {"scene": scenes} if self.system.scene_variables else {}
        return self.model.draw(states, **keyword)

    def _compile_drawing(self) -> None:
        """Compile drawing for as many frames as :meth:`decode` draws at once for all slots."""
        drawing = Drawing(self.model, bool(self.system.scene_variables))
        for size in {min(self.num_slots, self._chunk), self.num_slots % self._chunk} - {0}:
            key = self.model.autoencoder.decodes_by, size
            self._drawings[key] = FusedFrames(drawing, self.state[:size], self.scene[:size])

    def _refresh(self, slots: Slots) -> None:
        """Keep the frames up to date, if there are any: only those of ``slots`` are drawn."""
        if slots.all or self._frames is None:
            self._frames = None
        elif len(slots.rows):
            rows = slots.rows
            drawn = self.decode(self.state[rows], self.scene[rows])
            self._frames = self._frames.index_put((rows,), drawn)

    def snapshot(self) -> Snapshot:
        """Copy of everything that changes."""
        assert self.streams is not None
        return Snapshot(
            self.state.clone(),
            self.elapsed.clone(),
            self.done.clone(),
            self.scene.clone(),
            self.streams.positions.clone(),
            self.params.snapshot(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot, which stays valid.

        Raises:
            ValueError: It is of another system or of another number of slots.
        """
        expected = (self.num_slots, len(self.system.variables))
        if not isinstance(snapshot, Snapshot) or tuple(snapshot.state.shape) != expected:
            raise ValueError(
                f"not a snapshot of {expected[0]} slots with {expected[1]} state variables; "
                "expected what snapshot() of an environment like this one returned"
            )
        self.state = snapshot.state.to(self.device, copy=True)
        self.elapsed = snapshot.elapsed.to(self.device, copy=True)
        self.done = snapshot.done.to(self.device, copy=True)
        self.scene = snapshot.scene.to(self.device, copy=True)
        self.streams = RandomStreams.at(snapshot.streams.to(self.device))
        self.params.restore(snapshot.params)
        self._frames = None


__all__ = ["DECODE_CHUNK", "Outcome", "Simulation", "Single", "Snapshot"]
