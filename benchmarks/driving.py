"""Drivers trained in the world model alone, driving the simulator through the real client.

    python -m benchmarks.driving                       # three seeds, five or ten laps each
    python -m benchmarks.driving --seeds 0 --laps 2 --observations "true state"

PPO on imagined states learns in the model; then it drives a Donkey Car simulator, by default the
embedded one in a process of its own, through the unchanged ``gym-donkeycar``: once with the true
state of the telemetry, once with states estimated from the frames. A pupil that it has taught in
the model drives by the frames themselves. A drive ends after so many laps, or further than 1 m
from the path. Writes ``assets/results/donkey_car-driving.csv``.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.console import Console

import piwm_gym
from benchmarks.agents import Trained, World, train
from benchmarks.control import choose_recipe
from benchmarks.imitation import FrameStacks, Lessons, teach
from benchmarks.tables import print_rows, update_csv
from piwm_gym.checkpoint import CheckpointError
from piwm_gym.real import same_place
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.state_filter import StateFilter
from piwm_gym.systems import unknown
from piwm_gym.world_model import WorldModel

ENV_ID = "PIWM-DonkeyCar-v0"
LAPS = {"true state": 10, "state from frames": 5, "frames": 5}
KEYS = ("variant", "uncertainty", "observations", "seed")
SHOWN = ("observations", "laps", "left_the_track", "mean_speed", "mean_cte", "position_rmse")
STEPS_PER_LAP = 1_000
"""A lap takes 300 to 500 steps; one that takes more is not going to end."""


@dataclass(frozen=True)
class Drive:
    """What one drive was like.

    Attributes:
        laps: Driven, a fraction.
        left_the_track: Whether it ended further than 1 m from the path.
        speed: Mean, m/s.
        cte: Absolute distance from the path at every step, m.
        position_error: Distance of the estimated from the true place at every step, m.
    """

    laps: float
    left_the_track: bool
    speed: float
    cte: np.ndarray
    position_error: np.ndarray


class Look(Protocol):
    """What a driver sees of the car.

    Attributes:
        place: (2,) where the driver believes the car to be, m; None for one who does not say.
    """

    place: np.ndarray | None

    def see(self, obs: np.ndarray, frame: np.ndarray, action: np.ndarray | None) -> np.ndarray:
        """What the driver gets of a moment, and of the action before it.

        Args:
            obs: What the telemetry says of it.
            frame: (H, W, 3) of the camera.
            action: None at the start of a drive.
        """
        ...


class TrueState:
    """What the telemetry says."""

    place: np.ndarray | None = None

    def see(self, obs: np.ndarray, frame: np.ndarray, action: np.ndarray | None) -> np.ndarray:
        """The observation as it is."""
        return obs


class EstimatedState:
    """The state that a model makes of the frames."""

    def __init__(self, model: WorldModel) -> None:
        self._filter = StateFilter(model)
        self.place: np.ndarray | None = None

    def see(self, obs: np.ndarray, frame: np.ndarray, action: np.ndarray | None) -> np.ndarray:
        """The estimate, in the observation's form."""
        frames = torch.from_numpy(frame[None])
        if action is None:
            estimate = self._filter.reset(frames)
        else:
            estimate = self._filter.update(frames, torch.from_numpy(action[None]))
        state = estimate[0].cpu()
        self.place = state[:2].numpy()
        return self._filter.model.system.observation(state).numpy()


class StackedFrames:
    """The last frames."""

    place: np.ndarray | None = None

    def __init__(self) -> None:
        self._stacks = FrameStacks()

    def see(self, obs: np.ndarray, frame: np.ndarray, action: np.ndarray | None) -> np.ndarray:
        """The stack, with the newest frame last."""
        return self._stacks.push(frame)


def drive(agent: Any, look: Look, laps: float, seed: int, **simulator: Any) -> Drive:
    """Let an agent drive until it has the laps or leaves the track.

    Args:
        agent: Of Stable-Baselines3.
        look: What it sees; serves for one drive.
        laps: When it is enough.
        seed: Of the embedded simulator's bumps.
        **simulator: For :func:`piwm_gym.make_real`: the embedded one's course, or host and port of
            another simulator.
    """
    if not {"host", "port"} & simulator.keys():
        simulator = {"seed": seed, **simulator}
    real = piwm_gym.make_real(
        ENV_ID, obs_type="state", render_mode="rgb_array", max_episode_steps=-1, **simulator
    )
    try:
        return _drive(agent, real, look, laps, seed)
    finally:
        real.close()


