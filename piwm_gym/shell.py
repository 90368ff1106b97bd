"""What the single and the vector environment have in common around a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from piwm_gym.checkpoint import load
from piwm_gym.registration import DEFAULT_VARIANT, ENTRIES
from piwm_gym.simulation import Simulation, Snapshot
from piwm_gym.systems import SYSTEMS, System, unknown
from piwm_gym.threads import limit_worker_threads
from piwm_gym.world_model import WorldModel

RENDER_MODES = ("rgb_array",)


@dataclass(frozen=True)
class Source:
    """Where the world model comes from; what a pickled environment keeps of it.

    Attributes:
        env_id: Id of the environment.
        variant: Architecture of the shipped weights.
        checkpoint: A file, a folder, a Hub id, or None for the shipped weights.
        device: Where to run; ``"auto"`` is the GPU when there is one.
        decoder: How frames are drawn, see :func:`piwm_gym.load`; None: directly
            where the checkpoint can.
    """

    env_id: str
    variant: str = DEFAULT_VARIANT
    checkpoint: Path | str | None = None
    device: torch.device | str = "auto"
    decoder: str | None = None

    def load(self) -> WorldModel:
        """Load the model.

        Raises:
            RuntimeError: In a process that was forked after its parent used CUDA.
        """
        limit_worker_threads()
        try:
            return load(self.env_id, self.variant, self.checkpoint, self.device, self.decoder)
        except RuntimeError as error:
            if "forked subprocess" not in str(error):
                raise
            raise RuntimeError(
                f"{self.env_id}: this process was forked after its parent had used CUDA, and "
                "CUDA does not work here. One batched environment is faster than many "
                f"processes: gymnasium.make_vec({self.env_id!r}, num_envs=..., device='cuda'). "
                "Otherwise pass device='cpu', or vector_kwargs={'context': 'spawn'}"
            ) from error


def check_given(model: Any, source: Source) -> None:
    """Raise ValueError for a model that is none, or is to be another one as well."""
    if not isinstance(model, WorldModel):
        raise ValueError(f"model is {model!r}; expected a WorldModel, such as piwm_gym.load gives")
    for choice in fields(source)[1:]:
        value = getattr(source, choice.name)
        if value != choice.default:
            raise ValueError(
                f"{choice.name} is {value!r}, and model is given, which has one already; leave one "
                f"of them out"
            )
    if model.reading_std.dtype != torch.float32:
        kind = str(model.reading_std.dtype).removeprefix("torch.")
        raise ValueError(f"model is in {kind}; expected float32: model.float()")


class _Parameter:
    """A physical parameter's name, which is no attribute of environments.

    To assign to it is how the physics of ``CartPole-v1`` is changed. Here that would change
    nothing, so it is an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, env: "Shell | None", kind: type) -> Any:
        raise AttributeError(
            f"{kind.__name__!r} object has no attribute {self._name!r}; physical parameters are "
            f"in params: env.unwrapped.params.{self._name}"
        )

    def __set__(self, env: "Shell", value: Any) -> None:
        raise AttributeError(
            f"{self._name} is {value!r}; physical parameters are replaced by set_params: "
            f"env.unwrapped.set_params({self._name}=...)"
        )


