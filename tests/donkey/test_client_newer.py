"""The backend for the generation of gym-donkeycar that dials, against a package of its surface."""

import sys
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
from tests.donkey.fake_simulator import FakeSimulator
from tests.donkey.test_client_faults import free_port

BRIEF = Timeouts(connect=0.4, load=5, frame=0.3, reset=5)
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
    with pytest.raises(DonkeyConnectionError, match=rf"127.0.0.1:{port} within 0.4 s .*start"):
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
    with FakeSimulator() as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=BRIEF)
        env.reset()
        simulator.close()
        with pytest.raises(DonkeyConnectionError, match="lost the connection"):
            env.step(ACTION)


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
