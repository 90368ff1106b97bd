"""An embedded, headless stand-in for the Donkey Car simulator.

In this process: :class:`Simulator`. As a process that speaks the simulator's protocol:
``python -m piwm_gym.donkey_sim``.
"""

from piwm_gym.donkey_sim.camera import CameraSettings
from piwm_gym.donkey_sim.car import CarSettings
from piwm_gym.donkey_sim.simulator import Simulator, Telemetry

__all__ = ["CameraSettings", "CarSettings", "Simulator", "Telemetry"]
