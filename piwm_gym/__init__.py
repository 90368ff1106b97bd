"""Physically interpretable world models as Gymnasium environments.

    import gymnasium as gym, piwm_gym
    env = gym.make("PIWM-CartPole-v0")

Importing registers the environments and nothing more: torch is imported when a model is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from piwm_gym.registration import register_environments

if TYPE_CHECKING:
    from piwm_gym.checkpoint import load
    from piwm_gym.real import make_real
    from piwm_gym.state_filter import StateFilter
    from piwm_gym.world_model import WorldModel

__version__ = "0.1.0"

_LAZY = {
    "StateFilter": "piwm_gym.state_filter",
    "WorldModel": "piwm_gym.world_model",
    "load": "piwm_gym.checkpoint",
    "make_real": "piwm_gym.real",
}

register_environments()


def __getattr__(name: str) -> Any:
    """Import the public functions and classes on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])


__all__ = ["StateFilter", "WorldModel", "load", "make_real"]
