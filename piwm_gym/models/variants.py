"""The four variants of the paper: {Extrinsic, Intrinsic} x {Gaussian, VectorQuantizer}."""

from piwm_gym.models.autoencoder import AutoencoderConfig, BottleneckFactory
from piwm_gym.models.direct import DirectDecoder
from piwm_gym.models.extrinsic import Extrinsic
from piwm_gym.models.gaussian import Gaussian
from piwm_gym.models.intrinsic import Intrinsic
from piwm_gym.models.physical import READERS
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.tokens import Grid
from piwm_gym.systems import System, unknown

VARIANTS = (
    "extrinsic-continuous",
    "extrinsic-discrete",
    "intrinsic-continuous",
    "intrinsic-discrete",
)
DRAWERS = ("transformer", "maps")
"""Kinds of D_p of extrinsic variants."""


def _gaussian(
    config: AutoencoderConfig, grid: Grid, merge: int, input_dim: int, num_physical: int
) -> Gaussian:
    flat = config.flat or num_physical > 0
    num_inputs = grid[0] * grid[1] // merge**2
    return Gaussian(num_inputs, input_dim, config.latent_dim, num_physical, flat, config.kl_weight)


def _quantizer(
    config: AutoencoderConfig, grid: Grid, merge: int, input_dim: int, num_physical: int
) -> VectorQuantizer:
    return VectorQuantizer(
        input_dim,
        grid,
        merge,
        config.latent_dim,
        num_physical,
        config.num_codes,
        config.commitment_weight,
    )


_ARCHITECTURES: dict[str, type[Extrinsic] | type[Intrinsic]] = {
    "extrinsic": Extrinsic,
    "intrinsic": Intrinsic,
}
_LATENTS: dict[str, BottleneckFactory] = {"continuous": _gaussian, "discrete": _quantizer}


def build_autoencoder(config: AutoencoderConfig, system: System) -> Extrinsic | Intrinsic:
    """Autoencoder of a variant.

    Raises:
        ValueError: The variant, reader or drawer is unknown, and the nearest one is suggested; or
            readings are to be matched, and there is nothing to match them with.
    """
    if config.reader not in READERS:
        raise ValueError(unknown("reader", config.reader, tuple(READERS)))
    if config.drawer not in DRAWERS:
        raise ValueError(unknown("drawer", config.drawer, DRAWERS))
    if config.variant not in VARIANTS:
        raise ValueError(unknown("variant", config.variant, VARIANTS))
    if config.matching and (config.direct.patch is None or system.camera is None):
        raise ValueError(
            f"matching is {config.matching}; expected 0 for {system.name}, or a system with a "
            "camera that drives along, and a direct decoder"
        )
    architecture, latent = config.variant.split("-")
    autoencoder = _ARCHITECTURES[architecture](config, system, _LATENTS[latent])
    if config.direct.patch is not None:
        autoencoder.direct = DirectDecoder(config.direct, system)
        autoencoder.use("direct")
    return autoencoder


__all__ = ["DRAWERS", "VARIANTS", "build_autoencoder"]
