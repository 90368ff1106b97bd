"""Drives for collection: deterministic, near the path, and what the client would see."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from piwm_gym.courses import get_course
from piwm_gym.donkey_sim import Simulator
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import DonkeyCar
from training.collect import Settings, collect, preset_settings
from training.collectors import DonkeyCarCollector, Trajectory
from training.collectors.donkey_car import FURTHEST
from training.dataset import load_dataset
from training.drivers import RandomWheel, pure_pursuit
from training.training_data import system_of

SYSTEM = DonkeyCar()


@pytest.fixture(scope="module")
def collector() -> DonkeyCarCollector:
    return DonkeyCarCollector()


@pytest.fixture(scope="module")
def trajectories(collector: DonkeyCarCollector) -> list[Trajectory]:
    return [collector.trajectory(np.random.default_rng(seed), 12) for seed in range(8)]


def test_shapes_and_bounds(trajectories: list[Trajectory]) -> None:
    course = get_course("meadow")
    for trajectory in trajectories:
        assert trajectory.frames.shape == (13, *SYSTEM.frame.size, 3)
        assert trajectory.frames.dtype == np.uint8
        assert trajectory.actions.shape == (12, 2)
        assert trajectory.actions.dtype == np.float32
        assert all(action in SYSTEM.action_space for action in trajectory.actions)
        assert trajectory.states.shape == (13, len(SYSTEM.variables))
        assert np.abs(course.project(trajectory.states[:, :2])[1]).max() <= FURTHEST
        assert trajectory.controller in DonkeyCarCollector.controllers


def test_a_trajectory_depends_on_its_generator_alone(
    collector: DonkeyCarCollector, trajectories: list[Trajectory]
) -> None:
    again = collector.trajectory(np.random.default_rng(3), 12)
    for name in ("frames", "actions", "states"):
        assert np.array_equal(getattr(again, name), getattr(trajectories[3], name))


def test_frames_are_those_of_the_recorded_poses(trajectories: list[Trajectory]) -> None:
    """Filming drives a second time; it must arrive where the states say."""
    simulator = Simulator("meadow")
    for trajectory in trajectories[:3]:
        x, y, heading, speed = trajectory.states[-1, :4].tolist()
        simulator.reset((x, y, heading, speed))
        with Image.open(io.BytesIO(simulator.jpeg())) as image:
            seen = preprocess_frame(np.asarray(image), SYSTEM.frame)
        assert np.array_equal(seen, trajectory.frames[-1])


def test_states_move_as_actions_and_speed_say(trajectories: list[Trajectory]) -> None:
    """Progress is the way along the path; a wheel to the right turns the car to the right."""
    for trajectory in trajectories:
        moved = np.linalg.norm(np.diff(trajectory.states[:, :2], axis=0), axis=1).sum()
        assert moved == pytest.approx(
            trajectory.states[:-1, 3].sum() * SYSTEM.dt, rel=0.15, abs=0.05
        )
        assert abs(trajectory.states[-1, 5] - trajectory.states[0, 5]) <= 3 * moved + 1e-6
    states = np.concatenate([t.states for t in trajectories])
    turn = np.diff(states[:, 2])
    straight = (np.abs(turn) < 1) & (states[:-1, 3] > 0.5) & (np.abs(states[:-1, 4]) > 0.1)
    agree = np.sign(turn[straight]) == -np.sign(states[:-1, 4][straight])
    assert agree.mean() > 0.8


def test_pure_pursuit_knows_left_from_right() -> None:
    """On a straight: no steering on the line, towards it beside it, full lock facing away."""
    course = get_course("hall")
    x, y, heading = *course.path[0], course.headings[0]
    assert abs(course.curvature[0]) < 1e-9
    right = np.array((np.sin(heading), -np.cos(heading)))
    on, beside, away = (
        np.array([*(np.array((x, y)) + offset * right), heading + turned, 0.0, 0.0, 0.0])
        for offset, turned in ((0.0, 0.0), (0.3, 0.0), (0.0, 3.0))
    )
    steering, throttle = pure_pursuit(np.stack((on, beside, away)), course).T
    assert abs(steering[0]) < 0.02
    assert steering[1] < -0.2, "right of the path it steers left"
    assert abs(steering[2]) == 1
    assert throttle[0] > throttle[1] > 0


@pytest.mark.parametrize("name", ["meadow", "hall"])
def test_the_expert_drives_a_lap(name: str) -> None:
    simulator = Simulator(name, seed=1)
    system = SYSTEM.with_asset(torch.from_numpy(get_course(name).path))
    furthest = 0.0
    for _ in range(1_000):
        t = simulator.telemetry
        state = np.array([t.x, t.y, t.heading, t.speed, 0.0, 0.0])
        steering, throttle = DonkeyCarCollector.expert(state, system)
        simulator.step(float(steering), float(throttle))
        furthest = max(furthest, abs(simulator.telemetry.cte))
        if simulator.telemetry.laps:
            break
    assert simulator.telemetry.laps == 1
    assert furthest < 0.6


def test_random_wheel_holds_and_stays_in_the_box() -> None:
    rng, controller = np.random.default_rng(0), RandomWheel(max_hold=5)
    actions = np.stack([controller(np.zeros(6), rng) for _ in range(200)])
    assert (np.abs(actions[:, 0]) <= 1).all()
    assert ((actions[:, 1] >= 0) & (actions[:, 1] <= 1)).all()
    changes = np.flatnonzero((np.diff(actions, axis=0) != 0).any(1))
    assert np.diff(changes).min() >= 1
    assert np.diff(changes).max() <= 5


FEW = Settings("donkey_car", trajectories=2, steps=3, shard_size=2)


@pytest.mark.parametrize("name", ["hall", "random-3"])
def test_another_course_is_driven_and_recorded(name: str, tmp_path: Path) -> None:
    course = get_course(name)
    collect(replace(FEW, course=course), tmp_path)
    data = load_dataset(tmp_path)
    assert data.manifest["course"] == name
    assert torch.equal(system_of(data.manifest).asset, torch.from_numpy(course.path).float())
    assert np.abs(course.project(data.states[..., :2].astype(float))[1]).max() <= FURTHEST
    (tmp_path / "shard-00000.npz").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"--course {name} --out"):
        load_dataset(tmp_path)


def test_a_collection_goes_on_with_its_own_course_only(tmp_path: Path) -> None:
    manifest = collect(FEW, tmp_path)
    whole = manifest.read_bytes()
    hall = replace(FEW, course=get_course("hall"))
    with pytest.raises(ValueError, match="course = 'meadow', now 'hall' .*choose another --out"):
        collect(hall, tmp_path)
    for path in (manifest, tmp_path / "shard-00000.json"):  # as they were when there was one course
        content = json.loads(path.read_text())
        del content["course"]
        path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="course = 'meadow', now 'hall'"):
        collect(hall, tmp_path)
    kept = (tmp_path / "shard-00000.npz").stat().st_mtime_ns
    assert collect(replace(FEW, course=get_course("meadow")), tmp_path).read_bytes() == whole
    assert (tmp_path / "shard-00000.npz").stat().st_mtime_ns == kept


def test_courses_that_cannot_be_collected_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'hall'"):
        preset_settings("donkey_car", "debug", course="haul")
    with pytest.raises(ValueError, match=r"'hills' has x from -6\.20.*expected -5 to 5"):
        preset_settings("donkey_car", "debug", course="hills")
    with pytest.raises(ValueError, match="course is 'hall', but cartpole has none"):
        preset_settings("cartpole", "debug", course="hall")
