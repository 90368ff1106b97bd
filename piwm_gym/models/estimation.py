"""State estimation: from the configurations of a window of frames to the state at its end.

A frame shows positions and angles; velocities follow from several frames and the known actions.

    frames          y[0]   y[1]   ...   y[T-1]
    configurations  q[0]   q[1]   ...   q[T-1]    here: the state's visible dimensions alone
    actions            a[0]   ...  a[T-2]         a[t] leads from q[t] to q[t+1]
    estimate                              x[T-1]
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.systems import System

DIFFERENCE = 1e-2
"""Step of the numerical derivatives, in half ranges."""

READING_STD = 6e-3
"""How far readings of single frames scatter, in half ranges, where nobody says."""

SPREAD = 1 / 3
"""Variance of what is not visible about the middle of its range, in half ranges: that of a uniform
distribution. It matters for windows of a few frames only."""

RIDGE = 0.03
"""Added to the normal equations: what the window does not depend on at all stays where it is."""

TIE = 1e-3
"""Relative difference of costs that means nothing: of two such starts the later one is taken."""

WIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Misfit at which a frame's weight is a quarter, in median misfits of the window, in each
reweighting of :func:`shooting`. Narrow ones find the frames that agree, wide ones let all of these
count."""

MISREAD = 0.25
"""Weight below which a frame counts as misread."""

ENOUGH = 5
"""Frames of the shortest window that is reweighted. Four with one that was misread had no better
estimates for it, and three cannot tell which."""

EXACT = 2e-4
"""Misfit, in standard deviations of a reading, below which a fit is exact and frames are not
compared."""


def finite_difference(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
    reading_std: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, "B D"]:
    """The paper's initialisation: velocity from the last two frames, however these scatter.

    ``phi(z_t, z_{t+1}, a_t)`` of the paper is :meth:`System.end_state`.
    """
    before, now = configurations[:, -2], configurations[:, -1]
    return system.end_state(before, now, actions[:, -1], params, scene)


class _Point(NamedTuple):
    """A start (SI units) that was tried, and how its rollout compares, in standard deviations.

    The slope is that per half range of each estimated number.
    """

    start: Float[Tensor, "B D"]
    residual: Float[Tensor, "B T P"]
    slope: Float[Tensor, "B T P E"]


