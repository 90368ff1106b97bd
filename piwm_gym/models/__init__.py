"""Networks: vision and physical autoencoders, bottlenecks, learnable dynamics."""

from piwm_gym.models.autoencoder import Autoencoder, AutoencoderConfig
from piwm_gym.models.dynamics import Dynamics
from piwm_gym.models.extrinsic import Extrinsic
from piwm_gym.models.intrinsic import Intrinsic
from piwm_gym.models.variants import VARIANTS, build_autoencoder

__all__ = [
    "VARIANTS",
    "Autoencoder",
    "AutoencoderConfig",
    "Dynamics",
    "Extrinsic",
    "Intrinsic",
    "build_autoencoder",
]
