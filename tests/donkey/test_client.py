"""The environment against a fake simulator, through the real package."""

import gc
import multiprocessing
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from piwm_gym.donkey_client import DonkeyEnv, DonkeyError, Timeouts
from piwm_gym.donkey_client.backend import Backend, Peer
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.messages import Message
from piwm_gym.donkey_client.session import Session
from piwm_gym.donkey_client.telemetry import Course, Telemetry
from tests.donkey.fake_simulator import FakeSimulator

pytest.importorskip("gym_donkeycar.core.tcp_server", reason="the newer package is installed")

ROOT = Path(__file__).parents[2]
QUICK = Timeouts(connect=5, load=5, frame=5, reset=5)


def connect(simulator: FakeSimulator, **arguments: Any) -> DonkeyEnv:
    return DonkeyEnv(port=simulator.port, **{"timeouts": QUICK, **arguments})


def action(steering: float = 0.0, throttle: float = 0.5) -> np.ndarray:
    return np.array([steering, throttle], np.float32)


@pytest.mark.parametrize("realtime", [False, True])
def test_drives_in_both_clocks(realtime: bool) -> None:
    with FakeSimulator(realtime=realtime) as simulator:
        env = connect(simulator)
        frame, info = env.reset()
        assert frame in env.observation_space
        assert (info["x"], info["y"], info["speed"]) == (1, 2, 0)
        assert info["heading"] == pytest.approx(0.5)
        assert info["generation"] == "legacy"
        assert info["version"] == "1.0.13"
        now = info["time"]
        for _ in range(5):
            frame, reward, terminated, truncated, info = env.step(action(0.25, 0.5))
            assert info["time"] > now
            assert info["elapsed"] == pytest.approx(info["time"] - now)
            assert not terminated
            assert not truncated
            now = info["time"]
        assert info["speed"] == 0.5
        assert info["cte"] == pytest.approx(info["y"] - 2)
        assert reward == pytest.approx((1 - abs(info["cte"])) * 0.5)
        assert np.tan(0.5) == pytest.approx((info["y"] - 2) / (info["x"] - 1))
        env.close()


def test_the_handshake_and_the_messages() -> None:
    with FakeSimulator() as simulator:
        env = connect(simulator, scene="generated_track")
        env.reset(seed=7)
        env.step(action(-0.5, 0.25))
        kinds = [message["msg_type"] for message in simulator.received[1:]]
        assert kinds[:4] == ["get_scene_names", "load_scene", "car_config", "cam_config"]
        stand = ["reset_car", "control", "get_protocol_version"]
        assert kinds[4:] == [*stand, "set_random_seed", *stand, "control"]
        by_kind = {message["msg_type"]: message for message in simulator.received[1:]}
        assert by_kind["load_scene"]["scene_name"] == "generated_track"
        assert by_kind["cam_config"]["img_w"] == "160"
        assert by_kind["set_random_seed"]["seed"] == "7"
        assert by_kind["control"] == {
            "msg_type": "control",
            "steering": "-0.5",
            "throttle": "0.25",
            "brake": "0.0",
        }
        env.close()


@pytest.mark.parametrize("pieces", [False, True])
def test_lock_step_frames_are_those_of_the_actions(pieces: bool) -> None:
    with FakeSimulator(pieces=pieces) as simulator:
        env = connect(simulator)
        for _ in range(5):  # however many frames a reset takes, none is left over
            env.reset()
            env.step(action())
        for k in range(20):
            frame, *_, info = env.step(action(0.0, k / 20))
            sent = simulator.history[-1]
            assert sent["throttle"] == pytest.approx(k / 20)
            assert info["time"] == sent["time"]
            assert int(frame[0, 0, 0]) == pytest.approx(simulator.sent % 200 + 20, abs=2)
        env.close()


class Scripted(Backend):
    """Answers a message with what a script says."""

    generation = "scripted"

    def __init__(self, mailbox: Mailbox, answers: list[list[float]]) -> None:
        super().__init__(Peer("listen", "nowhere", 1), mailbox)
        self.answers = answers

    def send(self, message: Message) -> None:
        for time in self.answers.pop(0):
            self.mailbox.put({"msg_type": "telemetry", "time": time})

    def close(self) -> None:
        """Nothing to close."""