class Shell:
    """Base of both environments: the model, its simulation, parameters, snapshots, pickling.

    A pickled environment holds the path of its checkpoint, not the weights, and goes on where it
    was. One that was built around a model object holds that.
    """

    _simulation_class: type[Simulation] = Simulation
    simulation: Simulation
    render_mode: str | None
    _spec: gym.envs.registration.EnvSpec | None = None

    def _setup(self, source: Source, model: WorldModel | None, **simulation: Any) -> None:
        """Load the model unless there is one, and start a simulation of it."""
        if model is not None:
            check_given(model, source)
        self._source = source
        self._given = model
        self._simulation_arguments = simulation
        self.model = source.load() if model is None else model
        self.simulation = self._simulation_class(self.model, **simulation)

    @property
    def spec(self) -> gym.envs.registration.EnvSpec | None:
        """What Gymnasium made this from, and as.

        Raises:
            ValueError: When set: it is of another environment than ``env_id`` or ``model``.
        """
        return self._spec

    @spec.setter
    def spec(self, spec: gym.envs.registration.EnvSpec | None) -> None:
        env_id = self._source.env_id
        if spec is not None and spec.id in ENTRIES and spec.id != env_id:
            raise ValueError(
                f"env_id is {env_id!r} in what was made as {spec.id!r}; leave it out, or make "
                f"{env_id!r}"
            )
        entry = None if spec is None else ENTRIES.get(spec.id)
        if entry is not None and entry.system != self.system.name:
            raise ValueError(
                f"model is one of {self.system.name} in what was made as {entry.env_id!r}; "
                f"expected one of {entry.system}"
            )
        self._spec = spec

    @property
    def system(self) -> System:
        """The physical system: names, units, equations."""
        return self.model.system

    def set_params(self, **values: Any) -> None:
        """Replace physical parameters, from the next step on and for all later episodes.

        Args:
            **values: Numbers by parameter name; in a vector environment also one per slot.

        Raises:
            ValueError: Unknown name, wrong shape, a value that the parameter cannot take, or
                one that is randomised.
        """
        self.simulation.params.set(values)

    def snapshot(self) -> Snapshot:
        """The present moment: state, parameters, random streams.

        A step limit added by ``gymnasium.make`` counts in its own wrapper: to branch an episode
        step the unwrapped environment.

        Raises:
            gymnasium.error.ResetNeeded: There has been no reset yet.
        """
        self._require_reset("snapshot")
        return self.simulation.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot; what follows is bit for bit what followed it the first time.

        Physical parameters come with it, also if another model's were in force.

        Raises:
            ValueError: The snapshot is of another system or of another number of slots.
        """
        self.simulation.restore(snapshot)

    def get_keys_to_action(self) -> dict[tuple[int, ...], Any]:
        """Arrow keys to actions, for ``gymnasium.utils.play``."""
        return key_bindings(self.system)

    def _require_reset(self, what: str) -> None:
        if not self.simulation.started:
            raise gym.error.ResetNeeded(f"{what} before reset; call env.reset() first")

    def _may_render(self) -> bool:
        """Whether a render mode was chosen; warns like Gymnasium's environments if not."""
        if self.render_mode is None:
            name = "..." if self.spec is None else self.spec.id
            gym.logger.warn(
                "You are calling render method without specifying any render mode. You can "
                f'specify it at initialization, e.g. gym.make("{name}", render_mode="rgb_array")'
            )
            return False
        self._require_reset("render")
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        simulation: Simulation = state.pop("simulation")
        moment = simulation.snapshot() if simulation.started else None
        state["_saved"] = (simulation.params.snapshot(), moment)
        state.pop("model")
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        params, moment = rest.pop("_saved")
        self.__dict__.update(rest)
        self._setup(self._source, self._given, **self._simulation_arguments)
        self.simulation.params.restore(params)
        if moment is not None:
            self.simulation.restore(moment)


# Not by Shell.__setattr__, through which the assignments of every step would go.
for _name in {name for system in SYSTEMS.values() for name in system.reference.names()}:
    setattr(Shell, _name, _Parameter(_name))


def check_render_mode(render_mode: str | None) -> str | None:
    """The render mode.

    Raises:
        ValueError: Not one of :data:`RENDER_MODES` or None.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(unknown("render_mode", render_mode, RENDER_MODES))
    return render_mode


def check_compile(compile: Any) -> bool | None:
    """Whether to compile.

    Raises:
        ValueError: Not True, False or None.
    """
    if compile is not None and not isinstance(compile, bool | np.bool_):
        raise ValueError(f"compile is {compile!r}; expected True, False or None")
    return None if compile is None else bool(compile)


def key_bindings(system: System) -> dict[tuple[int, ...], Any]:
    """SDL codes of arrow keys to the system's actions."""
    # Bit 30 and the USB scan code of the key.
    codes = {"right": 79, "left": 80, "down": 81, "up": 82}
    return {(1 << 30 | codes[key],): action for key, action in system.keyboard.items()}


def wait(tensor: torch.Tensor) -> Any:
    """Copy on the host, as an array that nothing else refers to."""
    return tensor.cpu().numpy().copy()


__all__ = [
    "RENDER_MODES",
    "Shell",
    "Source",
    "check_compile",
    "check_render_mode",
    "key_bindings",
    "wait",
]
