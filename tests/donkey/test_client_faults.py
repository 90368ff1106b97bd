"""What goes wrong ends in a clear error within the time-out, and the next reset recovers."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from piwm_gym.donkey_client import (
    DonkeyConnectionError,
    DonkeyEnv,
    DonkeyError,
    DonkeyTimeoutError,
    Timeouts,
)
from piwm_gym.donkey_client.backend import Peer, connect
from piwm_gym.donkey_client.mailbox import Mailbox
from tests.donkey.fake_simulator import FakeSimulator, jpeg

pytest.importorskip("gym_donkeycar.core.tcp_server", reason="the newer package is installed")

BRIEF = Timeouts(connect=0.4, load=0.3, frame=0.3, reset=0.3)
ACTION = np.array([0.0, 0.5], np.float32)


@contextlib.contextmanager
def listener() -> Iterator[socket.socket]:
    """A socket that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def free_port() -> int:
    with listener() as server:
        return int(server.getsockname()[1])


def test_nobody_listens() -> None:
    port = free_port()
    env = DonkeyEnv(port=port, timeouts=BRIEF)
    place = f"127.0.0.1:{port}"
    expected = (
        rf"nobody accepted a connection on {place} within 0.4 s .*; expected a simulator that "
        rf"listens on {place}: start the Donkey .*--host 127.0.0.1 --port {port}.* or use "
        rf"role='dial' for a simulator that dials {place}"
    )
    with pytest.raises(DonkeyConnectionError, match=expected):
        env.reset()


def test_nobody_dials_in() -> None:
    port = free_port()
    env = DonkeyEnv(port=port, role="dial", timeouts=BRIEF)
    expected = (
        rf"waited 0.4 s for its connection from a simulator that dials 127.0.0.1:{port}.*"
        "nobody has connected; start a simulator of 2018 or 2019.*, or use role='listen' for a "
        f"simulator that listens on 127.0.0.1:{port}"
    )
    with pytest.raises(DonkeyTimeoutError, match=expected):
        env.reset()
    with socket.create_server(("127.0.0.1", port)):  # given back
        pass


def test_the_port_is_in_use() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        env = DonkeyEnv(port=port, role="dial", timeouts=BRIEF)
        expected = (
            f"cannot listen on 127.0.0.1:{port} for a simulator that dials.*choose another one, or "
            f"use role='listen' if it is a simulator that listens on 127.0.0.1:{port}"
        )
        with pytest.raises(DonkeyConnectionError, match=expected):
            env.reset()


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "127.0.0.1"),
        ("192.168.0.7", "0.0.0.0"),
        ("garage.local", "0.0.0.0"),
    ],
)
def test_other_machines_are_let_in_only_where_they_have_to_be(host: str, told: str) -> None:
    assert f"--host {told} --port 9091" in Peer("listen", host, 9091).advice


def test_a_simulator_that_says_nothing() -> None:
    with listener() as server:
        env = DonkeyEnv(port=server.getsockname()[1], timeouts=BRIEF)
        with pytest.raises(DonkeyTimeoutError, match="scene_selection_ready.*has sent nothing"):
            env.reset()


def test_a_scene_that_is_not_there() -> None:
    with FakeSimulator() as simulator:
        env = DonkeyEnv(port=simulator.port, scene="generated_trak", timeouts=BRIEF)
        with pytest.raises(DonkeyError, match="did you mean 'generated_track'"):
            env.reset()


@pytest.mark.parametrize(
    ("scenes", "message"), [([], "offers no scene"), (3, "expected a list of names")]
)
def test_a_menu_that_is_wrong(scenes: Any, message: str) -> None:
    with FakeSimulator(scenes=scenes) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=BRIEF)
        with pytest.raises(DonkeyError, match=message):
            env.reset()


def test_frames_of_another_size() -> None:
    with FakeSimulator(size=(60, 80)) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=BRIEF)
        with pytest.raises(DonkeyError, match=r"frames of 60 x 80 pixels.*expected 120 x 160"):
            env.reset()


