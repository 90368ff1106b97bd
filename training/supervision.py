r"""Weak labels: intervals that contain the state, drawn once.

For each state value x of a dimension whose documented range is R, and noise level d (a fraction):

    shift    D       ~ U[-d R / 2, d R / 2]
    proxies  Xi_1..L ~ U[x + D - d R / 2, x + D + d R / 2]
    label            = mean of the proxies

The label's error has standard deviation d R sqrt((1 + 1/L) / 12), 0.2915 d R for L = 50: nearly
all of it is the shift, so such labels are about as informative as a state with uniform noise.
They are drawn **once**, from a stored seed; drawing them anew in every epoch would average the
noise away and leak the truth. Trajectory i has its own generator, seeded with (seed, i): its
labels depend neither on how many trajectories there are nor on the order in which they are made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from piwm_gym.systems import unknown

Bias = Literal["per_step", "per_trajectory", "per_dataset"]


@dataclass(frozen=True)
class Supervision:
    """How weak the labels are.

    Attributes:
        noise_level: Width of the intervals, as a fraction of each dimension's range; 0 labels
            with the state itself.
        bias: How long a shift stays: a new one at each step (the paper), one for each trajectory
            (a sensor's offset), or one for the data set (never averages out).
        num_proxies: Samples in an interval.
        seed: Seed of the one draw.
    """

    noise_level: float
    bias: Bias = "per_step"
    num_proxies: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise_level <= 1:
            raise ValueError(
                f"noise_level is {self.noise_level}; expected a fraction of the range, 0 to 1, "
                "such as 0.05"
            )
        if self.bias not in get_args(Bias):
            raise ValueError(unknown("bias", self.bias, get_args(Bias)))
        if self.num_proxies < 1:
            raise ValueError(f"num_proxies is {self.num_proxies}; expected at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; expected 0 or more")


@dataclass(frozen=True)
class WeakLabels:
    """Labels of a data set, of the states' shape and dtype.

    Attributes:
        proxy_mean: (N, T+1, D) mean of the proxies, the regression target, SI units.
        proxy_std: (N, T+1, D) standard deviation of the proxies, SI units.
    """

    proxy_mean: np.ndarray
    proxy_std: np.ndarray


def draw_proxies(
    states: np.ndarray, ranges: np.ndarray, supervision: Supervision, *, first: int = 0
) -> np.ndarray:
    """All proxies of some trajectories; L times as large as the states, so take few.

    Args:
        states: (N, T+1, D), SI units.
        ranges: (D,) documented range of each dimension.
        supervision: How weak the labels are.
        first: Index in the data set of ``states[0]``.

    Returns:
        float64 (N, T+1, L, D). Their mean is what :func:`weak_labels` returns.

    Raises:
        ValueError: A shape does not fit.
    """
    offsets = np.stack(list(_offsets(states, ranges, supervision, first)))
    return np.asarray(states[:, :, None, :] + offsets)


def weak_labels(states: np.ndarray, ranges: np.ndarray, supervision: Supervision) -> WeakLabels:
    """Labels of a whole data set; only one trajectory's proxies are in memory at a time.

    Call it on the whole data set and split afterwards: a trajectory's labels go with its index.

    Args:
        states: float (N, T+1, D), SI units.
        ranges: (D,) documented range of each dimension.
        supervision: How weak the labels are.

    Raises:
        ValueError: A shape does not fit.
    """
    mean, std = np.empty_like(states), np.empty_like(states)
    for i, offsets in enumerate(_offsets(states, ranges, supervision, 0)):
        mean[i] = states[i] + offsets.mean(axis=1)
        std[i] = offsets.std(axis=1)
    return WeakLabels(mean, std)


def _offsets(
    states: np.ndarray, ranges: np.ndarray, supervision: Supervision, first: int
) -> Iterator[np.ndarray]:
    """Proxies minus state, float64 (T+1, L, D), trajectory by trajectory."""
    states, ranges = np.asarray(states), np.asarray(ranges, dtype=np.float64)
    if states.ndim != 3 or not np.issubdtype(states.dtype, np.floating) or len(states) == 0:
        raise ValueError(
            f"states is a {states.dtype} array of shape {states.shape}; expected floats of shape "
            "(trajectories, time steps, dimensions)"
        )
    if ranges.shape != states.shape[2:] or not (np.isfinite(ranges) & (ranges > 0)).all():
        raise ValueError(
            f"ranges is {ranges.tolist()}; expected {states.shape[2]} positive numbers, one for "
            "each dimension of the states"
        )
    _, times, dims = states.shape
    width = supervision.noise_level * ranges
    root = np.random.default_rng(np.random.SeedSequence(supervision.seed))
    common = root.uniform(-0.5, 0.5, size=(1, 1, dims))
    for i in range(len(states)):
        sequence = np.random.SeedSequence(supervision.seed, spawn_key=(first + i,))
        rng = np.random.default_rng(sequence)
        if supervision.bias == "per_dataset":
            shift = common
        elif supervision.bias == "per_trajectory":
            shift = rng.uniform(-0.5, 0.5, size=(1, 1, dims))
        else:
            shift = rng.uniform(-0.5, 0.5, size=(times, 1, dims))
        spread = rng.uniform(-0.5, 0.5, size=(times, supervision.num_proxies, dims))
        yield (shift + spread) * width


__all__ = ["Bias", "Supervision", "WeakLabels", "draw_proxies", "weak_labels"]
