"""What the simulator answers to one client; knows nothing of sockets."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from piwm_gym.courses import COURSES
from piwm_gym.donkey_sim import messages
from piwm_gym.donkey_sim.car import FRAME_DT, Command
from piwm_gym.donkey_sim.protocol import Message, number
from piwm_gym.donkey_sim.settings import ServerSettings
from piwm_gym.donkey_sim.simulator import Simulator, encode_image

PROTOCOL_VERSION = "2"
STANDING = Command(brake=1.0)
IMAGE_FORMATS = {"JPG": "JPEG", "PNG": "PNG", "TGA": "TGA"}
_log = logging.getLogger(__name__)


class Outlet(Protocol):
    """Where messages go."""

    def send(self, message: Message) -> None:
        """Send a message."""


class Session:
    """The conversation with one client, from its connection to its end.

    Args:
        settings: Of the simulator.
        outlet: Where answers go.

    Attributes:
        lockstep: Whether the clock waits for the client.
        quit: Whether the client asked the process to end.
    """

    def __init__(self, settings: ServerSettings, outlet: Outlet) -> None:
        self.settings = settings
        self.outlet = outlet
        self.lockstep = settings.clock == "lockstep"
        self.quit = False
        self.simulator: Simulator | None = None
        self._command = Command()
        self._late: deque[Message] = deque()
        self._postponed: tuple[int, Callable[[], None]] | None = None
        self._image_format, self._grey = "JPEG", False
        self._before_line = True
        self._seed: int | None = None
        self._handlers: dict[str, Callable[[Message], None]] = {
            "get_protocol_version": self._version,
            "get_scene_names": self._scene_names,
            "load_scene": self._load_scene,
            "control": self._control,
            "reset_car": self._reset_car,
            "set_position": self._set_position,
            "node_position": self._node_position,
            "cam_config": self._configure_camera,
            "set_random_seed": self._set_seed,
            "step_mode": self._step_mode,
            "exit_scene": self._exit_scene,
            "quit_app": self._quit_app,
        }

    def start(self) -> None:
        """Greet a client that has just connected."""
        if self.settings.menu:
            self._say("scene_selection_ready", loaded="1")
        else:
            self._load(self.settings.course)

    def handle(self, message: Message) -> None:
        """Answer a message; unknown ones are ignored, as by the real simulator."""
        kind = message.get("msg_type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            handler(message)

    def advance(self, report: bool = True) -> None:
        """Let one telemetry frame pass with the latest command.

        Args:
            report: Send telemetry; False when the client does not keep up.
        """
        if self.simulator is None:
            return
        if self._postponed is not None:
            frames, place = self._postponed
            self._postponed = (frames - 1, place) if frames > 1 else None
            if frames <= 1:
                place()
        self.simulator.step(*self._command)
        self._watch_line(self.simulator)
        if not report:
            return
        self._late.append(self._telemetry(self.simulator))
        if len(self._late) > self.settings.quirks.latency:
            self.outlet.send(self._late.popleft())

    def _say(self, kind: str, **fields: Any) -> None:
        self.outlet.send({"msg_type": kind, **fields})

    def _telemetry(self, simulator: Simulator) -> Message:
        frame = simulator.frame()
        image = encode_image(messages.to_grey(frame) if self._grey else frame, self._image_format)
        settings = self.settings
        return messages.telemetry_message(
            simulator.telemetry,
            image,
            simulator.course,
            settings.generation,
            settings.extended_telemetry,
        )

    def _watch_line(self, simulator: Simulator) -> None:
        course, node = simulator.course, simulator.telemetry.node
        if messages.approaches_start(course, node):
            self._before_line = True
        elif self._before_line and messages.crosses_start(course, node):
            self._before_line = False
            time = simulator.telemetry.time
            self._say("collision_with_starting_line", starting_line_index=0, timeStamp=time)

    def _version(self, message: Message) -> None:
        self._say("protocol_version", version=PROTOCOL_VERSION)

    def _scene_names(self, message: Message) -> None:
        self._say("scene_names", scene_names=list(messages.SCENES))

    def _load_scene(self, message: Message) -> None:
        name = message.get("scene_name")
        if self.simulator is None and name in messages.SCENES:
            self._load(name if name in COURSES else self.settings.course)

    def _load(self, course: str) -> None:
        s = self.settings
        self.simulator = Simulator(course, s.seed, s.car, s.camera)
        self._command = STANDING
        self._before_line = True
        self._late.clear()
        for _ in range(1 + s.quirks.repeat_car_loaded):
            self._say("car_loaded")
        if self.lockstep:
            for _ in range(1 + s.quirks.latency):
                self.advance()

    def _control(self, message: Message) -> None:
        if self.simulator is None:
            return
        asked = (number(message, key) for key in ("steering", "throttle", "brake"))
        kept = zip(asked, self._command, strict=True)
        self._command = Command(*(old if new is None else new for new, old in kept))
        if self.lockstep:
            self.advance()

    def _reset_car(self, message: Message) -> None:
        if self.simulator is None:
            return
        simulator = self.simulator

        def place() -> None:
            speed = simulator.telemetry.speed if self.settings.quirks.keep_speed else 0.0
            simulator.reset((*simulator.course.spawn, speed), self._take_seed())
            self._before_line = True

        self._command = STANDING
        self._place(place)

    def _set_position(self, message: Message) -> None:
        if self.simulator is None or not self.settings.extended_telemetry:
            return
        simulator = self.simulator
        pose = messages.read_position(message, simulator.telemetry.heading)
        if pose is not None:
            self._place(lambda: self._put(simulator, pose))

    def _put(self, simulator: Simulator, pose: tuple[float, float, float]) -> None:
        simulator.reset((*pose, 0.0), self._take_seed())
        self._before_line = False

    def _place(self, place: Callable[[], None]) -> None:
        """Move the car, perhaps late; in lock-step the answer is a telemetry message."""
        late = self.settings.quirks.stale_frames
        if late:
            self._postponed = (late + 1, place)
        else:
            place()
        if self.lockstep:
            self.advance()

    def _node_position(self, message: Message) -> None:
        index = number(message, "index")
        index = number(message, "n") if index is None else index
        if self.simulator is None or index is None:
            return
        course = self.simulator.course
        if index == int(index) and 0 <= index < len(course.path):
            self.outlet.send(messages.node_message(course, int(index)))

    def _configure_camera(self, message: Message) -> None:
        """Use what the client asks of the camera; 0 leaves that as it is.

        What is impossible leaves all of it as it is, with a complaint in the log.
        """
        if self.simulator is None:
            return
        scale = messages.UNITS_PER_METRE
        asked = {
            "width": _positive(message, "img_w", int),
            "height": _positive(message, "img_h", int),
            "fov": _positive(message, "fov", float),
            "up": _positive(message, "offset_y", lambda v: v / scale),
            "ahead": _positive(message, "offset_z", lambda v: v / scale),
            "pitch": _positive(message, "rot_x", float),
        }
        changes = {name: value for name, value in asked.items() if value is not None}
        try:
            camera = replace(self.simulator.renderer.settings, **changes)
        except ValueError as error:
            _log.warning("cam_config ignored: %s", error)
            return
        if camera != self.simulator.renderer.settings:
            self.simulator.set_camera(camera)
        depth = _positive(message, "img_d", int)
        self._grey = self._grey if depth is None else depth == 1
        form = str(message.get("img_enc")).upper()
        self._image_format = IMAGE_FORMATS.get(form, self._image_format)

    def _set_seed(self, message: Message) -> None:
        """Remember a seed for the next time that the car is put somewhere."""
        seed = number(message, "seed")
        if seed is not None and seed >= 0 and seed == int(seed):
            self._seed = int(seed)

    def _take_seed(self) -> int | None:
        seed, self._seed = self._seed, None
        return seed

    def _step_mode(self, message: Message) -> None:
        """Switch the clock; the only time step is that of telemetry."""
        step = number(message, "time_step")
        if step is not None and abs(step - FRAME_DT) > 1e-9:
            return
        mode = message.get("step_mode")
        if mode in ("synchronous", "asynchronous"):
            self.lockstep = mode == "synchronous"

    def _exit_scene(self, message: Message) -> None:
        if self.simulator is not None:
            self.simulator = None
            self._say("scene_selection_ready", loaded="1")

    def _quit_app(self, message: Message) -> None:
        self.quit = True


def _positive(message: Message, key: str, convert: Callable[[float], Any]) -> Any:
    value = number(message, key)
    return convert(value) if value is not None and value > 0 else None


__all__ = ["PROTOCOL_VERSION", "Outlet", "Session"]
