import tracemalloc

import numpy as np
import pytest

from piwm_gym.systems import CartPole
from training.supervision import Bias, Supervision, draw_proxies, weak_labels

RANGES = np.array([4.8, 3.0, 0.419, 3.3])
NOISE = 0.05


def some_states(n: int = 300, times: int = 51, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.uniform(-0.5, 0.5, (n, times, 4)) * RANGES).astype(dtype)


def errors(bias: Bias, seed: int = 0, n: int = 300) -> np.ndarray:
    """Label minus state, in units of the interval's width."""
    states = some_states(n, dtype=np.float64)
    labels = weak_labels(states, RANGES, Supervision(NOISE, bias, seed=seed))
    return (labels.proxy_mean - states) / (NOISE * RANGES)


def test_label_error_has_the_predicted_size():
    error = errors("per_step")
    np.testing.assert_allclose(error.std(axis=(0, 1)), 0.2915, rtol=0.02)
    np.testing.assert_allclose(error.mean(axis=(0, 1)), 0, atol=0.02)
    assert np.abs(error).max() < 0.75


def test_proxies_are_uniform_in_their_interval():
    states = some_states(20)
    labels = weak_labels(states, RANGES, Supervision(NOISE, num_proxies=2000))
    expected = np.broadcast_to(NOISE * RANGES / np.sqrt(12), states.shape)
    np.testing.assert_allclose(labels.proxy_std, expected, rtol=0.08)


def test_per_step_errors_are_independent_over_time():
    error = errors("per_step")
    correlation = (error[:, 1:] * error[:, :-1]).mean() / error.var()
    assert abs(correlation) < 0.02
    assert error.mean(axis=1).std() == pytest.approx(0.2915 / np.sqrt(51), rel=0.1)


def test_per_trajectory_errors_stay_within_a_trajectory():
    error = errors("per_trajectory")
    assert error.mean(axis=1).std() == pytest.approx(1 / np.sqrt(12), rel=0.1)
    # Within one trajectory only the mean of the fifty proxies varies.
    assert error.std(axis=1).mean() == pytest.approx(1 / np.sqrt(12 * 50), rel=0.05)
    assert abs(error.mean()) < 0.06


def test_per_dataset_errors_stay_in_the_data_set():
    error = errors("per_dataset")
    assert error.mean(axis=1).std(axis=0).max() < 0.01
    offsets = np.stack([errors("per_dataset", seed, n=2).mean(axis=(0, 1)) for seed in range(60)])
    assert offsets.std() == pytest.approx(1 / np.sqrt(12), rel=0.1)


@pytest.mark.parametrize("bias", ["per_step", "per_trajectory", "per_dataset"])
def test_labels_are_drawn_once(bias):
    states = some_states(4)
    supervision = Supervision(NOISE, bias, seed=7)
    first, again = (weak_labels(states, RANGES, supervision) for _ in range(2))
    np.testing.assert_array_equal(first.proxy_mean, again.proxy_mean)
    np.testing.assert_array_equal(first.proxy_std, again.proxy_std)
    other = weak_labels(states, RANGES, Supervision(NOISE, bias, seed=8))
    assert not np.array_equal(first.proxy_mean, other.proxy_mean)


@pytest.mark.parametrize("bias", ["per_step", "per_trajectory", "per_dataset"])
def test_labels_do_not_depend_on_how_many_trajectories_there_are(bias):
    states = some_states(6)
    supervision = Supervision(NOISE, bias)
    whole = weak_labels(states, RANGES, supervision)
    part = weak_labels(states[:2], RANGES, supervision)
    np.testing.assert_array_equal(part.proxy_mean, whole.proxy_mean[:2])


@pytest.mark.parametrize("bias", ["per_step", "per_trajectory", "per_dataset"])
def test_labels_are_the_statistics_of_the_proxies(bias):
    states = some_states(5, times=7, dtype=np.float64)
    supervision = Supervision(NOISE, bias)
    labels = weak_labels(states, RANGES, supervision)
    proxies = draw_proxies(states[3:], RANGES, supervision, first=3)
    assert proxies.shape == (2, 7, 50, 4)
    np.testing.assert_allclose(labels.proxy_mean[3:], proxies.mean(axis=2), atol=1e-12)
    np.testing.assert_allclose(labels.proxy_std[3:], proxies.std(axis=2), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_noise_labels_with_the_state(dtype):
    states = some_states(3, dtype=dtype)
    labels = weak_labels(states, RANGES, Supervision(0.0))
    np.testing.assert_array_equal(labels.proxy_mean, states)
    assert labels.proxy_mean.dtype == dtype
    assert not labels.proxy_std.any()


def test_ranges_of_a_system_fit():
    labels = weak_labels(some_states(2), CartPole().ranges.numpy(), Supervision(NOISE))
    assert labels.proxy_mean.shape == (2, 51, 4)


def test_proxies_are_not_all_held_in_memory():
    states = some_states(200)
    tracemalloc.start()
    weak_labels(states, RANGES, Supervision(NOISE))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * states.nbytes  # all proxies in float64 are 100 times the states


def test_errors_say_what_was_expected():
    with pytest.raises(ValueError, match=r"noise_level is -0.1; expected a fraction"):
        Supervision(-0.1)
    with pytest.raises(ValueError, match="noise_level is nan"):
        Supervision(float("nan"))
    with pytest.raises(ValueError, match="did you mean 'per_step'"):
        Supervision(0.1, "per-step")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_proxies is 0"):
        Supervision(0.1, num_proxies=0)
    with pytest.raises(ValueError, match="seed is -1"):
        Supervision(0.1, seed=-1)
    with pytest.raises(ValueError, match=r"states is .*shape \(51, 4\)"):
        weak_labels(some_states(1)[0], RANGES, Supervision(NOISE))
    with pytest.raises(ValueError, match="expected 4 positive numbers"):
        weak_labels(some_states(1), RANGES[:3], Supervision(NOISE))
