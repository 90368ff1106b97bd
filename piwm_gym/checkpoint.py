"""Checkpoints: one ``.safetensors`` file with everything a world model is.

    header  one entry, "piwm_gym": JSON with
              format_version    how to read the rest
              package_version   what wrote it
              config            the WorldModelConfig tree
              metadata          provenance: training settings, data, measured results
              sha256            hash of all the above and of the tensors
    data    the tensors of WorldModel.state_dict(); one that half precision holds exactly is
            stored in it

There is no pickle in it. The bytes depend on the content only, so that equal models have equal
files.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from piwm_gym import __version__
from piwm_gym.config_tree import from_json, to_json
from piwm_gym.locate import resolve
from piwm_gym.manifest import CheckpointError, write_atomically, write_manifest
from piwm_gym.registration import DEFAULT_VARIANT, get_entry
from piwm_gym.world_model import WorldModel, WorldModelConfig

FORMAT_VERSION = 1
HEADER_KEY = "piwm_gym"
UNBOUNDED = ("state_low", "state_high")
"""Tensors that may be infinite: a model that saw no data has no range of training labels."""

Tensors = dict[str, Tensor]


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """``"auto"`` is the GPU when there is one, otherwise the CPU.

    Raises:
        ValueError: Not a device, none that models run on, or CUDA was asked for and is not
            available.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; expected 'auto', 'cpu' or 'cuda'")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but CUDA is not available; use 'auto' or 'cpu'")
    return resolved


def save(model: WorldModel, path: Path | str, metadata: dict[str, Any]) -> None:
    """Write a checkpoint; an existing file is replaced only when the new one is complete.

    Args:
        model: The model; its weights may be on any device.
        path: Where to, by convention ``<system>-<variant>.safetensors``.
        metadata: JSON-able provenance: training settings, description of the data, results.

    Raises:
        CheckpointError: A tensor is not finite: such a file would be refused when loaded.
        TypeError: ``metadata`` is not JSON-able.
        ValueError: ``metadata`` holds a number that is not finite.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    _check_finite(tensors, Path(path), "the model diverged; it was not saved")
    tensors = {name: _compact(tensor) for name, tensor in tensors.items()}
    header: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "config": to_json(model.config),
        "metadata": json.loads(_dumps(_finite(metadata))),  # keys become strings, tuples lists
    }
    header["sha256"] = _digest(header, tensors)
    write_atomically(Path(path), serialize(tensors, {HEADER_KEY: _dumps(header)}))


def load_checkpoint(path: Path | str, device: str | torch.device = "auto") -> WorldModel:
    """Read a checkpoint, in evaluation mode; only the dynamics' parameters require gradients.

    The global random state stays as it is.

    Args:
        path: The file.
        device: Where to put the weights; ``"auto"`` is the GPU when there is one.

    Returns:
        The model; ``model.metadata`` holds the metadata given to :func:`save`, and
        ``format_version`` and ``package_version``.

    Raises:
        CheckpointError: The file is missing, damaged, altered, of another format version, or its
            tensors are not those of its configuration; or torch's default dtype is not float32.
    """
    path, target = Path(path), resolve_device(device)
    if torch.get_default_dtype() != torch.float32:
        raise CheckpointError(
            f"torch's default dtype is {torch.get_default_dtype()}; expected torch.float32, in "
            "which models are stored and stepped: torch.set_default_dtype(torch.float32)"
        )
    header, tensors = _read(path)
    model = _build(header, tensors.get("asset"), path)
    _check_names(model.state_dict(), tensors, path)
    _check_digest(header, tensors, path)
    advice = "train again, or use another checkpoint"
    _check_finite(tensors, path, advice)
    model.load_state_dict(tensors)
    try:
        model.params  # noqa: B018  (it refuses what no system can have)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; {advice}") from error
    model.metadata = {
        **header["metadata"],
        "format_version": header["format_version"],
        "package_version": header["package_version"],
    }
    model.requires_grad_(False)
    model.dynamics.requires_grad_(True)
    return model.eval().to(target)


def load(
    env_id: str = "PIWM-CartPole-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: Path | str | None = None,
    device: str | torch.device = "auto",
    decoder: str | None = None,
) -> WorldModel:
    """World model of an environment: :func:`resolve`, then :func:`load_checkpoint`.

    Args:
        env_id: Id of the environment.
        variant: Architecture of the shipped weights; a checkpoint file decides it by itself.
        checkpoint: A file, a folder, a Hub id, or None for the shipped weights.
        device: Where to put the weights; ``"auto"`` is the GPU when there is one.
        decoder: How frames are drawn: ``"direct"``; ``"direct-bfloat16"``, off by at most 3 of
            255, which is quicker where the processor or GPU computes in bfloat16; or, as the
            paper does it, through the ``"latent"``. Default: directly where the checkpoint can.

    Raises:
        CheckpointError: No such checkpoint, one that cannot be used, or one of another system.
        ValueError: Unknown ``env_id``, ``variant``, ``device`` or ``decoder``.
    """
    path = resolve(env_id, variant, checkpoint)
    model = load_checkpoint(path, device)
    system = get_entry(env_id).system
    if model.system.name != system:
        raise CheckpointError(
            f"{path} is a model of {model.system.name!r}, {env_id} needs one of {system!r}; "
            "pass a checkpoint of that system"
        )
    if decoder is not None:
        model.autoencoder.use(decoder)
    return model


def _finite(tree: Any, where: str = "metadata") -> Any:
    """A tree of provenance as it is.

    Raises:
        ValueError: It holds a number that is not finite, which JSON does not have.
    """
    if isinstance(tree, float) and not math.isfinite(tree):
        raise ValueError(f"{where} is {tree}; expected a finite number, or None")
    keyed = isinstance(tree, dict)
    if keyed or isinstance(tree, list | tuple):
        for key, value in tree.items() if keyed else enumerate(tree):
            _finite(value, f"{where}[{key!r}]")
    return tree


def _compact(tensor: Tensor) -> Tensor:
    """In half precision if that changes nothing."""
    half = tensor.half()
    return half if tensor.dtype == torch.float32 and torch.equal(half.float(), tensor) else tensor


def _dumps(header: dict[str, Any]) -> str:
    return json.dumps(header, sort_keys=True, allow_nan=False)


def _digest(header: dict[str, Any], tensors: Tensors) -> str:
    """SHA-256 over the header without its hash, and over names, types and bytes of tensors."""
    content = {key: value for key, value in header.items() if key != "sha256"}
    digest = hashlib.sha256(_dumps(content).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Header and tensors of a file."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; pass the path of a .safetensors checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(_unreadable(path, error)) from None
    if header is None:
        raise CheckpointError(
            f"{path} has no {HEADER_KEY!r} entry in its metadata: it is not a checkpoint of "
            "piwm-gym, or another program rewrote it; use the file as piwm_gym.checkpoint.save "
            "wrote it"
        )
    return _parse(header, path), tensors


def _unreadable(path: Path, error: Exception) -> str:
    """What is wrong with a file that safetensors cannot open."""
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{":
        return f"{path} is truncated or damaged ({error}); copy or download it again"
    return (
        f"{path} is not a safetensors file ({error}); pickled checkpoints (.pt, .pth) are not "
        "read: save the model with piwm_gym.checkpoint.save"
    )


def _parse(text: str, path: Path) -> dict[str, Any]:
    """The header's JSON, checked for its version and keys."""
    try:
        header = json.loads(text)
        found = header["format_version"]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise CheckpointError(
            f"{path}: its {HEADER_KEY!r} metadata is damaged; copy or download the file again"
        ) from None
    if found != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {found}; this piwm-gym reads version {FORMAT_VERSION}: "
            "install the piwm-gym that wrote it, or train again"
        )
    keys = ("config", "metadata", "package_version", "sha256")
    missing = [key for key in keys if key not in header]
    if missing or not isinstance(header["metadata"], dict):
        raise CheckpointError(
            f"{path}: its metadata lacks {', '.join(missing) or 'a dict of provenance'}; "
            "copy or download the file again"
        )
    return header


