"""Command line: ``piwm-gym rollout``, ``piwm-gym info``, ``piwm-gym state FRAMES.npz``.

What is imported here is light; the commands import what they need, so that ``--help`` is quick.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from piwm_gym import __version__
from piwm_gym.checks import check_whole, writable_folder
from piwm_gym.registration import DEFAULT_VARIANT

if TYPE_CHECKING:
    import numpy as np

    from piwm_gym.imagine import ImaginedRollout
    from piwm_gym.systems import System, Variable
    from piwm_gym.world_model import WorldModel

DEFAULT_ID = "PIWM-CartPole-v0"


def rollout(
    env_id: str = DEFAULT_ID,
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    context: int = 10,
    horizon: int = 50,
    episodes: int = 10,
    seed: int = 0,
    output: Path = Path("videos"),
    device: str = "auto",
) -> None:
    """Film imagined rollouts beside the real ones, and measure how far they drift apart.

    The model sees the first frames of real episodes and imagines how they go on under the same
    actions. The film shows the first episode; the table is over all of them.

    Args:
        env_id: Id of the environment.
        variant: Which shipped weights.
        checkpoint: A file, a folder or a Hub id instead of the shipped weights.
        context: Frames that the model sees.
        horizon: Steps to imagine.
        episodes: Number of real episodes to compare with.
        seed: Seed of the first episode; the others follow.
        output: Folder for the mp4 and the gif.
        device: auto, cpu or cuda.
    """
    from piwm_gym.checkpoint import load
    from piwm_gym.imagine import imagined_rollout
    from piwm_gym.real import make_real, same_place
    from piwm_gym.video import side_by_side, write_video

    for name, number, lowest in (
        ("episodes", episodes, 1),
        ("horizon", horizon, 1),
        ("seed", seed, 0),
    ):
        check_whole(name, number, lowest)
    model = load(env_id, variant, checkpoint, device)
    writable_folder("output", output)
    real = make_real(env_id, obs_type="pixels", **same_place(model))
    seeds = range(seed, seed + episodes)
    rollouts = [imagined_rollout(model, real, context, horizon, each) for each in seeds]
    real.close()

    console = Console()
    console.print(param_table(model))
    console.print(error_table(rollouts, model.system))
    film = side_by_side(rollouts[0].real_frames, rollouts[0].imagined_frames)
    name = f"{model.system.name}-{model.config.autoencoder.variant}"
    for suffix in (".mp4", ".gif"):
        path = write_video(film, output / f"{name}{suffix}", fps=1 / model.system.dt)
        size = f"{len(film)} frames, {film.shape[2]} x {film.shape[1]} pixels"
        console.print(f"wrote {path}: {size}", soft_wrap=True)


def info(
    env_id: str = DEFAULT_ID,
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
) -> None:
    """Show what a checkpoint is: learned physics, sizes, how it was trained, how it measured.

    Args:
        env_id: Id of the environment.
        variant: Which shipped weights.
        checkpoint: A file, a folder or a Hub id instead of the shipped weights.
    """
    from piwm_gym.checkpoint import load, resolve
    from piwm_gym.config_tree import to_json
    from piwm_gym.models.autoencoder import num_parameters

    path = resolve(env_id, variant, checkpoint)
    model = load(env_id, variant, str(path), device="cpu")
    console = Console()
    console.print(f"{path}: {num_parameters(model):,} trainable numbers", soft_wrap=True)
    console.print(param_table(model))
    console.print(tree_table("Architecture", to_json(model.config)))
    console.print(tree_table("Training and results", model.metadata))


def state(
    frames: Annotated[Path, tyro.conf.Positional],
    env_id: str = DEFAULT_ID,
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
) -> None:
    """Estimate the physical state at the last of your own frames, and the scene they show.

    Args:
        frames: An .npz file with ``frames``, uint8 (T, H, W, 3) with T at least 2, native frames
            of the real environment or the model's crop of them; and ``actions``, the T - 1
            actions between them.
        env_id: Id of the environment.
        variant: Which shipped weights.
        checkpoint: A file, a folder or a Hub id instead of the shipped weights.
    """
    import torch

    from piwm_gym.checkpoint import load

    model = load(env_id, variant, checkpoint, device="cpu")
    window, actions = read_window(frames, model.system)
    with torch.no_grad():
        batch = torch.as_tensor(window)[None]
        read = model.encode_frames(batch)
        estimate, scene = model.estimate(read, torch.as_tensor(actions)[None])
        shown = bool(model.shown(batch, read))
    console, system = Console(), model.system
    title = f"State at frame {len(window) - 1}"
    console.print(variable_table(title, system.variables, estimate[0].tolist()))
    if scene is not None:
        console.print(variable_table("Scene", system.scene_variables, scene[0].tolist()))
    if not shown:
        console.print(
            f"Most frames do not show what {system.name} looks like: these numbers are guesses."
        )
    if not bool(model.in_distribution(estimate)):
        console.print("This state is outside the range of the training labels: do not rely on it.")


def read_window(path: Path, system: "System") -> tuple["np.ndarray", "np.ndarray"]:
    """Frames, cropped and resized where they are native ones, and actions of an .npz file.

    Raises:
        ValueError: The file is not such a file.
    """
    import numpy as np

    from piwm_gym.actions import check_actions
    from piwm_gym.preprocess import preprocess_frame

    layout = (
        "expected an .npz file with 'frames' (T, H, W, 3) uint8, T >= 2, and the T - 1 'actions' "
        "between them"
    )
    try:
        with np.load(path, allow_pickle=False) as file:
            frames, actions = file["frames"], file["actions"]
    except KeyError as error:
        raise ValueError(f"{path} has no array {error}; {layout}") from None
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"{path} is not a file; {layout}") from None
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise ValueError(f"{path} cannot be read ({error}); {layout}") from None
    if frames.ndim != 4 or len(frames) < 2 or frames.dtype != np.uint8:
        raise ValueError(
            f"'frames' in {path} has shape {frames.shape} and type {frames.dtype}; {layout}"
        )
    try:
        taken = check_actions(system.action_space, actions, (len(frames) - 1,), axes=("time step",))
    except ValueError as error:
        raise ValueError(f"'actions' in {path}: {error}") from None
    if frames.shape[1:3] == system.frame.native:
        frames = np.stack([preprocess_frame(frame, system.frame) for frame in frames])
    return frames, taken


def variable_table(title: str, variables: Sequence["Variable"], values: Sequence[float]) -> Table:
    """Named numbers with their units."""
    table = Table(title=title)
    for column in ("variable", "value", "unit"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for variable, value in zip(variables, values, strict=True):
        table.add_row(variable.name, f"{value:.4f}", variable.unit)
    return table


def param_table(model: "WorldModel") -> Table:
    """Learned quantities and physical parameters beside the real environment's."""
    table = Table(title="Physical parameters")
    for column in ("parameter", "unit", "model", "real", "relative error"):
        table.add_column(column, justify="left" if column in ("parameter", "unit") else "right")
    for row in model.param_table():
        error = f"{100 * row.relative_error:.2f} %" if row.learned else "given"
        table.add_row(row.name, row.unit, f"{row.value:.4f}", f"{row.reference:.4f}", error)
    if caveat := model.dynamics.parametrisation.caveat:
        table.caption = caveat
    return table


