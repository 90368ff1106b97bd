"""How the state and the parameters of each real simulator are read and written.

The one place that knows the insides of the real environments; the real twin
(:mod:`piwm_gym.real`) and collection use it.
"""

from piwm_gym.twins.base import Twin
from piwm_gym.twins.cartpole import CartPoleTwin
from piwm_gym.twins.donkey_car import DonkeyCarTwin
from piwm_gym.twins.lunar_lander import EngineDraws, LunarLanderTwin

TWINS: dict[str, type[Twin]] = {
    "cartpole": CartPoleTwin,
    "donkey_car": DonkeyCarTwin,
    "lunar_lander": LunarLanderTwin,
}

__all__ = ["TWINS", "CartPoleTwin", "DonkeyCarTwin", "EngineDraws", "LunarLanderTwin", "Twin"]
