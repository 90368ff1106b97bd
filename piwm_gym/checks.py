"""Checks of single arguments, whatever was passed. Imports nothing of the package."""

import math
import tempfile
import threading
from numbers import Integral, Real
from pathlib import Path
from typing import Any

LONGEST = threading.TIMEOUT_MAX
"""Longest time that Python can wait, s: centuries."""


def is_number(value: Any) -> bool:
    """Whether a value is a real, finite number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def check_number(name: str, value: Any) -> None:
    """Raise ValueError for what is not a finite number."""
    if not is_number(value):
        raise ValueError(f"{name} is {value!r}; expected a finite number")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError for what is not a positive, finite number."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a positive, finite number")


def check_seconds(name: str, value: Any) -> None:
    """Raise ValueError for what is not a positive time that can be waited for."""
    check_positive(name, value)
    if value > LONGEST:
        raise ValueError(f"{name} is {value!r}; expected at most {LONGEST:.0f} s")


def check_whole(name: str, value: Any, lowest: int | None = None) -> None:
    """Raise ValueError for what is not a whole number, or too small."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or (lowest is not None and int(value) < lowest):
        range_ = "" if lowest is None else f", {lowest} or more"
        raise ValueError(f"{name} is {value!r}; expected a whole number{range_}")


def check_host(name: str, value: Any) -> None:
    """Raise ValueError for what cannot be the name or address of a machine."""
    try:
        fits = isinstance(value, str) and value.isprintable() and bool(value.encode("idna"))
    except UnicodeError:
        fits = False
    if not fits:
        raise ValueError(f"{name} is {value!r}; expected the name or address of a machine")


def writable_folder(name: str, folder: Path) -> Path:
    """The folder, made if need be.

    Args:
        name: Of the argument that said where.
        folder: What to write to, perhaps in hours.

    Raises:
        ValueError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(
            f"{name}: nothing can be written to {folder} ({error.strerror}); expected a folder, or "
            "a place where one can be made"
        ) from error
    return folder


__all__ = [
    "LONGEST",
    "check_host",
    "check_number",
    "check_positive",
    "check_seconds",
    "check_whole",
    "is_number",
    "writable_folder",
]
