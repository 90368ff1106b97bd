"""The simulator over sockets, with a client of its own written from the protocol's description."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from piwm_gym.donkey_sim import CarSettings, Quirks, ServerSettings, SimulatorProcess, launch
from piwm_gym.donkey_sim.__main__ import main
from piwm_gym.donkey_sim.process import to_arguments
from piwm_gym.donkey_sim.server import serve

ROOT = Path(__file__).parents[2]
PATIENCE = 20.0


class Client:
    """Reads lines, writes bare objects."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self.socket = connection
        self.lines = connection.makefile("rb")
        self.heartbeats = 0

    def read(self) -> dict | None:
        """The next message that is not a heartbeat; None at the end."""
        while True:
            line = self.lines.readline()
            if not line.endswith(b"\n"):
                return None
            if line != b"{}\n":
                return json.loads(line)
            self.heartbeats += 1

    def send(self, kind: str, **fields: str) -> None:
        self.socket.sendall(json.dumps({"msg_type": kind, **fields}).encode())

    def expect(self, kind: str) -> dict:
        """The next message, which must be of a kind; crossings of the line come in between."""
        message = self.read()
        while message is not None and message["msg_type"] == "collision_with_starting_line":
            message = self.read()
        assert message is not None
        assert message["msg_type"] == kind
        return message

    def load(self, scene: str = "generated_track") -> dict:
        self.expect("scene_selection_ready")
        self.send("load_scene", scene_name=scene)
        self.expect("car_loaded")
        return self.expect("telemetry")

    def control(self, steering: float = 0.0, throttle: float = 0.0) -> dict:
        self.send("control", steering=str(steering), throttle=str(throttle), brake="0")
        return self.expect("telemetry")

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


class Served:
    """A simulator in a thread of this process."""

    def __init__(self, **settings) -> None:
        chosen = {"port": 0, "course": "hall", "clock": "lockstep"} | settings
        self.settings = ServerSettings(**chosen)
        self.address: str | None = None
        self.clients: list[Client] = []
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.ready.wait(PATIENCE)

    def _run(self) -> None:
        serve(self.settings, self._report)

    def _report(self, text: str) -> None:
        self.address = text.split()[-1]
        self.ready.set()

    def connect(self) -> Client:
        host, port = self.address.split(":")
        self.clients.append(Client(socket.create_connection((host, int(port)), PATIENCE)))
        return self.clients[-1]

    def stop(self) -> None:
        """End it as a client can."""
        for client in self.clients:
            client.close()
        client = self.connect()
        client.send("quit_app")
        self.thread.join(PATIENCE)
        client.close()
        assert not self.thread.is_alive()


@pytest.fixture
def serving():
    started: list[Served] = []

    def start(**settings) -> Served:
        started.append(Served(**settings))
        return started[-1]

    yield start
    for served in started:
        if served.thread.is_alive() and served.settings.role == "listen":
            served.stop()


def test_lockstep_conversation(serving):
    client = serving().connect()
    first = client.load()
    times = [client.control(0.1, 0.4)["time"] for _ in range(10)]
    assert times == pytest.approx([first["time"] + 0.05 * (i + 1) for i in range(10)])
    client.send("get_protocol_version")
    assert client.expect("protocol_version")["version"] == "2"
    # Several messages in one segment, and one in several.
    control = b'{"msg_type":"control","steering":"0","throttle":"0","brake":"0"}'
    client.socket.sendall(control + control + control[:20])
    assert client.expect("telemetry")["time"] < client.expect("telemetry")["time"]
    client.socket.sendall(control[20:])
    client.expect("telemetry")
    deadline = time.monotonic() + PATIENCE
    client.heartbeats = 0
    while client.heartbeats < 5:  # while nothing is asked, something arrives all the same
        assert client.lines.readline() == b"{}\n"
        client.heartbeats += 1
        assert time.monotonic() < deadline
    client.close()


