"""Data sets to Minari's format, the usual one of offline reinforcement learning, and back.

``python -m training.minari export FOLDER piwm/cartpole/laptop-v0`` makes a Minari dataset of what
``training.collect`` or an importer wrote; ``python -m training.minari import ID FOLDER`` gives the
same arrays, bit for bit, and the same manifest. An episode is a trajectory::

    observations    pixels uint8 (T+1, H, W, 3), state float32 (T+1, O): what the real environment
                    shows with ``obs_type="pixels_state"``; its spec is in the metadata
    actions         (T,) int64, or (T, A) float32
    rewards         (T,) of the real environment, by the system's closed form; so are terminations
    terminations    (T,) bool. Trajectories of Cart Pole go on after one
    truncations     (T,) bool: the last step, unless it is a termination
    infos           state float64 (T+1, D), SI units; scene float64 (T+1, S), where there is one;
                    controller, T+1 times its name. No model sees them

Pixels are stored as they are: Minari's default, JPEG, would smear poles. Weak labels are not
stored; training draws them from a seed.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import track

from piwm_gym.observations import observation_space, observe_states
from piwm_gym.real import real_spec
from piwm_gym.registration import ENTRIES
from piwm_gym.systems import System, unknown
from training.collect import Settings
from training.dataset import MANIFEST, SCHEMA, read_manifest, read_shard
from training.importers.write import write_shards
from training.shards import write_json
from training.training_data import system_of

try:
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage import get_dataset_path
except ImportError as error:
    raise ImportError(
        f"training.minari needs the package minari ({error}): pip install 'piwm-gym[minari]'"
    ) from error

OBS_TYPE = "pixels_state"
METADATA_KEY = "piwm_manifest"
_AGAIN = "export the data set again with `python -m training.minari export`"


def to_minari(folder: Path, dataset_id: str, *, quiet: bool = True) -> Path:
    """Make a Minari dataset of a data set.

    Args:
        folder: The data set, as ``training.collect`` or an importer wrote it.
        dataset_id: Id of the new dataset, such as ``piwm/cartpole/laptop-v0``.
        quiet: Show no progress bar.

    Returns:
        Folder of the dataset, below ``MINARI_DATASETS_PATH``.

    Raises:
        FileNotFoundError: No finished data set is in the folder.
        FileExistsError: There is a dataset of this id.
        ValueError: The id is malformed, or the data set is damaged or lacks states.
    """
    manifest = read_manifest(folder)
    if missing := manifest.get("missing_states"):
        raise ValueError(
            f"{folder} holds no {', '.join(missing)}, which rewards and terminations depend on; "
            "expected a data set with all states"
        )
    namespace, target = _place(dataset_id)
    system = system_of(manifest)
    with TemporaryDirectory(prefix=".export-", dir=get_dataset_path()) as temporary:
        made = Path(temporary) / target.name
        made.mkdir()
        storage = MinariStorage.new(
            made / "data",
            observation_space=observation_space(system, OBS_TYPE),
            action_space=system.action_space,
            env_spec=real_spec(_env_id(system), OBS_TYPE),
            data_format="hdf5",
            jpeg_encoding=False,
        )
        storage.update_metadata(
            {
                "dataset_id": dataset_id,
                "minari_version": minari.__version__,
                "algorithm_name": ", ".join(manifest["controllers"]),
                "description": f"{manifest['real_id']}: {manifest['trajectories']} trajectories "
                f"of {manifest['steps']} steps, for world models; the controllers are in infos",
                METADATA_KEY: manifest,
            }
        )
        storage.update_episodes(_episodes(folder, manifest, system, quiet))
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
        made.rename(target)
    return target


def from_minari(dataset_id: str, folder: Path, *, quiet: bool = True) -> Path:
    """Make a data set again of a Minari dataset that :func:`to_minari` made.

    Shards have the same bytes as well, and the manifest therefore the same sha256, where zlib
    compresses as it did then.

    Args:
        dataset_id: Id of a dataset below ``MINARI_DATASETS_PATH``.
        folder: Where to; it must not exist.
        quiet: Show no progress bar.

    Returns:
        Path of the manifest.

    Raises:
        FileNotFoundError: There is no such dataset.
        FileExistsError: The folder exists.
        ValueError: Its pixels are JPEG, it lacks pixels, states or our manifest, or its spaces or
            episodes are not those of the manifest.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; choose another folder, or delete it")
    dataset = _load(dataset_id)
    manifest = _manifest(dataset)
    system = system_of(manifest)
    _check_spaces(dataset, system)
    sizes = [f.name for f in dataclasses.fields(Settings) if f.name != "course"]  # that is copied
    settings = Settings(**{name: manifest[name] for name in sizes})
    if len(dataset) != settings.trajectories:
        raise ValueError(
            f"{dataset_id} has {len(dataset)} episodes, expected {settings.trajectories} by the "
            f"manifest in its metadata; {_AGAIN}"
        )
    kept = ("import",) if "import" in manifest else settings.identity()
    identity = {name: manifest[name] for name in kept if name in manifest}

    def arrays_of(members: range) -> dict[str, np.ndarray]:
        return _arrays(list(dataset.iterate_episodes(members)), settings, system)

    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".import-", dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        shards = write_shards(settings, arrays_of, made, identity, quiet=quiet)
        write_json(made / MANIFEST, {**manifest, "shards": shards})
        made.rename(folder)
    return folder / MANIFEST


