"""Framing of the simulator's protocol: JSON objects over TCP.

The simulator ends each of its messages with a newline. Clients send bare objects without a
separator, several in one segment or one in several, so they are told apart by their braces.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]

HEARTBEAT = b"{}\n"
MAX_MESSAGE = 64 * 1024
"""Bytes; clients' messages have a few hundred."""

_OUTSIDE = re.compile(rb'[{}"]')
_INSIDE = re.compile(rb'["\\]')
_NUMBER = re.compile(r":(-?\d+)(?:\.(\d+))?(?:e([-+]\d+))?(?=[,}])")


class ProtocolError(Exception):
    """The other side breaks the framing, so that nothing that follows can be understood."""


class MessageParser:
    """Splits a stream of bytes into messages.

    Args:
        limit: Longest message, bytes.

    Attributes:
        malformed: Number of objects that were skipped because they are not JSON.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self.limit = limit
        self.malformed = 0
        self._buffer = bytearray()
        self._position = 0
        self._depth = 0
        self._in_text = False

    def feed(self, data: bytes) -> list[Message]:
        """Take in more bytes.

        Returns:
            The messages that they complete. Bytes between objects are skipped.

        Raises:
            ProtocolError: An object is longer than the limit.
        """
        self._buffer += data
        messages = []
        while (end := self._find_end()) is not None:
            message = self._read(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._position = 0
            if message is not None:
                messages.append(message)
        if not self._depth:
            self._buffer.clear()
            self._position = 0
        if len(self._buffer) > self.limit:
            raise ProtocolError(
                f"a message has more than {self.limit} bytes and has not ended; expected JSON "
                "objects of a few hundred"
            )
        return messages

    def _find_end(self) -> int | None:
        """Position after the closing brace of the object that the buffer begins with."""
        while True:
            match = (_INSIDE if self._in_text else _OUTSIDE).search(self._buffer, self._position)
            if match is None:
                self._position = len(self._buffer)
                return None
            found = match.group()
            if found == b"\\":
                if match.end() == len(self._buffer):  # what it escapes has not arrived yet
                    self._position = match.start()
                    return None
                self._position = match.end() + 1
                continue
            self._position = match.end()
            if found == b'"':
                self._in_text = not self._in_text and self._depth > 0
            elif found == b"{":
                if not self._depth:
                    del self._buffer[: match.start()]
                    self._position = 1
                self._depth += 1
            elif self._depth:
                self._depth -= 1
                if not self._depth:
                    return self._position

    def _read(self, text: bytes) -> Message | None:
        try:
            message: Message = json.loads(text)
        except (ValueError, RecursionError):
            self.malformed += 1
            return None
        return message


def encode(message: Mapping[str, Any], decimal_comma: bool = False) -> bytes:
    """Bytes of a message, as the simulator sends it.

    Args:
        message: Its fields.
        decimal_comma: Write numbers as simulators do under a German or French locale.
    """
    text = json.dumps(message, separators=(",", ":"), allow_nan=False)
    if decimal_comma:
        text = _NUMBER.sub(_with_comma, text)
    return text.encode() + b"\n"


def _with_comma(match: re.Match[str]) -> str:
    whole, decimals, exponent = match.groups()
    return f":{whole}{f',{decimals}' if decimals else ''}{f'E{exponent}' if exponent else ''}"


def number(message: Mapping[str, Any], key: str) -> float | None:
    """A client's number, which is a string; None if it is missing or anything else.

    The real simulator takes no notice of JSON numbers in clients' messages.
    """
    value = message.get(key)
    if not isinstance(value, str):
        return None
    try:
        result = float(value)
    except ValueError:
        return None
    return result if abs(result) < float("inf") else None


__all__ = [
    "HEARTBEAT",
    "MAX_MESSAGE",
    "Message",
    "MessageParser",
    "ProtocolError",
    "encode",
    "number",
]
