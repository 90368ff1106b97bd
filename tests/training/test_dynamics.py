"""Lunar Lander's parameters from simulated trajectories: noisy motion, reading and labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym.models import Dynamics
from piwm_gym.systems import CartPole, LunarLander
from training.contact import compass_search, fit_contact, labelled_start
from training.dynamics import NOISY_WINDOW, refine, shown_by, starting_values, train_dynamics
from training.fit import Batch, FitConfig
from training.flight import (
    AFTER,
    CONTEXT,
    free_frames,
    free_trajectories,
    grounded_windows,
    pieces,
)
from training.least_squares import levenberg_marquardt
from training.run import Run
from training.spread import fit_spread
from training.supervision import Supervision, weak_labels

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

SYSTEM = LunarLander()
TRUTH = SYSTEM.parametrisations["identifiable"].from_params(SYSTEM.reference)
READING_ERROR = torch.tensor([0.08, 0.08, 0.03])
"""Of x, y (m) and theta (rad) in an encoded frame."""
HIGH = ((-3.0, 6.0, -1.5, -2.0, -0.4, -0.5), (3.0, 9.0, 1.5, 0.5, 0.4, 0.5))
LOW = ((-1.5, 1.2, -0.5, -1.5, -0.2, -0.2), (1.5, 2.2, 0.5, -0.5, 0.2, 0.2))


def simulate(count: int, bounds: tuple[tuple[float, ...], ...], seed: int = 0) -> Batch:
    """Trajectories of 50 random actions, as training sees them; the true states beside them."""
    generator = torch.Generator().manual_seed(seed)
    scene = SYSTEM.scene(torch.rand(count, 12, generator=generator))
    low, high = torch.tensor(bounds)
    state = torch.zeros(count, len(SYSTEM.variables))
    state[:, :6] = low + (high - low) * torch.rand(count, 6, generator=generator)
    actions = torch.randint(4, (count, 50), generator=generator)
    noise = torch.rand(count, 50, 2, generator=generator)
    later = SYSTEM.rollout(state, actions, SYSTEM.reference, noise, scene)
    states = torch.cat((state[:, None], later), dim=1)
    labels = weak_labels(states.numpy(), SYSTEM.ranges.numpy(), Supervision(0.05)).proxy_mean
    read = states[..., SYSTEM.visible]
    return {
        "configurations": read + READING_ERROR * torch.randn(read.shape, generator=generator),
        "scene": scene,
        "actions": actions,
        "labels": torch.from_numpy(labels),
        "states": states,
    }


def started(learned_already: tuple[str, ...] = (), start: int = 0) -> Dynamics:
    """Dynamics at a starting point; what is named is at the truth."""
    dynamics = Dynamics(SYSTEM)
    values = starting_values(dynamics, SYSTEM, start)
    assert all(abs(v / t - 1) >= 0.5 for v, t in zip(values, TRUTH, strict=True))
    known = [i for what in learned_already for i in shown_by(dynamics, what)]
    dynamics.set_values(tuple(TRUTH[i] if i in known else v for i, v in enumerate(values)))
    return dynamics


def errors(dynamics: Dynamics) -> dict[str, float]:
    """Relative errors by name."""
    return {
        name: abs(float(value.detach()) / float(true) - 1)
        for name, value, true in zip(dynamics.names, dynamics.values, TRUTH, strict=True)
    }


@pytest.fixture(scope="module")
def flights() -> Batch:
    return free_trajectories(SYSTEM, simulate(300, HIGH))


def test_the_engines_are_recovered_from_free_flight_alone(flights: Batch) -> None:
    dynamics = started()
    before = dynamics.raw.detach().clone()
    refine(dynamics, SYSTEM, flights, iterations=6)
    found = errors(dynamics)
    assert found["gravity"] < 0.01
    assert found["main_acceleration"] < 0.02
    assert found["side_acceleration"] < 0.04
    assert found["side_angular_acceleration"] < 0.02
    others = shown_by(dynamics, "contact") + shown_by(dynamics, "spread")
    assert torch.equal(dynamics.raw[others], before[others])


@pytest.mark.filterwarnings("ignore:powers follow from motion only with")
@pytest.mark.parametrize(
    ("parametrisation", "tolerances"),
    [
        ("powers", {"main_engine_power": 0.02, "side_engine_power": 0.03}),
        ("attitude", {"gravity": 0.01, "side_angular_acceleration": 0.08, "side_attitude": 0.35}),
    ],
)
def test_other_parametrisations_are_recovered_too(
    parametrisation: str, tolerances: dict[str, float]
) -> None:
    """The attitude term from tilted flights; upright ones show nothing of it."""
    low, high = HIGH
    tilted = ((*low[:4], -1.2, low[5]), (*high[:4], 1.2, high[5]))
    dynamics = Dynamics(SYSTEM, parametrisation)
    dynamics.set_values(starting_values(dynamics, SYSTEM, start=0))
    refine(dynamics, SYSTEM, free_trajectories(SYSTEM, simulate(300, tilted)), iterations=8)
    truth = SYSTEM.parametrisations[parametrisation].from_params(SYSTEM.reference)
    expected = dict(zip(dynamics.names, truth, strict=True))
    learned = dict(zip(dynamics.names, dynamics.values, strict=True))
    found = {n: abs(float(learned[n].detach()) / float(expected[n]) - 1) for n in tolerances}
    assert all(found[name] < tolerance for name, tolerance in tolerances.items()), found


def test_dispersion_is_recovered_from_the_scatter(flights: Batch) -> None:
    dynamics = started(("motion",))
    fit_spread(dynamics, SYSTEM, flights, shown_by(dynamics, "spread"))
    found = errors(dynamics)
    assert found["main_dispersion"] < 0.1
    assert found["side_dispersion"] < 0.3


def test_no_scatter_is_no_dispersion(flights: Batch) -> None:
    states = SYSTEM.rollout(flights["states"][:, 0], flights["actions"], SYSTEM.reference)
    states = torch.cat((flights["states"][:, :1], states), dim=1)
    dynamics = started(("motion",))
    exact = {"configurations": states[..., SYSTEM.visible], "labels": states}
    fit_spread(
        dynamics, SYSTEM, {**exact, "actions": flights["actions"]}, shown_by(dynamics, "spread")
    )
    assert max(v.item() for v in dynamics.values[-2:]) < 0.02


def test_the_search_passes_kinks_and_leaves_alone_what_has_no_effect() -> None:
    target = torch.tensor([3.0, -2.0, 0.0])

    def loss(x: Tensor) -> float:
        return 1 + float((x - target)[:2].abs().sum())

    found = compass_search(loss, torch.ones(3), [0, 1, 2])
    assert found.tolist() == pytest.approx([3.0, -2.0, 1.0], abs=0.1)
    assert compass_search(loss, torch.ones(3), [0])[1] == 1.0


def test_legs_are_recovered_from_landings() -> None:
    landings = grounded_windows(SYSTEM, simulate(150, LOW))
    assert len(landings["labels"]) > 50
    dynamics = started(("motion",))
    fit_contact(dynamics, SYSTEM, landings, shown_by(dynamics, "contact"))
    assert errors(dynamics)["leg_strength"] < 0.15
    assert errors(dynamics)["leg_friction"] < 0.5
    assert errors(dynamics)["gravity"] < 1e-6


def test_labels_help_to_find_the_start(flights: Batch) -> None:
    start = labelled_start(SYSTEM, flights, SYSTEM.reference)
    error = (start - flights["states"][:, 0])[:, :6].square().mean(0).sqrt()
    assert error.tolist() == pytest.approx([0.03, 0.03, 0.06, 0.07, 0.01, 0.025], rel=0.5)


def test_trajectories_are_sorted_by_what_they_show() -> None:
    high, low = simulate(5, HIGH), simulate(40, LOW)
    free = free_trajectories(SYSTEM, high)
    assert "scene" not in free
    assert len(free["labels"]) == 5
    low["configurations"][:, 40:, 1] = -5.0  # all of them are down by then
    with pytest.raises(ValueError, match="none of .* is in free motion throughout"):
        free_trajectories(SYSTEM, low)
    both = {name: torch.cat((high[name], low[name])) for name in high}
    windows = grounded_windows(SYSTEM, both)
    count = len(windows["labels"])
    assert 20 < count <= 40
    assert {name: tuple(tensor.shape[1:]) for name, tensor in windows.items()} == {
        "configurations": (CONTEXT + AFTER, 3),
        "labels": (CONTEXT + AFTER, 10),
        "actions": (CONTEXT + AFTER - 1,),
        "scene": (11,),
        "valid": (AFTER,),
    }
    near = free_frames(SYSTEM, windows)
    assert near[:, :CONTEXT].all()
    assert not near[:, CONTEXT].any()
    assert windows["valid"][:, 0].all()


def test_windows_beyond_the_end_are_marked() -> None:
    batch = simulate(1, HIGH)
    batch["configurations"][:, 45:, 1] = -5.0
    windows = grounded_windows(SYSTEM, batch)
    assert windows["valid"].tolist() == [[True] * 6 + [False] * (AFTER - 6)]
    assert torch.equal(windows["labels"][:, : CONTEXT + 6], batch["labels"][:, 35:])
    assert torch.equal(windows["labels"][:, -1], batch["labels"][:, -1])


def test_without_a_ground_all_motion_is_free() -> None:
    batch = {
        "configurations": torch.zeros(3, 4, 2),
        "labels": torch.zeros(3, 4, 4),
        "actions": torch.zeros(3, 3),
        "scene": torch.zeros(3, 0),
    }
    assert len(free_trajectories(CartPole(), batch)["labels"]) == 3
    assert len(grounded_windows(CartPole(), batch)["labels"]) == 0


def test_pieces_share_their_end_frames(flights: Batch) -> None:
    parts = pieces(flights, NOISY_WINDOW)
    count = len(flights["labels"])
    assert parts["labels"].shape[:2] == (2 * count, NOISY_WINDOW)
    assert parts["actions"].shape == (2 * count, NOISY_WINDOW - 1)
    assert torch.equal(parts["labels"][:count, -1], parts["labels"][count:, 0])
    assert torch.equal(parts["actions"][count:], flights["actions"][:, NOISY_WINDOW - 1 :])
    assert pieces(flights, 99) is flights


def test_second_order_steps_move_what_may_move() -> None:
    target = torch.tensor([2.0, 3.0])

    def residuals(x: Tensor) -> Tensor:
        return torch.cat((x**2 - target, x.sum()[None] * 0))

    start = torch.ones(2)
    found = levenberg_marquardt(residuals, start, [1], 10, 1e-2)
    assert found.tolist() == pytest.approx([1.0, 3**0.5], rel=1e-4)
    assert start.tolist() == [1.0, 1.0]


def test_all_kinds_from_one_call(tmp_path: Path) -> None:
    def batch(count: int, seed: int) -> Batch:
        high, low = simulate(count, HIGH, seed), simulate(count, LOW, seed)
        return {name: torch.cat((high[name], low[name])) for name in high}

    dynamics = Dynamics(SYSTEM)
    config = FitConfig(epochs=2, batch_size=20, warmup_epochs=1, learning_rate=0.1)
    results = train_dynamics(dynamics, SYSTEM, batch(40, 1), batch(10, 2), config, 1, Run(tmp_path))
    assert results["trajectories"]["free"] >= 40
    assert results["trajectories"]["grounded"] > 10
    learned = results["starts"][0]["learned"]
    assert tuple(learned) == dynamics.names
    assert np.isfinite(list(learned.values())).all()
    assert learned["gravity"] == pytest.approx(10.0, rel=0.05)
