"""Where the thread that reads the socket leaves messages, and the environment waits for them."""

import math
from collections import Counter
from collections.abc import Callable
from threading import Condition
from typing import Any

Received = dict[str, Any]


class Mailbox:
    """Messages of one simulator, for one reader.

    Of telemetry only the newest is kept, so that a slow reader acts on what is, not on what was;
    collisions and crossings of the starting line in between are not lost.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._connected = False
        self._lost: str | None = None
        self._newest: dict[str, Received] = {}
        self._hits: list[str] = []
        self._counts: Counter[str] = Counter()

    def connect(self) -> None:
        """A simulator is at the other end now."""
        with self._changed:
            self._connected = True
            self._changed.notify_all()

    def lose(self, reason: str) -> None:
        """The connection is lost; the first reason stays."""
        with self._changed:
            self._lost = self._lost or reason
            self._changed.notify_all()

    def put(self, message: Any) -> None:
        """Leave a message; what is not one (keep-alives, other JSON) is ignored."""
        kind = message.get("msg_type") if isinstance(message, dict) else None
        if not isinstance(kind, str):
            return
        with self._changed:
            self._newest[kind] = message
            self._counts[kind] += 1
            if kind == "telemetry" and message.get("hit", "none") != "none":
                self._hits.append(str(message["hit"]))
            self._changed.notify_all()

    @property
    def connected(self) -> bool:
        """Whether a simulator has connected."""
        return self._connected

    @property
    def lost(self) -> str | None:
        """Why the connection was lost; None while it is not."""
        return self._lost

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of messages that have come."""
        with self._changed:
            return tuple(self._newest)

    def get(self, kind: str) -> Received | None:
        """Newest message of a kind."""
        with self._changed:
            return self._newest.get(kind)

    def count(self, kind: str) -> int:
        """How many messages of a kind have come."""
        return self._counts[kind]

    def time(self) -> float:
        """Simulator time of the newest frame, s; minus infinity if there is none."""
        message = self.get("telemetry") or {}
        time = message.get("time")
        return float(time) if isinstance(time, int | float) else -math.inf

    def take_hits(self) -> list[str]:
        """What was hit since the last call."""
        with self._changed:
            hits, self._hits = self._hits, []
            return hits

    def wait(self, ready: Callable[[], bool], timeout: float) -> bool:
        """Wait until something is so.

        Args:
            ready: Asked whenever a message has come.
            timeout: Seconds.

        Returns:
            Whether it is so; false after the time-out, or when the connection is lost.
        """
        with self._changed:
            self._changed.wait_for(lambda: ready() or self._lost is not None, timeout)
            return ready()


__all__ = ["Mailbox", "Received"]
