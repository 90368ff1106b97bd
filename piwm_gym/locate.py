"""Where a checkpoint is: shipped with the package, a path, or a repository on the Hub."""

import os
import re
from pathlib import Path

from piwm_gym.manifest import CheckpointError, verify
from piwm_gym.models import VARIANTS
from piwm_gym.registration import DEFAULT_VARIANT, get_entry
from piwm_gym.systems import unknown

WEIGHTS = Path(__file__).parent / "weights"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def file_name(system: str, variant: str) -> str:
    """Name of a variant's checkpoint file: shipped, in a folder, or on the Hub."""
    return f"{system}-{variant}.safetensors"


def resolve(
    env_id: str = "PIWM-CartPole-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: Path | str | None = None,
) -> Path:
    """Path of a checkpoint file.

    Args:
        env_id: Id of the environment.
        variant: Architecture of the shipped weights; also names the file in a folder and on the
            Hub.
        checkpoint: None for the weights shipped with the package, which are checked against
            their manifest; the path of a file, which decides the variant itself; a folder; or a
            Hub id ``"user/name"``, downloaded once to the Hub's cache or to ``$PIWM_CACHE``.

    Raises:
        CheckpointError: There is no such checkpoint, what was given is no path, or the shipped one
            was altered.
        ValueError: Unknown ``env_id`` or ``variant``; the nearest one is suggested.
        ImportError: A Hub id without the package ``huggingface_hub``.
    """
    system = get_entry(env_id).system
    if variant not in VARIANTS:
        raise ValueError(unknown("variant", variant, VARIANTS))
    name = file_name(system, variant)
    if checkpoint is None:
        return _shipped(name)
    expected = (
        f"expected a .safetensors file, a folder with {name}, a Hub id 'user/name', or None for "
        "the shipped weights"
    )
    if not isinstance(checkpoint, str | os.PathLike):
        raise CheckpointError(f"checkpoint is {checkpoint!r}; {expected}")
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        path = path / name
    if path.is_file():
        return path
    if isinstance(checkpoint, str) and path.suffix == "" and HUB_ID.fullmatch(checkpoint):
        return _download(checkpoint, name)
    raise CheckpointError(f"checkpoint {str(checkpoint)!r}: {path} does not exist; {expected}")


def _shipped(name: str) -> Path:
    path = WEIGHTS / name
    if not path.is_file():
        present = ", ".join(sorted(p.name for p in WEIGHTS.glob("*.safetensors"))) or "none"
        raise CheckpointError(
            f"no weights {name} are shipped in {WEIGHTS} (present: {present}); choose another "
            "variant, or train and pass checkpoint=PATH"
        )
    verify(path)
    return path


def _download(repo: str, name: str) -> Path:
    try:
        import huggingface_hub as hub  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ImportError(
            f"checkpoint {repo!r} is no file or folder here; taken as a Hub id it needs the "
            "package huggingface_hub: pip install 'piwm-gym[hub]'"
        ) from None
    try:
        return Path(hub.hf_hub_download(repo, name, cache_dir=os.environ.get("PIWM_CACHE")))
    except Exception as error:  # network, authentication, missing repository or file: a long list
        raise CheckpointError(
            f"checkpoint {repo!r} is no file or folder here, and fetching {name} from the Hub "
            f"failed: {error}; check the name and the network, or pass a path"
        ) from error


__all__ = ["WEIGHTS", "file_name", "resolve"]
