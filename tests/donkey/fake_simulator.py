"""A minimal simulator for the client's tests: the protocol, a point on a line, and faults."""

import base64
import io
import json
import math
import random
import socket
import threading
import time
from typing import Any

from PIL import Image

SCALE, DT = 8.0, 0.05


def jpeg(red: int, size: tuple[int, int] = (120, 160)) -> str:
    """A picture of one colour, base64."""
    stream = io.BytesIO()
    Image.new("RGB", size[::-1], (red, 40, 90)).save(stream, "JPEG", quality=95)
    return base64.b64encode(stream.getvalue()).decode()


class FakeSimulator:
    """Drives straight along its heading at the speed ``throttle`` m/s, at once.

    Args:
        role: ``"listen"`` or ``"dial"``.
        port: Port to dial.
        realtime: Telemetry every ``period`` s; else an answer to whatever moves the car.
        period: Seconds between telemetry messages.
        menu: Whether it starts in the menu.
        extended: Whether telemetry has positions, velocity and cte.
        generation: 2019, 2021 or 2022.
        size: Height and width of the frames, whatever is asked for.
        pieces: Cut what is sent at random places.
        coasting: Frames for which the speed survives a reset.
        stale: Messages from before a reset that come after it.
        comma: Decimal commas.
        mute: After so many telemetry messages nothing is sent any more.
        garbage: Bytes sent in place of the telemetry message of index ``mute``.
        answers: Whether it tells its protocol's version.
        scenes: Names in the menu.
    """

    def __init__(self, role: str = "listen", port: int = 0, **faults: Any) -> None:
        self.realtime = faults.pop("realtime", False)
        self.period = faults.pop("period", 0.01)
        self.menu = faults.pop("menu", True)
        self.extended = faults.pop("extended", True)
        self.generation = faults.pop("generation", 2022)
        self.size = faults.pop("size", (120, 160))
        self.pieces = faults.pop("pieces", False)
        self.coasting = faults.pop("coasting", 0)
        self.stale = faults.pop("stale", 0)
        self.comma = faults.pop("comma", False)
        self.mute = faults.pop("mute", math.inf)
        self.garbage = faults.pop("garbage", b"")
        self.answers = faults.pop("answers", True)
        self.scenes = faults.pop("scenes", ["generated_road", "generated_track"])
        assert not faults, faults
        self.x, self.y, self.heading, self.speed, self.time = 1.0, 2.0, 0.5, 0.0, 0.0
        self.throttle = self.steering = 0.0
        self.hit = "none"
        self.sent, self.received = 0, [{}]
        self.coast, self.old = 0, []
        self.history: list[dict[str, Any]] = []
        self._random = random.Random(0)
        self._server = None
        self._port = port
        self._socket: socket.socket | None = None
        self._over = threading.Event()
        if role == "listen":
            self._server = socket.create_server(("127.0.0.1", port))
            self._port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(role,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        """Vanish."""
        self._over.set()
        for end in (self._socket, self._server):
            if end is not None:
                end.close()
        self._thread.join(2)

    def __enter__(self) -> "FakeSimulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, role: str) -> None:
        try:
            if role == "listen":
                assert self._server is not None
                self._server.settimeout(10)
                self._socket, _ = self._server.accept()
            else:
                self._socket = socket.create_connection(("127.0.0.1", self._port), 10)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._converse(self._socket)
        except OSError:
            pass

    def _converse(self, connection: socket.socket) -> None:
        self._send({"msg_type": "scene_selection_ready", "loaded": "1"} if self.menu else LOADED)
        buffer, decoder, due = "", json.JSONDecoder(), time.monotonic()
        connection.settimeout(self.period if self.realtime else 0.2)
        while not self._over.is_set():
            try:
                data = connection.recv(4096)
                if not data:
                    return
                buffer += data.decode()
            except TimeoutError:
                pass
            while buffer:
                try:
                    message, end = decoder.raw_decode(buffer)
                except ValueError:
                    break
                buffer = buffer[end:]
                self._answer(message)
            if self.realtime and not self.menu and time.monotonic() >= due:
                due = time.monotonic() + self.period
                self._advance()

    def _answer(self, message: dict[str, str]) -> None:
        assert all(isinstance(value, str) for value in message.values()), message
        self.received.append(message)
        kind = message["msg_type"]
        if kind == "get_protocol_version" and self.answers:
            self._send({"msg_type": "protocol_version", "version": "2"})
        elif kind == "get_scene_names":
            self._send({"msg_type": "scene_names", "scene_names": self.scenes})
        elif kind == "load_scene":
            self.menu = False
            self._send(LOADED)
            self._reply()
        elif kind == "reset_car":
            self.old = [self._telemetry() for _ in range(self.stale)] if self.speed else []
            self.x, self.y, self.heading = 1.0, 2.0, 0.5
            self.coast = self.coasting if self.speed else 0
            self._reply()
        elif kind == "set_position":
            self.x, self.y = float(message["pos_x"]) / SCALE, float(message["pos_z"]) / SCALE
            yaw = 2 * math.atan2(float(message["Qy"]), float(message["Qw"]))
            self.heading, self.speed = math.pi / 2 - yaw, 0.0
            self._reply()
        elif kind == "control":
            self.steering, self.throttle = float(message["steering"]), float(message["throttle"])
            self.coast = max(0, self.coast - 1)
            if not self.coast:
                self.speed = self.throttle
            self._reply()

    def _reply(self) -> None:
        if not self.realtime:
            self._advance()

    def _advance(self) -> None:
        self.time += DT
        self.x += DT * self.speed * math.cos(self.heading)
        self.y += DT * self.speed * math.sin(self.heading)
        if self.sent >= self.mute:
            if self.sent == self.mute:
                self._write(self.garbage)
            self.sent += 1
            return
        self.sent += 1
        self._send(self.old.pop() if self.old else self._telemetry())

    def _telemetry(self) -> dict[str, Any]:
        unit = 1.0 if self.generation == 2022 else SCALE
        message: dict[str, Any] = {
            "msg_type": "telemetry",
            "steering_angle": self.steering,
            "throttle": self.throttle,
            "speed": abs(self.speed) * unit,
            "image": jpeg(self.sent % 200 + 20, self.size),
            "hit": self.hit,
            "time": self.time,
        }
        if self.generation > 2019:
            message |= {"gyro_x": 0.0, "gyro_y": 0.0, "gyro_z": 0.0}
            message["yaw"] = math.degrees(math.pi / 2 - self.heading) % 360
        if self.generation == 2021:
            message["gyro_w"] = 1.0
        if self.extended:
            message |= {"pos_x": self.x * unit, "pos_y": 0.5, "pos_z": self.y * unit}
            message["cte"] = (self.y - 2.0) * SCALE
            message["vel_z"] = self.speed * unit
        self.hit = "none"
        self.history.append(message)
        return message

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, separators=(",", ":"))
        if self.comma:
            text = text.replace(
                f":{message.get('time')},", f":{message.get('time')},".replace(".", ",")
            )
        self._write(text.encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        while data:
            cut = self._random.randint(1, 2000) if self.pieces else len(data)
            self._socket.sendall(data[:cut])
            data = data[cut:]


LOADED = {"msg_type": "car_loaded"}
