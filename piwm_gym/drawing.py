"""The imagined frames of n slots: drawn once per state, in chunks, by torch or by machine code."""

from collections.abc import Callable

import torch
from torch import Tensor

from piwm_gym.fused_frames import Drawing, FusedFrames
from piwm_gym.slots import Slots
from piwm_gym.threads import spread
from piwm_gym.world_model import WorldModel

DECODE_CHUNK = {"cpu": 64, "cuda": 256}
"""Frames decoded at once: what is computed on the way stays in a processor's cache."""

Draw = Callable[[Tensor, Tensor], Tensor]
"""(m, H, W, 3) uint8 frames of (m, D) states in (m, S) scenes."""


class Frames:
    """Frames of the slots' present states, and of any others.

    Args:
        model: Whose decoder and whose weights may change later.
        num_slots: n.
        compiled: Whether drawing is compiled, when there is the first frame of all slots to draw.
    """

    def __init__(self, model: WorldModel, num_slots: int, compiled: bool) -> None:
        self.compiled = compiled
        self.by_size: dict[tuple[str, int], Draw] = {}
        self._model = model
        self._num_slots = num_slots
        self._scenic = bool(model.system.scene_variables)
        self._chunk = DECODE_CHUNK.get(model.device.type, max(DECODE_CHUNK.values()))
        self._present: Tensor | None = None

    def present(self, states: Tensor, scenes: Tensor) -> Tensor:
        """(n, H, W, 3) uint8 frames of the present states; not to be modified.

        Args:
            states: (n, D) SI units. Ignored if there are frames already, see :meth:`forget`.
            scenes: (n, S) static visible variables.
        """
        if self._present is None:
            if self.compiled and not self.by_size:
                self._compile(states, scenes)
            self._present = self.draw(states, scenes)
        return self._present

    def forget(self) -> None:
        """All states have changed."""
        self._present = None

    def renew(self, slots: Slots, states: Tensor, scenes: Tensor) -> None:
        """The states of some slots have changed; their frames are drawn anew, if there are any."""
        if slots.all:
            self.forget()
        if self._present is not None and len(slots.rows):
            drawn = self.draw(states[slots.rows], scenes[slots.rows])
            self._present = self._present.index_put((slots.rows,), drawn)

    def draw(self, states: Tensor, scenes: Tensor) -> Tensor:
        """(m, H, W, 3) uint8 frames of states in their scenes.

        Compiled and uncompiled drawing differ by at most 1 of 255; the number of states decides
        which of them it is, once drawing is compiled.

        Args:
            states: (m, D) SI units.
            scenes: (m, S) static visible variables.
        """
        pairs = zip(states.split(self._chunk), scenes.split(self._chunk), strict=True)
        # Machine code holds Python's lock and has threads of its own.
        alone = self.by_size or states.is_cuda
        drawn = [*map(self._draw, pairs)] if alone else spread(self._draw, list(pairs))
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    @torch.no_grad()
    def _draw(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        states, scenes = pair
        compiled = self.by_size.get((self._model.autoencoder.decodes_by, len(states)))
        if compiled is not None:
            return compiled(states, scenes)
        return self._model.draw(states, **({"scene": scenes} if self._scenic else {}))

    def _compile(self, states: Tensor, scenes: Tensor) -> None:
        """Compile drawing for as many frames as :meth:`draw` draws at once for all slots."""
        drawing = Drawing(self._model, self._scenic)
        for size in {min(self._num_slots, self._chunk), self._num_slots % self._chunk} - {0}:
            key = self._model.autoencoder.decodes_by, size
            self.by_size[key] = FusedFrames(drawing, states[:size], scenes[:size])


__all__ = ["DECODE_CHUNK", "Frames"]
