"""The imagined frames of n slots: drawn once per state, in chunks, by torch or by machine code."""

import warnings
from collections.abc import Callable
from functools import cache
from itertools import repeat

import torch
from torch import Tensor

from piwm_gym.compiler import CompilationError
from piwm_gym.fused_frames import Drawing, FusedFrames
from piwm_gym.slots import Slots
from piwm_gym.threads import spread
from piwm_gym.world_model import WorldModel

DECODE_CHUNK = {"cpu": 128, "cuda": 256}
"""Frames decoded at once: enough to be worth the calls, few enough for a processor's cache."""

LARGEST_BLOCK = 2**25 - 2**16
"""Bytes; glibc's limit on what it learns from is 2^25, its own header included."""

Draw = Callable[..., Tensor]
"""(m, H, W, 3) uint8 frames of (m, D) states in (m, S) scenes, whose stills may be given."""


@cache
def keep_memory() -> None:
    """Keep what is freed for the next frames, where the C library is glibc.

    It gives large blocks back to the kernel at once, which then has to clear every page of the
    next ones: up to a quarter of the time of a frame. Once such a block was freed, it keeps
    blocks of up to that size, twice as much in all (mallopt(3), M_MMAP_THRESHOLD).
    """
    torch.empty(LARGEST_BLOCK, dtype=torch.uint8)


class Stills:
    """What the scenes of n slots look like without bodies: drawn once per scene, not per state.

    Args:
        model: Whose decoder may change later, and whose weights in place.
    """

    def __init__(self, model: WorldModel) -> None:
        self._model = model
        self._weights = tuple(model.autoencoder.parameters())
        self._versions: list[int] = []
        self._scenes: Tensor | None = None
        self._drawn: Tensor | None = None

    @property
    def kept(self) -> bool:
        """Whether there are any: not on a GPU, which would have to wait for what has changed."""
        model = self._model
        still = bool(model.system.scene_variables) and model.autoencoder.decodes_by != "latent"
        return still and model.device.type == "cpu" and model.system.camera is None

    @torch.inference_mode(False)  # what was made in that mode could not be changed out of it
    def of(self, scenes: Tensor) -> Tensor | None:
        """(n, H, W, 3) uint8 stills of (n, S) scenes, if any are kept, until the next call."""
        if not self.kept:
            return None
        versions = [0 if w.is_inference() else w._version for w in self._weights]
        if self._scenes is None or self._drawn is None or versions != self._versions:
            self._drawn = torch.cat(spread(self.draw, scenes.split(DECODE_CHUNK["cpu"])))
            self._scenes, self._versions = scenes.clone(), versions
            return self._drawn
        rows = (scenes != self._scenes).any(1).nonzero().flatten()
        if len(rows):
            fresh = spread(self.draw, scenes[rows].split(DECODE_CHUNK["cpu"]))
            self._drawn.index_copy_(0, rows, torch.cat(fresh))
            self._scenes = scenes.clone()
        return self._drawn

    @torch.no_grad()
    def draw(self, scenes: Tensor) -> Tensor:
        """(m, H, W, 3) uint8 stills of (m, S) scenes."""
        still = self._model.still(scenes)
        assert still is not None
        return still


