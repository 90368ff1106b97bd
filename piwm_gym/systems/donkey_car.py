"""Donkey Car: a kinematic bicycle on a closed course, in SI units.

    x'      = v cos(theta)
    y'      = v sin(theta)
    theta'  = -v tan(wheel) / (wheelbase (1 + understeer v^2))
    v'      = throttle_gain throttle - (drag + verge_drag [beside the road]) v
              - turning_loss |tan(wheel)| v^2 - rolling
    wheel'  = (steering_gain steer - wheel) / steering_lag

The paper's bicycle has the first three lines without understeer, and an acceleration for an
action. Here it departs from the paper, because the car does. Its action is a throttle, not an
acceleration: a motor's pull, less losses that grow with speed, more on grass and in turns. Its
tyres slip sideways, so that a turn is the wider the faster it is driven (Gillespie, "Fundamentals
of Vehicle Dynamics", 1992, on understeer gradients). And its wheels follow the command late. With
everything below ``drag`` in :class:`DonkeyCarParams` at 0 what remains is the paper's form
exactly.

Root mean square errors after 30 steps from true states, each form fitted to 150 drives of the
embedded simulator and tested on 150 others (course "meadow", all kinds of drivers):

| form                                   | x, y (m)     | theta (rad) | v (m/s) |
|----------------------------------------|--------------|-------------|---------|
| paper: bicycle with throttle and drag  | 0.33, 0.30   | 0.30        | 0.36    |
| and verge_drag                         | 0.28, 0.24   | 0.33        | 0.24    |
| and understeer                         | 0.15, 0.14   | 0.15        | 0.17    |
| and steering_lag                       | 0.058, 0.070 | 0.040       | 0.10    |
| and turning_loss                       | 0.052, 0.061 | 0.037       | 0.087   |

A lag of the motor would be worth another third; rolling resistance is worth nothing there, and is
not learned by default.

Steering is positive to the right, as the simulator's commands are; angles of the state are
right-handed, so that a turn to the right makes ``theta`` smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.courses import DEFAULT_COURSE, ROAD_HALF_WIDTH, ROAD_OFFSET, get_course
from piwm_gym.systems.params import Learnable, Parametrisation, Params, Scalar, parameter
from piwm_gym.systems.picture import Camera, FrameSpec
from piwm_gym.systems.system import System, Variable, columns
from piwm_gym.systems.track import Place, Track, wrap_angle

MAX_CTE = 1.0
"""Distance from the path at which an episode ends, m: 8 units of the simulator."""
LOOKAHEAD = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Distances ahead at which the observation tells the path's curvature, m."""
FULL_STEERING = math.radians(16.0)
"""Wheel angle at full command over the network, rad."""
EDGE = 0.02
"""Scale over which the road ends, m."""
PLACING_ERROR = (0.02, 0.02, 0.02)
"""How far a start is from the spawn pose at most: m, m, rad."""
ASIDE, OFF_HEADING, FASTEST = 0.4, 0.3, 2.0
"""How far a start anywhere is from the path, and from its heading, at most, and how fast: m, rad,
m/s."""
CRUISE = 1.0
"""Speed at which the plain bicycle's parameters are compared with the richer model's, m/s."""


@dataclass(frozen=True)
class DonkeyCarParams(Params):
    """Physical parameters of the car.

    There is no truth to compare with: real cars, and the simulators', are richer than these
    equations. The defaults are what fits drives of the embedded simulator best. Its axles are
    0.20 m apart; the best wheelbase of the plain bicycle for the same drives is 0.44 m.
    """

    wheelbase: Scalar = parameter(0.20, "m", "effective distance of the axles")
    steering_gain: Scalar = parameter(FULL_STEERING, "rad", "wheel angle at full command")
    throttle_gain: Scalar = parameter(2.4, "m/s^2", "acceleration at full throttle")
    drag: Scalar = parameter(0.22, "1/s", "deceleration per speed")
    verge_drag: Scalar = parameter(0.80, "1/s", "additional drag beside the road", may_vanish=True)
    turning_loss: Scalar = parameter(
        0.32, "1/m", "deceleration per tan(wheel angle) and v^2", may_vanish=True
    )
    rolling: Scalar = parameter(0.0, "m/s^2", "deceleration at any speed", may_vanish=True)
    understeer: Scalar = parameter(
        0.53, "s^2/m^2", "relative growth of a turn's radius with v^2", may_vanish=True
    )
    steering_lag: Scalar = parameter(
        0.22, "s", "time constant of the wheels behind the command", may_vanish=True
    )


