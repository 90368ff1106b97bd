"""Networks: vision and physical autoencoders, bottlenecks, learnable dynamics."""

from piwm_gym.models.autoencoder import (
    VARIANTS,
    Autoencoder,
    AutoencoderConfig,
    Extrinsic,
    Intrinsic,
    build_autoencoder,
)
from piwm_gym.models.dynamics import Dynamics

__all__ = [
    "VARIANTS",
    "Autoencoder",
    "AutoencoderConfig",
    "Dynamics",
    "Extrinsic",
    "Intrinsic",
    "build_autoencoder",
]