class Frames:
    """Frames of the slots' present states, and of any others.

    Args:
        model: Whose decoder and whose weights may change later.
        num_slots: n.
        compiled: Whether drawing is compiled, when there is the first frame of all slots to draw.
    """

    def __init__(self, model: WorldModel, num_slots: int, compiled: bool) -> None:
        if model.device.type == "cpu":
            keep_memory()
        self.compiled = compiled
        self.by_size: dict[tuple[str, int], Draw] = {}
        self._model = model
        self._num_slots = num_slots
        self._scenic = bool(model.system.scene_variables)
        self._chunk = DECODE_CHUNK.get(model.device.type, max(DECODE_CHUNK.values()))
        if model.system.camera is not None:  # which changes all patches: a frame takes more cache
            self._chunk //= 2
        self._stills = Stills(model)
        self._present: Tensor | None = None

    def present(self, states: Tensor, scenes: Tensor) -> Tensor:
        """(n, H, W, 3) uint8 frames of the present states; not to be modified.

        Args:
            states: (n, D) SI units. Ignored if there are frames already, see :meth:`forget`.
            scenes: (n, S) static visible variables.
        """
        if self._present is None:
            stills = self._stills.of(scenes)
            if self.compiled and not self.by_size:
                self._compile(states, scenes, stills)
            self._present = self.draw(states, scenes, stills)
        return self._present

    def forget(self) -> None:
        """All states have changed, or somebody may write to the frames."""
        self._present = None

    def renew(self, slots: Slots, states: Tensor, scenes: Tensor) -> None:
        """The states of some slots have changed; their frames are drawn anew, if there are any."""
        if slots.all:
            self.forget()
        if self._present is not None and len(slots.rows):
            drawn = self.draw(states[slots.rows], scenes[slots.rows])
            self._present = self._present.index_put((slots.rows,), drawn)

    @torch.inference_mode(False)  # what is made in that mode, no other thread could write to
    def draw(self, states: Tensor, scenes: Tensor, stills: Tensor | None = None) -> Tensor:
        """(m, H, W, 3) uint8 frames of states in their scenes.

        Compiled and uncompiled drawing differ by at most 1 of 255, by 2 in bfloat16; the number of
        states decides which of them it is, once drawing is compiled.

        Args:
            states: (m, D) SI units.
            scenes: (m, S) static visible variables.
            stills: (m, H, W, 3) what the scenes look like, where that is known.
        """
        chunk = self._chunk
        if len(states) <= chunk:
            return self._drawn(states, scenes, stills)
        shape = (len(states), *self._model.system.frame.size, 3)
        frames = torch.empty(shape, dtype=torch.uint8, device=states.device)
        given = repeat(None) if stills is None else stills.split(chunk)
        parts = frames.split(chunk), states.split(chunk), scenes.split(chunk), given
        pieces = [*zip(*parts, strict=False)]
        # Machine code holds Python's lock and has threads of its own.
        if self.by_size or states.is_cuda:
            for piece in pieces:
                self._put(piece)
        else:
            spread(self._put, pieces)
        return frames

    def _put(self, piece: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> None:
        """Draw a few of many frames."""
        frames, states, scenes, still = piece
        self._drawn(states, scenes, still, frames)

    @torch.no_grad()
    def _drawn(
        self, states: Tensor, scenes: Tensor, still: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        compiled = self.by_size.get((self._model.autoencoder.decodes_by, len(states)))
        if compiled is not None and still is None and self._stills.kept:
            still = self._stills.draw(scenes)
        stills = () if still is None else (still,)
        if compiled is not None:
            frames = compiled(states, scenes, *stills)
            return frames if out is None else out.copy_(frames)  # while they are in the cache
        into = {} if out is None else {"out": out}
        return self._model.draw(states, scenes if self._scenic else None, *stills, **into)

    def _compile(self, states: Tensor, scenes: Tensor, stills: Tensor | None) -> None:
        """Compile drawing for as many frames as :meth:`draw` draws at once for all slots.

        Warns:
            UserWarning: That fails; frames are drawn uncompiled.
        """
        drawing = Drawing(self._model, self._scenic)
        inputs = (states, scenes) if stills is None else (states, scenes, stills)
        for size in {min(self._num_slots, self._chunk), self._num_slots % self._chunk} - {0}:
            key = self._model.autoencoder.decodes_by, size
            try:
                self.by_size[key] = FusedFrames(drawing, *(x[:size] for x in inputs))
            except CompilationError as error:
                self.compiled = False
                warnings.warn(
                    f"compile=True, but torch's compiler fails ({error}); frames are drawn "
                    "uncompiled",
                    stacklevel=2,
                )
                return


__all__ = ["DECODE_CHUNK", "Frames"]
