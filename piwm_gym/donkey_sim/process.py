"""The simulator in a process of its own, started from Python."""

import os
import queue
import subprocess
import sys
import tempfile
import threading
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import piwm_gym
from piwm_gym.checks import check_seconds
from piwm_gym.choices import unknown
from piwm_gym.donkey_sim.settings import ServerSettings

GRACE = 2.0
FIELDS = tuple(field.name for field in fields(ServerSettings))
OPTIONS = (*FIELDS, "settings", "timeout")
"""What :func:`launch` takes."""


class SimulatorProcess:
    """A running simulator; a context manager that ends it.

    Attributes:
        process: The process.
        host: Where it listens or whom it dials.
        port: The port.
    """

    def __init__(self, settings: ServerSettings, timeout: float) -> None:
        self.host, self.port = settings.host, settings.port
        root = str(Path(piwm_gym.__file__).parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "piwm_gym.donkey_sim", *to_arguments(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            self._wait_until_ready(timeout)
        except BaseException:
            self.close()
            raise

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self.process.poll()

    def close(self) -> None:
        """End the process; harmless if it has ended."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # the simulator ends when it sees this
        for end in (lambda: None, process.terminate, process.kill):
            end()
            try:
                process.wait(GRACE)
                break
            except subprocess.TimeoutExpired:
                continue
        process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait_until_ready(self, timeout: float) -> None:
        """Read the line that says where it listens."""
        lines: queue.Queue[bytes] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=timeout).decode().strip()
        except queue.Empty:
            raise TimeoutError(
                f"the simulator did not start within {timeout:g} s; expected it to say where it "
                "listens or whom it dials"
            ) from None
        if not line:
            code = self.process.wait(GRACE)
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise RuntimeError(f"the simulator ended at once with code {code}: {said}")
        self.port = int(line.rpartition(":")[2])


def launch(
    settings: ServerSettings | None = None, *, timeout: float = 60.0, **changes: Any
) -> SimulatorProcess:
    """Start a simulator in a process of its own, which ends with this one.

        with launch(course="hall", clock="lockstep", seed=3) as simulator:
            connect(simulator.port)

    Args:
        settings: Everything; default: listen on a free port.
        timeout: s until it must be ready.
        **changes: Fields of :class:`ServerSettings` to replace.

    Raises:
        ValueError: Unknown field or impossible value.
        RuntimeError: It ended at once, for instance because its port is in use.
        TimeoutError: It did not start in time.
    """
    for name in changes:
        if name not in FIELDS:
            raise ValueError(unknown("option", name, FIELDS))
    check_seconds("timeout", timeout)
    if not isinstance(settings, ServerSettings | None):
        raise ValueError(f"settings is {settings!r}; expected ServerSettings(...)")
    if settings is None:
        settings = ServerSettings(port=0)
        if changes.get("role") == "dial" and "port" not in changes:
            raise ValueError("role is 'dial' without a port; expected the port of the client")
    return SimulatorProcess(replace(settings, **{"watch_parent": True} | changes), timeout)


def to_arguments(settings: Any, default: Any = None, prefix: str = "--") -> list[str]:
    """Command line of settings: a flag for every field that is not the default.

    Args:
        settings: A dataclass; nested ones become flags with a dot.
        default: The same, with the defaults.
        prefix: Before each name.
    """
    default = type(settings)() if default is None else default
    arguments: list[str] = []
    for field in fields(settings):
        value, usual = getattr(settings, field.name), getattr(default, field.name)
        name = field.name.replace("_", "-")
        if is_dataclass(value):
            arguments += to_arguments(value, usual, f"{prefix}{name}.")
        elif isinstance(value, bool):
            arguments += [] if value == usual else [f"{prefix}{'' if value else 'no-'}{name}"]
        elif value != usual:
            arguments += [f"{prefix}{name}", str(value)]
    return arguments


__all__ = ["SimulatorProcess", "launch", "to_arguments"]
