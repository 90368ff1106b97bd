"""What the table of the bicycle's forms counts, and what it measures."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from benchmarks.bicycle import ALL, ROAD, on_road, rows_of
from piwm_gym.courses import ROAD_HALF_WIDTH, ROAD_OFFSET
from piwm_gym.systems import DonkeyCar
from training.dataset import TrajectoryDataset
from training.metrics import TestSet

SYSTEM = DonkeyCar()
STEPS = 50


def slow_drives() -> tuple[torch.Tensor, torch.Tensor]:
    """(N, T+1, D) states and (N, T, 2) actions of cars that creep along where they were put."""
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(60, 4, generator=generator) * torch.tensor([1.0, 1.0, 1.0, 0.1])
    start = SYSTEM.anywhere(uniforms)
    actions = torch.zeros(60, STEPS, 2)
    later = SYSTEM.rollout(start, actions, SYSTEM.reference)
    return torch.cat((start[:, None], later), dim=1), actions


def test_a_drive_is_on_the_road_when_all_of_it_is() -> None:
    heading = SYSTEM.track(SYSTEM.asset).project(SYSTEM.asset[:1]).heading
    beside = torch.stack((heading.sin(), -heading.cos()), dim=-1)
    middle, edge = ROAD_OFFSET, ROAD_OFFSET - ROAD_HALF_WIDTH
    states = torch.zeros(3, 4, 6)
    states[..., :2] = SYSTEM.asset[0]
    across = SYSTEM.place(states[:1, :1] + torch.nn.functional.pad(0.1 * beside, (0, 4))).cte
    side = across.sign().item()  # cross-track error may count to either side
    states[0, :, :2] += side * middle * beside
    states[1, :, :2] += side * (edge + 0.02) * beside
    states[2, :, :2] += side * middle * beside
    states[2, 2, :2] += side * 1.1 * ROAD_HALF_WIDTH * beside[0]
    assert on_road(SYSTEM, states).tolist() == [True, True, False]


def test_rows_are_exact_for_the_form_that_made_the_drives() -> None:
    states, actions = slow_drives()
    count = len(states)
    dataset = TrajectoryDataset(
        np.zeros((count, STEPS + 1, 1, 1, 3), np.uint8),
        actions.numpy(),
        states.numpy(),
        np.zeros((count, 0), np.float32),
        {},
    )
    test = TestSet(dataset, SYSTEM, torch.device("cpu"), index=np.arange(count))
    model = cast(Any, SimpleNamespace(system=SYSTEM, params=None))
    rows = rows_of(SYSTEM, model, test, "identifiable", SYSTEM.reference)
    assert [row["tested_on"] for row in rows] == [ALL, ROAD]
    assert 0 < rows[1]["windows"] < rows[0]["windows"] == len(test.futures)
    for row in rows:
        assert all(row[name] == pytest.approx(0, abs=1e-5) for name in ("x", "y", "theta", "v"))
    wrong = rows_of(SYSTEM, model, test, "paper", SYSTEM.reference.replace(verge_drag=0.0))
    assert 0 < wrong[1]["v"] < wrong[0]["v"], "beside the road there is more to be wrong about"
