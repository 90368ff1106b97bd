"""Cart Pole: the equations of Gymnasium's CartPole-v1 in SI units.

Source of equations and constants: ``gymnasium/envs/classic_control/cartpole.py`` (which the
paper's Algorithm 2 follows term by term), after Florian, "Correct equations for the dynamics of
the cart-pole system" (2007). ``length`` is half the pole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.systems.params import Learnable, Parametrisation, Params, Scalar, parameter
from piwm_gym.systems.picture import FrameSpec, SideView
from piwm_gym.systems.system import System, Variable, columns

X_THRESHOLD = 2.4
THETA_THRESHOLD = 12 * 2 * math.pi / 360
INITIAL_BOUND = 0.05


@dataclass(frozen=True)
class CartPoleParams(Params):
    """Physical parameters of the cart and its pole; the defaults are CartPole-v1's."""

    gravity: Scalar = parameter(9.8, "m/s^2", "gravitational acceleration")
    masscart: Scalar = parameter(1.0, "kg", "mass of the cart")
    masspole: Scalar = parameter(0.1, "kg", "mass of the pole, a uniform rod")
    length: Scalar = parameter(0.5, "m", "half the length of the pole")
    force_mag: Scalar = parameter(10.0, "N", "magnitude of the force on the cart")
    tau: Scalar = parameter(0.02, "s", "time step")

    @property
    def total_mass(self) -> Scalar:
        """Mass of cart and pole, kg."""
        return self.masscart + self.masspole

    @property
    def polemass_length(self) -> Scalar:
        """Pole mass times half length, kg m."""
        return self.masspole * self.length


def _identifiable(params: CartPoleParams) -> tuple[Scalar, ...]:
    return (
        params.force_mag / params.total_mass,
        params.masspole / params.total_mass,
        params.length,
    )


def _from_identifiable(values: Sequence[Scalar]) -> CartPoleParams:
    """Scale of the masses is free; the nominal cart mass of 1 kg fixes it."""
    force_per_mass, pole_fraction, length = values
    nominal = CartPoleParams()
    total = nominal.masscart / (1 - pole_fraction)
    return nominal.replace(  # type: ignore[return-value]
        masspole=pole_fraction * total, length=length, force_mag=force_per_mass * total
    )


def _from_raw(values: Sequence[Scalar]) -> CartPoleParams:
    return CartPoleParams().replace(  # type: ignore[return-value]
        **dict(zip(("masscart", "masspole", "length", "force_mag"), values, strict=True))
    )