_WHEELBASE = Learnable("wheelbase", "m")
_DRIVE = (Learnable("throttle_gain", "m/s^2"), Learnable("drag", "1/s"))
_REST = (
    Learnable("verge_drag", "1/s"),
    Learnable("turning_loss", "1/m"),
    Learnable("understeer", "s^2/m^2"),
    Learnable("steering_lag", "s"),
)


def _parametrisation(learnables: tuple[Learnable, ...], caveat: str = "") -> Parametrisation:
    """Learn parameters under their own names."""
    names = tuple(item.name for item in learnables)

    def to_params(values: Sequence[Scalar]) -> DonkeyCarParams:
        changes = dict(zip(names, values, strict=True))
        return DonkeyCarParams().replace(**changes)  # type: ignore[return-value]

    return Parametrisation(
        learnables, lambda p: tuple(getattr(p, n) for n in names), to_params, caveat
    )


def _plain(params: DonkeyCarParams) -> tuple[Scalar, ...]:
    """The plain bicycle that drives straight and turns as the richer model does at cruise."""
    return (
        params.wheelbase * (1 + params.understeer * CRUISE**2),
        params.throttle_gain,
        params.drag + params.rolling / CRUISE,
    )


def _from_plain(values: Sequence[Scalar]) -> DonkeyCarParams:
    wheelbase, throttle_gain, drag = values
    return DonkeyCarParams(
        wheelbase=wheelbase,
        throttle_gain=throttle_gain,
        drag=drag,
        verge_drag=0.0,
        turning_loss=0.0,
        rolling=0.0,
        understeer=0.0,
        steering_lag=0.0,
    )


def _ratio(params: DonkeyCarParams) -> tuple[Scalar, ...]:
    others = tuple(getattr(params, item.name) for item in (*_DRIVE, *_REST))
    return (params.steering_gain / params.wheelbase, *others)


def _from_ratio(values: Sequence[Scalar]) -> DonkeyCarParams:
    """The nominal steering gain fixes the scale."""
    names = [item.name for item in (*_DRIVE, *_REST)]
    return DonkeyCarParams(
        wheelbase=FULL_STEERING / values[0], **dict(zip(names, values[1:], strict=True))
    )


@lru_cache(maxsize=8)
def _tables(path: bytes) -> Track:
    """Track of a float32 path; making it takes a second."""
    points = np.frombuffer(path, np.float32).reshape(-1, 2).copy()
    return Track(torch.from_numpy(points))