class _Fit:
    """Least squares over the start of a rollout: cost and Gauss-Newton steps, per batch element.

    Readings count in their standard deviations, starts in half ranges. Derived dimensions stay as
    they are.
    """

    def __init__(
        self,
        system: System,
        configurations: Float[Tensor, "B T P"],
        actions: Shaped[Tensor, "B U *A"],
        params: Any,
        scene: Float[Tensor, "B S"] | None,
        reading_std: Float[Tensor, " V"] | None,
    ) -> None:
        self._apart = partial(
            system.difference, variables=system.visible_variables, half_ranges=True
        )
        self._rollout = partial(system.rollout, actions=actions, params=params, scene=scene)
        self._visible = system.visible
        self._scale = (system.ranges / 2).to(configurations)
        self._centre = system.centres.to(configurations)
        half_ranges = self._scale[self._visible]
        self._target = configurations / half_ranges
        self._std = READING_STD if reading_std is None else reading_std / half_ranges
        self._prior = torch.full_like(self._scale, 1 / SPREAD)
        self._prior[self._visible] = 0.0
        # Only what is estimated moves: (E, D) unit vectors.
        self._units = torch.eye(len(self._scale)).to(self._scale)[system.estimated]

    def _configurations(self, starts: Float[Tensor, "K B D"]) -> Float[Tensor, "K B T P"]:
        """Normalised configurations of rollouts, their starts included."""
        states = torch.cat((starts[:, :, None], self._rollout(starts)), dim=2)
        return states[..., self._visible] / self._scale[self._visible]

    def _difference(
        self, a: Float[Tensor, "*A B T P"], b: Float[Tensor, "*A B T P"]
    ) -> Float[Tensor, "*A B T P"]:
        """Of normalised configurations, in standard deviations of a reading."""
        return self._apart(a, b) / self._std

    def _from_centre(self, start: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """In half ranges."""
        return (start - self._centre) / self._scale

    def plain(self, start: Float[Tensor, "B D"], iterations: int) -> Float[Tensor, "B D"]:
        """Best of the starts tried, all frames alike; each step begins where the last one ended."""
        weights = torch.ones_like(self._target[..., 0])
        at = best = self._linearize(start)
        for _ in range(iterations - 1):
            at = self._linearize(self._step(at, weights))
            best = self._better(at, best, weights)
        start = self._step(at, weights)
        here = self._configurations(start[None])[0]
        last = _Point(start, self._difference(self._target, here), at.slope)
        return self._better(last, best, weights).start

    def robust(self, start: Float[Tensor, "B D"], widths: Sequence[float]) -> _Point:
        """Where reweighted steps from a start lead that each lower the cost with their weights."""
        best = self._linearize(start)
        for width in widths:
            weights = frame_weights(best.residual, width)
            best = self._better(self._linearize(self._step(best, weights)), best, weights)
        return best

    def _linearize(self, start: Float[Tensor, "B D"]) -> _Point:
        """A start, with the slope of its rollout in each estimated number.

        All starts in one rollout: the start itself, and each of its numbers moved up and down.
        Central differences are as good as derivatives for Gauss-Newton, at the cost of a larger
        batch instead of a longer program.
        """
        count = len(self._units)
        shifts = DIFFERENCE * self._scale * self._units
        shifts = torch.cat((torch.zeros_like(shifts[:1]), shifts, -shifts))
        here, up, down = self._configurations(start + shifts[:, None]).split((1, count, count))
        slope = self._difference(up, down) / (2 * DIFFERENCE)
        return _Point(start, self._difference(self._target, here[0]), slope.movedim(0, -1))

    def _step(self, at: _Point, weights: Float[Tensor, "B T"]) -> Float[Tensor, "B D"]:
        """The start that is best where the rollout is linear (Gauss-Newton)."""
        jacobian = at.slope.flatten(1, 2)
        weighted = (weights[..., None, None] * at.slope).flatten(1, 2).mT
        normal = weighted @ jacobian + torch.diag(self._units @ self._prior + RIDGE)
        gradient = (weighted @ at.residual.flatten(1)[..., None])[..., 0]
        gradient = gradient - (self._prior * self._from_centre(at.start)) @ self._units.T
        return at.start + self._scale * (torch.linalg.solve(normal, gradient) @ self._units)

    def _better(self, new: _Point, old: _Point, weights: Float[Tensor, "B T"]) -> _Point:
        """Of each batch element the point with the lower weighted cost."""
        lower = self._cost(new, weights) < (1 + TIE) * self._cost(old, weights)
        return _Point(*(_where(lower, a, b) for a, b in zip(new, old, strict=True)))

    @torch.no_grad()
    def _cost(self, at: _Point, weights: Float[Tensor, "B T"]) -> Float[Tensor, " B"]:
        prior = self._prior * self._from_centre(at.start) ** 2
        return (weights * at.residual.square().sum(2)).sum(1) + prior.sum(1)


def _where(chosen: Bool[Tensor, " B"], a: Tensor, b: Tensor) -> Tensor:
    """``a`` of the batch elements that are chosen, ``b`` of the others."""
    return torch.where(chosen.view(-1, *[1] * (a.ndim - 1)), a, b)


def frame_weights(residual: Float[Tensor, "B T P"], width: float) -> Float[Tensor, "B T"]:
    """Weight of each frame by its misfit beside the window's median one (Geman-McClure).

    A frame that was taken for another place misfits many times as much as the others, and is all
    but left out; frames that misfit alike weigh alike.

    Args:
        residual: Residuals in standard deviations of a reading.
        width: Misfit at which the weight is a quarter, in median misfits.
    """
    misfit = residual.square().sum(2)
    middle = misfit.sort(dim=1).values[:, misfit.shape[1] // 2, None]
    return (1 + misfit / (width**2 * middle).clamp(min=EXACT**2)) ** -2


def _short_window(numbers: int, fitted: int) -> float:
    """Factor against medians that are too small where few numbers are left over by what is fitted.

    Rousseeuw and Leroy, "Robust Regression and Outlier Detection", 1987, section 5.1.
    """
    return 1 + 5 / max(numbers - fitted, 1)


def fit_start(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
    iterations: int = 3,
    widths: Sequence[float] = (),
    reading_std: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, "B D"]:
    """State at the first frame whose rollout fits all configurations, by Gauss-Newton.

    Minimises the squared residuals of the configurations, in standard deviations of a reading,
    over the start's estimated numbers, whose velocities are taken to be uniform within their
    ranges; batched and differentiable. Each batch element
    gets the best of the starts tried, as contact with the ground can make a step overshoot. The
    next step is taken from the last start all the same: in long windows of an unstable system
    the way to the best start leads over worse ones.

    With ``widths`` follow steps with a weight per frame (iteratively reweighted least squares), so
    that a frame that was misread does not drag the others along. Their result counts where it
    tells such a frame; elsewhere all frames go on weighing alike, which is more accurate.

    Args:
        system: The system.
        configurations: Encoded visible dimensions, SI units.
        actions: T - 1 actions between them.
        params: Parameters of the transition.
        scene: Static visible variables, for systems that have them.
        iterations: Gauss-Newton steps; free motion is nearly linear in the start, three are
            enough.
        widths: Of :func:`frame_weights`, one per reweighting, in windows of at least ``ENOUGH``
            frames. The last one is also what tells a misread frame.
        reading_std: How far readings of single frames scatter, SI units; default: alike in all
            dimensions, normalised by their ranges.
    """
    elapsed = system.dt * (configurations.shape[1] - 1)
    start = system.from_configurations(configurations[:, 0], configurations[:, -1], elapsed)
    start = system.settled(start, actions[:, 0], params)
    fit = _Fit(system, configurations, actions, params, scene, reading_std)
    plain = fit.plain(start, iterations)
    if not widths or configurations.shape[1] < ENOUGH:
        return system.wrap(plain)
    last = widths[-1] * _short_window(configurations[0].numel(), len(system.estimated))
    robust = fit.robust(plain, (*widths[:-1], last))
    misread = frame_weights(robust.residual, last).amin(1) < MISREAD
    return system.wrap(_where(misread, robust.start, plain))


def shooting(
    system: System,
    configurations: Float[Tensor, "B T P"],
    actions: Shaped[Tensor, "B U *A"],
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
    reading_std: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, "B D"]:
    """State at the last frame of the trajectory that fits the window best, misread frames aside."""
    start = fit_start(
        system, configurations, actions, params, scene, widths=WIDTHS, reading_std=reading_std
    )
    return system.rollout(start, actions, params, scene=scene)[:, -1]


ESTIMATORS = {"fd": finite_difference, "shooting": shooting}