def test_realtime_telemetry_flows_by_itself(serving):
    client = serving(clock="realtime").connect()
    client.expect("scene_selection_ready")
    client.send("load_scene", scene_name="hall")
    client.expect("car_loaded")
    client.send("control", steering="0.5", throttle="1", brake="0")
    seen = [client.expect("telemetry") for _ in range(10)]
    gaps = [b["time"] - a["time"] for a, b in pairwise(seen)]
    assert all(gap >= 0.05 - 1e-9 for gap in gaps)
    assert seen[-1]["throttle"] == 1.0
    assert seen[-1]["speed"] > 0
    client.close()


def test_the_same_controls_give_the_same_bytes(serving):
    served = serving(seed=3)
    runs = []
    for _ in range(2):
        client = served.connect()
        run = [client.load()] + [client.control(i / 10, 0.5) for i in range(10)]
        runs.append(run)
        client.close()
    assert runs[0] == runs[1]


def test_a_client_that_vanishes_is_followed_by_the_next(serving):
    served = serving()
    for message in (b"", b'{"msg_type":"load_scene","scene_name":"hall"}', b'{"half', b"{" * 70000):
        client = served.connect()
        client.expect("scene_selection_ready")
        client.socket.sendall(message)
        if len(message) > 65536:
            while client.lines.readline():  # refused: the connection ends
                pass
        # Reset instead of an orderly end, as when a process is killed.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    client = served.connect()
    client.load()
    client.close()


def test_once(serving):
    served = serving(once=True)
    served.connect().close()
    served.thread.join(PATIENCE)
    assert not served.thread.is_alive()


def test_a_scene_that_runs_already(serving):
    client = serving(menu=False).connect()
    client.expect("car_loaded")
    client.expect("telemetry")
    client.control()
    client.close()


def test_dialling_a_client_that_listens(serving):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        port = listener.getsockname()[1]
        served = serving(role="dial", port=port, connect_timeout=PATIENCE)
        assert served.address == f"127.0.0.1:{port}"
        for end in ("close", "quit_app"):  # it dials again until it is told to end
            client = Client(listener.accept()[0])
            client.load()
            client.control()
            if end == "quit_app":
                client.send("quit_app")
                served.thread.join(PATIENCE)
            client.close()
    assert not served.thread.is_alive()


