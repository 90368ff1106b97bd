"""What to say of a name that is not one of the choices. Imports nothing of the package."""

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, got: object, choices: Iterable[str]) -> str:
    """Text of the error for a name that is not among the choices, with the nearest one."""
    choices = tuple(choices)
    near = get_close_matches(str(got), choices, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {got!r}; expected one of {', '.join(map(repr, choices))}{hint}"


__all__ = ["unknown"]
