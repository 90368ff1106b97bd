"""What handlers of messages look like."""

from abc import ABC, abstractmethod
from typing import Any


class IMesgHandler(ABC):
    @abstractmethod
    def on_connect(self, client: Any) -> None: ...

    @abstractmethod
    def on_recv_message(self, message: dict[str, Any]) -> None: ...

    @abstractmethod
    def on_close(self) -> None: ...

    @abstractmethod
    def on_disconnect(self) -> None: ...
