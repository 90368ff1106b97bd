"""A closer look at a body that has been found: the second half of E_p for pictures from the side.

A reading of the whole frame has to learn every place of a small body apart. Seen from where it was
found, it looks the same everywhere: the tokens around it say how far off the reading is, to a
tenth of a pixel, after a thirtieth of the training. Mnih et al., "Recurrent models of visual
attention", 2014, look where they learn to look; here the reading says where.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from piwm_gym.models.tokens import Grid
from piwm_gym.models.window import BodyWindow, chosen
from piwm_gym.systems import SideView, System

MORE = 1
"""Rows and columns of tokens beyond the body's reach: readings may be off by half a token."""
JITTER = 0.75
"""In training the look goes up to so many tokens astray, as a first reading may."""
LOOKS = 2
"""Looks at a frame; the second one starts where the first one led."""


class Glimpse(nn.Module):
    """Normalised readings of the state to better ones.

    Args:
        system: Without periodic dimensions.
        view: Its picture.
        grid: Rows and columns of tokens.
        token_dim: Their size.
        width: Of the layers.
    """

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
        # Where the look went and what was read before; at first that passes through.
        self.carry = nn.Linear(2 + self.num_state, self.num_state)
        with torch.no_grad():
            self.carry.weight.copy_(torch.eye(2 + self.num_state)[2:])
            self.carry.bias.zero_()

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
        poses = around.system.poses(around.configuration(reading))
        place = around.place(poses[:, :2, 0])
        aim = place
        if self.training:
            aim = place + JITTER * (2 * torch.rand_like(place) - 1)
        column, row = around.first(aim)
        seen = chosen(tokens, around.patches(column, row)).flatten(1)
        offset = place - torch.cat((column, row), dim=1) - around.middle
        state, scene = reading.tensor_split((self.num_state,), dim=-1)
        state = self.carry(torch.cat((offset, state), dim=-1)) + self.layers(seen)
        return torch.cat((state, scene), dim=-1)
