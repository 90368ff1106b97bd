"""A client with a reading thread."""

import json
import socket
import threading
from typing import Any


class SimClient:
    def __init__(self, address: tuple[str, int], msg_handler: Any) -> None:
        self.msg_handler = msg_handler
        self.reading = True
        try:
            self.s = socket.create_connection(address)
        except ConnectionRefusedError:
            raise Exception("Could not connect to server.") from None
        self.s.settimeout(0.02)
        self.th = threading.Thread(target=self.read, daemon=True)
        self.th.start()
        msg_handler.on_connect(self)

    def send_now(self, msg: dict[str, Any]) -> None:
        self.s.sendall(json.dumps(msg).encode())

    def read(self) -> None:
        buffer = ""
        while self.reading:
            try:
                data = self.s.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            if not data:
                self.msg_handler.on_recv_message({"msg_type": "aborted"})
                return
            *lines, buffer = (buffer + data.decode()).split("\n")
            for line in filter(None, lines):
                message = json.loads(line)
                if "msg_type" in message:
                    self.msg_handler.on_recv_message(message)

    def close(self) -> None:
        self.reading = False
        self.th.join()
        self.s.close()
        self.msg_handler.on_close()
