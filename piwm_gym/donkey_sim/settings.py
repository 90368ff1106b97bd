"""Options of the simulator's process; also its command line."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from piwm_gym.checks import check_host, check_seconds, check_whole
from piwm_gym.choices import unknown
from piwm_gym.courses import DEFAULT_COURSE, get_course
from piwm_gym.donkey_sim.camera import CameraSettings
from piwm_gym.donkey_sim.car import CarSettings

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 9091

Fault = Literal["none", "drop", "exit", "silent", "malformed", "truncated", "oversized", "endless"]


@dataclass(frozen=True)
class Quirks:
    """Misbehaviour seen in the field or to be prepared for; all off by default.

    Attributes:
        repeat_car_loaded: How many times more car_loaded is sent than once.
        latency: Telemetry frames that each message is late.
        stale_frames: Telemetry frames that still show the old place after a reset.
        keep_speed: The car keeps its speed through a reset.
        decimal_comma: Numbers are written with a comma, as under some locales.
        cut_segments: Messages arrive in pieces, cut at random places.
        fault: What goes wrong once: drop the connection; exit the process; be silent from then
            on; one malformed message; a message that is cut off, with the connection; one of 32
            MiB; one that never ends.
        fault_after: Telemetry messages of a connection that are sent before the fault.
    """

    repeat_car_loaded: int = 0
    latency: int = 0
    stale_frames: int = 0
    keep_speed: bool = False
    decimal_comma: bool = False
    cut_segments: bool = False
    fault: Fault = "none"
    fault_after: int = 10

    def __post_init__(self) -> None:
        for name in ("repeat_car_loaded", "latency", "stale_frames", "fault_after"):
            check_whole(name, getattr(self, name), 0)
        if self.fault not in get_args(Fault):
            raise ValueError(unknown("fault", self.fault, get_args(Fault)))


@dataclass(frozen=True)
class ServerSettings:
    """An embedded, headless stand-in for the Donkey Car simulator.

    Attributes:
        role: Listen for a client, as simulators since 2020 do, or dial one that listens, as
            those before do.
        host: Where to listen or whom to dial. Others than this machine can connect only if this
            is not a loopback address.
        port: The port; 0 listens on a free one. The port is printed.
        course: A built-in course (meadow, hall, hills) or random-<seed>. The real simulator's
            scene names all stand for it; a course's own name stands for itself.
        clock: Telemetry 20 times a second, or one telemetry message per control message.
        seed: Of bumps and camera effects. The same seed and the same messages give the same
            bytes in lock-step.
        generation: Year of the simulator whose fields and units are sent: 2019 and 2021 send
            simulator units, 2022 metres.
        extended_telemetry: Send position, velocity and cross-track error, as races do not.
        menu: Begin in the menu; otherwise in the scene, with a car at once.
        once: End with the first connection instead of waiting for the next.
        connect_timeout: Seconds to go on dialling.
        watch_parent: End when standard input is closed, which it is when the parent ends.
        car: Constants of the car.
        camera: The camera.
        quirks: Misbehaviour.
    """

    role: Literal["listen", "dial"] = "listen"
    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    course: str = DEFAULT_COURSE
    clock: Literal["realtime", "lockstep"] = "realtime"
    seed: int = 0
    generation: Literal[2019, 2021, 2022] = 2022
    extended_telemetry: bool = True
    menu: bool = True
    once: bool = False
    connect_timeout: float = 30.0
    watch_parent: bool = False
    car: CarSettings = field(default_factory=CarSettings)
    camera: CameraSettings = field(default_factory=CameraSettings)
    quirks: Quirks = field(default_factory=Quirks)

    def __post_init__(self) -> None:
        choices = {
            "role": ("listen", "dial"),
            "clock": ("realtime", "lockstep"),
            "generation": (2019, 2021, 2022),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                expected = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {expected}")
        parts = {"car": CarSettings, "camera": CameraSettings, "quirks": Quirks}
        for name, kind in parts.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; expected {kind.__name__}(...)"
                )
        check_host("host", self.host)
        check_whole("port", self.port)
        lowest = 1 if self.role == "dial" else 0
        if not lowest <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; expected {lowest} to 65535 to {self.role}")
        check_whole("seed", self.seed, 0)
        check_seconds("connect_timeout", self.connect_timeout)
        get_course(self.course)


__all__ = ["DEFAULT_PORT", "LOOPBACK", "Fault", "Quirks", "ServerSettings"]