def _drive(agent: Any, real: gym.Env, look: Look, laps: float, seed: int) -> Drive:
    system = cast(Any, real.unwrapped).system
    obs, info = real.reset(seed=seed)
    action, terminated = None, False
    speeds: list[float] = []
    ctes: list[float] = []
    errors: list[float] = []
    done = 0.0
    while done < laps and not terminated and len(speeds) < laps * STEPS_PER_LAP:
        seen = look.see(obs, np.asarray(real.render()), action)
        if look.place is not None:
            errors.append(float(np.hypot(*(look.place - info["state"][:2]))))
        action, _ = agent.predict(seen, deterministic=True)
        obs, _, terminated, _, info = real.step(action)
        speeds.append(float(info["state"][3]))
        ctes.append(abs(float(info["cte"])))
        done = float(system.laps(torch.from_numpy(info["state"])))
    return Drive(done, terminated, float(np.mean(speeds)), np.array(ctes), np.array(errors))


Driver = tuple[Trained, Look]


def drivers(
    world: World, seed: int, steps: int | None, num_envs: int | None, observations: Sequence[str]
) -> dict[str, Driver]:
    """Drivers trained in the model, by what they observe of the real car.

    Args:
        world: The model.
        seed: Of the training.
        steps: Imagined steps of the driver on states, instead of the recipe's.
        num_envs: Imagined environments, instead of the recipe's.
        observations: Which, of :data:`LAPS`.
    """
    recipe = choose_recipe("donkey_car", "state", steps, num_envs)
    trained = train(recipe, world, seed, recipe.eval_episodes)
    found: dict[str, Driver] = {}
    for name in observations:
        if name == "frames":
            lessons = Lessons() if num_envs is None else Lessons(num_envs=num_envs)
            found[name] = teach(trained.agent, world, lessons, seed), StackedFrames()
        elif name == "state from frames":
            found[name] = trained, EstimatedState(world.model())
        else:
            found[name] = trained, TrueState()
    return found


def rows(
    world: World, seed: int, drivers: dict[str, Driver], laps: dict[str, int], **simulator: Any
) -> list[dict[str, Any]]:
    """Scores of drivers, one row each."""
    result = []
    for observations, (trained, look) in drivers.items():
        driven = drive(trained.agent, look, laps[observations], seed, **simulator)
        errors = driven.position_error
        result.append(
            {
                "variant": world.variant,
                "uncertainty": f"{world.uncertainty:g}",
                "observations": observations,
                "seed": seed,
                "training_steps": trained.steps,
                "training_seconds": round(trained.seconds),
                "imagined_return_mean": float(np.mean(trained.imagined)),
                "laps_wanted": laps[observations],
                "laps": driven.laps,
                "left_the_track": driven.left_the_track,
                "mean_speed": driven.speed,
                "mean_cte": float(driven.cte.mean()),
                "largest_cte": float(driven.cte.max()),
                "position_rmse": float(np.sqrt((errors**2).mean())) if len(errors) else 0.0,
            }
        )
    return result


def main(
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    uncertainty: float = 0.0,
    seeds: tuple[int, ...] = (0, 1, 2),
    observations: tuple[str, ...] = tuple(LAPS),
    steps: int | None = None,
    num_envs: int | None = None,
    laps: int | None = None,
    host: str | None = None,
    port: int | None = None,
    out: Path = Path("assets/results/donkey_car-driving.csv"),
) -> None:
    """Train and let drive.

    Args:
        variant: Which world model.
        checkpoint: A file instead of the shipped weights.
        uncertainty: Draw the learned parameters per episode of training, within this fraction.
        seeds: One agent is trained for each.
        observations: What drivers see of the car, of "true state", "state from frames", "frames".
        steps: Imagined steps of training, instead of the recipe's.
        num_envs: Imagined environments, instead of the recipe's.
        laps: Laps to drive, instead of ten by true states and five by the others.
        host: Host of a running simulator; default: the embedded one is started.
        port: Its port.
        out: CSV file; rows about the same model, observations and seed are replaced.
    """
    torch.set_num_threads(1)
    world = World(ENV_ID, variant, checkpoint, uncertainty)
    wanted = LAPS if laps is None else dict.fromkeys(LAPS, laps)
    given = {"host": host, "port": port}
    simulator = {name: value for name, value in given.items() if value is not None}
    try:
        simulator = simulator or same_place(world.model())
        for name in observations:
            if name not in LAPS:
                raise ValueError(unknown("observations", name, tuple(LAPS)))
        for seed in seeds:
            trained = drivers(world, seed, steps, num_envs, observations)
            scored = rows(world, seed, trained, wanted, **simulator)
            print_rows(scored, SHOWN, f"Drivers of the model, seed {seed}")
            update_csv(out, scored, KEYS)
    except (ValueError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = [
    "LAPS",
    "Drive",
    "EstimatedState",
    "Look",
    "StackedFrames",
    "TrueState",
    "drive",
    "drivers",
    "main",
    "rows",
]
