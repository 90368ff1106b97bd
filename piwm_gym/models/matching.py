"""Readings of frames, moved to where a drawing of them matches the frame: analysis by synthesis.

An encoder says about where a camera is, a decoder what it sees from anywhere. Places around the
reading are tried first, for readings too far off to be moved: the one whose drawing is most like
the frame is taken. What still differs tells which way, and how far, it is off; a few Gauss-Newton
steps follow it (image alignment as in Lucas and Kanade, "An iterative image registration technique
with an application to stereo vision", 1981).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from piwm_gym.models.autoencoder import Autoencoder

DIFFERENCE = 2e-3
"""Step of the numerical derivatives, in half ranges: of Donkey Car's x, 2 cm."""
DAMPING = 1e-2
"""Added to the normal equations, as a share of their diagonal (Levenberg and Marquardt)."""
RIDGE = 1e-3
"""Added besides: what the picture does not show stays where it is."""
EVERY = 3
"""Of so many patches of a picture one is compared: a hundred tell three numbers as well as all."""
CANDIDATES = 64
"""Places that are tried around a reading, itself included."""
AROUND = (0.005, 0.05)
"""How far apart they are, in half ranges: of Donkey Car's x, 5 to 50 cm. Most readings are a few
centimetres off, one in a hundred half a metre."""
GLANCE = 13
"""Of so many patches one is compared there: a few tell places apart that are not near."""
TOGETHER = 32
"""Frames that are matched at once, so that a long film's drawings need not all be kept."""
LONGEST = 10.0
"""Longest step in any number, in steps of the derivatives: drawings are alike over no more."""


def matched(
    autoencoder: Autoencoder,
    frames: Float[Tensor, "B 3 H W"],
    readings: Float[Tensor, "B P"],
    steps: int,
) -> Float[Tensor, "B P"]:
    """Configurations near readings whose drawings by the direct decoder match the frames better.

    Of each frame the best that was tried, the reading itself included. Differentiable in the
    frames: where the error of the drawing is smallest moves with them. How the readings came about
    does not matter there.

    Args:
        autoencoder: With a direct decoder.
        frames: In [0, 1].
        readings: What its encoder reads of them, SI units; without a scene.
        steps: Gauss-Newton steps; each costs a drawing, and one for each number.
    """
    parts = zip(frames.split(TOGETHER), readings.split(TOGETHER), strict=True)
    return torch.cat([_matched(autoencoder, *part, steps) for part in parts])


def _matched(
    autoencoder: Autoencoder,
    frames: Float[Tensor, "B 3 H W"],
    readings: Float[Tensor, "B P"],
    steps: int,
) -> Float[Tensor, "B P"]:
    seen = _sampled(autoencoder, frames, EVERY)
    with torch.no_grad():
        best, lowest = readings, _cost(seen - _draw(autoencoder, readings))
        here = _likeliest(autoencoder, frames, readings)
        for _ in range(steps):
            error, slope = _compare(autoencoder, seen, here)
            best, lowest = _better((here, error), (best, lowest))
            move = _step(slope, error).clamp(-LONGEST, LONGEST)
            here = _moved(autoencoder, here, move)
        error = seen - _draw(autoencoder, here)
        best, _ = _better((here, error), (best, lowest))
    if not frames.requires_grad:
        return best
    return _moved(autoencoder, best, _step(slope, seen - seen.detach()))


def _likeliest(
    autoencoder: Autoencoder, frames: Float[Tensor, "B 3 H W"], readings: Float[Tensor, "B P"]
) -> Float[Tensor, "B P"]:
    """Of the places around readings those whose drawings are most like the frames."""
    offsets = around(readings.shape[1]).to(readings.device)
    places = _moved(autoencoder, readings[:, None], offsets / DIFFERENCE)
    drawn = _draw(autoencoder, places.flatten(0, 1), GLANCE).unflatten(0, places.shape[:2])
    seen = _sampled(autoencoder, frames, GLANCE)
    return places[torch.arange(len(places)), _cost(seen[:, None] - drawn).argmin(1)]


def around(count: int) -> Float[Tensor, "C P"]:
    """Where to look around a reading of so many numbers, in half ranges; there first.

    Always the same places, more of them near than far: normal, with scales from ``AROUND``.
    """
    generator = torch.Generator().manual_seed(0)
    near, far = AROUND
    scales = far * (near / far) ** torch.rand(CANDIDATES, 1, generator=generator)
    offsets = scales * torch.randn(CANDIDATES, count, generator=generator)
    offsets[0] = 0.0
    return offsets


def _sampled(
    autoencoder: Autoencoder, frames: Float[Tensor, "B 3 H W"], every: int
) -> Float[Tensor, "B L"]:
    assert autoencoder.direct is not None
    return autoencoder.direct.sampled(frames, every).flatten(1)


def _draw(
    autoencoder: Autoencoder, configurations: Float[Tensor, "B P"], every: int = EVERY
) -> Float[Tensor, "B L"]:
    assert autoencoder.direct is not None
    return autoencoder.direct.sample(autoencoder.normalize(configurations), every).flatten(1)


def _cost(error: Float[Tensor, "*B L"]) -> Float[Tensor, "*B"]:
    return error.square().sum(-1)


def _compare(
    autoencoder: Autoencoder, frames: Float[Tensor, "B L"], here: Float[Tensor, "B P"]
) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B P L"]]:
    """How frames differ from drawings, and how drawings change with a step in each number."""
    count = here.shape[1]
    shifts = DIFFERENCE * torch.eye(count + 1, count, device=here.device).roll(1, 0)
    shifts[0] = 0.0
    places = here + shifts[:, None] * autoencoder.half_range
    drawn, *moved = _draw(autoencoder, places.flatten(0, 1)).chunk(count + 1)
    return frames - drawn, torch.stack([m - drawn for m in moved], dim=1)


def _step(slope: Float[Tensor, "B P L"], error: Float[Tensor, "B L"]) -> Float[Tensor, "B P"]:
    """What brings the drawings nearer by that error, in steps of the derivatives."""
    normal = slope @ slope.mT
    damping = DAMPING * normal.diagonal(dim1=1, dim2=2) + RIDGE
    return torch.linalg.solve(normal + torch.diag_embed(damping), slope @ error[..., None])[..., 0]


def _moved(
    autoencoder: Autoencoder, here: Float[Tensor, "B P"], move: Float[Tensor, "B P"]
) -> Float[Tensor, "B P"]:
    """Elsewhere, with angles wrapped."""
    there = here + DIFFERENCE * autoencoder.half_range * move
    return autoencoder.denormalize(autoencoder.normalize(there))


def _better(
    new: tuple[Tensor, Float[Tensor, "B L"]], old: tuple[Tensor, Float[Tensor, " B"]]
) -> tuple[Float[Tensor, "B P"], Float[Tensor, " B"]]:
    """Of each frame the place with the lower squared error, and that error."""
    place, error = new
    cost = _cost(error)
    lower = cost < old[1]
    return torch.where(lower[:, None], place, old[0]), torch.where(lower, cost, old[1])


__all__ = ["matched"]
