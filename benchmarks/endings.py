"""How real episodes of Lunar Lander end, and how the model ends them from shortly before.

    python -m benchmarks.endings

A thousand real episodes are flown to their end by a pilot and by random actions. From the true
state 20 steps before, the model goes on under the same actions, with the engines' mean thrust;
after the real end no engine fires, and the model has a second to come to its own. Twenty steps
before the end of a landing the lander stands already, so the same is told from 60 steps before.
Writes confusion tables to ``assets/results/lunar_lander-endings.csv``.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro

from benchmarks.tables import print_rows
from piwm_gym.checkpoint import load
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.twins import LunarLanderTwin
from piwm_gym.world_model import WorldModel
from training.controllers import Controller, Pilot, RandomHold
from training.evaluate import write_csv

LEADS = (20, 60)
"""Steps before the end from where the model goes on."""
PATIENCE = 50
ENV_ID = "PIWM-LunarLander-v0"
ENDINGS = ("landed", "crashed", "out of view")
NONE = "none"


@dataclass(frozen=True)
class Ending:
    """The last steps of a real episode.

    Attributes:
        states: (L, 10) SI units, so many steps before the end as the longest of ``LEADS``, and
            from there on, without the last.
        actions: (L,) int64, taken in those states.
        scene: (11,) terrain heights, m.
        name: One of :data:`ENDINGS`.
    """

    states: np.ndarray
    actions: np.ndarray
    scene: np.ndarray
    name: str


def ending_of(state: np.ndarray) -> str:
    """How an episode that ends in this state ended; ``"none"`` for a state that ends none."""
    x, rest_time, crashed = state[0], state[8], state[9]
    if crashed > 0.5:
        return ENDINGS[1]
    if abs(x) >= 10:
        return ENDINGS[2]
    return ENDINGS[0] if rest_time >= 0.499 else NONE


def controller(rng: np.random.Generator) -> Controller:
    """A pilot bound for the pad or beside it, more or less steady, or random actions."""
    if rng.random() < 0.25:
        return RandomHold(4, max_hold=int(rng.integers(1, 9)))
    width = 1.5 if rng.random() < 0.6 else 6.0
    return Pilot((-width, -0.7, 0.0), (width, -0.7, 0.0), 600, epsilon=rng.uniform(0, 0.3))


def real_endings(count: int, seed: int) -> list[Ending]:
    """Fly real episodes until ``count`` of them have ended of themselves."""
    twin = LunarLanderTwin(gym.make("LunarLander-v3").unwrapped)
    rng = np.random.default_rng(seed)
    endings: list[Ending] = []
    while len(endings) < count:
        twin.reset(int(rng.integers(2**31)))
        fly, states, over = controller(rng), [twin.state()], False
        actions: list[int] = []
        while not over and len(actions) < 1000:
            actions.append(fly(states[-1], rng))
            over = twin.step(actions[-1])[2]
            states.append(twin.state())
        longest = max(LEADS)
        if over and len(actions) > longest:
            before, last = np.array(states[-1 - longest : -1]), np.array(actions[-longest:])
            endings.append(Ending(before, last, twin.scene(), ending_of(states[-1])))
    return endings


@torch.no_grad()
def imagined_endings(model: WorldModel, endings: list[Ending], lead: int) -> list[str]:
    """How the model ends them from so many steps before."""
    state = torch.from_numpy(np.stack([e.states[-lead] for e in endings])).float()
    scene = torch.from_numpy(np.stack([e.scene for e in endings])).float()
    actions = torch.from_numpy(np.stack([e.actions[-lead:] for e in endings]))
    actions = torch.nn.functional.pad(actions, (0, PATIENCE))
    states = model.rollout(state, actions, scene=scene)
    over = model.system.terminal(states)
    first = over.int().argmax(1)
    ends = states[torch.arange(len(states)), first].numpy()
    return [ending_of(end) for end in ends]


def confusion(real: list[str], imagined: list[str]) -> list[dict[str, object]]:
    """One row per real ending: how many the model ended in each way, and the share it agrees."""
    counts = Counter(zip(real, imagined, strict=True))
    rows: list[dict[str, object]] = []
    for name in (*ENDINGS, "all"):
        chosen = ENDINGS if name == "all" else (name,)
        total = sum(counts[r, i] for r in chosen for i in (*ENDINGS, NONE))
        agreed = sum(counts[r, r] for r in chosen)
        imagined_counts = {i: sum(counts[r, i] for r in chosen) for i in (*ENDINGS, NONE)}
        share = 100 * agreed / total if total else float("nan")
        rows.append(
            {"real": name, "episodes": total, **imagined_counts, "agreement_percent": share}
        )
    return rows


def main(
    variant: str = DEFAULT_VARIANT,
    checkpoint: Path | None = None,
    episodes: int = 1000,
    seed: int = 0,
    out: Path = Path("assets/results/lunar_lander-endings.csv"),
) -> None:
    """Write the confusion table.

    Args:
        variant: Which shipped weights.
        checkpoint: A file instead of them.
        episodes: Real episodes.
        seed: Of their controllers and terrains.
        out: CSV file.
    """
    model = load(ENV_ID, variant, checkpoint, "cpu")
    endings = real_endings(episodes, seed)
    real = [e.name for e in endings]
    rows = [
        {"lead": lead, **row}
        for lead in LEADS
        for row in confusion(real, imagined_endings(model, endings, lead))
    ]
    write_csv(out, rows)
    print_rows(rows, tuple(rows[0]), f"{episodes} real episodes, from some steps before the end")


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["confusion", "ending_of", "imagined_endings", "main", "real_endings"]
