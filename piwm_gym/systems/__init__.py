"""Physics: one file per system, pure functions on batched tensors in SI units."""

from piwm_gym.choices import unknown
from piwm_gym.systems.cartpole import CartPole, CartPoleParams
from piwm_gym.systems.donkey_car import DonkeyCar, DonkeyCarParams
from piwm_gym.systems.lunar_lander import LunarLander, LunarLanderParams
from piwm_gym.systems.params import Params
from piwm_gym.systems.picture import Camera, FrameSpec, SideView
from piwm_gym.systems.system import System, Variable
from piwm_gym.systems.track import Track

SYSTEMS: dict[str, System] = {
    system.name: system for system in (CartPole(), LunarLander(), DonkeyCar())
}


def get_system(name: str) -> System:
    """System by its short name.

    Raises:
        ValueError: The name is not a system; the nearest one is suggested.
    """
    if name not in SYSTEMS:
        raise ValueError(unknown("system", name, tuple(SYSTEMS)))
    return SYSTEMS[name]


__all__ = [
    "SYSTEMS",
    "Camera",
    "CartPole",
    "CartPoleParams",
    "DonkeyCar",
    "DonkeyCarParams",
    "FrameSpec",
    "LunarLander",
    "LunarLanderParams",
    "Params",
    "SideView",
    "System",
    "Track",
    "Variable",
    "get_system",
    "unknown",
]