class CartPole(System):
    """Cart Pole with explicit Euler integration, as CartPole-v1 does it.

    | dimension | unit  | range          | visible in one frame |
    |-----------|-------|----------------|----------------------|
    | x         | m     | -2.4 to 2.4    | yes                  |
    | x_dot     | m/s   | -1.5 to 1.5    | no                   |
    | theta     | rad   | -0.209 to 0.209| yes                  |
    | theta_dot | rad/s | -1.65 to 1.65  | no                   |

    The ranges scale labels and losses; they bound nothing. The motion depends on force, cart
    mass and pole mass only through two ratios, so the default parametrisation learns
    ``force_mag / total_mass``, ``masspole / total_mass`` and ``length``.
    """

    name = "cartpole"
    real_id = "CartPole-v1"
    variables = (
        Variable("x", "m", -X_THRESHOLD, X_THRESHOLD, visible=True),
        Variable("x_dot", "m/s", -1.5, 1.5, visible=False),
        Variable("theta", "rad", -THETA_THRESHOLD, THETA_THRESHOLD, visible=True),
        Variable("theta_dot", "rad/s", -1.65, 1.65, visible=False),
    )
    dt = 0.02
    # The rows hold cart and pole and nothing else: 2.5 native rows per row of the frame.
    frame = FrameSpec((400, 600), (160, 320), (0, 600), (64, 64), background=(255, 255, 255))
    # 4.8 m fill the picture's width; the cart's middle is 100 pixels above its lower edge.
    side_view = SideView(scale=600 / 4.8, origin=(300.0, 300.0), reach=(0.7, 1.1))
    num_initial_uniforms = 4
    keyboard = {"left": 0, "right": 1}  # noqa: RUF012
    parametrisations = {  # noqa: RUF012
        "identifiable": Parametrisation(
            (
                Learnable("force_per_mass", "m/s^2"),
                Learnable("pole_mass_fraction", "1", link="logit"),
                Learnable("length", "m"),
            ),
            _identifiable,
            _from_identifiable,
        ),
        "paper": Parametrisation(
            (
                Learnable("masscart", "kg"),
                Learnable("masspole", "kg"),
                Learnable("length", "m"),
                Learnable("force_mag", "N"),
            ),
            lambda p: (p.masscart, p.masspole, p.length, p.force_mag),
            _from_raw,
            caveat="masscart, masspole and force_mag are determined only up to a common factor; "
            "their values follow the starting point, only their ratios are learned",
        ),
    }

    @property
    def reference(self) -> CartPoleParams:
        """The parameters of CartPole-v1."""
        return CartPoleParams()

    @property
    def action_space(self) -> gym.spaces.Discrete:
        """0 pushes the cart to the left, 1 to the right."""
        return gym.spaces.Discrete(2)

    @property
    def observation_space(self) -> gym.spaces.Box:
        """CartPole-v1's own box: position and angle up to twice the thresholds."""
        high = np.array([2 * X_THRESHOLD, np.inf, 2 * THETA_THRESHOLD, np.inf], dtype=np.float32)
        return gym.spaces.Box(-high, high, dtype=np.float32)

    def initial(self, uniforms: Float[Tensor, "B 4"]) -> Float[Tensor, "B 4"]:
        """Each dimension uniform in (-0.05, 0.05), as CartPole-v1."""
        return (2 * uniforms - 1) * INITIAL_BOUND

    def transition(
        self, state: Float[Tensor, "*B 4"], action: Shaped[Tensor, "*A"], params: CartPoleParams
    ) -> Float[Tensor, "*B 4"]:
        """One explicit Euler step.

        Args:
            state: x (m), x_dot (m/s), theta (rad), theta_dot (rad/s).
            action: 0 or 1; values between interpolate the force, for planners that need it.
            params: Numbers, or tensors that broadcast against the batch.

        Returns:
            State ``params.tau`` seconds later.
        """
        _, x_dot, theta, theta_dot = state.unbind(-1)
        # Divided by the mass first, what depends on parameters only costs one pass over a batch.
        push = params.force_mag / params.total_mass
        lever = params.polemass_length / params.total_mass
        sin, cos = torch.sin(theta), torch.cos(theta)
        lever_cos = cos * lever
        temp = action.to(state.dtype) * (2 * push) - push + theta_dot * theta_dot * sin * lever
        inertia = 4.0 / 3.0 * params.length - lever_cos * cos
        theta_acc = (sin * params.gravity - cos * temp) / inertia
        x_acc = temp - theta_acc * lever_cos
        rates = torch.stack((x_dot, x_acc, theta_dot, theta_acc))
        return (rates * params.tau + state.movedim(-1, 0)).movedim(0, -1)  # rates lead: columns

    def reward(
        self,
        state: Float[Tensor, "*B 4"],
        action: Shaped[Tensor, "*A"],
        next_state: Float[Tensor, "*B 4"],
    ) -> Float[Tensor, "*B"]:
        """One per step, the step that ends the episode included."""
        return torch.ones_like(next_state[..., 0])

    def terminal(self, state: Float[Tensor, "*B 4"]) -> Bool[Tensor, "*B"]:
        """Cart beyond 2.4 m or pole beyond 12 degrees."""
        return (state[..., 0].abs() > X_THRESHOLD) | (state[..., 2].abs() > THETA_THRESHOLD)

    def poses(self, configuration: Float[Tensor, "B 2"]) -> Float[Tensor, "B 3 2"]:
        """Cart and pole, both from the cart's middle; the pole's angle counts clockwise."""
        x, theta = configuration.unbind(-1)
        still = torch.zeros_like(x)
        return torch.stack((x, x, still, still, still, -theta), dim=-1).unflatten(-1, (3, 2))

    def observation(self, state: Float[Tensor, "*B 4"]) -> Float[Tensor, "*B 4"]:
        """CartPole-v1 observes its state in SI units already."""
        return state

    def from_configurations(
        self,
        start: Float[Tensor, "*B 2"],
        end: Float[Tensor, "*B 2"],
        elapsed: Scalar,
    ) -> Float[Tensor, "*B 4"]:
        """Positions of ``start``, velocities by difference.

        For neighbouring frames this is exact: explicit Euler moves the position by the old
        velocity.
        """
        velocity = (end - start) / elapsed
        return columns((start[..., 0], velocity[..., 0], start[..., 1], velocity[..., 1]))
