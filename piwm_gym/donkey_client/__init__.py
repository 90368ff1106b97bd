"""Driving a Donkey Car simulator through the real ``gym-donkeycar`` client.

Importing this imports neither the package nor asyncore; connecting does.
"""

from piwm_gym.donkey_client.backend import choose_backend
from piwm_gym.donkey_client.env import DonkeyEnv
from piwm_gym.donkey_client.errors import DonkeyConnectionError, DonkeyError, DonkeyTimeoutError
from piwm_gym.donkey_client.session import Timeouts

__all__ = [
    "DonkeyConnectionError",
    "DonkeyEnv",
    "DonkeyError",
    "DonkeyTimeoutError",
    "Timeouts",
    "choose_backend",
]
