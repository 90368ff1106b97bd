"""States of running systems from their frames as they come, for controllers and monitors."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from piwm_gym.actions import ActionReader
from piwm_gym.models import filtering
from piwm_gym.models.filtering import Belief
from piwm_gym.slot_params import read_params
from piwm_gym.systems import unknown
from piwm_gym.world_model import WorldModel

Start = Literal["reset", "anywhere"]
ALIKE = 2.0
"""Readings are taken to scatter so many times as much as they do: errors of neighbouring frames are
alike, and four of them say no more than one."""
BARELY = 2.0
"""Readings of what is partly outside the picture scatter so many times as much, as Lunar Lander's
do."""


class _Known(NamedTuple):
    """What is known of B systems.

    Attributes:
        belief: About their states.
        scenes: (B, S) sums of what the frames so far showed of their scenes.
        frames: (B, 1) how many those were.
    """

    belief: Belief
    scenes: Float[Tensor, "B S"]
    frames: Float[Tensor, "B 1"]


class StateFilter:
    """Most likely states of B systems, frame by frame: an extended Kalman filter.

        states = StateFilter(model)
        state = states.reset(frames)                # (B, D) at the first frames
        state = states.update(frames, actions)      # at the next ones

    Where :meth:`WorldModel.encode` fits a window, this carries on for a whole episode; a frame
    costs its encoding, two drawings and a few transitions. Where the system is not to be seen
    where the encoder read it, because it has left the picture, the dynamics alone move the state.

    Args:
        model: Reads the frames and explains their motion.
        params: Physical parameters by name, instead of the learned ones.

    Raises:
        ValueError: Unknown, non-finite or negative parameters.
    """

    def __init__(self, model: WorldModel, params: Mapping[str, float] | None = None) -> None:
        self.model = model
        given = read_params(type(model.params), params, 1, model.device)
        self.params = model.params.replace(**{k: v.reshape(()) for k, v in given.items()})
        self._latest: _Known | None = None
        self._actions: ActionReader | None = None

    @property
    def state(self) -> Float[Tensor, "B D"]:
        """Most likely states, SI units; derived dimensions are those that the motion set."""
        return self._known.belief.state.clone()

    @property
    def std(self) -> Float[Tensor, "B D"]:
        """Standard deviations of the states, SI units; 0 of derived dimensions."""
        system, (state, covariance, _) = self.model.system, self._known.belief
        std = torch.zeros_like(state)
        std[:, system.estimated] = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        return std * (system.ranges / 2).to(std)

    @property
    def scene(self) -> Float[Tensor, "B S"] | None:
        """Mean of what the frames so far show of the scene; None for systems without one."""
        return self._scene(self._known.scenes, self._known.frames)

    @torch.no_grad()
    def reset(self, frames: Any, start: Start = "reset", mask: Any = None) -> Float[Tensor, "B D"]:
        """States at first frames.

        Args:
            frames: (B, H, W, 3) uint8 or (B, 3, H, W) float in [0, 1].
            start: ``"reset"`` where the real environment has just been reset, so that states are
                among those that it begins in; ``"anywhere"`` where nothing is known of them.
            mask: (B,) bool; begin anew only there, such as where an episode has ended. The other
                frames do not count.

        Raises:
            ValueError: Wrong shapes or types, an unknown start, a mask before the first reset.
        """
        if start not in get_args(Start):
            raise ValueError(unknown("start", start, get_args(Start)))
        chosen = None if mask is None else self._read_mask(mask)
        visible, scene, seen = self._read(frames, None if mask is None else len(self.state))
        system = self.model.system
        begin = filtering.at_reset if start == "reset" else filtering.anywhere
        belief = begin(system, visible)
        belief = filtering.correct(system, belief, visible, self._scatter(visible), seen)
        latest = _Known(belief, scene, torch.ones_like(visible[:, :1]))
        if chosen is not None:
            old = self._known
            latest = _Known(
                belief.where(chosen, old.belief),
                torch.where(chosen[:, None], scene, old.scenes),
                torch.where(chosen[:, None], latest.frames, old.frames),
            )
        self._latest = latest
        self._actions = ActionReader(system.action_space, len(visible), self.model.device)
        return self.state

    @torch.no_grad()
    def update(self, frames: Any, actions: Any) -> Float[Tensor, "B D"]:
        """States at the next frames.

        Args:
            frames: As in :meth:`reset`, one time step later.
            actions: (B, *A) what was done in between, as environments take them.

        Raises:
            ValueError: Wrong shapes or types, invalid actions, or not begun by :meth:`reset`.
        """
        belief, scenes, count = self._known
        assert self._actions is not None
        taken = self._actions.read(actions)
        visible, scene, seen = self._read(frames, len(belief.state))
        system, scenes, count = self.model.system, scenes + scene, count + 1
        moved = filtering.predict(system, belief, taken, self.params, self._scene(scenes, count))
        belief = filtering.correct(system, moved, visible, self._scatter(visible), seen)
        self._latest = _Known(belief, scenes, count)
        return self.state

    @property
    def _known(self) -> _Known:
        if self._latest is None:
            raise ValueError(
                "nothing is known yet; call reset with the first frames of all systems"
            )
        return self._latest

    def _scene(self, scenes: Tensor, frames: Tensor) -> Float[Tensor, "B S"] | None:
        return scenes / frames if self.model.system.scene_variables else None

    def _read(self, frames: Any, count: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Readings of visible dimensions and scene, and where they are to be seen.

        Args:
            frames: Of ``count`` systems, or of any number.
            count: How many there have to be.
        """
        model, frames = self.model, torch.as_tensor(frames)
        wanted = "at least one frame" if count is None else f"{count} frames, as many as systems"
        if frames.ndim != 4 or not len(frames) or len(frames) != (count or len(frames)):
            raise ValueError(
                f"frames has shape {tuple(frames.shape)}; expected (B, H, W, 3) uint8 or "
                f"(B, 3, H, W) float, {wanted}"
            )
        read = model.encode_frames(frames)
        visible, scene = read.tensor_split((len(model.system.visible),), dim=1)
        return visible, scene, model.recognize(frames, read)

    def _read_mask(self, mask: Any) -> Bool[Tensor, " B"]:
        mask, count = torch.as_tensor(mask), len(self._known.frames)
        if mask.dtype != torch.bool or tuple(mask.shape) != (count,):
            raise ValueError(
                f"mask has shape {tuple(mask.shape)} and dtype {mask.dtype}; expected ({count},) "
                "and torch.bool"
            )
        return mask.to(self.model.device)

    def _scatter(self, visible: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """How far readings are taken to scatter."""
        system = self.model.system
        states = system.from_configurations(visible, visible, system.dt)
        times = torch.where(system.in_view(states), ALIKE, ALIKE * BARELY)
        return times[:, None] * self.model.reading_std


__all__ = ["StateFilter"]
