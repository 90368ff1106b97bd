"""Collection, the part that differs between systems: one collector per system."""

from piwm_gym.courses import Course
from piwm_gym.systems import unknown
from training.collectors.cartpole import CartPoleCollector
from training.collectors.collector import Collector, Trajectory
from training.collectors.donkey_car import DonkeyCarCollector
from training.collectors.lunar_lander import LunarLanderCollector

COLLECTORS: dict[str, type[Collector]] = {
    "cartpole": CartPoleCollector,
    "lunar_lander": LunarLanderCollector,
    "donkey_car": DonkeyCarCollector,
}


def get_collector(system: str, course: Course | None = None) -> Collector:
    """New collector for a system; on a course, where that has one.

    Raises:
        ValueError: No collector has this name; the nearest one is suggested.
    """
    if system not in COLLECTORS:
        raise ValueError(unknown("system", system, tuple(COLLECTORS)))
    collector = COLLECTORS[system]
    return collector() if course is None else collector.on(course)


__all__ = [
    "COLLECTORS",
    "CartPoleCollector",
    "Collector",
    "DonkeyCarCollector",
    "LunarLanderCollector",
    "Trajectory",
    "get_collector",
]
