"""One imagined episode at a time: the Gymnasium environment of a world model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from piwm_gym.actions import check_actions
from piwm_gym.lazy import LazyDict
from piwm_gym.observations import observation_space
from piwm_gym.options import read_options
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.shell import Shell, Source, check_compile, check_render_mode, wait
from piwm_gym.single import SingleSimulation
from piwm_gym.systems import Params
from piwm_gym.world_model import WorldModel


class WorldModelEnv(Shell, gym.Env[Any, Any]):
    """A learned, physically interpretable simulator of a real environment.

    ## Description
    The environment is imagined: a state in SI units moves by equations whose physical
    parameters were learned from frames of the real environment, and a decoder draws the frames.
    Neither the real environment nor a data set is needed. ``PIWM-CartPole-v0`` imagines
    ``CartPole-v1``, ``PIWM-LunarLander-v0`` imagines ``LunarLander-v3`` with discrete actions,
    ``PIWM-DonkeyCar-v0`` imagines a car in the Donkey simulator of ``gym-donkeycar``, by default
    the embedded one; :func:`piwm_gym.make_real` makes the real one with the same spaces.

    ## Action Space
    That of the real environment. Cart Pole: ``Discrete(2)``.

    | Num | Action                 | Unit                                |
    |-----|------------------------|-------------------------------------|
    | 0   | push cart to the left  | ``params.force_mag`` N for one step |
    | 1   | push cart to the right | ``params.force_mag`` N for one step |

    Lunar Lander: ``Discrete(4)``.

    | Num | Action            | Effect on a level lander for one step, on average          | Unit  |
    |-----|-------------------|------------------------------------------------------------|-------|
    | 0   | nothing           |                                                            |       |
    | 1   | fire left engine  | ``side_acceleration`` to the left, turns counter-clockwise | m/s^2 |
    | 2   | fire main engine  | ``main_acceleration`` upwards                              | m/s^2 |
    | 3   | fire right engine | ``side_acceleration`` to the right, turns clockwise        | m/s^2 |

    The engines are dispersed as in the real environment: every firing draws its thrust and
    direction from the environment's own random numbers. ``params={"main_dispersion": 0.0,
    "side_dispersion": 0.0}`` switches that off.

    Donkey Car: ``Box([-1, 0], [1, 1], (2,), float32)``.

    | Num | Action                    | Unit                                         |
    |-----|---------------------------|----------------------------------------------|
    | 0   | steering, to the right    | ``params.steering_gain`` rad of wheel angle  |
    | 1   | throttle                  | ``params.throttle_gain`` m/s^2               |

    Integers, integral floats and arrays, lists or tensors with one element are accepted. An
    action outside a discrete space is an error; one outside a Box is clipped.

    ## Observation Space
    Chosen by ``obs_type``:

    - ``"pixels"`` (default): the decoded frame, ``Box(0, 255, (H, W, 3), uint8)``, 64 x 64 for
      Cart Pole, 64 x 96 for Lunar Lander, 48 x 80 for Donkey Car.
    - ``"state"``: the real environment's observation, float32, in its own scaling. Numbers
      beyond the space's bounds are clipped in the observation, never in the simulation.
    - ``"pixels_state"``: ``Dict`` with both, under the keys ``"pixels"`` and ``"state"``.

    State of Cart Pole:

    | Num | Observation           | Unit  | Min   | Max  |
    |-----|-----------------------|-------|-------|------|
    | 0   | cart position         | m     | -4.8  | 4.8  |
    | 1   | cart velocity         | m/s   | -inf  | inf  |
    | 2   | pole angle            | rad   | -0.42 | 0.42 |
    | 3   | pole angular velocity | rad/s | -inf  | inf  |

    State of Lunar Lander, where the pad is the origin:

    | Num | Observation                 | One unit is   | Min   | Max  |
    |-----|-----------------------------|---------------|-------|------|
    | 0   | horizontal position         | 10 m          | -2.5  | 2.5  |
    | 1   | vertical position           | 6.67 m        | -2.5  | 2.5  |
    | 2   | horizontal velocity         | 5 m/s         | -10   | 10   |
    | 3   | vertical velocity           | 7.5 m/s       | -10   | 10   |
    | 4   | angle, counter-clockwise    | rad           | -6.28 | 6.28 |
    | 5   | angular velocity            | 2.5 rad/s     | -10   | 10   |
    | 6   | the right leg is down       | 0 or 1        | 0     | 1    |
    | 7   | the left leg is down        | 0 or 1        | 0     | 1    |

    State of Donkey Car; the course's path is the middle of its right lane:

    | Num  | Observation                                        | Unit  | Min   | Max  |
    |------|----------------------------------------------------|-------|-------|------|
    | 0    | x                                                  | m     | -100  | 100  |
    | 1    | y                                                  | m     | -100  | 100  |
    | 2    | heading, counter-clockwise from x                  | rad   | -3.14 | 3.14 |
    | 3    | speed                                              | m/s   | 0     | 20   |
    | 4    | cross-track error, positive to the right           | m     | -100  | 100  |
    | 5    | heading less that of the path                      | rad   | -3.14 | 3.14 |
    | 6-10 | path's curvature 0.25, 0.5, 1, 1.5 and 2 m ahead   | 1/m   | -10   | 10   |

    ``info["state"]`` is the state in SI units, float32 (D,), at every reset and step;
    ``info["in_distribution"]`` says whether it lies in the range of the training labels, outside
    of which frames are guesses; ``info["params"]``, at a reset, maps the names of the physical
    parameters to the values of the episode. Donkey Car's infos add ``cte`` (m) and ``laps``.
    Lunar Lander's state has ten numbers: the eight observed quantities, ``rest_time`` (s, for how
    long it has not moved) and ``crashed`` (0 or 1); ``env.unwrapped.system.variables`` lists
    names, units and ranges. Donkey Car's has six: x, y, heading, speed, the wheels' angle (rad) and
    the way driven along the path (m).

    What is fixed in an episode and shows in the frame is its *scene*: ``info["scene"]``, at a
    reset, float32 (S,). Cart Pole has none. Lunar Lander's is the terrain, 11 heights above where
    the lander's origin rests on the pad, in m, from x = -10 m to 10 m every 2 m.

    ## Rewards
    Those of the real environment, computed in closed form from the state. Cart Pole: +1 for
    every step, the last one included. Lunar Lander: the gain in a potential that counts distance
    from the pad, speed, tilt (100 each per observation unit) and legs on the ground (10 each),
    less 0.3 for the main engine and 0.03 for a side engine; instead -100 for a crash or for
    leaving the view, +100 for coming to rest. Donkey Car: that of ``gym-donkeycar``'s newer client,
    (1 - abs(cte)) times the speed in m/s with cte in m, -1 at the end.

    ## Starting State
    Drawn as the real environment does. Cart Pole: every number uniform in (-0.05, 0.05). Lunar
    Lander: at the top of the view, moved by a random impulse, above a random terrain whose middle
    is the flat pad. Donkey Car: at rest at the course's start, placed with an error of at most
    2 cm and 0.02 rad. ``reset(options=...)`` takes

    | Option               | Value                                                             |
    |----------------------|-------------------------------------------------------------------|
    | ``state``            | (D,) start state, SI units                                        |
    | ``scene``            | (S,) scene of the episode, where the system has one               |
    | ``frames, actions``  | uint8 (T, H, W, 3) observed frames, the T - 1 actions between     |
    |                      | them: the episode goes on from the last frame, in the scene that  |
    |                      | they show unless ``scene`` gives another; a warning tells where   |
    |                      | they do not show the system (not of a camera that drives along)   |
    | ``params``           | physical parameters for this episode only                         |

    ## Episode End
    Termination as in the real environment. Cart Pole: cart beyond +-2.4 m, or pole beyond +-12
    degrees. Lunar Lander: the hull touches the ground, the lander leaves the view sideways
    (+-10 m), or it has rested for half a second. Donkey Car: further than 1 m from the path.
    Truncation: ``gymnasium.make`` adds the real environment's step limit, 500 for Cart Pole and
    1000 for Lunar Lander; the Donkey simulator has none, 2000 steps (100 s) are ours.

    ## Arguments

    | Parameter     | Type | Default                  | Description                             |
    |---------------|------|--------------------------|-----------------------------------------|
    | `variant`     | str  | `"extrinsic-continuous"` | which shipped weights                   |
    | `obs_type`    | str  | `"pixels"`               | see Observation Space                   |
    | `checkpoint`  | str  | `None`                   | file, folder or Hub id instead of these |
    | `params`      | dict | `None`                   | physical parameters to replace          |
    | `randomize`   | dict | `None`                   | name to (low, high): drawn per episode  |
    | `device`      | str  | `"auto"`                 | the GPU when there is one               |
    | `render_mode` | str  | `None`                   | `"rgb_array"`: `render()` gives frames  |
    | `compile`     | bool | `None`                   | compile steps and the drawing of frames |
    | `decoder`     | str  | `None`                   | `"direct-bfloat16"` or `"latent"`       |

    Physical parameters of Cart Pole:

    | Name        | Unit  | CartPole-v1 | Meaning                    |
    |-------------|-------|-------------|----------------------------|
    | `gravity`   | m/s^2 | 9.8         | gravitational acceleration |
    | `masscart`  | kg    | 1.0         | mass of the cart           |
    | `masspole`  | kg    | 0.1         | mass of the pole           |
    | `length`    | m     | 0.5         | half the pole's length     |
    | `force_mag` | N     | 10.0        | force of a push            |
    | `tau`       | s     | 0.02        | time step                  |

    Physical parameters of Lunar Lander; those marked * may be 0:

    | Name                        | Unit    | LunarLander-v3 | Meaning                             |
    |-----------------------------|---------|----------------|-------------------------------------|
    | `gravity`                   | m/s^2   | 10.0           | gravitational acceleration          |
    | `main_acceleration`         | m/s^2   | 17.477         | of the main engine, upwards         |
    | `side_acceleration`         | m/s^2   | 2.4824         | of a side engine, sideways          |
    | `side_angular_acceleration` | rad/s^2 | 4.9713         | of a side engine, level             |
    | `side_attitude` *           | rad/s^2 | 1.3154         | what sin^2(theta) adds to it        |
    | `main_dispersion` *         | 1       | 0.2887         | standard deviation of main thrust   |
    | `side_dispersion` *         | 1       | 0.1443         | standard deviation of side thrust   |
    | `leg_strength`              | m/s^2   | 10.44          | largest push of one leg, unbent     |
    | `leg_return`                | m/s     | 0.258          | speed at which a leg unbends        |
    | `leg_friction`              | 1       | 0.1414         | friction of a leg on the ground     |

    Physical parameters of Donkey Car; those marked * may be 0, and all but the first four at 0
    leave the paper's bicycle. There are no true values: the simulated car is richer.

    | Name              | Unit    | Best fit | Meaning                                          |
    |-------------------|---------|----------|--------------------------------------------------|
    | `wheelbase`       | m       | 0.20     | effective distance of the axles                  |
    | `steering_gain`   | rad     | 0.2793   | wheel angle at full command, known               |
    | `throttle_gain`   | m/s^2   | 2.4      | acceleration at full throttle                    |
    | `drag`            | 1/s     | 0.22     | deceleration per speed                           |
    | `verge_drag` *    | 1/s     | 0.80     | additional drag beside the road                  |
    | `turning_loss` *  | 1/m     | 0.32     | deceleration per tan(wheel angle) and v^2        |
    | `rolling` *       | m/s^2   | 0        | deceleration at any speed                        |
    | `understeer` *    | s^2/m^2 | 0.53     | relative growth of a turn's radius with v^2      |
    | `steering_lag` *  | s       | 0.22     | time constant of the wheels behind the command   |

    ```python
    >>> import gymnasium as gym
    >>> env = gym.make("piwm_gym:PIWM-CartPole-v0", obs_type="state")  # doctest: +SKIP
    >>> obs, info = env.reset(seed=0)  # doctest: +SKIP
    >>> obs, reward, terminated, truncated, info = env.step(1)  # doctest: +SKIP
    ```

    ## Vectorized environment
    ``gymnasium.make_vec("PIWM-CartPole-v0", num_envs=n)`` is one batched simulation,
    :class:`piwm_gym.vector_env.WorldModelVectorEnv`; its slot i equals this environment seeded
    with ``seed + i``.

    ## Version History
    * v0: first version.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    _simulation_class = SingleSimulation
    simulation: SingleSimulation

    def __init__(
        self,
        env_id: str = "PIWM-CartPole-v0",
        variant: str = DEFAULT_VARIANT,
        obs_type: str = "pixels",
        checkpoint: Path | str | None = None,
        params: Mapping[str, Any] | None = None,
        randomize: Mapping[str, Any] | None = None,
        device: torch.device | str = "auto",
        render_mode: str | None = None,
        model: WorldModel | None = None,
        compile: bool | None = None,
        decoder: str | None = None,
    ) -> None:
        """Load the world model.

        Args:
            env_id: Id of the environment.
            variant: Which shipped weights.
            obs_type: ``"pixels"``, ``"state"`` or ``"pixels_state"``.
            checkpoint: A file, a folder or a Hub id instead of the shipped weights.
            params: Physical parameters to replace, numbers by name.
            randomize: Name to (low, high): drawn uniformly at the start of each episode.
            device: Where to run.
            render_mode: None or ``"rgb_array"``.
            model: A model in memory instead of a checkpoint; not through ``gymnasium.make``,
                which copies its arguments.
            compile: Compile the step, now, and drawing at the first frame, which takes a while
                (less the next time); frames may differ by 1 of 255, by 2 in bfloat16. None: compile
                steps of Cart Pole and Lunar Lander after some thousands of them, by a process of
                its own, which changes nothing but their speed. False: nothing.
            decoder: How frames are drawn: ``"direct"``; ``"direct-bfloat16"``, off by at most 3 of
                255, which is quicker where the processor or GPU computes in bfloat16; or, as the
                paper does it, through the ``"latent"``. Default: directly where the checkpoint can.

        Raises:
            ValueError: Unknown name or value that is not allowed; the message says what is.
            CheckpointError: No such checkpoint, or one that cannot be used.
        """
        self.render_mode = check_render_mode(render_mode)
        compile = check_compile(compile)
        source = Source(env_id, variant, checkpoint, device, decoder)
        self._setup(
            source,
            model,
            params=params,
            randomize=randomize,
            compiled=AutoresetMode.DISABLED if compile else None,
            eventually=compile is None,
        )
        self._told_params: tuple[Any, dict[str, float]] = (None, {})
        self.obs_type = obs_type
        self.observation_space = observation_space(self.system, obs_type)
        self.action_space = self.system.action_space
        self.metadata = {**self.metadata, "render_fps": round(1 / self.system.dt)}

    @property
    def params(self) -> Params:
        """Physical parameters in force, floats."""
        return type(self.model.params)(**self._param_values())

    @property
    def state(self) -> np.ndarray:
        """Copy of the state, float32 (D,), SI units."""
        self._require_reset("state")
        return wait(self.simulation.state[0])

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """As Gymnasium's; a physical parameter's name is refused here, not kept by a wrapper."""
        force = force or name in self.model.params.names()
        return super().set_wrapper_attr(name, value, force=force)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Start the random numbers anew; None continues them.
            options: See Starting State.

        Raises:
            ValueError: Unknown option, wrong shape, not finite, or contradictory.
        """
        super().reset(seed=seed)
        read = read_options(options, self.system)
        self.simulation.params.read(read.params)
        if seed is not None:
            self.simulation.seed([seed])
        elif not self.simulation.started:
            self.simulation.seed([int(self.np_random.integers(2**63))])
        start = self.simulation.begin_single(read)
        info = self._info(start.state)
        info["params"] = self._param_values()
        if self.system.scene_variables:
            info["scene"] = wait(self.simulation.scene[0])
        return self._observe(start.observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance one time step.

        Raises:
            ValueError: The action is of another shape, not a number, or not in a discrete space;
                one outside a Box is clipped.
            gymnasium.error.ResetNeeded: There has been no reset yet.
        """
        self._require_reset("step")
        new = self.simulation.advance_single(self._read_action(action))
        if new.over:
            self._warn_over()
        reward = 0.0 if new.over and new.terminated else new.reward
        return self._observe(new.observation), reward, new.terminated, False, self._info(new.state)

    def _read_action(self, action: Any) -> np.ndarray:
        space = self.action_space
        if (  # nearly all actions: what it takes is this and no more
            type(action) in (int, np.int64)
            and isinstance(space, gym.spaces.Discrete)
            and space.start <= action < space.start + space.n
        ):
            return np.array(action)
        return check_actions(space, action, ())

    def render(self) -> np.ndarray | None:
        """The imagined frame, uint8 (H, W, 3); None without a render mode."""
        return wait(self.simulation.frames()[0]) if self._may_render() else None

    def _observe(self, state: np.ndarray) -> Any:
        """What the agent sees, of which the state is known already."""
        if self.obs_type == "state":
            return state
        frame = wait(self.simulation.frames()[0])
        return frame if self.obs_type == "pixels" else {"pixels": frame, "state": state}

    def _info(self, state: np.ndarray) -> dict[str, Any]:
        """What a state is, of which nothing is computed before it is looked at."""
        return LazyDict(
            {
                "state": state.copy,
                "in_distribution": partial(self._in_distribution, state),
                **{name: partial(self._told, name, state) for name in self.system.info_names},
            }
        )

    def _batch(self, state: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(state[None]).to(self.simulation.device)

    def _in_distribution(self, state: np.ndarray) -> bool:
        return bool(self.simulation.in_distribution(self._batch(state)))

    def _told(self, name: str, state: np.ndarray) -> float | int:
        return self.system.info(self._batch(state))[name].item()

    def _param_values(self) -> dict[str, float]:
        params = self.simulation.params
        if params.varies or self._told_params[0] is not params.current:
            values = {name: _shortest(float(x)) for name, x in params.per_slot().items()}
            self._told_params = params.current, values
        return dict(self._told_params[1])

    def _warn_over(self) -> None:
        gym.logger.warn(
            "You are calling 'step()' even though this environment has already returned "
            "terminated = True. You should always call 'reset()' once you receive 'terminated = "
            "True' -- any further steps are undefined behavior."
        )


def _shortest(value: float) -> float:
    """The float with the fewest digits that is this float32: 0.8, not 0.800000011920929."""
    return float(str(np.float32(value)))


__all__ = ["WorldModelEnv"]