def test_a_frame_of_before_the_action_is_not_its_answer() -> None:
    mailbox = Mailbox()
    session = Session(Scripted(mailbox, [[0.1, 0.15], [], [0.2], [0.1]]), Timeouts(frame=0.05))
    mailbox.connect()
    assert session.drive(0, 1)["time"] == 0.15
    with pytest.raises(TimeoutError, match=r"a frame later than 0.150 s .*has sent telemetry"):
        session.drive(0, 1)
    assert session.drive(0, 1)["time"] == 0.2
    with pytest.raises(TimeoutError, match="later than 0.200 s"):
        session.drive(0, 1)


FAULTS: tuple[dict[str, Any], ...] = (
    {"coasting": 5},
    {"stale": 3},
    {"realtime": True, "stale": 2},
    {"realtime": True, "answers": False},
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reset_waits_until_the_car_stands_at_the_start(fault: dict[str, Any]) -> None:
    with FakeSimulator(**fault) as simulator:
        env = connect(simulator)
        env.reset()
        for _ in range(10):
            env.step(action(0.0, 1.0))
        _, info = env.reset()
        assert info["speed"] == 0
        assert np.hypot(info["x"] - 1, info["y"] - 2) < 0.15
        assert info["elapsed"] == 0
        _, _, terminated, _, info = env.step(action(0.0, 0.0))
        assert not terminated
        env.close()


def test_starts_at_a_pose() -> None:
    with FakeSimulator() as simulator:
        env = connect(simulator)
        _, info = env.reset(options={"state": [1.5, 2.25, -2.0, 0.0]})
        assert (info["x"], info["y"]) == pytest.approx((1.5, 2.25))
        assert info["heading"] == pytest.approx(-2.0)
        (sent,) = (m for m in simulator.received if m.get("msg_type") == "set_position")
        assert [float(sent[name]) for name in ("pos_x", "pos_y", "pos_z")] == [12, 4, 18]
        _, info = env.reset()
        assert (info["x"], info["y"]) == (1, 2)
        env.close()


@pytest.mark.parametrize("generation", [2019, 2021, 2022])
def test_every_generation_is_read_in_metres(generation: int) -> None:
    with FakeSimulator(generation=generation) as simulator:
        env = connect(simulator)
        _, info = env.reset()
        assert (info["x"], info["y"]) == (1, 2)
        assert np.isnan(info["heading"]) == (generation == 2019)
        for _ in range(4):
            *_, info = env.step(action(0.0, 1.0))
        assert info["speed"] == 1
        assert info["heading"] == pytest.approx(0.5)
        assert info["cte"] == pytest.approx(4 * 0.05 * np.sin(0.5))
        env.close()


def test_the_scale_can_be_chosen() -> None:
    with FakeSimulator(generation=2022) as simulator:
        env = connect(simulator, units_per_metre=4, positions="units")
        env.reset()
        *_, info = env.step(action(0.0, 1.0))
        x, y = 1 + 0.05 * np.cos(0.5), 2 + 0.05 * np.sin(0.5)
        assert (info["x"], info["y"], info["speed"]) == pytest.approx((x / 4, y / 4, 0.25))
        assert info["cte"] == pytest.approx((y - 2) * 8 / 4)
        env.close()


def test_backwards_is_seen_without_a_heading() -> None:
    path = Course(reach=0.1)
    unknown = {"time": 0.0, "height": 0.0, "heading": np.nan, "cte": 0.0, "y": 0.0, "speed": 2.0}
    seen = [path.update(Telemetry(x=x, **unknown)) for x in (0.0, 0.2, 0.4, 0.2)]
    assert np.isnan(seen[0][0])
    assert seen[1:] == [(0.0, 2.0), (0.0, 2.0), (0.0, -2.0)]


def test_an_episode_ends_off_the_road_and_at_a_hit() -> None:
    with FakeSimulator() as simulator:
        env = connect(simulator, max_cte=0.1)
        env.reset()
        results = [env.step(action(0.0, 1.0)) for _ in range(6)]
        ends = [result[2] for result in results]
        assert ends == [abs(result[4]["cte"]) > 0.1 for result in results]
        assert ends[-1]
        assert results[-1][1] == -1
        env.reset()
        simulator.hit = "cone"
        _, reward, terminated, _, info = env.step(action(0.0, 0.1))
        assert (reward, terminated, info["hit"]) == (-1, True, "cone")
        _, info = env.reset()
        assert info["hit"] == "none"
        env.end_on_hit = False
        simulator.hit = "cone"
        assert not env.step(action(0.0, 0.1))[2]
        env.close()


def test_without_extended_telemetry() -> None:
    with FakeSimulator(extended=False) as simulator:
        env = connect(simulator)
        with pytest.raises(DonkeyError, match="lacks x, y, cte.*extended telemetry"):
            env.reset()
        env.close()
    with FakeSimulator(extended=False) as simulator:
        env = connect(simulator, missing="nan")
        _, info = env.reset()
        assert np.isnan([info["x"], info["y"], info["cte"]]).all()
        _, reward, terminated, *_ = env.step(action(0.0, 1.0))
        assert (reward, terminated) == (0, False)
        with pytest.raises(DonkeyError, match="sends no position"):
            env.reset(options={"state": [0, 0, 0]})
        env.close()


@pytest.mark.parametrize("quirk", [{"pieces": True}, {"comma": True}, {"menu": False}])
def test_quirks_that_do_no_harm(quirk: dict[str, Any]) -> None:
    with FakeSimulator(**quirk) as simulator:
        env = connect(simulator)
        env.reset()
        for _ in range(10):
            *_, info = env.step(action(0.0, 1.0))
        assert info["time"] == pytest.approx(simulator.time)
        env.close()


def test_a_simulator_that_dials_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    dialled: list[FakeSimulator] = []
    timer = threading.Timer(0.1, lambda: dialled.append(FakeSimulator("dial", port)))
    timer.start()
    env = DonkeyEnv(port=port, role="dial", timeouts=QUICK)
    env.reset()
    *_, info = env.step(action())
    assert info["speed"] == 0.5
    env.close()
    timer.join()  # it may still be on its way back from dialling
    dialled[0].close()


def test_two_environments_in_one_process() -> None:
    with FakeSimulator() as first, FakeSimulator(realtime=True) as second:
        one, other = connect(first), connect(second)
        one.reset()
        other.reset()
        for _ in range(20):
            *_, a = one.step(action(0.0, 0.5))
            *_, b = other.step(action(0.0, 0.25))
        assert (a["speed"], b["speed"]) == (0.5, 0.25)
        one.close()
        *_, b = other.step(action(0.0, 0.75))
        assert b["speed"] == 0.75
        other.close()


def test_nothing_returned_shares_memory() -> None:
    with FakeSimulator() as simulator:
        env = connect(simulator, render_mode="rgb_array")
        first, _ = env.reset()
        drawn = env.render()
        assert drawn is not None
        assert np.array_equal(first, drawn)
        assert not np.shares_memory(first, drawn)
        first[:] = 0
        assert env.render().any()
        env.close()


def test_a_forked_child_has_connections_of_its_own() -> None:
    with FakeSimulator() as first, FakeSimulator() as second:
        env = connect(first)
        env.reset()

        def child() -> None:
            nonlocal env
            other = connect(second)
            other.reset()
            *_, info = other.step(action())
            del env  # its connection is the parent's
            gc.collect()
            sys.exit(0 if info["speed"] == 0.5 else 1)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(20)
        assert process.exitcode == 0
        *_, info = env.step(action())
        assert info["speed"] == 0.5
        env.close()


def test_nothing_keeps_the_interpreter() -> None:
    script = """
import sys
from piwm_gym.donkey_client import DonkeyEnv
assert not {"asyncore", "gym_donkeycar", "gym"} & sys.modules.keys()
env = DonkeyEnv(port=int(sys.argv[1]))
env.reset()
env.step([0.0, 0.5])
assert "gym" not in sys.modules
"""
    with FakeSimulator() as simulator:
        command = [sys.executable, "-W", "error", "-c", script, str(simulator.port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 0}, "port is 0; expected an integer from 1"),
        ({"port": "9091"}, "port is '9091'"),
        ({"role": "dial"}, "without host and port"),
        ({"role": "server", "port": 1}, "unknown role 'server'; expected one of 'listen', 'dial'"),
        ({"max_cte": 0}, "max_cte is 0; expected a positive"),
        ({"units_per_metre": float("nan")}, "units_per_metre is nan"),
        ({"positions": "feet"}, "expected one of 'auto', 'metres', 'units'"),
        ({"missing": "skip"}, "unknown missing 'skip'"),
        ({"render_mode": "human"}, "unknown render_mode 'human'"),
        ({"port": 9091, "seed": 1}, "seed given together with host or port"),
        ({"port": True}, "port is True"),
        ({"host": 5}, "host is 5; expected the name or address of a machine"),
        ({"host": ""}, "host is ''; expected"),
        ({"host": b"127.0.0.1"}, "host is b'127.0.0.1'; expected"),
        ({"host": "a b\n"}, r"host is 'a b\\n'; expected"),
        ({"host": "x" * 70}, "host is 'xxx.*expected the name"),
        ({"role": ["dial"]}, "unknown role"),
        ({"seed": "a"}, "seed is 'a'; expected a whole number, 0 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2.5}, "seed is 2.5"),
        ({"seed": True}, "seed is True"),
        ({"scene": 5}, "scene is 5; expected a name"),
        ({"course": ["hall"]}, "course is .*; expected a name"),
        ({"car_name": None}, "car_name is None; expected a text"),
        ({"end_on_hit": "no"}, "end_on_hit is 'no'; expected True or False"),
        ({"max_cte": True}, "max_cte is True"),
        ({"max_cte": "1"}, "max_cte is '1'"),
        ({"units_per_metre": 10**400}, "units_per_metre is 1000"),
        ({"units_per_metre": None}, "units_per_metre is None"),
        ({"timeouts": {"connect": 1}}, r"timeouts is {'connect': 1}; expected Timeouts\(connect="),
        ({"timeouts": 5}, "timeouts is 5"),
        ({"timeouts": 0}, "timeouts is 0"),
        ({"simulator": 5}, "simulator is 5; expected a dict of options"),
        ({"simulator": [1]}, r"simulator is \[1\]"),
        (
            {"simulator": {"role": "listen"}},
            "option 'role'; expected role= as an argument of its own",
        ),
        ({"simulator": {"host": "here"}}, "expected host= .* of a simulator that runs already"),
        ({"simulator": {"port": 5}}, "option 'port'"),
        ({"simulator": {"course": "hall"}}, "expected course= as an argument of its own, and in"),
        ({"simulator": {"clok": 1}}, "unknown option of simulator 'clok'.*did you mean 'clock'"),
        ({"simulator": {5: 1}}, "unknown option of simulator 5"),
    ],
)
def test_arguments_that_are_wrong(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DonkeyEnv(**arguments)


@pytest.mark.parametrize("name", ["connect", "load", "frame", "reset"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "5", None, True, 1e300])
def test_timeouts_that_are_no_times(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; expected"):
        Timeouts(**{name: value})


def test_calls_that_are_wrong() -> None:
    with FakeSimulator() as simulator:
        env = connect(simulator, render_mode="rgb_array")
        with pytest.raises(gym.error.ResetNeeded):
            env.step(action())
        with pytest.raises(gym.error.ResetNeeded):
            env.render()
        env.reset()
        for wrong in ([0.0, -0.1], [2.0, 0.0], [0.0], "left", [np.nan, 0.0]):
            with pytest.raises(ValueError, match="expected steering"):
                env.step(wrong)
        for options, message in (
            ({"stat": [0, 0, 0]}, "did you mean 'state'"),
            ({"state": [0, 0]}, "expected the numbers x, y, heading, speed"),
            ({"state": ["a", 0, 0]}, "expected the numbers"),
            ({"state": [0, 0, 0, 1.5]}, "speed in state is 1.5 m/s; expected 0"),
        ):
            with pytest.raises(ValueError, match=message):
                env.reset(options=options)
        env.step(action())
        env.close()
        with pytest.warns(UserWarning, match="without specifying any render mode"):
            assert DonkeyEnv(port=1).render() is None
