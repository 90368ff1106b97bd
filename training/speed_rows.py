"""What each system's table of speed shows: figure, target and where the numbers are."""

from collections.abc import Callable
from dataclasses import dataclass

from piwm_gym.systems import get_system
from training.results import MISSING, Results

STATES, FRAMES = "environment steps", "frames"
SINGLE, VECTOR = "piwm-gym, gymnasium.make", "piwm-gym, gymnasium.make_vec"
ROLLOUT = "WorldModel.rollout, 15 steps"
COMPILED = ", compiled"
BFLOAT16 = ", bfloat16"

SpeedRow = tuple[str, str, Callable[[Results, str], str]]
"""Figure, target, and a cell for a suffix of our subjects' names: none, or :data:`COMPILED`."""


@dataclass(frozen=True)
class Rate:
    """Which rate of a table of throughput; of tensors where there are any, if it is not said."""

    subject: str
    batch: int
    measure: str = STATES
    output: str | None = None

    def of(self, results: Results, column: str = "per_second", suffix: str = "") -> float | None:
        """The rate; None where there is none."""
        chosen: dict[str, object] = {
            "measure": self.measure,
            "subject": self.subject + suffix,
            "batch": float(self.batch),
            "device": "cpu",
        }
        if self.output is not None:
            chosen["output"] = self.output
        rows = results.rows("throughput", **chosen)
        rows.sort(key=lambda row: row["output"] == "torch")
        return float(rows[-1][column]) if rows else None


def against(ours: Rate, theirs: Rate, digits: int = 1) -> Callable[[Results, str], str]:
    """A cell with our rate over another."""

    def cell(results: Results, suffix: str) -> str:
        over, under = ours.of(results, suffix=suffix), theirs.of(results)
        return MISSING if over is None or under is None else f"{over / under:.{digits}f} x"

    return cell


def rate(whose: Rate) -> Callable[[Results, str], str]:
    """A cell with a rate that compiling leaves alone."""

    def cell(results: Results, suffix: str) -> str:
        if suffix:
            return ""
        value = whose.of(results)
        return MISSING if value is None else f"{value:,.0f}"

    return cell


def over_the_floor(results: Results, suffix: str) -> str:
    """Time of a step with a frame over that of the decoder's multiply-adds alone."""
    over = _cost(results, f"a step with a frame, 1024 slots, over the floor{suffix}")
    return MISSING if over is None else f"{over:.1f} x"


def costs(text: Callable[..., str], *subjects: str) -> Callable[[Results, str], str]:
    """A cell with what ``text`` makes of the values of some costs, which compiling leaves alone."""

    def cell(results: Results, suffix: str) -> str:
        values = [_cost(results, subject) for subject in subjects]
        if suffix:
            return ""
        return MISSING if None in values else text(*values)

    return cell


def _cost(results: Results, subject: str) -> float | None:
    rows = results.rows("costs", subject=subject, device="cpu")
    return float(rows[0]["value"]) if rows else None


def _of_frames(system: str, real: str) -> tuple[SpeedRow, ...]:
    """Rows on frames."""
    height, width = get_system(system).frame.size
    size = f"{width}x{height}"
    return (
        (
            f"frames {size}, 1,024 environments, against AsyncVectorEnv of the real one with "
            "frames resized (2 workers)",
            "15 x",
            against(
                Rate(VECTOR, 1024, FRAMES),
                Rate(f"{real}, AsyncVectorEnv, frames resized", 2, FRAMES),
                0,
            ),
        ),
        (
            'the same with `decoder="direct-bfloat16"`',
            "",
            against(
                Rate(VECTOR + BFLOAT16, 1024, FRAMES),
                Rate(f"{real}, AsyncVectorEnv, frames resized", 2, FRAMES),
                0,
            ),
        ),
        (
            "a step with a frame, 1,024 environments on one thread, over the decoder's "
            "multiply-adds in matrix products",
            "2.5 x",
            over_the_floor,
        ),
        (
            f"one environment, frames, against rendering and resizing {real}",
            "1 x",
            against(
                Rate(SINGLE, 1, FRAMES),
                Rate(f"{real}, render() and resize to {size}", 1, FRAMES),
            ),
        ),
    )


def _stepping(real: str, target: str) -> SpeedRow:
    return (
        f"one environment, states, against stepping {real}",
        target,
        against(Rate(SINGLE, 1), Rate(f"{real}, gymnasium.make", 1), 2),
    )


_BOOTSTRAPS = "{}.PPO, 1024 slots, episodes of 15 steps"
_COSTS: tuple[SpeedRow, ...] = (
    (
        "import; make; first frame",
        "0.5 s; 3 s; 0.2 s",
        costs(
            lambda *seconds: "; ".join(f"{s:.2g} s" for s in seconds),
            "import piwm_gym",
            "make",
            "reset and first pixel step",
        ),
    ),
    (
        "environment's share of PPO's time, 1,024 slots",
        "25 %",
        costs("{:.0f} %".format, "environment's share of PPO, 1024 slots"),
    ),
    (
        "PPO with batched bootstraps against single ones, episodes of 15 steps",
        "",
        costs(
            lambda ours, theirs: f"{ours / theirs:.1f} x",
            *(_BOOTSTRAPS.format(name) for name in ("piwm_gym.sb3", "stable_baselines3")),
        ),
    ),
)
_NUMPY = Rate("CartPole-v1, CartPoleVectorEnv", 16384)

SPEED_ROWS: dict[str, tuple[SpeedRow, ...]] = {
    "cartpole": (
        (
            "states as tensors, 16,384 environments, against gymnax under jit",
            "2 x",
            against(Rate(VECTOR, 16384), Rate("CartPole-v1, gymnax, jit(scan(vmap))", 16384)),
        ),
        (
            "the same against Gymnasium's CartPoleVectorEnv",
            "1 x",
            against(Rate(VECTOR, 16384), _NUMPY),
        ),
        (
            "states as numpy arrays, the default, against CartPoleVectorEnv",
            "1 x",
            against(Rate(VECTOR, 16384, output="numpy"), _NUMPY),
        ),
        (
            "whole rollouts in one call, against CartPoleVectorEnv",
            "3 x",
            against(Rate(ROLLOUT, 16384), _NUMPY),
        ),
        *_of_frames("cartpole", "CartPole-v1"),
        _stepping("CartPole-v1", "0.33 x"),
        *_COSTS,
    ),
    "lunar_lander": (
        (
            "states, 4,096 environments, against AsyncVectorEnv of the real one (64)",
            "50 x",
            against(Rate(VECTOR, 4096), Rate("LunarLander-v3, AsyncVectorEnv", 64), 0),
        ),
        *_of_frames("lunar_lander", "LunarLander-v3"),
        _stepping("LunarLander-v3", "1 x"),
        *_COSTS,
    ),
    "donkey_car": (
        *_of_frames("donkey_car", "donkey-generated-track-v0"),
        (
            "embedded simulator, frames/s in one process",
            "300",
            rate(Rate("embedded simulator, in this process", 1, FRAMES)),
        ),
        (
            "embedded simulator, steps/s through the client",
            "200",
            rate(Rate("embedded simulator, in lock-step", 1)),
        ),
        *_COSTS,
    ),
}
"""Rows of each system's table of speed."""
