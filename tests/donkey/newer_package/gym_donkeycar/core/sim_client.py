"""A client with a reading thread."""

import json
import select
import socket
import threading
import time
from typing import Any


class SimClient:
    def __init__(self, address: tuple[str, int], msg_handler: Any) -> None:
        self.msg_handler = msg_handler
        self.do_process_msgs = True
        try:
            self.s = socket.create_connection(address)
        except ConnectionRefusedError:
            raise Exception("Could not connect to server.") from None
        self.th = threading.Thread(target=self.proc_msg, args=(self.s,), daemon=True)
        self.th.start()
        msg_handler.on_connect(self)

    def send_now(self, msg: dict[str, Any]) -> None:
        self.s.sendall(json.dumps(msg).encode())

    def proc_msg(self, sock: Any) -> None:
        """Like the original's, it takes the end of a connection for silence, and is in no hurry."""
        sock.setblocking(False)
        buffer = ""
        while self.do_process_msgs:
            time.sleep(0.001)
            if not select.select([sock], [], [], 0.02)[0]:
                continue
            try:
                buffer += sock.recv(1 << 18).decode()
            except Exception:
                self.msg_handler.on_recv_message({"msg_type": "aborted"})
                return
            *lines, buffer = buffer.split("\n")
            for line in filter(None, lines):
                message = json.loads(line)
                if "msg_type" in message:
                    self.msg_handler.on_recv_message(message)

    def close(self) -> None:
        self.do_process_msgs = False
        self.th.join()
        self.s.close()
        self.msg_handler.on_close()
