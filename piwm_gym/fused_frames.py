"""Frames in machine code: the drawing that ``compile=True`` compiles."""

import warnings

import torch
from torch import Tensor, nn

from piwm_gym import compiler


class Drawing(nn.Module):
    """``WorldModel.draw`` as a function of tensors alone.

    Args:
        model: The world model.
        scenic: Whether its system has a scene.
    """

    def __init__(self, model: nn.Module, scenic: bool) -> None:
        super().__init__()
        self.model, self.scenic = model, scenic

    def forward(self, states: Tensor, scenes: Tensor, *stills: Tensor) -> tuple[Tensor]:
        """(m, H, W, 3) uint8 frames of (m, D) states in (m, S) scenes, perhaps over stills."""
        scene = scenes if self.scenic else None
        return (self.model.draw(states, scene, *stills),)  # type: ignore[operator]


class FusedFrames:
    """A model's frames, compiled for one number of states and the decoder that it uses now.

    Where a number lies halfway between two bytes, its last bits decide: of the bytes of a frame,
    a few in a million differ from the uncompiled one's, by 1.

    Args:
        drawing: Of the model, whose weights may change later.
        states: (m, D) like those to draw.
        others: Scenes (m, S), and stills (m, H, W, 3) if they will be given; likewise.
    """

    def __init__(self, drawing: Drawing, states: Tensor, *others: Tensor) -> None:
        inputs = tuple(x.contiguous() for x in (states, *others))
        self._weights: tuple[Tensor, ...] = ()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if states.is_cuda:
                self._draw = compiler.cuda_graph(drawing, inputs)
            else:
                function, self._weights = compiler.with_weights(drawing, len(inputs))
                self._draw = compiler.host_code(function, (*inputs, *self._weights))

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        """(m, H, W, 3) uint8 frames of states, scenes and perhaps stills."""
        return self._draw((*(x.contiguous() for x in inputs), *self._weights))[0]


__all__ = ["Drawing", "FusedFrames"]