def telemetry(**changes: Any) -> bytes:
    message = {"msg_type": "telemetry", "time": 99.0, "image": jpeg(9), "speed": 0.0}
    message |= {"hit": "none", "pos_x": 1.0, "pos_y": 1.0, "pos_z": 1.0, "cte": 0.0} | changes
    return json.dumps({k: v for k, v in message.items() if v is not None}).encode() + b"\n"


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (b"", r"waited 0.3 s for a frame later than 0.350 s from a simulator that listens"),
        (b'{"msg_type": "telemetry", "time": }\n', "waited 0.3 s for a frame"),
        (telemetry()[:200], "200 characters of an unfinished message"),
        (b'{"msg_type": 3}\n{}\n[1]\n{"time": 5}\n', "waited 0.3 s for a frame"),
        (b"\xff\xfe{}\n", "lost the connection.*UnicodeDecodeError"),
        (b'{"msg_type": "' + b"x" * (5 << 20), "lost the connection.*characters has no end"),
        (b'{"a":' * 20000 + b"}" * 20000 + b"\n", "waited 0.3 s for a frame"),
        (telemetry(image="abc"), "image in a telemetry message of 3 characters cannot be read"),
        (telemetry(image=jpeg(9)[:400]), "cannot be read"),
        (telemetry(image=None), "telemetry has no image.*with graphics"),
        (telemetry(pos_x="here"), "field 'pos_x' is 'here'; expected a number"),
        (telemetry(cte=None), "lacks cte"),
    ],
)
def test_messages_that_are_wrong(garbage: bytes, message: str) -> None:
    limits = Timeouts(connect=5, load=5, frame=0.3, reset=5)
    with FakeSimulator(mute=7, garbage=garbage) as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=limits)
        env.reset()
        env.step(ACTION)
        env.step(ACTION)
        with pytest.raises(DonkeyError, match=message):
            env.step(ACTION)
        env.close()


def test_messages_are_understood_wherever_they_are_cut() -> None:
    mailbox = Mailbox()
    server = connect(Peer("dial", "127.0.0.1", 0), mailbox, 5)
    text = b'{"msg_type":"a"}\n{}\n{"msg_type":"b"}\n'
    with socket.create_connection(("127.0.0.1", server.peer.port)) as simulator:
        simulator.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(text)):
            simulator.sendall(text[:cut])
            time.sleep(0.01)  # so that it is read by itself
            simulator.sendall(text[cut:])
            assert mailbox.wait(lambda n=cut: mailbox.count("b") == n, 5), text[:cut]
            assert mailbox.count("a") == cut
    server.close()


def test_a_simulator_that_vanishes_and_comes_back() -> None:
    with FakeSimulator() as simulator:
        env = DonkeyEnv(port=simulator.port, timeouts=Timeouts(5, 5, 5, 5))
        env.reset()
        env.step(ACTION)
        killer = threading.Timer(0.0, simulator.close)
        killer.start()
        killer.join()
        with pytest.raises(DonkeyConnectionError, match="lost the connection.*closed"):
            env.step(ACTION)
    with pytest.raises(Exception, match="call env.reset"):
        env.step(ACTION)
    with FakeSimulator(port=simulator.port):
        env.reset()
        env.step(ACTION)
        env.close()


def test_no_thread_or_socket_is_left() -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if "donkey" in thread.name}

    for _ in range(3):
        with FakeSimulator() as simulator:
            env = DonkeyEnv(port=simulator.port)
            env.reset()
            assert "donkey-relay" in threads()
            env.close()
            env.close()
    assert threads() == {"donkey-client"}


def test_garbage_closes_the_connection() -> None:
    with FakeSimulator() as simulator:
        env = DonkeyEnv(port=simulator.port)
        env.reset()
        del env
        deadline = time.monotonic() + 5
        while simulator._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not simulator._thread.is_alive()
