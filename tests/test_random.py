"""Random streams: known values, statistics, and independence of the batch."""

import random

import numpy as np
import pytest
import torch

from piwm_gym.random import GOLDEN, RandomStreams, draw, draw_at_once, mix64


def test_splitmix64_reference_values() -> None:
    # The published outputs of SplitMix64 for the seed 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    positions = 1234567 + torch.arange(1, 6) * GOLDEN
    assert [int(x) % 2**64 for x in mix64(positions)] == expected


def test_uniform_in_mean_variance_and_bins() -> None:
    numbers = RandomStreams(range(2000)).uniform(100).double()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.004)
    assert numbers.var().item() == pytest.approx(1 / 12, abs=0.001)
    counts = torch.histc(numbers, bins=100, min=0, max=1)
    chi_squared = ((counts - 2000) ** 2 / 2000).sum().item()
    assert 50 < chi_squared < 165  # 99 degrees of freedom


def test_neighbouring_seeds_and_draws_do_not_correlate() -> None:
    numbers = RandomStreams(range(2000)).uniform(100).double() - 0.5
    seeds = (numbers[1:] * numbers[:-1]).mean() * 12
    draws = (numbers[:, 1:] * numbers[:, :-1]).mean() * 12
    assert abs(seeds.item()) < 0.01
    assert abs(draws.item()) < 0.01


def test_a_stream_does_not_depend_on_the_batch_or_on_the_block_size() -> None:
    batch = RandomStreams([5, 6, 7]).uniform(6)
    alone = RandomStreams([6])
    assert torch.equal(torch.cat((alone.uniform(1), alone.uniform(5)), dim=1), batch[1:2])


def test_numpy_draws_the_bits_that_torch_draws() -> None:
    positions = RandomStreams(range(500)).positions
    assert (positions < 0).any()
    for count in (0, 1, 7):
        assert torch.equal(draw_at_once(positions, count), draw(positions, count))


def test_only_the_chosen_slots_move_on() -> None:
    by_mask, by_rows, plain = (RandomStreams([1, 2, 3]) for _ in range(3))
    expected = plain.uniform(2)
    assert torch.equal(by_mask.uniform(2, mask=torch.tensor([True, False, True])), expected)
    assert torch.equal(by_rows.uniform(2, rows=torch.tensor([0, 2])), expected[[0, 2]])
    assert torch.equal(by_mask.positions, by_rows.positions)
    assert torch.equal(by_mask.uniform(2)[1], expected[1])


def test_reseeding_some_slots() -> None:
    streams = RandomStreams([1, 2])
    first = streams.uniform(3)
    second = streams.uniform(3)
    streams.reseed([1, 2], torch.tensor([True, False]))
    again = streams.uniform(3)
    assert torch.equal(again[0], first[0])
    assert not torch.equal(again[1], second[1])


@pytest.mark.parametrize("seed", [0, 2**31, 2**63, 2**64 - 1])
def test_seeds_of_any_size(seed: int) -> None:
    numbers = RandomStreams([seed, seed + 1]).uniform(4)
    assert not torch.equal(numbers[0], numbers[1])


def test_a_position_continues_the_stream() -> None:
    streams = RandomStreams([1, 2])
    streams.uniform(3)
    later = RandomStreams.at(streams.positions)
    assert torch.equal(streams.uniform(3), later.uniform(3))


def test_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    RandomStreams([0, 1]).uniform(4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