def _place(dataset_id: str) -> tuple[str | None, Path]:
    """Namespace and folder of a dataset that does not exist yet."""
    try:
        namespace = parse_dataset_id(dataset_id)[0]
    except (TypeError, ValueError):  # the first where only the version is missing
        raise ValueError(
            f"dataset_id is {dataset_id!r}; expected namespace/name-vNUMBER, such as "
            "piwm/cartpole/laptop-v0"
        ) from None
    target: Path = get_dataset_path(dataset_id)
    if target.exists():
        raise FileExistsError(
            f"{target} exists; choose another dataset_id, such as the next version, or run "
            f"`minari delete {dataset_id}`"
        )
    return namespace, target


def _env_id(system: System) -> str:
    return next(env_id for env_id, entry in ENTRIES.items() if entry.system == system.name)


def _episodes(
    folder: Path, manifest: dict[str, Any], system: System, quiet: bool
) -> Iterator[EpisodeBuffer]:
    """Every trajectory of a data set; shards are read one after the other."""
    console = Console(stderr=True, quiet=quiet)
    for shard in track(manifest["shards"], description="shards", console=console):
        arrays = read_shard(folder, shard, manifest)
        states, actions, names = (arrays[name] for name in ("states", "actions", "controllers"))
        observed = observe_states(system, states.astype(np.float32))
        truth = torch.from_numpy(states)
        before, after = truth[:, :-1], truth[:, 1:]
        rewards = system.reward(before, torch.from_numpy(actions), after).numpy()
        terminations = system.terminal(after).numpy()
        truncations = np.zeros_like(terminations)
        truncations[:, -1] = ~terminations[:, -1]
        times = states.shape[1]
        for i in range(len(states)):
            scene = {"scene": np.tile(arrays["scenes"][i], (times, 1))}
            yield EpisodeBuffer(
                observations={"pixels": arrays["frames"][i], "state": observed[i]},
                actions=actions[i],
                rewards=rewards[i],
                terminations=terminations[i],
                truncations=truncations[i],
                infos={
                    "state": states[i],
                    "controller": [str(names[i])] * times,
                    **(scene if system.scene_variables else {}),
                },
            )


def _load(dataset_id: str) -> minari.MinariDataset:
    """A dataset that is there already; nothing is downloaded."""
    local, root = minari.list_local_datasets(), get_dataset_path()
    if dataset_id not in local:
        wrong = unknown("dataset_id", dataset_id, local) if local else f"no {dataset_id!r}"
        raise FileNotFoundError(
            f"{wrong} in {root}; set MINARI_DATASETS_PATH to look elsewhere, or run "
            f"`minari download {dataset_id}`"
        )
    return minari.load_dataset(dataset_id)


