"""States of running systems from their frames as they come, for controllers and monitors."""

from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.models import filtering
from piwm_gym.models.filtering import Belief
from piwm_gym.systems import unknown
from piwm_gym.world_model import WorldModel

Start = Literal["reset", "anywhere"]
BARELY = 3.0
"""Readings of what is not all in view scatter so many times as much (measured: Lunar Lander's)."""


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

    Where :meth:`WorldModel.encode` fits a window, this carries on for a whole episode at the cost
    of one transition per frame. A frame in which the system is not to be seen where the encoder
    read it, because it has left the picture, changes nothing: then the dynamics alone tell.

    Args:
        model: Reads the frames and explains their motion.
        params: Physical parameters; default: the learned ones.
    """

    def __init__(self, model: WorldModel, params: Any = None) -> None:
        self.model = model
        self.params = model.params if params is None else params
        self._latest: _Known | None = None

    @property
    def state(self) -> Float[Tensor, "B D"]:
        """Most likely states, SI units; derived dimensions are those that the motion set."""
        return self._known.belief.state

    @property
    def std(self) -> Float[Tensor, "B D"]:
        """Standard deviations of the states, SI units; 0 of derived dimensions."""
        system, (state, covariance, _) = self.model.system, self._known.belief
        std = torch.zeros_like(state)
        std[:, system.estimated] = covariance.diagonal(dim1=1, dim2=2).sqrt()
        return std * (system.ranges / 2).to(std)

    @property
    def scene(self) -> Float[Tensor, "B S"] | None:
        """Mean of what the frames so far show of the scene; None for systems without one."""
        return self._scene(self._known.scenes, self._known.frames)

    @torch.no_grad()
    def reset(
        self,
        frames: Tensor,
        start: Start = "reset",
        mask: Bool[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B D"]:
        """States at first frames.

        Args:
            frames: (B, H, W, 3) uint8 or (B, 3, H, W) float in [0, 1].
            start: ``"reset"`` where the real environment has just been reset, so that states are
                among those that it begins in; ``"anywhere"`` where nothing is known of them.
            mask: Begin anew only there, such as where an episode has ended; the other frames do
                not count.

        Raises:
            ValueError: Wrong shapes, an unknown start, a mask before the first reset.
        """
        if start not in get_args(Start):
            raise ValueError(unknown("start", start, get_args(Start)))
        visible, scene, seen = self._read(frames)
        system = self.model.system
        begin = filtering.at_reset if start == "reset" else filtering.anywhere
        belief = begin(system, visible)
        belief = filtering.correct(system, belief, visible, self._scatter(visible), seen)
        latest = _Known(belief, scene, torch.ones_like(visible[:, :1]))
        if mask is not None:
            old = self._known
            self._check_batch(frames=frames, mask=mask)
            mask = mask.to(self.model.device)
            latest = _Known(
                belief.where(mask, old.belief),
                torch.where(mask[:, None], scene, old.scenes),
                torch.where(mask[:, None], latest.frames, old.frames),
            )
        self._latest = latest
        return self.state

    @torch.no_grad()
    def update(
        self,
        frames: Tensor,
        actions: Shaped[Tensor, "B *A"],  # noqa: F821
    ) -> Float[Tensor, "B D"]:
        """States at the next frames.

        Args:
            frames: As in :meth:`reset`, one time step later.
            actions: What was done in between.

        Raises:
            ValueError: Wrong shapes, or not begun by :meth:`reset`.
        """
        belief, scenes, count = self._known
        self._check_batch(frames=frames, actions=actions)
        visible, scene, seen = self._read(frames)
        system, scenes, count = self.model.system, scenes + scene, count + 1
        actions = actions.to(self.model.device)
        moved = filtering.predict(system, belief, actions, self.params, self._scene(scenes, count))
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

    def _read(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Readings of visible dimensions and scene, and where they are to be seen."""
        if frames.ndim != 4:
            raise ValueError(
                f"frames has shape {tuple(frames.shape)}; expected (B, H, W, 3) uint8 or "
                "(B, 3, H, W) float: one frame for each system"
            )
        model = self.model
        read = model.encode_frames(frames)
        visible, scene = read.tensor_split((len(model.system.visible),), dim=1)
        return visible, scene, model.recognize(frames, read)

    def _scatter(self, visible: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        """How far readings scatter."""
        system = self.model.system
        states = system.from_configurations(visible, visible, system.dt)
        barely = torch.where(system.in_view(states), 1.0, BARELY)
        return barely[:, None] * self.model.reading_std

    def _check_batch(self, **tensors: Tensor) -> None:
        count = len(self._known.frames)
        for name, tensor in tensors.items():
            if tensor.ndim == 0 or len(tensor) != count:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}; expected one for each of the "
                    f"{count} systems of the first reset"
                )


__all__ = ["StateFilter"]
