"""The real client and the embedded simulator, in two processes."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from piwm_gym.courses import get_course
from piwm_gym.donkey_client import DonkeyConnectionError, DonkeyEnv, DonkeyError, Timeouts
from piwm_gym.donkey_sim import CameraSettings, Quirks, launch

ROOT = Path(__file__).parents[2]
QUICK = Timeouts(connect=30, load=10, frame=1, reset=10)


@pytest.fixture(scope="module")
def env() -> Iterator[DonkeyEnv]:
    """One simulator for the tests that leave it well."""
    env = DonkeyEnv(
        seed=3, simulator={"camera": CameraSettings(noise=3.0)}, render_mode="rgb_array"
    )
    yield env
    env.close()


def action(steering: float = 0.0, throttle: float = 0.5) -> np.ndarray:
    return np.array([steering, throttle], np.float32)


def drive(env: DonkeyEnv, steps: int) -> dict[str, Any]:
    for _ in range(steps):
        *_, info = env.step(action())
    return info


def process(env: DonkeyEnv) -> subprocess.Popen[bytes]:
    return env._open[-1].process.process


def test_the_checker_is_content(env: DonkeyEnv) -> None:
    check_env(env, skip_render_check=True, skip_close_check=True)


def test_starts_where_the_course_does(env: DonkeyEnv) -> None:
    x, y, heading = get_course("meadow").spawn
    _, info = env.reset()
    assert (info["x"], info["y"], info["heading"]) == pytest.approx((x, y, heading), abs=1e-3)
    _, info = env.reset(options={"state": [x + 0.1, y - 0.2, 1.0]})
    assert (info["x"], info["y"]) == pytest.approx((x + 0.1, y - 0.2), abs=1e-3)
    assert info["heading"] == pytest.approx(1.0, abs=1e-3)


def test_the_same_seed_and_actions_give_the_same_bytes(env: DonkeyEnv) -> None:
    def record(seed: int) -> tuple[list[np.ndarray], list[Any]]:
        rng, frames, infos = np.random.default_rng(0), [], []
        frame, info = env.reset(seed=seed)
        for _ in range(30):
            frames.append(frame)
            infos.append(info)
            frame, *_, info = env.step(action(rng.uniform(-1, 1), rng.uniform(0, 1)))
        return frames, infos

    frames, infos = record(5)
    same_frames, same_infos = record(5)
    assert infos == same_infos
    np.testing.assert_array_equal(frames, same_frames)
    other, _ = record(6)
    assert not np.array_equal(frames[0], other[0])
    elapsed = [info["elapsed"] for info in infos[1:]]
    np.testing.assert_allclose(elapsed, 0.05)


def test_turns_and_leaves_the_road_to_the_right(env: DonkeyEnv) -> None:
    env.reset(seed=0)
    for _ in range(400):
        frame, reward, terminated, _, info = env.step(action(1.0, 0.6))
        if terminated:
            break
        assert reward == pytest.approx((1 - abs(info["cte"])) * info["speed"])
    assert terminated
    assert reward == -1
    assert frame in env.observation_space


def test_two_at_once_do_not_mix(env: DonkeyEnv) -> None:
    other = DonkeyEnv(course="hall", seed=4)
    env.reset()
    _, info = other.reset()
    assert (info["x"], info["y"]) == pytest.approx(get_course("hall").spawn[:2], abs=1e-3)
    for _ in range(10):
        *_, a = env.step(action(0.0, 0.2))
        *_, b = other.step(action(0.0, 0.8))
    assert b["speed"] > 2 * a["speed"]
    running = process(other)
    other.close()
    assert running.poll() is not None
    env.step(action())


@pytest.mark.parametrize("generation", [2019, 2021])
def test_older_generations_and_quirks(generation: int) -> None:
    quirks = Quirks(
        repeat_car_loaded=1,
        latency=2,
        stale_frames=2,
        keep_speed=True,
        decimal_comma=True,
        cut_segments=True,
    )
    env = DonkeyEnv(simulator={"generation": generation, "quirks": quirks})
    x, y, heading = get_course("meadow").spawn
    env.reset()
    for _ in range(2):
        for _ in range(15):
            *_, info = env.step(action(0.0, 1.0))
        assert info["heading"] == pytest.approx(heading, abs=0.1)
        assert info["speed"] > 0.5
        _, info = env.reset()
        assert np.hypot(info["x"] - x, info["y"] - y) < 0.2
        assert abs(info["speed"]) < 0.1
    env.close()


@pytest.mark.parametrize("clock", ["lockstep", "realtime"])
def test_one_that_listens_as_todays_builds_do(clock: Any) -> None:
    with launch(role="listen", port=0, clock=clock, course="hall") as simulator:
        env = DonkeyEnv(port=simulator.port, course="hall")
        env.reset()
        for _ in range(5):
            *_, info = env.step(action())
        assert info["speed"] > 0
        env.close()
        env.reset()  # it waits for the next client
        env.close()


@pytest.mark.parametrize("fault", ["silent", "truncated", "endless"])
def test_faults(fault: Any) -> None:
    simulator = {"quirks": Quirks(fault=fault, fault_after=8)}
    env = DonkeyEnv(simulator=simulator, timeouts=QUICK)
    env.reset()
    begin = time.monotonic()
    running = process(env)
    with pytest.raises(DonkeyError, match="dials 127.0.0.1"):
        drive(env, 10)
    assert time.monotonic() - begin < 30
    assert running.poll() is not None
    with pytest.raises(gym.error.ResetNeeded):
        env.step(action())
    env.close()


def test_killed_in_the_middle_of_an_episode_and_started_again() -> None:
    env = DonkeyEnv(timeouts=QUICK)
    env.reset()
    env.step(action())
    running = process(env)
    running.kill()
    with pytest.raises(DonkeyConnectionError, match="lost the connection"):
        env.step(action())
    assert running.poll() == -signal.SIGKILL
    env.reset()
    env.step(action())
    again = process(env)
    del env
    gc.collect()
    assert again.poll() is not None


def test_options_of_the_simulator_are_checked() -> None:
    with pytest.raises(ValueError, match="did you mean 'meadow'"):
        DonkeyEnv(course="medow").reset()
    with pytest.raises(ValueError, match="unknown option of simulator 'sed'"):
        DonkeyEnv(simulator={"sed": 1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clock", 5),
        ("seed", "a"),
        ("quirks", {"fault": "drop"}),
        ("camera", 5),
        ("connect_timeout", None),
        ("timeout", "soon"),
        ("settings", 5),
    ],
)
def test_values_of_the_simulators_options_are_checked(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} is {re.escape(repr(value))}; expected"):
        DonkeyEnv(simulator={option: value}).reset()


SCRIPT = """
import sys, time
from piwm_gym.donkey_client import DonkeyEnv
env = DonkeyEnv()
env.reset()
print(env._open[-1].process.process.pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
"""


@pytest.mark.parametrize("end", ["exit", "wait"])
def test_no_process_is_left_when_the_client_vanishes(end: str) -> None:
    command = [sys.executable, "-c", SCRIPT, end]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        if end == "wait":
            client.kill()
        client.wait(30)
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # a dead orphan may wait for its new parent to look
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