def status(arguments: list[str]) -> int:
    """Of the command, which versions of tyro end by themselves."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_nobody_to_dial_and_a_port_in_use(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port), "--course", "hall"]) == 1
        error = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert "or use --role dial if it is a client that listens there" in error
    arguments = ["--role", "dial", "--port", str(port), "--connect-timeout", "0.3"]
    assert main([*arguments, "--course", "hall"]) == 1
    error = capsys.readouterr().err
    assert re.search(rf"nobody listened on 127.0.0.1:{port} within 0.3 s .*--role listen", error)
    assert status(["--course", "hal"]) == 2
    assert "did you mean 'hall'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("connect-timeout", "nan"),
        ("connect-timeout", "inf"),
        ("connect-timeout", "-1"),
        ("connect-timeout", "1e300"),
        ("port", "65536"),
        ("seed", "-1"),
        ("car.friction", "nan"),
        ("camera.ahead", "inf"),
        ("camera.pitch", "-45"),
        ("quirks.latency", "-1"),
    ],
)
def test_numbers_that_are_impossible(option, value, capsys):
    assert status(["--role", "dial", f"--{option}", value]) == 2
    name = option.rpartition(".")[2].replace("-", "_")
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"{name} is .*expected", error)


def receive_all(client: Client, limit: int = 100 << 20) -> bytes:
    data = bytearray()
    while chunk := client.lines.read1(1 << 20):
        data += chunk
        if len(data) > limit:
            break
    return bytes(data)


def trigger(served: Served, controls: int = 3) -> Client:
    """A client whose third control meets the fault."""
    client = served.connect()
    client.load()
    for _ in range(controls - 1):
        client.control()
    client.send("control", steering="0", throttle="0", brake="0")
    return client


def fault(kind: str) -> dict:
    return {"quirks": Quirks(fault=kind, fault_after=3)}


def test_dropped_connection(serving):
    served = serving(**fault("drop"))
    for _ in range(2):  # and it listens again
        client = trigger(served)
        assert client.read() is None
        client.close()


def test_malformed_message(serving):
    client = trigger(serving(**fault("malformed")))
    with pytest.raises(json.JSONDecodeError):
        client.read()
    client.control()
    client.close()


def test_truncated_message(serving):
    client = trigger(serving(**fault("truncated")))
    data = receive_all(client).lstrip(b"{}\n")
    assert data.startswith(b'"msg_type":"telemetry"')
    assert not data.endswith(b"\n")
    client.close()


def test_oversized_message(serving):
    client = trigger(serving(**fault("oversized")))
    message = client.expect("telemetry")
    assert len(message["image"]) > 32 << 20
    client.close()


def test_message_that_never_ends(serving):
    client = trigger(serving(**fault("endless")))
    data = receive_all(client, 8 << 20)
    assert data.rstrip(b"A").count(b"}") == data.count(b"{}\n")
    client.close()


def test_silence(serving):
    client = trigger(serving(**fault("silent")))
    client.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.read()
    client.close()


@pytest.mark.parametrize("clock", ["lockstep", "realtime"])
def test_cut_segments_and_decimal_commas(serving, clock):
    client = serving(clock=clock, quirks=Quirks(cut_segments=True, decimal_comma=True)).connect()
    client.expect("scene_selection_ready")
    client.send("load_scene", scene_name="hall")
    lines: list[bytes] = []
    while len(lines) < 3:
        line = client.lines.readline()
        lines += [line] if b"telemetry" in line else []
        if line and clock == "lockstep":
            client.send("control", steering="0.5", throttle="0", brake="0")
    for line in lines:
        assert re.search(rb'"time":\d+,\d+,', line)
        repaired = re.sub(rb":(-?\d+),(\d+)", rb":\1.\2", line)
        assert json.loads(repaired)["msg_type"] == "telemetry"
    client.close()


# Processes


def test_the_simulator_is_light():
    code = (
        "import sys, piwm_gym.donkey_sim.__main__;"
        "print([m for m in ('torch', 'gym', 'gym_donkeycar', 'asyncore') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "[]"


def test_arguments_round_trip():
    import tyro

    settings = ServerSettings(
        port=0,
        course="random-4",
        clock="lockstep",
        generation=2019,
        extended_telemetry=False,
        once=True,
        car=CarSettings(delay=2, steering_bias=-0.5),
        quirks=Quirks(fault="drop", decimal_comma=True),
    )
    assert tyro.cli(ServerSettings, args=to_arguments(settings)) == settings
    assert to_arguments(ServerSettings()) == []


def connect(process: SimulatorProcess) -> Client:
    return Client(socket.create_connection((process.host, process.port), PATIENCE))


def test_several_processes_at_once_and_one_killed():
    with launch(course="hall", clock="lockstep") as one, launch(clock="lockstep") as two:
        assert one.host == "127.0.0.1"
        assert one.port != two.port
        clients = [connect(one), connect(two)]
        for client in clients:
            client.load()
            client.control()
        one.process.kill()
        assert clients[0].read() is None
        clients[1].control()
        for client in clients:
            client.close()
        assert two.poll() is None
    assert one.poll() is not None
    assert two.poll() is not None
    two.close()  # harmless


def test_exit_in_mid_episode():
    with launch(course="hall", clock="lockstep", **fault("exit")) as process:
        client = connect(process)
        client.load()
        client.control()
        client.control()
        client.send("control", steering="0", throttle="0", brake="0")
        assert client.read() is None
        assert process.process.wait(PATIENCE) == 3
        client.close()


def test_launch_explains_what_went_wrong():
    with pytest.raises(ValueError, match=r"unknown option 'corse'.*did you mean 'course'\?"):
        launch(corse="hall")
    with pytest.raises(ValueError, match="role is 'dial' without a port"):
        launch(role="dial")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"code 1: error: cannot listen on .*:{port}"):
            launch(course="hall", port=port)


@pytest.mark.skipif(os.name != "posix", reason="asks for a process by its id")
def test_no_process_is_left_when_the_parent_is_killed():
    code = (
        "import time\n"
        "from piwm_gym.donkey_sim import launch\n"
        "simulator = launch(course='hall')\n"
        "print(simulator.process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process exists and has not ended; one that nobody waits for stays a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
