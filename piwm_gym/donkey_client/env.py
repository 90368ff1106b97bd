"""A Donkey Car simulator as a Gymnasium environment."""

import math
import weakref
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np

from piwm_gym.checks import check_positive
from piwm_gym.donkey_client import messages
from piwm_gym.donkey_client.arguments import (
    check_choice,
    check_kind,
    check_text,
    launch_options,
    read_peer,
)
from piwm_gym.donkey_client.backend import Role, package_version
from piwm_gym.donkey_client.connection import Connection, open_embedded, open_remote
from piwm_gym.donkey_client.errors import DonkeyError
from piwm_gym.donkey_client.mailbox import Received
from piwm_gym.donkey_client.session import Timeouts
from piwm_gym.donkey_client.target import pose_target, read_pose, start_target
from piwm_gym.donkey_client.telemetry import (
    Course,
    PositionUnit,
    Telemetry,
    Units,
    decode_frame,
    read,
)

FRAME_SIZE = (120, 160)
"""Height and width of the camera's frame."""


class DonkeyEnv(gym.Env[np.ndarray, np.ndarray]):
    """A car on a road, seen through its camera and driven through the real client.

    ## Action
    Steering from -1 (full left) to 1 (full right), throttle from 0 to 1.

    ## Observation
    The camera's frame, uint8 (120, 160, 3).

    ## Reward
    ``(1 - |cte| / max_cte) * speed``, and -1 at the step that ends the episode.

    ## End
    Further than ``max_cte`` from the path, or something was hit.

    ## Info
    ``x, y`` (m), ``heading`` (rad, counter-clockwise from x), ``speed`` (m/s), ``cte`` (m,
    positive to the right of the path), ``hit``, ``time`` (simulator's, s), ``elapsed`` since the
    last frame (s), ``laps`` completed since the starting line was first crossed, ``generation``
    and ``version`` of the client package.

    Without a host or port the embedded simulator is started in a process of its own, in lock-step
    with this environment. Connecting happens at the first ``reset``, and again at the next one
    after an error.

    Args:
        host: Host of a running simulator; default this machine.
        port: Its port; default 9091 if a host is given.
        role: What that simulator does: ``"listen"`` (builds since 2020) or ``"dial"`` (2018 and
            2019; this side then listens on host and port).
        scene: Name of the scene to load from the simulator's menu; default the course, or else
            the first one.
        course: Course of the embedded simulator (see :mod:`piwm_gym.courses`), also where it
            runs already.
        seed: Seed of the embedded simulator.
        simulator: Further options of the embedded simulator, see ``piwm_gym.donkey_sim.launch``.
        max_cte: Distance from the path at which the episode ends, m.
        end_on_hit: Whether hitting something ends the episode.
        units_per_metre: Scale of the simulator, 8 in builds since 2021.
        positions: ``"metres"`` or ``"units"`` in telemetry; default from the message's fields.
        missing: What to do when telemetry lacks position or cte: ``"error"``, or ``"nan"`` in
            ``info`` (without a cte the reward is 0 and leaving the road does not end an episode).
        timeouts: How long to wait for what.
        car_name: Name over the car.
        render_mode: None or ``"rgb_array"``, the frame.

    Raises:
        ValueError: An argument is not one of its choices, not positive, or not of its kind.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        role: Role = "listen",
        scene: str | None = None,
        course: str | None = None,
        seed: int | None = None,
        simulator: dict[str, Any] | None = None,
        max_cte: float = 1.0,
        end_on_hit: bool = True,
        units_per_metre: float = 8.0,
        positions: PositionUnit = "auto",
        missing: Literal["error", "nan"] = "error",
        timeouts: Timeouts | None = None,
        car_name: str = "piwm",
        render_mode: str | None = None,
    ) -> None:
        check_choice("role", role, get_args(Role))
        check_choice("positions", positions, get_args(PositionUnit))
        check_choice("missing", missing, ("error", "nan"))
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        check_positive("max_cte", max_cte)
        check_positive("units_per_metre", units_per_metre)
        check_kind("end_on_hit", end_on_hit, bool, "True or False")
        check_kind("car_name", car_name, str, "a text")
        check_text("scene", scene)
        check_text("course", course)
        timeouts = Timeouts() if timeouts is None else timeouts
        check_kind("timeouts", timeouts, Timeouts, "Timeouts(connect=..., load=..., ...)")
        self.observation_space = gym.spaces.Box(0, 255, (*FRAME_SIZE, 3), np.uint8)
        self.action_space = gym.spaces.Box(
            np.array([-1, 0], np.float32), np.array([1, 1], np.float32)
        )
        self.render_mode = render_mode
        self.max_cte, self.end_on_hit, self.missing = max_cte, end_on_hit, missing
        self.units = Units(units_per_metre, positions)
        self.timeouts = timeouts
        self._peer = read_peer(host, port, role)
        self._launch = launch_options(self._peer, course, seed, simulator)
        self.course = course
        self._scene = course if scene is None and self._peer is not None else scene
        self._car_name = car_name
        self._path = Course()
        self._open: list[Connection] = []
        self._finalizer = weakref.finalize(self, _close_all, self._open)
        self._frame: np.ndarray | None = None
        self._seen: Telemetry | None = None
        self._start: Telemetry | None = None
        self._crossings = 0
        self._info: dict[str, Any] = {}

    @property
    def embedded(self) -> bool:
        """Whether this environment starts its own simulator."""
        return self._peer is None

    @property
    def info(self) -> dict[str, Any]:
        """Copy of the last ``info``."""
        return dict(self._info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Put the car to its start, or elsewhere, and wait until a frame shows it standing there.

        Args:
            seed: Seeds the simulator, if it can be.
            options: ``state``: x (m), y (m), heading (rad) and, as 0, speed (m/s).

        Raises:
            ValueError: Unknown option, or a state that is not one.
            DonkeyError: The simulator failed.
        """
        super().reset(seed=seed)
        pose = read_pose(options)
        try:
            connection = self._connect()
            session, start = connection.session, self._start
            assert start is not None
            if seed is not None:
                session.send(messages.set_random_seed(seed))
            if pose is None:
                target = start_target(start, self.units, FRAME_SIZE)
            else:
                target = pose_target(pose, start, self.units, FRAME_SIZE)
            message = session.stand(target.problem, target.request)
            session.take_hit()
            self._path.clear()
            self._seen = None
            self._crossings = session.crossings
            self._take(connection, message)
        except BaseException:
            self._disconnect()
            raise
        return self._copy(), self.info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Send an action and wait for the frame that answers it.

        Raises:
            ValueError: The action is not in the action space.
            gymnasium.error.ResetNeeded: There was no reset, or the last step failed.
            DonkeyError: The simulator failed; the episode is lost.
        """
        steering, throttle = self._check_action(action)
        if self._frame is None or not self._open:
            raise gym.error.ResetNeeded("step without a running episode; call env.reset() first")
        connection = self._open[-1]
        try:
            message = connection.session.drive(steering, throttle)
            hit = connection.session.take_hit()
            self._take(connection, message, hit)
        except BaseException:
            self._disconnect()
            raise
        cte, speed = self._info["cte"], self._info["speed"]
        # Without a cte (NaN) the comparison is false.
        terminated = abs(cte) > self.max_cte or (self.end_on_hit and hit != "none")
        reward = -1.0 if terminated else self._reward(cte, speed)
        return self._copy(), reward, terminated, False, self.info

    def render(self) -> np.ndarray | None:
        """The last frame, uint8 (120, 160, 3); None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn("You are calling render method without specifying any render mode.")
            return None
        if self._frame is None:
            raise gym.error.ResetNeeded("render before reset; call env.reset() first")
        return self._copy()

    def close(self) -> None:
        """Close the connection; end the simulator if this environment started it."""
        self._disconnect()

    def _reward(self, cte: float, speed: float) -> float:
        return 0.0 if math.isnan(cte) else (1 - abs(cte) / self.max_cte) * speed

    def _connect(self) -> Connection:
        """The connection; opened, and its start pose seen, if there is none."""
        if self._open:
            return self._open[-1]
        if self._peer is None:
            connection = open_embedded(self._launch, self.timeouts)
        else:
            connection = open_remote(self._peer, self.timeouts)
        self._open.append(connection)
        session = connection.session
        session.load(self._scene, FRAME_SIZE, self._car_name)
        anywhere = start_target(None, self.units, FRAME_SIZE)
        self._start = read(session.stand(anywhere.problem, anywhere.request), self.units)
        return connection

    def _disconnect(self) -> None:
        self._frame = self._seen = None
        _close_all(self._open)

    def _take(self, connection: Connection, message: Received, hit: str = "none") -> None:
        """Read a message into the present frame and info."""
        seen, before = read(message, self.units), self._seen
        absent = [name for name in ("x", "y", "cte") if math.isnan(getattr(seen, name))]
        if absent and self.missing == "error":
            raise DonkeyError(
                f"telemetry lacks {', '.join(absent)}: the scene has no path or the simulator's "
                "extended telemetry is off, as on race servers; turn it on, or pass missing='nan'"
            )
        heading, speed = self._path.update(seen)
        self._frame, self._seen = decode_frame(message, FRAME_SIZE), seen
        self._info = {
            "x": seen.x,
            "y": seen.y,
            "heading": heading,
            "speed": speed,
            "cte": seen.cte,
            "hit": hit,
            "time": seen.time,
            "elapsed": seen.time - before.time if before else 0.0,
            "laps": max(0, connection.session.crossings - self._crossings - 1),
            "generation": connection.backend.generation,
            "version": package_version(),
        }

    def _copy(self) -> np.ndarray:
        assert self._frame is not None
        return self._frame.copy()

    def _check_action(self, action: Any) -> tuple[float, float]:
        try:
            values = np.asarray(action, dtype=np.float32)
        except (TypeError, ValueError):
            values = np.zeros(0, np.float32)
        if values.shape != (2,) or not self.action_space.contains(values):
            raise ValueError(
                f"action is {action!r}; expected steering in [-1, 1] and throttle in [0, 1]"
            )
        return float(values[0]), float(values[1])


def _close_all(connections: list[Connection]) -> None:
    """Close and forget; it must not know the environment, which may be gone."""
    while connections:
        connections.pop().close()


__all__ = ["FRAME_SIZE", "DonkeyEnv"]
