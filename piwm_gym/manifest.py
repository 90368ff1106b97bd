"""Hashes of the shipped weights: ``SHA256SUMS.json`` beside them.

The file maps file names to SHA-256 sums. Training writes it, loading checks it.
"""

import hashlib
import json
import os
from pathlib import Path

MANIFEST = "SHA256SUMS.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which, why, and what to do."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is never seen half-written: a temporary name, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """SHA-256 sum of a file, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_manifest(folder: Path | str) -> Path:
    """Write the hashes of all ``*.safetensors`` of a folder to its manifest.

    Returns:
        Path of the manifest.
    """
    folder = Path(folder)
    sums = {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    write_atomically(folder / MANIFEST, (json.dumps(sums, indent=2) + "\n").encode())
    return folder / MANIFEST


def verify(path: Path) -> None:
    """Check a file against the manifest in its folder.

    Raises:
        CheckpointError: The manifest is missing or does not list the file, or the file's hash is
            another one.
    """
    manifest = path.parent / MANIFEST
    repair = "reinstall piwm-gym to restore the shipped weights, or pass checkpoint=PATH for yours"
    try:
        sums = json.loads(manifest.read_text())
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{manifest} is missing or unreadable ({error}); {repair}") from None
    if path.name not in sums:
        raise CheckpointError(f"{path} is not listed in {manifest}; {repair}")
    found = sha256(path)
    if found != sums[path.name]:
        raise CheckpointError(
            f"{path} was altered: its SHA-256 is {found}, the manifest {manifest.name} says "
            f"{sums[path.name]}; {repair}"
        )


__all__ = ["MANIFEST", "CheckpointError", "sha256", "verify", "write_atomically", "write_manifest"]