def _manifest(dataset: minari.MinariDataset) -> dict[str, Any]:
    """Our manifest in the metadata of a dataset whose pixels and states are what they were."""
    dataset_id, metadata = dataset.spec.dataset_id, dataset.storage.metadata
    if metadata.get("jpeg_encoding", True):
        raise ValueError(
            f"{dataset_id} has jpeg_encoding true, expected false: its pixels are not what the "
            f"camera saw; {_AGAIN}"
        )
    space = dataset.observation_space
    found = list(space) if isinstance(space, gym.spaces.Dict) else []
    if missing := {"pixels", "state"}.difference(found):
        raise ValueError(
            f"observations of {dataset_id} lack {' and '.join(sorted(missing))}: they are {space}; "
            "expected a Dict of pixels and state"
        )
    manifest = metadata.get(METADATA_KEY)
    if not isinstance(manifest, dict):
        raise ValueError(
            f"{dataset_id} has no {METADATA_KEY} in its metadata, which says what its states mean "
            "and how its frames were made; expected a dataset that `python -m training.minari "
            "export` made"
        )
    if manifest.get("schema") != SCHEMA:
        raise ValueError(f"{dataset_id}: {unknown('schema', manifest.get('schema'), (SCHEMA,))}")
    return manifest


def _check_spaces(dataset: minari.MinariDataset, system: System) -> None:
    for name, found, expected in (
        ("observation_space", dataset.observation_space, observation_space(system, OBS_TYPE)),
        ("action_space", dataset.action_space, system.action_space),
    ):
        if found != expected:
            raise ValueError(
                f"{name} of {dataset.spec.dataset_id} is {found}, expected {expected} of "
                f"{system.name}"
            )


def _arrays(
    episodes: list[minari.EpisodeData], settings: Settings, system: System
) -> dict[str, np.ndarray]:
    """What ``training/collect.py`` lists as a shard's contents."""
    for episode in episodes:
        if len(episode) != settings.steps:
            raise ValueError(
                f"episode {episode.id} has {len(episode)} steps, expected {settings.steps} by the "
                f"manifest in the metadata; {_AGAIN}"
            )
    infos = [episode.infos for episode in episodes]
    scenes = [i["scene"][0] if system.scene_variables else np.zeros(0) for i in infos]
    return {
        "frames": np.stack([e.observations["pixels"] for e in episodes]),
        "actions": np.stack([e.actions for e in episodes]),
        "states": np.stack([i["state"] for i in infos]),
        "scenes": np.stack(scenes),
        "controllers": np.array([i["controller"][0].decode() for i in infos]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Command line; default: that of the process.

    Returns:
        Exit code: 0, or 2 for a mistake in the arguments, explained on stderr.
    """
    console = Console(stderr=True)

    def export(
        data_folder: tyro.conf.Positional[Path], dataset_id: tyro.conf.Positional[str]
    ) -> None:
        """Make a Minari dataset of a data set.

        Args:
            data_folder: Folder that training.collect or an importer made.
            dataset_id: Id of the new dataset, such as piwm/cartpole/laptop-v0.
        """
        console.print(str(to_minari(data_folder, dataset_id, quiet=False)), soft_wrap=True)

    def import_(
        dataset_id: tyro.conf.Positional[str], out_folder: tyro.conf.Positional[Path]
    ) -> None:
        """Make a data set of a Minari dataset that was exported from one.

        Args:
            dataset_id: Id of a dataset in MINARI_DATASETS_PATH, by default ~/.minari/datasets.
            out_folder: Folder for the data set; it must not exist.
        """
        console.print(str(from_minari(dataset_id, out_folder, quiet=False)), soft_wrap=True)

    try:
        tyro.extras.subcommand_cli_from_dict(
            {"export": export, "import": import_},
            prog="python -m training.minari",
            description="Data sets to Minari's format, and back.",
            args=arguments,
        )
    except (ValueError, ImportError, OSError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
