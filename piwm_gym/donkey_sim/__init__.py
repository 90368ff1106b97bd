"""An embedded, headless stand-in for the Donkey Car simulator.

In this process: :class:`Simulator`. As a process that speaks the simulator's protocol:
``python -m piwm_gym.donkey_sim`` or :func:`launch`.
"""

from piwm_gym.donkey_sim.camera import CameraSettings
from piwm_gym.donkey_sim.car import CarSettings
from piwm_gym.donkey_sim.process import SimulatorProcess, launch
from piwm_gym.donkey_sim.settings import Quirks, ServerSettings
from piwm_gym.donkey_sim.simulator import Simulator, Telemetry

__all__ = [
    "CameraSettings",
    "CarSettings",
    "Quirks",
    "ServerSettings",
    "Simulator",
    "SimulatorProcess",
    "Telemetry",
    "launch",
]
