"""n imagined episodes of one world model, stepped together: what both environments share.

States are (n, D) tensors whose columns are contiguous in memory, and no tensor is written to
once it is made: a step leaves the ones before it as they were, to be looked at later or never.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from piwm_gym.advance import Moment, Rules, blank, example_action
from piwm_gym.compiler import CompilationError, available
from piwm_gym.drawing import Frames
from piwm_gym.fused import Fused
from piwm_gym.moments import Ended, Outcome, Snapshot
from piwm_gym.options import ResetOptions
from piwm_gym.random import RandomStreams
from piwm_gym.slot_params import SlotParams
from piwm_gym.slots import Slots
from piwm_gym.world_model import WorldModel


class Simulation:
    """State, parameters and random streams of n slots, on the model's device.

    Args:
        model: Shared by all slots; never modified.
        num_slots: n.
        params: Physical parameters to replace, see :class:`SlotParams`.
        randomize: Physical parameters to draw at each start of an episode.
        max_episode_steps: Steps after which an episode is truncated; None for never.
        compiled: Autoreset mode whose step is compiled, now; None to compile nothing. Drawing is
            compiled with it, when there is the first frame to draw.

    Attributes:
        state: (n, D) SI units.
        scene: (n, S) static visible variables.
        elapsed: (n,) int32 steps since the episode's start.
        done: (n,) bool, whether the episode is over.
        streams: Random numbers; None before there is a seed.
        started: Whether there has been a reset.
        drawn: Imagined frames.

    Warns:
        UserWarning: Nothing can be compiled here; steps run as they are.
    """

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
        self.state, self.scene, self.elapsed, _, self.done = self._blank()
        self.streams: RandomStreams | None = None
        self.started = False
        self._fused: Fused | None = None
        self._observed: tuple[Tensor, Tensor] | None = None
        box = self.system.observation_space
        self._low = torch.from_numpy(box.low).to(self.device)
        self._high = torch.from_numpy(box.high).to(self.device)
        if compiled is not None and not available(self.device):
            warnings.warn(
                f"compile=True, but torch finds no compiler for {self.device.type}; "
                "steps run uncompiled, with the same results",
                stacklevel=2,
            )
            compiled = None
        self.drawn = Frames(model, num_slots, compiled is not None and self._compile(compiled))

    def _compile(self, mode: AutoresetMode) -> bool:
        """Compile the step of an autoreset mode; whether that worked."""
        try:
            self._fused = Fused(*self._example(mode))
        except CompilationError as error:
            warnings.warn(
                f"compile=True, but torch's compiler fails ({error}); steps run uncompiled, with "
                "the same results",
                stacklevel=2,
            )
        return self._fused is not None

    def _example(self, mode: AutoresetMode) -> tuple[Rules, Moment, Tensor, Any]:
        """What the step of an autoreset mode is made from."""
        box, count = self.system.observation_space, self.params.num_uniforms
        low, high = (tuple(bound.tolist()) for bound in (box.low, box.high))
        rules = Rules(self.system, mode, self.max_episode_steps, count, low, high)
        action = example_action(self.system, self.num_slots, self.device)
        return rules, self._blank(), action, self.params.current

    def _blank(self) -> Moment:
        return blank(self.system, self.num_slots, self.device)

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

        Warns:
            UserWarning: Observed frames do not show the system.
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
        state, scene = self._start(options, slots)
        if scene is not None:
            self.scene = slots.put(self.scene, slots.take(scene))
        elif system.scene_variables:
            self.scene = slots.put(self.scene, system.scene(drawn))
        if state is None:
            state = system.initial(initial, **self._scene_of(slots))
        else:
            state = slots.take(state)
            if options.frames is None:  # from frames the motion has said what the place says
                state = system.placed(state, **self._scene_of(slots))
        self.state = slots.put(self.state, state)
        self.elapsed = slots.clear(self.elapsed)
        self.done = self.done & ~slots.mask
        self.started = True
        self.drawn.renew(slots, self.state, self.scene)

    def _scene_of(self, slots: Slots | None = None) -> dict[str, Tensor]:
        """The keyword ``scene`` for systems that have one."""
        if not self.system.scene_variables:
            return {}
        return {"scene": self.scene if slots is None else slots.take(self.scene)}

    def _start(self, options: ResetOptions, slots: Slots) -> tuple[Tensor | None, Tensor | None]:
        """(n, D) states and (n, S) scenes that the options name or show; None: to be drawn."""
        state, scene = (
            None if given is None else given.to(self.device)
            for given in (options.state, options.scene)
        )
        if options.frames is None:
            return state, scene
        assert options.actions is not None
        read = self.model.encode_frames(options.frames)
        missing = slots.mask & ~self.model.shown(options.frames, read)
        if missing.any():
            which = "" if self.num_slots == 1 else f" of environments {_indices(missing)}"
            warnings.warn(
                f"most of options['frames']{which} do not show what {self.system.name} looks like; "
                "the states read of them are guesses",
                stacklevel=5,
            )
        return self.model.estimate(read, options.actions, params=self.params.current, scene=scene)

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
        self.state, self.scene, self.elapsed = new.state.t(), new.scene, new.elapsed
        self.streams.positions = new.positions
        self._observed = self.state, new.observation.t()
        self.drawn.forget()
        if mode is not AutoresetMode.SAME_STEP:
            over = outcome.terminated | outcome.truncated
            self.done = over if mode is AutoresetMode.NEXT_STEP else resting | over
        if new.started is None:
            return outcome, None
        slots = Slots(new.started.bool())
        if slots.by_index and not slots.mask.numpy().any():
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
        before, scene = self.state, self._scene_of()
        noise = {}
        if self.system.num_step_uniforms:
            noise["noise"] = self.streams.uniform(self.system.num_step_uniforms, mask=active)
        state = self.system.transition(before, action, self.params.current, **noise, **scene)
        reward = self.system.reward(before, action, state)
        terminated = self.system.terminal(state, **scene)
        self.state = state
        self.elapsed = self.elapsed + 1
        self.drawn.forget()
        if self.max_episode_steps is None:
            truncated = torch.zeros_like(terminated)
        else:
            truncated = _reached(self.elapsed, self.max_episode_steps)
        self.done = self.done | terminated | truncated
        return Outcome(reward, terminated, truncated)

    def rollout(self, actions: Tensor) -> Tensor:
        """(n, H, D) states after each of (n, H, *A) actions, if nothing ended; see the model's."""
        return self.model.rollout(self.state, actions, self.params.current, **self._scene_of())

    def observation(self, states: Tensor) -> Tensor:
        """(m, O) float32 states in the real environment's scaling, clipped to its space; new."""
        if self._observed is not None and self._observed[0] is states:
            observed, self._observed = self._observed[1], None  # given away once
            return observed
        with torch.no_grad():
            observed = self.system.observation(states)
            return torch.minimum(torch.maximum(observed, self._low), self._high)

    @torch.no_grad()
    def in_distribution(self, states: Tensor) -> Tensor:
        """(m,) whether states lie in the range of the training labels."""
        return self.model.in_distribution(states)

    def frames(self) -> Tensor:
        """(n, H, W, 3) uint8 imagined frames, drawn once per state; not to be modified."""
        return self.drawn.present(self.state, self.scene)

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
        by_column = snapshot.state.to(self.device).t()
        self.state = by_column.clone(memory_format=torch.contiguous_format).t()
        self.elapsed = snapshot.elapsed.to(self.device, copy=True)
        self.done = snapshot.done.to(self.device, copy=True)
        self.scene = snapshot.scene.to(self.device, copy=True).contiguous()
        self.streams = RandomStreams.at(snapshot.streams.to(self.device))
        self.params.restore(snapshot.params)
        self.started = True
        self.drawn.forget()


def _indices(mask: Tensor) -> list[int]:
    return mask.nonzero().flatten().tolist()


def _reached(elapsed: Tensor, limit: int) -> Tensor:
    """(n,) bool, whether as many steps have gone; numpy compares several times faster."""
    return torch.from_numpy(elapsed.numpy() >= limit) if elapsed.is_cpu else elapsed >= limit


__all__ = ["Simulation", "Snapshot"]
