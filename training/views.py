"""Drawn views: frames of places between those of the data, for a camera that drives along.

An encoder that has seen a hundred thousand frames of a course knows them by heart, and takes one in
a hundred and fifty others for a frame of another place. The decoder looks its pictures up in maps
of the place: a tree that it has learned from one side it draws from the next, too. So it can show
the encoder where nobody drove.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from piwm_gym.models import Autoencoder
from piwm_gym.systems import System

NUMBER = 80_000
"""Drawn views, at most; no more than there are frames."""
ASIDE = 0.5
"""How far they are from where somebody was, at most, m in x and y."""
TURNED = 0.6
"""How far they are turned, at most, rad."""
CHUNK = 256


def check_camera(system: System) -> None:
    """Raise ValueError if the system has no camera that drives along."""
    if system.camera is None:
        raise ValueError(f"views: {system.name} has no camera that drives along; leave them out")


@torch.no_grad()
def drawn_views(
    autoencoder: Autoencoder, system: System, configurations: Float[Tensor, "M P"], seed: int
) -> tuple[UInt8[Tensor, "K H W 3"], Float[Tensor, "K P"]]:
    """Frames that the decoder draws of places near some of the configurations, and these places.

    Args:
        autoencoder: With a trained decoder.
        system: With a camera, and without a scene.
        configurations: Where somebody was, SI units.
        seed: Of the choice.

    Raises:
        ValueError: The system has no camera that drives along.
    """
    check_camera(system)
    count = min(NUMBER, len(configurations))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(configurations), (count,), generator=generator)
    away = 2 * torch.rand(count, configurations.shape[1], generator=generator) - 1
    furthest = [TURNED if variable.periodic else ASIDE for variable in system.configuration]
    places = configurations[chosen.to(configurations.device)]
    places = places + (away * torch.tensor(furthest)).to(places)
    return torch.cat([autoencoder.draw_frames(part) for part in places.split(CHUNK)]), places


__all__ = ["check_camera", "drawn_views"]
