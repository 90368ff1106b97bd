"""A closer look at a body that has been found: the second half of E_p for pictures from the side.

A reading of the whole frame has to learn every place of a small body apart. Seen from where it was
found, it looks the same everywhere, and the tokens around it say how far off the reading is.
Mnih et al., "Recurrent models of visual attention", 2014, look where they learn to look; here the
reading says where.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from piwm_gym.models.tokens import Grid
from piwm_gym.models.window import BodyWindow, chosen
from piwm_gym.systems import SideView, System

MORE = 1
"""Rows and columns of tokens beyond the body's reach: readings may be off by half a token."""
JITTER = 1.0
"""In training the look goes up to so many tokens astray, as a first reading may."""
LOOKS = 2
"""Looks at a frame; the second one starts where the first one led."""


class Glimpse(nn.Module):
    """Normalised readings of the state to better ones.

    Of a reading only the place counts, and only for where to look. On frames of the training a
    first reading knows more than on others, and a second one that heard of it would repeat it.

    Args:
        system: Without periodic dimensions.
        view: Its picture.
        grid: Rows and columns of tokens.
        token_dim: Their size.
        width: Of the layers.
    """

    middle: Tensor

    def __init__(
        self, system: System, view: SideView, grid: Grid, token_dim: int, width: int
    ) -> None:
        super().__init__()
        self.around = BodyWindow(system, view, grid, MORE)
        self.num_state = len(system.visible)
        inputs = len(self.around.window) * token_dim
        self.layers = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, self.num_state),
        )
        self.register_buffer("middle", self._middle(), persistent=False)

    def _middle(self) -> Float[Tensor, "P Q"]:
        """Matrix from how far a body lies from a window's middle and its reading to one there.

        What the place does not say of a reading becomes 0.
        """
        origin = torch.zeros(1, len(self.around.scale))
        place: Tensor = torch.func.jacrev(self._place)(origin)[0, :, 0, : self.num_state]
        inverse = torch.linalg.pinv(place)
        return torch.cat((-inverse, inverse @ place), dim=1)

    def _place(self, reading: Float[Tensor, "B P"]) -> Float[Tensor, "B 2"]:
        """Column and row of the first body."""
        poses = self.around.system.poses(self.around.configuration(reading))
        return self.around.place(poses[:, :2, 0])

    def forward(
        self, tokens: Float[Tensor, "B N C"], reading: Float[Tensor, "B P"]
    ) -> Float[Tensor, "B P"]:
        """The reading after ``LOOKS`` looks; a scene stays as it was read."""
        for _ in range(LOOKS):
            reading = self.look(tokens, reading)
        return reading

    def look(
        self, tokens: Float[Tensor, "B N C"], reading: Float[Tensor, "B P"]
    ) -> Float[Tensor, "B P"]:
        """The reading after one look; in training a little beside where it says."""
        around = self.around
        aim = place = self._place(reading)
        if self.training:
            aim = place + JITTER * (2 * torch.rand_like(place) - 1)
        column, row = around.first(aim)
        seen = chosen(tokens, around.patches(column, row)).flatten(1)
        offset = place - torch.cat((column, row), dim=1) - around.middle
        state, scene = reading.tensor_split((self.num_state,), dim=-1)
        middle = torch.cat((offset, state), dim=-1) @ self.middle.mT
        return torch.cat((middle + self.layers(seen), scene), dim=-1)