class DonkeyCar(System):
    """Donkey Car with explicit Euler integration, as the paper's bicycle.

    | dimension | unit | range       | visible | meaning                                         |
    |-----------|------|-------------|---------|-------------------------------------------------|
    | x         | m    | -5, 5       | yes     | the simulator's ``pos_x`` / 8                    |
    | y         | m    | -3.5, 3.5   | yes     | ``pos_z`` / 8                                    |
    | theta     | rad  | -pi, pi     | yes     | heading, counter-clockwise from x; periodic      |
    | v         | m/s  | 0, 3        | no      | forward; there is no reverse                     |
    | steering  | rad  | -0.28, 0.28 | derived | angle of the wheels, positive to the right       |
    | progress  | m    | 0, 27       | derived | driven along the path; by its length: laps       |

    The path is the middle of the right lane. It is the system's asset: it tells rewards, endings
    and observations, and where the grass begins. ``progress`` carries no gradient, and is right
    to a few centimetres whatever the number of laps.

    Actions are steering and throttle, -1 to 1 (right) and 0 to 1. There is no brake.

    Args:
        path: (M, 2) m, closed and equally spaced; default: the course "meadow".
    """

    name = "donkey_car"
    real_id = "donkey-generated-track-v0"
    variables = (
        Variable("x", "m", -5.0, 5.0, visible=True),
        Variable("y", "m", -3.5, 3.5, visible=True),
        Variable("theta", "rad", -math.pi, math.pi, visible=True, periodic=True),
        Variable("v", "m/s", 0.0, 3.0, visible=False),
        Variable("steering", "rad", -FULL_STEERING, FULL_STEERING, visible=False, derived=True),
        Variable("progress", "m", 0.0, 27.0, visible=False, derived=True),
    )
    dt = 0.05
    # Above row 24 there is nothing but sky and the tops of hills.
    frame = FrameSpec((120, 160), (24, 120), (0, 160), (48, 80), background=(128, 128, 128))
    camera = Camera(math.radians(90.0), height=0.2, ahead=0.07, pitch=math.radians(15.0))
    info_names = ("cte", "laps")
    unmodelled = 1e-2  # a bicycle for a car that slips
    num_initial_uniforms = 3
    num_anywhere_uniforms = 4
    keyboard = {  # noqa: RUF012
        "left": (-1.0, 0.4),
        "right": (1.0, 0.4),
        "up": (0.0, 0.7),
        "down": (0.0, 0.0),
    }
    parametrisations = {  # noqa: RUF012
        "identifiable": _parametrisation((_WHEELBASE, *_DRIVE, *_REST)),
        "paper": Parametrisation((_WHEELBASE, *_DRIVE), _plain, _from_plain),
        "understeer": Parametrisation(
            (_WHEELBASE, *_DRIVE, Learnable("understeer", "s^2/m^2")),
            lambda p: (p.wheelbase, *_plain(p)[1:], p.understeer),
            lambda v: _from_plain(v[:3]).replace(understeer=v[3]),
        ),
        "ratio": Parametrisation(
            (Learnable("steering_ratio", "rad/m"), *_DRIVE, *_REST), _ratio, _from_ratio
        ),
        "free": _parametrisation(
            (_WHEELBASE, Learnable("steering_gain", "rad"), *_DRIVE, *_REST),
            caveat="wheelbase and steering_gain are determined only by their ratio; their values "
            "follow the starting point",
        ),
    }

    def __init__(self, path: Float[Tensor, "M A"] | None = None) -> None:
        if path is None:
            path = torch.from_numpy(get_course(DEFAULT_COURSE).path)
        else:
            Track.check(path)
        self._path = path.detach().cpu().float()
        self._tracks: dict[tuple[torch.dtype, torch.device], Track] = {}

    @property
    def reference(self) -> DonkeyCarParams:
        """Values that fit the embedded simulator best, see :class:`DonkeyCarParams`."""
        return DonkeyCarParams()

    @property
    def action_space(self) -> gym.spaces.Box:
        """Steering, positive to the right, and throttle."""
        return gym.spaces.Box(
            np.array([-1, 0], dtype=np.float32), np.array([1, 1], dtype=np.float32)
        )

    @property
    def observation_space(self) -> gym.spaces.Box:
        """x, y, theta, v, cte, heading error, and five curvatures of the path ahead."""
        far, fast, tight = 100.0, 20.0, 10.0  # m, m/s, 1/m: beyond all courses and cars
        bounds = (far, far, np.pi, fast, far, np.pi, *[tight] * len(LOOKAHEAD))
        high = np.array(bounds, dtype=np.float32)
        low = -high
        low[3] = 0.0
        return gym.spaces.Box(low, high, dtype=np.float32)

    @property
    def asset(self) -> Float[Tensor, "M 2"]:
        """Path of the course, float32, m."""
        return self._path

    def __reduce__(self) -> tuple[type["DonkeyCar"], tuple[Tensor]]:
        """Copies and pickles carry the path, not its tables."""
        return type(self), (self._path,)

    def with_asset(self, asset: Float[Tensor, "M A"]) -> "DonkeyCar":
        """The car on another course.

        Args:
            asset: (M, 2) m, closed and equally spaced.

        Raises:
            ValueError: Not such a path.
        """
        return DonkeyCar(asset)

    def track(self, like: Tensor) -> Track:
        """The course, in the precision and on the device of a tensor; kept for the next time."""
        kind = (like.dtype, like.device)
        if kind not in self._tracks:
            with torch.inference_mode(False):  # or a first use without gradients spoils later ones
                self._tracks[kind] = _tables(self._path.numpy().tobytes()).to(like)
        return self._tracks[kind]

    def place(self, state: Float[Tensor, "*B 6"]) -> Place:
        """Where states are beside the path."""
        return self.track(state).project(state[..., :2])

    def laps(self, state: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B"]:
        """Laps driven since the episode's start, a fraction."""
        return state[..., 5] / self.track(state).length

    def info(self, state: Float[Tensor, "*B 6"]) -> dict[str, Shaped[Tensor, "*B"]]:
        """Cross-track error (m), and the number of laps completed since the start."""
        laps = self.laps(state).floor().clamp(min=0).long()
        return {"cte": self.place(state).cte, "laps": laps}

    def initial(self, uniforms: Float[Tensor, "B 3"]) -> Float[Tensor, "B 6"]:
        """At the path's first point, along it, at rest; with the error of a careful hand."""
        error = [
            bound * (2 * number - 1)
            for bound, number in zip(PLACING_ERROR, uniforms.unbind(1), strict=True)
        ]
        x, y, heading = self.track(uniforms).spawn.unbind(0)
        zero = torch.zeros_like(error[0])
        theta = wrap_angle(heading + error[2])
        return columns((x + error[0], y + error[1], theta, zero, zero, zero))

    def anywhere(self, uniforms: Float[Tensor, "B 4"]) -> Float[Tensor, "B 6"]:
        """All along the course, roughly in its direction."""
        along, aside, turned, fast = uniforms.unbind(1)
        path = self.asset.to(uniforms)
        x, y = path[(along * len(path)).long()].unbind(1)
        heading = self.track(uniforms).project(columns((x, y))).heading
        aside = ASIDE * (2 * aside - 1)
        zero = torch.zeros_like(x)
        theta = wrap_angle(heading + OFF_HEADING * (2 * turned - 1))
        x, y = x + aside * heading.sin(), y - aside * heading.cos()
        return columns((x, y, theta, FASTEST * fast, zero, zero))

    def transition(
        self, state: Float[Tensor, "*B 6"], action: Shaped[Tensor, "*A"], params: DonkeyCarParams
    ) -> Float[Tensor, "*B 6"]:
        """One explicit Euler step; the wheels move first, and exactly as a first-order lag.

        Args:
            state: See the class.
            action: (..., 2) steering and throttle.
            params: Numbers, or tensors that broadcast against the batch.

        Returns:
            State 0.05 s later.
        """
        x, y, theta, v, wheel, progress = state.unbind(-1)
        steer, throttle = action.to(state.dtype).unbind(-1)
        command = params.steering_gain * steer
        wheel = command + (wheel - command) * _kept(params.steering_lag, self.dt)
        radius = params.wheelbase * (1 + params.understeer * v**2)
        new_x, new_y = x + self.dt * v * torch.cos(theta), y + self.dt * v * torch.sin(theta)
        track = self.track(state)
        arc, cte = track.glance(state[..., :2])
        drag = params.drag + params.verge_drag * _beside(cte)
        loss = (drag + params.turning_loss * torch.tan(wheel).abs() * v) * v + params.rolling
        return columns(
            (
                new_x,
                new_y,
                wrap_angle(theta - self.dt * v * torch.tan(wheel) / radius),
                # Losses stop a car; they do not reverse it.
                (v + self.dt * (params.throttle_gain * throttle - loss)).clamp(min=0),
                wheel,
                progress + track.driven(arc, track.glance(columns((new_x, new_y)))[0]),
            )
        )

    def reward(
        self,
        state: Float[Tensor, "*B 6"],
        action: Shaped[Tensor, "*A"],
        next_state: Float[Tensor, "*B 6"],
    ) -> Float[Tensor, "*B"]:
        """That of gym-donkeycar's newer client: speed, less beside the path; -1 at the end."""
        away = self.place(next_state).cte.abs()
        return torch.where(away > MAX_CTE, -1.0, (1 - away / MAX_CTE) * next_state[..., 3])

    def terminal(self, state: Float[Tensor, "*B 6"]) -> Bool[Tensor, "*B"]:
        """Further than 1 m from the path."""
        return self.place(state).cte.abs() > MAX_CTE

    def observation(self, state: Float[Tensor, "*B 6"]) -> Float[Tensor, "*B 11"]:
        """State, place beside the path, and how the path goes on."""
        x, y, theta, v = state[..., :4].unbind(-1)
        place = self.place(state)
        ahead = self.track(state).ahead(place.arc, LOOKAHEAD).unbind(-1)
        error = wrap_angle(theta - place.heading)
        return torch.stack((x, y, theta, v, place.cte, error, *ahead), dim=-1)

    def from_configurations(
        self,
        start: Float[Tensor, "*B 3"],
        end: Float[Tensor, "*B 3"],
        elapsed: Scalar,
    ) -> Float[Tensor, "*B 6"]:
        """Pose of ``start``; speed from the way along the mean heading; wheels straight."""
        x, y, theta = start.unbind(-1)
        dx, dy, turn = self.difference(end, start, self.visible_variables).unbind(-1)
        middle = theta + turn / 2
        v = (dx * torch.cos(middle) + dy * torch.sin(middle)) / elapsed
        zero = torch.zeros_like(v)
        return columns((x, y, theta, v, zero, zero))

    def settled(
        self, state: Float[Tensor, "*B 6"], action: Shaped[Tensor, "*A"], params: DonkeyCarParams
    ) -> Float[Tensor, "*B 6"]:
        """The wheels where the first command wants them."""
        command = params.steering_gain * action[..., 0].to(state.dtype)
        parts = (*state[..., :4].unbind(-1), command, state[..., 5])
        return columns(torch.broadcast_tensors(*parts))

    def end_state(
        self,
        before: Float[Tensor, "*B 3"],
        now: Float[Tensor, "*B 3"],
        action: Shaped[Tensor, "*A"],
        params: DonkeyCarParams,
        scene: Float[Tensor, "*B S"] | None = None,
    ) -> Float[Tensor, "*B 6"]:
        """Pose ``now``; the step before it moved along the old heading by the old speed.

        That speed is exact where motion is; what the action made of it is the equations' say.
        """
        start = self.from_configurations(before, now, self.dt)
        dx, dy, _ = self.difference(now, before, self.visible_variables).unbind(-1)
        along = dx * torch.cos(before[..., 2]) + dy * torch.sin(before[..., 2])
        parts = (*start[..., :3].unbind(-1), along / self.dt, *start[..., 4:].unbind(-1))
        after = self.transition(self.settled(columns(parts), action, params), action, params)
        return columns((*now.unbind(-1), after[..., 3], after[..., 4], torch.zeros_like(along)))


def _beside(cte: Tensor) -> Tensor:
    """Share of the car that is beside the road, 0 to 1."""
    away = (cte - ROAD_OFFSET).abs() - ROAD_HALF_WIDTH
    return torch.sigmoid(away / EDGE)


def _kept(lag: Scalar, elapsed: float) -> Scalar:
    """Share of a deviation that a first-order lag leaves after a while; 0 without a lag."""
    if isinstance(lag, Tensor):
        return torch.exp(-elapsed / lag.clamp(min=1e-6))
    return math.exp(-elapsed / lag) if lag else 0.0


__all__ = ["DonkeyCar", "DonkeyCarParams"]
