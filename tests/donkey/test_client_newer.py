"""The backend for the generation of gym-donkeycar that dials, against a package of its surface."""

import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from piwm_gym.donkey_client import (
    DonkeyConnectionError,
    DonkeyEnv,
    DonkeyError,
    Timeouts,
    backend,
    choose_backend,
)
from piwm_gym.donkey_sim import Quirks
from tests.donkey.fake_simulator import FakeSimulator
from tests.donkey.test_client_faults import free_port, telemetry

BRIEF = Timeouts(connect=0.4, load=5, frame=0.3, reset=5)
PATIENT = Timeouts(connect=5, load=10, frame=10, reset=10)
ACTION = np.array([0.0, 0.5], np.float32)
OURS = "piwm_gym.donkey_client.modern"


def is_theirs(name: str) -> bool:
    return name.split(".")[0] == "gym_donkeycar" or name == OURS


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in is what is installed."""
    for name in filter(is_theirs, tuple(sys.modules)):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(Path(__file__).parent / "newer_package")
    yield
    for name in filter(is_theirs, tuple(sys.modules)):
        del sys.modules[name]


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("fault", [{}, {"realtime": True}, {"pieces": True}])
def test_drives(fault: dict[str, Any]) -> None:
    assert choose_backend() == "modern"
    with FakeSimulator(**fault) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=Timeouts(5, 5, 5, 5))
        _, info = env.reset()
        assert (info["x"], info["y"], info["generation"]) == (1, 2, "modern")
        for _ in range(10):
            *_, info = env.step(ACTION)
        assert info["speed"] == 0.5
        env.close()
        env.close()


@pytest.mark.usefixtures("newer")
def test_faults() -> None:
    port = free_port()
    expected = rf"127.0.0.1:{port} within 0.4 s .*start.*, or use role='dial' for"
    with pytest.raises(DonkeyConnectionError, match=expected):
        DonkeyEnv(port=port, timeouts=BRIEF).reset()
    with pytest.raises(DonkeyConnectionError, match="expected 'listen'"):
        DonkeyEnv(port=port, role="dial", timeouts=BRIEF).reset()
    with FakeSimulator(mute=6) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=BRIEF)
        env.reset()
        env.step(ACTION)
        with pytest.raises(TimeoutError, match="waited 0.3 s"):
            env.step(ACTION)
        env.close()


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("begun", [b"", telemetry()[:200]], ids=["between", "within"])
def test_a_connection_that_ends_between_messages_or_within_one(begun: bytes) -> None:
    with FakeSimulator(mute=7, garbage=begun) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=PATIENT)
        env.reset()
        env.step(ACTION)
        env.step(ACTION)
        threading.Timer(0.1, simulator.close).start()
        start = time.monotonic()
        with pytest.raises(DonkeyConnectionError, match="simulator closed the connection"):
            env.step(ACTION)
        assert time.monotonic() - start < PATIENT.frame / 2
    assert not [thread for thread in threading.enumerate() if "proc_msg" in thread.name]


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (telemetry()[:200], "200 characters of an unfinished message"),
        (b'{"msg_type": "' + b"x" * (5 << 20), "lost the connection.*characters has no end"),
        (b"\xff\xfe{}\n", "lost the connection.*gave up reading"),
    ],
    ids=["unfinished", "endless", "not text"],
)
def test_messages_that_are_wrong(garbage: bytes, message: str) -> None:
    with FakeSimulator(mute=6, garbage=garbage) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=BRIEF)
        env.reset()
        env.step(ACTION)
        with pytest.raises(DonkeyError, match=message):
            env.step(ACTION)


@pytest.mark.usefixtures("newer")
def test_the_embedded_simulator_exits() -> None:
    quirks = Quirks(fault="exit", fault_after=8)
    env = DonkeyEnv(course="hall", simulator={"quirks": quirks}, timeouts=PATIENT)
    env.reset()

    def drive() -> None:
        for _ in range(10):
            env.step(ACTION)

    with pytest.raises(DonkeyConnectionError, match="listens on.*simulator closed the connection"):
        drive()


class Pieces:
    """A socket from which a text comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def recv(self, size: int) -> bytes:
        return self.pieces.pop(0)


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize("length", [1, 2, 3, 5, 20])
def test_what_is_unfinished_wherever_segments_are_cut(length: int) -> None:
    from piwm_gym.donkey_client.modern import _Watched

    text = b'{"a": "}"}\n{}\n\n{"b": 1}\n{"cd'
    pieces = [text[i : i + length] for i in range(0, len(text), length)]
    watched = _Watched(Pieces(*pieces), pytest.fail)
    for i in range(len(pieces)):
        watched.recv(length)
        come = text[: (i + 1) * length]
        assert watched.unfinished == len(come) - come.rfind(b"}\n") - 2 + (b"}\n" not in come)


def test_no_package_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(DonkeyError, match=r"pip install 'piwm-gym\[donkey\]'"):
        choose_backend()


@pytest.mark.skipif(find_spec(backend.MODERN) is None, reason="the newer package is missing")
def test_drives_through_the_newer_package_itself() -> None:
    with FakeSimulator() as simulator:
        env = DonkeyEnv(port=simulator.port)
        env.reset()
        *_, info = env.step(ACTION)
        assert info["speed"] == 0.5
        env.close()