def _build(header: dict[str, Any], asset: Tensor | None, path: Path) -> WorldModel:
    """Untrained model of the header's configuration, in the place that the file holds."""
    try:
        config = from_json(WorldModelConfig, header["config"])
        with torch.random.fork_rng(devices=[]):  # initialisation draws from the global generator
            return WorldModel(config, asset)
    except (ValueError, ZeroDivisionError, RuntimeError) as error:
        raise CheckpointError(
            f"{path}: its configuration does not fit this piwm-gym: {error}; install the version "
            f"that wrote it ({header['package_version']}), or train again"
        ) from error


def _check_names(expected: Tensors, found: Tensors, path: Path) -> None:
    advice = "weights and configuration must come from the same save; train or download again"
    for name in expected:
        if name not in found:
            raise CheckpointError(f"{path}: tensor {name!r} is missing; {advice}")
    for name, tensor in found.items():
        if name not in expected:
            raise CheckpointError(f"{path}: tensor {name!r} is not one of the model's; {advice}")
        want = expected[name]
        compact = want.dtype == torch.float32 and tensor.dtype == torch.float16
        if tensor.shape != want.shape or not (compact or tensor.dtype == want.dtype):
            raise CheckpointError(
                f"{path}: tensor {name!r} has shape {tuple(tensor.shape)} and type "
                f"{tensor.dtype}; expected {tuple(want.shape)} and {want.dtype}; {advice}"
            )


def _check_digest(header: dict[str, Any], tensors: Tensors, path: Path) -> None:
    found = _digest(header, tensors)
    if found != header["sha256"]:
        raise CheckpointError(
            f"{path} was altered after it was saved: the SHA-256 of its content is {found}, its "
            f"header says {header['sha256']}; copy or download it again"
        )


def _check_finite(tensors: Tensors, path: Path, advice: str) -> None:
    for name, tensor in tensors.items():
        bad = tensor.isnan() if name in UNBOUNDED else ~tensor.isfinite()
        if count := int(bad.sum()):
            of = math.prod(tensor.shape)
            raise CheckpointError(
                f"{path}: {count} of {of} numbers of {name!r} are not finite; {advice}"
            )


__all__ = [
    "FORMAT_VERSION",
    "CheckpointError",
    "load",
    "load_checkpoint",
    "resolve",
    "resolve_device",
    "save",
    "write_manifest",
]