def error_table(rollouts: Sequence["ImaginedRollout"], system: "System") -> Table:
    """Root-mean-square errors after a number of imagined steps, of what frames determine."""
    import numpy as np

    longest = max(len(r.errors) for r in rollouts)
    table = Table(title="Root-mean-square error of the imagined state")
    estimated = [system.variables[i] for i in system.estimated]
    for column in ("steps", "time (s)", *(f"{v.name} ({v.unit})" for v in estimated)):
        table.add_column(column, justify="right")
    table.add_column("episodes", justify="right")
    for h in sorted({*range(0, longest, 10), longest - 1}):
        errors = np.stack([r.errors[h, system.estimated] for r in rollouts if len(r.errors) > h])
        numbers = [f"{value:.4f}" for value in np.sqrt((errors**2).mean(axis=0))]
        table.add_row(str(h), f"{h * system.dt:.2f}", *numbers, str(len(errors)))
    table.caption = "Step 0 is the state estimated from the context frames."
    if system.scene_variables:
        wrong = np.concatenate([r.scene_errors for r in rollouts])
        unit = system.scene_variables[0].unit
        table.caption += f" The scene's error is {np.sqrt((wrong**2).mean()):.4f} {unit}."
    return table


def tree_table(title: str, tree: dict[str, Any]) -> Table:
    """Nested dicts as rows of dotted keys and values."""
    table = Table("key", "value", title=title)
    for key, value in _leaves(tree, ""):
        table.add_row(Text(key), Text(value))
    return table


def _leaves(tree: Any, prefix: str) -> list[tuple[str, str]]:
    if not isinstance(tree, dict):
        return [(prefix, f"{tree:.6g}" if isinstance(tree, float) else str(tree))]
    prefix = f"{prefix}." if prefix else ""
    return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{prefix}{key}")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Command line; default: that of the process.

    Returns:
        Exit code: 0, or 2 for a mistake in the arguments, explained on stderr.
    """
    if [*(sys.argv[1:] if arguments is None else arguments)] == ["--version"]:
        Console().print(f"piwm-gym {__version__}", highlight=False)
        return 0
    commands: dict[str, Callable[..., None]] = {"rollout": rollout, "info": info, "state": state}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="piwm-gym",
            description="Imagined rollouts of physically interpretable world models. "
            "With --version alone: the version.",
            args=arguments,
        )
    except (ValueError, ImportError, OSError) as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
