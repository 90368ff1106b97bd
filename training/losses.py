"""Losses: pure functions that return numbers with their gradient, each citing its equation.

Sums over pixels and latent dimensions, means over the batch: the KL weight of 1 only means
something beside a reconstruction that is summed.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from piwm_gym.systems import System, Variable
from training.foreground import Foreground

CLIPPED = 0.1
"""What is left of an error that clipping will put right: without it, drawings drift ever further
beyond black, until training breaks down."""


def reconstruction(
    decoded: Float[Tensor, "B 3 H W"], frames: Float[Tensor, "B 3 H W"], foreground: Foreground
) -> Float[Tensor, ""]:
    """L_recon: squared error summed over pixels, the foreground's weighted more.

    Unweighted, an empty scene is a good optimum: what moves fills 4 % of the frame, or 1 %.
    """
    return _weighted(decoded.float() - frames, foreground, foreground(frames))


def drawing_error(
    decoded: Float[Tensor, "B 3 H W"], frames: Float[Tensor, "B 3 H W"], foreground: Foreground
) -> Float[Tensor, ""]:
    """L_recon of a decoder that has learned what it draws, and now is to draw nothing else.

    Pixels that look like foreground count as much as those that are: ghosts about Lunar Lander's
    hull, 46 grey levels at their brightest, made a pixel controller take another action in 2 of 100
    frames. What clipping will put right costs next to nothing: darker than black is black.
    """
    right = ((frames <= 0) & (decoded < 0)) | ((frames >= 1) & (decoded > 1))
    error = (decoded.float() - frames) * torch.where(right, CLIPPED, 1.0)
    return _weighted(error, foreground, foreground(frames) | foreground(decoded.detach()))


def _weighted(
    error: Float[Tensor, "B 3 H W"], foreground: Foreground, mask: Bool[Tensor, "B 1 H W"]
) -> Float[Tensor, ""]:
    """Squared error summed over pixels, those of the mask weighted more."""
    return ((1 + foreground.weight * mask) * error.square()).sum((1, 2, 3)).mean()


def foreground_error(
    decoded: Float[Tensor, "B 3 H W"], frames: Float[Tensor, "B 3 H W"], foreground: Foreground
) -> Float[Tensor, ""]:
    """Mean squared error over the pixels that are foreground in the frame or in the decoded one.

    Counting both sides punishes a missing pole and a ghost alike.
    """
    mask = (foreground(frames) | foreground(decoded)).float()
    error = (decoded - frames).square().mean(1, keepdim=True)
    return (error * mask).sum() / mask.sum()


def configuration_weights(system: System) -> Float[Tensor, " F"]:
    """Weights of the configuration's numbers, as networks see them, in the interpretability loss.

    The scene as a whole counts as one dimension. Eleven heights that count like x, y and theta
    would be four fifths of the loss, though a height may be as wrong in metres as a place and is
    drawn with far more pixels.

    Cosine and sine of an angle change by its error in radians; they are weighted so that it
    counts as the same fraction of the range as any other, which is also how far labels are off.
    """
    state = [_feature_weights(v, 1.0) for v in system.visible_variables]
    scene = [_feature_weights(v, len(system.scene_variables)) for v in system.scene_variables]
    return torch.cat(state + scene)


def _feature_weights(variable: Variable, share: float) -> Float[Tensor, " K"]:
    """Weights of what networks see of a variable, of which ``share`` count as one dimension."""
    scale = torch.pi**2 if variable.periodic else 1.0
    return torch.ones(variable.num_features) / share / scale


def interpretability(
    predicted: Float[Tensor, "B F"],
    proxy_mean: Float[Tensor, "B F"],
    weight: Float[Tensor, " F"],
) -> Float[Tensor, ""]:
    """L_interp (paper, equation 3): squared distance to the proxies' mean, normalised units."""
    return (weight * (predicted.float() - proxy_mean).square()).sum(-1).mean()


def robust_interpretability(
    predicted: Float[Tensor, "B F"],
    target: Float[Tensor, "B F"],
    weight: Float[Tensor, " F"],
    scale: float = 0.03,
) -> Float[Tensor, ""]:
    """L_interp that grows only linearly beyond differences of ``scale`` (Huber's loss).

    Where labels and readings have been put together, most are good to a hundredth of the range,
    and the few that are not, by far, would outweigh them.
    """
    apart = weight.sqrt() * (predicted.float() - target)
    loss = functional.huber_loss(apart, torch.zeros_like(apart), reduction="none", delta=scale)
    return 2 * loss.sum(-1).mean()


def interpretability_kl(
    predicted: Float[Tensor, "B F"],
    proxy_mean: Float[Tensor, "B F"],
    proxy_std: Float[Tensor, "B F"],
    weight: Float[Tensor, " F"],
    prediction_std: float = 0.05,
) -> Float[Tensor, ""]:
    """The paper's alternative: KL(N(predicted, prediction_std) || Gaussian fitted to the proxies).

    The prediction is a point; it is given a fixed width, so that the divergence is finite. A
    floor on the proxies' width keeps noise-free labels finite too.
    """
    std = proxy_std.clamp(min=1e-2)
    ratio = prediction_std / std
    distance = (predicted.float() - proxy_mean) / std
    return 0.5 * (weight * (ratio**2 + distance**2 - 1 - 2 * torch.log(ratio))).sum(-1).mean()


def latent_reconstruction(
    predicted: Float[Tensor, "B N C"], latent: Float[Tensor, "B N C"]
) -> Float[Tensor, ""]:
    """L_latent-rec (paper, L_physical): squared error of the latent, summed over its entries."""
    return (predicted.float() - latent).square().sum((1, 2)).mean()


def rollout_error(
    error: Float[Tensor, "B H D"],
    half_range: Float[Tensor, "D"],  # noqa: F821
) -> Float[Tensor, ""]:
    """L_dyn: squared error of a free rollout against the labels, each dimension normalised.

    A mean over the horizon rather than its end point: every step carries a label.

    Args:
        error: States of the rollout minus labels, as :meth:`System.difference` subtracts them.
        half_range: Half the documented range of each dimension.
    """
    return (error / half_range).square().mean()
