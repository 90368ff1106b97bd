"""State estimation frame by frame: an extended Kalman filter over the learned dynamics.

A window of frames forgets what came before it, and a few readings fit a hop as well as standing. A
filter carries on: each step moves the belief by the dynamics, with engines' dispersion as process
noise, and each frame pulls it as far as the two are uncertain. What stands on the ground stays
there, as the dynamics say, and what has left the picture goes on until it is seen again.

Kalman, "A new approach to linear filtering and prediction problems", 1960; the extended form as in
Thrun, Burgard and Fox, "Probabilistic Robotics", 2005, section 3.3.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from piwm_gym.systems import System

DIFFERENCE = 1e-3
"""Step of the numerical derivatives, in half ranges."""
PLACES = 0.3
"""Share of ``System.unmodelled`` that is left out of places, which follow from velocities but for
what slips."""
ANYWHERE = 0.5
"""Standard deviation, in half ranges, of a state of which nothing is known."""
UNKNOWN = 1.0
"""Largest standard deviation, in half ranges: what has not been seen for long is somewhere."""
LARGEST = 9.0
"""Squared distance of a reading, in standard deviations, from which on it is doubted."""
TINY = 1e-12
"""Smallest variance that rounding leaves."""
LOST = 10
"""After so many doubtful readings in a row they are right, and the belief is wrong."""
INITIAL_SAMPLES = 4096


class Belief(NamedTuple):
    """What is known of B states.

    Attributes:
        state: (B, D) most likely states, SI units.
        covariance: (B, E, E) of the estimated dimensions, in half ranges.
        misfits: (B,) readings in a row that did not fit.
    """

    state: Float[Tensor, "B D"]
    covariance: Float[Tensor, "B E E"]
    misfits: Int64[Tensor, " B"]

    def where(self, chosen: Bool[Tensor, " B"], other: "Belief") -> "Belief":
        """This one of the chosen batch elements, the other one of the rest."""
        pairs = zip(self, other, strict=True)
        return Belief(*(torch.where(chosen.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))


def at_reset(system: System, like: Float[Tensor, "B V"]) -> Belief:
    """Belief about episodes that begin as the real environment begins them."""
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(INITIAL_SAMPLES, system.num_initial_uniforms, generator=generator)
    starts = system.initial(uniforms).to(like)
    mean = starts[0] + system.difference(starts, starts[0]).mean(0)
    apart = system.difference(starts, mean)[:, system.estimated]
    apart = apart / _half_ranges(system, like)[system.estimated]
    covariance = apart.mT @ apart / len(apart) + _spread(system, like, system.unmodelled)
    return _belief(system.wrap(mean).expand(len(like), -1), covariance)


def anywhere(system: System, configurations: Float[Tensor, "B V"]) -> Belief:
    """Belief about states before anything but a guess of their configurations is known."""
    state = system.from_configurations(configurations, configurations, system.dt)
    return _belief(state, _spread(system, configurations, ANYWHERE))


def _belief(state: Float[Tensor, "B D"], covariance: Float[Tensor, "E E"]) -> Belief:
    misfits = torch.zeros(len(state), dtype=torch.long, device=state.device)
    return Belief(state, covariance.expand(len(state), -1, -1), misfits)


def _half_ranges(system: System, like: Tensor) -> Float[Tensor, " D"]:
    return (system.ranges / 2).to(like)


def _spread(system: System, like: Tensor, std: float) -> Float[Tensor, "E E"]:
    """Covariance of dimensions that are uncertain by as much, and independent."""
    return std**2 * torch.eye(len(system.estimated)).to(like)


def predict(
    system: System,
    belief: Belief,
    action: Shaped[Tensor, "B *A"],  # noqa: F821
    params: Any,
    scene: Float[Tensor, "B S"] | None = None,
) -> Belief:
    """The belief one time step later."""
    given = {} if scene is None else {"scene": scene}
    scale = _half_ranges(system, belief.state)
    units = torch.diag(scale)[system.estimated]
    shifts = DIFFERENCE * torch.cat((torch.zeros_like(units[:1]), units, -units))
    moved = system.transition(belief.state + shifts[:, None], action, params, **given)
    here, up, down = moved.split((1, len(units), len(units)))
    slope = system.difference(up, down)[..., system.estimated] / scale[system.estimated]
    slope = (slope / (2 * DIFFERENCE)).permute(1, 2, 0)
    noise = _process_noise(system, belief, action, params, given) / scale
    noise = noise[..., system.estimated].permute(1, 2, 0)
    covariance = slope @ belief.covariance @ slope.mT + noise @ noise.mT
    visible = torch.tensor([system.variables[i].visible for i in system.estimated])
    unmodelled = system.unmodelled * torch.where(visible, PLACES, 1.0).to(scale)
    covariance = _bounded(covariance + torch.diag(unmodelled.square()))
    return belief._replace(state=here[0], covariance=covariance)


def _bounded(covariance: Float[Tensor, "B E E"]) -> Float[Tensor, "B E E"]:
    """The same correlations, with standard deviations of at most ``UNKNOWN``."""
    std = covariance.diagonal(dim1=1, dim2=2).clamp(min=TINY).sqrt()
    share = (UNKNOWN / std).clamp(max=1.0)
    return share[:, :, None] * covariance * share[:, None]


def _process_noise(
    system: System, belief: Belief, action: Tensor, params: Any, given: dict[str, Tensor]
) -> Float[Tensor, "U B D"]:
    """What one standard deviation of each uniform number of the process noise does to the state."""
    count = system.num_step_uniforms
    if not count:
        return torch.zeros_like(belief.state[None, :])
    ends = 0.5 + 0.5 * torch.eye(count).to(belief.state)
    numbers = torch.cat((ends, 1 - ends))[:, None].expand(-1, len(belief.state), -1)
    states = belief.state.expand(2 * count, -1, -1)
    drawn = {"noise": numbers, **given}
    high, low = system.transition(states, action, params, **drawn).split(count)
    return system.difference(high, low) / 12**0.5


def correct(
    system: System,
    belief: Belief,
    configurations: Float[Tensor, "B V"],
    std: Float[Tensor, "*B V"],
    seen: Bool[Tensor, " B"] | None = None,
) -> Belief:
    """The belief after a frame has been read.

    A reading that is far off for what it and the belief are uncertain by counts as more uncertain.
    After ``LOST`` of those in a row it is the belief that is given up.

    Args:
        system: The system.
        belief: About the moment of the frame.
        configurations: Readings of the visible dimensions, SI units.
        std: How far readings scatter, SI units.
        seen: Where the system was in the picture; elsewhere the belief stays as it is.
    """
    visible = [system.estimated.index(i) for i in system.visible]
    scale = _half_ranges(system, belief.state)
    if seen is None:
        seen = torch.ones(len(configurations), dtype=torch.bool, device=configurations.device)
    before = belief.state[:, system.visible]
    apart = system.difference(configurations, before, system.visible_variables)
    apart = (apart / scale[system.visible])[..., None]
    of_reading = torch.diag_embed((std / scale[system.visible]).square().expand_as(before))
    shared = belief.covariance[:, visible]
    total = shared[..., visible] + of_reading
    # What is not looked at must not keep the others from being solved for.
    total = torch.where(seen[:, None, None], total, torch.eye(len(visible)).to(total))
    distance = (apart.mT @ torch.linalg.solve(total, apart)).flatten() / LARGEST
    doubt = (distance.clamp(min=1.0) - 1)[:, None, None] * of_reading
    gain = torch.linalg.solve(total + doubt, shared).mT
    move = belief.state.new_zeros(belief.state.shape)
    move[:, system.estimated] = (gain @ apart)[..., 0] * scale[system.estimated]
    # Joseph's form: what rounding does to it leaves it a covariance.
    units = torch.eye(len(system.estimated)).to(gain)
    kept = units - gain @ units[visible]
    covariance = kept @ belief.covariance @ kept.mT + gain @ (of_reading + doubt) @ gain.mT
    misfits = torch.where(distance <= 1, 0, belief.misfits + 1)
    corrected = Belief(system.wrap(belief.state + move), covariance, misfits)
    anew = _given_up(system, belief, configurations, of_reading)
    return anew.where(misfits >= LOST, corrected).where(seen, belief)


def _given_up(
    system: System,
    belief: Belief,
    configurations: Float[Tensor, "B V"],
    of_reading: Float[Tensor, "B V V"],
) -> Belief:
    """A belief from a reading alone, but for derived dimensions, of which it tells nothing."""
    visible = [system.estimated.index(i) for i in system.visible]
    fresh = anywhere(system, configurations)
    state = belief.state.clone()
    state[:, system.estimated] = fresh.state[:, system.estimated]
    covariance = fresh.covariance.clone()
    covariance[:, visible] = 0.0
    covariance[:, torch.tensor(visible)[:, None], torch.tensor(visible)] = of_reading
    return Belief(state, covariance, fresh.misfits)


__all__ = ["Belief", "anywhere", "at_reset", "correct", "predict"]
