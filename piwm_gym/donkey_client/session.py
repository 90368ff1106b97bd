"""A conversation with one simulator: from the connection to a frame per request."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from piwm_gym.checks import check_seconds
from piwm_gym.donkey_client import messages
from piwm_gym.donkey_client.backend import Backend
from piwm_gym.donkey_client.errors import DonkeyConnectionError, DonkeyError, DonkeyTimeoutError
from piwm_gym.donkey_client.mailbox import Mailbox, Received

ANSWER = 1.0
"""How long a simulator that knows the question for its protocol's version takes to answer, s."""
RETRY_FRAMES = 20
"""Frames after which a request to put the car somewhere is repeated."""


@dataclass(frozen=True)
class Timeouts:
    """How long each step of the conversation may take, s.

    Attributes:
        connect: Until the simulator is connected.
        load: Until it has offered its scenes, and again until it has loaded one.
        frame: Until a request is answered by a frame.
        reset: Until the car stands where it was put.
    """

    connect: float = 30.0
    load: float = 30.0
    frame: float = 5.0
    reset: float = 15.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_seconds(field.name, getattr(self, field.name))


class Session:
    """Handshake, then one frame per request.

    Args:
        backend: The connection.
        timeouts: How long to wait for what.
    """

    def __init__(self, backend: Backend, timeouts: Timeouts) -> None:
        self._backend = backend
        self._mailbox: Mailbox = backend.mailbox
        self._timeouts = timeouts
        self._answers = True

    @property
    def crossings(self) -> int:
        """How often the simulator has said that the starting line was crossed."""
        return self._mailbox.count("collision_with_starting_line")

    def load(self, scene: str | None, frame_size: tuple[int, int], car_name: str) -> None:
        """Wait for the simulator, choose a scene, configure car and camera.

        Args:
            scene: Name of a scene; None for the first on offer. A simulator that is in a scene
                already, as race servers are, is not asked to leave it.
            frame_size: Height and width of the frames to ask for.
            car_name: Name over the car.

        Raises:
            DonkeyError: No connection, no such scene, no car.
        """
        box, limit = self._mailbox, self._timeouts
        self._wait(lambda: box.connected, limit.connect, "its connection")
        self._wait(self._greeted, limit.load, "its first message (scene_selection_ready)")
        if box.get("need_car_config") is not None:
            self.send(messages.car_config(car_name))
        if not self._in_scene():
            self._choose(scene)
            self._wait(self._in_scene, limit.load, "its car (car_loaded)")
        self.send(messages.car_config(car_name))
        self.send(messages.camera_config(*frame_size))

    def send(self, message: messages.Message) -> None:
        """Send a message that needs no answer."""
        self._backend.send(message)

    def drive(self, steering: float, throttle: float, brake: float = 0.0) -> Received:
        """Send a request and wait for the frame that answers it.

        In lock-step that is the next frame; in real time the first one that the simulator made
        later than all that had arrived when the request left.

        Returns:
            The telemetry message.

        Raises:
            DonkeyError: No such frame in time.
        """
        since = self._mailbox.time()
        self.send(messages.control(steering, throttle, brake))
        what = f"a frame later than {since:.3f} s" if math.isfinite(since) else "its first frame"
        self._wait(lambda: self._mailbox.time() > since, self._timeouts.frame, what)
        return self._newest()

    def stand(
        self, problem: Callable[[Received], str | None], request: messages.Message
    ) -> Received:
        """Put the car somewhere and brake until a frame shows it standing there.

        Frames of before are told apart by what they show, not by their time, which may start
        anew. The request is repeated, because some simulators keep the speed through it.

        Args:
            problem: What is not yet as wanted in a telemetry message; None if nothing is.
            request: Puts the car there.

        Raises:
            DonkeyTimeoutError: It did not come to stand there in time.
        """
        deadline = time.monotonic() + self._timeouts.reset
        frames = 0
        while True:
            if frames % RETRY_FRAMES == 0:
                self.send(request)
            message = self._brake()
            frames += 1
            wrong = problem(message)
            if wrong is None:
                return message
            if time.monotonic() > deadline:
                raise DonkeyTimeoutError(
                    f"{self._backend.peer} did not put the car where it was asked to within "
                    f"{self._timeouts.reset:g} s: in the last of {frames} frames {wrong}"
                )

    def take_hit(self) -> str:
        """What was hit since the last call, or ``"none"``."""
        hits = self._mailbox.take_hits()
        return hits[0] if hits else "none"

    def close(self) -> None:
        """Close the connection."""
        self._backend.close()

    def _brake(self) -> Received:
        """The newest frame after one more, whatever its time.

        A simulator in lock-step may answer more than controls with frames. Its answer to a
        question comes after all that it had to say before, so no frame is left on the way that
        would pass for the answer to the next action.
        """
        box = self._mailbox
        frames, answers = box.count("telemetry"), box.count("protocol_version")
        self.send(messages.control(0.0, 0.0, 1.0))
        if self._answers:
            self.send(messages.get_protocol_version())
        self._wait(lambda: box.count("telemetry") > frames, self._timeouts.frame, "a frame")
        if self._answers:
            # Old builds do not answer; they run in real time, where nothing needs to be in step.
            self._answers = box.wait(lambda: box.count("protocol_version") > answers, ANSWER)
        return self._newest()

    def _newest(self) -> Received:
        message = self._mailbox.get("telemetry")
        assert message is not None
        return message

    def _greeted(self) -> bool:
        kinds = ("scene_selection_ready", "scene_names", "need_car_config")
        return self._in_scene() or any(self._mailbox.get(kind) is not None for kind in kinds)

    def _in_scene(self) -> bool:
        return any(self._mailbox.get(kind) is not None for kind in ("car_loaded", "telemetry"))

    def _choose(self, scene: str | None) -> None:
        self.send(messages.get_scene_names())
        box = self._mailbox
        self._wait(
            lambda: box.get("scene_names") is not None or self._in_scene(),
            self._timeouts.load,
            "its scenes (scene_names)",
        )
        offered = (box.get("scene_names") or {}).get("scene_names")
        if offered is None:
            return
        if not isinstance(offered, list) or not all(isinstance(name, str) for name in offered):
            raise DonkeyError(f"scene_names is {offered!r}; expected a list of names")
        if scene is not None and scene not in offered:
            from piwm_gym.systems import unknown

            raise DonkeyError(unknown("scene", scene, offered))
        if not offered:
            raise DonkeyError(f"{self._backend.peer} offers no scene")
        self.send(messages.load_scene(scene or offered[0]))

    def _wait(self, ready: Callable[[], bool], timeout: float, what: str) -> None:
        if self._mailbox.wait(ready, timeout):
            return
        peer = self._backend.peer
        if self._mailbox.lost is not None:
            raise DonkeyConnectionError(
                f"lost the connection to {peer}, while waiting for {what}: {self._mailbox.lost}; "
                "reset connects anew"
            )
        raise DonkeyTimeoutError(f"waited {timeout:g} s for {what} from {peer}; {self._history()}")

    def _history(self) -> str:
        """What has come so far, and what may help."""
        if not self._mailbox.connected:
            return f"nobody has connected; {self._backend.peer.advice}"
        kinds = ", ".join(self._mailbox.kinds) or "nothing"
        unfinished = self._backend.unfinished()
        tail = f" and {unfinished} characters of an unfinished message" if unfinished else ""
        return (
            f"it is connected and has sent {kinds}{tail}; reset connects anew: if that does not "
            "help, look whether the simulator is stuck or paused, and start it again"
        )


__all__ = ["Session", "Timeouts"]
